"""dvm.tester.Tester, and programs in the manner of the original's tests."""

import dvm
import numpy as np
import pytest
from dvm.tester import CommScope, PerformanceResult, ShapeRef, Tester

F32, F16, I32, I64 = np.float32, np.float16, np.int32, np.int64


def test_store_expect(rng):
    a, b = (rng.standard_normal((32, 65)).astype(F32) for _ in range(2))
    t = Tester("vector")
    s = t.add(t.load(a), t.load(b))
    out = t.store_expect(s, a + b)
    t.store_expect(t.mul(s, 0.0), 0.0)
    t.store_expect(t.sqrt(t.abs(s)), lambda got: bool((got >= 0).all()))
    assert t.run_check()
    assert t.check(out, a + b)
    np.testing.assert_array_equal(t.output(out), a + b)
    np.testing.assert_array_equal(np.asarray(out), a + b)


def test_mismatches_are_told(rng, capsys):
    a = rng.standard_normal(8).astype(F32)
    t = Tester()
    x = t.load(a)
    t.store_expect(x, a + np.eye(1, 8, 3, dtype=F32)[0])
    assert not t.run_check()
    assert "1 of 8 elements differ" in capsys.readouterr().out
    t = Tester()
    t.store_expect(t.load(a), lambda got: False)
    assert not t.run_check()
    t = Tester()
    t.store_expect(t.load(a), np.zeros((3, 3)))
    assert not t.run_check()
    assert "shape [8], expected [3, 3]" in capsys.readouterr().out


@pytest.mark.parametrize("dtype,eps", [(F32, 1e-5), (F16, 1e-3), (I32, 0.0)])
def test_default_tolerances(dtype, eps):
    a = np.full(4, 1000, dtype)
    t = Tester()
    out = t.store(t.load(a))
    t.run()
    if eps:
        assert t.check(out, a.astype(np.float64) * (1 + eps / 2))
        assert not t.check(out, a.astype(np.float64) * (1 + eps * 3))
        assert t.check(out, a.astype(np.float64) * (1 + eps * 3), eps=eps * 4)
    else:
        assert t.check(out, a)
        assert not t.check(out, a + 1)


def test_reversed_views():
    a = np.arange(12, dtype=F32).reshape(3, 4)
    t = Tester("split")
    t.store_expect(t.view_load((3, 4), (-4, 1), a, 8), a[::-1])
    t.store_expect(t.view_load((3, 4), (4, -1), a, 3), a[:, ::-1])
    t.store_expect(t.view_load((2, 3), (0, -1), a, 2), np.broadcast_to(a[0, 2::-1], (2, 3)))
    assert t.run_check()
    for offset, strides in ((7, (-4, 1)), (0, (4, -1)), (0, (-(1 << 61), 1))):
        t = Tester()
        t.store(t.view_load((3, 4), strides, a, offset))
        with pytest.raises(dvm.ShapeError, match="begins at element -"):
            t.run()
    with pytest.raises(dvm.ShapeError, match="strides are not negative"):
        t.view_store(t.load(a), (-4, 1))


def test_nan_equals_nan():
    a = np.array([np.nan, 1], F32)
    t = Tester()
    t.store_expect(t.load(a), a)
    assert t.run_check()


def test_bfloat16(rng):
    a = Tester.bf16_random_normal(0, 1, (64, 3))
    b = Tester("").bf16_random_normal(0, 1, [64, 3])
    assert a.dtype == F32 and (a.view(np.uint32) & 0xFFFF == 0).all()
    t = Tester("vector")
    x, y = t.load(a, "bfloat16"), t.load(b, dvm.bfloat16)
    assert x.dtype() == dvm.bfloat16
    t.store_expect(t.add(x, y), a + b, 1e-2)
    t.store_expect(t.cast(x, "float32"), a)
    assert t.run_check()


def test_random_data():
    a = Tester.fast_random_normal(1.0, 0.1, (1000, 2000))
    assert a.shape == (1000, 2000) and a.dtype == F32
    assert abs(a.mean() - 1.0) < 1e-2 and abs(a.std() - 0.1) < 1e-2
    assert Tester().fast_random_normal(0, 1, [3]).shape == (3,)


