"""Runs a few lines of the kernel language on numpy arrays."""

import dvm
import numpy as np
from dvm import arrays

KINDS = ["vector", "vector:dyn", "split", "split:dyn", "eager"]


def declare(k, array):
    """A load for an array, with its data."""
    node = k.load(list(array.shape), arrays.dtype_of_array(array))
    k.input(node, array)
    return node


def run(fn, *values, kind="split"):
    """fn(k, *loads) gives a value or several; returns their arrays. bfloat16 is widened."""
    k = dvm.PyKernel(kind)
    result = fn(k, *[declare(k, v) if isinstance(v, np.ndarray) else v for v in values])
    several = isinstance(result, (tuple, list))
    stores = [k.store(v) for v in (result if several else [result])]
    k.run()
    outs = [widen(k.output(s)) for s in stores]
    return outs if several else outs[0]


def widen(a):
    return arrays.from_bf16(a) if a.dtype == np.uint16 else a


def bf16(a):
    return arrays.to_bf16(a)


def same(got, want, eps=None):
    """Shape, dtype and values; eps None is exact, NaN equals NaN."""
    want = np.asarray(want)
    assert got.shape == want.shape, (got.shape, want.shape)
    assert got.dtype == want.dtype, (got.dtype, want.dtype)
    if eps is None:
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(
            got.astype(np.float64), want.astype(np.float64), rtol=eps, atol=eps, equal_nan=True
        )
