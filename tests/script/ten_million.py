#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Ten million keys on four drives: an open finds all of them and reads metadata only, the index
takes at most 48 bytes a key, keys are there, strangers are not, and new ones can be made. No time is
judged; the drives are files with holes where the values would be (tests/bench/reopen.c).

usage: ten_million.py REOPEN
"""
import json
import os
import resource
import subprocess
import sys
import tempfile

from cases import Tap

KEYS, ASK, DRIVES, SHARDS, VALUE_BYTES = 10_000_000, 2_000, 4, 2, 3_000
INDEX_BYTES_A_KEY_MAX = 48             # docs/limits.md
FOOTER_BYTES_A_KEY = 32                # docs/formats.md, Footer
BLOCK_BYTES, RSS_BYTES_MAX = 4096, 2 << 30


def main():
    tap = Tap()

    def check(good, name, detail):
        tap.tell(f's11_{name} ({detail})', None if good else detail)

    with tempfile.TemporaryDirectory(dir='.') as folder:
        done = subprocess.run([sys.argv[1], folder, f'keys={KEYS}', f'bytes={VALUE_BYTES}',
                               f'drives={DRIVES}', f'shards={SHARDS}', 'rounds=1', f'ask={ASK}'],
                              capture_output=True, text=True)
        left = os.listdir(folder)
    check(done.returncode == 0 and not left, 'ten_million_keys_are_opened',
          f'status {done.returncode}, {len(left)} files left {done.stderr.strip()[-200:]}'.rstrip())
    if done.returncode != 0:
        return tap.end()
    seen = json.loads(done.stdout)
    check(seen['keys'] == KEYS, 'an_open_finds_every_key', f'{seen["keys"]} of {KEYS}')
    # A header a segment, footers rounded up to blocks, and the superblocks of each part.
    most = KEYS * FOOTER_BYTES_A_KEY + BLOCK_BYTES * (4 * seen['segments'] + 64 * DRIVES * SHARDS)
    check(0 < seen['metadata_bytes_read'] <= most, 'an_open_reads_metadata_only',
          f'{seen["metadata_bytes_read"]} of {most} bytes at most, {seen["data_bytes"]} of data')
    check(0 < seen['index_bytes_a_key'] <= INDEX_BYTES_A_KEY_MAX,
          'a_key_takes_at_most_48_bytes_of_memory', f'{seen["index_bytes_a_key"]} bytes')
    rss_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    check(rss_bytes <= RSS_BYTES_MAX, 'all_of_it_fits_2_gib_of_memory', f'{rss_bytes >> 20} MiB')
    asked = ASK * DRIVES * SHARDS
    check(seen['asked'] == seen['found'] == asked, 'keys_of_before_exist',
          f'{seen["found"]} of {asked}')
    check(seen['strangers_found'] == 0, 'keys_that_nobody_stored_do_not_exist',
          f'{seen["strangers_found"]} of {asked}')
    check(seen['created'] == asked, 'new_keys_are_made_beside_them', f'{seen["created"]} of {asked}')
    return tap.end()


sys.exit(main())
