"""The runner of the kernel language, which holds arguments itself; tests for Ascend use it."""

import dvm
import numpy as np
from dvm.tester import Tester


def step_by_step() -> None:
    k = dvm.PyKernel("split:dyn")
    x = k.load([-1, -1], dvm.float32)
    shape = k.int_array()
    y = k.store(k.reshape(k.sqrt(k.abs(x)), shape))
    for rows, columns, new in [(4, 6, [24]), (3, 8, [2, 12])]:
        a = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        k.input(x, a)
        shape.update(new)
        k.run()
        assert np.array_equal(k.output(y), np.sqrt(np.abs(a)).reshape(new))
        print(f"[{rows}, {columns}] -> {list(k.output(y).shape)}")


def with_expectations() -> None:
    a = Tester.bf16_random_normal(0, 1, (128, 64))
    t = Tester("vector")
    x = t.load(a, "bfloat16")
    t.store_expect(t.exp(x), np.exp(a), 1e-2)
    t.store_expect(t.sum(t.cast(x, "float32"), [1]), a.sum(1), 1e-4)
    assert t.run_check()
    print("least, greatest, mean microseconds:", *(f"{us:.1f}" for us in t.run_perf()))


if __name__ == "__main__":
    step_by_step()
    with_expectations()
