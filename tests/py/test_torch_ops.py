"""Every row of the lowering table against eager: values, dtypes, strides, NaN and infinities."""

import math
import operator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import optable  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
SPECIAL = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-3, 3.0, 30.0, -30.0, math.inf, -math.inf, math.nan]
aten = torch.ops.aten


def floats(dtype, *shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=g) * 2).to(dtype)


def ints(dtype, *shape, low=-9, high=10, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, shape, generator=g).to(dtype)


def agree(f, *args, dynamic=False, fallbacks=(), rtol=None, atol=None):
    """f in kernels equals f in eager, in value, dtype and strides."""
    want = f(*args)
    low = lowered(f, *args, dynamic=dynamic)
    assert {op for op, _ in low.fallbacks} == set(fallbacks), low.fallbacks
    got = low(*args)
    for g, w in zip(leaves(got), leaves(want), strict=True):
        if not isinstance(w, torch.Tensor):
            assert g == w
            continue
        r, a = tolerance(w.dtype)
        torch.testing.assert_close(
            g, w, equal_nan=True, rtol=rtol or r, atol=a if atol is None else atol
        )
        if w.numel() > 1:
            assert g.stride() == w.stride()
    optable.note(low)
    return low


def tolerance(dtype):
    return {F32: (1e-5, 1e-6), BF16: (1.6e-2, 1.6e-2), F16: (2e-3, 2e-3)}.get(dtype, (0, 0))


def leaves(x):
    return torch.utils._pytree.tree_leaves(x)


UNARY = [
    "sqrt", "rsqrt", "reciprocal", "exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos",
    "tanh", "sigmoid", "erf", "floor", "ceil", "trunc", "round", "neg", "abs", "sign", "relu",
    "square", "frac", "isnan", "isinf", "isfinite", "logical_not",
]  # fmt: skip


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("name", UNARY)
def test_unary(name, dtype):
    f = getattr(torch, name)
    agree(f, floats(dtype, 5, 33))
    agree(f, torch.tensor(SPECIAL).to(dtype))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool])
@pytest.mark.parametrize(
    "name", ["exp", "sigmoid", "floor", "abs", "sign", "isnan", "isfinite", "logical_not", "sqrt"]
)
def test_unary_integers(name, dtype):
    if dtype is torch.bool and name in ("floor", "abs"):
        return
    agree(getattr(torch, name), ints(dtype, 4, 5))


BINARY = ["add", "sub", "mul", "div", "maximum", "minimum", "pow", "remainder", "fmod"]
COMPARE = ["eq", "ne", "lt", "le", "gt", "ge"]


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", BINARY + COMPARE)
def test_binary(name, dtype):
    f = getattr(torch, name)
    agree(f, floats(dtype, 4, 33), floats(dtype, 4, 33, seed=1))
    agree(f, floats(dtype, 4, 1), floats(dtype, 1, 33, seed=1))
    agree(lambda x: f(x, x.flip(0)) if name != "pow" else x, torch.tensor(SPECIAL).to(dtype))
    if name not in ("maximum", "minimum"):
        agree(lambda x: f(x, 0.3), floats(dtype, 4, 33))
        agree(lambda x: f(x, 2), floats(dtype, 4, 33))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "maximum", "minimum", *COMPARE])
def test_binary_integers(name, dtype):
    f = getattr(torch, name)
    x, y = ints(dtype, 4, 33), ints(dtype, 4, 33, low=1, seed=1)
    agree(f, x, y)
    if name not in ("maximum", "minimum"):
        agree(lambda x: f(x, 3), x)
        agree(lambda x: f(x, 2.5), x)


@pytest.mark.parametrize("name", ["add", "mul", "eq", "ne", "lt", "maximum", "minimum"])
def test_binary_bool(name):
    f = getattr(torch, name)
    agree(f, ints(torch.bool, 4, 33, low=0, high=2), ints(torch.bool, 4, 33, low=0, high=2, seed=1))


@pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, F32])
def test_logical(name, dtype):
    agree(
        getattr(torch, name), ints(dtype, 4, 9, low=-1, high=2), ints(dtype, 4, 9, low=-1, high=2)
    )


