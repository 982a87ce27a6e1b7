"""Which nodes of a graph become kernels, and in which order everything runs.

Every node gets a kind. KERNEL nodes were written by a row. VIEW nodes were written too, but cost
nothing on either side: they are written again in each kernel that reads them, and run by torch
where torch needs them. TORCH nodes are run by torch. PICK nodes (parts of a result, views that only
torch can express) are bookkeeping between TORCH nodes.

KERNEL nodes are gathered in levels: the level of a node is the number of times the longest path to
it goes from a KERNEL node to TORCH nodes. All KERNEL nodes of one level form one region, which
becomes one kernel object; the engine cuts it into as many kernels as it needs. A region depends
only on TORCH nodes of lower levels, so there are no cycles. TORCH nodes that have effects or draw
random numbers keep their order.

A node whose consumers come much later is moved towards them when that does not keep more memory
alive: in backward graphs this puts recomputed activations next to their use.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from .fx import PRODUCTS, Emitter, Unsupported, Written, is_getitem, name_of
from .symbols import nbytes

# Inputs and outputs of one region; the engine takes 1024.
MAX_ARGUMENTS = 960


class Kind(enum.Enum):
    INPUT = 0  # placeholder, attribute
    KERNEL = 1
    VIEW = 2
    TORCH = 3
    PICK = 4
    SIZE = 5  # a number that follows from the sizes of the arguments
    OUTPUT = 6


class Step(NamedTuple):
    """Nodes of one region, or a single node for torch."""

    region: bool
    nodes: list[Node]


class Partition(NamedTuple):
    kinds: dict[Node, Kind]
    written: dict[Node, Written]
    reasons: dict[Node, str]  # why TORCH nodes are not in a kernel
    steps: list[Step]
    attention: list[Node]  # TORCH nodes that are operators of DVM

    @property
    def fused(self) -> int:
        """Nodes inside kernels."""
        return list(self.kinds.values()).count(Kind.KERNEL)

    @property
    def products(self) -> int:
        """Matrix products inside kernels."""
        inside = (n for n, kind in self.kinds.items() if kind is Kind.KERNEL)
        return sum(name_of(n) in PRODUCTS for n in inside)

    def fallbacks(self) -> Counter:
        """What torch runs, by op and reason. Checks of sizes are not tensor work."""
        return Counter(
            (name_of(n), reason)
            for n, reason in self.reasons.items()
            if not name_of(n).startswith(("aten._assert", "aten.sym_constrain"))
        )


def partition(graph: Graph, emitter: Emitter, refused: dict[Node, str]) -> Partition:
    """Classifies and orders the nodes. `refused` holds nodes that the engine could not build."""
    kinds, written, reasons = _classify(graph, emitter, refused)
    levels = _levels(graph, kinds)
    _sink(graph, kinds, levels)
    own = [n for n, kind in kinds.items() if kind is Kind.TORCH and n not in reasons and is_own(n)]
    return Partition(kinds, written, reasons, list(_steps(graph, kinds, levels)), own)


def _classify(graph: Graph, emitter: Emitter, refused: dict[Node, str]) -> tuple:
    kinds: dict[Node, Kind] = {}
    written: dict[Node, Written] = {}
    reasons: dict[Node, str] = {}
    for node in graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            kinds[node] = Kind.INPUT
            emitter.external(node)
        elif node.op == "output":
            kinds[node] = Kind.OUTPUT
        elif isinstance(node.meta.get("val"), (torch.SymInt, torch.SymFloat, torch.SymBool)):
            kinds[node] = _size_kind(node)
        else:
            try:
                if node in refused:
                    raise Unsupported(refused[node])
                if not is_getitem(node):
                    w = emitter.write(node)
                elif kinds[node.args[0]] in (Kind.KERNEL, Kind.VIEW):
                    w = emitter.write_item(node)
                else:
                    raise Unsupported("")
                written[node] = w
                kinds[node] = Kind.VIEW if w.view else Kind.KERNEL
            except Unsupported as why:
                emitter.external(node)
                if is_getitem(node) or getattr(node.target, "is_view", False):
                    kinds[node] = Kind.PICK
                else:
                    kinds[node] = Kind.TORCH
                    if not is_own(node):
                        reasons[node] = str(why)
    return kinds, written, reasons


def is_own(node: Node) -> bool:
    """An operator of this library that torch calls: attention."""
    return getattr(node.target, "namespace", "") == "dvm"


def is_part(node: Node, kinds: dict[Node, Kind]) -> bool:
    """One of several results of a KERNEL node: lives where that node lives."""
    return is_getitem(node) and kinds[node.args[0]] is Kind.KERNEL


def _size_kind(node: Node) -> Kind:
    """A number: known from the arguments, computed from data read back, or read back here."""
    target = node.target
    if isinstance(target, torch._ops.OpOverload) and not str(target).startswith(
        ("aten.sym_", "aten.size", "aten.stride")
    ):
        return Kind.TORCH
    return Kind.PICK if free_unbacked_symbols(node.meta["val"]) else Kind.SIZE


def has_order(node: Node) -> bool:
    """Effects and random numbers: such nodes keep their order."""
    if node.is_impure():
        return True
    if not isinstance(node.target, torch._ops.OpOverload):
        return isinstance(node.target, torch._ops.HigherOrderOperator)
    if node.target.namespace in ("aten", "prims"):
        return (
            node.target._schema.is_mutable or torch.Tag.nondeterministic_seeded in node.target.tags
        )
    return True


def _mutates(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)  # higher-order ops are functional by now
    return schema is not None and schema.is_mutable


# ------------------------------------------------------------------------------------ levels


def _levels(graph: Graph, kinds: dict[Node, Kind]) -> dict[Node, int]:
    """Level of every KERNEL and TORCH node."""
    levels: dict[Node, int] = {}
    region: dict[Node, int] = {}  # first region that can read the node's value
    host: dict[Node, int] = {}  # level after whose region torch can read it
    ordered = top = floor = 0
    for node in graph.nodes:
        kind = kinds[node]
        if kind in (Kind.INPUT, Kind.SIZE):
            region[node], host[node] = 0, -1
            continue
        if kind is Kind.OUTPUT:
            continue
        r = max((region[a] for a in node.all_input_nodes), default=0)
        h = max((host[a] for a in node.all_input_nodes), default=-1)
        if is_part(node, kinds):
            level = levels[node] = levels[node.args[0]]
            region[node] = host[node] = level
        elif kind is Kind.KERNEL:
            level = max(r, floor)
            region[node] = host[node] = levels[node] = level
        elif kind is Kind.TORCH:
            level = max(h, floor - 1, 0)
            if has_order(node):
                level = max(level, ordered)
                if _mutates(node):
                    # Everything before it must have run, and everything after it runs later.
                    level = max(level, top)
                    floor = level + 1
                ordered = level
            levels[node] = host[node] = level
            region[node] = level + 1
        elif kind is Kind.VIEW:
            region[node], host[node] = r, h
        else:
            region[node], host[node] = h + 1, h
        top = max(top, levels.get(node, 0))
    return levels


def _sink(graph: Graph, kinds: dict[Node, Kind], levels: dict[Node, int]) -> None:
    """Moves nodes to later levels where that does not keep more bytes alive."""
    if not levels or max(levels.values()) == 0:
        return
    limit: dict[Node, tuple[int, int]] = {}  # latest level as a KERNEL node, as a TORCH node
    last: dict[Node, int] = {}  # level of the last reader
    bases: dict[Node, list[Node]] = {}
    far = max(levels.values()) + 1
    barrier = far
    for node in reversed(graph.nodes):
        kind = kinds[node]
        if kind is Kind.OUTPUT:
            for a in node.all_input_nodes:
                limit[a] = (-1, -1)  # returned: stays where it is
            continue
        if kind is Kind.SIZE:
            continue
        late_k, late_t = limit.get(node, (far, far))
        if is_part(node, kinds):
            mine = (late_k, late_t)
        elif kind in (Kind.KERNEL, Kind.TORCH):
            level = levels[node]
            fixed = kind is Kind.TORCH and has_order(node)
            if fixed and _mutates(node):
                barrier = min(barrier, level)
            target = min(late_k if kind is Kind.KERNEL else late_t, barrier)
            if not fixed and target != far and target > level:
                inputs = [a for a in node.all_input_nodes]
                kept = sum(
                    nbytes(b)
                    for b in storage(inputs, kinds, bases)
                    if last.get(b, level) < target and b is not node
                )
                if nbytes(node) >= kept:
                    level = levels[node] = target
            for b in storage(node.all_input_nodes, kinds, bases):
                last[b] = max(last.get(b, -1), level)
            # A KERNEL node reads KERNEL values of its own level, TORCH values of the one before.
            mine = (level, level - 1) if kind is Kind.KERNEL else (level, level)
        elif kind is Kind.VIEW:
            mine = (late_k, late_t)
        else:
            # Its consumer in a kernel needs the value on torch's side, one level earlier.
            mine = (late_t, late_t)
        for a in node.all_input_nodes:
            k, t = limit.get(a, (far, far))
            limit[a] = (min(k, mine[0]), min(t, mine[1]))
    for node in graph.nodes:
        if is_part(node, kinds):
            levels[node] = levels[node.args[0]]


def storage(
    nodes: list[Node], kinds: dict[Node, Kind], memo: dict[Node, list[Node]] | None = None
) -> list[Node]:
    """The nodes whose memory these values live in, looking through views."""
    memo = {} if memo is None else memo
    out: list[Node] = []
    for n in nodes:
        if kinds[n] in (Kind.VIEW, Kind.PICK) or is_part(n, kinds):
            if n not in memo:
                memo[n] = storage(n.all_input_nodes, kinds, memo)
            out += memo[n]
        else:
            out.append(n)
    return out


def _steps(graph: Graph, kinds: dict[Node, Kind], levels: dict[Node, int]) -> Iterator[Step]:
    by_level: dict[int, tuple[list[Node], list[Node]]] = {}
    for node in graph.nodes:
        if node in levels:
            both = by_level.setdefault(levels[node], ([], []))
            both[kinds[node] is Kind.TORCH].append(node)
    for level in sorted(by_level):
        kernels, externs = by_level[level]
        if kernels:
            for part in _chunks(kernels):
                yield Step(True, part)
        for node in externs:
            yield Step(False, [node])


def _chunks(nodes: list[Node]) -> Iterator[list[Node]]:
    """The nodes in parts that stay within the number of arguments of one kernel object."""
    part: list[Node] = []
    seen: set[Node] = set()
    for node in nodes:
        touched = {node, *node.all_input_nodes}
        if part and len(seen | touched) > MAX_ARGUMENTS:
            yield part
            part, seen = [], set()
        part.append(node)
        seen |= touched
    yield part
