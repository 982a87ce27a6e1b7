"""Rows that move elements: views, copies of parts, joins, generated values.

Views cost nothing in a kernel: they change how operands are read. Where torch makes a copy (cat,
pad, the backward of slice and select), the kernel writes the parts side by side.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from .fx import COMPUTE, Emitter, Scalar, Unsupported, Val, name_of, row
from .rows_point import choose
from .symbols import hint, never_negative, same_shape

# ------------------------------------------------------------------------------- builder calls


def like(v: Val, x: Val) -> Val:
    """v moves elements of x: same dtype, rounded or not."""
    v.dtype = x.dtype
    v.held = x.held
    return v


def reshape(e: Emitter, x: Val, shape: Sequence) -> Val:
    return like(e("reshape", x, e.sizes(shape)), x)


def broadcast(e: Emitter, x: Val, shape: Sequence) -> Val:
    return like(e("broadcast", x, e.sizes(shape)), x)


def permute(e: Emitter, x: Val, dims: Sequence[int]) -> Val:
    return like(e("permute", x, list(dims)), x)


def cut(e: Emitter, x: Val, dim: int, start: Any, size: Any, step: int = 1) -> Val:
    """`size` elements from `start` along one dimension."""
    starts, sizes = [0] * len(x.shape), list(x.shape)
    starts[dim], sizes[dim] = start, size
    args = [x, e.sizes(starts), e.sizes(sizes)]
    if step != 1:
        steps = [1] * len(x.shape)
        steps[dim] = step
        args.append(steps)
    v = like(e("slice", *args), x)
    v.shape = sizes
    return v


def concat(e: Emitter, parts: Sequence[Val], dim: int) -> Val:
    return like(e("concat", list(parts), dim), parts[0])


def full(e: Emitter, value: Any, shape: Sequence, dtype: torch.dtype) -> Val:
    if dtype not in COMPUTE:
        raise Unsupported(f"dtype {dtype}")
    return e("full", value, e.sizes(shape), dtype, dtype=dtype)


def iota(e: Emitter, shape: Sequence, axis: int, dtype: torch.dtype = torch.int64) -> Val:
    return e("iota", e.sizes(shape), axis, dtype, dtype=dtype)


def axis(dim: int, rank: int) -> int:
    return dim + rank if dim < 0 else dim


# -------------------------------------------------------------------------------------- views


@row("view.default", "_unsafe_view.default", "reshape.default", view=True)
@row("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", view=True)
@row("_reshape_alias.default", "flatten.using_ints", "unflatten.int", view=True)
def view(e: Emitter, x: Val, *args: Any, **kwargs: Any) -> Val:
    return reshape(e, x, e.out.shape)


@row("alias.default", "detach.default", "lift_fresh.default", view=True)
def alias(e: Emitter, x: Val) -> Val:
    return x


@row("expand.default", "expand_as.default", "broadcast_to.default", view=True)
@row("prims.broadcast_in_dim.default", view=True)
def expand(e: Emitter, x: Val, *args: Any, **kwargs: Any) -> Val:
    if name_of(e.node).startswith("prims."):
        dims = args[1]
        shape: list = [1] * len(e.out.shape)
        for d, s in zip(dims, x.shape, strict=True):
            shape[d] = s
        x = reshape(e, x, shape)
    elif same_shape(x.shape, e.out.shape):
        return x
    return broadcast(e, x, e.out.shape)


@row("permute.default", view=True)
def permute_(e: Emitter, x: Val, dims: Sequence[int]) -> Val:
    return permute(e, x, [axis(d, len(x.shape)) for d in dims])


@row("transpose.int", view=True)
def transpose(e: Emitter, x: Val, a: int, b: int) -> Val:
    rank = len(x.shape)
    if rank == 0:
        return x
    a, b = axis(a, rank), axis(b, rank)
    dims = list(range(rank))
    dims[a], dims[b] = b, a
    return permute(e, x, dims)


@row("t.default", "numpy_T.default", view=True)
def t(e: Emitter, x: Val) -> Val:
    return permute(e, x, range(len(x.shape))[::-1]) if len(x.shape) > 1 else x


@row("select.int", view=True)
def select(e: Emitter, x: Val, dim: int, index: Any) -> Val:
    dim = axis(dim, len(x.shape))
    return reshape(e, cut(e, x, dim, _from_front(e, index, x.shape[dim]), 1), e.out.shape)


def _from_front(e: Emitter, index: Any, size: Any) -> Any:
    """A position counted from the front."""
    if isinstance(index, Scalar):
        raise Unsupported("position known at run time only")
    return index + size if index < 0 else index


@row("slice.Tensor", view=True)
def slice_(
    e: Emitter, x: Val, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Val:
    dim = axis(dim, len(x.shape))
    start = _clamped(e, start, x.shape[dim])
    size = e.out.shape[dim]
    if isinstance(step, Scalar):
        raise Unsupported("step known at run time only")
    return cut(e, x, dim, start, size, step)


def _clamped(e: Emitter, start: Any, size: Any) -> Any:
    if start is None:
        return 0
    start = _from_front(e, start, size)
    if isinstance(start, int) and isinstance(size, int):
        return min(max(start, 0), size)
    if isinstance(start, int) and start == 0:
        return 0
    # The size may be below the start at run time: x[-5:] of 3 elements begins at 0.
    return torch.sym_max(torch.sym_min(start, size), 0)


def _pieces(e: Emitter, x: Val, dim: int) -> list:
    """One function for each output of a split: the piece is written where it is taken."""
    pieces, start = [], 0
    for fake in e.out:
        size = fake.shape[dim]
        pieces.append(lambda e, start=start, size=size: cut(e, x, dim, start, size))
        start = start + size
    return pieces


@row("split.Tensor", "split_with_sizes.default", "split.sizes", view=True)
@row("unsafe_split.Tensor", "unsafe_split_with_sizes.default", "chunk.default", view=True)
def split(e: Emitter, x: Val, sizes: Any, dim: int = 0) -> list:
    return _pieces(e, x, axis(dim, len(x.shape)))


@row("unbind.int", view=True)
def unbind(e: Emitter, x: Val, dim: int = 0) -> list:
    dim = axis(dim, len(x.shape))
    return [
        lambda e, i=i, shape=fake.shape: reshape(e, cut(e, x, dim, i, 1), shape)
        for i, fake in enumerate(e.out)
    ]


@row("diagonal.default", view=True)
@row("as_strided.default", "unfold.default", view=True)
@row("view_as_real.default", "view_as_complex.default", "view.dtype", view=True)
@row("real.default", "imag.default", "_conj.default", "_neg_view.default", view=True)
def torch_view(e: Emitter, x: Val, *args: Any, **kwargs: Any) -> Val:
    raise Unsupported("view that only torch can express")


# ------------------------------------------------------------------------- copies and joins


@row("flip.default")
def flip(e: Emitter, x: Val, dims: Sequence[int]) -> Val:
    rank = len(x.shape)
    for d in dims:
        d = axis(d, rank)
        x = cut(e, x, d, x.shape[d] - 1, x.shape[d], -1)
    return like(e("copy", x), x)


@row("cat.default", "concat.default")
def cat(e: Emitter, parts: Sequence[Val], dim: int = 0) -> Val:
    rank = len(e.out.shape)
    dtype = e.out.dtype
    # torch still lets an empty 1-d tensor stand beside tensors of any rank
    parts = [p for p in parts if len(p.shape) == rank]
    if not parts:
        raise Unsupported("nothing to join")
    if all(p.dtype is dtype and p.held is dtype for p in parts):
        return concat(e, parts, axis(dim, rank))
    return concat(e, [e.rounded(e.cast(p, dtype)) for p in parts], axis(dim, rank))


@row("stack.default")
def stack(e: Emitter, parts: Sequence[Val], dim: int = 0) -> Val:
    rank = len(e.out.shape)
    dim = axis(dim, rank)
    shape = list(e.out.shape)
    shape[dim] = 1
    parts = [reshape(e, e.rounded(e.cast(p, e.out.dtype)), shape) for p in parts]
    return concat(e, parts, dim)


@row("repeat.default")
def repeat(e: Emitter, x: Val, repeats: Sequence) -> Val:
    new = len(repeats) - len(x.shape)
    sizes = [1] * new + list(x.shape)
    inner, outer = [], []
    for r, s in zip(e.node.args[1], sizes, strict=True):
        r = r.meta["val"] if isinstance(r, torch.fx.Node) else r
        inner += [1, s]
        outer += [r, s]
    if len(outer) > 10:
        raise Unsupported("rank above 10")
    x = reshape(e, x, inner)
    return like(e("copy", reshape(e, broadcast(e, x, outer), e.out.shape)), x)


@row("roll.default")
def roll(e: Emitter, x: Val, shifts: Sequence, dims: Sequence[int] = ()) -> Val:
    if not dims or any(isinstance(s, Scalar) for s in shifts):
        raise Unsupported("roll of a flattened tensor or by a size known at run time only")
    for shift, d in zip(shifts, dims, strict=True):
        d = axis(d, len(x.shape))
        size = x.shape[d]
        if not isinstance(size, int):
            raise Unsupported("size known at run time only")
        if size == 0 or shift % size == 0:
            continue
        at = size - shift % size
        shape = x.shape
        x = concat(e, [cut(e, x, d, at, size - at), cut(e, x, d, 0, at)], d)
        x.shape = shape
    return like(e("copy", x), x) if x is e.vals[e.node.args[0]] else x


def _amounts(e: Emitter) -> tuple[list[Any], list[Any]]:
    """What each pad takes away and what it adds, neither ever negative. A size that may have either
    sign gives both, one of which is 0 in every call.
    """
    pads = [p.meta["val"] if isinstance(p, torch.fx.Node) else p for p in e.node.args[1]]
    less, more = [], []
    for p in pads:
        up, down = never_negative(p), never_negative(-p)
        less.append(0 if up else -p if down else torch.sym_max(-p, 0))
        more.append(0 if down else p if up else torch.sym_max(p, 0))
    return less, more


@row("constant_pad_nd.default")
def pad(e: Emitter, x: Val, pads: Sequence, value: Any = 0) -> Val:
    """The result is dense as traced. torch's own op gives a copy with the operand's strides where
    all pads are 0, which depends on sizes: views traced behind it may then be impossible.
    """
    shape, rank, dtype = list(x.shape), len(x.shape), x.dtype
    less, more = _amounts(e)
    x = copy.copy(e.rounded(x))  # the value itself is also others' operand
    x.shape = list(shape)
    if not any(map(_some, less + more)):
        return like(e("copy", x), x)
    for i in range(len(pads) // 2):
        d = rank - 1 - i
        before, after = 2 * i, 2 * i + 1
        x.shape = list(shape)
        if _some(less[before]) or _some(less[after]):
            shape[d] = shape[d] - less[before] - less[after]
            x = cut(e, x, d, less[before], shape[d])
        parts = [x]
        for at in (before, after):
            if _some(more[at]):
                part = full(e, value, [*shape[:d], more[at], *shape[d + 1 :]], dtype)
                parts.insert(0 if at == before else len(parts), part)
        shape[d] = e.out.shape[d]
        if len(parts) > 1:
            x = concat(e, parts, d)
        x.shape = list(shape)
    return x


def _some(size: Any) -> bool:
    """Not known to be 0."""
    return not isinstance(size, int) or size != 0


def _between(e: Emitter, base: Val, src: Val, dim: int, start: Any, size: Any) -> Val:
    """base with [start, start + size) along dim replaced by src."""
    total = base.shape[dim]
    parts = [src]
    if not (isinstance(start, int) and start == 0):
        parts.insert(0, cut(e, base, dim, 0, start))
    rest = total - start - size
    if not (isinstance(rest, int) and rest == 0):
        parts.append(cut(e, base, dim, start + size, rest))
    if len(parts) == 1:
        return like(e("copy", src), src)
    return concat(e, parts, dim)


@row("slice_scatter.default")
def slice_scatter(
    e: Emitter, base: Val, src: Val, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> Val:
    dim = axis(dim, len(base.shape))
    start = _clamped(e, start, base.shape[dim])
    base, src = _moved(e, base), _moved(e, src)
    if step != 1:
        return _strewn(e, src, dim, start, step, base)
    return _between(e, base, src, dim, start, src.shape[dim])


def _strewn(e: Emitter, src: Val, dim: int, start: Any, step: Any, base: Val | None = None) -> Val:
    """src at start, start + step, ... along dim; between them base, or zeros.

    All elements of src but the last come in groups of `step`, each with what follows it; the last
    may have fewer behind it, so it stands by itself.
    """
    n, total = src.shape[dim], e.out.shape[dim]
    if not (isinstance(step, int) and isinstance(n, int)):
        raise Unsupported("slice with a step, of a size known at run time only")
    before, after = list(e.out.shape[:dim]), list(e.out.shape[dim + 1 :])

    def rest(at: Any, size: Any) -> Val:
        if base is not None:
            return cut(e, base, dim, at, size)
        return full(e, 0, [*before, size, *after], e.out.dtype)

    if n == 0:
        return like(e("copy", rest(0, total)), src)
    groups, parts = n - 1, [cut(e, src, dim, n - 1, 1)]
    if groups:
        heads = reshape(e, cut(e, src, dim, 0, groups), [*before, groups, 1, *after])
        shape = [*before, groups, step, *after]
        followers = reshape(e, rest(start, groups * step), shape)
        followers.shape = shape
        group = concat(e, [heads, cut(e, followers, dim + 1, 1, step - 1)], dim + 1)
        parts.insert(0, reshape(e, group, [*before, groups * step, *after]))
    if not (isinstance(start, int) and start == 0):
        parts.insert(0, rest(0, start))
    end = start + groups * step + 1
    tail = total - end
    if not (isinstance(tail, int) and tail == 0):
        parts.append(rest(end, tail))
    return concat(e, parts, dim) if len(parts) > 1 else like(e("copy", parts[0]), src)


def _moved(e: Emitter, x: Val) -> Val:
    """x in the node's dtype, rounded, ready to be joined with others."""
    shape = x.shape
    x = copy.copy(e.rounded(e.cast(x, e.out.dtype)))
    x.shape = shape
    return x


