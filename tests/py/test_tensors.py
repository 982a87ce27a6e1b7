"""Arguments of every kind: tensors of torch by each of their doors, ml_dtypes, other buffers."""

import array
import ctypes
import subprocess
import sys

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

    with pytest.raises(dvm.UnsupportedError, match="input 0 is on device meta"):
        f(torch.empty(2, device="meta"))
    with torch._subclasses.FakeTensorMode():
        fake, cuda = torch.empty(2), torch.empty(2, device="cuda")
    with pytest.raises(dvm.ArgumentError, match="no memory behind it"):
        f(fake)
    with pytest.raises(dvm.UnsupportedError, match=r"memory of cuda:0.*x\.cpu\(\)"):
        f(cuda)
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
    dense = torch._neg_view(torch.tensor([[1.0, -2.0], [3.0, 0.0]]))
    parts = (c[0].imag, c[:1].imag, c.imag[None], c[0].imag[None], dense, dense.t(), dense.detach())
    for part in parts:
        assert part.is_neg() and torch.equal(one(part), part)
    whole = dvm.kernel(lambda k, x: k.store(k.load(x, "int64")))
    part = torch._neg_view(torch.arange(4))
    assert part.is_neg() and torch.equal(whole(part), part)
    with pytest.raises(dvm.ArgumentError, match="resolve_neg"):
        f.run(torch.ones(2), torch._neg_view(torch.ones(2)))


def test_a_class_that_answers_for_itself_is_asked(torch):
    """The functions of torch.Tensor are called directly unless a class replaces them."""

    class Negated(torch.Tensor):
        def is_neg(self):
            return True

    class Recorded(torch.Tensor):
        @property
        def requires_grad(self):
            return True

    class Plain(torch.Tensor):
        pass

    @dvm.kernel
    def f(k, x):
        return k.store(k.mul(k.load(x), 2))

    x = torch.ones(2)
    with pytest.raises(dvm.ArgumentError, match="resolve_neg"):
        f.run(x, torch.empty(2).as_subclass(Negated))
    with pytest.raises(dvm.UnsupportedError, match="requires grad"):
        f(x.as_subclass(Recorded))
    assert torch.equal(f(x.as_subclass(Plain)).as_subclass(torch.Tensor), x * 2)
    with pytest.raises(dvm.UnsupportedError, match="requires grad"):
        f(x.clone().requires_grad_().as_subclass(Plain))


def test_conjugated_tensors(torch):
    one = dvm.kernel(lambda k, x: k.store(k.load(x)))
    c = torch.complex(torch.ones(2), torch.ones(2)).conj()
    with pytest.raises(dvm.DTypeError, match="real and imaginary parts"):
        one(c)
    assert torch.equal(one(c.imag), -torch.ones(2)) and torch.equal(one(c.real), torch.ones(2))


def test_tensors_that_require_grad(torch):
    @dvm.kernel
    def f(k, x, w):
        return k.store(k.mul(k.load(x), k.load(w)))

    x, w = torch.ones(2), torch.nn.Parameter(torch.tensor([2.0, 3.0]))
    for refused in (w, w * 1, w[:]):
        with pytest.raises(dvm.UnsupportedError, match=r"input 1 \(w\) requires grad.*detach\(\)"):
            f(x, refused)
    with pytest.raises(dvm.UnsupportedError, match="output 0 requires grad"):
        f.run(x, x, w)
    want = torch.tensor([2.0, 3.0])
    assert torch.equal(f(x, w.detach()), want)
    for off in (torch.no_grad(), torch.inference_mode()):
        with off:
            out = f(x, w)
            assert torch.equal(out, want) and not out.requires_grad
            f.run(x, x, w)
        with torch.no_grad():
            w.copy_(want)
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones(2))
        with pytest.raises(dvm.UnsupportedError, match=r"input 0 \(x\) carries a tangent"):
            f(dual, want)
        assert torch.equal(f(forward_ad.unpack_dual(dual).primal, want), want)


WATCHED = """
import torch, dvm
from torch.autograd import forward_ad

kernel = dvm.kernel(lambda k, x: k.store(k.mul(k.load(x, dvm.float32), 2)))

@torch.compile(backend="eager")
def watched(x):
    y = x + 1
    torch._dynamo.graph_break()
    return kernel(y) + 1

x = torch.ones(2)
FIRST
with forward_ad.dual_level():
    try:
        watched(forward_ad.make_dual(x, x))
    except dvm.UnsupportedError as error:
        print(error)
"""


@pytest.mark.parametrize("first", ["", "watched(x)"])
def test_a_tangent_in_a_frame_that_dynamo_watches(torch, first):
    """What looks for it must not be compiled; in a process where nothing has looked yet."""
    text = WATCHED.replace("FIRST", first)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    assert "input 0 (x) carries a tangent" in done.stdout, done.stderr


@pytest.mark.filterwarnings("ignore")
def test_tensors_of_other_layouts_are_refused(torch):
    f = dvm.kernel(lambda k, x: k.store(k.load(x)))
    for tensor, text in (
        (torch.ones(2).to_sparse(), r"sparse_coo: pass x\.to_dense\(\)"),
        (torch.ones(2, 2).to_sparse_csr(), r"sparse_csr: pass x\.to_dense\(\)"),
        (torch.ones(2).to_mkldnn(), r"_mkldnn: pass x\.to_dense\(\)"),
        (torch.nested.nested_tensor([torch.ones(2)]), r"nested tensor: pass its parts"),
        (torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged), r"pass its parts"),
        (
            torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8),
            r"quantized: pass x\.dequantize\(\)",
        ),
    ):
        with pytest.raises(dvm.ArgumentError, match="input 0 .*" + text) as info:
            f(tensor)
        assert "\n" not in str(info.value)
    for transform in (torch.vmap, torch.func.grad):
        with pytest.raises(dvm.ArgumentError, match=r"transform of torch\.func"):
            transform(lambda x: f(x).sum())(torch.ones(4))
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    for empty in (freed, torch._efficientzerotensor(4)):
        with pytest.raises(dvm.ArgumentError, match="no memory behind it"):
            f(empty)


