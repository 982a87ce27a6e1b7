"""flex_attention: its functions of scores as kernels that run inside the tiles of attention.

torch hands score_mod and mask_mod over as graphs of single numbers: (score, b, h, q, kv, captured
values). Each is traced again over a tile, a matrix of scores with a vector of row numbers and one
of key numbers, and lowered by the same rows as any graph. The engine must make one elementwise
kernel of it, whose machine code the library then calls on every tile (include/dvm/flex.h). Captured
tensors are read at computed places. What cannot be done so raises Unsupported, and torch runs its
own.

The backward makes three kernels: the scores again, the gradient of the product, and, for captured
tensors, what is to be added to their gradients and where.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import _dvm
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

import dvm

from . import decomp
from .flex_range import located
from .fx import Emitter, Scalar, Unsupported, name_of
from .kernel_text import KernelWriter
from .options import Options, is_disabled
from .partition import Kind, partition
from .runtime import count_rescue
from .symbols import Symbols, hint

TARGETS = frozenset(("flex_attention", "flex_attention_backward"))

# dvm/flex.h
ROWS, KEYS, PITCH = 96, 128, 144
SCORE, SCALE, BATCH, HEAD, QUERY, KEY, GRAD, OTHER = range(8)
MOST_OTHERS = 48

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def allow_gradients() -> None:
    """torch refuses flex_attention of CPU tensors that need gradients before any backend is asked.
    From here on it refuses that in eager mode only; a backend that has no gradients says so.
    """
    import torch.nn.attention.flex_attention as module

    refuse = getattr(module, "_validate_device", None)
    if refuse is None or refuse is _validate_device:
        return
    _refuse.append(refuse)
    module._validate_device = _validate_device


_refuse: list[Callable] = []


def _validate_device(query: Tensor, key: Tensor, value: Tensor) -> None:
    if not (torch.compiler.is_compiling() and query.device.type == "cpu"):
        _refuse[0](query, key, value)


# ------------------------------------------------------------------------- functions of a tile


class _TileEmitter(Emitter):
    """Remembers the sizes that the kernel takes as numbers."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.numbers: dict[str, Any] = {}

    def scalar(self, value: Any) -> Scalar | int | float:
        s = super().scalar(value)
        if isinstance(s, Scalar):
            self.numbers[s.name] = value
        return s


class Function(NamedTuple):
    """A kernel over a tile, its inputs by role, and which captured value stands where."""

    kernel: Any  # _dvm.Kernel
    roles: tuple[int, ...]
    # for inputs of role OTHER: position among the captured values, or a size
    others: tuple[Any, ...]

    def bound(self, captured: Sequence[Any], numbers: dict[str, Any]) -> tuple[Any, ...]:
        values = [
            None if o is None else captured[o] if isinstance(o, int) else numbers[o]
            for o in self.others
        ]
        return self.kernel, self.roles, tuple(values)


@functools.lru_cache(maxsize=512)
def _kernel(source: str, name: str) -> Any:
    """Equal texts are one kernel: layers that are alike build nothing."""
    namespace: dict[str, Any] = {"dvm": dvm, "inf": math.inf, "nan": math.nan}
    exec(compile(source, f"<dvm {name}>", "exec"), namespace)
    return namespace[name].run.__self__


def _tile_inputs() -> list[Tensor]:
    """In the order of the roles."""
    number = functools.partial(torch.zeros, (), dtype=torch.int32)
    return [
        torch.empty_strided((ROWS, KEYS), (PITCH, 1)),
        torch.ones(()),
        number(),
        number(),
        torch.empty(ROWS, dtype=torch.int32),
        torch.empty(KEYS, dtype=torch.int32),
        torch.empty_strided((ROWS, KEYS), (PITCH, 1)),
    ]


