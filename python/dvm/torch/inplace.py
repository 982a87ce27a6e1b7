"""Arguments that a graph changes: where a kernel may write them itself.

AOTAutograd computes a new value and copies it into the argument at the end of the graph. When the
value comes from a kernel and nothing reads the old contents later, the kernel's output is the
argument's own memory, and the copy is gone. The engine sees that an output is an input and keeps
the old contents as long as it needs them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from .partition import Kind, Partition
from .symbols import same_shape


class Direct(NamedTuple):
    value: Node
    argument: Node


def direct_stores(graph: Graph, part: Partition) -> dict[Node, Direct]:
    """copy_ nodes that need not run, and what a kernel stores where instead."""
    when = {n: i for i, step in enumerate(part.steps) for n in step.nodes}
    found: dict[Node, Direct] = {}
    for copy in graph.nodes:
        if copy.target is not torch.ops.aten.copy_.default or copy.users:
            continue
        argument, value = copy.args[:2]
        if (
            argument.op == "placeholder"
            and isinstance(value, Node)
            and part.kinds[value] is Kind.KERNEL
            and _alike(argument.meta["val"], value.meta["val"])
            and _read_before(argument, copy, when[value], when, part)
        ):
            found[copy] = Direct(value, argument)
    return found


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype is b.dtype
        and a.device == b.device
        and same_shape(a.shape, b.shape)
        and not a.is_neg()
    )


def _read_before(node: Node, copy: Node, step: int, when: dict[Node, int], part: Partition) -> bool:
    """Whether everything that reads the old contents is done once this step has run."""
    for user in node.users:
        kind = part.kinds[user]
        if user is copy or kind is Kind.OUTPUT:
            continue
        if kind is Kind.KERNEL:
            if when[user] > step:
                return False
        elif kind is Kind.TORCH:
            if when[user] >= step:
                return False
        elif kind is not Kind.VIEW or not _read_before(user, copy, step, when, part):
            return False
    return True