@row("select_scatter.default")
def select_scatter(e: Emitter, base: Val, src: Val, dim: int, index: Any) -> Val:
    dim = axis(dim, len(base.shape))
    shape = list(base.shape)
    shape[dim] = 1
    src = reshape(e, _moved(e, src), shape)
    return _between(e, _moved(e, base), src, dim, _from_front(e, index, base.shape[dim]), 1)


def _into_zeros(e: Emitter, src: Val, dim: int, start: Any, size: Any) -> Val:
    """src at [start, start + size) along dim, zeros elsewhere."""
    shape = list(e.out.shape)
    parts = [src]
    rest = shape[dim] - start - size
    for n, front in ((start, True), (rest, False)):
        if not (isinstance(n, int) and n == 0):
            zeros = full(e, 0, [*shape[:dim], n, *shape[dim + 1 :]], e.out.dtype)
            parts.insert(0, zeros) if front else parts.append(zeros)
    return concat(e, parts, dim) if len(parts) > 1 else like(e("copy", src), src)


@row("slice_backward.default")
def slice_backward(
    e: Emitter, grad: Val, sizes: Any, dim: int, start: Any, end: Any, step: Any
) -> Val:
    dim = axis(dim, len(e.out.shape))
    start = _clamped(e, start, e.out.shape[dim])
    if step != 1:
        return _strewn(e, _moved(e, grad), dim, start, step)
    return _into_zeros(e, _moved(e, grad), dim, start, grad.shape[dim])


