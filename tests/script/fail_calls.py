# SPDX-License-Identifier: Apache-2.0
"""Lets calls of a `kvof serve` fail and drives hang: the hand of fail_calls.c, which is preloaded."""
import mmap
import os
import struct

CALLS = ('', 'accept4', 'recv', 'send', 'epoll_wait', 'epoll_ctl', 'setsockopt', 'getpeername', 'mmap',
         'io_uring_submit')


class Fail:
    def __init__(self, library, folder):
        path = os.path.join(folder, 'fail')
        with open(path, 'wb+') as f:
            f.truncate(4096)
            self.page = mmap.mmap(f.fileno(), 4096)
        self.env = dict(os.environ, LD_PRELOAD=library, KVOF_FAIL_FILE=path)
        self.env['ASAN_OPTIONS'] = self.env.get('ASAN_OPTIONS', '') + ':verify_asan_link_order=0'

    def _set(self, word, value):
        struct.pack_into('<i', self.page, 4 * word, value)

    def hang(self, on):
        """Drives whose path holds "hang" do not answer."""
        self._set(0, int(on))

    def arm(self, call, nth, error):
        """The nth of these calls from now on ends with this errno."""
        self.disarm()
        self._set(2, nth)
        self._set(3, error)
        self._set(1, CALLS.index(call))

    def disarm(self):
        self._set(1, 0)

    def fired(self):
        """How many calls have failed."""
        return struct.unpack_from('<i', self.page, 16)[0]
