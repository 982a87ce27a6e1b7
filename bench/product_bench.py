"""Matrix products of torch.compile(backend="dvm"): as kernels with what surrounds them, or left to torch.

    ./dev exec python bench/product_bench.py [--dtype f32,bf16,f16] [--threads 1,2] [--rounds N] [--inductor] [--only linear]
                                             [--rows 1,16] [--factors 512x512]

The same compiled function with option products="all" (what is around a product joins its kernel) and "none" (torch runs the
products), and eager, in one process, taking turns; smallest times. The last column says what "auto" would do: the rule in
python/dvm/torch/rows_matmul.py stands on this table. A row where "auto" is slower than "none" gets more rounds, and is told at
the end if it still is.
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
import dvm
import dvm.torch
import torch
import torch.nn.functional as nnf
from mix_bench import DTYPES, contest
from speed import set_threads


def plain(x, w, b):
    return x @ w.T


def linear(x, w, b):
    return nnf.gelu(nnf.linear(x, w, b), approximate="tanh")


def residual(x, w, b):
    return nnf.linear(x, w, b) + b * 0.5


def scaled(x, w, b):
    """A row scale in front and an activation behind: RMS norm, linear, SiLU."""
    return nnf.silu(nnf.linear(nnf.rms_norm(x, (x.shape[-1],)), w, b))


def swiglu(x, w, b):
    n = w.shape[0] // 2
    return nnf.silu(x @ w[:n].T) * (x @ w[n:].T)


def batched(x, w, b):
    """Four products of one shape, as attention has them."""
    return nnf.relu(torch.bmm(x.expand(4, *x.shape), w.expand(4, *w.shape).mT))


CASES: dict[str, Callable] = {
    "plain": plain,
    "linear": linear,
    "residual": residual,
    "scaled": scaled,
    "swiglu": swiglu,
    "batched": batched,
}
ROWS = "1,4,8,12,16,32,64,128,512"
FACTORS = "512x512,2048x512,1024x1024"  # N, K


def compiled(f: Callable, products: str) -> Callable:
    torch._dynamo.reset()
    return torch.compile(f, backend="dvm", dynamic=False, options={"products": products})


def table(o: argparse.Namespace, dtype: str, threads: int, missed: list[str]) -> None:
    clock = time.thread_time if threads == 1 else time.perf_counter
    for name in o.only.split(","):
        f = CASES[name]
        for n, k in (map(int, nk.split("x")) for nk in o.factors.split(",")):
            for m in map(int, o.rows.split(",")):
                t = DTYPES[dtype]
                args = (torch.randn(m, k).to(t), torch.randn(n, k).to(t) / 16, torch.randn(n).to(t))
                runs: dict[str, Callable] = {}
                for which in ("none", "all"):
                    runs[which] = compiled(f, which)
                    runs[which](*args)
                dvm.torch.summary()
                auto = compiled(f, "auto")
                auto(*args)
                taken = dvm.torch.summary().products > 0
                runs["eager"] = f
                if o.inductor:
                    runs["inductor"] = torch.compile(f, dynamic=False)
                    runs["inductor"](*args)
                calls = {key: lambda g=g, a=args: g(*a) for key, g in runs.items()}
                rounds = max(o.rounds, min(200, int(4e8 / (m * n * k))))
                best, done = contest(
                    calls, clock, rounds, lambda t, taken=taken: not taken or t["none"] >= t["all"]
                )
                line = f"{name:9s} {dtype:4s} {threads} {m:4d}x{n}x{k:<5d} "
                line += "  ".join(f"{key} {best[key] * 1e6:9.1f}" for key in best)
                ratio = {key: best[key] / best["all"] for key in best if key != "all"}
                line += " us; all is " + ", ".join(f"{r:.2f} of {key}" for key, r in ratio.items())
                line += f"; auto: {'kernel' if taken else 'torch'}; {done} rounds"
                if taken and ratio["none"] < 1:
                    missed.append(line)
                print(line, flush=True)


def main() -> None:
    ap = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    ap.add_argument("--dtype", default="f32,bf16,f16")
    ap.add_argument("--threads", default="1")
    ap.add_argument("--rounds", type=int, default=12)
    ap.add_argument("--only", default=",".join(CASES))
    ap.add_argument("--rows", default=ROWS)
    ap.add_argument("--factors", default=FACTORS)
    ap.add_argument("--inductor", action="store_true")
    o = ap.parse_args()
    missed: list[str] = []
    for threads in map(int, o.threads.split(",")):
        set_threads(threads)
        for dtype in o.dtype.split(","):
            with torch.no_grad():
                table(o, dtype, threads, missed)
    print(f"slower than torch's product although taken: {len(missed)} rows")
    for line in missed:
        print("  " + line)


if __name__ == "__main__":
    main()
