"""Attention in float16 as one program: two products, and between them scale, mask and softmax.

The kinds `split` and `eager` cut such a program by themselves; `explain` says where and why.
"""

import dvm
import numpy as np


@dvm.kernel
def attention(k, query, key, value, scale):
    q, key, v = (k.load(x, "float16") for x in (query, key, value))
    s = k.cast(k.matmul(q, key, False, True), "float32") * k.scalar(scale)
    rows, columns = s.dim(-2), s.dim(-1)
    row, column = (k.iota([rows, columns], axis, dvm.int32) for axis in (0, 1))
    s = k.select(column <= row, s, float("-inf"))  # no position sees a later one
    e = k.exp(s - k.max(s, [-1], True))
    weights = k.cast(e / k.sum(e, [-1], True), "float16")
    return k.store(k.matmul(weights, v))


def main() -> None:
    rng = np.random.default_rng(0)
    for heads, n, d in [(1, 16, 64), (8, 128, 32)]:
        q, key, v = (rng.standard_normal((heads, n, d)).astype(np.float16) for _ in range(3))
        out = attention(q, key, v, d**-0.5)

        s = q.astype(np.float32) @ key.astype(np.float32).swapaxes(1, 2) * d**-0.5
        s[:, ~np.tril(np.ones((n, n), bool))] = -np.inf
        e = np.exp(s - s.max(2, keepdims=True))
        want = (e / e.sum(2, keepdims=True)) @ v.astype(np.float32)
        error = float(np.abs(out - want).max())
        assert error < 1e-2
        kernels = attention.kobj.stats()["kernels"]
        print(f"{heads} heads, {n} positions of {d}: {kernels} kernels, largest error {error:.1e}")


if __name__ == "__main__":
    main()