@pytest.mark.parametrize("name", ["bitwise_and", "bitwise_or", "bitwise_xor"])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64])
def test_bitwise(name, dtype):
    f = getattr(torch, name)
    agree(f, ints(dtype, 4, 9), ints(dtype, 4, 9, seed=1))
    if dtype is not torch.bool:
        agree(lambda x: f(x, 5), ints(dtype, 4, 9))
        agree(torch.bitwise_not, ints(dtype, 4, 9))


@pytest.mark.parametrize(
    ("a", "b"),
    [(F32, BF16), (BF16, F16), (F32, torch.int64), (BF16, torch.int32), (torch.int32, torch.int64),
     (torch.bool, torch.int32), (torch.bool, F32)],
)  # fmt: skip
def test_promotion(a, b):
    x, y = ints(a, 3, 7, low=0, high=3), ints(b, 3, 7, low=1, high=4)
    for f in (torch.add, torch.mul, torch.div, torch.lt, torch.eq):
        agree(f, x, y)
        agree(f, x, y[0, 0])  # 0-d: takes part in promotion by kind only
        agree(lambda x, y, f=f: f(x, y[0, 0]), x, y)


def test_integer_division_rounding():
    x = ints(torch.int64, 40)
    for c in (3, -3, 7):
        for mode in ("floor", "trunc", None):
            agree(lambda x, c=c, mode=mode: torch.div(x, c, rounding_mode=mode), x)
        agree(lambda x, c=c: x % c, x)
        agree(lambda x, c=c: x // c, x)
        agree(lambda x, c=c: torch.fmod(x, c), x)


def test_integer_division_by_a_tensor_is_torchs():
    x, y = ints(torch.int64, 8), ints(torch.int64, 8, low=1)
    agree(lambda x, y: x // y, x, y, fallbacks=["aten.floor_divide.default"])


@pytest.mark.parametrize("c", [0.5, 2, 3, -2, -0.5, -1, 1, 0, 4, 2.5, -3])
def test_power(c):
    agree(lambda x: x**c, floats(F32, 7, 9), rtol=2e-5)
    agree(lambda x: x**c, torch.tensor(SPECIAL))
    if c == int(c) and c >= 0:
        agree(lambda x: x ** int(c), ints(torch.int64, 7, 9))


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_three_operands(dtype):
    x, y, z = (floats(dtype, 4, 9, seed=i) for i in range(3))
    agree(torch.where, x > 0, y, z)
    agree(lambda x, y: torch.where(x > 0, y, 1.5), x, y)
    agree(lambda x: torch.where(x > 0, 1.0, 0.0), x)
    agree(lambda x, m: x.masked_fill(m, -math.inf), x, y > 0)
    agree(lambda x: x.clamp(-0.5, 0.7), x)
    agree(lambda x: x.clamp(min=0.3), x)
    agree(lambda x, y, z: x.clamp(y, z), x, y, z)
    agree(lambda x: x.clamp(-1, 1), torch.tensor(SPECIAL).to(dtype))
    agree(lambda x, y, z: torch.addcmul(x, y, z, value=0.3), x, y, z)
    agree(lambda x, y, z: torch.addcdiv(x, y, z, value=0.3), x, y, z, rtol=2e-2)
    agree(lambda x, y: torch.lerp(x, y, 0.3), x, y)
    agree(lambda x, y: torch.lerp(x, y, 0.8), x, y)
    agree(lambda x, y, z: torch.lerp(x, y, z), x, y, z)
    agree(lambda x, y: torch.add(x, y, alpha=0.7), x, y)
    agree(lambda x, y: torch.sub(x, y, alpha=2), x, y)
    agree(lambda x: 3 - x, x)


ACTIVATIONS = {
    "silu": (torch.nn.functional.silu, {}),
    "gelu": (torch.nn.functional.gelu, {}),
    "gelu tanh": (torch.nn.functional.gelu, {"approximate": "tanh"}),
    "leaky_relu": (torch.nn.functional.leaky_relu, {"negative_slope": 0.2}),
    "elu": (torch.nn.functional.elu, {"alpha": 1.3}),
    "selu": (torch.nn.functional.selu, {}),
    "celu": (torch.nn.functional.celu, {}),
    "hardtanh": (torch.nn.functional.hardtanh, {}),
    "relu6": (torch.nn.functional.relu6, {}),
    "hardswish": (torch.nn.functional.hardswish, {}),
    "hardsigmoid": (torch.nn.functional.hardsigmoid, {}),
    "softplus": (torch.nn.functional.softplus, {}),
    "softplus beta": (torch.nn.functional.softplus, {"beta": 2, "threshold": 3}),
    "mish": (torch.nn.functional.mish, {}),
    "logsigmoid": (torch.nn.functional.logsigmoid, {}),
    "threshold": (torch.nn.functional.threshold, {"threshold": 0.1, "value": 2.0}),
    "hardshrink": (torch.nn.functional.hardshrink, {}),
    "softshrink": (torch.nn.functional.softshrink, {}),
}


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation_and_its_gradient(name):
    f, kw = ACTIVATIONS[name]

    def both(x, g):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = f(x, **kw)
            return y, torch.autograd.grad(y, x, g)[0]

    agree(both, floats(F32, 6, 50), floats(F32, 6, 50, seed=1), rtol=3e-5, atol=3e-6)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("dims", [None, 0, 1, -1, (0, 2), (0, 1, 2)])
@pytest.mark.parametrize("keep", [False, True])
def test_reductions(dtype, dims, keep):
    x = floats(dtype, 3, 17, 5)
    agree(lambda x: (x.sum(dims, keep), x.mean(dims, keep)), x, rtol=1e-5)
    if dims is not None:
        agree(lambda x: (x.amax(dims, keep), x.amin(dims, keep)), x)
        agree(lambda x: (x.var(dims, keepdim=keep), x.std(dims, keepdim=keep)), x, rtol=2e-2)
        agree(lambda x: torch.var_mean(x, dims, correction=0, keepdim=keep), x, rtol=2e-2)
        agree(lambda x: (x > 0).any(dims, keep) & (x < 9).all(dims, keep), x)
        agree(lambda x: torch.linalg.vector_norm(x, 2, dims, keep), x)
        agree(lambda x: torch.logsumexp(x, dims, keep), x)
    if isinstance(dims, int):
        agree(lambda x: x.max(dims, keep), x)
        agree(lambda x: x.min(dims, keep), x)
        agree(lambda x: (x.argmax(dims, keep), x.argmin(dims, keep)), x)
        agree(lambda x: x.prod(dims, keep), x, rtol=2e-2)


def test_reductions_of_integers_and_bools():
    x = ints(torch.int32, 5, 7)
    agree(lambda x: (x.sum(), x.sum(1), x.amax(1), x.prod(0), x.max(1)), x)
    agree(lambda x: (x.sum(), x.sum(0), x.any(), x.all(1), x.float().mean()), x > 0)


def test_reductions_with_nan_and_inf():
    x = torch.tensor([[1.0, math.nan, 3.0], [math.inf, 1.0, -math.inf], [1.0, 2.0, 3.0]])
    agree(lambda x: (x.sum(1), x.amax(1), x.amin(1), x.argmax(1), x.max(1), x.mean(1)), x)
    agree(lambda x: torch.softmax(x, 1), x)
    agree(lambda x: torch.logsumexp(x, 1), x)


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_softmax(dtype, dim):
    x, g = floats(dtype, 9, 33), floats(dtype, 9, 33, seed=1)
    agree(lambda x: torch.softmax(x, dim), x)
    agree(lambda x: torch.log_softmax(x, dim), x)
    agree(lambda g, y: aten._softmax_backward_data(g, y, dim, y.dtype), g, torch.softmax(x, dim))
    agree(
        lambda g, y: aten._log_softmax_backward_data(g, y, dim, y.dtype),
        g,
        torch.log_softmax(x, dim),
    )


def test_softmax_of_a_masked_row():
    agree(lambda x: torch.softmax(x, -1), torch.full((2, 4), -math.inf))


@pytest.mark.parametrize("dtype", [F32, BF16, torch.int64])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cumsum(dtype, dim):
    x = ints(dtype, 3, 17, 5)
    agree(lambda x: x.cumsum(dim), x)


NARROWED = {  # a result that is asked for in a narrower dtype than the operation has by itself
    "cumsum": lambda x: x.cumsum(1, dtype=torch.int32),
    "sum": lambda x: x.sum(1, dtype=torch.int32),
    "sum all": lambda x: x.sum(dtype=torch.int32).reshape(1),
    "prod": lambda x: x.prod(1, dtype=torch.int32),
    "prod bf16": lambda x: x.prod(1, dtype=BF16),
    "sum bf16": lambda x: x.sum(1, dtype=BF16),
    "cumsum bf16": lambda x: x.cumsum(1, dtype=BF16),
    "argmax": lambda x: x.argmax(1).int(),
}


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.int64, F32, BF16])
@pytest.mark.parametrize("name", NARROWED)
def test_a_narrower_result_is_an_operand_of_its_dtype(name, dtype):
    """What a kernel computes in another dtype stands beside others of the dtype torch names."""
    if name == "argmax" and dtype is torch.bool:
        pytest.skip("torch has no argmax of bool")
    x = (torch.arange(15).reshape(3, 5) % 3).to(dtype)
    agree(lambda x: torch.nn.functional.pad(NARROWED[name](x), (1, 2), value=1), x)
    agree(lambda x: torch.nn.functional.pad(NARROWED[name](x), (0, 0)) * 2, x)


