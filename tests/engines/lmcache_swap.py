# SPDX-License-Identifier: Apache-2.0
"""kvof's connector in the place of the mock that LMCache's own adapter test brings.

Each instance starts empty, as the mock does: it has a model of its own. KVOF_TARGET names the array;
without it DRAM alone is used. Imported by the copy of their test that lmcache_test.py makes.
"""

import itertools
import os

from kvof.lmcache import Connector

_number = itertools.count()


class MockNativeConnector(Connector):
    def __init__(self):
        target = os.environ.get("KVOF_TARGET")
        own = {"test": f"{os.getpid()}-{next(_number)}"}
        where = {"target": target} if target else {"dram": "64MiB"}
        super().__init__(model=own, model_id="-".join(own.values()), **where)
