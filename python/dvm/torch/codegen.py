"""The text of a compiled graph: kernel builders and the function that calls them.

The text is what runs: backend.py executes exactly what is printed here, and output_code.py is the
same text with a main program behind it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from .fx import DTYPES, Emitter, Val, is_getitem
from .inplace import Direct, direct_stores
from .options import Options
from .partition import Kind, Partition, Step, is_part
from .symbols import Symbols, same_size

HEADER = """\
import math
import operator
from math import inf, nan

import dvm
import torch
from torch import device

from dvm.torch.runtime import check, empty_cpu, empty_strided
"""


_MODULES = {"math": math, "operator": operator, "torch": torch}


class KernelText(NamedTuple):
    name: str
    source: str
    nodes: list[Node]  # the graph nodes inside
    scalars: list[str]  # variables of the call, in front of the loaded tensors
    loads: list[Node]
    outputs: list[Node]
    dynamic: bool
    ops: int  # builder operations without loads and stores


class Program(NamedTuple):
    header: str  # imports and the ATen ops that are called
    kernels: list[KernelText]
    call: str  # def call(args): ...
    constants: dict[str, Any]  # values that have no text: attributes of the graph

    def source(self) -> str:
        """The text that runs."""
        return "\n\n".join([self.header, *(k.source for k in self.kernels), self.call])


def generate(
    graph: Graph,
    part: Partition,
    emitter: Emitter,
    symbols: Symbols,
    options: Options,
    attributes: Any,
) -> Program:
    return _Writer(graph, part, emitter, symbols, options, attributes).program()


class _Statement(NamedTuple):
    text: str
    uses: tuple[str, ...]


class _Writer:
    def __init__(
        self,
        graph: Graph,
        part: Partition,
        emitter: Emitter,
        symbols: Symbols,
        options: Options,
        attributes: Any,
    ):
        self.graph = graph
        self.part = part
        self.kinds = part.kinds
        self.emitter = emitter
        self.symbols = symbols
        self.options = options
        self.attributes = attributes
        self.constants: dict[str, Any] = {}
        self.ops: dict[str, str] = {}
        self.statements: list[_Statement] = []
        self.ready: set[Node] = set()
        self.kernels: list[KernelText] = []
        # Option `check` runs kernels' nodes again, so it needs the arguments as they were.
        self.direct: dict[Node, Direct] = {} if options.check else direct_stores(graph, part)
        for copy in self.direct:
            part.reasons.pop(copy)  # not torch's any more

    # ------------------------------------------------------------------------ the whole

    def program(self) -> Program:
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        for n in self.graph.nodes:
            if n.op == "get_attr":
                self._attribute(n)
        bound = []
        for n in inputs:
            self.ready.add(n)
        for n in inputs:  # plain symbols first: sizes may be given as arguments of their own
            if not isinstance(n.meta.get("val"), torch.Tensor):
                bound += self._bindings(n)
        for n in inputs:
            bound += self._bindings(n)
        self.statements += bound
        needed = self._needed_outside()
        for step in self.part.steps:
            if step.region:
                self._run_kernel(step, needed)
            elif step.nodes[0] not in self.direct:
                self._run_torch(step.nodes[0])
        output = next(n for n in self.graph.nodes if n.op == "output")
        returned: list[str] = []
        text = self._tuple([self._argument(a, returned) for a in output.args[0]])
        self.statements.append(_Statement(f"return {text}", tuple(returned)))
        return Program(
            self._header(), self.kernels, self._call([n.name for n in inputs]), self.constants
        )

    def _header(self) -> str:
        lines = [f"{var} = {path}" for var, path in self.ops.items()]
        return HEADER + "\n" + "\n".join(lines) + ("\n" if lines else "")

    def _call(self, inputs: list[str]) -> str:
        """The call function, with every variable dropped after its last use."""
        last: dict[str, int] = dict.fromkeys(inputs, -1)
        for i, s in enumerate(self.statements):
            for name in s.uses:
                last[name] = i
        drop: dict[int, list[str]] = {}
        for name, i in last.items():
            drop.setdefault(i, []).append(name)
        lines = []
        if inputs:
            lines.append(f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = args")
        lines.append("args.clear()")
        if drop.get(-1):
            lines.append(f"del {', '.join(drop[-1])}")
        for i, s in enumerate(self.statements):
            lines.append(s.text)
            if i in drop and not s.text.startswith("return"):
                lines.append(f"del {', '.join(drop[i])}")
        return "def call(args):\n" + "".join(f"    {line}\n" for line in lines)

    def _needed_outside(self) -> set[Node]:
        """KERNEL nodes whose value is stored."""
        home: dict[Node, int] = {}
        for i, step in enumerate(self.part.steps):
            for n in step.nodes:
                home[n] = i if step.region else -1
        needed: set[Node] = set()

        def reads(node: Node, where: int) -> None:
            """`node` is read in region `where`, or by torch (-1)."""
            kind = self.kinds[node]
            if kind is Kind.KERNEL:
                if is_part(node, self.kinds):
                    if where < 0 or home[node.args[0]] != where:
                        needed.add(node)
                elif where < 0 or home[node] != where:
                    needed.add(node)
            elif kind is Kind.VIEW:
                for a in node.all_input_nodes:
                    reads(a, where)
            elif kind is Kind.PICK:
                for a in node.all_input_nodes:
                    reads(a, -1)

        for node in self.graph.nodes:
            kind = self.kinds[node]
            if kind is Kind.KERNEL and not is_part(node, self.kinds):
                for a in self.part.written[node].operands:
                    reads(a, home[node])
            elif kind in (Kind.TORCH, Kind.OUTPUT) and node not in self.direct:
                for a in node.all_input_nodes:
                    reads(a, -1)
        return needed

    # ------------------------------------------------------------------------- kernels

    def _run_kernel(self, step: Step, needed: set[Node]) -> None:
        stored = [n for n in step.nodes if n in needed]
        direct = [d for d in self.direct.values() if d.value in step.nodes]
        if not stored and not direct:
            return
        values = stored + [d.value for d in direct]
        kernel = _KernelWriter(self, step, values).kernel(len(self.kernels))
        uses: list[str] = []
        arguments = [*kernel.scalars, *(self._argument(n, uses) for n in kernel.loads)]
        allocations = [f"{n.name} = {self._allocation(n)}" for n in stored]
        self._define_sizes()
        self.statements += [_Statement(text, ()) for text in allocations]
        self.ready.update(stored)
        outputs = [n.name for n in stored] + [d.argument.name for d in direct]
        call = f"{kernel.name}.run({', '.join(arguments + outputs)})"
        self.statements.append(_Statement(call, tuple(uses + outputs)))
        if self.options.check:
            everything = ", ".join([f'"{kernel.name}"', *arguments, *outputs])
            self.statements.append(
                _Statement(f"check({kernel.name}_check, {everything})", tuple(uses + outputs))
            )
        self.kernels.append(kernel)

    def _allocation(self, node: Node) -> str:
        fake = node.meta["val"]
        size = self.symbols.shape_text(fake.shape)
        stride = self.symbols.shape_text(fake.stride())
        if fake.device.type == "cpu":
            return f"empty_cpu({size}, {stride}, {fake.dtype})"
        return f"empty_strided({size}, {stride}, dtype={fake.dtype}, device={fake.device!r})"

    def _define_sizes(self) -> None:
        for line in self.symbols.definitions():
            self.statements.append(_Statement(line, ()))

    def _bindings(self, node: Node) -> list[_Statement]:
        lines = self.symbols.bind(node.name, node.meta.get("val"))
        return [_Statement(line, (node.name,)) for line in lines]

    # --------------------------------------------------------------------------- torch

    def _run_torch(self, node: Node) -> None:
        uses: list[str] = []
        text = self._torch_call(node, uses)
        self._define_sizes()
        if node.users:
            text = f"{node.name} = {text}"
        self.statements.append(_Statement(text, (*uses, node.name) if node.users else tuple(uses)))
        self.ready.add(node)
        val = node.meta.get("val")
        if isinstance(val, (torch.Tensor, torch.SymInt, torch.SymFloat)):
            self.statements += self._bindings(node)

    def _torch_call(self, node: Node, uses: list[str]) -> str:
        if is_getitem(node):
            return f"{self._argument(node.args[0], uses)}[{self._argument(node.args[1], uses)}]"
        args = [self._argument(a, uses) for a in node.args]
        args += [f"{k}={self._argument(v, uses)}" for k, v in node.kwargs.items()]
        return f"{self._op(node.target)}({', '.join(args)})"

    def _op(self, target: Any) -> str:
        """A module-level name for what a TORCH node calls."""
        if isinstance(target, torch._ops.OpOverload):
            path = f"torch.ops.{target}"
        elif isinstance(target, torch._ops.HigherOrderOperator):
            path = f"torch.ops.higher_order.{target.name()}"
        else:
            module = target.__module__.removeprefix("_")
            path = f"{module}.{target.__qualname__}"
            if getattr(_MODULES.get(module), target.__name__, None) is not target:
                return self._constant(target, "function")
        var = re.sub(r"\W", "_", path.removeprefix("torch.ops."))
        self.ops[var] = path
        return var

    def _host(self, node: Node) -> str:
        """Variable of a value on torch's side, made now if it is a view or a part."""
        if node in self.ready:
            return node.name
        kind = self.kinds[node]
        if kind is Kind.SIZE:
            val = node.meta["val"]
            if not isinstance(val, torch.SymBool) and self.symbols.is_bound(val):
                text = self.symbols.text(val)
                self._define_sizes()
                return text
        elif kind not in (Kind.VIEW, Kind.PICK):
            raise AssertionError(f"{node} is read before it is computed")
        uses: list[str] = []
        text = self._torch_call(node, uses)
        self._define_sizes()
        self.statements.append(_Statement(f"{node.name} = {text}", (*uses, node.name)))
        self.ready.add(node)
        self.statements += self._bindings(node)
        return node.name

    def _argument(self, a: Any, uses: list[str]) -> str:
        if isinstance(a, Node):
            text = self._host(a)
            if text == a.name and a.op != "get_attr":
                uses.append(text)
            return text
        if isinstance(a, (list, tuple)):
            parts = [self._argument(x, uses) for x in a]
            return self._tuple(parts) if isinstance(a, tuple) else f"[{', '.join(parts)}]"
        if isinstance(a, dict):
            return "{" + ", ".join(f"{k!r}: {self._argument(v, uses)}" for k, v in a.items()) + "}"
        if isinstance(a, slice):
            parts = (self._argument(x, uses) for x in (a.start, a.stop, a.step))
            return f"slice({', '.join(parts)})"
        if isinstance(a, (torch.SymInt, torch.SymFloat)):
            text = self.symbols.text(a)
            self._define_sizes()
            return text
        if a is None or isinstance(a, (bool, int, float, str, complex)):
            return repr(a)
        if isinstance(a, (torch.dtype, torch.layout, torch.memory_format)):
            return str(a)
        if isinstance(a, torch.device):
            return repr(a)
        return self._constant(a, "object")

    @staticmethod
    def _tuple(parts: Sequence[str]) -> str:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    # ----------------------------------------------------------------------- constants

    def _attribute(self, node: Node) -> None:
        value = self.attributes
        for name in node.target.split("."):
            value = getattr(value, name)
        self.constants[node.name] = value
        self.ready.add(node)

    def _constant(self, value: Any, kind: str) -> str:
        for name, known in self.constants.items():
            if known is value:
                return name
        name = f"{kind}_{len(self.constants)}"
        self.constants[name] = value
        return name


