"""What is kept for backward, and what is computed again: torch's partitioner, told what a kernel
can do.

Its lists name the operators that Inductor's graphs have. Two more kinds are told to it: views,
which cost nothing, and operators whose rows are in one kernel with those that make their operands,
so that the operands need not be in memory.

A layer norm is taken apart: as one node its result would be kept beside its operand, though mean
and deviation of each row are enough to make one of the other. The kernel is the same either way.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from .fx import PRODUCTS, ROWS
from .options import is_disabled

_ATEN = torch.ops.aten
NORM = _ATEN.native_layer_norm.default
DTYPES = torch.float32, torch.float16, torch.bfloat16

# Operators that move elements, and are a part of the kernel that reads them.
MOVES = frozenset(
    f"aten.{name}"
    for name in [
        "constant_pad_nd",
        "embedding",
        "flip",
        "index_select",
        "masked_fill",
        "repeat",
        "roll",
        "tril",
        "triu",
    ]
)
# Operators that torch runs where their rows do not pay: their operands have to be in memory.
NOT_FUSED = frozenset(
    ("aten.scatter", "aten.scatter_add", *(p.rpartition(".")[0] for p in PRODUCTS))
)


_one_at_a_time = threading.RLock()


def partition(
    joint: GraphModule, inputs: Sequence[Any], disabled: frozenset[str], **rest: Any
) -> Any:
    """Forward and backward graph of a joint one, by torch's own choice."""
    from functorch.compile import min_cut_rematerialization_partition

    take_apart(joint.graph, disabled)
    with _told(disabled):
        return min_cut_rematerialization_partition(joint, inputs, **rest)


@contextlib.contextmanager
def _told(disabled: frozenset[str]) -> Iterator[None]:
    """torch's lists and ours, for one partition. A torch that keeps its lists elsewhere has its own
    alone."""
    from torch._functorch import partitioners

    with _one_at_a_time:
        known = getattr(partitioners, "get_default_op_list", None)
        if known is None:
            yield
            return
        partitioners.get_default_op_list = lambda: _lists(known(), disabled)
        try:
            yield
        finally:
            partitioners.get_default_op_list = known


def _lists(torchs: Any, disabled: frozenset[str]) -> Any:
    fused, views, moves = _own(disabled)
    with contextlib.suppress(AttributeError):  # of another torch
        torchs.fusible_ops |= fused
        torchs.view_ops |= views
        torchs.recomputable_ops |= views | moves
    return torchs


@functools.cache
def _own(disabled: frozenset[str]) -> tuple[set, set, set]:
    """Packets of the operators with rows, and those of them that are views, and moves."""
    fused, views, moves = set(), set(), set()
    for name, row in ROWS.items():
        namespace, packet, _ = name.split(".")
        of = getattr(getattr(torch.ops, namespace), packet, None)
        if of is None or f"{namespace}.{packet}" in NOT_FUSED or is_disabled(name, disabled):
            continue
        fused.add(of)
        if row.view:
            views.add(of)
        if f"{namespace}.{packet}" in MOVES:
            moves.add(of)
    return fused, views, moves


def take_apart(graph: Graph, disabled: frozenset[str]) -> None:
    if is_disabled(NORM, disabled):
        return
    for node in graph.find_nodes(op="call_function", target=NORM):
        parts = {user.args[1]: user for user in node.users}
        if 0 in parts and _is_plain(node.args[0], parts[0]):
            _replace(graph, node, parts)


def _is_plain(x: Node, y: Node) -> bool:
    """Of a dtype that kernels compute with, and laid out as the result: operators of torch would
    leave the results of elementwise nodes as their operand lies."""
    a, b = x.meta["val"], y.meta["val"]
    return a.dtype in DTYPES and a.is_contiguous() and b.is_contiguous() and a.device == b.device


class _Writer:
    """Writes nodes in front of one. Those of one shape share a fake tensor."""

    def __init__(self, graph: Graph, like: Node):
        self.graph = graph
        self.meta = {k: v for k, v in like.meta.items() if k not in ("val", "tensor_meta")}

    def __call__(self, op: Callable, val: Any, *args: Any, **kwargs: Any) -> Node:
        node = self.graph.call_function(op, args, kwargs)
        node.meta = {**self.meta, "val": val}
        return node

    def cast(self, x: Node, dtype: torch.dtype, val: Any) -> Node:
        if x.meta["val"].dtype is dtype:
            return x
        return self(torch.ops.prims.convert_element_type.default, val, x, dtype)


def _replace(graph: Graph, norm: Node, parts: dict[int, Node]) -> None:
    """y, mean and 1 / deviation by statistics in float32, as the row of the norm has them."""
    x, normalized, weight, bias, eps = norm.args
    y = parts[0].meta["val"]
    mean, rstd = norm.meta["val"][1:]
    wide, row = (t.to(torch.float32) for t in (y, mean))
    axes = list(range(y.dim() - len(normalized), y.dim()))
    with graph.inserting_before(norm):
        write = _Writer(graph, norm)
        f = write.cast(x, torch.float32, wide)
        both = write(_ATEN.var_mean.correction, (row, row), f, axes, correction=0, keepdim=True)
        variance, mu = (write(operator.getitem, row, both, i) for i in (0, 1))
        r = write(_ATEN.rsqrt.default, row, write(_ATEN.add.Tensor, row, variance, eps))
        v = write(_ATEN.mul.Tensor, wide, write(_ATEN.sub.Tensor, wide, f, mu), r)
        if weight is not None:
            v = write(_ATEN.mul.Tensor, wide, v, weight)
        if bias is not None:
            v = write(_ATEN.add.Tensor, wide, v, bias)
        made = [(v, y), (mu, mean), (r, rstd)]
        for i, (value, val) in enumerate(made):
            if i in parts:
                parts[i].replace_all_uses_with(write.cast(value, val.dtype, val))
    for part in parts.values():
        graph.erase_node(part)
    graph.erase_node(norm)
