"""How compilation grows: the dynamic example over many sizes, and unrolled recurrences. Prints JSON lines.

python bench/torch_growth.py sizes
python bench/torch_growth.py steps 128
python bench/torch_growth.py own 512 forward|training
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch_cases

# Sizes 0 and 1 are left out: torch itself compiles those apart, whatever the backend.
SIZES = (32, 48, 7, 1024, *range(2, 130), *(2**k + d for k in range(8, 13) for d in (-1, 0, 1)))


def scaled(x: Any, w: Any) -> Any:
    """The dynamic example with a row norm and weights, for training."""
    y = torch.relu(x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) @ w)
    return y / x.shape[0]


def sizes() -> None:
    import dvm.torch
    from torch._dynamo.utils import counters

    def example(c: Callable, rows: int) -> list[Any]:
        x, y = torch.randn(rows, 128), torch.randn(rows, 128)
        return [(c(x, y), torch_cases.dynamic(x, y))]

    def training(c: Callable, rows: int) -> list[Any]:
        x, w = torch.randn(rows, 128), torch.randn(128, 16)
        got, want = [], []
        for f, out in ((c, got), (scaled, want)):
            a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
            f(a, b).sum().backward()
            out += [a.grad, b.grad]
        return list(zip(got, want, strict=True))

    for title, f, run in (
        ("example", torch_cases.dynamic, example),
        ("example with backward", scaled, training),
    ):
        torch._dynamo.reset()
        counters.clear()
        c = torch.compile(f, backend="dvm", dynamic=True, fullgraph=True)
        for n in SIZES:
            for got, want in run(c, n):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        s = dvm.torch.summary()
        row = {
            "case": title,
            "sizes": len(set(SIZES)),
            "graphs": counters["stats"]["unique_graphs"],
        }
        print(json.dumps({**row, "recompiles": len(s.recompiles), "kernels": s.kernels}))


def steps(length: int) -> None:
    """The first call of so many steps of the recurrence, forward."""
    import dvm.torch

    torch.set_num_threads(1)
    args = [t.detach() for t in torch_cases.recurrence_inputs(length, 2, 16)]
    c = torch.compile(torch_cases.recurrence, backend="dvm", dynamic=False, fullgraph=True)
    c(*args)
    s = dvm.torch.summary()
    parts = {"trace": s.trace_seconds, "aot": s.aot_seconds, "dvm": s.dvm_seconds}
    print(json.dumps({"steps": length, "kernels": s.kernels, **parts}))


def own(length: int, kind: str) -> None:
    """DVM's part alone: make_fx traces the steps, in seconds where Dynamo, AOTAutograd and its
    partitioner take minutes. `training` is one graph of forward and backward."""
    import dvm.torch
    from dvm.torch import backend, decomp, options
    from torch.fx.experimental.proxy_tensor import make_fx

    def training(*args: Any) -> Any:
        with torch.enable_grad():
            leaves = [t.detach().requires_grad_() for t in args]
            return torch.autograd.grad(torch_cases.recurrence(*leaves).float().sum(), leaves)

    torch.set_num_threads(1)
    f = training if kind == "training" else torch_cases.recurrence
    for n in (2, length):  # the first loads what every compilation needs
        args = [t.detach() for t in torch_cases.recurrence_inputs(n, 2, 16)]
        want = f(*args)
        gm = make_fx(f, tracing_mode="fake", decomposition_table=decomp.table())(*args)
        gm.graph.eliminate_dead_code()
        nodes = len(gm.graph.nodes)
        call = backend.compile_graph(gm, args, kind="inference", options=options.Options())
        got = call(args)
        for a, b in zip(got, want, strict=True) if kind == "training" else ((got, want),):
            torch.testing.assert_close(a, b, rtol=2e-2, atol=2e-2)
    graph = dvm.torch.summary().graphs[-1]
    row = {"steps": length, "kind": kind, "nodes": nodes, "kernels": graph.kernels}
    print(json.dumps({**row, "dvm": graph.dvm_seconds}))


if sys.argv[1] == "sizes":
    sizes()
elif sys.argv[1] == "own":
    own(int(sys.argv[2]), sys.argv[3])
else:
    steps(int(sys.argv[2]))
