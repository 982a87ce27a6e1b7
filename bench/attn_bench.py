"""Attention beside torch's CPU flash attention: `./dev exec python bench/attn_bench.py [NAME...]`.

Each line is one shape: milliseconds of DVM and of scaled_dot_product_attention, the smallest of
some rounds that alternate between the two, and their ratio (above 1: DVM is faster). GF counts
2 Nq nnz (D + D2) forward and 2 Nq nnz (3 D + 2 D2) backward, visible pairs only.

    full, causal     B1 H8, S 512 to 4096, D 64 and 128, fp32 and bf16
    window           W = 1024 against a dense mask, beside 0.7 S / 2W
    packed           5000 short sequences: time by tokens
    decode           one row against a long cache, 8 query heads a key head
    flex             flex_attention forward beside Inductor's; windows also beside the built-in band
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import dvm
import dvm.ops
import torch
import torch.nn.functional as F

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


ticks = time.thread_time  # of one thread: other load on the machine disturbs less


def clock(f: Callable[[], object]) -> float:
    start = ticks()
    f()
    return ticks() - start


def both(f: Callable[[], object], g: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Smallest times of two functions, taken in turns for about this long."""
    best = [clock(f), clock(g)]
    best = [clock(f), clock(g)]
    end, rounds = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or rounds < 3:
        best = [min(best[0], clock(f)), min(best[1], clock(g))]
        rounds += 1
    return best[0], best[1]


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def ours(q, k, v, backward, **kw):  # type: ignore[no-untyped-def]
    def forward():  # type: ignore[no-untyped-def]
        return dvm.ops.npu_fusion_attention(q, k, v, q.shape[1], "BNSD", **kw)

    def train():  # type: ignore[no-untyped-def]
        o = forward()
        back = {"scale_value" if n == "scale" else n: x for n, x in kw.items()}
        dvm.ops.npu_fusion_attention_grad(
            q, k, v, o[0], q.shape[1], "BNSD", softmax_max=o[1], softmax_sum=o[2],
            attention_in=o[0], **back,
        )  # fmt: skip

    return train if backward else forward


def theirs(q, k, v, backward, **kw):  # type: ignore[no-untyped-def]
    def forward():  # type: ignore[no-untyped-def]
        with torch.no_grad():
            return F.scaled_dot_product_attention(q, k, v, **kw)

    def train():  # type: ignore[no-untyped-def]
        a = [x.detach().requires_grad_() for x in (q, k, v)]
        o = F.scaled_dot_product_attention(*a, **kw)
        torch.autograd.grad(o, a, o.detach())

    return train if backward else forward


def line(name, a, b, flops=0.0, extra=""):  # type: ignore[no-untyped-def]
    rate = f"{flops / a / 1e9:7.1f} GF" if flops else " " * 10
    print(f"{name:44} {a * 1e3:9.2f} {b * 1e3:9.2f} ms  {b / a:6.2f}  {rate}  {extra}", flush=True)


