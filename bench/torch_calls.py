"""Steady calls of torch.compile: what a call costs beside its work, and training steps of models.

All contestants of a row run in turn, in one process, so that a busy machine slows all of them; the
numbers are the least of many rounds. Prints JSON lines.

    python bench/torch_calls.py calls
    python bench/torch_calls.py step "flux fp32"
"""

from __future__ import annotations

import json
import os
import sys
import time
import types
from collections.abc import Callable
from typing import Any

import torch
import torch_cases

Runs = dict[str, Callable[[], Any]]
BACKENDS = os.environ.get("BENCH_BACKENDS", "eager dvm inductor").split()


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


def tell(row: dict[str, Any]) -> None:
    print(json.dumps(row), flush=True)


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


def calls(seconds: float = 2.0) -> None:
    x = torch.zeros(8)
    for n in (1, 50, 200):
        p = chain_of_kernels(n)
        assert p.call(x)[0].eq(n).all()
        us = in_turn({"dvm": lambda p=p: p.call(x)}, seconds)["dvm"] * 1e6
        tell({"kernels": n, "us": us})
    x, y = torch.randn(8, 8), torch.randn(8, 8)
    leaf = x.clone().requires_grad_()
    ones = torch.ones(8, 8)
    for title, f, a, back in (
        ("one kernel", point, x, False),
        ("10 products, 10 kernels", products, x, False),
        ("one kernel, with backward", point, leaf, True),
    ):
        runs: Runs = {}
        for b in ("torch", *BACKENDS):
            g = renamed(f, b)
            c = g
            if b != "eager":
                c = torch.compile(g, backend=nothing(f(x, y)) if b == "torch" else b)
            if not back:
                runs[b] = lambda c=c, a=a: c(a, y)
            elif b != "torch":
                runs[b] = lambda c=c, a=a: c(a, y).backward(ones)
        tell({"case": title, "times": in_turn(runs, seconds)})


# --------------------------------------------------------------------------- training steps


def step(name: str, seconds: float) -> None:
    torch._dynamo.config.recompile_limit = 64  # the contestants share their code
    case = torch_cases.steps()[name]
    tell({"case": name, "times": in_turn({b: case(b) for b in BACKENDS}, seconds)})


def main(arguments: list[str]) -> None:
    torch.set_num_threads(1)
    if arguments[0] == "calls":
        calls()
    else:
        step(arguments[1], float(os.environ.get("BENCH_SECONDS", "4")))


main(sys.argv[1:])