class Lowering:
    """What the functions of one node have in common."""

    def __init__(self, captured: Sequence[Any], options: Options):
        self.captured = list(captured)  # fake tensors and sizes
        self.options = options
        self.numbers: dict[str, Any] = {}  # sizes that kernels take
        self.mode = torch._guards.detect_fake_mode(
            [c for c in captured if isinstance(c, Tensor)] or None
        )

    def function(self, f: Callable, outputs: int) -> Function:
        """f(score, scale, b, h, q, kv, grad, *captured) over a tile as a kernel."""
        with self.mode, torch.no_grad():
            args = [*_tile_inputs(), *self.captured]
            gm = make_fx(f, decomposition_table=decomp.table())(*args)
        _plain_numbers(gm)
        _read_in_place(gm)
        gm.graph.eliminate_dead_code()
        fn = self._lower(gm)
        probe = fn.bound(
            [_like(c) for c in self.captured], {n: hint(v) for n, v in self.numbers.items()}
        )
        try:
            _dvm.flex_check(probe, outputs)
        except dvm.Error as error:
            raise Unsupported(f"engine: {error}") from None
        return fn

    def _lower(self, gm: GraphModule) -> Function:
        symbols = Symbols()
        emitter = _TileEmitter(symbols, self.options, (n.name for n in gm.graph.nodes))
        part = partition(gm.graph, emitter, {})
        for node, reason in part.reasons.items():
            raise Unsupported(f"{node.target} in a function of scores: {reason}")
        if gm.graph.find_nodes(op="get_attr"):
            raise Unsupported("a tensor made inside a function of scores")
        stored = list(gm.graph.output_node().args[0])
        steps = [s for s in part.steps if s.region]
        if len(steps) != 1 or any(part.kinds.get(n) is not Kind.KERNEL for n in stored):
            raise Unsupported("a function of scores that is no kernel")
        text = KernelWriter(part, emitter, symbols, steps[0], stored, False).kernel(0)
        try:
            kernel = _kernel(text.source, text.name)
        except dvm.Error as error:
            raise Unsupported(f"engine: {error}") from None
        order = {n: i for i, n in enumerate(gm.graph.find_nodes(op="placeholder"))}
        roles, others = [OTHER] * len(text.scalars), list(text.scalars)
        for n in text.loads:
            at = order[n]
            roles.append(min(at, OTHER))
            others.append(at - OTHER if at >= OTHER else None)
        self.numbers.update(emitter.numbers)
        return Function(kernel, tuple(roles), tuple(others))


