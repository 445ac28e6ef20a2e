# SPDX-License-Identifier: Apache-2.0
"""kvof: the KV cache of language models on flash that many hosts share over NVMe-oF.

``kvof.Cache`` is the door to libkvof; ``python -m kvof.llama`` runs a real model against it.

The compiled part is found beside this file (installed), or in ``build/`` of the source tree.
"""

from pathlib import Path

__path__.append(str(Path(__file__).resolve().parents[2] / "build" / "python" / "kvof"))

__version__ = "0.1.0"
__all__ = ["Cache", "Refused", "Restore", "Result"]


def __getattr__(name):
    """The compiled part is loaded on first use, so that ``import kvof`` works without it."""
    if name in __all__:
        from . import cache
        return getattr(cache, name)
    raise AttributeError(f"module 'kvof' has no attribute '{name}'")