def dense(o: argparse.Namespace, causal: bool) -> None:
    h = 8
    for s in o.sizes:
        for d in (64, 128):
            for name in o.dtypes:
                q, k, v = (normal(1, h, s, d, dtype=DTYPES[name]) for _ in range(3))
                kw = {"scale": d**-0.5, "sparse_mode": 2 if causal else 0}
                pairs = h * (s * (s + 1) // 2 if causal else s * s)
                for back in (False, True):
                    a, b = both(
                        ours(q, k, v, back, **kw),
                        theirs(q, k, v, back, is_causal=causal),
                        o.seconds,
                    )
                    what = "fwd+bwd" if back else "fwd"
                    flops = pairs * d * 2 * (7 if back else 2)
                    label = f"{'causal' if causal else 'full'} S{s} D{d} {name} {what}"
                    line(label, a, b, flops)


def window(o: argparse.Namespace) -> None:
    w, h, d = 1024, o.heads, 64
    for s in (8192, 16384):
        i = torch.arange(s)
        seen = (i[None] <= i[:, None]) & (i[None] > i[:, None] - w)
        q, k, v = (normal(1, h, s, d) for _ in range(3))
        kw = {"scale": d**-0.5, "sparse_mode": 4, "pre_tockens": w - 1, "next_tockens": 0}
        pairs = h * (w * (w + 1) // 2 + (s - w) * w)
        for back in (False, True):
            a, b = both(ours(q, k, v, back, **kw), theirs(q, k, v, back, attn_mask=seen), o.seconds)
            goal = f"goal {0.7 * s / (2 * w):.1f}"
            flops = pairs * d * 2 * (7 if back else 2)
            line(f"window S{s} W{w} H{h} D{d} {'fwd+bwd' if back else 'fwd'}", a, b, flops, goal)


def packed(o: argparse.Namespace) -> None:
    """Time by tokens must not depend on how many sequences there are."""
    for n in (500, 5000):
        g = torch.Generator().manual_seed(0)
        lengths = torch.randint(1, 32, (n,), generator=g)
        ends = lengths.cumsum(0).tolist()
        q, k, v = (normal(ends[-1], 8, 64) for _ in range(3))
        kw = {"actual_seq_qlen": ends, "actual_seq_kvlen": ends, "sparse_mode": 3}

        def f(args=(q, k, v), kw=kw):  # type: ignore[no-untyped-def]
            return dvm.ops.npu_fusion_attention(*args, 8, "TND", scale=0.125, **kw)

        a, _ = both(f, f, o.seconds)
        print(f"packed {n} sequences {a * 1e3:9.2f} ms  {a * 1e9 / ends[-1]:8.1f} ns a token")


def decode(o: argparse.Namespace) -> None:
    for s in (1024, 16384):
        for name in o.dtypes:
            q = normal(1, 32, 1, 128, dtype=DTYPES[name])
            k, v = (normal(1, 4, s, 128, dtype=DTYPES[name]) for _ in range(2))
            a, b = both(
                ours(q, k, v, False, scale=0.09),
                theirs(q, k, v, False, scale=0.09, enable_gqa=True),
                o.seconds,
            )
            line(f"decode Skv{s} H32/4 D128 {name}", a, b, 32 * s * 128 * 4)


def window_mask(b, h, i, j):  # type: ignore[no-untyped-def]
    return (i >= j) & (i - j < 1024)


def causal_mask(b, h, i, j):  # type: ignore[no-untyped-def]
    return i >= j


def softcap(s, b, h, i, j):  # type: ignore[no-untyped-def]
    return 30 * torch.tanh(s / 30)


def relative(s, b, h, i, j):  # type: ignore[no-untyped-def]
    return s + 0.01 * (j - i)


# name: (score_mod, mask_mod, built-in attention of the same result or None)
FLEX = {
    "window": (None, window_mask, {"sparse_mode": 4, "pre_tockens": 1023, "next_tockens": 0}),
    "window softcap": (softcap, window_mask, None),
    "causal": (None, causal_mask, {"sparse_mode": 2}),
    "causal relative": (relative, causal_mask, None),
    "full softcap": (softcap, None, None),
}


def flex(o: argparse.Namespace) -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    d = 64
    for s in o.sizes:
        for name, (score, mask, kw) in FLEX.items():
            q, k, v = (normal(1, o.heads, s, d) for _ in range(3))
            blocks = mask and create_block_mask(mask, None, None, s, s, device="cpu")
            fs = []
            for backend in ("dvm", "inductor"):
                torch.compiler.reset()
                f = torch.compile(flex_attention, backend=backend)
                fs.append(lambda f=f: f(q, k, v, score_mod=score, block_mask=blocks))  # noqa: B023
            built_in = ours(q, k, v, False, scale=d**-0.5, **(kw or {}))
            a, b = both(*fs, o.seconds)
            extra = ""
            if kw:
                _, c = both(fs[0], built_in, o.seconds)
                extra = f"{a / c:.2f} of the built-in band"
            line(f"flex {name} S{s} H{o.heads} D{d}", a, b, extra=extra)


PARTS = {
    "full": lambda o: dense(o, False),
    "causal": lambda o: dense(o, True),
    "window": window,
    "packed": packed,
    "decode": decode,
    "flex": flex,
}


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    p.add_argument("parts", nargs="*", default=list(PARTS), help=" ".join(PARTS))
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--seconds", type=float, default=1.0, help="for each pair")
    p.add_argument("--sizes", type=int, nargs="*", default=[512, 1024, 2048, 4096])
    p.add_argument("--dtypes", nargs="*", default=list(DTYPES))
    p.add_argument("--heads", type=int, default=2, help="of the window part")
    o = p.parse_args()
    if o.threads > 1:
        global ticks
        ticks = time.perf_counter
    torch.set_num_threads(o.threads)
    dvm.set_num_threads(o.threads)
    torch.manual_seed(0)
    print(f"{dvm._dvm.default_context().device}, {o.threads} threads; dvm, torch, torch / dvm")
    for part in o.parts:
        PARTS[part](o)


if __name__ == "__main__":
    main()
