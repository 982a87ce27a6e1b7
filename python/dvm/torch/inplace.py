"""Tensors that are written where they lie: arguments that a graph changes, and values that nobody
reads any more.

AOTAutograd's graphs change nothing: they compute new values, and copy those that belong into an
argument at the end. Three kinds of nodes write into memory that is there instead.

    direct     a kernel's result is the argument it would be copied into, and the copy is gone. The
               engine sees that an output is an input and keeps old contents as long as needed.
    reused     index_put, scatter and the like of torch run as index_put_ of their first operand.
    pieces     slice_scatter and select_scatter of a kernel write their piece into their operand.

The operand of the last two is dead behind the node, and its memory is the graph's own, or an
argument that the result would be copied into.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from .fx import is_left_to_torch, name_of
from .partition import Kind, Partition, is_part
from .symbols import nbytes, same_shape

# ATen's op of this name and overload has a form that writes its first operand.
WRITES = frozenset(
    f"aten.{name}"
    for name in [
        "index_put.default",
        "index_add.default",
        "index_copy.default",
        "index_fill.int_Scalar",
        "index_fill.int_Tensor",
        "masked_scatter.default",
        "put.default",
        "scatter.src",
        "scatter.value",
        "scatter.reduce",
        "scatter.value_reduce",
        "scatter_add.default",
        "scatter_reduce.two",
    ]
)
PIECES = {
    "aten.slice_scatter.default": torch.ops.aten.slice.Tensor,
    "aten.select_scatter.default": torch.ops.aten.select.int,
}
# Below, a kernel that copies the operand costs less than a call of torch that copies the piece.
WORTH = 1 << 16


class Direct(NamedTuple):
    value: Node
    argument: Node


class Piece(NamedTuple):
    """Nodes of one region, each written into the result of the one before, the first into `base`.
    The kernel writes it, or, where it reads the old contents, torch copies it behind the kernel."""

    base: Node
    nodes: list[Node]
    in_kernel: bool


class Places(NamedTuple):
    direct: dict[Node, Direct]  # copy_ nodes that need not run, and what a kernel stores instead
    gone: set[Node]  # copy_ nodes of what is in its place already
    reused: set[Node]  # TORCH nodes that write their first operand
    pieces: list[Piece]

    @staticmethod
    def none() -> Places:
        return Places({}, set(), set(), [])

    def piece_of(self) -> dict[Node, Piece]:
        return {n: p for p in self.pieces for n in p.nodes}


def places(graph: Graph, part: Partition) -> Places:
    return _Finder(graph, part).found


def called_for(target: str) -> list[str]:
    """The operators that a program may call for one of its graph."""
    if target in WRITES:
        _, name, kind = target.split(".")
        return [target, f"aten.{name}_.{kind}"]
    if target in PIECES:
        return [target, str(PIECES[target]), "aten.copy_.default"]
    return [target]


def writing(target: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """The form of an op of WRITES that writes its first operand."""
    _, name, kind = str(target).split(".")
    return getattr(getattr(torch.ops.aten, name + "_"), kind)


class _Finder:
    def __init__(self, graph: Graph, part: Partition):
        self.kinds = part.kinds
        self.written = part.written
        self.when = {n: i for i, step in enumerate(part.steps) for n in step.nodes}
        self.found = Places.none()
        self.taken: dict[Node, Node] = {}  # node -> what it writes into
        for copy in graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default):
            if not copy.users and copy.args[0].op == "placeholder":
                self._argument(copy)
        stored = {d.value for d in self.found.direct.values()}
        for node in reversed(graph.nodes):
            if node not in self.taken and node not in stored:
                self._value(node)

    def _argument(self, copy: Node) -> None:
        argument, value = copy.args[:2]
        if not isinstance(value, Node) or not _alike(argument, value):
            return
        links = self._links(argument, value, copy)
        if links:
            for link in links:
                self._take(link)
            self.found.gone.add(copy)
        elif self.kinds[value] is Kind.KERNEL and self._done(argument, copy, self.when[value]):
            self.found.direct[copy] = Direct(value, argument)
            base: Node | None = argument
            while base is not None:
                base = self._reused_until(base, copy, self.when[value])

    def _reused_until(self, base: Node, copy: Node, step: int) -> Node | None:
        """What torch makes in the argument's memory before its new contents are stored there."""
        for node in base.users:
            if (
                self.kinds[node] is Kind.TORCH
                and name_of(node) in WRITES
                and self._may_reuse(node, copy)
                and not self._is_returned(node)
                and self._done(node, copy, step)
            ):
                self._take(node)
                return node
        return None

    def _links(self, argument: Node, value: Node, copy: Node) -> list[Node | Piece]:
        """What leads from the argument to the value, each in place of the one before; or nothing.

        None of it may be returned: it would share the argument's memory.
        """
        links: list[Node | Piece] = []
        while value is not argument:
            link = self._link(value, copy)
            if link is None or self._is_returned(value):
                return []
            links.append(link)
            value = _base(link)
        return links

    def _value(self, node: Node) -> None:
        link = self._link(node, None)
        if link is None:
            return
        roots = self._roots(_base(link))
        if len(roots) == 1 and self._is_own(roots[0], self.when[node]):
            self._take(link)

    def _take(self, link: Node | Piece) -> None:
        if isinstance(link, Piece):
            self.found.pieces.append(link)
            self.taken.update(dict.fromkeys(link.nodes, link.base))
        else:
            self.found.reused.add(link)
            self.taken[link] = link.args[0]

    def _is_own(self, node: Node, step: int) -> bool:
        """A tensor that the graph makes before this step, and nothing else holds."""
        while node in self.taken:
            roots = self._roots(self.taken[node])
            if len(roots) != 1:
                return False
            node = roots[0]
        if self.kinds[node] is Kind.KERNEL:
            return not is_part(node, self.kinds) and self.when[node] < step
        target = name_of(node)
        return self.kinds[node] is Kind.TORCH and (is_left_to_torch(target) or target in WRITES)

    # ---------------------------------------------------------------------------- links

    def _link(self, node: Node, copy: Node | None) -> Node | Piece | None:
        """The node, if it may write into its operand; `copy` reads neither any more."""
        kind, target = self.kinds[node], name_of(node)
        if kind is Kind.TORCH and target in WRITES:
            return node if self._may_reuse(node, copy) else None
        return self._piece(node, copy) if kind is Kind.KERNEL and target in PIECES else None

    def _may_reuse(self, node: Node, copy: Node | None) -> bool:
        base, step = node.args[0], self.when[node]
        if not isinstance(base, Node) or not _laid_out_alike(base, node):
            return False
        roots = self._roots(base)
        others = [a for a in node.all_input_nodes if a is not base]
        return (
            not _is_among(base, (node.args[1:], node.kwargs))
            and not any(r in roots for a in others for r in self._roots(a))
            and all(self._done(r, copy, step, node) for r in roots)
        )

    def _piece(self, node: Node, copy: Node | None) -> Piece | None:
        step, nodes = self.when[node], self._chain(node)
        base = nodes[0].args[0]
        if (
            any(self.when.get(u) == step for u in self._readers(node))  # needs all of it
            or (self.when.get(base) == step and self.kinds[base] is Kind.KERNEL)  # made in one pass
            or self.kinds[base] is Kind.VIEW
            or not all(_laid_out_alike(base, n) and _same_dtype(*n.args[:2]) for n in nodes)
            or not self._done(base, copy, step, nodes[0])
        ):
            return None
        if len(nodes) == 1 and not any(
            self.when.get(u) == step for u in self._readers(base) if u is not node
        ):
            return Piece(base, nodes, in_kernel=True)
        nodes = [n for n, m in zip(nodes, [*nodes[1:], None], strict=True) if not _same_part(n, m)]
        sources = [n.args[1] for n in nodes]
        if nbytes(base) < WORTH + 2 * sum(map(nbytes, sources)):
            return None
        # Computed by the kernel, so that no memory is read that another piece may have changed.
        if all(
            self.kinds[r] is Kind.KERNEL and self.when[r] == step and r not in self.taken
            for a in sources
            for r in self._roots(a)
        ):
            return Piece(base, nodes, in_kernel=False)
        return None

    def _chain(self, node: Node) -> list[Node]:
        """Pieces of one region, each in the result of the one before, which nothing outside of the
        region reads."""
        nodes, step = [node], self.when[node]
        while True:
            base = nodes[0].args[0]
            if (
                self.when.get(base) != step
                or name_of(base) not in PIECES
                or any(self.when.get(u) != step for u in self._readers(base))
            ):
                return nodes
            nodes.insert(0, base)

    # -------------------------------------------------------------------------- reading

    def _done(self, node: Node, copy: Node | None, step: int, writer: Node | None = None) -> bool:
        """Whether everything else that reads the contents is done once this step has run."""
        for user in self._users(node):
            kind = self.kinds[user]
            if user is copy or user is writer:
                continue
            if kind is Kind.OUTPUT and node.op == "placeholder":
                continue  # the argument itself is returned, with what it holds in the end
            if kind is Kind.KERNEL:
                if self.when[user] > step or user in self.taken:
                    return False
            elif kind is Kind.TORCH:
                if self.when[user] >= step:
                    return False
                if _may_return_operand(user) and not self._done(user, copy, step, writer):
                    return False
            elif kind is not Kind.VIEW or not self._done(user, copy, step, writer):
                return False
        return True

    def _users(self, node: Node) -> Iterator[Node]:
        """Those that read it, and not its sizes alone."""
        for user in node.users:
            if self.kinds[user] in (Kind.KERNEL, Kind.VIEW):
                if node in self.written[user].operands:
                    yield user
            elif self.kinds[user] is not Kind.SIZE:
                yield user

    def _readers(self, node: Node) -> Iterator[Node]:
        """Users, also of views."""
        for user in self._users(node):
            if self.kinds[user] is Kind.VIEW:
                yield from self._readers(user)
            else:
                yield user

    def _is_returned(self, node: Node) -> bool:
        """It, a view of it, or what may be either, leaves the graph."""
        return any(
            self.kinds[user] is Kind.OUTPUT
            or (
                self.kinds[user] in (Kind.VIEW, Kind.PICK, Kind.TORCH)
                and user.target is not torch.ops.aten.copy_.default
                and (self.kinds[user] is not Kind.TORCH or _may_return_operand(user))
                and self._is_returned(user)
            )
            for user in node.users
        )

    def _roots(self, node: Node) -> list[Node]:
        """The nodes whose memory a value lies in."""
        if self.kinds[node] in (Kind.VIEW, Kind.PICK):
            return [r for a in node.all_input_nodes for r in self._roots(a)]
        return [node]


