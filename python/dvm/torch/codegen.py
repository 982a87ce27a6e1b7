"""The text of a compiled graph: kernel builders and the function that calls them.

The text is what runs: backend.py executes exactly what is printed here, and output_code.py is the
same text with a main program behind it.
"""

from __future__ import annotations

import math
import operator
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node

from . import flex, program  # noqa: F401 generated code imports program: here it is not timed as compilation
from .call_text import Statement, body
from .fx import (
    MAX_RANK,
    ROWS,
    Emitter,
    Unsupported,
    is_getitem,
    is_left_to_torch,
    is_own_result,
    literal,
    name_of,
)
from .inplace import PIECES, Piece, Places, places, writing
from .kernel_text import AnyKernel, KernelWriter
from .options import Options
from .partition import Kind, Partition, Step, is_part, partition, storage
from .parts import put_together
from .symbols import Symbols, is_recordable

# Higher-order ops that take subgraphs as plain functions.
SUBGRAPH_OPS = frozenset(("invoke_subgraph", "cond", "while_loop"))

HEADER = """\
import math
import operator
from math import inf, nan

import dvm
import torch
from torch import device

from dvm.torch.program import record, shown
from dvm.torch.runtime import check, empty_cpu, empty_strided, unboxed
"""

# Python bindings of torch that are called in place of the operator, at a third of its cost.
BINDINGS = {
    "aten.mm.default": "torch.mm",
    "aten.bmm.default": "torch.bmm",
    "aten.addmm.default": "torch.addmm",
    "aten.baddbmm.default": "torch.baddbmm",
    "aten.view.default": "torch.Tensor.view",
    "aten.permute.default": "torch.permute",
    "aten.t.default": "torch.t",
    "aten.transpose.int": "torch.transpose",
    "aten.unsqueeze.default": "torch.unsqueeze",
    "aten.squeeze.dim": "torch.squeeze",
    "aten.expand.default": "torch.Tensor.expand",
    "aten.select.int": "torch.select",
    "aten.as_strided.default": "torch.as_strided",
}
# Those that can write their result into memory of the program.
INTO = frozenset(
    ("aten.mm.default", "aten.bmm.default", "aten.addmm.default", "aten.baddbmm.default")
)
# Views that do not say so, and those that do not start where their operand does.
VIEWS = frozenset(("aten._unsafe_view.default",))
PLACED_ANEW = frozenset(("aten.as_strided.default",))


_MODULES = {"math": math, "operator": operator, "torch": torch}


class Program(NamedTuple):
    header: str  # imports and the ATen ops that are called
    kernels: list[AnyKernel]
    calls: list[str]  # def call(args) behind those of the subgraphs it calls
    constants: dict[str, Any]  # values that have no text: attributes of the graph
    parts: list[Any]  # Partitions of the graph and its subgraphs, or what cache.py restored

    def source(self) -> str:
        """The text that runs."""
        return "\n\n".join([self.header, *(k.source for k in self.kernels), *self.calls])

    @property
    def call(self) -> str:
        return self.calls[-1]

    @property
    def fused(self) -> int:
        """ATen nodes inside kernels."""
        return sum(p.fused for p in self.parts)

    @property
    def attention(self) -> int:
        """Calls of DVM's attention operators."""
        return sum(len(p.attention) for p in self.parts)

    @property
    def products(self) -> int:
        """Matrix products inside kernels."""
        return sum(p.products for p in self.parts)

    @property
    def fallbacks(self) -> Counter:
        """(op, reason) -> count of nodes left to torch."""
        return sum((p.fallbacks() for p in self.parts), Counter())


def generate(gm: GraphModule, options: Options, refused: dict[Node, str]) -> Program:
    """Lowers a graph and its subgraphs. `refused` holds nodes that the engine could not build."""
    shared = _Shared(options, refused)
    _Writer(gm, "", shared).write()
    lines = [f"{var} = {path}" for var, path in shared.ops.items()]
    header = HEADER + "\n" + "\n".join(lines) + ("\n" if lines else "")
    return Program(header, shared.kernels, shared.calls, shared.constants, shared.parts)


