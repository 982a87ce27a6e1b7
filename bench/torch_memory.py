"""Peak memory of one training step in a fresh process, by a counter of the heap (malloc_peak.c, in LD_PRELOAD): what
the process holds at most during the step beyond what it held before. Prints a JSON line.

    LD_PRELOAD=malloc_peak.so python bench/torch_memory.py "flux fp32" dvm

Gradients, saved values, intermediate values and scratch of every library count. Memory that a backend keeps from call
to call has to be in the number: DVM's arena is given back before the step, so that the step takes it again. Its kernels
keep no workspace behind a run of a graph.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys

import torch
import torch_cases


def main(name: str, backend: str) -> None:
    torch.set_num_threads(1)
    heap = ctypes.CDLL(None)
    heap.heap_now.restype = heap.heap_peak.restype = ctypes.c_longlong
    step = torch_cases.steps()[name](backend)
    for _ in range(3):
        step()
    if backend == "dvm":
        import _dvm

        _dvm.release_arenas()
    gc.collect()
    gc.disable()
    before = heap.heap_now()
    heap.heap_peak()
    step()
    row = {"case": name, "backend": backend, "peak": heap.heap_peak() - before}
    print(json.dumps(row))


main(*sys.argv[1:])
