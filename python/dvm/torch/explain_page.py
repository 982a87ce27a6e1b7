"""One page that shows what a model became: `dvm.torch.explain(model, *args)`.

The model is compiled for itself, apart from what torch has compiled of it before, and run: each
graph is drawn as torch hands it over, one operation a box, and as it runs, one kernel a box. Times
come from torch's profiler, whose ranges the kernels are.
"""

from __future__ import annotations

import html
import os
import platform
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..arrays import plural
from . import backend, picture
from .codegen import Program
from .partition import Kind, Partition, Step, is_part
from .picture import Box
from .stats import GraphRecord, summary
from .symbols import hint

STYLE = """
:root { color-scheme: light dark; --ink: #1b2430; --paper: #fff; --quiet: #52606f; --line: #d8dee6;
        --code: #f5f7fa; --link: #24518a }
@media (prefers-color-scheme: dark) {
  :root { --ink: #dde4ec; --paper: #14181d; --quiet: #9aa7b5; --line: #333c47; --code: #1c222a;
          --link: #8ab4ee } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem;
       color: var(--ink); background: var(--paper) }
h1 { font-size: 1.6rem }
h2 { font-size: 1.2rem; margin-top: 2.6rem; border-bottom: 1px solid var(--line) }
h3 { font-size: 1rem; margin-bottom: .3rem }
pre { background: var(--code); border: 1px solid var(--line); border-radius: 6px; padding: .8rem;
      overflow-x: auto; font-size: 12.5px; line-height: 1.4 }
table { border-collapse: collapse; margin: .6rem 0 }
td, th { padding: .25rem .9rem .25rem 0; text-align: right; font-variant-numeric: tabular-nums }
th { font-weight: 600; color: var(--quiet) }
td.name, th.name { text-align: left; overflow-wrap: anywhere }
.wide { overflow-x: auto; max-height: 44rem }
.note { color: var(--quiet) }
summary { cursor: pointer; color: var(--link) }
"""


@dataclass
class Seen:
    """A graph as it was compiled: `inside` says in which kernel a node is."""

    record: GraphRecord
    program: Program
    inside: dict[Node, str]

    def colour(self, kernel: str) -> str:
        names = [k.name for k in self.program.kernels]
        return f"k{names.index(kernel) % picture.COLOURS}"


@dataclass
class Times:
    """Of one call, in microseconds: name -> (runs, shortest mean of a run)."""

    call: float  # without the profiler
    ranges: dict[str, tuple[int, float]]  # dvm::KERNEL, and operators that torch was called for


def explain(
    f: Callable,
    *args: Any,
    path: str | os.PathLike = "dvm_explain.html",
    runs: int = 5,
    dynamic: bool | None = None,
    options: dict | None = None,
    **named: Any,
) -> str:
    """Compiles f for these arguments, runs it, and writes what it became as one HTML page.

    f         a module or a function, compiled already or not; `named` are its arguments by name
    path      of the page, returned
    runs      calls that are timed; the shortest times count
    dynamic, options   as of torch.compile(f, backend="dvm")

    Where outputs require grad, the gradients of parameters and arguments are computed as well;
    `.grad` of none is changed, nor is torch's random state, and hooks of theirs do not run. What f
    itself changes when it is called, such as the statistics of a batch norm, it changes here.
    """
    if not isinstance(runs, int) or runs < 1:
        raise ValueError(f"runs={runs}: at least one call is needed to time it")
    path = _writable(path)
    if torch.autograd._profiler_enabled():
        raise RuntimeError("explain times f with torch's profiler, which is running: stop it first")
    step = _step(f, args, named, dynamic, options or {})
    breaks = len(summary().breaks)
    with _one_at_a_time, torch.random.fork_rng(devices=[]), _watching() as seen:
        begun = time.perf_counter()
        step()
        first = time.perf_counter() - begun
        times = _measured(step, runs)
    lost = [f"{where}: {why}" for where, why in summary().breaks[breaks:]]
    text = page(_name(f), seen, times, first, lost)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


# What is compiled while a page is made is on it.
_one_at_a_time = threading.RLock()


def _writable(path: str | os.PathLike) -> str:
    """The path of a page, before minutes are spent on what cannot be written."""
    name = os.fspath(path)
    if not isinstance(name, str) or not name or "\0" in name:
        raise ValueError(f"path={path!r} is not the name of a file")
    if os.path.isdir(name):
        raise IsADirectoryError(f"path={name!r} is a folder: name a file")
    folder = os.path.dirname(name) or "."
    if not os.path.isdir(folder):
        raise FileNotFoundError(f"path={name!r}: there is no folder {folder!r}")
    if not os.access(name if os.path.exists(name) else folder, os.W_OK):
        raise PermissionError(f"path={name!r} may not be written")
    return name