def _plain_numbers(gm: GraphModule) -> None:
    """Numbers that tracing or vmap made tensors of, as numbers again."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default):
        if not isinstance(node.args[0], Node):
            number = node.meta["val"].dtype.is_floating_point
            node.replace_all_uses_with((float if number else int)(node.args[0]))
    for node in gm.graph.find_nodes(op="get_attr"):
        value = getattr(gm, node.target)
        if isinstance(value, Tensor) and type(value) is Tensor and not value.dim():
            with gm.graph.inserting_before(node), unset_fake_temporarily():
                args, kw = ([], value.item()), {"dtype": value.dtype, "device": value.device}
                number = gm.graph.call_function(torch.ops.aten.full.default, args, kw)
            number.meta["val"] = node.meta["val"]
            node.replace_all_uses_with(number)


def _permutation(node: Any) -> list[int] | None:
    """Axes of the operand in the order of the result, where the node only reorders them."""
    if not isinstance(node, Node) or node.op != "call_function":
        return None
    rank, name = node.meta["val"].dim(), name_of(node)
    order = list(range(rank))
    if name == "aten.t.default":
        return order[::-1]
    if name == "aten.transpose.int":
        a, b = node.args[1] % rank, node.args[2] % rank
        order[a], order[b] = b, a
        return order
    return [d % rank for d in node.args[1]] if name == "aten.permute.default" else None


def _read_in_place(gm: GraphModule) -> None:
    """Elements of a tensor with its axes reordered are read where it lies."""
    for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.index.Tensor):
        source, places = node.args
        order = _permutation(source)
        if order is None or len(places) != len(order) or None in places:
            continue
        moved = dict(zip(order, places, strict=True))
        node.args = (source.args[0], [moved[d] for d in range(len(order))])


def _like(c: Any) -> Any:
    """A value of plausible size; its elements are never looked at."""
    if not isinstance(c, Tensor):
        return hint(c)
    with unset_fake_temporarily():
        size, stride = ([hint(s) for s in x] for x in (c.shape, c.stride()))
        return torch.empty_strided(size, stride, dtype=c.dtype)


def _over_tile(graph: Callable, batched: Sequence[int], count: int) -> Callable:
    """A function of single numbers over a tile. batched: arguments that are matrices; b, h, q, kv
    come behind the first (scores) or are the first four (masks)."""
    first = 1 if batched else 0
    dims = [0 if i in batched else None for i in range(count)]
    rows, keys = list(dims), list(dims)
    rows[first + 2] = 0
    keys[first + 3] = 0
    inner = torch.vmap(graph, in_dims=tuple(keys))
    return torch.vmap(inner, in_dims=tuple(rows))


def is_identity(gm: GraphModule) -> bool:
    """score_mod gives the score."""
    first = next(iter(gm.graph.nodes))
    return _result(gm) is first


def is_everything(gm: GraphModule) -> bool:
    """mask_mod is true everywhere: what torch makes when there is none."""
    node = _result(gm)
    if not isinstance(node, Node) or node.op != "call_function":
        return False
    name, args = name_of(node), node.args
    value = {"aten.new_ones.default": 1, "aten.ones.default": 1}.get(name)
    if name in ("aten.full.default", "aten.new_full.default"):
        value = args[-1]
    return value in (1, True) and not isinstance(value, Node)


def _result(gm: GraphModule) -> Any:
    out = gm.graph.output_node().args[0]
    return out[0] if isinstance(out, (tuple, list)) else out


def _addends(node: Node) -> list[tuple[Node, list[Node]]]:
    """A captured gradient as values and their places, by axis."""
    name = name_of(node)
    if name == "flex_lib.zeros_and_scatter.default":
        shape, places, value = node.args
        if len(shape) != len(places) or value.meta["val"].dim():
            raise Unsupported("gradient of a captured tensor that is read in slices")
        return [(value, list(places))]
    if not node.meta["val"].dim():
        return [(node, [])]
    order = _permutation(node)
    if order is not None:
        return [(v, [p[d] for d in order] if p else p) for v, p in _addends(node.args[0])]
    if name == "aten.add.Tensor" and not node.kwargs:
        return [a for n in node.args for a in _addends(n)]
    raise Unsupported(f"gradient of a captured tensor through {name}")


def _selected(gm: GraphModule, outputs: Sequence[Node]) -> GraphModule:
    """The graph with other outputs."""
    graph, env = Graph(), {}
    for node in gm.graph.nodes:
        if node.op != "output":
            env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(env[n] for n in outputs))
    graph.eliminate_dead_code()
    return GraphModule(gm, graph)


def _place(places: Sequence[Tensor], shape: Sequence[Any]) -> Tensor:
    """Places by axis as one number in a dense tensor."""
    at: Any = torch.zeros((), dtype=torch.int64)
    for i, size in zip(places, shape, strict=True):
        i = i.to(torch.int64)
        at = at * size + torch.where(i < 0, i + size, i)
    return at


# ------------------------------------------------------------------------------------- a node


class Mods(NamedTuple):
    """The graphs of a node and how many captured values each takes, score_mod's first."""

    score: GraphModule
    mask: GraphModule
    nscore: int
    nmask: int

    def _scores(self, raw: Tensor, scale: Tensor, place: Sequence[Tensor], others: Sequence) -> Any:
        score = raw * scale
        if not is_identity(self.score):
            f = _over_tile(self.score, (0,), 5 + self.nscore)
            score = f(score, *place, *others[: self.nscore])
        return score.to(torch.float32)

    def full(self, raw, scale, b, h, q, kv, grad, *others):  # type: ignore[no-untyped-def]
        score = self._scores(raw, scale, (b, h, q, kv), others)
        return (_as_kernel(score, kv) if 0 in score.stride() else score,)

    def part(self, raw, scale, b, h, q, kv, grad, *others):  # type: ignore[no-untyped-def]
        score = self._scores(raw, scale, (b, h, q, kv), others)
        mask = _over_tile(self.mask, (), 4 + self.nmask)
        seen = mask(b, h, q, kv, *others[self.nscore :])
        return (torch.where(seen, score, -math.inf),)


def _as_kernel(tile: Tensor, kv: Tensor) -> Tensor:
    """A value that does not vary over the tile, made to be computed on it."""
    return torch.where(kv >= 0, tile, 0)


