"""Attention beside torch's CPU flash attention: `./dev exec python bench/attn_bench.py [NAME...]`.

Each line is one shape: milliseconds of DVM and of the peer, the smallest of some rounds that alternate between
the two, their ratio (above 1: DVM is faster), its bar and the number of rounds. A row that is not clearly above its bar has more rounds, of both
sides alike, up to three times; what counts is the smallest of all rounds. GF counts 2 Nq nnz (D + D2) forward and
2 Nq nnz (3 D + 2 D2) backward, visible pairs only. At the end every row that misses its bar is told.

    full, causal     B1 H8, S 512 to 4096, D 64 and 128, fp32 and bf16: 1.0 of torch
    window           W = 1024 against a dense mask: 0.7 S / 2W
    peak             forward, and backward alone, D 128 fp32: 0.6 and 0.5 of the core's multiply-adds
    packed           5000 short sequences: a token takes at most 1.2 times what it does among 2500, both far
                     beyond the cache; torch is called for each of 500
    decode           few rows against a long cache
    flex             a sliding window by flex_attention within 1.2 of the built-in one
    inductor         flex_attention forward beside Inductor's (not run unless named)
    few              scaled_dot_product_attention of few rows under torch.compile, the operator beside torch's: what
                     the table in python/dvm/torch/rows_attn.py rests on (not run unless named)
    short            the same for masked and causal calls of 32 rows and more, with gradients and without

Rows run from cheap to dear until --limit seconds are over; what was left out is told too.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

import dvm
import dvm.ops
import gemm_bench
import torch
import torch.nn.functional as F
from bars import CLEAR
from dvm.torch import rows_attn

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SLOW_BF16 = 5  # torch's backward of bf16, times its fp32, where there are no bf16 instructions

ticks = time.thread_time  # of one thread: other load on the machine disturbs less


def clock(f: Callable[[], object]) -> float:
    start = ticks()
    f()
    return ticks() - start


class Best:
    """Smallest times of two functions, taken in turns."""

    def __init__(self, f: Callable[[], object], g: Callable[[], object]):
        self.f, self.g, self.rounds = f, g, 0
        self.times = [math.inf, math.inf]

    def other(self) -> float:
        return clock(self.g)

    def round(self) -> float:
        """Seconds that it took."""
        new = clock(self.f), self.other()
        self.times = [min(x, y) for x, y in zip(self.times, new, strict=True)]
        self.rounds += 1
        return sum(new)

    def go(self, seconds: float, least: int) -> None:
        """Rounds for about this long, and at least so many; the very first does not count if it is short, and is
        enough if it is not."""
        if not self.rounds:
            if self.round() >= seconds:
                return
            self.times, self.rounds = [math.inf, math.inf], 0
        start, end = time.perf_counter(), self.rounds + least
        while self.rounds < end or time.perf_counter() < start + seconds:
            self.round()

    def ratio(self) -> float:
        return self.times[1] / self.times[0]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def ours(q, k, v, backward, **kw):  # type: ignore[no-untyped-def]
    def forward():  # type: ignore[no-untyped-def]
        return dvm.ops.npu_fusion_attention(q, k, v, q.shape[1], "BNSD", **kw)

    def train():  # type: ignore[no-untyped-def]
        grad(q, k, v, forward(), **kw)

    return train if backward else forward


def grad(q, k, v, o, **kw):  # type: ignore[no-untyped-def]
    back = {"scale_value" if n == "scale" else n: x for n, x in kw.items()}
    return dvm.ops.npu_fusion_attention_grad(
        q, k, v, o[0], q.shape[1], "BNSD", softmax_max=o[1], softmax_sum=o[2], attention_in=o[0],
        **back,
    )  # fmt: skip


def theirs(q, k, v, backward, **kw):  # type: ignore[no-untyped-def]
    def forward():  # type: ignore[no-untyped-def]
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, **kw)

    def train():  # type: ignore[no-untyped-def]
        a = [x.detach().requires_grad_() for x in (q, k, v)]
        o = F.scaled_dot_product_attention(*a, **kw)
        torch.autograd.grad(o, a, o.detach())

    return train if backward else forward


class Peak(Best):
    """The other side is as many multiply-adds in registers, of one thread."""

    def __init__(self, f: Callable[[], object], flops: float):
        super().__init__(f, lambda: None)
        self.flops = flops

    def other(self) -> float:
        return self.flops / micro().gm_peak(gemm_bench.DTYPES["f32"][0])


@functools.cache
def micro():  # type: ignore[no-untyped-def]
    lib = gemm_bench.load(os.environ.get("DVM_BUILD", "build"))
    lib.gm_exps.restype = ctypes.c_double
    return lib


def floor(flops: float, pairs: float) -> float:
    """Seconds of one core for the multiply-adds in registers and, in the first-level cache, the exponentials."""
    rate = max(micro().gm_peak(gemm_bench.DTYPES["f32"][0]) for _ in range(20))
    return flops / rate + pairs * min(micro().gm_exps() for _ in range(20))


MORE = (
    3  # times that a row not clearly above its bar is measured again, each twice as long as before
)


@dataclass
class Row:
    name: str
    cost: float  # for the order: multiply-adds of both sides, about
    bar: float
    pair: Callable[[], Best]
    flops: float = 0.0
    pairs: float = 0.0  # visible; if given, the floor of one core is told
    alone: bool = False  # for one thread only

    def measure(self, seconds: float, threads: int, end: float) -> float:
        p = self.pair()
        p.go(seconds, 1)
        for i in range(1, MORE + 1):
            if p.ratio() < CLEAR * self.bar and time.perf_counter() < end:
                p.go(seconds * 2**i, 2 * i)
        a, b = p.times
        rate = f"{self.flops / a / 1e9:7.1f} GF" if self.flops else " " * 10
        bar = (
            f"bar {self.bar:4.2f}{'' if p.ratio() >= self.bar else '  missed'}" if self.bar else ""
        )
        least = ""
        if self.pairs and threads == 1:
            least = f"  floor {floor(self.flops, self.pairs) * 1e3:.2f} ms"
        print(
            f"{self.name:44} {a * 1e3:9.2f} {b * 1e3:9.2f} ms  {p.ratio():6.2f}  {rate}"
            f"  {p.rounds:4} rounds{least}  {bar}",
            flush=True,
        )
        return p.ratio()


def dense(causal: bool) -> list[Row]:
    rows, h = [], 8
    for s in (512, 1024, 2048, 4096):
        for d in (64, 128):
            for name in DTYPES:
                for back in (False, True):
                    pairs = h * (s * (s + 1) // 2 if causal else s * s)

                    def pair(s=s, d=d, name=name, back=back):  # type: ignore[no-untyped-def]
                        q, k, v = (normal(1, h, s, d, dtype=DTYPES[name]) for _ in range(3))
                        f = ours(q, k, v, back, scale=d**-0.5, sparse_mode=2 if causal else 0)
                        return Best(f, theirs(q, k, v, back, is_causal=causal))

                    flops = pairs * d * 2 * (7 if back else 2)
                    slow = SLOW_BF16 if back and name == "bf16" else 1
                    label = f"S{s} D{d} {name} {'fwd+bwd' if back else 'fwd'}"
                    kind = "causal" if causal else "full"
                    seen = 0 if back else pairs
                    rows.append(Row(f"{kind} {label}", flops * (1 + slow), 1.0, pair, flops, seen))
    return rows


def window() -> list[Row]:
    rows, w, h, d = [], 1024, 2, 64
    for s in (8192, 16384):
        for back in (False, True):

            def pair(s=s, back=back):  # type: ignore[no-untyped-def]
                i = torch.arange(s)
                seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - w)
                q, k, v = (normal(1, h, s, d) for _ in range(3))
                kw = {"sparse_mode": 4, "pre_tockens": w - 1, "next_tockens": 0}
                f = ours(q, k, v, back, scale=d**-0.5, **kw)
                return Best(f, theirs(q, k, v, back, attn_mask=seen))

            each = d * 2 * (7 if back else 2)
            flops = h * (w * (w + 1) // 2 + (s - w) * w) * each
            label = f"window S{s} W{w} H{h} D{d} {'fwd+bwd' if back else 'fwd'}"
            rows.append(Row(label, h * s * s * each, 0.7 * s / (2 * w), pair, flops))
    return rows


def peak() -> list[Row]:
    """The peer is the same count of multiply-adds in registers. One head: short enough for quiet
    moments of a busy machine, which the peer's rate is from as well."""
    rows, h, d = [], 1, 128
    for s in (1024, 2048):
        for back in (False, True):
            flops = h * s * s * d * 2 * (5 if back else 2)

            def pair(s=s, back=back, flops=flops):  # type: ignore[no-untyped-def]
                q, k, v = (normal(1, h, s, d) for _ in range(3))
                f = ours(q, k, v, False, scale=d**-0.5)
                o = f()
                return Peak((lambda: grad(q, k, v, o, scale=d**-0.5)) if back else f, flops)

            label = f"peak S{s} H{h} D{d} fp32 {'bwd' if back else 'fwd'}"
            rows.append(Row(label, flops * 2, 0.5 if back else 0.6, pair, flops, alone=True))
    return rows