def _base(link: Node | Piece) -> Node:
    return link.base if isinstance(link, Piece) else link.args[0]


# Functional ops of ATen that may give an operand back. Others of other makers may.
RETURNS = frozenset(
    [
        "native_dropout",
        "dropout",
        "reshape",
        "contiguous",
        "to",
        "lift",
        "positive",
        "resolve_conj",
        "resolve_neg",
    ]
)


def _may_return_operand(node: Node) -> bool:
    parts = name_of(node).split(".")
    return parts[0] not in ("aten", "prims") or parts[1] in RETURNS


def _alike(a: Node, b: Node) -> bool:
    x, y = a.meta.get("val"), b.meta.get("val")
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.dtype is y.dtype
        and x.device == y.device
        and same_shape(x.shape, y.shape)
        and not x.is_neg()
    )


def _laid_out_alike(a: Node, b: Node) -> bool:
    if not _alike(a, b):
        return False
    x, y = a.meta["val"], b.meta["val"]
    return x.layout is y.layout is torch.strided and same_shape(x.stride(), y.stride())


def _same_dtype(a: Node, b: Node) -> bool:
    return a.meta["val"].dtype is b.meta["val"].dtype


def _same_part(a: Node, b: Node | None) -> bool:
    """Whether b writes all that a does."""
    return b is not None and a.target is b.target and a.args[2:] == b.args[2:]


def _is_among(node: Node, values: object) -> bool:
    if isinstance(values, (list, tuple)):
        return any(_is_among(node, v) for v in values)
    if isinstance(values, dict):
        return any(_is_among(node, v) for v in values.values())
    return values is node