class Gradient(NamedTuple):
    joint: GraphModule
    mods: Mods

    def is_direct(self) -> bool:
        placeholders = self.joint.graph.find_nodes(op="placeholder")
        return self.joint.graph.output_node().args[0][0] is placeholders[5]

    def _run(self, outputs: Sequence[Node], score: Any, place: Any, grad: Any, others: Any) -> Any:
        n = self.mods.nscore
        f = _over_tile(_selected(self.joint, outputs), (0, 5), 6 + n)
        return f(score, *place, grad, *others[:n])

    def scores(self, raw, scale, b, h, q, kv, grad, *others):  # type: ignore[no-untyped-def]
        out = self.joint.graph.output_node().args[0]
        if out[0] is None:
            return (_as_kernel(torch.zeros(ROWS, KEYS), kv),)
        (ds,) = self._run(out[:1], raw * scale, (b, h, q, kv), grad, others)
        ds = ds.to(torch.float32)
        return (_as_kernel(ds, kv) if 0 in ds.stride() else ds,)

    def captured(self, raw, scale, b, h, q, kv, grad, *others):  # type: ignore[no-untyped-def]
        result = []
        for at, (value, places) in self.addends():
            tile = self._run((value, *places), raw * scale, (b, h, q, kv), grad, others)
            where = _place(tile[1:], others[at].shape).expand(ROWS, KEYS)
            result += [_as_kernel(tile[0].to(torch.float32), kv), _as_kernel(where, kv)]
        return tuple(result)

    def addends(self) -> list[tuple[int, tuple[Node, list[Node]]]]:
        """Position of the captured tensor, value and places."""
        out = self.joint.graph.output_node().args[0][5:]
        return [(i, a) for i, g in enumerate(out) if g is not None for a in _addends(g)]


