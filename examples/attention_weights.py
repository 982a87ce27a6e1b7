"""The weights of attention in float16: scale, mask and softmax of scores in one kernel.

Scores come from a matrix product that numpy (or torch) does best.
"""

import dvm
import numpy as np


@dvm.kernel
def weights(k, scores, scale):
    s = k.cast(k.load(scores, "float16"), "float32") * k.scalar(scale)
    rows, columns = s.dim(0), s.dim(1)
    row, column = (k.iota([rows, columns], axis, dvm.int32) for axis in (0, 1))
    s = k.select(column <= row, s, float("-inf"))  # no position sees a later one
    e = k.exp(s - k.max(s, [1], True))
    return k.store(e / k.sum(e, [1], True), dvm.float16)


def main() -> None:
    rng = np.random.default_rng(0)
    for n, d in [(16, 64), (128, 32)]:
        q, key, v = (rng.standard_normal((n, d)).astype(np.float16) for _ in range(3))
        w = weights((q @ key.T).astype(np.float16), d**-0.5)
        out = w @ v

        s = (q @ key.T).astype(np.float32) * d**-0.5
        s[~np.tril(np.ones((n, n), bool))] = -np.inf
        e = np.exp(s - s.max(1, keepdims=True))
        want = (e / e.sum(1, keepdims=True)) @ v.astype(np.float32)
        error = float(np.abs(out - want).max())
        assert error < 1e-2
        print(f"{n} positions of {d}: largest error {error:.1e}")


if __name__ == "__main__":
    main()