def _name(f: Any) -> str:
    f = _plain(f)
    return getattr(f, "__name__", None) or type(f).__name__


def _plain(f: Any) -> Any:
    """What torch.compile was given, where f is its result. A function that is kept out of
    torch.compile stays so."""
    if getattr(f, "_torchdynamo_disable", False):
        return f
    return getattr(f, "_orig_mod", None) or getattr(f, "_torchdynamo_orig_callable", f)


def _step(
    f: Callable, args: tuple, named: dict, dynamic: bool | None, options: dict
) -> Callable[[], None]:
    """A call of f, compiled apart, with its gradients."""
    f = _plain(f)

    def fresh(gm: Any, inputs: Sequence[Any], **more: Any) -> Callable:
        """Unlike any other backend to Dynamo, so that it compiles again. Programs from a cache have
        no graph to draw."""
        return backend.dvm(gm, inputs, options={**options, "cache": False}, **more)

    fresh.reset = backend.dvm.reset  # torch._dynamo.reset() calls it of backends that it has seen
    compiled = torch.compile(_copied(f), backend=fresh, dynamic=dynamic)
    leaves = [t for t in pytree.tree_leaves((args, named)) if isinstance(t, torch.Tensor)]
    owned = f.parameters() if isinstance(f, torch.nn.Module) else ()
    wanted = [t for t in (*owned, *leaves) if t.is_leaf and t.requires_grad]

    def step() -> None:
        outs = [t for t in pytree.tree_leaves(compiled(*args, **named)) if _differentiable(t)]
        if outs and wanted:
            ones = [torch.ones_like(t) for t in outs]
            with _without_hooks(wanted):
                torch.autograd.grad(outs, wanted, ones, allow_unused=True)

    return step