@row("select_backward.default")
def select_backward(e: Emitter, grad: Val, sizes: Any, dim: int, index: Any) -> Val:
    dim = axis(dim, len(e.out.shape))
    shape = list(e.out.shape)
    shape[dim] = 1
    src = reshape(e, _moved(e, grad), shape)
    return _into_zeros(e, src, dim, _from_front(e, index, e.out.shape[dim]), 1)


def _triangle(e: Emitter, x: Val, k: Any, keep: str) -> Val:
    if isinstance(k, Scalar):
        raise Unsupported("diagonal known at run time only")
    rows, cols = x.shape[-2:]
    i = iota(e, (rows, 1), 0)
    j = iota(e, (1, cols), 1)
    mask = e(keep, j, e("add", i, k) if k else i, dtype=torch.bool)
    return choose(e, mask, x, 0)


@row("tril.default")
def tril(e: Emitter, x: Val, diagonal: Any = 0) -> Val:
    return _triangle(e, x, diagonal, "less_equal")


@row("triu.default")
def triu(e: Emitter, x: Val, diagonal: Any = 0) -> Val:
    return _triangle(e, x, diagonal, "greater_equal")


# -------------------------------------------------------------------------- generated values


@row("full.default", "full_like.default", "new_full.default")
def full_(e: Emitter, first: Any, *args: Any, **kwargs: Any) -> Val:
    return filled(e, args[-1] if args else kwargs["fill_value"])