def batch(n: int):  # type: ignore[no-untyped-def]
    g = torch.Generator().manual_seed(0)
    ends = torch.randint(1, 32, (n,), generator=g).cumsum(0).tolist()
    q, k, v = (normal(ends[-1], 8, 64) for _ in range(3))
    kw = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends, "sparse_mode": 3, "scale": 0.125}
    return lambda: dvm.ops.npu_fusion_attention(q, k, v, 8, "TND", **kw), ends, (q, k, v)


def packed() -> list[Row]:
    class Tokens(Best):
        """Times of a thousand tokens."""

        def __init__(self):  # type: ignore[no-untyped-def]
            few, some, _ = batch(2500)
            many, all_, _ = batch(5000)
            super().__init__(many, few)
            self.tokens = all_[-1], some[-1]

        def round(self) -> float:
            new = clock(self.f), clock(self.g)
            each = [x * 1000 / n for x, n in zip(new, self.tokens, strict=True)]
            self.times = [min(x, y) for x, y in zip(self.times, each, strict=True)]
            self.rounds += 1
            return sum(new)

    def loop():  # type: ignore[no-untyped-def]
        f, ends, (q, k, v) = batch(500)
        starts = [0, *ends]

        def torchs():  # type: ignore[no-untyped-def]
            with torch.no_grad():
                for i, e in enumerate(ends):
                    at = slice(starts[i], e)
                    a = (x[at].transpose(0, 1)[None] for x in (q, k, v))
                    F.scaled_dot_product_attention(*a, is_causal=True)

        return Best(f, torchs)

    return [
        Row("packed 500 sequences, torch one by one", 1e9, 1.0, loop),
        Row("packed 5000 sequences, 1000 tokens, 2500", 3e9, 1 / 1.2, Tokens),
    ]


