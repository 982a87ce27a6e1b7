"""What has been compiled in this process: the run summary."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

log = logging.getLogger("dvm.torch")


@dataclass
class GraphRecord:
    """One compiled graph."""

    name: str  # model__3_forward
    kind: str  # inference, forward, backward
    kernels: int = 0  # kernel objects; the engine may cut each into several launches
    fused: int = 0  # ATen nodes inside kernels
    fallbacks: Counter = field(default_factory=Counter)  # (op, reason) -> count
    # (kernel, error) -> runs that torch did because the engine refused the arguments
    rescued: Counter = field(default_factory=Counter)
    dynamic: bool = False
    dvm_seconds: float = 0.0  # lowering, partition, code generation, building kernels
    source: str = ""  # the generated program
    # Kernel objects by name (dump(), das(), explain()), as long as the compiled graph lives.
    functions: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        left = sum(self.fallbacks.values())
        return (
            f"{self.name}: {self.fused} ops in {self.kernels} kernels, {left} ops by torch,"
            f" {'dynamic' if self.dynamic else 'static'}, {self.dvm_seconds * 1e3:.2f} ms"
        )


@dataclass
class Summary:
    """Totals since the start of the process or the last reset.

    trace_seconds and aot_seconds are torch's part of the first calls, dvm_seconds is ours.
    """

    graphs: list[GraphRecord] = field(default_factory=list)
    trace_seconds: float = 0.0
    aot_seconds: float = 0.0

    @property
    def kernels(self) -> int:
        return sum(g.kernels for g in self.graphs)

    @property
    def fused(self) -> int:
        return sum(g.fused for g in self.graphs)

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
        total: Counter = Counter()
        for g in self.graphs:
            total.update(g.rescued)
        return total

    def __str__(self) -> str:
        lines = [
            f"dvm: {len(self.graphs)} graphs, {self.kernels} kernels, {self.fused} ops fused,"
            f" {sum(self.fallbacks.values())} ops by torch",
            f"dvm: trace {self.trace_seconds:.3f} s, aot {self.aot_seconds:.3f} s,"
            f" dvm {self.dvm_seconds:.4f} s",
        ]
        for (op, reason), n in self.fallbacks.most_common():
            lines.append(f"dvm:   {n} x {op}: {reason}")
        for (kernel, error), n in self.rescued.most_common():
            lines.append(f"dvm:   {n} runs of {kernel} by torch: {error}")
        return "\n".join(lines)


_graphs: list[GraphRecord] = []
_aot_seconds = 0.0
_compile_ids: set[str] = set()
_since = 0.0  # time of the last reset; torch counts compile ids from 0 again after one


def record(graph: GraphRecord) -> None:
    _graphs.append(graph)
    log.info("%s", graph)
    for (op, reason), n in graph.fallbacks.items():
        log.info("  %d x %s: %s", n, op, reason)


def add_aot(seconds: float, compile_id: str | None) -> None:
    global _aot_seconds
    _aot_seconds += seconds
    if compile_id:
        _compile_ids.add(compile_id)


def summary() -> Summary:
    """What the backend has compiled so far in this process."""
    return Summary(list(_graphs), _trace_seconds(), _aot_seconds)


def dvm_seconds() -> float:
    return sum(g.dvm_seconds for g in _graphs)


def reset() -> None:
    global _aot_seconds, _since
    _graphs.clear()
    _compile_ids.clear()
    _aot_seconds = 0.0
    _since = time.time()


def _trace_seconds() -> float:
    """Dynamo's own share of the frames that this backend compiled, from torch's metrics."""
    try:
        from torch._dynamo.utils import get_compilation_metrics

        seconds = 0.0
        for m in get_compilation_metrics():
            ours = m.compile_id in _compile_ids and (m.start_time or 0.0) >= _since
            if ours and m.entire_frame_compile_time_s is not None:
                seconds += m.entire_frame_compile_time_s - (m.backend_compile_time_s or 0.0)
        return seconds
    except (ImportError, AttributeError):
        return 0.0


def setup_logging() -> None:
    """DVM_LOG=1 prints what is compiled; TORCH_LOGS=dvm.torch does the same through torch."""
    level = os.environ.get("DVM_LOG", "").lower()
    if level in ("", "0", "off"):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("[dvm] %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.DEBUG if level in ("2", "debug") else logging.INFO)
    log.propagate = False
