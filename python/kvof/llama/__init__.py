# SPDX-License-Identifier: Apache-2.0
"""The model harness: a real language model whose KV cache goes to an array and comes back.

Run as ``python -m kvof.llama``. One process lets llama.cpp read a long text and saves its KV cache
block by block through :mod:`kvof.cache`; the array is restarted; another process restores the
blocks, and its first token is timed against recomputing the same prefix and against restoring it
from a copy in the process's own memory. All arms must continue with the same bytes.

===========  =================================================================================
text         the long real text, the same on every Debian machine
engine       llama.cpp: decode, take a block of the KV cache out, put it back, identity
blocks       a prompt as blocks of tokens; restore from an array or from memory; save
array        ``kvof serve`` as a child process: start, stop, kill, counters
worker       one process of the run: ``save``, ``restore``, ``share`` or ``follow``
sharing      two hosts at once: one loads what the other is storing; two documents with one head
measure      the arms, their clocks, and the proof that they continue identically
report       the table, the sentence, ``run.json``, the section of ``docs/benchmarks.md``
__main__     the order of the run
===========  =================================================================================
"""
