"""Sizes and numbers that are known only when a compiled graph runs.

A graph with dynamic shapes has one artefact for all sizes: every size or number computed from sizes
is an expression over the symbols of the shape environment. Kernel code and call code refer to such
an expression by one variable name; `definitions` gives the lines that compute them. Symbols get
their values from the arguments of the call, or, when they depend on data, from the result of the
node that made them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import sympy
import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.printers import PythonPrinter


class Symbols:
    def __init__(self) -> None:
        self._names: dict[sympy.Expr, str] = {}
        self._lines: list[tuple[str, sympy.Expr]] = []
        self._serial = 0
        self._bound: set[sympy.Symbol] = set()
        self._printer: PythonPrinter | None = None

    def name(self, value: Any) -> str | int | float:
        """Variable of a SymInt or SymFloat; a number when it is constant."""
        expr = value.node.expr
        if expr.is_number:
            return float(expr) if isinstance(value, torch.SymFloat) else int(expr)
        known = self._names.get(expr)
        if known is None:
            if expr.is_Symbol:
                known = str(expr)
            else:
                known = f"d{self._serial}"
                self._serial += 1
                self._lines.append((known, expr))
            self._names[expr] = known
        return known

    def text(self, value: Any) -> str:
        """The same as Python text."""
        return (
            str(self.name(value))
            if isinstance(value, (torch.SymInt, torch.SymFloat))
            else repr(value)
        )

    def shape_text(self, shape: Iterable) -> str:
        parts = [self.text(s) for s in shape]
        return "(" + ", ".join(parts) + ("," if len(parts) == 1 else "") + ")"

    def sources(self, var: str, fake: Any) -> list[str]:
        """As `bind`, in a recorded program (program.py): symbols that an argument shows."""
        given: list[tuple[Any, str]] = []
        if isinstance(fake, torch.SymFloat):
            given.append((fake, var))
        elif isinstance(fake, torch.SymInt):
            given.append((fake, f"p.number({var})"))
        elif isinstance(fake, torch.Tensor) and fake.layout is torch.strided:
            given += [(s, f"p.size({var}, {i})") for i, s in enumerate(fake.shape)]
            given += [(s, f"p.stride({var}, {i})") for i, s in enumerate(fake.stride())]
        lines = []
        for value, source in given:
            if isinstance(value, (torch.SymInt, torch.SymFloat)):
                symbol = value.node.expr
                if symbol.is_Symbol and symbol not in self._bound:
                    self._bound.add(symbol)
                    lines.append(f"{symbol} = {source}")
        return lines

    def bind(self, var: str, fake: Any) -> list[str]:
        """Lines that give values to the symbols which first appear in this value."""
        if isinstance(fake, (torch.SymInt, torch.SymFloat)):
            return self._bind(fake.node.expr, var)
        lines = []
        if isinstance(fake, torch.Tensor) and not fake.is_sparse:
            for i, s in enumerate(fake.shape):
                if isinstance(s, torch.SymInt):
                    lines += self._bind(s.node.expr, f"{var}.size({i})")
            for i, s in enumerate(fake.stride()):
                if isinstance(s, torch.SymInt):
                    lines += self._bind(s.node.expr, f"{var}.stride({i})")
            s = fake.storage_offset()
            if isinstance(s, torch.SymInt):
                lines += self._bind(s.node.expr, f"{var}.storage_offset()")
        return lines

    def _bind(self, expr: sympy.Expr, source: str) -> list[str]:
        free = expr.free_symbols - self._bound
        if len(free) != 1:
            return []
        (symbol,) = free
        if expr.is_Symbol:
            text = source
        else:
            solution = _solve(expr, symbol, sympy.Symbol(source))
            if solution is None:
                return []
            text = self.printed(solution)
        self._bound.add(symbol)
        return [] if text == str(symbol) else [f"{symbol} = {text}"]

    def definitions(self, recorded: bool = False) -> list[str]:
        """Lines of the named expressions that can be computed by now and were not yet."""
        lines, rest = [], []
        for name, expr in self._lines:
            if expr.free_symbols <= self._bound:
                text = self.printed(expr)
                if recorded:
                    free = ", ".join(sorted(map(str, expr.free_symbols)))
                    text = f"p.expression(lambda {free}: {text}, {free})"
                lines.append(f"{name} = {text}")
            else:
                rest.append((name, expr))
        self._lines = rest
        return lines

    def expression_of(self, name: str) -> sympy.Expr | None:
        """What a variable stands for."""
        return next((e for e, known in self._names.items() if known == name), None)

    def is_bound(self, value: Any) -> bool:
        return value.node.expr.free_symbols <= self._bound

    def printed(self, expr: sympy.Expr) -> str:
        """An expression in Python."""
        if self._printer is None:
            self._printer = PythonPrinter()
        return self._printer.doprint(expr)


def hint(size: Any, default: int = 4096) -> int:
    """A plausible number for a size, for choices that do not change results."""
    if isinstance(size, int):
        return size
    known = getattr(size.node, "hint", None)
    return known if isinstance(known, int) else default


def same_size(a: Any, b: Any) -> bool:
    """Equal as expressions: no guard is made."""
    return expression(a) == expression(b)


def same_shape(a: Sequence, b: Sequence) -> bool:
    """The same of each pair. Shapes compared by == would ask the shape environment, and what it
    answers becomes a guard of the compiled graph."""
    return len(a) == len(b) and all(map(same_size, a, b))


def is_dense(fake: torch.Tensor) -> bool:
    """Row-major, by the very expressions: no guards are made here."""
    expected: Any = 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not same_size(stride, expected):
            return False
        expected = expected * size
    return True


def never_negative(size: Any) -> bool:
    """Whether a size is 0 or more in every call; no guard is made. The shape environment bounds the
    terms of a sum one by one; here a quotient keeps its relation to what it divides, so that what
    fills the last chunk, (n + 63) // 64 * 64 - n, is known not to be negative.
    """
    if isinstance(size, int):
        return size >= 0
    if statically_known_true(size >= 0):
        return True
    least = sum(_least(term) for term in sympy.Add.make_args(sympy.expand(size.node.expr)))
    return least.is_number and bool(least >= 0)


def _least(term: sympy.Expr) -> sympy.Expr:
    """What is at most a term: of a quotient (a - (q - 1)) / q <= a // q <= a / q, else itself."""
    factor, quotient = term.as_coeff_Mul()
    if not isinstance(quotient, FloorDiv):
        return term
    a, divisor = quotient.args
    if not (divisor.is_Integer and divisor > 0):
        return term
    return sympy.expand(factor * (a - (divisor - 1 if factor > 0 else 0)) / divisor)


