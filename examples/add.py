"""One kernel for every shape: elementwise addition with broadcasting.

The function is called once, with placeholders, when it is decorated; the kernel is compiled in
microseconds for each shape it meets.
"""

import time

import dvm
import numpy as np


@dvm.kernel
def add(k, x, y):
    return k.store(k.add(k.load(x, dvm.float32), k.load(y, dvm.float32)))


def main() -> None:
    rng = np.random.default_rng(0)
    add(np.zeros(1, np.float32), np.zeros(1, np.float32))  # starts the library
    for s, t in [((32, 512), (32, 512)), ((32, 1), (32, 512)), ((1000,), (7, 1, 1000))]:
        a, b = (rng.standard_normal(shape).astype(np.float32) for shape in (s, t))
        start = time.perf_counter_ns()
        c = add(a, b)
        us = (time.perf_counter_ns() - start) / 1e3
        assert np.array_equal(c, a + b)
        print(f"{s} + {t} = {c.shape}: {us:.0f} us, shape met for the first time")

    out = np.empty_like(c)
    add.run(a, b, out)  # into memory that is there already
    assert np.array_equal(out, c)
    print(add.dump())


if __name__ == "__main__":
    main()
