"""Each method and rule of the kernel language against numpy."""

import itertools
import math

import dvm
import numpy as np
import pytest
from language import KINDS, bf16, declare, run, same, widen

F32, F16, I32, I64 = np.float32, np.float16, np.int32, np.int64
INTS = (I32, I64)


def normal(rng, *shape, dtype=F32):
    return rng.standard_normal(shape).astype(dtype)


# ------------------------------------------------------------------------------ one operand

UNARY = {
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tanh": np.tanh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round": np.round,
    "abs": np.abs,
    "neg": np.negative,
    "sign": np.sign,
    "relu": lambda x: np.maximum(x, 0),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_float_unary(rng, name, dtype):
    x = normal(rng, 7, 130) * 3
    if name in ("sqrt", "rsqrt", "log", "log2", "log1p"):
        x = np.abs(x)
    if dtype == "bfloat16":
        x = widen(bf16(x))
        got = run(lambda k, a: getattr(k, name)(a), bf16(x))
    else:
        x = x.astype(dtype)
        got = run(lambda k, a: getattr(k, name)(a), x)
    want = UNARY[name](x.astype(np.float64))
    eps = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}[dtype]
    same(got, want.astype(got.dtype), eps)


@pytest.mark.parametrize("kind", KINDS)
def test_unary_kinds(rng, kind):
    x = np.abs(normal(rng, 33, 5))
    same(run(lambda k, a: k.sqrt(a), x, kind=kind), np.sqrt(x))


def test_unary_special_values():
    x = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 1e-40], F32)
    with np.errstate(all="ignore"):
        same(run(lambda k, a: k.sqrt(a), x), np.sqrt(x))
        same(run(lambda k, a: k.reciprocal(a), x), (F32(1) / x))
        same(run(lambda k, a: k.log(a), x), np.log(x), 1e-6)
        same(run(lambda k, a: k.exp(a), x), np.exp(x), 1e-6)
        same(run(lambda k, a: k.relu(a), x), np.where(np.isnan(x), x, np.maximum(x, 0)))
        same(run(lambda k, a: k.sign(a), x), np.where(np.isnan(x), F32(0), np.sign(x)))


def test_isfinite_keeps_the_dtype():
    x = np.array([1.0, np.inf, -np.inf, np.nan, 0.0], F32)
    for name in ("isfinite", "is_finite"):
        same(run(lambda k, a, n=name: getattr(k, n)(a), x), np.isfinite(x).astype(F32))
    same(run(lambda k, a: k.isfinite(a), x.astype(F16)), np.isfinite(x).astype(F16))
    same(run(lambda k, a: k.isfinite(a), np.array([1, 2], I32)), np.ones(2, I32))
    same(run(lambda k, a: k.isnan(a), x), np.isnan(x))


def test_logical_not_is_one_minus_x():
    same(run(lambda k, a: k.logical_not(a), np.array([0, 1, 3], F32)), np.array([1, 0, -2], F32))
    same(run(lambda k, a: k.logical_not(a), np.array([0, 1, 3], I32)), np.array([1, 0, -2], I32))
    same(run(lambda k, a: k.logical_not(a), np.array([True, False])), np.array([False, True]))


@pytest.mark.parametrize("dtype", INTS)
def test_integer_unary(rng, dtype):
    x = rng.integers(-100, 100, (50,)).astype(dtype)
    x[0] = np.iinfo(dtype).min
    same(run(lambda k, a: k.abs(a), x), np.abs(x))
    same(run(lambda k, a: k.neg(a), x), -x)
    same(run(lambda k, a: k.sign(a), x), np.sign(x))
    same(run(lambda k, a: k.relu(a), x), np.maximum(x, 0))
    same(run(lambda k, a: k.bitwise_not(a), x), ~x)
    same(run(lambda k, a: k.floor(a), x), x)
    same(run(lambda k, a: k.sqrt(a), np.abs(x[1:])), np.sqrt(np.abs(x[1:]).astype(F32)))


def test_bool_unary_goes_through_fp16():
    x = np.array([True, False, True])
    same(run(lambda k, a: k.sqrt(a), x), x)
    same(run(lambda k, a: k.exp(a), x), np.ones(3, bool))
    same(run(lambda k, a: k.abs(a), x), x)


def test_older_names(rng):
    x = np.abs(normal(rng, 9)) + 1
    y = np.abs(normal(rng, 9)) + 1
    same(run(lambda k, a: k.unary("Sqrt", a), x), np.sqrt(x))
    same(run(lambda k, a: k.unary("IsFinite", a), x), np.ones(9, F32))
    same(run(lambda k, a, b: k.binary("Add", a, b), x, y), x + y)
    same(run(lambda k, a, b: k.binary("LessEqual", a, b), x, y), x <= y)
    same(run(lambda k, a: k.reduce("sum", a, [0], False), x), x.sum(), 1e-6)
    with pytest.raises(dvm.ArgumentError, match="Sqroot"):
        run(lambda k, a: k.unary("Sqroot", a), x)


# ------------------------------------------------------------------------------ two operands

BINARY = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
SHAPES = [((5, 7), (5, 7)), ((1, 7), (5, 1)), ((7,), (3, 5, 7)), ((), (4,)), ((2, 1, 3), (4, 1))]


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("dtype", [F32, F16, I32, I64])
def test_binary(rng, name, dtype):
    for s, t in SHAPES:
        x, y = (rng.integers(-9, 9, z).astype(dtype) for z in (s, t))
        same(run(lambda k, a, b: getattr(k, name)(a, b), x, y), BINARY[name](x, y))


@pytest.mark.parametrize("name", BINARY)
def test_binary_bf16(rng, name):
    x, y = (widen(bf16(normal(rng, 40))) for _ in range(2))
    want = BINARY[name](x, y)
    if want.dtype == F32:
        want = widen(bf16(want))
    same(run(lambda k, a, b: getattr(k, name)(a, b), bf16(x), bf16(y)), want)


@pytest.mark.parametrize("kind", KINDS)
def test_binary_kinds(rng, kind):
    x, y = normal(rng, 65, 3), normal(rng, 65, 1)
    same(run(lambda k, a, b: k.mul(k.add(a, b), a), x, y, kind=kind), (x + y) * x)


