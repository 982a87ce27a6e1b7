"""A layer in one kernel: product, cast, bias, scale and shift, silu. What follows the product works
on each of its tiles while that is in the cache.

Written in the declared form, which fixes shapes and takes tensors of torch as well.
"""

import dvm
import numpy as np

ROWS, INNER, COLUMNS = 128, 192, 256


@dvm.kernel(ktype="mix", dyn_shape=False)
def layer(k):
    a, b = k.load([ROWS, INNER], dvm.float16), k.load([INNER, COLUMNS], dvm.float16)
    x = k.cast(a @ b, dvm.float32)
    bias = k.load([1, COLUMNS], dvm.float32)
    scale, shift = k.scalar(dvm.float32), k.scalar(dvm.float32)
    x = (x + bias) * scale + shift
    k.store(x * k.div(1.0, 1.0 + k.exp(-x)))


def main() -> None:
    rng = np.random.default_rng(0)
    a = (rng.standard_normal((ROWS, INNER)) / 8).astype(np.float16)
    b = rng.standard_normal((INNER, COLUMNS)).astype(np.float16)
    bias = rng.standard_normal((1, COLUMNS)).astype(np.float32)
    out = layer(a, b, bias, 0.5, 0.25)
    x = (a.astype(np.float32) @ b.astype(np.float32) + bias) * 0.5 + 0.25
    np.testing.assert_allclose(out, x / (1 + np.exp(-x)), rtol=1e-3, atol=1e-3)
    stats = layer.kobj.compile().stats()
    print(f"{stats['kernels']} kernel, {stats['instructions']} instructions")
    print(f"moves {stats['bytes_moved']} bytes; one operation at a time {stats['bytes_unfused']}")
    print(layer.das())


if __name__ == "__main__":
    main()
