"""random_bits and random_uniform beside Philox4x32-10 written with Python's integers."""

from __future__ import annotations

import dvm
import numpy as np
import pytest

LOW = 0xFFFFFFFF


def word(seed: int, offset: int, index: int) -> int:
    """Word index % 4 of the block with this key and counter (offset, index / 4)."""
    block = index // 4
    c = [offset & LOW, offset >> 32 & LOW, block & LOW, block >> 32]
    k = [seed & LOW, seed >> 32 & LOW]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b & LOW, a >> 32 ^ c[3] ^ k[1], a & LOW]
        k = [k[0] + 0x9E3779B9 & LOW, k[1] + 0xBB67AE85 & LOW]
    return c[index % 4]


def stream(n: int, seed: int, offset: int) -> np.ndarray:
    return np.array([word(seed, offset, i) for i in range(n)], np.int64)


def test_the_reference_gives_the_answers_of_the_authors() -> None:
    assert [word(0, 0, i) for i in range(4)] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    seed, offset, block = 0x299F31D0A4093822, 0x85A308D3243F6A88, 0x0370734413198A2E
    pi = [word(seed, offset, 4 * block + i) for i in range(4)]
    assert pi == [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1]


@pytest.mark.parametrize("shape", [(), (1,), (7,), (0,), (3, 0, 2), (5, 3), (2, 3, 4, 5), (1, 65)])
@pytest.mark.parametrize(
    "seed, offset",
    [(0, 0), (1, 2), (-1, -(2**63)), (2**63 - 1, 12345678901234), (2**64 - 1, 2**63)],
)
def test_words_in_row_major_order(shape: tuple[int, ...], seed: int, offset: int) -> None:
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):  # type: ignore[no-untyped-def]
        k.store(k.random_bits(list(shape), seed, offset))
        k.store(k.random_uniform(list(shape), seed, offset))

    bits, uniform = np.full(shape, -1, np.int64), np.full(shape, np.nan, np.float32)
    f.run(bits, uniform)
    want = stream(bits.size, seed, offset).reshape(shape)
    np.testing.assert_array_equal(bits, want)
    np.testing.assert_array_equal(uniform, (want >> 8).astype(np.float32) * np.float32(2.0**-24))


def test_sizes_and_seeds_of_a_run() -> None:
    """One kernel: sizes come from an argument, the seed from a scalar."""

    @dvm.kernel()
    def dropout(k, x, seed):  # type: ignore[no-untyped-def]
        x = k.load(x, dvm.float32)
        keep = k.less(k.random_uniform([x.dim(0), x.dim(1)], k.scalar(seed, "int64"), 3), 0.75)
        return k.store(k.select(keep, x * (1 / 0.75), 0.0))

    for shape, seed in (((4, 33), 1), ((4, 33), 2), ((9, 5), 2), ((1, 1), 2**62)):
        x = np.random.default_rng(7).standard_normal(shape).astype(np.float32)
        u = (stream(x.size, seed, 3).reshape(shape) >> 8).astype(np.float32) * np.float32(2.0**-24)
        want = np.where(u < 0.75, x * np.float32(1 / 0.75), 0)
        np.testing.assert_array_equal(dropout(x, seed), want)


def test_uniform_numbers_are_uniform() -> None:
    n = 1 << 20

    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):  # type: ignore[no-untyped-def]
        k.store(k.random_uniform([n], 42))

    u = np.empty(n, np.float32)
    f.run(u)
    assert u.min() >= 0 and u.max() < 1
    counts = np.bincount((u * 64).astype(int), minlength=64)
    chi = float(((counts - n / 64) ** 2 / (n / 64)).sum())
    assert chi < 63 + 6 * (2 * 63) ** 0.5  # six deviations; the numbers are fixed
    assert abs(np.corrcoef(u[:-1], u[1:])[0, 1]) < 6 / n**0.5


@pytest.mark.parametrize("bad", [1.5, np.float32(2), np.array(0.5), 2**64, -(2**63) - 1, None, "7"])
@pytest.mark.parametrize("what", ["seed", "offset"])
def test_keys_are_integers_of_64_bits(what: str, bad: object) -> None:
    keys = {"seed": 1, "offset": 0, what: bad}
    with pytest.raises(dvm.ArgumentError, match=f"random_bits: {what} is an integer from -2.63 to"):

        @dvm.kernel(ktype="split", dyn_shape=False)
        def f(k):  # type: ignore[no-untyped-def]
            k.store(k.random_bits([2], **keys))


def test_a_tensor_is_no_seed() -> None:
    with pytest.raises(dvm.ArgumentError, match="random_uniform: seed is an integer"):

        @dvm.kernel(ktype="split", dyn_shape=False)
        def f(k):  # type: ignore[no-untyped-def]
            k.store(k.random_uniform([2], k.load([2], dvm.int64)))