class _Shared:
    """What the texts of a graph and its subgraphs have in common."""

    def __init__(self, options: Options, refused: dict[Node, str]):
        self.options = options
        self.refused = refused
        self.kernels: list[AnyKernel] = []
        self.calls: list[str] = []
        self.constants: dict[str, Any] = {}
        self.parts: list[Partition] = []
        self.ops: dict[str, str] = {}  # variable -> path
        self.subgraphs: dict[int, str] = {}  # id of a GraphModule -> prefix of its text


class _Writer:
    """Writes the call function of one graph and the kernels it needs."""

    def __init__(self, gm: GraphModule, prefix: str, shared: _Shared):
        self.graph = gm.graph
        self.attributes = gm
        self.prefix = prefix
        self.shared = shared
        self.options = shared.options
        self.symbols = Symbols()
        # Recorded as a program, or written as a Python function.
        self.recorded = not shared.options.check and is_recordable(gm.graph)
        if prefix:  # a subgraph; the graph itself is rewritten before the cache is asked
            put_together(gm.graph, shared.options.disable_ops)
        self.emitter = Emitter(self.symbols, shared.options, (n.name for n in gm.graph.nodes))
        self.part = partition(gm.graph, self.emitter, shared.refused)
        self.kinds = self.part.kinds
        self.statements: list[Statement] = []
        self.ready: set[Node] = set()
        self.lent: dict[Node, str] = {}  # views of the program, for operators that only read
        self.locals: dict[str, str] = {}  # constants as values of the program
        # Option `check` runs kernels' nodes again, so it needs the arguments as they were.
        self.places = Places.none() if self.options.check else places(gm.graph, self.part)
        for copy in self._unneeded():
            self.part.reasons.pop(copy)  # not torch's any more
        self.piece_of = self.places.piece_of()
        for node, piece in self.piece_of.items():
            if piece.in_kernel:
                self.part.written[node] = self.emitter.write_moved(node, node.args[1])
        shared.parts.append(self.part)

    # ------------------------------------------------------------------------ the whole

    def write(self) -> None:
        inputs = [n for n in self.graph.nodes if n.op == "placeholder"]
        bound = []
        for n in inputs:
            self.ready.add(n)
        for n in inputs:  # plain symbols first: sizes may be given as arguments of their own
            if not isinstance(n.meta.get("val"), torch.Tensor):
                bound += self._bindings(n)
        for n in inputs:
            bound += self._bindings(n)
        self.statements += bound
        needed, unneeded = self._needed_outside(), self._unneeded()
        for step in self.part.steps:
            if step.region:
                self._run_kernel(step, needed)
            elif step.nodes[0] not in unneeded:
                self._run_torch(step.nodes[0])
        output = next(n for n in self.graph.nodes if n.op == "output")
        returned: list[str] = []
        if isinstance(output.args[0], (tuple, list)):
            alone = self._alone(output)
            text = self._tuple([self._result(a, alone, returned) for a in output.args[0]])
        else:
            text = self._argument(output.args[0], returned)
        names = tuple(returned)
        if self.recorded:
            self.statements.append(Statement(f"p.output({text})"))
            self.shared.calls.append(self._program([n.name for n in inputs]))
        else:
            self.statements.append(Statement(f"return {text}", names, escapes=names))
            self.shared.calls.append(self._call([n.name for n in inputs]))

    def _alone(self, output: Node) -> set[Node]:
        """Values of the program whose memory one result shows, and nobody else sees."""
        if not self.recorded:
            return set()
        results = [a for a in output.args[0] if isinstance(a, Node)]
        shown = Counter(base for a in results for base in set(storage([a], self.kinds)))
        elsewhere = {d.value for d in self.places.direct.values()}.union(self.piece_of)
        return {
            n
            for n, times in shown.items()
            if times == 1
            and n in self.ready
            and n not in elsewhere
            and (self.kinds[n] is Kind.KERNEL or name_of(n) in INTO)
        }

    def _result(self, a: Any, alone: set[Node], returned: list[str]) -> str:
        """A view of memory that no other result shows is a tensor of its own: views of views cost
        one call, and none when they come back to what they began with."""
        base = None
        if isinstance(a, Node) and a not in self.ready and a.op == "call_function":
            base = _viewed(a, self.kinds)
        if base not in alone:
            return self._argument(a, returned)
        view, of = a.meta["val"], base.meta["val"]
        shape, strides = (self.symbols.shape_text(n) for n in (view.shape, view.stride()))
        offset = self.symbols.text(view.storage_offset() - of.storage_offset())
        before = [self.symbols.shape_text(n) for n in (of.shape, of.stride())]
        self._define_sizes()
        returned.append(base.name)
        if [shape, strides, offset] == [*before, "0"]:
            return base.name
        text = f"{a.name} = p.view(shown, {base.name}, {shape}, {strides}, {offset})"
        self.statements.append(Statement(text, (base.name, a.name), views=(base.name,)))
        self.ready.add(a)
        return a.name

    def _call(self, inputs: list[str]) -> str:
        lines = [f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = args"] if inputs else []
        lines += ["args.clear()", *body(inputs, self.statements)]
        return f"def {self.prefix}call(args):\n" + "".join(f"    {line}\n" for line in lines)

    def _program(self, inputs: list[str]) -> str:
        lines = [f"{', '.join(inputs)}{',' if len(inputs) == 1 else ''} = p.inputs({len(inputs)})"]
        lines = (lines if inputs else ["p.inputs(0)"]) + [s.text for s in self.statements]
        return (
            f"def {self.prefix}program(p):\n"
            + "".join(f"    {line}\n" for line in lines)
            + f"\n\n{self.prefix}run = record({self.prefix}program).run\n\n\n"
            f"def {self.prefix}call(args):\n    return {self.prefix}run(args)\n"
        )

    def _unneeded(self) -> set[Node]:
        """copy_ nodes that do not run."""
        return self.places.gone.union(self.places.direct)

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

        unneeded = self._unneeded()
        for node in self.graph.nodes:
            kind = self.kinds[node]
            piece = self.piece_of.get(node)
            if piece is not None:
                if node is piece.nodes[0]:
                    reads(piece.base, -1)
                reads(node.args[1], home[node] if piece.in_kernel else -1)
            elif kind is Kind.KERNEL and not is_part(node, self.kinds):
                for a in self.part.written[node].operands:
                    reads(a, home[node])
            elif kind in (Kind.TORCH, Kind.OUTPUT) and node not in unneeded:
                for a in node.all_input_nodes:
                    reads(a, -1)
        return needed

    # ------------------------------------------------------------------------- kernels

    def _run_kernel(self, step: Step, needed: set[Node]) -> None:
        inside = set(step.nodes)
        pieces = [p for p in self.places.pieces if p.nodes[-1] in inside]
        stored = [n for n in step.nodes if n in needed and n not in self.piece_of]
        direct = [d for d in self.places.direct.values() if d.value in inside]
        placed = [(d.value, d.argument.name) for d in direct]
        placed += [(n, self._place(n, p)) for p in pieces if p.in_kernel for n in p.nodes]
        if stored or placed:
            self._launch(step, stored, placed)
        for p in pieces:
            self._finish(p)

    def _place(self, node: Node, piece: Piece) -> str:
        """Variable of the view that a piece is written to."""
        uses: list[str] = []
        args = [self._argument(piece.base, uses)]
        args += [self._argument(a, uses) for a in node.args[2:]]
        args += [f"{k}={self._argument(v, uses)}" for k, v in node.kwargs.items() if k != "src"]
        op, name = self._op(PIECES[name_of(node)]), self.emitter.fresh(f"{node.name}_at")
        call = f"p.view({op}, " if self.recorded else f"{op}("
        self._define_sizes()
        text = f"{name} = {call}{', '.join(args)})"
        self.statements.append(Statement(text, (*uses, name), views=tuple(uses)))
        return name

    def _finish(self, piece: Piece) -> None:
        """The pieces that the kernel did not write, and the name of the whole."""
        if not piece.in_kernel:
            op = self._op(torch.ops.aten.copy_.default)
            call = f"p.share({op}, " if self.recorded else f"{op}("
            for node in piece.nodes:
                uses = [self._place(node, piece)]
                source = self._argument(node.args[1], uses)
                self.statements.append(Statement(f"{call}{uses[0]}, {source})", tuple(uses)))
        base, name = self._host(piece.base), piece.nodes[-1].name
        self.statements.append(Statement(f"{name} = {base}", (base, name), views=(base,)))
        self.ready.add(piece.nodes[-1])

    def _launch(self, step: Step, stored: list[Node], placed: list[tuple[Node, str]]) -> None:
        """`placed`: values and the variables of the memory that they are written to."""
        values = stored + [n for n, _ in placed]
        writer = KernelWriter(
            self.part, self.emitter, self.symbols, step, values, in_place=bool(placed)
        )
        writer.moved = {n: n.args[1] for n, _ in placed if n in self.piece_of}
        kernel = writer.kernel(len(self.shared.kernels))
        uses: list[str] = []
        arguments = [*kernel.scalars, *(self._argument(n, uses) for n in kernel.loads)]
        allocations = [(n.name, self._allocation(n)) for n in stored]
        self._define_sizes()
        self.statements += [
            Statement(f"{name} = {text}", buffer=text, made=name) for name, text in allocations
        ]
        self.ready.update(stored)
        run = f"p.run({kernel.name}, " if self.recorded else f"{kernel.name}.run("
        outputs = [n.name for n in stored] + [name for _, name in placed]
        call = f"{run}{', '.join(arguments + outputs)})"
        self.statements.append(Statement(call, tuple(uses + outputs)))
        if self.options.check:
            everything = ", ".join([f'"{kernel.name}"', *arguments, *outputs])
            self.statements.append(
                Statement(f"check({kernel.name}_check, {everything})", tuple(uses + outputs))
            )
        self.shared.kernels.append(kernel)

    def _allocation(self, node: Node) -> str:
        fake = node.meta["val"]
        size = self.symbols.shape_text(fake.shape)
        stride = self.symbols.shape_text(fake.stride())
        if self.recorded:
            return f"p.empty({size}, {stride}, {fake.dtype})"
        if fake.device.type == "cpu":
            return f"empty_cpu({size}, {stride}, {fake.dtype})"
        return f"empty_strided({size}, {stride}, dtype={fake.dtype}, device={fake.device!r})"

    def _define_sizes(self) -> None:
        for line in self.symbols.definitions(self.recorded):
            self.statements.append(Statement(line, ()))

    def _bindings(self, node: Node) -> list[Statement]:
        if self.recorded:
            is_input = node.op == "placeholder"
            lines = self.symbols.sources(node.name, node.meta.get("val")) if is_input else []
        else:
            lines = self.symbols.bind(node.name, node.meta.get("val"))
        return [Statement(line, (node.name,)) for line in lines]

    # --------------------------------------------------------------------------- torch

    def _run_torch(self, node: Node) -> None:
        uses: list[str] = []
        if self.recorded and name_of(node) in INTO and node.meta["val"].device.type == "cpu":
            allocation = self._allocation(node)
            text = self._torch_call(node, uses, f", out={node.name}")
            self._define_sizes()
            self.statements += [Statement(f"{node.name} = {allocation}"), Statement(text)]
            self.ready.add(node)
            return
        text = self._torch_call(node, uses)
        self._define_sizes()
        if node.users:
            text = f"{node.name} = {text}"
        names = (*uses, node.name) if node.users else tuple(uses)
        # A library op reads its operands and is done; any other op may keep or return them.
        keeps = () if is_left_to_torch(name_of(node)) else tuple(uses)
        self.statements.append(Statement(text, names, escapes=keeps))
        self.ready.add(node)
        val = node.meta.get("val")
        if isinstance(val, (torch.Tensor, torch.SymInt, torch.SymFloat)):
            self.statements += self._bindings(node)

    def _torch_call(self, node: Node, uses: list[str], more: str = "") -> str:
        if is_getitem(node):
            source, index = (self._argument(a, uses) for a in node.args)
            if self.recorded:
                return f"p.view(operator.getitem, {source}, {index})"
            return f"{source}[{index}]"
        if name_of(node) in SUBGRAPH_OPS:
            return self._subgraph_call(node, uses)
        if name_of(node) in flex.TARGETS:
            text = self._flex_call(node, uses)
            if text:
                return text
        written = [self._argument(node.args[0], uses)] if node in self.places.reused else []
        reads = self.recorded and (written or _verb(node.target) == "call")
        argument = self._read_argument if reads else self._argument
        args = [*written, *(argument(a, uses) for a in node.args[len(written) :])]
        args += [f"{k}={argument(v, uses)}" for k, v in node.kwargs.items()]
        return f"{self._begin_call(node)}{', '.join(args)}{more})"

    def _read_argument(self, a: Any, uses: list[str]) -> str:
        """An argument of an operator that reads it and is done: a view needs no call of torch."""
        if isinstance(a, (list, tuple)):
            parts = [self._read_argument(x, uses) for x in a]
            return self._tuple(parts) if isinstance(a, tuple) else f"[{', '.join(parts)}]"
        if not isinstance(a, Node) or a in self.ready or a.op != "call_function":
            return self._argument(a, uses)
        if a not in self.lent:
            base = _viewed(a, self.kinds)
            if base is None:
                return self._argument(a, uses)
            x = self._host(base)
            if x == base.name:
                uses.append(x)
            view, of = a.meta["val"], base.meta["val"]
            text = ", ".join(
                (
                    self.symbols.shape_text(view.shape),
                    self.symbols.shape_text(view.stride()),
                    self.symbols.text(view.storage_offset() - of.storage_offset()),
                    self.symbols.shape_text(of.stride()),
                )
            )
            self._define_sizes()
            name = self.lent[a] = self.emitter.fresh(a.name)
            self.statements.append(Statement(f"{name} = p.lent({x}, {text})"))
        return self.lent[a]

    def _begin_call(self, node: Node) -> str:
        """The text of a call up to its arguments. A program is told what the op does with them."""
        target, verb = node.target, _verb(node.target)
        if node in self.places.reused:
            target, verb = writing(target), "share"
        op = self._op(target)
        return f"p.{verb}({op}, " if self.recorded else f"{op}("

    def _op(self, target: Any) -> str:
        """A module-level name for what a TORCH node calls."""
        if str(target) in BINDINGS:
            path = BINDINGS[str(target)]
        elif isinstance(target, torch._ops.OpOverload):
            path = f"torch.ops.{target}"
        elif isinstance(target, torch._ops.HigherOrderOperator):
            path = f"torch.ops.higher_order.{target.name()}"
        else:
            module = target.__module__.removeprefix("_")
            path = f"{module}.{target.__qualname__}"
            if getattr(_MODULES.get(module), target.__name__, None) is not target:
                return self._constant(target, "function")
        var = re.sub(r"\W", "_", path.removeprefix("torch.ops."))
        self.shared.ops[var] = path
        return var

    def _flex_call(self, node: Node, uses: list[str]) -> str | None:
        """A call of DVM's attention; None, and the reason kept, when torch runs its own."""
        try:
            call = flex.Call(node, self._attribute, self.options)
        except Unsupported as why:
            self.part.reasons[node] = str(why)
            return None
        self.part.reasons.pop(node, None)
        self.part.attention.append(node)
        name = self._constant(call, f"dvm_{node.target}")
        args = ", ".join(self._argument(a, uses) for a in call.arguments)
        return f"p.call({name}, {args})" if self.recorded else f"{name}({args})"

    def _subgraph_call(self, node: Node, uses: list[str]) -> str:
        """A higher-order op whose subgraphs are compiled like the graph itself, each once."""
        self.part.reasons.pop(node, None)
        if name_of(node) == "invoke_subgraph":
            operands = [self._argument(a, uses) for a in node.args[2:]]
            if self.recorded:
                return f"p.opaque({self._subgraph(node.args[0])}call, [{', '.join(operands)}])"
            return f"{self._subgraph(node.args[0])}call([{', '.join(operands)}])"
        args = []
        for a in node.args:
            is_attribute = isinstance(a, Node) and a.op == "get_attr"
            if is_attribute and isinstance(self._attribute(a), GraphModule):
                args.append(f"unboxed({self._subgraph(a)}call)")
            else:
                args.append(self._argument(a, uses))
        return f"{self._begin_call(node)}{', '.join(args)})"

    def _subgraph(self, node: Node) -> str:
        """Prefix of a subgraph's text, which is written when it is first needed."""
        gm = self._attribute(node)
        known = self.shared.subgraphs.get(id(gm))
        if known is None:
            known = f"subgraph_{len(self.shared.subgraphs)}_"
            self.shared.subgraphs[id(gm)] = known
            _Writer(gm, known, self.shared).write()
        return known

    def _host(self, node: Node) -> str:
        """Variable of a value on torch's side, made now if it is a view or a part."""
        if node in self.ready:
            return node.name
        if node.op == "get_attr":
            value = self._attribute(node)
            known = self._constant(value, f"{self.prefix}{node.name}")
            if not self.recorded or not isinstance(value, torch.Tensor):
                return known
            if known not in self.locals:
                self.locals[known] = f"{node.name}_"
                self.statements.append(Statement(f"{node.name}_ = p.constant({known})"))
            return self.locals[known]
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
        self.statements.append(
            Statement(f"{node.name} = {text}", (*uses, node.name), views=tuple(uses))
        )
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
        text = literal(a)
        return self._constant(a, "object") if text is None else text

    @staticmethod
    def _tuple(parts: Sequence[str]) -> str:
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"

    # ----------------------------------------------------------------------- constants

    def _attribute(self, node: Node) -> Any:
        """The value of a get_attr node."""
        value: Any = self.attributes
        for name in node.target.split("."):
            value = getattr(value, name)
        return value

    def _constant(self, value: Any, name: str) -> str:
        """A global of the program for a value without text."""
        for known, v in self.shared.constants.items():
            if v is value:
                return known
        if name in self.shared.constants:
            name = f"{name}_{len(self.shared.constants)}"
        self.shared.constants[name] = value
        return name


def _viewed(node: Node, kinds: dict[Node, Kind]) -> Node | None:
    """What a node is a view of, through all views between, where sizes, strides and offset tell
    which."""
    base = node
    while kinds[base] in (Kind.VIEW, Kind.PICK) and base.op == "call_function":
        source = base.args[0] if is_getitem(base) else base
        target = source.target
        if not isinstance(target, torch._ops.OpOverload) or str(target) in PLACED_ANEW:
            return None
        if not (target.is_view or str(target) in VIEWS):
            break  # a part of what an operator makes
        base = source.args[0]
        if not isinstance(base, Node):
            return None
    if base is node or kinds[base] is Kind.VIEW:
        return None
    view, of = node.meta.get("val"), base.meta.get("val")
    plain = all(
        isinstance(t, torch.Tensor)
        and t.layout is torch.strided
        and t.device.type == "cpu"
        and t.dtype is of.dtype
        and not (t.is_neg() or t.is_conj())
        and t.dim() <= MAX_RANK
        for t in (view, of)
    )
    return base if plain else None


def _verb(target: Any) -> str:
    """How a program calls an operator, by what it may do with its operands (program.Recorder)."""
    name = str(target)
    if is_left_to_torch(name) or is_own_result(name):
        return "call"
    if getattr(target, "is_view", False) or (name in ROWS and ROWS[name].view):
        return "view"
    # An op of ATen may return an operand without saying so: dropout that is switched off, reshape.
    return "share" if getattr(target, "namespace", "") in ("aten", "prims") else "opaque"
