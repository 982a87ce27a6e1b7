"""Sums of gradients that fill different parts of one tensor become the tensor put together.

The gradient of `x[0]`, of `x[:, :n]`, of a chunk, is the gradient of the part among zeros, and
autograd adds those of all parts: q, k and v of one product are three tensors of zeros and two sums.
Where the parts do not overlap, the sum is their concatenation. A zero may change its sign by it.

Only static sizes: nothing is asked of a symbol that would become a guard.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from .options import is_disabled
from .symbols import is_dense

_ATEN = torch.ops.aten


class Part(NamedTuple):
    start: int
    stop: int
    node: Node
    select: bool  # the node lacks the axis


class Placed(NamedTuple):
    dim: int
    parts: tuple[Part, ...]


def put_together(graph: Graph, disabled: frozenset[str]) -> None:
    """Rewrites the sums in place. Does nothing the second time."""
    placed: dict[Node, Placed] = {}
    for node in graph.nodes:
        if node.op == "call_function" and not is_disabled(node.target, disabled):
            p = _placed(node, placed)
            if p is not None:
                placed[node] = p
    for node, p in placed.items():
        inner = all(user in placed for user in node.users)
        if (
            node.target is _ATEN.add.Tensor
            and not inner
            and not is_disabled(_ATEN.cat.default, disabled)
        ):
            _replace(graph, node, p, disabled)
    for node in reversed(placed):
        if not node.users:
            graph.erase_node(node)


def _placed(node: Node, placed: dict[Node, Placed]) -> Placed | None:
    """What the node is, when it is parts among zeros."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or not _is_static(value.shape):
        return None
    if node.target is _ATEN.add.Tensor:
        return _sum(node, placed)
    if node.target is _ATEN.select_backward.default:
        grad, sizes, dim, index = node.args
        if not isinstance(index, int):
            return None
        dim %= len(sizes)
        index %= value.shape[dim]
        return Placed(dim, (Part(index, index + 1, grad, True),))
    if node.target is _ATEN.slice_backward.default:
        grad, sizes, dim, start, stop, step = node.args
        if step != 1 or not isinstance(start, int) or not isinstance(stop, int):
            return None
        dim %= len(sizes)
        start = _bounded(start, value.shape[dim])
        stop = start + grad.meta["val"].shape[dim]
        return Placed(dim, (Part(start, stop, grad, False),))
    return None


def _bounded(start: int, size: int) -> int:
    return max(start + size, 0) if start < 0 else min(start, size)


def _sum(node: Node, placed: dict[Node, Placed]) -> Placed | None:
    if node.kwargs or len(node.args) != 2:
        return None
    both = [placed.get(a) if isinstance(a, Node) else None for a in node.args]
    if both[0] is None or both[1] is None or both[0].dim != both[1].dim:
        return None
    a, b = (arg.meta["val"] for arg in node.args)
    if a.shape != b.shape or a.dtype is not b.dtype:
        return None
    parts = sorted((*both[0].parts, *both[1].parts), key=lambda part: (part.start, part.stop))
    if any(left.stop > right.start for left, right in itertools.pairwise(parts)):
        return None
    return Placed(both[0].dim, tuple(parts))


def _replace(graph: Graph, node: Node, placed: Placed, disabled: frozenset[str]) -> None:
    value, dim = node.meta["val"], placed.dim
    if all(part.select for part in placed.parts) and not is_disabled(_ATEN.stack.default, disabled):
        with graph.inserting_before(node):
            whole = _stacked(graph, value, placed)
        if whole is not None:
            node.replace_all_uses_with(whole)
            return
    with graph.inserting_before(node):
        pieces, at = [], 0
        for part in (*placed.parts, None):
            start = part.start if part else value.shape[dim]
            if start > at:
                pieces.append(_zeros(graph, value, dim, start - at))
            if part is None:
                break
            piece = part.node
            if part.select:
                piece = _call(graph, _ATEN.unsqueeze.default, piece, dim)
            pieces.append(piece)
            at = part.stop
        whole = _call(graph, _ATEN.cat.default, pieces, dim)
    if whole.meta["val"].stride() != value.stride():
        return  # torch's own cat would lay it out in another way
    node.replace_all_uses_with(whole)


def _stacked(graph: Graph, value: torch.Tensor, placed: Placed) -> Node | None:
    """Parts that are one index each as one node, whose value is laid out like `value`: torch's own
    stack is dense where what it stacks is."""
    if not all(is_dense(t) for t in (value, *(part.node.meta["val"] for part in placed.parts))):
        return None
    at = {part.start: part.node for part in placed.parts}
    shape = list(value.shape)
    n = shape.pop(placed.dim)
    zero = _full(graph, value, shape) if len(at) < n else None
    whole = graph.call_function(
        _ATEN.stack.default, ([at.get(i, zero) for i in range(n)], placed.dim)
    )
    whole.meta["val"] = value
    return whole


def _zeros(graph: Graph, like: torch.Tensor, dim: int, length: int) -> Node:
    shape = [*like.shape]
    shape[dim] = length
    return _full(graph, like, shape)


def _full(graph: Graph, like: torch.Tensor, shape: list[int]) -> Node:
    node = graph.call_function(
        _ATEN.full.default, (shape, 0), {"dtype": like.dtype, "device": like.device}
    )
    with like.fake_mode:
        node.meta["val"] = torch.empty(shape, dtype=like.dtype, device=like.device)
    return node


def _call(graph: Graph, target: torch._ops.OpOverload, x: Node | list[Node], dim: int) -> Node:
    node = graph.call_function(target, (x, dim))
    values = [n.meta["val"] for n in x] if isinstance(x, list) else x.meta["val"]
    node.meta["val"] = target(values, dim)
    return node


def _is_static(shape: torch.Size) -> bool:
    return all(type(n) is int for n in shape)