@row("zeros.default", "zeros_like.default", "new_zeros.default")
def zeros(e: Emitter, *args: Any, **kwargs: Any) -> Val:
    return filled(e, 0)


@row("empty.memory_format", "empty_like.default", "new_empty.default")
def empty(e: Emitter, *args: Any, **kwargs: Any) -> Val:
    """Any value will do. What is overwritten inside the kernel, as nearly always, costs nothing."""
    if torch.are_deterministic_algorithms_enabled():
        raise Unsupported("torch fills uninitialized memory when it is to be deterministic")
    return filled(e, 0)


@row("new_empty_strided.default")
def empty_strided(e: Emitter, *args: Any, **kwargs: Any) -> Val:
    extent = 1
    for step, n in sorted(zip(map(hint, e.out.stride()), map(hint, e.out.shape), strict=True)):
        if n > 1 and step < extent:
            raise Unsupported("elements that share memory")
        extent += step * max(n - 1, 0)
    return empty(e)


@row("ones.default", "ones_like.default", "new_ones.default")
def ones(e: Emitter, *args: Any, **kwargs: Any) -> Val:
    return filled(e, 1)


@row("scalar_tensor.default")
def scalar_tensor(e: Emitter, value: Any, **kwargs: Any) -> Val:
    return filled(e, value)