def test_inputs_of_every_kind(rng):
    x = rng.standard_normal((6, 8)).astype(F32)
    t = Tester("split")
    t.store_expect(t.view_load((8, 6), (1, 8), x), x.T)
    t.store_expect(t.view_load((2, 3), (8, 2), x, 9), x[1:3, 1:7:2])
    t.store_expect(t.slice_load(x, [1, 2], [3, 4]), x[1:4, 2:6])
    t.store_expect(t.stridedslice_load(x, [0, -3], [4, 8], [1, 1]), x[:4, 5:])
    i = rng.integers(0, 8, (6, 2)).astype(I32)
    t.store_expect(t.gather_load(x, t.global_access(i), 1), np.take_along_axis(x, i, 1))
    t.store_expect(t.gather_load(x, i[:, 0] % 6, axis=0, gather_mode=1), x[i[:, 0] % 6])
    t.store_expect(t.load(x, "float16"), x.astype(F16))
    assert t.run_check()


def test_plain_declarations(rng):
    t = Tester("vector:dyn")
    a, b = t.load([-1], "float32"), t.view_load([-1], [-1], dvm.float32)
    out = t.store(t.add(a, b))
    for n in (5, 9):
        x = rng.standard_normal((n, 2)).astype(F32)
        t.input(a, x)
        t.input(b, x)
        t.run()
        assert t.check(out, x + x)


def test_view_store_expect(rng):
    x = rng.standard_normal((4, 3)).astype(F32)
    want = np.zeros((4, 6), F32)
    want[:, ::2] = x
    t = Tester("vector")
    t.view_store_expect(t.load(x), (6, 2), want)
    assert t.run_check()
    want[:, 1] = 1
    t = Tester("vector")
    t.view_store_expect(t.load(x), (6, 2), want)
    assert not t.run_check()


def test_clear_store_memory(rng):
    t = Tester("vector")
    memory = np.full(10, 7, F32)
    out = t.view_store(t.load(np.ones(3, F32)), (2,))
    t.set_output(out, memory)
    t.clear_store_memory(out)
    t.run()
    np.testing.assert_array_equal(memory, [1, 0, 1, 0, 1, 0, 0, 0, 0, 0])


def test_older_spellings(rng):
    x = rng.standard_normal((5, 9)).astype(F32)
    t = Tester("vector:spec")
    a = t.load(x)
    b = t.binary("Mul", t.unary("Abs", a), t.broadcast(2, x.shape, "float32"))
    t.store_expect(t.reduce("sum", b, [1], True), 2 * np.abs(x).sum(1, keepdims=True))
    shape = ShapeRef()
    shape.update([45])
    t.store_expect(t.reshape(a, shape), x.reshape(-1))
    assert t.get() is t
    assert t.run_check()


def test_other_members(rng, tmp_path):
    t = Tester("split", use_pass_opt=True, run_mode="dev")
    t.set_passes("ReorderLoad", "EliminateReshape")
    out = t.store_expect(t.exp(t.load(np.zeros(8, F32))), 1.0)
    t.codegen()
    t.bare_run()
    t.run(verbose=True)
    assert t.check(out, 1.0)
    result = t.run_perf()
    assert isinstance(result, PerformanceResult) and result.min <= result.mean <= result.max
    t.run_msprof(str(tmp_path), 3)
    t.dry_run(0, False)
    t.barrier()
    Tester.set_lazy_tuning(False)
    assert t.rank_id() == 0 and t.rank_size() == 1
    assert Tester.K_SEQ == 4 and Tester.F_DYN == 1
    t.reset()
    with pytest.raises(dvm.StateError):
        t.run()
    with pytest.raises(dvm.UnsupportedError, match="mpirun"):
        CommScope(2)


def test_communicator():
    class Comm:
        waited = 0

        def Get_rank(self):
            return 2

        def Get_size(self):
            return 4

        def Barrier(self):
            self.waited += 1

    t = Tester(comm=Comm())
    t.barrier()
    assert (t.rank_id(), t.rank_size(), t.comm.waited) == (2, 4, 1)