def decode() -> list[Row]:
    rows = []
    for h, g, m, s in ((8, 8, 1, 4096), (8, 8, 4, 4096), (8, 8, 16, 4096), (32, 4, 1, 16384)):
        for name in DTYPES:

            def pair(h=h, g=g, m=m, s=s, name=name):  # type: ignore[no-untyped-def]
                q = normal(1, h, m, 128, dtype=DTYPES[name])
                k, v = (normal(1, g, s, 128, dtype=DTYPES[name]) for _ in range(2))
                f = ours(q, k, v, False, scale=0.09)
                return Best(f, theirs(q, k, v, False, scale=0.09, enable_gqa=h != g))

            flops = h * m * s * 128 * 4
            rows.append(
                Row(f"decode Sq{m} Skv{s} H{h}/{g} D128 {name}", flops * 4, 1.0, pair, flops)
            )
    return rows


def window_mask(b, h, i, j):  # type: ignore[no-untyped-def]
    return (i >= j) & (i - j < 1024)


def causal_mask(b, h, i, j):  # type: ignore[no-untyped-def]
    return i >= j


def softcap(s, b, h, i, j):  # type: ignore[no-untyped-def]
    return 30 * torch.tanh(s / 30)


def relative(s, b, h, i, j):  # type: ignore[no-untyped-def]
    return s + 0.01 * (j - i)