class Call:
    """A flex_attention node, or its backward, as the program calls it: tensors by position, then
    captured values, then sizes."""

    def __init__(self, node: Node, attribute: Callable[[Node], Any], options: Options):
        if is_disabled(name_of(node), options.disable_ops):
            raise Unsupported("switched off")
        self.stock = node.target
        self.backward = name_of(node) == "flex_attention_backward"
        a = node.args
        blocks, self.scale, self.kernel_options = (
            (a[9], a[10], a[11]) if self.backward else (a[4], a[5], a[6])
        )
        score, mask = (list(x) for x in (*a[12 if self.backward else 7 :], (), ())[:2])
        _check(node, blocks, self.scale)
        self.graphs = [attribute(g) for g in (a[7:9] if self.backward else a[3:4])]
        self.mask = attribute(blocks[-1])
        self.nblocks = len(blocks) - 1  # without the function
        self.nscore = len(score)
        self.arguments = [*(a[:7] if self.backward else a[:3]), *blocks[:-1], *score, *mask]
        self.fixed = 7 if self.backward else 3
        self.order = [_fill_order(x.meta["val"]) for x in a[:3]]
        captured = [c.meta["val"] if isinstance(c, Node) else c for c in (*score, *mask)]
        if len(captured) > MOST_OTHERS:
            raise Unsupported(f"more than {MOST_OTHERS} captured values")
        lowering = Lowering([*captured, a[0].meta["val"]], options)
        lowering.captured.pop()
        self._lower(lowering, len(mask))
        self.names = list(lowering.numbers)
        self.arguments += lowering.numbers.values()
        self.rescued: Counter = Counter()

    def _lower(self, lowering: Lowering, nmask: int) -> None:
        mods = Mods(self.graphs[0], self.mask, self.nscore, nmask)
        plain = is_identity(self.graphs[0])
        self.full = None if plain else lowering.function(mods.full, 1)
        self.part = self.full
        if not is_everything(self.mask):
            self.part = lowering.function(mods.part, 1)
        if not self.backward:
            return
        gradient = Gradient(self.graphs[1], mods)
        # An addend to the score leaves its gradient as it is.
        direct = plain or gradient.is_direct()
        self.grad = None if direct else lowering.function(gradient.scores, 1)
        addends = gradient.addends()
        self.targets = tuple(at for at, _ in addends)
        self.add = None
        if addends:
            self.add = lowering.function(gradient.captured, 2 * len(addends))

    # ------------------------------------------------------------------------------ running

    def __call__(self, *args: Any) -> Any:
        tensors, rest = args[: self.fixed], args[self.fixed :]
        end = len(rest) - len(self.names)
        blocks, others = rest[: self.nblocks], rest[self.nblocks : end]
        numbers = dict(zip(self.names, rest[end:], strict=True))
        try:
            run = self._backward if self.backward else self._forward
            return run(tensors, blocks, others, numbers)
        except _dvm.UnsupportedError as error:
            count_rescue(self.rescued, str(self.stock), error)
            return self._torchs(tensors, blocks, others)
        except _dvm.OutOfRangeError as error:
            raise located(
                error,
                (self.graphs[0], self.mask),
                (others[: self.nscore], others[self.nscore :]),
                tensors[0].shape,
                tensors[1].shape[2],
                blocks[2:6],
                blocks[-2:],
            ) from None

    def _common(self, tensors: Any, blocks: Any, others: Any, numbers: Any) -> tuple[Any, ...]:
        part, full = (f and f.bound(others, numbers) for f in (self.part, self.full))
        lists = tuple(blocks[2:6])
        return (*tensors[:3], self.scale, part, full, lists, blocks[-2], blocks[-1])

    def _forward(self, tensors: Any, blocks: Any, others: Any, numbers: Any) -> tuple[Tensor, ...]:
        query, _, value = tensors
        shape = (*query.shape[:3], value.shape[3])
        out = _empty(shape, self.order[0], query)
        lse, top = (query.new_empty(shape[:3], dtype=torch.float32) for _ in range(2))
        _dvm.flex_forward(*self._common(tensors, blocks, others, numbers), out, lse, top)
        return out, lse, top

    def _backward(self, tensors: Any, blocks: Any, others: Any, numbers: Any) -> tuple[Any, ...]:
        query, key, value, out, lse, dy, dlse = tensors
        dy = torch.zeros_like(out) if dy is None else dy
        batch = query.shape[0]
        dq = _empty(query.shape, self.order[0], query)
        dk = _empty((batch, *key.shape[1:]), self.order[1], key)
        dv = _empty((batch, *value.shape[1:]), self.order[2], value)
        wanted = sorted(set(self.targets))
        captured = {i: torch.empty(others[i].shape, dtype=others[i].dtype) for i in wanted}
        grad, add = (f and f.bound(others, numbers) for f in (self.grad, self.add))
        _dvm.flex_backward(
            *self._common(tensors, blocks, others, numbers),
            grad,
            add,
            tuple(wanted.index(t) for t in self.targets),
            out,
            lse,
            dy,
            dlse,
            dq,
            dk,
            dv,
            tuple(captured.values()),
        )
        if key.shape[0] != batch:
            dk, dv = dk.sum(0, keepdim=True), dv.sum(0, keepdim=True)
        return dq, dk, dv, tuple(captured.get(i) for i in range(self.nscore))

    def _torchs(self, tensors: Any, blocks: Any, others: Any) -> Any:
        return self.stock(
            *tensors,
            *self.graphs,
            (*blocks, self.mask),
            self.scale,
            self.kernel_options,
            tuple(others[: self.nscore]),
            tuple(others[self.nscore :]),
        )


def _check(node: Node, blocks: Any, scale: Any) -> None:
    """What the library does not take."""
    for x in node.args[:3]:
        val = x.meta["val"]
        if val.dtype not in _FLOATS:
            raise Unsupported(f"dtype {str(val.dtype).removeprefix('torch.')}")
        if val.device.type != "cpu":
            raise Unsupported(f"device {val.device.type}")
    if len({x.meta["val"].dtype for x in node.args[:3]}) > 1:
        raise Unsupported("query, key and value of several dtypes")
    if not isinstance(scale, (int, float)) or not math.isfinite(scale):
        raise Unsupported("a scale that is no constant")
    if blocks[2] is None or blocks[3] is None:
        raise Unsupported("a mask without lists of blocks")


def _fill_order(val: Tensor) -> list[int]:
    """Axes from the innermost, as torch lays its results out: those of val, the last one first."""
    stride = [hint(s) for s in val.stride()]
    order = sorted(reversed(range(val.dim())), key=lambda i: stride[i])
    if order[0] != val.dim() - 1:
        order.remove(val.dim() - 1)
        order.insert(0, val.dim() - 1)
    return order


def _empty(shape: Sequence[int], order: Sequence[int], like: Tensor) -> Tensor:
    stride, step = [0] * len(shape), 1
    for axis in order:
        stride[axis] = step
        step *= shape[axis]
    return torch.empty_strided(shape, stride, dtype=like.dtype)
