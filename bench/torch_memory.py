"""Peak memory of one training step in a fresh process, by a counter of the heap (malloc_peak.c, in LD_PRELOAD): what
the process holds at most during the step beyond what it held before. Prints a JSON line.

    LD_PRELOAD=malloc_peak.so python bench/torch_memory.py "flux fp32" dvm

Gradients, saved values, intermediate values and scratch of every library count. Memory that a backend keeps from call
to call has to be in the number: DVM's arena is given back before the step, so that the step takes it again, and the
workspace that its kernels share is added.
"""

from __future__ import annotations

import ctypes
import gc
import json
import sys

import torch
import torch_cases


def kept_by_kernels() -> int:
    """Bytes of the workspace that DVM keeps between runs: as large as the largest kernel wants."""
    import dvm.torch

    kernels = [k for g in dvm.torch.summary().graphs for k in g.functions.values()]
    return max((k.kobj.stats()["workspace"] for k in kernels), default=0)


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
    row = {"case": name, "backend": backend, "peak": heap.heap_peak() - before, "kept": 0}
    if backend == "dvm":
        row["kept"] = kept_by_kernels()
    print(json.dumps(row))


main(*sys.argv[1:])