VIEWS = {
    "view": lambda x: x.view(8, -1),
    "reshape": lambda x: x.reshape(3, 2, 4, 2),
    "flatten": lambda x: x.flatten(1),
    "transpose": lambda x: x.transpose(0, 1),
    "permute": lambda x: x.permute(2, 0, 1),
    "t": lambda x: x[0].t(),
    "expand": lambda x: x[:, :, :1].expand(-1, -1, 6),
    "expand in front": lambda x: x.expand(2, *x.shape),
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(),
    "select": lambda x: x.select(1, -2),
    "slice": lambda x: x[1:, ::2, -3:],
    "slice beyond": lambda x: x[:, 1:100],
    "split": lambda x: x.split(3, 2)[1],
    "split sizes": lambda x: x.split([1, 4, 3], 2)[2],
    "chunk": lambda x: x.chunk(2, -1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "diagonal": lambda x: x.diagonal(0, 1, 2),
    "as_strided": lambda x: x.as_strided((3, 4), (8, 2), 1),
    "unfold": lambda x: x.unfold(2, 3, 2),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(name):
    """In a kernel, in front of torch, and returned as a view of the argument."""
    f = VIEWS[name]
    x = floats(F32, 3, 4, 8)[:, :, :8]
    x = floats(F32, 3, 2, 8) if name in ("view", "reshape", "split", "chunk") else x
    agree(lambda x: f(x) * 2, x)
    agree(lambda x: f(x * 2), x)
    agree(lambda x: torch.special.i0(f(x * 2)), x, fallbacks=["aten.i0.default"])
    out = lowered(f, x)(x)
    assert out.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    torch.testing.assert_close(out, f(x), rtol=0, atol=0)
    assert out.stride() == f(x).stride()


MOVES = {
    "cat": lambda x, y: torch.cat([x, y, x * 2], 1),
    "cat negative": lambda x, y: torch.cat([x, y], -1),
    "stack": lambda x, y: torch.stack([x, y], 1),
    "stack last": lambda x, y: torch.stack([x, y + 1], -1),
    "flip": lambda x, y: x.flip(0, 1),
    "roll": lambda x, y: x.roll((1, -2), (0, 1)),
    "repeat": lambda x, y: x.repeat(2, 1, 3),
    "pad": lambda x, y: torch.nn.functional.pad(x, (1, 2, 0, 1), value=0.5),
    "pad negative": lambda x, y: torch.nn.functional.pad(x, (-1, 2)),
    "slice_scatter": lambda x, y: torch.slice_scatter(x, y[:, 1:3], 1, 1, 3),
    "select_scatter": lambda x, y: torch.select_scatter(x, y[:, 0], 1, 2),
    "slice_backward": lambda x, y: aten.slice_backward(x, [4, 9], 1, 2, 8, 1),
    "select_backward": lambda x, y: aten.select_backward(x, [4, 6, 3], 2, 1),
    "tril": lambda x, y: x.tril(),
    "triu": lambda x, y: x.triu(1),
    "copy": lambda x, y: aten.copy(x, y[:1].float()),
    "clone": lambda x, y: x.clone(),
    "contiguous": lambda x, y: x.t().contiguous(),
    "full": lambda x, y: torch.full((3, 4), 2.5) + torch.zeros(4) * torch.ones_like(x[:1, :4]),
    "arange": lambda x, y: torch.arange(6) * x + torch.arange(1, 13, 2),
    "arange float": lambda x, y: torch.arange(6, dtype=torch.float32) + x,
}


@pytest.mark.parametrize("dtype", [F32, BF16, torch.int32])
@pytest.mark.parametrize("name", MOVES)
def test_moves(name, dtype):
    agree(MOVES[name], ints(dtype, 4, 6), ints(dtype, 4, 6, seed=1))


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize(
    "start, step", [(0, 2), (1, 2), (3, 4), (0, 9), (8, 3), (2, 20), (9, 2), (-3, 2)]
)
def test_slices_with_a_step(start, step, dim):
    """At either end and inside, of several elements, one, none; what lies between stays."""
    n, end = len(range(9)[start::step]), 2**63 - 1
    for dtype in (F32, BF16, torch.int32):
        x, y = ints(dtype, 9, 9), ints(dtype, 9, 9, seed=1)
        agree(
            lambda x, y: torch.slice_scatter(x + y, y.narrow(dim, 0, n) * 2, dim, start, end, step),
            x,
            y,
        )
        agree(lambda y: aten.slice_backward(y.narrow(dim, 0, n), [9, 9], dim, start, end, step), y)


@pytest.mark.parametrize(
    "to", [F32, BF16, F16, torch.int32, torch.int64, torch.bool, torch.float64]
)
@pytest.mark.parametrize(
    "of", [F32, BF16, F16, torch.int32, torch.int64, torch.bool, torch.float64]
)
def test_casts(of, to):
    agree(lambda x: x.to(to), (floats(F32, 4, 9) * 20).to(of))


def test_casts_really_round():
    x = floats(F32, 50)
    low = agree(lambda x: (x.to(BF16).to(F32) - x) * 1024, x, rtol=1e-6, atol=0)
    assert low.program.kernels


def test_float64_and_complex_are_torchs():
    x = floats(torch.float64, 4, 4)
    low = agree(lambda x: torch.relu(x * 2), x, fallbacks=["aten.mul.Tensor", "aten.relu.default"])
    assert all(reason == "dtype float64" for _, reason in low.fallbacks)
    z = torch.randn(4, dtype=torch.complex64)
    agree(lambda z: (z * z).abs(), z, fallbacks=["aten.mul.Tensor", "aten.abs.default"])


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("affine", [True, False])
def test_layer_norm_and_gradients(dtype, affine):
    x, g = floats(dtype, 6, 5, 32), floats(dtype, 6, 5, 32, seed=1)
    w, b = (floats(dtype, 32, seed=s) if affine else None for s in (2, 3))
    agree(lambda x: aten.native_layer_norm(x, [32], w, b, 1e-5), x, atol=1e-5)
    _, mean, rstd = aten.native_layer_norm(x, [32], w, b, 1e-5)
    mask = [True, affine, affine]

    def backward(g, x, mean, rstd, w, b):
        return aten.native_layer_norm_backward(g, x, [32], mean, rstd, w, b, mask)[: 1 + 2 * affine]

    args = (g, x, mean, rstd, w, b)
    got = lowered(backward, *args)(*args)
    want = backward(*[None if a is None else a.float() for a in args])
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.float(), b, rtol=1e-2 if dtype is BF16 else 1e-4, atol=1e-4)


def test_other_norms():
    x = floats(F32, 4, 6, 5, 5)
    w, b = floats(F32, 6, seed=1), floats(F32, 6, seed=2)
    agree(lambda x: torch.nn.functional.group_norm(x, 3, w, b), x, atol=1e-5)
    agree(
        lambda x: aten._native_batch_norm_legit_no_training(x, w, b, w, b.abs(), 0.1, 1e-5)[0],
        x,
        atol=1e-5,
    )
    _, mean, rstd = aten.native_group_norm(x, w, b, 4, 6, 25, 3, 1e-5)
    agree(
        lambda g, x: aten.native_group_norm_backward(g, x, mean, rstd, w, 4, 6, 25, 3, [True] * 3),
        floats(F32, 4, 6, 5, 5, seed=3), x, rtol=1e-4, atol=1e-4,
    )  # fmt: skip


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (3, 0), (1, 1, 1), (2, 1, 3)])
def test_odd_shapes(shape):
    x = floats(F32, *shape)
    agree(lambda x: (torch.relu(x * 2 + 1), x.sum(), x.mean(-1) if x.dim() else x * 1), x)
    agree(lambda x: torch.softmax(x, -1) if x.dim() else torch.softmax(x, 0), x)
    if all(shape):
        agree(lambda x: x.amax(), x)


