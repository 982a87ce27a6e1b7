"""One model family through the backend, beside eager and float64.

    python examples/train/report.py flux                      table and counts
    python examples/train/report.py qwen3_5 --dtype bf16 --steps 20 --whole
    python examples/train/report.py glm --json out.json

For every parameter: distance of the gradient from eager and from float64, both relative in the
Euclidean norm, and eager's own distance from float64. Then AdamW steps on fixed data, eager beside
compiled. The end is what was compiled: graphs, breaks, recompilations, kernels, what torch ran.
Exit code 1 when a gradient is farther from float64 than the limits below allow.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch._dynamo.utils
from models import Batch, Recipe, recipe
from torch import nn
from torch.overrides import TorchFunctionMode

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

# A gradient may be as far from float64 as this many times eager's, and by FLOOR of the norm more:
# sums of other order, and one rounding of the result.
FACTOR = 2.0
FLOOR = {torch.float32: 4e-6, torch.bfloat16: 6e-3}
# The distance of a few numbers in which large terms cancel is one draw from the roundings before
# them: eager's own moves by a factor of five when all weights move by a thousandth. Where one draw
# fails, root mean squares of so many count, at weights that are moved by up to NEAR of themselves:
# several times their dtype's spacing, or most would be rounded back to what they were. Of two equal
# distributions one is twice the other over 8 draws in a few of a hundred cases: then more count.
DRAWS = (8, 32)
NEAR = {torch.float32: 2.0**-10, torch.bfloat16: 2.0**-6}


class Wide(TorchFunctionMode):
    """Whatever asks for float32 inside gets float64, so that a model is float64 throughout."""

    def __torch_function__(
        self, func: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        def wide(a: Any) -> Any:
            return torch.float64 if a is torch.float32 else a

        if func is torch.Tensor.float:
            return args[0].double()
        return func(*map(wide, args), **{k: wide(v) for k, v in (kwargs or {}).items()})


def gradients(model: nn.Module, r: Recipe, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients of all parameters that have one; leaves the model without any."""
    loss = r.loss(model, batch)
    loss.backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return float(loss.detach()), grads


def truth(model: nn.Module, r: Recipe, batch: Batch) -> tuple[float, dict[str, torch.Tensor]]:
    """As `gradients`, of the same weights in float64."""
    wide = copy.deepcopy(model).double()
    wide_batch = {n: t.double() if t.is_floating_point() else t for n, t in batch.items()}
    with Wide():
        return gradients(wide, r, wide_batch)


def rel_l2(a: torch.Tensor, b: torch.Tensor) -> float:
    """|a - b| / |b|; |a| when b is zero."""
    size = b.double().norm()
    difference = (a.double() - b.double()).norm()
    return float(difference / size if size else difference)


@dataclass
class Row:
    """Distances of one parameter's gradient; root mean squares where draws were more than one."""

    name: str
    to_eager: float
    to_exact: float
    eager_to_exact: float
    good: bool
    draws: int = 1


@dataclass
class Report:
    """Of one model: `counts` is what was compiled for it, whatever stood there before."""

    dtype: str
    loss: dict[str, float] = field(default_factory=dict)
    rows: list[Row] = field(default_factory=list)
    curves: dict[str, list[float]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, Any] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        return all(r.good for r in self.rows)


def counts() -> dict[str, Any]:
    """What this process has compiled since the last reset."""
    import dvm.torch
    from torch._dynamo.utils import counters

    s = dvm.torch.summary()
    names: dict[str, int] = {}
    for (op, _), n in s.fallbacks.items():
        names[op] = names.get(op, 0) + n
    return {
        "graphs": len(s.graphs),
        "dynamic graphs": sum(g.dynamic for g in s.graphs),
        "breaks": dict(counters["graph_break"]),
        "recompiles": len(s.recompiles),
        "kernels": s.kernels,
        "fused": s.fused,
        "fallbacks": names,
    }


def compile_model(model: nn.Module, r: Recipe, whole: bool, **options: Any) -> None:
    """In place: the whole model as one graph, or block by block; equal blocks share one graph."""
    for block in [model] if whole else r.blocks(model):
        block.compile(fullgraph=True, **{"backend": "dvm", **options})


def prepared(r: Recipe, dtype: torch.dtype, seed: int) -> nn.Module:
    """Random weights; decay rates stay float32, where bfloat16 could make them infinite."""
    torch.manual_seed(seed)
    model = r.build(r.sizes).train()
    model.to(dtype)
    for name, p in model.named_parameters():
        if name.endswith(("A_log", "dt_bias")):
            p.data = p.data.float()
    return model