class _KernelWriter:
    """One region: loads, the lines of its nodes, stores."""

    def __init__(self, writer: _Writer, step: Step, stored: list[Node]):
        self.w = writer
        self.step = step
        self.stored = stored
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
        body += [f"{name} = {text}" for name, text in self.lines]
        body += [
            f"k.store({self._val(n).name}, {DTYPES[n.meta['val'].dtype]})" for n in self.stored
        ]
        name = self._name(index)
        source = (
            f'@dvm.kernel(ktype="split", dyn_shape={dynamic})\n'
            f"def {name}(k):\n" + self._docstring() + "".join(f"    {line}\n" for line in body)
        )
        return KernelText(
            name,
            source,
            self.doc,
            list(self.scalars),
            list(self.loads.values()),
            self.stored,
            dynamic,
            len(self.lines),
        )

    def _live(self) -> list[Node]:
        """Nodes of the region that a stored value depends on."""
        live: set[Node] = set()
        stack = list(self.stored)
        while stack:
            node = stack.pop()
            if node in live:
                continue
            live.add(node)
            if node in self.inside or self.w.kinds[node] is Kind.VIEW:
                stack += self.w.part.written[node].operands
        return [n for n in self.step.nodes if n in live]

    def _write(self, node: Node) -> None:
        if node in self.seen:
            return
        self.seen.add(node)
        written = self.w.part.written[node]
        for a in written.operands:
            if a in self.inside or self.w.kinds[a] is Kind.VIEW:
                self._write(a)
            elif isinstance(self.w.emitter.vals[a], Val):
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
        return self.w.emitter.vals[node]

    def _load(self, name: str, node: Node) -> list[str]:
        fake, value = node.meta["val"], self._val(node)
        shape = [s if isinstance(s, int) else -1 for s in fake.shape]
        dtype = DTYPES[fake.dtype]
        if _is_dense(fake):
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
            if self.w.kinds[n] is Kind.KERNEL and not is_getitem(n):
                ops[str(n.target).split(".")[1].strip("_")] = None
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
    args = [str(a) for a in node.args] + [f"{k}={v}" for k, v in node.kwargs.items()]
    target = "getitem" if is_getitem(node) else str(node.target)
    return f"{node.name}: {kind} = {target}({', '.join(args)})"


def _type(val: Any) -> str:
    if isinstance(val, torch.Tensor):
        dims = ", ".join(map(str, val.shape))
        return f"{str(val.dtype).removeprefix('torch.')}[{dims}]"
    return type(val).__name__


def _is_dynamic(fake: torch.Tensor) -> bool:
    return any(not isinstance(s, int) for s in (*fake.shape, *fake.stride()))


def _is_dense(fake: torch.Tensor) -> bool:
    """Row-major, by the very expressions: no guards are made here."""
    expected: Any = 1
    for size, stride in zip(reversed(fake.shape), reversed(fake.stride()), strict=True):
        if isinstance(size, int) and size == 1:
            continue
        if not same_size(stride, expected):
            return False
        expected = expected * size
    return True