def misaligned(n, dtype=np.float32):
    return np.frombuffer(bytearray(n * np.dtype(dtype).itemsize + 1), np.uint8)[1:].view(dtype)


def test_data_that_is_not_aligned():
    @dvm.kernel
    def f(k, x, y):
        return k.store(k.add(k.load(x), k.load(y)))

    x, y = misaligned(4), np.array([1, 2, 3, 4], F32)
    x[:] = y
    assert not x.flags.aligned
    for a in (x, x[::-1], x.reshape(2, 2).T):
        np.testing.assert_array_equal(f(a, a), a + a)
    np.testing.assert_array_equal(f(memoryview(x), y), y + y)
    with pytest.raises(dvm.ArgumentError, match="output 0 is not aligned to its 4-byte elements"):
        f.run(y, y, x)
    np.testing.assert_array_equal(x, y)
    bits = misaligned(3, np.uint16)
    bits[:] = dvm.PyKernel.convert_to_bf16(y[:3])
    one = dvm.kernel(lambda k, x: k.store(k.load(x, "bfloat16")))
    np.testing.assert_array_equal(one(bits), bits)
    assert f(misaligned(0), misaligned(0)).shape == (0,)


def test_tensors_that_are_not_aligned(torch):
    f = dvm.kernel(lambda k, x: k.store(k.add(k.load(x), 1)))
    x = torch.frombuffer(bytearray(20), dtype=torch.float32, count=4, offset=1)
    assert torch.equal(f(x), torch.ones(4)) and torch.equal(f(x.view(2, 2).t()), torch.ones(2, 2))
    with pytest.raises(dvm.ArgumentError, match="output 0 is not aligned"):
        f.run(torch.ones(4), x)


def test_ctypes():
    f = dvm.kernel(lambda k, x: k.store(k.add(k.load(x), 1)))
    x = ((ctypes.c_float * 3) * 2)((1, 2, 3), (4, 5, 6))
    np.testing.assert_array_equal(f(x), [[2, 3, 4], [5, 6, 7]])
    f.run(np.zeros((2, 3), F32), x)
    assert list(x[1]) == [1, 1, 1]


class Dlpack:
    """An object whose __dlpack__ is f."""

    def __init__(self, f):
        self.f = f

    def __dlpack__(self):
        return self.f()

    def __dlpack_device__(self):
        return 1, 0


def test_dlpack_that_lies(torch):
    f = dvm.kernel(lambda k, x: k.store(k.load(x)))
    for value in (None, 3, "a", KeyError()):
        with pytest.raises(dvm.ArgumentError, match=r"input 0 \(x\): its __dlpack__\(\) returned"):
            f(Dlpack(lambda value=value: value))
    used = torch.ones(4).__dlpack__()
    torch.from_dlpack(used)
    with pytest.raises(dvm.ArgumentError, match="consumed before"):
        f(Dlpack(lambda: used))
    again = torch.ones(4).__dlpack__()
    for _ in range(2):  # a capsule that is handed out twice stays its owner's
        assert np.array_equal(f(Dlpack(lambda: again)), np.ones(4))

    def fails(kind):
        raise kind("boom\nand more")

    with pytest.raises(dvm.ArgumentError, match="a Dlpack, cannot be read: ValueError: boom;") as e:
        f(Dlpack(lambda: fails(ValueError)))
    assert isinstance(e.value.__cause__, ValueError) and "\n" not in str(e.value)
    for kind in (KeyboardInterrupt, MemoryError):
        with pytest.raises(kind):
            f(Dlpack(lambda kind=kind: fails(kind)))
    with pytest.raises(dvm.DTypeError, match="given"):
        f(Dlpack(torch.ones(4, dtype=torch.complex64).__dlpack__))
    with pytest.raises(dvm.ArgumentError, match="released memoryview"):
        view = memoryview(bytearray(16)).cast("f")
        view.release()
        f(view)


def test_attributes_that_lie(torch):
    x = torch.ones(4)

    def thing(**changed):
        class Attributes:
            dtype, device, shape = torch.float32, torch.device("cpu"), (4,)
            stride = staticmethod(lambda: (1,))
            data_ptr = staticmethod(x.data_ptr)

        for name, value in changed.items():
            setattr(Attributes, name, value)
        return Attributes()

    declared = dvm.kernel(ktype="split", dyn_shape=True)(lambda k: k.store(k.load([-1])))
    assert np.array_equal(declared(thing()), np.ones(4))
    for changed, error in (
        ({"shape": None}, "TypeError"),
        ({"shape": ("a",)}, "TypeError"),
        ({"shape": (2**70,)}, "OverflowError"),
        ({"shape": (-4,)}, "size -4"),
        ({"stride": lambda _: 3}, "TypeError"),
        ({"stride": staticmethod(lambda: (1, 1))}, "1 sizes and 2 strides"),
        ({"data_ptr": staticmethod(lambda: "x")}, "TypeError"),
        ({"data_ptr": staticmethod(lambda: 0)}, "no memory behind it"),
        ({"device": "cuda"}, r"x\.cpu\(\)"),
        ({"dtype": 7}, "expected f32, given 7"),
    ):
        with pytest.raises(dvm.Error, match="input 0.*" + error):
            declared(thing(**changed))
