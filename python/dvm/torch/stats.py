"""What has been compiled in this process: the run summary."""

from __future__ import annotations

import atexit
import logging
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..arrays import plural
from ..attn import as_torch

log = logging.getLogger("dvm.torch")


@dataclass
class GraphRecord:
    """One compiled graph."""

    name: str  # model__3_forward
    kind: str  # inference, forward, backward
    kernels: int = 0  # kernel objects; the engine may cut each into several launches
    fused: int = 0  # ATen nodes inside kernels
    attention: int = 0  # calls of DVM's attention operators
    products: int = 0  # matrix products inside kernels
    fallbacks: Counter = field(default_factory=Counter)  # (op, reason) -> count
    # (kernel, error) -> runs that torch did because the engine refused the arguments
    rescued: Counter = field(default_factory=Counter)
    dynamic: bool = False
    dvm_seconds: float = 0.0  # lowering, partition, code generation, building kernels
    source: str = ""  # the generated program
    path: str = ""  # its file, output_code.py, when debug files are written
    # Kernel objects by name (dump(), das(), explain()), as long as the compiled graph lives.
    functions: Mapping[str, Any] = field(default_factory=dict)

    # Programs of the graph and its subgraphs (stats()), as long as the compiled graph lives.
    programs: Callable[[], Sequence[Any]] = tuple

    @property
    def planned_bytes(self) -> int:
        """Memory for intermediate values at the newest sizes, as planned."""
        return sum(p.stats()["planned_bytes"] for p in self.programs())

    @property
    def naive_bytes(self) -> int:
        """The same if every value had memory of its own."""
        return sum(p.stats()["naive_bytes"] for p in self.programs())

    def __str__(self) -> str:
        left = sum(self.fallbacks.values())
        return (
            f"{self.name}: {plural(self.fused, 'op')} in {plural(self.kernels, 'kernel')},"
            f"{_products(self.products)}{_attention(self.attention)} {plural(left, 'op')} by torch,"
            f" {'dynamic' if self.dynamic else 'static'}, {self.dvm_seconds * 1e3:.2f} ms"
        )


def _attention(calls: int) -> str:
    return f" {plural(calls, 'attention call')}," if calls else ""


def _products(count: int) -> str:
    return f" {plural(count, 'matrix product')} among them," if count else ""