def expression(size: Any) -> Any:
    return size if isinstance(size, int) else size.node.expr


def nbytes(node: Node) -> int:
    """Bytes of a node's tensor or tensors, by hints."""
    val = node.meta.get("val")
    total = 0
    for t in val if isinstance(val, (tuple, list)) else (val,):
        if isinstance(t, torch.Tensor):
            n = t.element_size()
            for s in t.shape:
                n *= hint(s)
            total += n
    return total


def _solve(expr: sympy.Expr, symbol: sympy.Symbol, source: sympy.Symbol) -> sympy.Expr | None:
    """symbol from source = expr, when expr is linear in it."""
    slope = sympy.diff(expr, symbol)
    if slope.free_symbols or not slope.is_Integer or slope == 0:
        return None
    return FloorDiv(source - expr.subs(symbol, 0), slope)


def is_recordable(graph: Graph) -> bool:
    """Whether every number of the graph follows from what its arguments show.

    Numbers that torch reads back from data, and float expressions, need Python at every call.
    """
    known: set[sympy.Symbol] = set()
    for n in graph.find_nodes(op="placeholder"):
        val = n.meta.get("val")
        if isinstance(val, torch.SymInt) and not isinstance(val.node.hint, int):
            return False  # the size of a jagged dimension is no number
        known |= _given(val)
    for n in graph.nodes:
        val = n.meta.get("val")
        if isinstance(val, torch.SymFloat):
            if not (val.node.expr.is_number or val.node.expr in known):
                return False
        elif isinstance(val, torch.Tensor) and not val._has_symbolic_sizes_strides:
            pass
        elif not all(s.node.expr.free_symbols <= known for s in _numbers(val)):
            return False
        if any(_has_no_form(a) for a in (*n.args, *n.kwargs.values())):
            return False
    return True


def _has_no_form(a: Any) -> bool:
    """A dict or slice with values of the graph: a recorded program cannot hold it."""
    if isinstance(a, dict):
        return any(isinstance(v, (Node, torch.SymInt, dict, slice)) for v in a.values())
    return isinstance(a, slice)


def _numbers(val: Any) -> Iterator[Any]:
    """Symbolic numbers of a value."""
    if isinstance(val, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        yield val
    elif isinstance(val, (tuple, list)):
        for v in val:
            yield from _numbers(v)
    elif isinstance(val, torch.Tensor) and val.layout is torch.strided:
        for s in (*val.shape, *val.stride(), val.storage_offset()):
            if isinstance(s, torch.SymInt):
                yield s


def _given(val: Any) -> set[sympy.Symbol]:
    """Symbols that an argument shows."""
    if isinstance(val, (torch.SymInt, torch.SymFloat)):
        return val.node.expr.free_symbols if val.node.expr.is_Symbol else set()
    found: set[sympy.Symbol] = set()
    if isinstance(val, torch.Tensor) and val.layout is torch.strided:
        for s in (*val.shape, *val.stride()):
            if isinstance(s, torch.SymInt) and s.node.expr.is_Symbol:
                found.add(s.node.expr)
    return found