def compiled(backend, q, k, v, score, mask):  # type: ignore[no-untyped-def]
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    s = q.shape[2]
    blocks = mask and create_block_mask(mask, None, None, s, s, device="cpu")
    torch.compiler.reset()
    f = torch.compile(flex_attention, backend=backend)
    f(q, k, v, score_mod=score, block_mask=blocks)
    return lambda: f(q, k, v, score_mod=score, block_mask=blocks)


def flex() -> list[Row]:
    s, h, d = 8192, 2, 64

    def pair():  # type: ignore[no-untyped-def]
        q, k, v = (normal(1, h, s, d) for _ in range(3))
        kw = {"sparse_mode": 4, "pre_tockens": 1023, "next_tockens": 0}
        built_in = ours(q, k, v, False, scale=d**-0.5, **kw)
        return Best(compiled("dvm", q, k, v, None, window_mask), built_in)

    return [Row(f"flex window S{s} H{h} D{d}, the built-in", 2e10, 1 / 1.2, pair)]


def inductor() -> list[Row]:
    rows, d = [], 64
    functions = {
        "window": (None, window_mask),
        "window softcap": (softcap, window_mask),
        "causal": (None, causal_mask),
        "causal relative": (relative, causal_mask),
        "full softcap": (softcap, None),
    }
    for s in (1024, 4096):
        for name, (score, mask) in functions.items():

            def pair(s=s, score=score, mask=mask):  # type: ignore[no-untyped-def]
                q, k, v = (normal(1, 2, s, d) for _ in range(3))
                f, g = (compiled(b, q, k, v, score, mask) for b in ("dvm", "inductor"))
                return Best(f, g)

            rows.append(Row(f"inductor {name} S{s} H2 D{d}", s * s * 512, 0.0, pair))
    return rows


def sdpa(ours, args, trains=False, **kw):  # type: ignore[no-untyped-def]
    """A compiled call that the operator takes, or torch."""
    options = {} if ours else {"disable_ops": ["scaled_dot_product_attention"]}
    call = F.scaled_dot_product_attention
    f = torch.compile(lambda *x: call(*x, **kw), backend="dvm", options=options)
    kept, rows_attn._pays = rows_attn._pays, lambda *_: True
    if trains:
        args = [x.requires_grad_() for x in args]
        g = torch.ones_like(f(*args))
        run = lambda: torch.autograd.grad(f(*args), args, g)
    else:
        run = torch.no_grad()(lambda: f(*args))
    run()
    rows_attn._pays = kept
    return run


