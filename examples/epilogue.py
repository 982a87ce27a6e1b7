"""What follows a product in a layer: cast, bias, scale and shift, silu, in one pass over memory.

Written in the declared form, which fixes shapes and takes tensors of torch as well.
"""

import dvm
import numpy as np

ROWS, COLUMNS = 128, 256


@dvm.kernel(ktype="split", dyn_shape=False)
def epilogue(k):
    x = k.cast(k.load([ROWS, COLUMNS], dvm.float16), dvm.float32)
    bias = k.load([1, COLUMNS], dvm.float32)
    scale, shift = k.scalar(dvm.float32), k.scalar(dvm.float32)
    x = (x + bias) * scale + shift
    k.store(x * k.div(1.0, 1.0 + k.exp(-x)))


def main() -> None:
    rng = np.random.default_rng(0)
    product = rng.standard_normal((ROWS, COLUMNS)).astype(np.float16)
    bias = rng.standard_normal((1, COLUMNS)).astype(np.float32)
    out = epilogue(product, bias, 0.5, 0.25)
    x = (product.astype(np.float32) + bias) * 0.5 + 0.25
    np.testing.assert_allclose(out, x / (1 + np.exp(-x)), rtol=1e-5, atol=1e-6)
    stats = epilogue.kobj.compile().stats()
    print(f"{stats['kernels']} kernel, {stats['instructions']} instructions")
    print(f"moves {stats['bytes_moved']} bytes; one operation at a time {stats['bytes_unfused']}")
    print(epilogue.das())


if __name__ == "__main__":
    main()