def test_division_and_modulus(rng):
    x, y = normal(rng, 99) * 10, normal(rng, 99)
    same(run(lambda k, a, b: k.div(a, b), x, y), x / y)
    same(run(lambda k, a, b: k.floor_divide(a, b), x, y), np.floor(x / y), 1e-6)
    same(run(lambda k, a, b: k.remainder(a, b), x, y), np.remainder(x, y), 1e-6)
    same(run(lambda k, a, b: k.fmod(a, b), x, y), np.fmod(x, y), 1e-6)
    for dtype in INTS:
        i = rng.integers(-50, 50, 99).astype(dtype)
        j = rng.integers(1, 9, 99).astype(dtype) * np.where(rng.random(99) < 0.5, -1, 1)
        j = j.astype(dtype)
        same(run(lambda k, a, b: k.floor_divide(a, b), i, j), i // j)
        same(run(lambda k, a, b: k.remainder(a, b), i, j), i % j)
        same(run(lambda k, a, b: k.fmod(a, b), i, j), np.fmod(i, j))
        want = np.trunc(i / j).astype(dtype)
        same(run(lambda k, a, b: k.trunc_divide(a, b), i, j), want)
        same(run(lambda k, a, b: k.div(a, b), i, j), (i.astype(F32) / j.astype(F32)))
        zero = np.zeros(99, dtype)
        same(run(lambda k, a, b: k.floor_divide(a, b), i, zero), zero)


def test_integers_wrap():
    x = np.array([2**31 - 1, -(2**31)], I32)
    same(run(lambda k, a: k.add(a, 1), x), np.array([-(2**31), -(2**31) + 1], I32))
    same(run(lambda k, a: k.mul(a, 2), x), np.array([-2, 0], I32))
    y = np.array([2**63 - 1], I64)
    same(run(lambda k, a: k.add(a, 1), y), np.array([-(2**63)], I64))


def test_bitwise(rng):
    for dtype in INTS:
        x, y = (rng.integers(-1000, 1000, 33).astype(dtype) for _ in range(2))
        same(run(lambda k, a, b: k.bitwise_and(a, b), x, y), x & y)
        same(run(lambda k, a, b: k.bitwise_or(a, b), x, y), x | y)
        same(run(lambda k, a, b: k.bitwise_xor(a, b), x, y), x ^ y)
        n = (y & 7).astype(dtype)
        same(run(lambda k, a, b: k.bitwise_left_shift(a, b), x, n), x << n)
        same(run(lambda k, a, b: k.bitwise_right_shift(a, b), x, n), x >> n)


def test_logical_and_or_are_min_and_max():
    x, y = np.array([0, 1, 3, 2], F32), np.array([1, 1, 2, 5], F32)
    same(run(lambda k, a, b: k.logical_and(a, b), x, y), np.minimum(x, y))
    same(run(lambda k, a, b: k.logical_or(a, b), x, y), np.maximum(x, y))
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    same(run(lambda k, a, b: k.logical_and(a, b), p, q), p & q)
    same(run(lambda k, a, b: k.logical_or(a, b), p, q), p | q)
    same(run(lambda k, a, b: k.logical_xor(a, b), p, q), p ^ q)
    same(run(lambda k, a, b: k.logical_xor(a, b), x, y), (x != 0) ^ (y != 0))


def test_bool_arithmetic_goes_through_fp16():
    p, q = np.array([True, True, False, False]), np.array([True, False, True, False])
    for name, op in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        want = op(p.astype(F16), q.astype(F16)).astype(bool)
        same(run(lambda k, a, b, n=name: getattr(k, n)(a, b), p, q), want)
    same(run(lambda k, a: k.sub(a, 2), p), np.ones(4, bool))
    same(run(lambda k, a: k.mul(a, 0), p), np.zeros(4, bool))
    same(run(lambda k, a: k.mul(a, 0.5), p), p)
    same(run(lambda k, a: k.greater(a, 0.5), p), p)
    same(run(lambda k, a: k.less(a, 2), p), np.ones(4, bool))


def test_nan_in_maximum_and_minimum():
    x, y = np.array([np.nan, 1, np.nan, 2], F32), np.array([1, np.nan, np.nan, 3], F32)
    same(run(lambda k, a, b: k.maximum(a, b), x, y), np.maximum(x, y))
    same(run(lambda k, a, b: k.minimum(a, b), x, y), np.minimum(x, y))


# ------------------------------------------------------------------------------ scalars


def test_numbers_take_the_dtype_of_the_tensor():
    i = np.array([1, -2, 3], I32)
    same(run(lambda k, a: k.add(a, 2.7), i), i + 2)
    same(run(lambda k, a: k.add(a, 0.5), i), i)
    same(run(lambda k, a: k.mul(-2.7, a), i), i * -2)
    h = np.array([1, 2, 3], F16)
    same(run(lambda k, a: k.mul(a, 0.1), h), h * F16(0.1))
    b = np.array([2**32 + 1, -5], I64)
    same(run(lambda k, a: k.add(a, 2**32), b), b + 2**32)
    same(run(lambda k, a: k.sub(-(2**32), a), b), -(2**32) - b)
    f = np.array([1, 2], F32)
    same(run(lambda k, a: k.sub(3, a), f), 3 - f)
    same(run(lambda k, a: k.div(1.0, a), f), 1 / f)
    same(run(lambda k, a: k.div(a, 3), f), f / F32(3))
    same(run(lambda k, a: k.less(1.5, a), f), f > 1.5)
    same(run(lambda k, a: k.add(a, np.float32(1)), f), f + 1)
    same(run(lambda k, a: k.add(a, True), f), f + 1)


def test_operators_on_values(rng):
    x, y = normal(rng, 20), normal(rng, 20) + 3
    same(run(lambda k, a, b: (a + b) * 2 - 1, x, y), (x + y) * 2 - 1)
    same(run(lambda k, a, b: 1 - a, x, y), 1 - x)
    same(run(lambda k, a, b: 1 / b, x, y), 1 / y)
    same(run(lambda k, a, b: -a, x, y), -x)
    same(run(lambda k, a, b: abs(a), x, y), np.abs(x))
    same(run(lambda k, a, b: a**2, x, y), x * x)
    same(run(lambda k, a, b: a < b, x, y), x < y)
    same(run(lambda k, a, b: (a >= b) | (a <= 0), x, y), (x >= y) | (x <= 0))
    same(run(lambda k, a, b: ~(a > b) & (a != a), x, y), np.zeros(20, bool))
    same(run(lambda k, a, b: np.float32(2) * a, x, y), 2 * x)
    i = rng.integers(1, 9, 20).astype(I32)
    same(
        run(lambda k, a: (a // 2) + (a % 3) + (a << 1) + (a >> 1), i),
        i // 2 + i % 3 + i * 2 + (i >> 1),
    )
    with pytest.raises(TypeError, match="truth"):
        run(lambda k, a: a if a > 1 else -a, x)


def test_scalar_refs(rng):
    x = normal(rng, 10)
    k = dvm.PyKernel("vector:dyn")
    a, s = declare(k, x), k.scalar()
    out = k.store(k.mul(k.add(a, s), 2.0))
    left = k.store(k.sub(s, a))
    for value in (1, 2.5, -3, 0.1):
        k.input(s, value)
        k.run()
        same(k.output(out), (x + F32(value)) * 2)
        same(k.output(left), F32(value) - x)


def test_scalar_ref_64_bit():
    x = np.array([1, 2**40], I64)
    k = dvm.PyKernel("split:dyn")
    a, s = declare(k, x), k.scalar(dvm.int64)
    p, q = k.store(k.add(a, s)), k.store(k.sub(s, a))
    s.update(-(2**33))
    k.run()
    same(k.output(p), x - 2**33)
    same(k.output(q), -(2**33) - x)


# ------------------------------------------------------------------------------ power


@pytest.mark.parametrize("n,count", [(3, 2), (10, 4), (-8, 3), (11, 5), (15, 6), (20, 5)])
def test_integer_powers_are_multiplications(rng, n, count):
    x = (rng.random(64) + 0.5).astype(F32)
    k = dvm.PyKernel("vector")
    out = k.store(k.pow(declare(k, x), n))
    k.run()
    same(k.output(out), (x.astype(np.float64) ** n).astype(F32), 1e-5)
    assert k.das().count("Mul.fp32") == count


@pytest.mark.parametrize("n", [0, 1, 2, 5.0, -7.0, 0.0, 0.5, -0.5, 2.25, 200])
def test_power_of_number(rng, n):
    x = (rng.random(64) * 0.5 + 0.75).astype(F32)
    same(run(lambda k, a: k.pow(a, n), x), (x.astype(np.float64) ** n).astype(F32), 1e-5)
    h = x.astype(F16)
    if n != 200:
        same(run(lambda k, a: k.pow(a, n), h), (h.astype(F32) ** n).astype(F16), 2e-3)
    same(run(lambda k, a: k.pow(1.5, a), x), (1.5 ** x.astype(np.float64)).astype(F32), 1e-6)


def test_power_identities():
    x = np.array([-2, -3, -4, 0, -2, 9], F32)
    y = np.array([1, 2, 3, 0, 0.5, 0.5], F32)
    want = np.array([-2, 9, -64, 1, np.nan, 3], F32)
    same(run(lambda k, a, b: k.pow(a, b), x, y), want, 1e-6)
    i = np.array([2, -3, 0], I32)
    same(run(lambda k, a: k.pow(a, 3), i), i**3)


# ------------------------------------------------------------------------------ select and cast


def test_select(rng):
    c, a, b = normal(rng, 6, 1) > 0, normal(rng, 6, 5), normal(rng, 5)
    same(run(lambda k, c, a, b: k.select(c, a, b), c, a, b), np.where(c, a, b))
    same(run(lambda k, c, a, b: k.where(k.greater(a, 0), a, 0), c, a, b), np.where(a > 0, a, 0))
    same(run(lambda k, c, a, b: k.select(c, 1.5, b), c, a, b), np.where(c, F32(1.5), b))
    n = np.array([0.0, 0.5, 2.0, np.nan], F32)
    i = np.array([1, 2, 3, 4], I32)
    # A condition takes the dtype of the values: 0.5 is 0 among integers.
    same(run(lambda k, n, i: k.select(n, i, 0), n, i), np.array([0, 0, 3, 0], I32))
    same(run(lambda k, n, i: k.select(n, n, -1.0), n, i)[:3], np.array([-1, 0.5, 2], F32))
    wide = np.array([2**40, 5], I64)
    same(run(lambda k, c, a: k.select(c, a, 0), np.array([1, 0], I32), wide), wide * [1, 0])


def test_cast_pairs(rng):
    base = np.array([0, 1, 2, -3, 100], F32)
    dtypes = ["bool", "float16", "float32", "int32", "int64"]
    for s in dtypes:
        x = base.astype(s)
        for t in dtypes:
            same(run(lambda k, a, t=t: k.cast(a, t), x), x.astype(t))
        same(run(lambda k, a: k.cast(k.cast(a, "bfloat16"), "float32"), x), x.astype(F32))
    for t in ("float64", "uint8", "int8"):
        x = np.array([0, 1, 5], t)
        same(run(lambda k, a: k.cast(a, "float32"), x), x.astype(F32))
        same(run(lambda k, a, t=t: k.cast(a, t), x.astype(F32)), x)


def test_cast_rounds_and_saturates():
    x = np.array([1 / 3, 1e-3, 12345.678], F32)
    same(run(lambda k, a: k.cast(k.cast(a, "fp16"), "fp32"), x), x.astype(F16).astype(F32))
    same(run(lambda k, a: k.cast(a, dvm.bfloat16), x), widen(bf16(x)))
    y = np.array([np.nan, np.inf, -np.inf, 3e10, -2.9, 2.9], F32)
    want = np.array([0, 2**31 - 1, -(2**31), 2**31 - 1, -2, 2], I32)
    same(run(lambda k, a: k.cast(a, "int32"), y), want)
    same(run(lambda k, a: k.cast(a, "bool"), y), np.ones(6, bool))
    z = np.array([2**32 + 5, -1], I64)
    same(run(lambda k, a: k.cast(a, "int32"), z), np.array([5, -1], I32))


def test_cast_to_the_same_dtype_is_the_same_value():
    k = dvm.Kernel()
    x = k.load([2], dvm.float32)
    assert k.cast(x, "float32") is x
    assert k.cast(x, np.float32) is x


# ------------------------------------------------------------------------------ shapes


@pytest.mark.parametrize("kind", ["split", "split:dyn"])
def test_shape_operations(rng, kind):
    x = normal(rng, 4, 6, 5)
    cases = [
        (lambda k, a: k.reshape(a, [24, 5]), x.reshape(24, 5)),
        (lambda k, a: k.reshape(a, [-1, 10]), x.reshape(-1, 10)),
        (lambda k, a: k.reshape(k.reshape(a, [-1]), (5, 24)), x.reshape(5, 24)),
        (lambda k, a: k.permute(a, [2, 0, 1]), x.transpose(2, 0, 1)),
        (lambda k, a: k.transpose(a), x.swapaxes(1, 2)),
        (lambda k, a: k.exp(k.permute(a, [1, 2, 0])), np.exp(x.transpose(1, 2, 0))),
        (lambda k, a: k.broadcast(a, [2, -1, 6, 5]), np.broadcast_to(x, (2, 4, 6, 5))),
        (lambda k, a: k.slice(a, [1, -3, 0], [2, 2, 5]), x[1:3, 3:5, :]),
        (lambda k, a: k.slice(a, [0, 1, 0], [-1, -1, -1], [1, 2, 1]), x[:, 1::2, :]),
        (lambda k, a: k.slice_dim(a, 1, 1, 4), x[:, 1:4]),
        (lambda k, a: k.slice_dim(a, -1, -4, -1), x[..., -4:-1]),
        (lambda k, a: k.slice_dim(a, 0, 1, 100000), x[1:]),
        (lambda k, a: k.slice_dim(a, 0, -2, 100000), x[-2:]),
        (lambda k, a: k.slice_dim(a, 0, -100, 2), x[-100:2]),
        (lambda k, a: k.slice_dim(a, 0, 3, 1), x[3:1]),
        (lambda k, a: k.slice_dim(k.mul(a, 2), 2, 1, 3), 2 * x[..., 1:3]),
        (lambda k, a: k.concat([a, k.mul(a, 2)], 1), np.concatenate([x, 2 * x], 1)),
        (lambda k, a: k.concat([a, a], -1), np.concatenate([x, x], -1)),
        (lambda k, a: k.stack([a, k.neg(a)], 1), np.stack([x, -x], 1)),
        (lambda k, a: k.copy(a), x),
    ]
    for i, (fn, want) in enumerate(cases):
        got = run(fn, x, kind=kind)
        np.testing.assert_allclose(got, want, rtol=1e-6, err_msg=f"case {i}")
        assert got.shape == want.shape, i


def test_full_iota():
    for kind in ("split", "split:dyn"):
        same(run(lambda k: k.full(2.5, [2, 3], "float32"), kind=kind), np.full((2, 3), 2.5, F32))
    same(run(lambda k: k.full(2.7, [2], "int32")), np.full(2, 2, I32))
    same(run(lambda k: k.full(True, [], dvm.bool_)), np.array(True))
    same(run(lambda k: k.full(2**40, [1], "int64")), np.full(1, 2**40))
    same(run(lambda k: k.broadcast(0.5, [3])), np.full(3, 0.5, F32))
    same(run(lambda k: k.broadcast(2, [3], "float16")), np.full(3, 2, F16))
    same(run(lambda k: k.iota([2, 3], 1)), np.broadcast_to(np.arange(3), (2, 3)))
    same(run(lambda k: k.iota([4], 0, "float32")), np.arange(4, dtype=F32))


def test_gather(rng):
    x = normal(rng, 5, 7, 3)
    idx = rng.integers(-7, 7, (5, 4, 3)).astype(I32)
    for kind in ("split", "split:dyn"):
        got = run(lambda k, a, i: k.gather(a, i, 1), x, idx, kind=kind)
        same(got, np.take_along_axis(x, idx, 1))
        j = np.array([[2, -1], [0, 4]], I64)
        same(run(lambda k, a, i: k.take(a, i, 0), x, j, kind=kind), np.take(x, j, 0))
        same(run(lambda k, a, i: k.gather(a, i, -1, 1), x, j % 3, kind=kind), np.take(x, j % 3, 2))
    with pytest.raises(dvm.OutOfRangeError):
        run(lambda k, a, i: k.take(a, i, 0), x, np.array([9], I32))


# ------------------------------------------------------------------------------ reductions

AXES = [[0], [1], [-1], [0, 1], [0, 2], [2, 0], [1, 2], []]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("kind", ["vector", "split:dyn"])
def test_reductions(rng, keep, kind):
    x = normal(rng, 6, 33, 17)
    for axes in AXES:
        axis = tuple(axes) if axes else None
        for name, fn in (("sum", np.sum), ("max", np.max), ("min", np.min)):
            got = run(lambda k, a, n=name, d=axes: getattr(k, n)(a, d, keep), x, kind=kind)
            same(got, np.asarray(fn(x, axis=axis, keepdims=keep)), 1e-5 if name == "sum" else None)


def test_sum_of_other_dtypes(rng):
    h = (rng.random((9, 100)) - 0.5).astype(F16)
    same(run(lambda k, a: k.sum(a, [1]), h), h.astype(F32).sum(1).astype(F16), 1e-3)
    b = bf16(normal(rng, 9, 100))
    same(run(lambda k, a: k.sum(a, [1]), b), widen(bf16(widen(b).sum(1))), 1e-2)
    i = rng.integers(-(2**30), 2**30, (9, 100)).astype(I32)
    same(run(lambda k, a: k.sum(a, [1]), i), i.sum(1, dtype=I64))
    same(run(lambda k, a: k.sum(a, [1], False, "int32"), i), i.sum(1, dtype=I64).astype(I32))
    p = rng.random((9, 100)) < 0.5
    same(run(lambda k, a: k.sum(a, [0]), p), p.sum(0, dtype=I64))
    same(run(lambda k, a: k.max(a, [0]), i), i.max(0))
    same(
        run(lambda k, a: k.sum(a, [0, 1], True, "float32"), h),
        h.astype(F32).sum(keepdims=True),
        1e-5,
    )


def test_other_reductions(rng):
    x = normal(rng, 8, 40)
    y = (rng.random((8, 10)) + 0.5).astype(F32)
    same(run(lambda k, a: k.prod(a, [1]), y), y.astype(np.float64).prod(1).astype(F32), 1e-5)
    same(run(lambda k, a: k.mean(a, [1]), x), x.mean(1, dtype=np.float64).astype(F32), 1e-6)
    same(run(lambda k, a: k.mean(a, [], True), x), x.mean(keepdims=True), 1e-6)
    same(run(lambda k, a: k.var(a, [1]), x), x.var(1, ddof=1), 1e-5)
    same(run(lambda k, a: k.var(a, [0], True, 0), x), x.var(0, keepdims=True), 1e-5)
    same(run(lambda k, a: k.std(a, [1], correction=0), x), x.std(1), 1e-5)
    v, m = run(lambda k, a: k.var_mean(a, [1], correction=0), x)
    same(v, x.var(1), 1e-5)
    same(m, x.mean(1), 1e-6)
    same(run(lambda k, a: k.any(a, [1]), x > 2), (x > 2).any(1))
    same(run(lambda k, a: k.all(a, [0]), x), x.all(0))
    same(run(lambda k, a: k.argmax(a, 1), x), x.argmax(1))
    same(run(lambda k, a: k.argmin(a, 0, True), x), x.argmin(0)[None])
    same(run(lambda k, a: k.argmax(a), x), np.asarray(x.argmax()))
    same(run(lambda k, a: k.cumsum(a), x), x.cumsum(1), 1e-5)
    same(run(lambda k, a: k.cumsum(a, 0), x), x.cumsum(0), 1e-5)
    i = rng.integers(0, 9, (4, 5)).astype(I32)
    same(run(lambda k, a: k.cumsum(a, 1), i), i.cumsum(1))
    # Far from 0 the centred form keeps its digits.
    far = (x + 1e4).astype(F32)
    same(
        run(lambda k, a: k.var(a, [1], correction=0), far),
        far.astype(np.float64).var(1).astype(F32),
        1e-4,
    )


@pytest.mark.parametrize("shape", [(4, 1), (3, 64), (2, 5000), (2, 0)])
def test_cumsum_rounds_every_sum_once(rng, shape):
    """Sums of like terms drift when each is added to the rounded sum before it."""
    for x in (np.full(shape, -13.1, F32), normal(rng, *shape), np.full(shape, 3e38, F32)):
        x[:, 1:2] *= -1
        with np.errstate(over="ignore"):
            want = x.astype(np.float64).cumsum(1).astype(F32)
        np.testing.assert_array_equal(run(lambda k, a: k.cumsum(a), x), want)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "float16"])
@pytest.mark.parametrize("n", [33, 76, 200, 1100])
def test_cumsum_beside_an_operand_that_lies_along_the_rows(rng, dtype, n):
    """The order of the sums is that of columns, in whatever pieces an operand is fetched."""
    x = normal(rng, 2, n)
    turned = rng.integers(-9, 9, (n, 2)).astype(dtype).T

    @dvm.kernel
    def sums(k, a, b):
        a, b = k.load(a, "float32"), k.load(b, dtype)
        return k.store(k.cumsum(k.add(a, k.cast(b, "float32"))))

    assert sums(x, turned).tobytes() == sums(x, turned.copy()).tobytes()


def test_reductions_with_nan():
    x = np.array([[1, np.nan, 3], [4, 5, 6]], F32)
    same(run(lambda k, a: k.max(a, [1]), x), np.max(x, 1))
    same(run(lambda k, a: k.min(a, [1]), x), np.min(x, 1))
    same(run(lambda k, a: k.sum(a, [1]), x), np.sum(x, 1))
    same(run(lambda k, a: k.argmax(a, 1), x), np.argmax(x, 1))


def test_long_sums(rng):
    for shape in ((35053,), (521, 1024), (2687, 4096)):
        x = normal(rng, *shape)
        got = run(lambda k, a: k.sum(k.mul(a, a), [-1]), x)
        same(got, (x.astype(np.float64) ** 2).sum(-1).astype(F32), 1e-4)


def test_values_before_and_after_a_reduction(rng):
    x = normal(rng, 40, 100)

    def softmax(k, a):
        e = k.exp(k.sub(a, k.max(a, [1], True)))
        return k.div(e, k.sum(e, [1], True))

    e = np.exp(x - x.max(1, keepdims=True))
    for kind in ("vector:spec", "split", "split:dyn", "vector:spec,dyn", "eager"):
        same(run(softmax, x, kind=kind), e / e.sum(1, keepdims=True), 1e-6)


# ------------------------------------------------------------------------------ composites


@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int32", "bfloat16"])
def test_one_hot(rng, axis, dtype):
    i = rng.integers(0, 6, (4, 3)).astype(I32)
    want = np.where(i[..., None] == np.arange(6), 2.0, 1.0)
    want = np.moveaxis(want, -1, axis if axis >= 0 else axis + 3)
    got = run(lambda k, a: k.one_hot(a, 6, axis, 2, 1, dtype), i)
    same(got, want.astype(F32 if dtype == "bfloat16" else dtype))
    out = np.array([7, -1, 2], I32)
    same(
        run(lambda k, a: k.one_hot(a, 3, -1, 1.0, 0.0, "float32"), out),
        np.eye(9, dtype=F32)[[7, 8, 2], :3],
    )


def test_element_any(rng):
    for kind in ("vector", "split:dyn"):
        for x in (np.zeros((3, 5), F32), normal(rng, 3, 5), np.zeros((0, 4), F32)):
            got = run(lambda k, a: k.element_any(a), x, kind=kind)
            same(got, np.array([float(np.any(x))], F32))
    same(run(lambda k, a: k.element_any(a), np.array([0, 1], F16)), np.ones(1, F32))


def test_clamp_fma(rng):
    x = normal(rng, 50)
    x[3] = np.nan
    same(run(lambda k, a: k.clamp(a, -0.5, 0.5), x), np.clip(x, F32(-0.5), F32(0.5)))
    same(run(lambda k, a: k.clamp(a, high=0.5), x), np.minimum(x, F32(0.5)))
    y, z = normal(rng, 50), normal(rng, 50)
    want = (x.astype(np.float64) * y + z).astype(F32)
    same(run(lambda k, a, b, c: k.fma(a, b, c), x, y, z), want, 1e-7)


# ------------------------------------------------------------------------------ loads and stores


def test_view_load(rng):
    x = normal(rng, 10, 12)
    cases = [
        ((12, 10), (1, 12), 0, x.T),
        (
            (3, 4),
            (24, 2),
            13,
            x.reshape(-1)[13:][np.add.outer(np.arange(3) * 24, np.arange(4) * 2)],
        ),
        ((5, 12), (0, 1), 24, np.broadcast_to(x[2], (5, 12))),
        ((4, 6), (1, 1), 0, x.reshape(-1)[np.add.outer(np.arange(4), np.arange(6))]),
    ]
    for kind in ("vector", "vector:dyn", "split"):
        for shape, stride, offset, want in cases:
            k = dvm.PyKernel(kind)
            a = k.view_load(shape, stride, dvm.float32)
            out = k.store(k.add(a, 1.0))
            k.input(a, x, offset)
            k.run()
            same(k.output(out), (want + 1).astype(F32))
    k = dvm.PyKernel()
    a = k.view_load((11, 12), (12, 1), dvm.float32)
    k.store(a)
    k.input(a, x)
    with pytest.raises(dvm.ShapeError, match="needs 132 elements"):
        k.run()


def test_other_loads(rng):
    x = normal(rng, 6, 8)
    k = dvm.PyKernel("split")
    a = k.slice_load([6, 8], [1, -3], [4, 2], "float32")
    b = k.stridedslice_load([6, 8], [0, -4], [-2, 100], [1, 1], "float32")
    idx = k.global_access([6, 3], dvm.int32)
    c = k.gather_load([6, 8], idx, dvm.float32, 1)
    index_load = k.load([2], dvm.int32)
    d = k.gather_load([6, 8], index_load, dvm.float32, axis=0, gather_mode=1)
    outs = [k.store(v) for v in (a, b, c, d)]
    index, rows = np.array([[0, -1, 3]] * 6, I32), np.array([5, -6], I32)
    for ref in (a, b, c, d):
        k.input(ref, x)
    k.input(idx, index)
    k.input(index_load, rows)
    k.run()
    wants = (x[1:5, 5:7], x[:4, 4:], np.take_along_axis(x, index, 1), x[rows])
    for out, want in zip(outs, wants, strict=True):
        same(k.output(out), want)
    with pytest.raises(dvm.ArgumentError, match="step"):
        k.stridedslice_load([6, 8], [0, 0], [6, 8], [2, 1], "float32")


def test_stores(rng):
    x = normal(rng, 3, 4)
    k = dvm.PyKernel("split")
    a = declare(k, x)
    direct = k.store(a)
    twice = k.store(a)
    typed = k.store(k.mul(a, 2), dvm.int32)
    strided = k.view_store(k.neg(a), (1, 5))
    padded = k.pad_store(a, 2)
    tuple_padded = k.pad_store(a, (1, 2))
    k.run()
    same(k.output(direct), x)
    same(k.output(twice), x)
    same(k.output(typed), (2 * x).astype(I32))
    memory = k.output(strided)
    want = np.zeros(1 + 2 + 15, F32)
    want[np.add.outer(np.arange(3), np.arange(4) * 5)] = -x
    same(memory, want)
    same(k.output(padded)[:, :4], x)
    assert k.output(padded).shape == (3, 6)
    assert k.output(tuple_padded).shape == (4, 6)
    same(k.output(tuple_padded)[:3, :4], x)


def test_set_output(rng):
    x = normal(rng, 3, 4)
    k = dvm.PyKernel("vector")
    out = k.store(k.mul(declare(k, x), 3))
    mine = np.zeros((3, 8), F32)[:, ::2]
    k.set_output(out, mine)
    k.run()
    same(mine, x * 3)
    assert k.output(out) is mine
    k.set_output(out, np.zeros(5, F32))
    with pytest.raises(dvm.ShapeError):
        k.run()
    with pytest.raises(dvm.DTypeError):
        k.set_output(out, np.zeros((3, 4)))
    frozen = np.zeros((3, 4), F32)
    frozen.flags.writeable = False
    with pytest.raises(dvm.ArgumentError, match="written"):
        k.set_output(out, frozen)


def test_bound_loads(rng):
    x = normal(rng, 4, 6)
    k = dvm.PyKernel("vector:spec,priv1")
    a = declare(k, x)
    s = k.store(k.exp(a))
    k.set_store_temp(s)
    b = k.load([6, 4], dvm.float32)
    c = k.view_load([6, 4], [1, 6], dvm.float32)
    k.set_load_bind(b, s)
    k.set_load_bind(c, s)
    p, q = k.store(k.add(b, 1)), k.store(k.mul(c, 2))
    k.run()
    e = np.exp(x)
    same(k.output(p), e.reshape(6, 4) + 1, 1e-6)
    same(k.output(q), e.T * 2, 1e-6)


def test_load_bound_to_another_argument(rng):
    x = normal(rng, 4, 6)
    k = dvm.PyKernel("split")
    flat = k.load([24], dvm.float32)
    a = k.global_access([4, 6], dvm.float32)
    k.set_load_bind(flat, a)
    out = k.store(k.neg(flat))
    k.input(a, x)
    k.run()
    same(k.output(out), -x.reshape(-1))


# ------------------------------------------------------------------------------ dynamic shapes


def test_one_kernel_for_many_ranks(rng):
    k = dvm.PyKernel("vector:dyn")
    a, b = k.load([-1], "float32"), k.load([4096, -1], "float32")
    out = k.store(k.add(a, b))
    for s, t in [((1000,), (1000,)), ((500, 1), (1, 1024)), ((2, 3, 4, 5), (5,)), ((), (3,))]:
        x, y = normal(rng, *s), normal(rng, *t)
        k.input(a, x)
        k.input(b, y)
        k.run()
        same(k.output(out), x + y)


def test_int_arrays_between_runs(rng):
    k = dvm.PyKernel("split:dyn")
    a = k.load([-1], "float32")
    shape, axes, wide = k.int_array(), dvm.IntArrayRef(), dvm.ShapeRef()
    r = k.reshape(a, shape)
    s = k.sum(r, axes, True)
    out, total = k.store(k.broadcast(s, wide)), k.store(r)
    for sh, ax, w in [([4, 6], [0], [5, -1]), ((2, 3, 4), (1, 2), (2, 7, 4)), ([24], [], [24])]:
        x = normal(rng, 24)
        k.input(a, x)
        shape.update(sh)
        axes.update(ax)
        wide.update(w if ax != (1, 2) else (2, 7, 4))
        k.run()
        want = x.reshape(sh).sum(tuple(ax) or None, keepdims=True)
        want = want if ax else want.reshape([1] * len(sh))
        target = [d if d >= 0 else want.shape[i] for i, d in enumerate(wide)]
        same(k.output(total), x.reshape(sh))
        same(k.output(out), np.broadcast_to(want, target).astype(F32), 1e-5)


def test_dynamic_composites(rng):
    k = dvm.PyKernel("split:dyn")
    a = k.load([-1], "float32")
    outs = [
        k.store(k.mean(a, [-1])),
        k.store(k.var(a, [0], True)),
        k.store(k.slice_dim(a, -1, 1, -1)),
        k.store(k.cumsum(a, 0)),
        k.pad_store(a, 3),
        k.store(k.transpose(a, 0, -1)),
    ]
    for shape in [(5, 7), (3, 4, 6), (9, 2)]:
        x = normal(rng, *shape)
        k.input(a, x)
        k.run()
        wants = [
            x.mean(-1),
            x.var(0, ddof=1, keepdims=True),
            x[..., 1:-1],
            x.cumsum(0),
            np.concatenate([x, np.zeros((*shape[:-1], 3), F32)], -1),
            x.swapaxes(0, -1),
        ]
        for out, want in zip(outs, wants, strict=True):
            same(k.output(out), want, 1e-5)


def test_slice_bounds_as_scalars(rng):
    k = dvm.PyKernel("split:dyn")
    a = k.load([-1, -1], "float32")
    b, e = k.scalar(dvm.int64), k.scalar(dvm.int64)
    out = k.store(k.slice_dim(a, 1, b, e))
    x = normal(rng, 3, 10)
    k.input(a, x)
    for lo, hi in [(0, 5), (2, -1), (-4, 100000), (-2, 10), (5, 3), (-100, 4)]:
        b.update(lo)
        e.update(hi)
        k.run()
        same(k.output(out), x[:, lo:hi])


def test_symbolic_shapes(rng):
    k = dvm.PyKernel("split:dyn,priv1")
    a, b, c = (k.load(s, "float32") for s in ([-1, -2], [-3, -1, -2], [-4, -1, -2]))
    out = k.store(k.add(k.mul(k.add(a, b), 2), c))
    k.codegen()
    for m, n, p in [(4, 5, 3), (7, 2, 1)]:
        x, y, z = normal(rng, m, n), normal(rng, p, m, n), normal(rng, 1, m, n)
        for ref, v in ((a, x), (b, y), (c, z)):
            k.input(ref, v)
        k.run()
        same(k.output(out), (x + y) * 2 + z)


def test_zero_sizes():
    for kind in ("split", "split:dyn"):
        x = np.zeros((0, 4), F32)
        same(run(lambda k, a: k.add(a, 1), x, kind=kind), x)
        same(run(lambda k, a: k.sum(a, [0]), x, kind=kind), np.zeros(4, F32))
        same(run(lambda k, a: k.sum(a, [1]), x, kind=kind), np.zeros(0, F32))
        same(run(lambda k, a: k.reshape(a, [2, 0]), x, kind=kind), np.zeros((2, 0), F32))
        same(run(lambda k, a: k.concat([a, a], 0), x, kind=kind), x)


# ------------------------------------------------------------------------------ structure


def test_parallel(rng):
    x, y = normal(rng, 50), normal(rng, 3, 9)
    k = dvm.PyKernel("parallel")
    k.parallel_add(k.K_VEC)
    p = k.store(k.exp(declare(k, x)))
    k.parallel_add(k.K_VEC, 0, 4)
    q = k.store(k.sum(declare(k, y), [1]))
    k.run()
    same(k.output(p), np.exp(x), 1e-6)
    same(k.output(q), y.sum(1), 1e-5)
    old = dvm.PyKernel("parallel")
    p = old.store(old.exp(declare(old, x)))
    old.p_next()
    q = old.store(old.neg(declare(old, y)))
    old.run()
    same(old.output(p), np.exp(x), 1e-6)
    same(old.output(q), -y)


def test_limits_and_tuning_change_nothing(rng):
    x, w = normal(rng, 37, 300), normal(rng, 300, 41)

    def bits(limit):
        k = dvm.PyKernel("parallel")
        k.parallel_add(k.K_CUBE, 0, limit)
        p = k.store(k.matmul(declare(k, x), declare(k, w)))
        k.parallel_add(k.K_VEC, 0, limit)
        q = k.store(k.sum(declare(k, x), [1]))
        k.run()
        return k.output(p).tobytes(), k.output(q).tobytes()

    want = bits(0)
    assert bits(1) == bits(1000) == bits(np.int64(2)) == bits(2**40) == want
    calls = (
        dvm.PyKernel.set_deterministic,
        dvm.PyKernel.set_determ,
        dvm.PyKernel.set_online_tuning,
        dvm.PyKernel.set_lazy_tuning,
    )
    for call, enable in itertools.product(calls, (True, False)):
        assert call(enable) is None
        assert bits(2) == want
    for limit in (-1, 1.5, "2", True):
        with pytest.raises(dvm.ArgumentError, match="core_limit"):
            dvm.PyKernel("parallel").parallel_add(dvm.Kernel.K_VEC, 0, limit)


def test_seq(rng):
    x = normal(rng, 30, 40)
    for kind in ("seq", "seq:dyn"):
        k = dvm.PyKernel(kind)
        k.seq_add("vector")
        a = declare(k, x)
        s = k.store(k.sum(a, [1], True))
        k.seq_add(k.K_VEC)
        out = k.store(k.div(a, s))  # the store is a value
        k.seq_add(k.K_VEC)
        last = k.store(k.cast(k.mul(out, 100), "int32"))
        k.run()
        want = x / k.output(s)
        same(k.output(out), want, 1e-6)
        same(k.output(last), (k.output(out) * 100).astype(I32))
    with pytest.raises(dvm.KindError):
        dvm.PyKernel("seq").seq_add(dvm.Kernel.K_SEQ)
    with pytest.raises(dvm.StateError):
        dvm.PyKernel("split").seq_add(0)


def test_flags_and_kinds_that_are_none(rng):
    """Flags behind a kind in words count; what is no flag, kind or mode is refused there."""
    x = normal(rng, 6, 4)
    k = dvm.PyKernel("seq")
    k.seq_add("vector:unify_ws", k.F_PRIV1)
    a = declare(k, x)
    k.store(k.exp(a))
    assert "unify_ws" in k.graph_text()
    for ktype, flags, error, text in (
        ("vector:uni_ws", 0, dvm.KindError, "did you mean unify_ws"),
        ("vectr", 0, dvm.KindError, "did you mean vector"),
        ("vector:xyz", 0, dvm.KindError, "flags are dyn, unify_ws"),
        ("seq", 0, dvm.KindError, "cannot be of type"),
        (1.0, 0, dvm.ArgumentError, "ktype is an integer"),
        (True, 0, dvm.ArgumentError, "ktype is an integer"),
        (0, 8, dvm.ArgumentError, r"F_DYN \(1\).*given 8"),
        (0, -1, dvm.ArgumentError, "given -1"),
        (0, 1 << 40, dvm.ArgumentError, "flags are a sum of"),
        (0, "dyn", dvm.ArgumentError, "flags is an integer, given 'dyn'"),
        (0, 1.0, dvm.ArgumentError, "flags is an integer"),
    ):
        for add in (dvm.PyKernel("seq").seq_add, dvm.PyKernel("parallel").parallel_add):
            with pytest.raises(error, match=text):
                add(ktype, flags)
    k = dvm.PyKernel("split")
    m = declare(k, x)
    index = k.load([2], "int64")
    for mode in (2, -1, "slice", 0.0, True):
        with pytest.raises(dvm.ArgumentError, match="gather_mode"):
            k.gather(m, index, 0, mode)
        with pytest.raises(dvm.ArgumentError, match="gather_mode"):
            k.gather_load([6, 4], index, "float32", 0, mode)
    for call in (
        lambda: k.matmul(m, m, "no", True),
        lambda: k.matmul(m, m, m),
        lambda: k.matmul(m, m, False, 2),
        lambda: k.grouped_matmul(m, m, None, False, None, index),
        lambda: k.grouped_matmul(m, m, False, False, None, index, 3),
        lambda: k.grouped_matmul(m, m, False, False, None, index, 0.0),
        lambda: k.grouped_matmul(m, m, False, False, None, index, 0, "size"),
    ):
        with pytest.raises(dvm.ArgumentError, match=r"trans_[ab]|group_(list_)?type"):
            call()
    k.matmul(m, m, np.True_, 0)


def test_spec_next(rng):
    x = normal(rng, 16, 128)
    k = dvm.PyKernel("vector:spec")
    a = declare(k, x)
    m = k.sum(a, [0], True)
    k.spec_next()
    d = k.sub(a, m)
    out = k.store(k.sum(k.mul(d, d), [1]))
    k.run()
    want = ((x - x.sum(0, keepdims=True)).astype(np.float64) ** 2).sum(1)
    same(k.output(out), want.astype(F32), 1e-5)


def test_tile_and_names_change_nothing(rng):
    x = normal(rng, 30, 40)
    k = dvm.PyKernel("vector")
    k.set_kernel_info("my kernel!", "full name", "third")
    out = k.store(k.sqrt(k.abs(declare(k, x))))
    k.tile(0, 1, 4)
    k.codegen(passes=["ReorderLoad"])
    k.run()
    same(k.output(out), np.sqrt(np.abs(x)))
    assert "my_kernel_" in k.graph_text()


def test_clone(rng):
    x, y = normal(rng, 5), normal(rng, 8)
    base = dvm.PyKernel("vector:dyn")
    a, s = base.load([-1], "float32"), base.scalar()
    out = base.store(base.add(a, s))
    base.input(a, x)
    s.update(1)
    base.run()
    copy = dvm.PyKernel("split")
    b, t, out2 = copy.clone(base, [a, s, out])
    copy.input(b, y)
    copy.input(t, 2.5)
    copy.run()
    same(base.output(out), x + 1)
    same(copy.output(out2), y + F32(2.5))


def test_eager_reset(rng):
    k = dvm.PyKernel("eager:unify_ws")
    for n in (4, 9):
        x = normal(rng, n)
        unused = declare(k, normal(rng, 3))
        out = k.store(k.exp(declare(k, x)))
        assert unused is not None
        k.run()
        same(k.output(out), np.exp(x), 1e-6)
        k.reset()


def test_kernel_types():
    plain = ["", "vector", "cube", "mix", "parallel", "seq", "split", "eager"]
    flagged = ["split:dyn,unify_ws", "split:priv1", "vector:spec,dyn,priv1", "eager:unify_ws"]
    for text in plain + flagged:
        dvm.Kernel(text)
    with pytest.raises(dvm.KindError, match="kernel type error"):
        dvm.Kernel("vectr")
    with pytest.raises(dvm.KindError, match="kernel flag error"):
        dvm.Kernel("vector:dynamic")


# ------------------------------------------------------------------------------ text


def test_dump():
    k = dvm.Kernel("eager")
    x = k.load([4, 8], dvm.float32)
    k.store(k.sum(k.exp(k.mul(x, 0.5)), [1], True))
    assert k.dump() == (
        "rgraph.eager() {\n"
        "  %0[4, 8]<float32> = Load()\n"
        "  %1[4, 8]<float32> = Mul<0.5>(%0[4, 8]<float32>)\n"
        "  %2[4, 8]<float32> = Exp(%1[4, 8]<float32>)\n"
        "  %3[4, 1]<float32> = Reduce<sum, [1], True>(%2[4, 8]<float32>)\n"
        "  %4[4, 1]<float32> = Store(%3[4, 1]<float32>)\n"
        "}\n"
    )


def test_das_shows_what_runs(rng):
    k = dvm.PyKernel("eager")
    x, unused = declare(k, normal(rng, 32)), declare(k, normal(rng, 32))
    k.exp(unused)
    k.store(k.div(k.exp(x), 3.0))
    k.run()
    text = k.das()
    assert text.count("load.") == 1
    assert "Exp.fp32" in text and "store.u8" in text


def test_das_of_gather(rng):
    k = dvm.PyKernel("vector")
    idx = k.global_access([3], dvm.int32)
    g = k.gather_load([8, 4], idx, dvm.float32, 0, 1)
    k.store(g)
    k.input(g, normal(rng, 8, 4))
    k.input(idx, np.array([1, 2, 3], I32))
    k.run()
    assert "gather_load" in k.das() and "gather_mode(1)" in k.das() and "rounds(" in k.das()


# ------------------------------------------------------------------------------ dtypes and devices


def test_dtypes():
    assert dvm.float32 == "float32" and dvm.float32 != dvm.float16 and dvm.bool_ == "bool"
    assert repr(dvm.bfloat16) == "dvm.bfloat16" and str(dvm.int64) == "int64"
    assert {dvm.float32: 1}["float32"] == 1
    k = dvm.Kernel()
    for spec in (np.float16, "fp16", "float16", np.dtype("float16"), dvm.float16):
        assert k.load([1], spec).dtype() == dvm.float16
    assert k.equal(k.load([1], "int64"), 1).dtype() == dvm.bool_
    with pytest.raises(dvm.DTypeError, match="complex64"):
        k.load([1], np.complex64)


def test_device(monkeypatch):
    monkeypatch.delenv("DVM_ARCH", raising=False)
    assert dvm.Device.arch() == "AscendC310"
    monkeypatch.setenv("DVM_ARCH", "AscendC220")
    assert dvm.Device.arch() == "AscendC220"
    assert dvm.Device.core_num() >= 1
    assert dvm.Device.soc_name().startswith(("cpu", "ref"))


def test_bf16_conversions():
    x = np.array([1.0, 1 / 3, np.nan, np.inf, -1e-40], F32)
    bits = dvm.PyKernel.convert_to_bf16(x)
    assert bits.dtype == np.uint16 and bits[0] == 0x3F80 and bits[2] == 0x7FC0
    back = dvm.PyKernel.convert_from_bf16(bits)
    np.testing.assert_allclose(back[:2], x[:2], rtol=4e-3)


def test_runner_of_code_only():
    k = dvm.PyKernel("vector", "das")
    x = k.load([16], "float32")
    k.store(k.add(x, x))
    k.codegen()
    assert "Add.fp32" in k.das()


def test_perf_and_stats(rng, tmp_path):
    k = dvm.PyKernel("split")
    k.store(k.exp(k.mul(declare(k, normal(rng, 64, 64)), 2)))
    low, high, mean = k.perf()
    assert 0 < low <= mean <= high
    assert k.stats()["kernels"] == 1
    k.msprof(tmp_path / "p", 2)
    assert (tmp_path / "p" / "dvm_profile.json").exists()