@dataclass
class Summary:
    """Totals since the start of the process or the last reset.

    trace_seconds and aot_seconds are torch's part of the first calls, dvm_seconds is ours.
    recompiles  function, and the guard that asked for another compilation
    breaks      function, and why its graph ends early
    given_up    function, and why torch runs it without a backend from then on
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    trace_seconds: float = 0.0
    aot_seconds: float = 0.0
    recompiles: list[tuple[str, str]] = field(default_factory=list)
    breaks: list[tuple[str, str]] = field(default_factory=list)
    given_up: list[tuple[str, str]] = field(default_factory=list)
    cache_hits: int = 0
    cache_misses: int = 0
    cache_damaged: int = 0
    # (op, reason) -> runs of attention that torch did because of the numbers in the operands
    attention_by_torch: Counter = field(default_factory=Counter)

    @property
    def kernels(self) -> int:
        return sum(g.kernels for g in self.graphs)

    @property
    def fused(self) -> int:
        return sum(g.fused for g in self.graphs)

    @property
    def attention(self) -> int:
        return sum(g.attention for g in self.graphs)

    @property
    def products(self) -> int:
        return sum(g.products for g in self.graphs)

    @property
    def dvm_seconds(self) -> float:
        return sum(g.dvm_seconds for g in self.graphs)

    @property
    def fallbacks(self) -> Counter:
        total: Counter = Counter()
        for g in self.graphs:
            total.update(g.fallbacks)
        return total

    @property
    def rescued(self) -> Counter:
        total: Counter = Counter(self.attention_by_torch)
        for g in self.graphs:
            total.update(g.rescued)
        return total

    def __str__(self) -> str:
        lines = [
            f"dvm: {plural(len(self.graphs), 'graph')}, {plural(self.kernels, 'kernel')},"
            f" {plural(self.fused, 'op')} fused,"
            f"{_products(self.products)}{_attention(self.attention)}"
            f" {plural(sum(self.fallbacks.values()), 'op')} by torch",
            f"dvm: trace {self.trace_seconds:.3f} s, aot {self.aot_seconds:.3f} s,"
            f" dvm {self.dvm_seconds:.4f} s",
            f"dvm: intermediate values: {sum(g.planned_bytes for g in self.graphs)} bytes planned,"
            f" {sum(g.naive_bytes for g in self.graphs)} with memory of their own",
        ]
        if self.cache_hits or self.cache_misses:
            lines.append(f"dvm: cache: {self.cache_hits} found, {self.cache_misses} not found")
        if self.cache_damaged:
            entries = "entry" if self.cache_damaged == 1 else "entries"
            lines.append(f"dvm: cache: {self.cache_damaged} damaged {entries}, compiled again")
        for (op, reason), n in self.fallbacks.most_common():
            lines.append(f"dvm:   {n} x {op}: {reason}")
        for found, said in (
            (self.recompiles, lambda n: plural(n, "recompile")),
            (self.breaks, lambda n: plural(n, "break")),
            (self.given_up, lambda n: f"{n} given up"),
        ):
            if found:
                lines.append(f"dvm: {said(len(found))}")
            lines += [f"dvm:   {n} x {f}: {why}" for (f, why), n in Counter(found).most_common()]
        for (kernel, error), n in self.rescued.most_common():
            lines.append(f"dvm:   {plural(n, 'run')} of {kernel} by torch: {error}")
        files = [g.path for g in self.graphs if g.path]
        if files:
            lines.append("dvm: generated code:")
        lines += [f"dvm:   {path}" for path in files]
        return "\n".join(lines)


_graphs: list[GraphRecord] = []
_aot_seconds = 0.0
_compile_ids: set[str] = set()
_cache: Counter = Counter()  # graphs found on disk (True) or not, and damaged entries
_since = 0.0  # time of the last reset; torch counts compile ids from 0 again after one


def record(graph: GraphRecord) -> None:
    _graphs.append(graph)
    log.info("%s", graph)
    _code_log().debug("%s\n%s", graph.name, graph.source)
    for (op, reason), n in graph.fallbacks.items():
        log.info("  %d x %s: %s", n, op, reason)


def add_aot(seconds: float, compile_id: str | None) -> None:
    global _aot_seconds
    _aot_seconds += seconds
    if compile_id:
        _compile_ids.add(compile_id)


def summary() -> Summary:
    """What the backend has compiled so far in this process."""
    result = Summary(list(_graphs), aot_seconds=_aot_seconds)
    result.cache_hits, result.cache_misses = _cache[True], _cache[False]
    result.cache_damaged = _cache["damaged"]
    result.attention_by_torch.update(as_torch.by_torch)
    names: dict[str, str] = {}
    for m in _metrics():
        number = m.compile_id.partition("/")[0]
        if m.co_name:  # a function that is given up comes without its name
            file = os.path.basename(m.co_filename or "")
            names[number] = f"{m.co_name} ({file}:{m.co_firstlineno})"
        where = names.get(number, "?")
        if m.entire_frame_compile_time_s is not None and m.compile_id in _compile_ids:
            inside = m.backend_compile_time_s or 0.0
            result.trace_seconds += m.entire_frame_compile_time_s - inside
        guard = _line(re.sub(r"^\d+/\d+: ", "", m.recompile_reason or ""))
        if m.fail_reason:
            reason = _line(m.fail_reason) + (f"; {guard}" if guard else "")
            result.given_up.append((where, reason))
        elif guard:
            result.recompiles.append((where, guard))
        # Beside breaks, torch names the classes of exceptions with which it starts tracing again.
        breaks = (r for r in m.restart_reasons or () if not r.startswith("<class "))
        result.breaks += [(where, _line(r)) for r in breaks]
    return result


def _line(reason: str) -> str:
    """The first line of what torch says, which names the construct or the guard."""
    return reason.strip().partition("\n")[0]


def count_cache(asked: bool, found: bool) -> None:
    if asked:
        _cache[found] += 1


def count_damaged(where: str, error: Exception) -> None:
    """An entry of a cache that is not what was written: it is compiled again."""
    _cache["damaged"] += 1
    log.warning("%s is damaged and left aside: %s: %s", where, type(error).__name__, error)


def dvm_seconds() -> float:
    return sum(g.dvm_seconds for g in _graphs)


def reset() -> None:
    global _aot_seconds, _since
    _graphs.clear()
    _compile_ids.clear()
    _cache.clear()
    as_torch.by_torch.clear()
    _aot_seconds = 0.0
    _since = time.time()


def _metrics() -> list[Any]:
    """What torch measured of the functions that this backend compiled, since the last reset. A
    function keeps its number, the part before the slash, when it is compiled again."""
    try:
        from torch._dynamo.utils import get_compilation_metrics
    except ImportError:
        return []
    ours = {i.partition("/")[0] for i in _compile_ids}
    return [
        m
        for m in get_compilation_metrics()
        if (m.compile_id or "").partition("/")[0] in ours and (m.start_time or 0.0) >= _since
    ]


def _code_log() -> logging.Logger:
    """torch's own artefact for generated code, TORCH_LOGS=output_code. Its handlers are of loggers
    whose names begin with torch."""
    try:
        return torch._logging.getArtifactLogger("torch.dvm", "output_code")
    except (AttributeError, ValueError):
        return log


def setup_logging() -> None:
    """DVM_LOG=1 prints what is compiled, and the summary when the process ends;
    TORCH_LOGS=dvm.torch does the first through torch, TORCH_LOGS=output_code prints the code."""
    level = os.environ.get("DVM_LOG", "").lower()
    if level in ("", "0", "off"):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[dvm] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if level in ("2", "debug") else logging.INFO)
    log.propagate = False
    atexit.register(_last_words)


def _last_words() -> None:
    if _graphs:
        print(summary(), file=sys.stderr)
