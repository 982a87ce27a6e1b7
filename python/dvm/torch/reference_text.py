"""What a kernel computes, as text that torch can run op by op: the function that takes over when
the engine refuses arguments, and that option `check` compares with.

    def reference(s0, x, i):
        y = torch.ops.aten.index_select.default(x, 0, i)
        return [y]

Parameters are the kernel's scalars, then its loads. Sizes are read off these. The text is written
with the kernel, which outlives the graph, and compiled when a run is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Node

from .fx import is_getitem, literal, name_of
from .symbols import expression

HEADER = """\
import math
import operator
from math import inf, nan

import torch
from torch import device

"""


EMPTY = "aten.empty.memory_format"
# Whose values kernels make 0, so that comparing has something to compare with.
ZEROED = {
    EMPTY: "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.new_empty.default": "aten.new_zeros.default",
    "aten.new_empty_strided.default": "aten.new_zeros.default",
}


# Between ops stand eager's own strides. A view of them may need a copy where the traced ones, which
# kernels give their results, need none.
COPIED = {
    "aten.view.default": "aten.reshape.default",
    "aten._unsafe_view.default": "aten.reshape.default",
}

# Operators that may stand in the text and not in the graph.
OTHERS = frozenset((EMPTY, *ZEROED.values(), *COPIED.values()))


class NoText(ValueError):
    """A kernel with a value that cannot be written."""


def reference_text(
    scalars: Sequence[tuple[str, Any]],
    loads: Sequence[Node],
    nodes: Sequence[Node],
    outputs: Sequence[Node],
    print_: Callable[[sympy.Expr], str],
    moved: Mapping[Node, Node],
) -> str:
    """`scalars` are pairs of variable and expression; `print_` writes an expression in Python;
    nodes among `moved` have the value of that operand."""
    sizes = dict((e, name) for name, e in scalars)
    for n in loads:
        for i, s in enumerate(n.meta["val"].shape):
            if not isinstance(s, int):
                sizes.setdefault(expression(s), f"{n.name}.size({i})")
    known = {n: n.name for n in loads}
    lines = []
    for node in nodes:
        if node in known:
            continue
        if node in moved:
            known[node] = known[moved[node]]
            continue
        target, kwargs = name_of(node), node.kwargs
        if target in ZEROED:  # in whatever order of strides
            kwargs = {k: v for k, v in kwargs.items() if k != "memory_format"}
        positional = node.args[:2] if target == "aten.new_empty_strided.default" else node.args
        args = [_text(a, known, sizes, print_) for a in positional]
        args += [f"{k}={_text(v, known, sizes, print_)}" for k, v in kwargs.items()]
        target = COPIED.get(target, ZEROED.get(target, target))
        op = "operator.getitem" if is_getitem(node) else f"torch.ops.{target}"
        lines.append(f"    {node.name} = {op}({', '.join(args)})\n")
        known[node] = node.name
    parameters = ", ".join([*(name for name, _ in scalars), *(n.name for n in loads)])
    results = ", ".join(known[n] for n in outputs)
    return f"def reference({parameters}):\n{''.join(lines)}    return [{results}]\n"


_PLAIN = (int, bool, float)


def _text(a: Any, known: dict, sizes: dict, print_: Callable) -> str:
    if isinstance(a, Node):
        return known.get(a) or _text(a.meta["val"], known, sizes, print_)
    if a is None or type(a) in _PLAIN:
        return repr(a)
    if isinstance(a, (list, tuple)):
        parts = [_text(x, known, sizes, print_) for x in a]
        return f"[{', '.join(parts)}]"
    if isinstance(a, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return _size(a, sizes, print_)
    if isinstance(a, torch.Tensor):  # of new_zeros and the like: read for its kind only
        shape = _text(list(a.shape), known, sizes, print_)
        return f"torch.ops.{EMPTY}({shape}, dtype={a.dtype}, device={a.device!r})"
    text = literal(a)
    if text is None:
        raise NoText(f"a {type(a).__name__} among the arguments")
    return text


def _size(value: Any, sizes: dict, print_: Callable) -> str:
    expr = value.node.expr
    if expr in sizes:
        return sizes[expr]
    text = {e: sympy.Symbol(t, integer=e.is_integer) for e, t in sizes.items()}
    expr = expr.xreplace(text)
    left = expr.free_symbols - set(text.values())
    if left:
        raise NoText(f"the value of {', '.join(map(str, left))} is not known to the kernel")
    kind = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}[type(value)]
    return f"{kind}({print_(expr)})"


class Reference:
    """A kernel's function for torch, made from its text at the first call. The text is all it
    holds: a kernel that is kept shall not keep the graph that it was made of."""

    def __init__(self, text: str, missing: str = "") -> None:
        self.text = text
        self.missing = missing

    @classmethod
    def of(cls, write: Callable[[], str]) -> Reference:
        try:
            return cls(write())
        except NoText as why:
            return cls("", str(why))

    def __call__(self, *arguments: Any) -> list[Any]:
        """The kernel's inputs; its outputs may follow, as in a run of it."""
        return self._function(*arguments[: self._function.__code__.co_argcount])

    @functools.cached_property
    def _function(self) -> Callable[..., list[Any]]:
        if self.missing:
            raise NoText(self.missing)
        namespace: dict[str, Any] = {}
        exec(compile(HEADER + self.text, "<dvm reference>", "exec"), namespace)
        return namespace["reference"]