def compare(
    r: Recipe, dtype: str = "fp32", steps: int = 0, whole: bool = False, batch_size: int = 2,
    seed: int = 0, **options: Any,
) -> Report:  # fmt: skip
    """The report of one recipe; `options` are those of torch.compile."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = prepared(r, DTYPES[dtype], seed)
    batch = r.batch(r.sizes, batch_size, torch.Generator().manual_seed(seed + 1))
    report = Report(dtype)
    compiled = copy.deepcopy(model)
    compile_model(compiled, r, whole, **options)
    report.loss, report.rows = beside(model, compiled, r, batch, report.seconds)
    for name, m in (("eager", model), ("compiled", compiled)) if steps else ():
        begun = time.perf_counter()
        report.curves[name] = train(m, r, batch, steps)
        report.seconds[f"{name} step"] = (time.perf_counter() - begun) / steps
    report.counts = counts()
    return report


def beside(
    model: nn.Module, compiled: nn.Module, r: Recipe, batch: Batch, seconds: dict[str, float]
) -> tuple[dict[str, float], list[Row]]:
    """Losses and rows of two models with the same weights, which they keep."""
    losses, rows = once(model, compiled, r, batch, seconds)
    if all(row.good for row in rows):
        return losses, rows
    weights = copy.deepcopy(model.state_dict())
    dtypes = {name: p.dtype for name, p in model.named_parameters()}
    random = torch.Generator().manual_seed(8)
    drawn = {row.name: [row] for row in rows}
    for wanted in DRAWS:
        for _ in range(wanted - len(drawn[rows[0].name])):
            move(model, weights, random)
            compiled.load_state_dict(model.state_dict())
            for row in once(model, compiled, r, batch, {})[1]:
                drawn[row.name].append(row)
        rows = [row if row.good else together(drawn[row.name], dtypes[row.name]) for row in rows]
        if all(row.good for row in rows):
            break
    model.load_state_dict(weights)
    compiled.load_state_dict(weights)
    return losses, rows


def move(model: nn.Module, weights: dict[str, torch.Tensor], random: torch.Generator) -> None:
    """The model's weights become ones near the given."""
    for name, p in model.named_parameters():
        moved = 1 + NEAR[p.dtype] * (2 * torch.rand(p.shape, generator=random) - 1)
        p.data = (weights[name] * moved).to(p.dtype)


def together(draws: list[Row], dtype: torch.dtype) -> Row:
    """What several draws say of one parameter."""

    def mean(of: str) -> float:
        return math.sqrt(sum(getattr(row, of) ** 2 for row in draws) / len(draws))

    near, own = mean("to_exact"), mean("eager_to_exact")
    good = within(near, own, dtype)
    return Row(draws[0].name, mean("to_eager"), near, own, good, len(draws))


def within(near: float, own: float, dtype: torch.dtype) -> bool:
    """Whether a gradient so far from float64 is right where eager's is `own` away."""
    return near <= FACTOR * own + FLOOR[dtype]


def once(
    model: nn.Module, compiled: nn.Module, r: Recipe, batch: Batch, seconds: dict[str, float]
) -> tuple[dict[str, float], list[Row]]:
    """As `beside`, of these weights alone."""
    exact_loss, exact = truth(model, r, batch)
    eager_loss, eager = gradients(model, r, batch)
    begun = time.perf_counter()
    loss, got = gradients(compiled, r, batch)
    seconds["first"] = time.perf_counter() - begun
    return {"compiled": loss, "eager": eager_loss, "f64": exact_loss}, judged(got, eager, exact)


def judged(
    got: dict[str, torch.Tensor], eager: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]
) -> list[Row]:
    """Every parameter's distances. Where eager has no gradient (a result of the block that nothing
    reads), AOTAutograd makes one of zeros, whatever the backend."""
    lost = eager.keys() - got.keys()
    rows = [Row(name, 1.0, 1.0, 0.0, False) for name in sorted(lost)]
    for name, g in got.items():
        if name not in eager:
            size = float(g.double().norm())
            rows.append(Row(name, size, size, 0.0, size == 0))
            continue
        near, own = rel_l2(g, exact[name]), rel_l2(eager[name], exact[name])
        good = g.dtype is eager[name].dtype and within(near, own, g.dtype)
        rows.append(Row(name, rel_l2(g, eager[name]), near, own, good))
    return rows


def train(model: nn.Module, r: Recipe, batch: Batch, steps: int) -> list[float]:
    """Losses of AdamW steps on one batch."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = r.loss(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
    return losses


def show(report: Report, rows: int) -> None:
    print("loss  " + "   ".join(f"{n} {v:.7g}" for n, v in report.loss.items()))
    worst = sorted(report.rows, key=lambda r: (r.good, -r.to_exact))
    print(f"{'gradient, rel-L2':52} to eager    to f64 eager-f64")
    for r in worst[:rows]:
        mark = f"  of {r.draws} draws" if r.draws > 1 else ""
        mark += "" if r.good else "  FAILED"
        line = f"{r.to_eager:9.1e} {r.to_exact:9.1e} {r.eager_to_exact:9.1e}{mark}"
        print(f"{r.name:50} {line}")
    if len(worst) > rows:
        print(f"... {len(worst) - rows} more parameters, nearer")
    for name, curve in report.curves.items():
        print(f"{name:9} loss {curve[0]:.5f} -> {curve[-1]:.5f} in {len(curve)} steps")
    for name, seconds in report.seconds.items():
        print(f"{name:14} {seconds * 1e3:9.1f} ms")
    for name, value in report.counts.items():
        print(f"{name}: {value}")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="a model, compiled against eager and float64")
    parser.add_argument("module")
    parser.add_argument("--config", help="default MODULE_tiny")
    parser.add_argument("--dtype", choices=DTYPES, default="fp32")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--whole", action="store_true", help="one graph instead of one per block")
    parser.add_argument("--rows", type=int, default=8, help="parameters to print, worst first")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--backend", default="dvm")
    chosen = parser.parse_args(arguments)
    config = chosen.config or f"{chosen.module}_tiny"
    try:
        r = recipe(chosen.module, config)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    print(f"{config} {chosen.dtype} {r.sizes}")
    report = compare(r, chosen.dtype, chosen.steps, chosen.whole, backend=chosen.backend)
    show(report, chosen.rows)
    if chosen.json:
        with open(chosen.json, "w") as f:
            json.dump({**vars(report), "rows": [vars(r) for r in report.rows]}, f, indent=1)
    print("accepted" if report.good else "NOT accepted")
    return 0 if report.good else 1


if __name__ == "__main__":
    raise SystemExit(main())
