"""Steady calls of torch.compile: what a call costs beside its work, and training steps of whole models.

All contestants of a row run in turn, in one process, so that a busy machine slows all of them; the
numbers are the least of many rounds.

    python bench/torch_calls.py overhead|models [NAME...]
"""

from __future__ import annotations

import os
import pathlib
import sys
import tempfile
import time
import types
from collections.abc import Callable, Sequence
from typing import Any

os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp())
os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch

HERE = pathlib.Path(__file__).parent
Runs = dict[str, Callable[[], Any]]


def in_turn(runs: Runs, seconds: float) -> dict[str, float]:
    """Least time of one call of each, in seconds."""
    counts = {}
    for name, run in runs.items():
        run()
        start = time.perf_counter()
        run()
        counts[name] = max(1, int(2e-3 / (time.perf_counter() - start + 1e-9)))
    best = dict.fromkeys(runs, float("inf"))
    stop = time.perf_counter() + seconds * len(runs)
    rounds = 0
    while rounds < 5 or time.perf_counter() < stop:
        for name, run in runs.items():
            n = counts[name]
            start = time.perf_counter()
            for _ in range(n):
                run()
            best[name] = min(best[name], (time.perf_counter() - start) / n)
        rounds += 1
    return best


# --------------------------------------------------------------------------- cost of a call


def chain_of_kernels(n: int) -> Any:
    """A program of n kernels on 8 elements, one behind the other in the arena."""
    import dvm
    from dvm.torch.program import record

    @dvm.kernel(ktype="split", dyn_shape=False)
    def step(k: Any) -> None:
        k.store(k.add(k.load([8], dvm.float32), 1.0), dvm.float32)

    def program(p: Any) -> None:
        (x,) = p.inputs(1)
        for _ in range(n):
            y = p.empty((8,), (1,), torch.float32)
            p.run(step, x, y)
            x = y
        p.output((x,))

    return record(program)


def point(x: Any, y: Any) -> Any:
    return torch.relu(x * y + x)


def products(x: Any, y: Any) -> Any:
    for _ in range(10):
        x = torch.relu(torch.mm(x, y) * 2 + 1)
    return x


def renamed(f: Any, name: str) -> Any:
    """A function of its own for torch.compile, which keeps what it compiled by code."""
    return types.FunctionType(f.__code__.replace(co_name=f"{f.__name__}_{name}"), f.__globals__)


def nothing(result: Any) -> Callable:
    """A backend whose compiled graph is one lookup: what is left is torch's own part."""
    return lambda gm, inputs: lambda *args: (result,)


def overhead(backends: Sequence[str], seconds: float = 2.0) -> None:
    print("\nPromise 2: cost of a call, 8 elements, one thread")
    x = torch.zeros(8)
    for n in (1, 50, 200):
        p = chain_of_kernels(n)
        assert p.call(x)[0].eq(n).all()
        us = in_turn({"dvm": lambda p=p: p.call(x)}, seconds)["dvm"] * 1e6
        print(f"  program of {n:3d} kernels {us:9.2f} us   bar {5 + 0.5 * n:.1f} us", flush=True)
    print(
        "  whole calls, us; `torch` is a graph that computes nothing: Dynamo's guards and wrapper"
    )
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    leaf = x.clone().requires_grad_()
    ones = torch.ones(8, 8)
    for title, f, a, back in (
        ("one kernel", point, x, False),
        ("10 products, 10 kernels", products, x, False),
        ("one kernel, with backward", point, leaf, True),
    ):
        runs: Runs = {}
        for b in ("torch", *backends):
            g = renamed(f, b)
            c = g
            if b != "eager":
                c = torch.compile(g, backend=nothing(f(x, y)) if b == "torch" else b)
            if not back:
                runs[b] = lambda c=c, a=a: c(a, y)
            elif b != "torch":
                runs[b] = lambda c=c, a=a: c(a, y).backward(ones)
        show(title, {b: t * 1e6 for b, t in in_turn(runs, seconds).items()}, 1)


def show(title: str, times: dict[str, float], digits: int) -> None:
    words = [f"{b} {t:.{digits}f}" for b, t in times.items()]
    ratios = [
        f"{times[b] / times['dvm']:.2f} x {b}'s speed" for b in ("eager", "inductor") if b in times
    ]
    print(f"  {title:26s} {'  '.join(words)}   {', '.join(ratios)}", flush=True)


# --------------------------------------------------------------------------- training steps


def blocks_step(backend: str) -> Callable[[], Any]:
    """Four transformer blocks of width 512, forward and backward."""
    from first_call import Block

    torch.manual_seed(0)
    model = torch.nn.Sequential(*[Block() for _ in range(4)])
    x = torch.randn(2, 128, 512, requires_grad=True)
    for block in model if backend != "eager" else ():
        block.compile(fullgraph=True, backend=backend)

    def step() -> None:
        model(x).sum().backward()
        model.zero_grad(set_to_none=True)
        x.grad = None

    return step


def recipe_step(module: str, dtype: torch.dtype, backend: str) -> Callable[[], Any]:
    """A small model of examples/train with random weights, loss and gradients."""
    import models
    import report

    r = models.recipe(module, f"{module}_tiny")
    model = report.prepared(r, dtype, 0)
    if backend != "eager":
        report.compile_model(model, r, False, backend=backend)
    batch = r.batch(r.sizes, 2, torch.Generator().manual_seed(0))
    batch = {k: v.to(dtype) if v.is_floating_point() else v for k, v in batch.items()}
    return lambda: report.gradients(model, r, batch)


def models_in_turn(names: Sequence[str], backends: Sequence[str], seconds: float = 4.0) -> None:
    print("\nTraining steps, forward and backward, ms, one thread")
    sys.path.insert(0, str(HERE.parent / "examples" / "train"))
    torch._dynamo.config.recompile_limit = 64  # the contestants share their code
    cases: dict[str, Callable[[str], Callable[[], Any]]] = {"blocks": blocks_step}
    for module in ("flux", "qwen3_5", "glm"):
        for word, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            cases[f"{module} {word}"] = lambda b, m=module, d=dtype: recipe_step(m, d, b)
    for name, case in cases.items():
        if names and not any(name.startswith(n) for n in names):
            continue
        try:
            runs = {b: case(b) for b in backends}
            times = in_turn(runs, seconds)
        except Exception as error:  # a model package that is missing, a backend that refuses
            print(f"  {name:26s} not run: {type(error).__name__}: {str(error)[:200]}", flush=True)
            continue
        show(name, {b: t * 1e3 for b, t in times.items()}, 2)


def main(arguments: list[str]) -> int:
    torch.set_num_threads(1)
    backends = os.environ.get("BENCH_BACKENDS", "eager dvm inductor").split()
    if arguments[:1] == ["overhead"]:
        overhead(backends)
    else:
        models_in_turn(arguments[1:], backends)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
