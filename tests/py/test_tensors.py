"""Arguments of every kind: tensors of torch by each of their doors, ml_dtypes, other buffers."""

import array

import dvm
import numpy as np
import pytest

F32 = np.float32


def test_buffers_of_other_types():
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        k.store(k.add(k.load([4], dvm.float32), 1))

    out = array.array("f", [0] * 4)
    f.run(memoryview(array.array("f", [1, 2, 3, 4])), out)
    assert list(out) == [2, 3, 4, 5]
    assert isinstance(f(array.array("f", [1, 2, 3, 4])), np.ndarray)
    with pytest.raises(dvm.ArgumentError, match="read-only"):
        f.run(out, bytes(16))


def test_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")

    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        k.store(k.mul(k.load([3], dvm.bfloat16), 2))

    x = np.array([1, 2.5, -3], ml_dtypes.bfloat16)
    want = (x * 2).view(np.uint16)
    np.testing.assert_array_equal(f(x), want)
    out = np.zeros(3, ml_dtypes.bfloat16)
    f.run(x, out)
    np.testing.assert_array_equal(out.view(np.uint16), want)
    frozen = np.zeros(3, ml_dtypes.bfloat16)
    frozen.flags.writeable = False
    with pytest.raises(dvm.ArgumentError, match="read-only"):
        f.run(x, frozen)
    with pytest.raises(dvm.DTypeError, match="float8"):
        f(np.zeros(3, ml_dtypes.float8_e4m3fn))
    k = dvm.PyKernel()
    a = k.load([3], "bfloat16")
    y = k.store(a)
    k.input(a, x)
    k.run()
    np.testing.assert_array_equal(k.output(y), x.view(np.uint16))
    assert k.load([3], ml_dtypes.bfloat16).dtype() == dvm.bfloat16


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_tensors(torch, dtype):
    t = getattr(torch, dtype)

    @dvm.kernel(ktype="split", dyn_shape=True)
    def f(k):
        x, y = k.load([-1, -1], dtype), k.load([-1], dtype)
        k.store(k.mul(k.add(x, y), 2))

    x, y = torch.randn(5, 6).to(t), torch.randn(6).to(t)
    out = f(x, y)
    assert isinstance(out, torch.Tensor) and out.dtype == t
    torch.testing.assert_close(out, (x + y) * 2, rtol=1e-2, atol=1e-2)
    into = torch.empty(6, 5, dtype=t).T
    f.run(x, y, into)
    assert torch.equal(into, out)


def test_tensors_of_other_layouts(torch):
    @dvm.kernel
    def f(k, x, y):
        return k.store(k.add(k.load(x), k.load(y)))

    x = torch.randn(6, 8)
    for a in (x.t(), x[::2, 1:], x[2].expand(4, 8), x[0, 0], x[:0]):
        assert torch.equal(f(a, a), a + a)
    assert torch.equal(f(torch.nn.Parameter(x), x), x + x)
    assert isinstance(f(x, x.numpy()), torch.Tensor)


def test_every_dtype_of_tensors(torch):
    for name in ("bool", "int32", "int64", "float64", "uint8", "int8", "bfloat16"):
        x = torch.tensor([0, 1, 1, 0]).to(getattr(torch, name))

        @dvm.kernel(ktype="split", dyn_shape=False)
        def f(k, name=name):
            k.store(k.copy(k.load([4], name)))

        assert torch.equal(f(x), x)


def test_dlpack_only_and_attribute_only(torch):
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        k.store(k.add(k.load([2, 3], dvm.float32), 1))

    class Capsule:
        def __init__(self, t):
            self.t = t

        def __dlpack__(self, **kw):
            return self.t.__dlpack__(**kw)

    class Attributes:
        def __init__(self, t):
            self.t = t

        def data_ptr(self):
            return self.t.data_ptr()

        def stride(self):
            return self.t.stride()

        @property
        def shape(self):
            return self.t.shape

        @property
        def dtype(self):
            return self.t.dtype

        @property
        def device(self):
            return self.t.device

    t = torch.randn(3, 2).t()
    for wrap in (Capsule, Attributes):
        out = torch.empty(2, 3)
        f.run(wrap(t), out)
        assert torch.equal(out, t + 1)


def test_tensors_without_plain_memory(torch):
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        k.store(k.load([2], dvm.float32))

    with pytest.raises(dvm.UnsupportedError, match="argument 1 is on device meta"):
        f(torch.empty(2, device="meta"))
    with torch._subclasses.FakeTensorMode():
        fake, cuda = torch.empty(2), torch.empty(2, device="cuda")
    with pytest.raises(dvm.ArgumentError, match="no memory behind it"):
        f(fake)
    with pytest.raises(dvm.UnsupportedError, match=r"memory of cuda:0.*x\.cpu\(\)"):
        f(cuda)
    with pytest.raises(dvm.ArgumentError, match="argument 1 cannot be read") as info:
        f(torch.ones(2).to_sparse())
    assert "\n" not in str(info.value)
    with pytest.raises(dvm.DTypeError, match=r"given torch\.complex64"):
        f(torch.ones(2, dtype=torch.complex64))


def test_lazily_negated_tensors(torch):
    @dvm.kernel(ktype="split", dyn_shape=False)
    def f(k):
        k.store(k.mul(k.load([2], dvm.float32), 2))

    c = torch.complex(torch.zeros(2), torch.tensor([1.0, -2.0])).conj()
    x = c.imag
    assert x.is_neg()
    assert torch.equal(f(x), x * 2)
    with pytest.raises(dvm.ArgumentError, match="resolve_neg"):
        f.run(torch.ones(2), x)
    one = dvm.kernel(lambda k, x: k.store(k.load(x)))
    for part in (c[0].imag, c[:1].imag, c.imag[None]):
        assert part.is_neg() and torch.equal(one(part), part)
