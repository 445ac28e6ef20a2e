/* SPDX-License-Identifier: Apache-2.0 */
/* `kvof plan calibrate` without --rows: measures this machine and writes a profile. */
#ifndef KVOF_CMD_PLAN_MEASURE_H
#define KVOF_CMD_PLAN_MEASURE_H

/* argv[0] is "calibrate"; every option is read here. Return: an exit code. */
int plan_measure_run(int argc, char **argv);

#endif
