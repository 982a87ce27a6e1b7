"""The programs of the demo and what is measured about each."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dvm.torch
import torch
from dvm.torch.testing import lowered

F = torch.nn.functional


@dataclass
class Case:
    """A function, how its arguments are made, and the sizes it is called with."""

    title: str
    code: str
    function: Callable[..., torch.Tensor]
    arguments: Callable[[int], tuple[torch.Tensor, ...]]
    sizes: list[int]
    dynamic: bool = False
    tolerance: float = 1e-4


@dataclass
class Call:
    """One call of the compiled function."""

    size: int
    seconds: float  # of the first call with this size
    eager_difference: float  # largest |compiled - eager|
    compiled_error: float  # largest error against float64, relative to the largest value
    eager_error: float
    compiled_us: float  # steady state, torch's guards and wrappers included
    dvm_us: float  # the generated call by itself
    eager_us: float
    ok: bool


@dataclass
class Result:
    case: Case
    calls: list[Call] = field(default_factory=list)
    graphs: int = 0  # artefacts compiled for all sizes together
    kernels: int = 0
    fallbacks: dict[str, str] = field(default_factory=dict)
    source: str = ""  # of the kernels
    listing: str = ""  # instructions
    stats: dict[str, int] = field(default_factory=dict)
    trace_s: float = 0.0
    aot_s: float = 0.0
    dvm_s: float = 0.0

    @property
    def ok(self) -> bool:
        return all(c.ok for c in self.calls) and self.graphs == 1 and not self.fallbacks


def _pair(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 128), torch.randn(rows, 128)


CASES = [
    Case(
        "static: relu(x * y + x)",
        "lambda x, y: torch.relu(x * y + x)",
        lambda x, y: torch.relu(x * y + x),
        _pair,
        [128],
    ),
    Case(
        "dynamic: relu(x + y) / rows",
        "lambda x, y: torch.relu(x + y) / x.shape[0]",
        lambda x, y: torch.relu(x + y) / x.shape[0],
        _pair,
        [32, 48, 7, 1024],
        dynamic=True,
    ),
    Case(
        "softmax over 1000 classes",
        "lambda x: F.softmax(x, -1)",
        lambda x: F.softmax(x, -1),
        lambda rows: (torch.randn(rows, 1000) * 3,),
        [512],
    ),
    Case(
        "layer norm of 768 features",
        "lambda x, w, b: F.layer_norm(x, (768,), w, b)",
        lambda x, w, b: F.layer_norm(x, (768,), w, b),
        lambda rows: (torch.randn(rows, 768), torch.randn(768), torch.randn(768)),
        [512],
    ),
]


def run(case: Case) -> Result:
    """Compiles, checks and times one case."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    result = Result(case)
    compiled = torch.compile(case.function, backend="dvm", dynamic=case.dynamic, fullgraph=True)
    for size in case.sizes:
        result.calls.append(_call(case, compiled, size))
    summary = dvm.torch.summary()
    result.graphs, result.kernels = len(summary.graphs), summary.kernels
    result.fallbacks = {op: reason for op, reason in summary.fallbacks}
    result.trace_s, result.aot_s = summary.trace_seconds, summary.aot_seconds
    result.dvm_s = summary.dvm_seconds
    for graph in summary.graphs:
        result.source += _kernels_of(graph.source)
        for fn in graph.functions.values():
            result.listing += fn.das()
            result.stats = fn.kobj.compile().stats()
    return result


def _call(case: Case, compiled: Callable[..., Any], size: int) -> Call:
    args = case.arguments(size)
    begun = time.perf_counter()
    got = compiled(*args)
    seconds = time.perf_counter() - begun
    want = case.function(*args)
    exact = case.function(*(a.double() for a in args))
    scale = float(exact.abs().max()) or 1.0
    return Call(
        size,
        seconds,
        float((got - want).abs().max()),
        float((got - exact).abs().max()) / scale,
        float((want - exact).abs().max()) / scale,
        microseconds(lambda: compiled(*args)),
        microseconds(_own_call(case, args)),
        microseconds(lambda: case.function(*args)),
        got.shape == want.shape
        and got.stride() == want.stride()
        and torch.allclose(got, want, case.tolerance, case.tolerance),
    )


def _own_call(case: Case, args: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    low = lowered(case.function, *args)
    return lambda: low(*args)


def microseconds(f: Callable[[], Any], budget: float = 0.15) -> float:
    """Time of one call: the best of many short loops."""
    begun = time.perf_counter()
    f()
    count = 10 if time.perf_counter() - begun < 1e-4 else 1
    best, end = float("inf"), time.perf_counter() + budget
    while time.perf_counter() < end:
        begun = time.perf_counter()
        for _ in range(count):
            f()
        best = min(best, (time.perf_counter() - begun) / count)
    return best * 1e6


def _kernels_of(source: str) -> str:
    """The kernel builders of a generated program, without imports and call code."""
    return source[source.index("@dvm.kernel") : source.index("def call(")].rstrip() + "\n"