@contextmanager
def _without_hooks(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Those that a user gave these tensors, for gradients that are used, do not run."""
    hooks = [(t, t._backward_hooks) for t in tensors if t._backward_hooks]
    for t, _ in hooks:
        t._backward_hooks = None
    try:
        yield
    finally:
        for t, known in hooks:
            t._backward_hooks = known


def _copied(f: Callable) -> Callable:
    """f with code of its own: torch bounds how often it compiles the same code, and what is
    compiled here shall not count."""

    def call(*args: Any, **named: Any) -> Any:
        return f(*args, **named)

    source = f if isinstance(f, types.FunctionType) else call
    copy = types.FunctionType(
        source.__code__.replace(),
        source.__globals__,
        source.__name__,
        source.__defaults__,
        source.__closure__,
    )
    copy.__kwdefaults__ = source.__kwdefaults__
    return copy


def _differentiable(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.requires_grad


@contextmanager
def _watching() -> Iterator[list[Seen]]:
    """The graphs that are compiled inside."""
    seen: list[Seen] = []

    def watch(record: GraphRecord, program: Program) -> None:
        inside = {n: k.name for k in program.kernels for n in k.nodes}
        seen.append(Seen(record, program, inside))

    backend.watchers.append(watch)
    try:
        yield seen
    finally:
        backend.watchers.remove(watch)


def _measured(step: Callable[[], None], runs: int) -> Times:
    from torch.profiler import ProfilerActivity, profile

    calls = []
    for _ in range(runs):
        begun = time.perf_counter()
        step()
        calls.append(time.perf_counter() - begun)
    with profile(activities=[ProfilerActivity.CPU]) as prof:
        for _ in range(runs):
            step()
    spent: dict[str, list[float]] = {}
    for e in sorted(prof.events(), key=lambda e: e.time_range.start):
        inner = e.cpu_parent is not None and e.cpu_parent.name.startswith(("aten::", "dvm::"))
        if e.name.startswith(("aten::", "dvm::")) and not inner:
            spent.setdefault(e.name, []).append(e.cpu_time_total)
    ranges = {}
    for name, each in spent.items():
        n = max(1, len(each) // runs)
        shortest = min(sum(each[i : i + n]) / n for i in range(0, len(each) - n + 1, n))
        ranges[name] = (n, shortest)
    return Times(min(calls) * 1e6, ranges)


# -------------------------------------------------------------------------------- the page


def page(name: str, seen: list[Seen], times: Times, first: float, breaks: list[str]) -> str:
    title = f"{_text(name)} through torch.compile(backend=&quot;dvm&quot;)"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{title}</title><style>{STYLE}{picture.STYLE}</style></head><body>",
        f"<h1>{title}</h1>",
        f"<p class='note'>torch {_text(torch.__version__)}, Python {platform.python_version()},"
        f" {torch.get_num_threads()} threads of torch</p>",
        _totals(seen, times, first),
        "<p class='note'>In the pictures each kernel has a colour of its own, what torch runs has a"
        " dashed frame, grey boxes are views that cost nothing; pointing at a box tells more.</p>",
        *(f"<p>Graph break: {_text(b)}</p>" for b in breaks),
        "<h2>Kernels</h2>",
        _kernel_table(seen, times),
        "<h2>Left to torch</h2>",
        _torch_table(seen, times),
    ]
    for s in seen:
        parts += _graph(s, times)
    return "".join(parts) + "</body></html>\n"


def _text(s: object) -> str:
    return html.escape(str(s))


def _totals(seen: list[Seen], times: Times, first: float) -> str:
    records = [s.record for s in seen]
    spent = {
        kind: sum(n * us for name, (n, us) in times.ranges.items() if name.startswith(kind))
        for kind in ("dvm::", "aten::")
    }
    left = sum((r.fallbacks for r in records), Counter()).total()
    kernels, inside = sum(r.kernels for r in records), sum(r.fused for r in records)
    ours = sum(r.dvm_seconds for r in records)
    return (
        f"<p>{plural(len(records), 'graph')}, {plural(kernels, 'kernel')} with"
        f" {plural(inside, 'operation')}, {plural(left, 'operation')} left to torch. The first call"
        f" took {first:.2f} s, of which DVM {ours * 1e3:.1f} ms; a later one {times.call:.0f} µs."
        f" With torch's profiler running, kernels take {spent['dvm::']:.0f} µs of a call and"
        f" operators of torch {spent['aten::']:.0f} µs, those in front of and behind the graphs"
        " included.</p>"
    )


def _table(head: Sequence[str], rows: list[Sequence[object]], names: int) -> str:
    """Of cells that are HTML; the first `names` columns are text."""

    def line(cells: Sequence[object], tag: str) -> str:
        named = (f"<{tag}{' class=name' * (i < names)}>{c}</{tag}>" for i, c in enumerate(cells))
        return f"<tr>{''.join(named)}</tr>"

    body = "".join(line(r, "td") for r in rows)
    return f"<div class='wide'><table>{line(head, 'th')}{body}</table></div>"


def _time(times: Times, name: str) -> tuple[str, str, str]:
    """Runs in a call, microseconds of a run, of all runs."""
    if name not in times.ranges:
        return "0", "", ""
    n, us = times.ranges[name]
    return str(n), f"{us:.1f}", f"{n * us:.1f}"


TIMES = ("runs in a call", "µs a run", "µs in all")


def _kernel_table(seen: list[Seen], times: Times) -> str:
    texts: dict[str, set[str]] = {}
    graphs: dict[str, list[str]] = {}
    for s in seen:
        for k in s.program.kernels:
            texts.setdefault(k.name, set()).add(k.source)
            graphs.setdefault(k.name, []).append(s.record.name)
    if not texts:
        return "<p>None.</p>"

    def spent(name: str) -> float:
        n, us = times.ranges.get(f"dvm::{name}", (0, 0.0))
        return n * us

    rows = []
    for name in sorted(texts, key=spent, reverse=True):
        many = len(texts[name])
        note = f" <span class='note'>({many} kernels of this name)</span>" if many > 1 else ""
        where = ", ".join(map(_text, dict.fromkeys(graphs[name])))
        rows.append((_text(name) + note, where, *_time(times, f"dvm::{name}")))
    return _table(("kernel", "graph", *TIMES), rows, 2)


def _torch_table(seen: list[Seen], times: Times) -> str:
    left = sum((s.record.fallbacks for s in seen), Counter())
    if not left:
        return "<p>Nothing.</p>"
    rows = []
    for (op, reason), n in left.most_common():
        packet = "::".join(op.split(".")[:2])
        rows.append((_text(op), _text(reason), n, *_time(times, packet)))
    note = (
        "<p class='note'>Times are those of the operator wherever torch is called for it, for"
        " whatever reason.</p>"
    )
    return _table(("operator", "why", "in the graphs", *TIMES), rows, 2) + note


def _graph(s: Seen, times: Times) -> list[str]:
    r = s.record
    before, after = _before(s), _after(s, times)
    memory = f"{r.planned_bytes} bytes for intermediate values, {r.naive_bytes} with memory of"
    parts = [
        f"<h2>{_text(r.name)}</h2><p>{_text(r)}; {memory} their own.</p>",
        f"<h3>Before: {plural(len(before), 'operation')}</h3>",
        picture.draw(before, f"{r.name}: one operation a box"),
        f"<h3>As it runs: {plural(len(after), 'step')}</h3>",
        picture.draw(after, f"{r.name}: one kernel or operator of torch a box"),
    ]
    for k in s.program.kernels:
        function = r.functions.get(k.name)
        shown = function.kobj.explain() if function is not None else ""
        parts.append(
            f"<details><summary>{_text(k.name)}</summary><pre>{_text(k.source)}</pre>"
            f"<pre>{_text(shown)}</pre></details>"
        )
    program = "\n\n".join([s.program.header, *s.program.calls])
    parts.append(f"<details><summary>The program</summary><pre>{_text(program)}</pre></details>")
    return parts


# ------------------------------------------------------------------------------- the boxes


def _short(node: Node) -> str:
    """aten.mul.Tensor -> mul"""
    words = str(getattr(node.target, "__name__", node.target) if callable(node.target) else "")
    words = str(node.target) if isinstance(node.target, torch._ops.OpOverload) else words
    words = words.removeprefix("aten.").removeprefix("prims.")
    return words.split(".")[0] or node.name


def _what(node: Node) -> str:
    """float32[8, 64]"""
    val = node.meta.get("val")
    if isinstance(val, torch.Tensor):
        return f"{str(val.dtype).removeprefix('torch.')}{[hint(n) for n in val.shape]}"
    return type(val).__name__ if val is not None else ""


def _before(s: Seen) -> list[Box]:
    """Every node that computes or views."""
    boxes: dict[Node, Box] = {}
    for part in s.program.parts:
        for node, kind in part.kinds.items():
            if kind in (Kind.INPUT, Kind.OUTPUT, Kind.SIZE) or is_part(node, part.kinds):
                continue
            kernel = s.inside.get(node)
            where, look = kernel or "a view", s.colour(kernel) if kernel else "view"
            if _by_torch(node, part):
                where, look = f"torch: {part.reasons.get(node) or 'an operator of DVM'}", "torch"
            elif kind is Kind.TORCH:
                where = "stored by a kernel in the memory of its argument"
            reads = (boxes[a].name for a in _sources(node, part.kinds) if a in boxes)
            title = f"{node.name}: {_what(node)}\n{where}"
            name = f"n{len(boxes)}"
            boxes[node] = Box(name, _short(node), title, list(dict.fromkeys(reads)), look)
    return list(boxes.values())


def _by_torch(node: Node, part: Partition) -> bool:
    """Whether torch is called for it; a copy into an argument may be a kernel's store instead."""
    return part.kinds[node] is Kind.TORCH and (node in part.reasons or node in part.attention)


def _sources(node: Node, kinds: dict[Node, Kind]) -> list[Node]:
    """The nodes that are read; parts of a result stand for the whole."""
    return [a.args[0] if is_part(a, kinds) else a for a in node.all_input_nodes]


def _after(s: Seen, times: Times) -> list[Box]:
    """A box for each kernel and each operator of torch, in the order in which they run."""
    boxes: list[Box] = []
    for part in s.program.parts:
        box_of: dict[Node, Box] = {}
        for step in part.steps:
            box = _box(s, part, step, times, f"s{len(boxes)}")
            if box is not None:
                boxes.append(box)
                box_of.update(dict.fromkeys(step.nodes, box))
        # Of a node: the boxes whose results it is, or a view of.
        home: dict[Node, dict[str, None]] = {}
        for node in part.kinds:
            through: dict[str, None] = {}
            for a in node.all_input_nodes:
                through |= home[a]
            home[node] = through
            if node in box_of:
                box = box_of[node]
                box.reads += [n for n in through if n != box.name and n not in box.reads]
                home[node] = {box.name: None}
    return boxes


def _box(s: Seen, part: Partition, step: Step, times: Times, name: str) -> Box | None:
    """None when nothing runs: nobody reads it, or a kernel stores it where it belongs."""
    if not step.region:
        node = step.nodes[0]
        why = f"{node.target}: {_what(node)}\n{part.reasons.get(node, '')}"
        return Box(name, _short(node), why, [], "torch") if _by_torch(node, part) else None
    kernel = next((s.inside[n] for n in step.nodes if n in s.inside), None)
    if kernel is None:
        return None
    inner = plural([part.kinds[n] for n in step.nodes].count(Kind.KERNEL), "operation")
    runs, us, _ = _time(times, f"dvm::{kernel}")
    label = kernel.removeprefix("dvm_")
    return Box(
        name, label, f"{kernel}: {inner}\n{runs} runs in a call, {us} µs each", [], s.colour(kernel)
    )