def filled(e: Emitter, value: Any) -> Val:
    """A tensor of one value. Reads nothing, so the *_like operand does not count as an input."""
    if isinstance(value, (Val, complex)):
        raise Unsupported("fill value that is not a real number")
    e.forget_operands()
    dtype = e.out.dtype
    if not isinstance(value, Scalar):
        kind = bool if dtype is torch.bool else float if dtype.is_floating_point else int
        value = kind(value)
    return full(e, value, e.out.shape, dtype)


@row("arange.start_step", "arange.start", "arange.default")
def arange(e: Emitter, *args: Any, **kwargs: Any) -> Val:
    start, step = 0, 1
    if len(args) == 1:
        pass
    else:
        start, step = args[0], args[2] if len(args) > 2 else 1
    return _progression(e, start, step)


@row("prims.iota.default")
def prims_iota(e: Emitter, length: Any, *, start: Any, step: Any, **kwargs: Any) -> Val:
    return _progression(e, start, step)


def _progression(e: Emitter, start: Any, step: Any) -> Val:
    dtype = e.out.dtype
    i = iota(e, e.out.shape, 0)
    if dtype.is_floating_point:
        # torch computes start + i * step in double: the same as long as both are small integers
        if not all(isinstance(x, (int, float)) and float(x).is_integer() for x in (start, step)):
            raise Unsupported("float range with a fractional step")
        i = e.cast(i, torch.float32)
    if step != 1:
        i = e("mul", i, step)
    if start != 0:
        i = e("add", i, start)
    return e.result(i)
