"""Matrix multiply: the engine against torch.mm in the same process, shape by shape, taking turns.

    ./dev exec python bench/gemm_bench.py [--build build] [--dtype f32,bf16] [--threads 1,2] [--only square|model|groups]
                                          [--layout nn,nt] [--isa avx2] [--reps N] [--match 1x8192x2048] [--full]

One thread is timed by processor time of the calling thread, so that other load on the machine disturbs less; several
threads by the clock. Best of the repetitions, both sides in turn; a row not clearly above its bar gets more of them (the last column). Products of more than 2^33 multiply-adds (4096 x 4096 x 4096, most of 2048 rows)
only with --full: bf16 takes torch minutes each where the processor has no instructions for it. At the end each bar, with every
row below it: torch.mm 0.9 in the mean and 0.75 everywhere, 0.75 of the core's measured multiply-adds at 2048 x 2048 x 2048 in
f32, a loop of torch.mm over groups 1.5.
"""

import argparse
import ctypes
import math
import os
import subprocess
import tempfile
import time

# Waiting threads of the other side would take the processor away.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import torch
from bars import CLEAR, Bars, rounds_until

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
DTYPES = {"f32": (3, torch.float32), "bf16": (2, torch.bfloat16), "f16": (1, torch.float16)}


def load(build: str) -> ctypes.CDLL:
    out = os.path.join(tempfile.mkdtemp(), "gemm_micro.so")
    subprocess.run(
        [
            "cc",
            "-O2",
            "-std=gnu17",
            "-shared",
            "-fPIC",
            "-Isrc",
            "-Iinclude",
            "bench/gemm_micro.c",
            os.path.join(build, "libdvm.a"),
            "-lm",
            "-lpthread",
            "-ldl",
            "-o",
            out,
        ],
        check=True,
        cwd=ROOT,
    )
    lib = ctypes.CDLL(out)
    p, i64, i = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int
    lib.gm_mm.argtypes = [p, i64, i64, p, i64, i64, p, i, i64, i64, i64, i64, i, i]
    lib.gm_groups.argtypes = [p, p, p, i, p, i64, i64, i64, i64, i, i]
    lib.gm_mm.restype = lib.gm_groups.restype = lib.gm_peak.restype = ctypes.c_double
    lib.gm_open.argtypes = [ctypes.c_char_p, i]
    return lib


BARS = Bars()
USUAL = 2**33  # multiply-adds
MEAN, EACH, GROUPS, PEAK = 0.9, 0.75, 1.5, 0.75


def shapes(only: str, full: bool) -> list[tuple[int, int, int]]:
    square = [(n, n, n) for n in (256, 384, 512, 768, 1024, 2048, 4096)]
    model = [
        (m, n, k) for m in (1, 16, 128, 2048) for n in (512, 2048, 8192) for k in (512, 2048, 8192)
    ]
    chosen = {"square": square, "model": model}.get(only, square + model)
    return [s for s in chosen if full or math.prod(s) <= USUAL]


def operand(rows: int, cols: int, dtype: torch.dtype, turned: bool) -> torch.Tensor:
    x = torch.randn((cols, rows) if turned else (rows, cols)).to(dtype)
    return x.t() if turned else x


class Pair:
    """One shape: both sides' best time, taking turns."""

    def __init__(self, lib, m, n, k, dtype, layout, threads):
        self.lib, self.size, self.threads = lib, (m, n, k), threads
        self.code, t = DTYPES[dtype]
        self.a = operand(m, k, t, layout[0] == "t")
        self.b = operand(k, n, t, layout[1] == "t")
        self.c, self.d = torch.empty(m, n, dtype=t), torch.empty(m, n, dtype=t)

    def ours(self, reps: int) -> float:
        m, n, k = self.size
        a, b = self.a, self.b
        return self.lib.gm_mm(
            a.data_ptr(),
            *a.stride(),
            b.data_ptr(),
            *b.stride(),
            self.c.data_ptr(),
            self.code,
            m,
            n,
            k,
            1,
            self.threads > 1,
            reps,
        )

    def theirs(self, reps: int) -> float:
        clock = time.thread_time if self.threads == 1 else time.perf_counter
        best = math.inf
        for _ in range(reps):
            t = clock()
            torch.mm(self.a, self.b, out=self.d)
            best = min(best, clock() - t)
        return best

    def run(self, rounds: int, least: float = 0) -> tuple[float, float, int]:
        """Both times and the rounds; more of them while ours is above `least` or above torch's by the bar."""
        inner = max(1, int(2e7 / max(1, math.prod(self.size))))
        ours = theirs = math.inf

        def turn(_: int) -> None:
            nonlocal ours, theirs
            theirs = min(theirs, self.theirs(inner))
            ours = min(ours, self.ours(inner))

        done = rounds_until(
            turn, lambda: theirs >= CLEAR * MEAN * ours and CLEAR * ours <= least, rounds
        )
        return ours, theirs, done