def few() -> list[Row]:
    rows = []
    shapes = itertools.product(
        DTYPES, ((8, 8), (32, 4)), (64, 128), (128, 1024, 4096), (1, 4, 8, 31), (False, True)
    )
    for name, (h, g), d, s, m, masked in shapes:

        def pair(h=h, g=g, d=d, s=s, m=m, masked=masked, name=name):  # type: ignore[no-untyped-def]
            q = normal(1, h, m, d, dtype=DTYPES[name])
            k, v = (normal(1, g, s, d, dtype=DTYPES[name]) for _ in range(2))
            kw = {"attn_mask": torch.arange(s).expand(m, s) < s - s // 4 if masked else None}
            torch.compiler.reset()
            f, t = (sdpa(x, (q, k, v), enable_gqa=h != g, **kw) for x in (True, False))
            return Best(f, t)

        label = f"few Sq{m} Skv{s} H{h}/{g} D{d} {name}{' mask' if masked else ''}"
        rows.append(Row(label, h * m * s * d * 16, 0.0, pair, h * m * s * d * 4))
    return rows


def short() -> list[Row]:
    rows = []
    masks = {
        "causal": None,
        "padding": lambda m, s: (torch.arange(s) < s - s // 4).expand(m, s),
        "triangle": lambda m, s: torch.ones(m, s, dtype=torch.bool).tril(s - m),
        "scattered": lambda m, s: torch.arange(m * s).view(m, s) * 7 % 11 > 3,
    }
    sizes = [(n, n) for n in (32, 64, 128, 256, 384, 512)] + [(64, 256), (128, 512), (256, 1024)]
    for name, d, (m, s), trains, kind in itertools.product(
        DTYPES, (64, 128), sizes, (False, True), masks
    ):
        if kind == "causal" and m != s:
            continue

        def pair(d=d, m=m, s=s, name=name, trains=trains, kind=kind):  # type: ignore[no-untyped-def]
            args = [normal(1, 8, n, d, dtype=DTYPES[name]) for n in (m, s, s)]
            make = masks[kind]
            kw = {"attn_mask": make(m, s)} if make else {"is_causal": True}
            torch.compiler.reset()
            f, t = (sdpa(x, args, trains, **kw) for x in (True, False))
            return Best(f, t)

        label = f"short Sq{m} Skv{s} H8 D{d} {name} {kind}{' fwd+bwd' if trains else ''}"
        rows.append(Row(label, 8 * m * s * d * (56 if trains else 16), 0.0, pair))
    return rows


PARTS = {
    "full": lambda: dense(False),
    "causal": lambda: dense(True),
    "window": window,
    "peak": peak,
    "packed": packed,
    "decode": decode,
    "flex": flex,
    "inductor": inductor,
    "few": few,
    "short": short,
}


def set_threads(n: int) -> None:
    global ticks
    ticks = time.thread_time if n == 1 else time.perf_counter
    torch.set_num_threads(n)
    dvm.set_num_threads(n)


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("parts", nargs="*", help=" ".join(PARTS))
    p.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    p.add_argument("--seconds", type=float, default=0.7, help="for each row")
    p.add_argument("--limit", type=float, default=540, help="seconds for all")
    p.add_argument("--match", default="", help="only rows with this in their name")
    o = p.parse_args()
    torch.manual_seed(0)
    theirs(
        *(normal(1, 1, 32, 32) for _ in range(3)), True
    )()  # the first use of autograd takes long
    start = time.perf_counter()
    print(f"{dvm._dvm.default_context().device}, torch {torch.__version__}")
    rows = [r for part in o.parts or list(PARTS)[:-3] for r in PARTS[part]() if o.match in r.name]
    jobs = [(n, r) for n in o.threads for r in rows if n == 1 or not r.alone]
    jobs.sort(key=lambda j: j[1].cost)
    missed, left, last = [], [], 0
    for n, r in jobs:
        if time.perf_counter() - start > o.limit:
            left.append(f"{r.name}, threads {n}")
            continue
        set_threads(n)
        if n != last:
            print(f"-- threads {n}; dvm, peer, peer / dvm")
            last = n
        ratio = r.measure(o.seconds, n, start + o.limit)
        if ratio < r.bar:
            missed.append(f"{r.name}, threads {n}: {ratio:.2f} of {r.bar:.2f}")
    done = len(jobs) - len(left)
    for title, names in (("missed", missed), ("not measured within the limit", left)):
        if names:
            print(f"\n{title}:", *names, sep="\n  ")
    print(
        f"\n{done - len(missed)} of {done} rows reach their bar, {len(missed)} miss it, "
        f"{len(left)} not measured; {time.perf_counter() - start:.0f} s"
    )


if __name__ == "__main__":
    main()
