"""How each peer runs a case: DVM, torch eager, Inductor, numpy and one fused C loop compiled by the local compiler."""

from __future__ import annotations

import ctypes
import hashlib
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import dvm
import numpy as np
import torch
from cases import COLUMNS, Case

PRELUDE = """
#include <math.h>
#include <stdint.h>
#include <string.h>
typedef float f32; typedef uint16_t bf16;
static inline float from_bf16(uint16_t h) { uint32_t w = (uint32_t)h << 16; float f; memcpy(&f, &w, 4); return f; }
static inline uint16_t to_bf16(float f) { uint32_t w; memcpy(&w, &f, 4);
  return f != f ? 0x7fc0 : (uint16_t)((w + 0x7fff + (w >> 16 & 1)) >> 16); }
"""
C_FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
)


def shapes(case: Case, size: int, item: int) -> tuple[int, int]:
    n = size // item
    if "square" in case.inputs:
        side = max(16, int(n**0.5) // 16 * 16)
        return side, side
    return max(1, n // COLUMNS), COLUMNS


def shape_of(kind: str, m: int, n: int) -> tuple[int, ...]:
    return {
        "full": (m, n),
        "row": (n,),
        "column": (m, 1),
        "square": (m, m),
        "scalar": (),
        "middle": (m, 64),
        "rows": (m,),
    }[kind]


def tensors(case: Case, m: int, n: int, dtype: torch.dtype) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(7)
    return [torch.randn(shape_of(kind, m, n), generator=g).to(dtype) for kind in case.inputs]


def measure(run: Callable[[], Any], budget: float = 0.15) -> float:
    """Median seconds of one call."""
    run()
    t = time.perf_counter()
    run()
    once = max(time.perf_counter() - t, 1e-7)
    inner = max(1, int(0.004 / once))
    times: list[float] = []
    stop = time.perf_counter() + budget
    while len(times) < 5 or (time.perf_counter() < stop and len(times) < 300):
        t = time.perf_counter()
        for _ in range(inner):
            run()
        times.append((time.perf_counter() - t) / inner)
    return float(np.median(times))


def dvm_kernel(case: Case, m: int, n: int, dtype: str) -> Any:
    @dvm.kernel(ktype="split", dyn_shape=False)
    def built(k: Any) -> None:
        values = [k.load(list(shape_of(kind, m, n)), dtype) for kind in case.inputs]
        k.store(case.dvm(k, dtype, *values), dtype)

    return built


def run_dvm(
    case: Case, args: list[torch.Tensor], out: torch.Tensor, m: int, n: int, dtype: str
) -> tuple[Callable[[], Any], Any]:
    """As the C loop is called: a function and a tuple of arguments, both at hand."""
    k = dvm_kernel(case, m, n, dtype)
    run, call = k.run, (*args, out)
    return (lambda: run(*call)), k


def run_eager(case: Case, args: list[torch.Tensor]) -> Callable[[], Any]:
    return lambda: case.torch(*args)


def run_inductor(case: Case, args: list[torch.Tensor]) -> Callable[[], Any]:
    torch._dynamo.reset()
    f = torch.compile(case.torch, backend="inductor", dynamic=False)
    f(*args)
    return lambda: f(*args)


def run_numpy(case: Case, args: list[torch.Tensor]) -> Callable[[], Any] | None:
    if case.numpy is None or args[0].dtype != torch.float32:
        return None
    arrays = [a.numpy() for a in args]
    return lambda: case.numpy(*arrays)  # type: ignore[misc]


def library(source: str) -> ctypes.CDLL:
    name = hashlib.sha256((source + " ".join(C_FLAGS)).encode()).hexdigest()[:16]
    folder = pathlib.Path(tempfile.gettempdir()) / "dvm-bench"
    folder.mkdir(exist_ok=True)
    lib = folder / f"{name}.so"
    if not lib.exists():
        src = folder / f"{name}.c"
        src.write_text(source)
        cc = os.environ.get("CC", "cc")
        subprocess.run(
            [cc, *C_FLAGS, "-shared", "-fPIC", str(src), "-o", str(lib), "-lm"], check=True
        )
    return ctypes.CDLL(str(lib))


def run_c(
    case: Case, args: list[torch.Tensor], out: torch.Tensor, m: int, n: int
) -> Callable[[], Any]:
    half = args[0].dtype == torch.bfloat16
    head = "bf16" if half else "f32"
    ld, st = ("from_bf16(v)", "to_bf16(v)") if half else ("(v)", "(v)")
    source = (
        f"{PRELUDE}\n#define T {head}\n#define LD(v) {ld}\n#define ST(v) {st}\n"
        "void run(const T *restrict a, const T *restrict b, const T *restrict c, T *restrict o, float *restrict t, long M, long N)\n"
        f"{{ (void)a; (void)b; (void)c; (void)t; {case.c} }}\n"
    )
    f = library(source).run
    f.argtypes = [ctypes.c_void_p] * 5 + [ctypes.c_long] * 2
    scratch = np.empty(max(n, 1024), np.float32)
    p = [a.data_ptr() for a in args] + [0, 0]
    call = (p[0], p[1], p[2], out.data_ptr(), scratch.ctypes.data, m, n)
    keep = (args, out, scratch)
    return lambda: (f(*call), keep)


def run_copy(a: torch.Tensor, b: torch.Tensor) -> Callable[[], Any]:
    """memcpy of the C library from a to b."""
    move = ctypes.CDLL(None).memcpy
    move.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    call = (b.data_ptr(), a.data_ptr(), a.numel() * a.element_size())
    keep = (a, b)
    return lambda: (move(*call), keep)


def stats(k: Any) -> dict[str, int]:
    """Numbers of the newest plan of a kernel function."""
    return k.kobj.stats()
