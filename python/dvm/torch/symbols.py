"""Sizes and numbers that are known only when a compiled graph runs.

A graph with dynamic shapes has one artefact for all sizes: every size or number computed from sizes
is an expression over the symbols of the shape environment. Kernel code and call code refer to such
an expression by one variable name; `definitions` gives the lines that compute them. Symbols get
their values from the arguments of the call, or, when they depend on data, from the result of the
node that made them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import sympy
import torch
from torch.fx import Node
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
            text = self._print(solution)
        self._bound.add(symbol)
        return [] if text == str(symbol) else [f"{symbol} = {text}"]

    def definitions(self) -> list[str]:
        """Lines of the named expressions that can be computed by now and were not yet."""
        lines, rest = [], []
        for name, expr in self._lines:
            if expr.free_symbols <= self._bound:
                lines.append(f"{name} = {self._print(expr)}")
            else:
                rest.append((name, expr))
        self._lines = rest
        return lines

    def solved(
        self, numbers: Mapping[str, Any], shapes: Iterable[tuple[Iterable, Iterable[int]]]
    ) -> Callable[[Any], Any]:
        """Numbers of sizes, from named variables and from pairs of symbolic and actual shapes."""
        known = {e: numbers[name] for e, name in self._names.items() if name in numbers}
        for fake, actual in shapes:
            known.update((expression(s), n) for s, n in zip(fake, actual, strict=True))

        def size(value: Any) -> Any:
            if isinstance(value, (int, float)):
                return value
            expr = value.node.expr
            number = known[expr] if expr in known else expr.xreplace(known)
            if isinstance(number, (int, float)):
                return number
            if isinstance(value, torch.SymBool):
                return bool(number)
            return float(number) if isinstance(value, torch.SymFloat) else int(number)

        return size

    def is_bound(self, value: Any) -> bool:
        return value.node.expr.free_symbols <= self._bound

    def _print(self, expr: sympy.Expr) -> str:
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
    from torch.utils._sympy.functions import FloorDiv

    return FloorDiv(source - expr.subs(symbol, 0), slope)
