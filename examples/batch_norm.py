"""Batch-norm statistics: reductions over rows, a number as an argument, several outputs."""

import dvm
import numpy as np


@dvm.kernel
def statistics(k, x, count):
    """Mean and variance of each column; `count` is the number of rows."""
    a, n = k.load(x, dvm.float32), k.scalar(count)
    mean = k.sum(a, [0]) / n
    centred = a - mean
    return k.store(mean), k.store(k.sum(centred * centred, [0]) / n)


def main() -> None:
    rng = np.random.default_rng(0)
    for rows, columns in [(64, 256), (4096, 33)]:
        x = (rng.standard_normal((rows, columns)) * 3 + 1).astype(np.float32)
        mean, var = statistics(x, rows)
        np.testing.assert_allclose(mean, x.mean(0), rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(var, x.var(0), rtol=1e-3, atol=1e-3)
        print(f"{rows} x {columns}: mean {mean[:3].round(3)}, variance {var[:3].round(3)} ...")
    print(statistics.kobj.explain())


if __name__ == "__main__":
    main()
