"""What this machine's memory gives: hand-written loops that read or copy, printed beside the kernels that do the same."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import peers
import torch

# Bytes from p are read as `streams` streams that take turns of 256 bytes, 64 KiB apart; `ahead`: each line is asked for
# so many bytes before it is read, 0 never.
SOURCE = """
typedef float v8 __attribute__((vector_size(32), aligned(4), may_alias));
typedef long long w4 __attribute__((vector_size(32), may_alias));
void read_streams(const char *p, long n, long streams, long ahead, float *out) {
    v8 s[8] = {0};
    long span = streams > 1 ? 64 << 10 : n;
    for (long b = 0; b + streams * span <= n; b += streams * span)
        for (long o = 0; o < span; o += 256)
            for (long k = 0; k < streams; k++) {
                const char *q = p + b + k * span + o;
                if (ahead) for (int i = 0; i < 4; i++) __builtin_prefetch(q + ahead + 64 * i);
                for (int i = 0; i < 8; i++) s[i] += *(const v8 *)(q + 32 * i);
            }
    for (int i = 1; i < 8; i++) s[0] += s[i];
    *out = s[0][0];
}
void copy_past_caches(char *to, const char *from, long n) {
#ifdef __AVX__
    for (long i = 0; i + 32 <= n; i += 32) __builtin_ia32_movntps256((float *)(to + i), *(const v8 *)(from + i));
    __builtin_ia32_sfence();
#endif
}
"""

WAYS = {"read 1": (1, 0), "read 1 ahead": (1, 2048), "read 2": (2, 0), "read 4": (4, 0), "read 8": (8, 0)}  # fmt: skip


def _function(name: str) -> Any:
    f = getattr(peers.library(SOURCE), name)
    f.restype = None
    return f


def reads(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Ways to read all of x."""
    f, out = _function("read_streams"), ctypes.c_float()
    f.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    size = x.numel() * x.element_size() // (512 << 10) * (512 << 10)

    def way(streams: int, ahead: int) -> Callable[[], Any]:
        call = (x.data_ptr(), size, streams, ahead, ctypes.addressof(out))
        return lambda: (f(*call), x)

    return {name: way(*how) for name, how in WAYS.items()}


def copies(x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    f = _function("copy_past_caches")
    f.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]
    call = (y.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return {
        "copy torch": lambda: y.copy_(x),
        "copy libc": peers.run_copy(x, y),
        "copy past the caches": lambda: (f(*call), x, y),
    }


def show(rounds: int = 12) -> None:
    """GB/s of every way, bytes read for reading, bytes copied once for copying; one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for size in (1 << 20, 64 << 20):
        x = torch.randn(size // 4)
        runs = reads(x) | copies(x, torch.empty_like(x))
        best = dict.fromkeys(runs, float("inf"))
        inner = (64 << 20) // size
        for _ in range(rounds):
            for name, run in runs.items():
                t = time.perf_counter()
                for _ in range(inner):
                    run()
                best[name] = min(best[name], (time.perf_counter() - t) / inner)
        text = ", ".join(f"{name} {size / t / 1e9:.1f}" for name, t in best.items())
        print(f"  GB/s at {size >> 20} MiB, one thread: {text}")
    torch.set_num_threads(threads)