def grouped(
    lib, dtype: str, threads: int, groups: int, most: int, n: int, k: int, rounds: int
) -> float:
    """Uneven groups of rows against a loop of torch.mm; prints a line, returns the ratio."""
    code, t = DTYPES[dtype]
    clock = time.thread_time if threads == 1 else time.perf_counter
    sizes = torch.randint(0, most + 1, (groups,))
    ends = torch.cumsum(sizes, 0)
    m = int(ends[-1])
    a, b = torch.randn(m, k).to(t), torch.randn(groups, k, n).to(t)
    c, d = torch.empty(m, n, dtype=t), torch.empty(m, n, dtype=t)
    rows = [(int(e) - int(s), int(e)) for s, e in zip(sizes, ends, strict=True)]
    ours = theirs = math.inf

    def turn(_: int) -> None:
        nonlocal ours, theirs
        start = clock()
        for i, (lo, hi) in enumerate(rows):
            if hi > lo:
                torch.mm(a[lo:hi], b[i], out=d[lo:hi])
        theirs = min(theirs, clock() - start)
        ours = min(
            ours,
            lib.gm_groups(
                a.data_ptr(),
                b.data_ptr(),
                c.data_ptr(),
                code,
                ends.data_ptr(),
                groups,
                m,
                n,
                k,
                threads > 1,
                1,
            ),
        )

    done = rounds_until(turn, lambda: theirs >= CLEAR * GROUPS * ours, rounds)
    row = f"{dtype} {groups:3d} groups of 0..{most:3d} rows, {n} {k}"
    print(
        f"{row}  dvm {ours * 1e6:9.1f} us   "
        f"torch loop {theirs * 1e6:9.1f} us   ratio {theirs / ours:5.2f}   {done} rounds",
        flush=True,
    )
    what = f"loop of torch.mm, groups, {dtype}, {threads} threads"
    BARS.add(what, theirs / ours, row, mean=GROUPS)
    return theirs / ours


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--build", default=os.environ.get("DVM_BUILD", "build"))
    ap.add_argument("--dtype", default="f32,bf16")
    ap.add_argument("--threads", default="1")
    ap.add_argument("--only", default="")
    ap.add_argument("--layout", default="nn,nt")
    ap.add_argument("--isa", default="")
    ap.add_argument("--reps", type=int, default=0)
    ap.add_argument("--match", default="")
    ap.add_argument("--full", action="store_true")
    o = ap.parse_args()
    torch.manual_seed(0)
    lib = load(os.path.join(ROOT, o.build))
    for threads in map(int, o.threads.split(",")):
        assert lib.gm_open(o.isa.encode() or None, threads) == 0
        torch.set_num_threads(threads)
        for dtype in o.dtype.split(","):
            peak = lib.gm_peak(DTYPES[dtype][0])
            print(
                f"# {dtype}, {threads} thread(s): multiply-add floor {peak * 1e-9:.1f} GF a core",
                flush=True,
            )
            if o.only in ("", "groups") and not o.match:
                ratios = [
                    grouped(lib, dtype, threads, g, most, n, k, o.reps or 5)
                    for g in (8, 64)
                    for most in (16, 64)
                    for n, k in ((512, 512), (2048, 1024))
                ]
                print(
                    f"{dtype} groups geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, "
                    f"worst {min(ratios):.2f}",
                    flush=True,
                )
            for layout in o.layout.split(",") if o.only != "groups" else ():
                table(lib, o, dtype, threads, layout, peak)
    BARS.report()


def table(lib, o, dtype: str, threads: int, layout: str, peak: float) -> None:
    ratios = []
    for m, n, k in shapes(o.only, o.full):
        if o.match and o.match != f"{m}x{n}x{k}":
            continue
        reps = o.reps or max(2, min(20, int(1e10 / (m * n * k))))
        measured = (m, n, k) == (2048, 2048, 2048) and dtype == "f32" and threads == 1 and peak
        least = 2 * m * n * k / (PEAK * peak) if measured else math.inf
        ours, theirs, done = Pair(lib, m, n, k, dtype, layout, threads).run(reps, least)
        ratios.append(theirs / ours)
        gf = 2e-9 * m * n * k
        row = f"{dtype} {layout} {m:5d} {n:5d} {k:5d}"
        what = f"torch.mm, {dtype} {layout}, {threads} threads"
        BARS.add(what, theirs / ours, row, mean=MEAN, each=EACH)
        if measured:
            BARS.add("share of multiply-adds, f32", 1e9 * gf / ours / peak, row, each=PEAK)
        print(
            f"{row}  dvm {ours * 1e6:10.1f} us {gf / ours:7.1f} GF "
            f"{100e9 * gf / ours / peak / threads if peak else 0:5.1f} %   torch {gf / theirs:7.1f} GF   "
            f"ratio {theirs / ours:5.2f}   {done} rounds",
            flush=True,
        )
    if ratios:
        print(
            f"{dtype} {layout} geometric mean {math.exp(sum(map(math.log, ratios)) / len(ratios)):.3f}, "
            f"worst {min(ratios):.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
