"""What this machine's memory gives: hand-written loops that read, copy or add a turned matrix, printed beside the kernels
that do the same."""

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

# o = a turned + b, m x m, in tiles of `rows` x `cols` that are turned into a buffer: squares in registers, the lines 16
# columns ahead asked for meanwhile, stores past the caches. m, rows and cols are multiples of 16.
TURNED = """
#include <immintrin.h>
#include <stdint.h>
typedef __m256i v;
#define LO(x, y, n) _mm256_unpacklo_epi##n(x, y)
#define HI(x, y, n) _mm256_unpackhi_epi##n(x, y)
static inline v get(const char *p, const char *q) {
    v low = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_inserti128_si256(low, _mm_loadu_si128((const __m128i *)q), 1);
}
static inline void put(char *p, v x) { _mm256_storeu_si256((v *)p, x); }
static inline void turn4(char *to, long ts, const char *f, long fs) {
    v a = get(f, f + 4 * fs), b = get(f + fs, f + 5 * fs), c = get(f + 2 * fs, f + 6 * fs), d = get(f + 3 * fs, f + 7 * fs);
    v ab = LO(a, b, 32), cd = LO(c, d, 32), AB = HI(a, b, 32), CD = HI(c, d, 32);
    put(to, LO(ab, cd, 64)), put(to + ts, HI(ab, cd, 64)), put(to + 2 * ts, LO(AB, CD, 64)), put(to + 3 * ts, HI(AB, CD, 64));
}
static inline void turn2(char *to, long ts, const char *f, long fs) {
    v x[8], y[8];
    for (int k = 0; k < 8; k++) x[k] = get(f + k * fs, f + (k + 8) * fs);
    for (int k = 0; k < 4; k++) y[2 * k] = LO(x[2 * k], x[2 * k + 1], 16), y[2 * k + 1] = HI(x[2 * k], x[2 * k + 1], 16);
    for (int k = 0; k < 2; k++)
        for (int h = 0; h < 2; h++) {
            x[4 * k + 2 * h] = LO(y[4 * k + h], y[4 * k + 2 + h], 32);
            x[4 * k + 2 * h + 1] = HI(y[4 * k + h], y[4 * k + 2 + h], 32);
        }
    for (int k = 0; k < 4; k++) put(to + 2 * k * ts, LO(x[k], x[4 + k], 64)), put(to + (2 * k + 1) * ts, HI(x[k], x[4 + k], 64));
}
static inline v up(v x) { /* rounded to bf16, in the upper half */
    v odd = _mm256_and_si256(_mm256_srli_epi32(x, 16), _mm256_set1_epi32(1));
    return _mm256_add_epi32(x, _mm256_add_epi32(_mm256_set1_epi32(0x7fff), odd));
}
static inline v add2(v x, v y) {
    v upper = _mm256_set1_epi32(0xffff0000);
    __m256 e = _mm256_add_ps(_mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(y, 16)));
    __m256 o = _mm256_add_ps(_mm256_castsi256_ps(_mm256_and_si256(x, upper)), _mm256_castsi256_ps(_mm256_and_si256(y, upper)));
    v r = _mm256_blend_epi16(_mm256_srli_epi32(up(_mm256_castps_si256(e)), 16), up(_mm256_castps_si256(o)), 0xaa);
    v nan = _mm256_castps_si256(_mm256_cmp_ps(e, o, _CMP_UNORD_Q)); /* makes both NaN: no more work than telling them apart */
    return _mm256_blendv_epi8(r, _mm256_set1_epi32(0x7fc07fc0), nan);
}
static inline v add4(v x, v y) {
    return _mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(x), _mm256_castsi256_ps(y)));
}
#define TURNED(T)                                                                                                    \
    static void turned##T(char *o, const char *a, const char *b, long m, long rows, long cols, char *buffer) {       \
        const long line = m * T, lines = 32 / T, length = 16 / T;                                                    \
        for (long i = 0; i < m; i += rows)                                                                           \
            for (long j = 0; j < m; j += cols) {                                                                     \
                long n = cols < m - j ? cols : m - j, high = rows < m - i ? rows : m - i, pitch = n * T + 64;        \
                for (long q = 0; q < n; q += lines)                                                                  \
                    for (long k = 0; k < high; k += length) {                                                        \
                        const char *f = a + (j + q) * line + (i + k) * T;                                            \
                        for (long s = 0; s < lines / 4; s++)                                                         \
                            _mm_prefetch(a + (j + q + 16 + k / length % 4 * (lines / 4) + s) * line + (i * T + k * T / 64 * 64), _MM_HINT_T0); \
                        turn##T(buffer + k * pitch + q * T, pitch, f, line);                                         \
                    }                                                                                                \
                for (long k = 0; k < high; k++) {                                                                    \
                    const char *x = buffer + k * pitch, *y = b + (i + k) * line + j * T;                             \
                    char *z = o + (i + k) * line + j * T;                                                            \
                    for (long p = 0; p < n * T; p += 32) {                                                           \
                        if (T == 2 && p % 64 == 0) _mm_prefetch(y + line + p, _MM_HINT_T0);                          \
                        v r = add##T(_mm256_loadu_si256((const v *)(x + p)), _mm256_loadu_si256((const v *)(y + p))); \
                        _mm256_stream_si256((v *)(z + p), r);                                                        \
                    }                                                                                                \
                }                                                                                                    \
            }                                                                                                        \
        _mm_sfence();                                                                                                \
    }
TURNED(2)
TURNED(4)
void turned(char *o, const char *a, const char *b, long m, long size, long rows, long cols, char *buffer) {
    if (size == 2) turned2(o, a, b, m, rows, cols, buffer); else turned4(o, a, b, m, rows, cols, buffer);
}
"""
TILES = ((64, 1024), (128, 1024), (128, 2048), (256, 1024))

WAYS = {"read 1": (1, 0), "read 1 ahead": (1, 2048), "read 2": (2, 0), "read 4": (4, 0), "read 8": (8, 0)}  # fmt: skip


def _function(name: str, source: str = SOURCE) -> Any:
    f = getattr(peers.library(source), name)
    f.restype = None
    return f


def reads(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Ways to read all of x."""
    f, out = _function("read_streams"), ctypes.c_float()
    f.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_long, ctypes.c_void_p]
    size = x.numel() * x.element_size() // (512 << 10) * (512 << 10)

    def way(streams: int, ahead: int) -> Callable[[], Any]:
        call = (x.data_ptr(), size, streams, ahead, ctypes.addressof(out))
        return lambda: (f(*call), x, out)

    return {name: way(*how) for name, how in WAYS.items()}


def turned(x: torch.Tensor, y: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Ways to add the square y to the square x turned; none where the processor lacks AVX2."""
    m, size, out = x.shape[0], x.element_size(), torch.empty_like(x)
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return {}
    f = _function("turned", TURNED)
    f.argtypes = [ctypes.c_void_p] * 3 + [ctypes.c_long] * 4 + [ctypes.c_void_p]
    buffer = torch.empty(max(rows * (cols * size + 64) for rows, cols in TILES), dtype=torch.uint8)

    def way(rows: int, cols: int) -> Callable[[], Any]:
        call = (out.data_ptr(), x.data_ptr(), y.data_ptr(), m, size, rows, cols, buffer.data_ptr())
        return lambda: (f(*call), x, y, out, buffer)

    ways = {f"loop {rows} x {cols}": way(rows, cols) for rows, cols in TILES}
    for run in ways.values():
        out.zero_()
        run()
        assert torch.equal(out, x.t() + y)
    return ways


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
