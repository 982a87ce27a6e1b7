"""Kernels around a matrix product against torch, in the same process, taking turns.

    ./dev exec python bench/mix_bench.py [--dtype f32,bf16] [--threads 1,2] [--rounds N] [--inductor] [--only linear]

Plain products (what a kernel costs over torch.mm), linear + bias + gelu, a swiglu MLP, attention by two products and a
softmax, log-sum-exp and norm of a product's rows, grouped products against a loop of torch.mm. One thread is timed by processor time of the calling thread,
several by the clock; best of the rounds, of which a row not clearly above its bar gets more (the last column). Ratios are torch's time by ours: above 1 we are faster.
"limit" is eager's time by that of its products alone: the ratio of a kernel whose products take torch's time and whose rest takes
none. At the end each bar, with every row below it: linear and swiglu 1.15 of eager and 1.0 of Inductor, groups 1.5 of a loop.
"""

import argparse
import math
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import dvm
import torch
import torch.nn.functional as nnf
from bars import CLEAR, Bars, rounds_until
from speed import set_threads

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
NAMES = {"f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def static(build: Callable, *args: torch.Tensor, name: str) -> Callable:
    """A static kernel of these arguments; the last one is the output."""
    *ins, out = args
    kinds = ["int64" if x.dtype == torch.int64 else name for x in ins]

    @dvm.kernel(ktype="split", dyn_shape=False)
    def kernel(k):
        k.store(build(k, *(k.load(list(x.shape), t) for x, t in zip(ins, kinds, strict=True))))

    return lambda: kernel.run(*ins, out)


def gelu(k, x):
    inner = k.mul(k.add(x, k.mul(k.mul(k.mul(x, x), x), 0.044715)), 0.7978845608028654)
    return k.mul(k.mul(x, 0.5), k.add(k.tanh(inner), 1.0))


def plain(t, m, n, kk):
    x, w = torch.randn(m, kk).to(t), torch.randn(n, kk).to(t)
    out = torch.empty(m, n, dtype=t)
    return (x, w, out), lambda k, x, w: k.matmul(x, w, False, True), lambda x, w: x @ w.T


def linear(t, m, n, kk):
    x, w, b = torch.randn(m, kk).to(t), torch.randn(n, kk).to(t) / 16, torch.randn(n).to(t)
    out = torch.empty(m, n, dtype=t)
    ours = lambda k, x, w, b: gelu(k, k.matmul(x, w, False, True, b))
    return (x, w, b, out), ours, lambda x, w, b: nnf.gelu(nnf.linear(x, w, b), approximate="tanh")


def swiglu(t, m, n, kk):
    x, up, gate = (torch.randn(*s).to(t) / 8 for s in ((m, kk), (n, kk), (n, kk)))
    down = torch.randn(kk, n).to(t) / 16
    out = torch.empty(m, kk, dtype=t)

    def ours(k, x, up, gate, down):
        g = k.matmul(x, gate, False, True)
        h = k.mul(k.mul(g, k.sigmoid(g)), k.matmul(x, up, False, True))
        return k.matmul(h, down, False, True)

    def theirs(x, up, gate, down):
        return nnf.linear(nnf.silu(nnf.linear(x, gate)) * nnf.linear(x, up), down)

    return (x, up, gate, down, out), ours, theirs


def attention(t, heads, rows, d):
    q, kk, v = (torch.randn(heads, rows, d).to(t) for _ in range(3))
    out = torch.empty(heads, rows, d, dtype=t)

    def ours(k, q, kk, v):
        s = k.mul(k.matmul(q, kk, False, True), d**-0.5)
        e = k.exp(k.sub(s, k.max(s, [-1], True)))
        return k.matmul(k.div(e, k.sum(e, [-1], True)), v)

    return (q, kk, v, out), ours, lambda q, kk, v: torch.softmax(q @ kk.mT * d**-0.5, -1) @ v


def stats(t, m, n, kk):
    """Softmax statistics of a product that nothing else needs: what a row adds up to, and its logarithm with the maximum."""
    x, w = torch.randn(m, kk).to(t), torch.randn(n, kk).to(t)
    out = torch.empty(m, 1, dtype=t)

    def ours(k, x, w):
        s = k.matmul(x, w, False, True)
        top = k.max(s, [-1], True)
        return k.add(k.log(k.sum(k.exp(k.sub(s, top)), [-1], True)), top)

    return (x, w, out), ours, lambda x, w: torch.logsumexp(x @ w.T, -1, keepdim=True)


def norm(t, m, n, kk):
    x, w = torch.randn(m, kk).to(t), torch.randn(n, kk).to(t)
    out = torch.empty(m, n, dtype=t)

    def ours(k, x, w):
        s = k.matmul(x, w, False, True)
        mean = k.mul(k.sum(k.mul(s, s), [-1], True), 1 / n)
        return k.mul(s, k.reciprocal(k.sqrt(k.add(mean, 1e-6))))

    return (x, w, out), ours, lambda x, w: nnf.rms_norm(x @ w.T, (n,), eps=1e-6)


def groups(t, count, most, n, kk):
    sizes = torch.randint(0, most + 1, (count,))
    ends = torch.cumsum(sizes, 0)
    m = int(ends[-1])
    a, b = torch.randn(m, kk).to(t), torch.randn(count, kk, n).to(t)
    out = torch.empty(m, n, dtype=t)
    rows = [(int(e - s), int(e)) for s, e in zip(sizes, ends, strict=True)]

    def theirs(a, b, ends):
        d = torch.empty(m, n, dtype=t)
        for i, (lo, hi) in enumerate(rows):
            if hi > lo:
                torch.mm(a[lo:hi], b[i], out=d[lo:hi])
        return d

    return (a, b, ends, out), lambda k, a, b, e: k.grouped_matmul(a, b, group_list=e), theirs


SIZES = {
    "plain": [(1, 2048, 2048), (16, 2048, 2048), (128, 512, 512), (512, 512, 512), (1024,) * 3],
    "linear": [(1, 2048, 2048), (16, 2048, 512), (128, 2048, 512), (512, 1024, 1024)],
    "swiglu": [(1, 2048, 1024), (16, 2048, 512), (128, 1408, 512), (512, 1408, 512)],
    "attention": [(8, 128, 64), (8, 512, 64)],
    "stats": [(128, 128, 64), (512, 512, 64), (1024, 1024, 64), (512, 512, 512), (2048, 2048, 128)],
    "norm": [(128, 128, 64), (512, 512, 512), (1024, 1024, 64)],
    "groups": [(8, 16, 512, 512), (8, 64, 512, 512), (64, 16, 512, 512), (64, 64, 512, 512)],
}
CASES = {
    "plain": plain, "linear": linear, "swiglu": swiglu, "attention": attention, "stats": stats,
    "norm": norm, "groups": groups,
}  # fmt: skip


BARS = Bars()
# What remains where all else costs nothing: the products by themselves, as torch does them.
ALONE: dict[str, Callable] = {
    "linear": lambda x, w, b: torch.mm(x, w.T),
    "swiglu": lambda x, up, gate, down: (
        [torch.mm(x, w.T) for w in (up, gate)]
        + [torch.mm(torch.empty(x.shape[0], up.shape[0], dtype=x.dtype), down.T)]
    ),
}
EAGER = {"linear": 1.15, "swiglu": 1.15, "groups": 1.5}  # in the mean
INDUCTOR = {"linear": 1.0, "swiglu": 1.0}


def bars_of(other: str) -> dict[str, float]:
    return EAGER if other == "eager" else INDUCTOR


def contest(
    runs: dict[str, Callable],
    clock: Callable[[], float],
    rounds: int,
    good: Callable[[dict[str, float]], bool],
) -> tuple[dict[str, float], int]:
    """Least time of each and the rounds, of which there are more while the times are not `good`."""
    best = dict.fromkeys(runs, math.inf)
    order = list(runs)

    def turn(r: int) -> None:
        for name in order[r % len(order) :] + order[: r % len(order)]:
            start = clock()
            runs[name]()
            best[name] = min(best[name], clock() - start)

    return best, rounds_until(turn, lambda: good(best), rounds)


def check(got: torch.Tensor, want: torch.Tensor) -> None:
    scale = want.double().abs().max().clamp(min=1)
    worst = float((got.double() - want.double()).abs().max() / scale)
    assert worst < (1e-4 if got.dtype == torch.float32 else 3e-2), worst


def table(o: argparse.Namespace, name: str, dtype: str, threads: int, clock: Callable) -> None:
    ratios: dict[str, list[float]] = {}
    for size in SIZES[name]:
        (*ins, out), ours, theirs = CASES[name](DTYPES[dtype], *size)
        runs = {"dvm": static(ours, *ins, out, name=NAMES[dtype])}
        runs["eager"] = lambda f=theirs, a=ins: f(*a)
        if o.inductor and name != "groups":
            torch._dynamo.reset()
            compiled = torch.compile(theirs)
            runs["inductor"] = lambda f=compiled, a=ins: f(*a)
        others = list(runs)[1:]
        if name in ALONE:
            runs["alone"] = lambda f=ALONE[name], a=ins: f(*a)
        for run in runs.values():
            run()
        check(out, runs["eager"]())
        bars = {other: bars_of(other).get(name) for other in others}

        def good(best: dict[str, float], bars: dict = bars) -> bool:
            return all(
                best[other] >= CLEAR * (bar or 0) * best["dvm"] for other, bar in bars.items()
            )

        best, done = contest(runs, clock, o.rounds, good)
        sizes = "x".join(map(str, size))
        line = f"{name:9s} {dtype:4s} {threads} {sizes:>16s}  dvm {best['dvm'] * 1e6:9.1f} us"
        for other in others:
            ratios.setdefault(other, []).append(best[other] / best["dvm"])
            what = f"{name}, {dtype}, {threads} threads, of {other}"
            BARS.add(what, ratios[other][-1], f"{name} {dtype} {sizes}", mean=bars[other])
            line += f"   {other} {best[other] * 1e6:9.1f} us ratio {ratios[other][-1]:5.2f}"
        if name in ALONE:
            line += f"   limit {best['eager'] / best['alone']:5.2f}"
        print(f"{line}   {done} rounds", flush=True)
    for other, values in ratios.items():
        mean = math.exp(sum(map(math.log, values)) / len(values))
        print(f"{name} {dtype}: {other} mean {mean:.2f}, worst {min(values):.2f}", flush=True)


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--dtype", default="f32,bf16")
    ap.add_argument("--threads", default="1")
    ap.add_argument("--rounds", type=int, default=15)
    ap.add_argument("--only", default=",".join(CASES))
    ap.add_argument("--inductor", action="store_true")
    o = ap.parse_args()
    torch.manual_seed(0)
    for threads in map(int, o.threads.split(",")):
        set_threads(threads)
        clock = time.thread_time if threads == 1 else time.perf_counter
        for dtype in o.dtype.split(","):
            for name in o.only.split(","):
                table(o, name, dtype, threads, clock)
    BARS.report()


if __name__ == "__main__":
    with torch.no_grad():
        main()