def test_strides_of_inputs_and_outputs():
    base = floats(F32, 6, 8, 10)
    for x in (
        base.permute(2, 0, 1),
        base[:, ::2, 1:],
        base.transpose(0, 2)[::2],
        base[:, :1].expand(-1, 8, -1),
        floats(F32, 2, 3, 4, 5).to(memory_format=torch.channels_last),
    ):
        agree(lambda x: torch.relu(x) + 1, x)
        agree(lambda x: x.sum(0) * 2, x)
        agree(lambda x: torch.special.i0(x * 2) + x, x, fallbacks=["aten.i0.default"])


def test_dynamic_sizes_share_one_artefact():
    def f(x, y):
        h = torch.cat([x, y], 0).view(-1, 2, x.shape[1] // 2)
        return h.mean(0) * x.shape[0] + h.permute(1, 0, 2).sum(1), h[1:].amax(-1), x.shape[0] * 2

    x, y = floats(F32, 5, 8), floats(F32, 3, 8)
    low = agree(f, x, y, dynamic=True)
    assert all(k.dynamic for k in low.program.kernels)
    for n, m, c in ((7, 2, 6), (2, 9, 10), (64, 64, 128)):
        x, y = floats(F32, n, c), floats(F32, m, c)
        for g, w in zip(leaves(low(x, y)), leaves(f(x, y)), strict=True):
            torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("dtype", [F32, BF16, torch.int64])
def test_reading_at_positions(dtype, index):
    x = ints(dtype, 9, 6)
    i, j = ints(index, 4, low=0, high=9), ints(index, 2, 3, low=0, high=6, seed=1)
    agree(lambda x, i: x.index_select(0, i) + 1, x, i)
    agree(lambda x, j: x.index_select(1, j.flatten()), x, j)
    agree(lambda x, i: x[i] * 2, x, i)
    agree(lambda x, i: x[i - 9], x, i)
    agree(lambda x, j: x[:, j], x, j)
    if dtype is not torch.int64:
        agree(lambda x, j: torch.nn.functional.embedding(j, x * 2), x, j)
    k = ints(torch.int64, 9, 2, low=0, high=6)
    agree(lambda x, k: x.gather(1, k) + 1, x, k)
    agree(lambda x, i: x[i, i % 6], x, i)
    agree(lambda x, i, j: x[i % 2 - 2, j[:, :1]], x, i[:2], j)
    agree(lambda x, j: x.reshape(3, 3, 6)[:, j % 3, j], x, j)
    agree(lambda x, j: x.reshape(3, 3, 6)[j % 3, :, j], x, j, fallbacks=["aten.index.Tensor"])
    agree(lambda x, k: x.gather(1, k[:3]), x, k, fallbacks=["aten.gather.default"])


def test_position_out_of_range_raises():
    low = lowered(lambda x, i: x[i] + 1, floats(F32, 5), ints(torch.int64, 3, low=0, high=5))
    with pytest.raises(IndexError):
        low(floats(F32, 5), torch.tensor([0, 5, 1]))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_over_classes(dtype, reduction, weighted):
    x, w = floats(dtype, 12, 7), floats(dtype, 7, seed=1).abs()
    y = ints(torch.int64, 12, low=0, high=7)
    kw = {"reduction": reduction, "ignore_index": 3}
    args = (x, y, w) if weighted else (x, y)
    agree(lambda x, y, w=None: torch.nn.functional.nll_loss(x, y, w, **kw), *args)
    agree(lambda x, y, w=None: torch.nn.functional.cross_entropy(x, y, w, **kw), *args)
    _, total = aten.nll_loss_forward(x, y, None, ["none", "mean", "sum"].index(reduction), 3)
    g = torch.ones(12 if reduction == "none" else (), dtype=dtype)
    agree(
        lambda g, x, y, t: aten.nll_loss_backward(
            g, x, y, None, ["none", "mean", "sum"].index(reduction), 3, t
        ),
        g, x, y, total,
    )  # fmt: skip


def test_fused_rms_norm():
    """Only CUDA keeps this op whole, so the graph is made by hand."""
    x, g, w = floats(BF16, 6, 32), floats(BF16, 6, 32, seed=1), floats(BF16, 32, seed=2)
    y, rstd = one_op(aten._fused_rms_norm.default, x, [32], w, None)
    f = x.float()
    want = f * torch.rsqrt(f.square().mean(-1, keepdim=True) + torch.finfo(F32).eps)
    torch.testing.assert_close(y, (want * w.float()).to(BF16))
    dx, dw = one_op(aten._fused_rms_norm_backward.default, g, x, [32], rstd, w, [True, True])
    with torch.enable_grad():
        xf, wf = f.requires_grad_(), w.float().requires_grad_()
        torch.nn.functional.rms_norm(xf, (32,), wf).backward(g.float())
    torch.testing.assert_close(dx.float(), xf.grad, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(dw.float(), wf.grad, rtol=2e-2, atol=2e-2)


def one_op(op, *args):
    """A graph of a single op, compiled and run."""
    from dvm.torch.backend import build
    from dvm.torch.options import Options
    from torch._subclasses import FakeTensorMode

    graph, fake = torch.fx.Graph(), FakeTensorMode()
    nodes, fakes = [], []
    for i, a in enumerate(args):
        tensor = isinstance(a, torch.Tensor)
        nodes.append(graph.placeholder(f"x{i}") if tensor else a)
        fakes.append(fake.from_tensor(a) if tensor else a)
        if tensor:
            nodes[-1].meta["val"] = fakes[-1]
    node = graph.call_function(op, tuple(nodes))
    with fake:
        node.meta["val"] = op(*fakes)
    parts = []
    for i, val in enumerate(node.meta["val"]):
        parts.append(graph.call_function(operator.getitem, (node, i)))
        parts[-1].meta["val"] = val
    graph.output(tuple(parts))
    program, call = build(torch.fx.GraphModule({}, graph), "one_op", Options())
    assert not program.fallbacks
    return call([a for a in args if isinstance(a, torch.Tensor)])


def test_the_table_of_operators_lists_every_row():
    """docs/op-coverage.md is made from it; DVM_RECORD_OPS=1 writes it."""
    from dvm.torch.fx import ROWS

    listed = {line.split(" | ")[0] for line in optable.TABLE.read_text().splitlines()}
    assert listed >= set(ROWS)


EMPTY = {
    "empty": lambda x: torch.empty(x.shape, dtype=x.dtype),
    "empty_like": torch.empty_like,
    "empty_like_kept": lambda x: torch.empty_like(x, memory_format=torch.preserve_format),
    "new_empty": lambda x: x.new_empty(x.shape),
    "new_empty_strided": lambda x: x.new_empty_strided(x.shape, (1, x.shape[0])),
}


@pytest.mark.parametrize("dtype", (F32, BF16, torch.int64))
@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("name", EMPTY)
def test_uninitialized_memory(name, dynamic, dtype):
    """Overwritten in the kernel, it is no operator of torch; read as it is, it holds anything."""
    x = floats(F32, 6, 4).to(dtype).t()
    agree(lambda x: aten.copy(EMPTY[name](x), x) + 1, x, dynamic=dynamic)
    part = lambda x: aten.slice_scatter(EMPTY[name](x), x, 0, 0, x.shape[0]) * 2
    agree(part, x, dynamic=dynamic)
    low, want = lowered(EMPTY[name], x, dynamic=dynamic), EMPTY[name](x)
    got = low(x)
    assert not low.fallbacks and (got.dtype, got.shape) == (want.dtype, want.shape)
    assert got.stride() == want.stride()


@pytest.mark.parametrize("name", EMPTY)
def test_uninitialized_memory_compares_with_itself(name):
    """Option check compares kernels with torch, whose memory holds other numbers."""
    f = torch.compile(lambda x: (EMPTY[name](x), x * 2), backend="dvm", options={"check": True})
    x = floats(F32, 4, 6)
    torch.empty(24).fill_(math.nan)  # what an allocation may bring back
    assert torch.equal(f(x)[1], x * 2)
    torch._dynamo.reset()


def test_uninitialized_memory_that_torch_fills():
    torch.use_deterministic_algorithms(True)
    try:
        low = lowered(torch.empty_like, torch.ones(3))
        assert [op for op, _ in low.fallbacks] == ["aten.empty_like.default"]
        assert low(torch.ones(3)).isnan().all()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("strides", ((0, 1), (5, 1), (1, 3), (1, 1)))
def test_uninitialized_memory_that_overlaps(strides):
    x = torch.ones(3)
    low = lowered(lambda x: x.new_empty_strided((4, 6), strides), x)
    assert low(x).stride() == strides
    assert list(low.fallbacks) == [("aten.new_empty_strided.default", "elements that share memory")]
