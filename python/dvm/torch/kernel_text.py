"""The text of one kernel: a region of the graph as a builder function."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from .fx import DTYPES, Emitter, Val, is_getitem, name_of
from .partition import Kind, Partition, Step
from .reference_text import reference_text
from .symbols import Symbols, is_dense


class KernelText(NamedTuple):
    name: str
    source: str
    nodes: list[Node]  # the graph nodes inside, views included
    fused: list[Node]  # those that compute
    scalars: list[str]  # variables of the call, in front of the loaded tensors
    loads: list[Node]
    outputs: list[Node]
    dynamic: bool
    in_place: bool  # an output is memory that was there before
    symbols: Symbols  # of the graph it belongs to
    moved: dict[Node, Node]  # outputs that are the value of this operand

    @property
    def results(self) -> int:
        return len(self.outputs)

    def reference(self) -> str:
        """The text of a function that computes the same by torch, op by op."""
        scalars = [(name, self.symbols.expression_of(name)) for name in self.scalars]
        return reference_text(
            scalars, self.loads, self.nodes, self.outputs, self.symbols.printed, self.moved
        )


class KnownKernel(NamedTuple):
    """A kernel from a cache: text without a graph."""

    name: str
    source: str
    text: str  # of the reference
    results: int
    dynamic: bool
    in_place: bool

    def reference(self) -> str:
        return self.text


AnyKernel = KernelText | KnownKernel


class KernelWriter:
    """One region: loads, the lines of its nodes, stores."""

    def __init__(
        self,
        part: Partition,
        emitter: Emitter,
        symbols: Symbols,
        step: Step,
        stored: list[Node],
        in_place: bool,
    ):
        self.part = part
        self.kinds = part.kinds
        self.emitter = emitter
        self.symbols = symbols
        self.step = step
        self.stored = stored
        self.in_place = in_place
        self.moved: dict[Node, Node] = {}
        self.inside = set(step.nodes)
        self.loads: dict[str, Node] = {}  # value name -> node that brings it
        self.scalars: dict[str, str] = {}
        self.lines: list[tuple[str, str]] = []
        self.defined: set[str] = set()
        self.seen: set[Node] = set()
        self.doc: list[Node] = []

    def kernel(self, index: int) -> KernelText:
        for node in self._live():
            self._write(node)
        dynamic = bool(self.scalars) or any(
            _is_dynamic(n.meta["val"]) for n in (*self.loads.values(), *self.stored)
        )
        body = [f"{name} = k.scalar({dtype})" for name, dtype in self.scalars.items()]
        for name, node in self.loads.items():
            body += self._load(name, node)
        body += self._computed()
        name = self._name(index)
        source = (
            f'@dvm.kernel(ktype="split", dyn_shape={dynamic})\n'
            f"def {name}(k):\n" + self._docstring() + "".join(f"    {line}\n" for line in body)
        )
        return KernelText(
            name,
            source,
            self.doc,
            [n for n in self.doc if self.kinds[n] is Kind.KERNEL],
            list(self.scalars),
            list(self.loads.values()),
            self.stored,
            dynamic,
            self.in_place,
            self.symbols,
            self.moved,
        )

    def _computed(self) -> list[str]:
        """Each value is stored as soon as it and those of the stores before are there: what comes
        behind may read it back. Stores into arguments come last, whose old contents others read."""
        known, waiting, out = set(self.loads), list(self.stored), []

        def stores() -> Iterator[str]:
            while waiting and self._val(waiting[0]).name in known:
                n = waiting.pop(0)
                yield f"k.store({self._val(n).name}, {DTYPES[n.meta['val'].dtype]})"

        for name, text in self.lines:
            if not self.in_place:
                out += stores()
            out.append(f"{name} = {text}")
            known.add(name)
        return [*out, *stores()]

    def _live(self) -> list[Node]:
        """Nodes of the region that a stored value depends on."""
        live: set[Node] = set()
        stack = list(self.stored)
        while stack:
            node = stack.pop()
            if node in live:
                continue
            live.add(node)
            if node in self.inside or self.kinds[node] is Kind.VIEW:
                stack += self.part.written[node].operands
        return [n for n in self.step.nodes if n in live]

    def _write(self, node: Node) -> None:
        if node in self.seen:
            return
        self.seen.add(node)
        written = self.part.written[node]
        for a in written.operands:
            if a in self.inside or self.kinds[a] is Kind.VIEW:
                self._write(a)
            elif isinstance(self.emitter.vals[a], Val):
                self._loaded(a)
        self.scalars.update(written.scalars)
        for name, text in written.lines:
            if name not in self.defined:
                self.defined.add(name)
                self.lines.append((name, text))
        self.doc.append(node)

    def _loaded(self, node: Node) -> None:
        name = self._val(node).name
        if name not in self.defined:
            self.defined.add(name)
            self.loads[name] = node

    def _val(self, node: Node) -> Val:
        return self.emitter.vals[node]

    def _load(self, name: str, node: Node) -> list[str]:
        fake, value = node.meta["val"], self._val(node)
        shape = [s if isinstance(s, int) else -1 for s in fake.shape]
        dtype = DTYPES[fake.dtype]
        if is_dense(fake):
            text = f"k.load({shape}, {dtype})"
        else:
            stride = [s if isinstance(s, int) else -1 for s in fake.stride()]
            text = f"k.view_load({shape}, {stride}, {dtype})"
        if value.held is not value.dtype:
            text = f"k.cast({text}, {DTYPES[value.held]})"
        return [f"{name} = {text}"]

    def _name(self, index: int) -> str:
        ops: dict[str, None] = {}
        for n in self.doc:
            if self.kinds[n] is Kind.KERNEL and not is_getitem(n):
                ops[name_of(n).split(".")[1].strip("_")] = None
        words = list(ops)
        words = words if len(words) <= 4 else [*words[:3], "etc"]
        return f"dvm_{'_'.join(words)}_{index}"

    def _docstring(self) -> str:
        lines = [f"{describe(n)}\n" for n in self.doc]
        return '    """\n' + "".join(f"    {line}" for line in lines) + '    """\n'


def describe(node: Node) -> str:
    """A node in one line: name, type, op and arguments."""
    val = node.meta.get("val")
    if isinstance(val, (tuple, list)):
        types = ", ".join(_type(v) for v in val)
        kind = f"({types})"
    else:
        kind = _type(val)
    args = list(map(str, node.args))
    if node.kwargs:
        args += [f"{k}={v}" for k, v in node.kwargs.items()]
    target = "getitem" if is_getitem(node) else name_of(node)
    return f"{node.name}: {kind} = {target}({', '.join(args)})"


@functools.cache
def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _type(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        return f"{_short(val.dtype)}[{', '.join(map(str, val.shape))}]"
    return type(val).__name__


def _is_dynamic(fake: torch.Tensor) -> bool:
    return any(not isinstance(s, int) for s in (*fake.shape, *fake.stride()))
