"""Arguments of every kind: as eager, or left to torch and counted.

Also: what eager refuses, the backend refuses.
"""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


def outcome(f, args):
    try:
        return f(*args)
    except Exception as error:
        return error


def compare(f, *calls, **options):
    """Calls with the same compiled function; errors must have eager's type."""
    compiled = torch.compile(f, backend="dvm", **options)
    for args in calls:
        want, got = outcome(f, args), outcome(compiled, args)
        if isinstance(want, Exception):
            assert type(got) is type(want), got
            continue
        assert not isinstance(got, Exception), got
        assert (got.layout, got.dtype, type(got)) == (want.layout, want.dtype, type(want))
        torch.testing.assert_close(got, want, equal_nan=True, rtol=1e-5, atol=1e-6)
    return dvm.torch.summary()


def at(*values):
    return torch.tensor(values)


# ----------------------------------------------------------------------- positions out of range


def test_embedding_refuses_negative_positions():
    w = torch.randn(5, 3)
    s = compare(lambda i: F.embedding(i, w) * 2, *[(at(1, j),) for j in (4, -1, -5, 5, 2**40)])
    assert s.fallbacks == s.rescued == {}


def test_index_select_refuses_negative_positions():
    w = torch.randn(5, 3)
    compare(lambda i: w.index_select(0, i) * 2, *[(at(1, j),) for j in (4, -1, 5)])
    compare(lambda i: w.index_select(1, i) * 2, *[(at(1, j).int(),) for j in (2, -1, 3)])


def test_gather_refuses_negative_positions():
    x = torch.randn(2, 3)
    compare(lambda x, i: x.gather(1, i) * 2, *[(x, at([0, 1], [2, j])) for j in (2, -1, -3, 3)])


def test_indexing_counts_from_the_end():
    w = torch.randn(5, 3)
    compare(lambda i: w[i] * 2, *[(at(1, j),) for j in (4, -1, -5, -6, 5)])


def test_indexing_with_several_tensors():
    w = torch.randn(5, 3, 2)
    calls = [(at(1, a), at(0, b)) for a in (4, -5, -6, 5) for b in (2, -3, 3, -4)]
    s = compare(lambda i, j: w[i, j] * 2, *calls)
    assert s.fallbacks == {}
    compare(lambda i, j: w.mT[:, j % 2, i] + 1, *calls)


def test_classes_of_pictures():
    x, w = torch.randn(2, 3, 4, 5), torch.rand(3)
    t = torch.randint(0, 3, (2, 4, 5))
    t[0, 1, 2] = -100
    bad = t.clone()
    bad[1, 1, 1] = 3
    for reduction in ("none", "mean", "sum"):
        f = lambda x, t: F.cross_entropy(x, t, w, reduction=reduction)  # noqa: B023
        s = compare(f, (x, t), (x, bad))
        assert s.fallbacks == {}
        torch._dynamo.reset()
        grads = []
        for g in (torch.compile(f, backend="dvm"), f):
            leaf = x.clone().requires_grad_()
            g(leaf, t).square().sum().backward()
            grads.append(leaf.grad)
        torch.testing.assert_close(*grads)
        assert dvm.torch.summary().fallbacks == {}


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_classes_out_of_range(reduction):
    x, w = torch.randn(4, 3), torch.rand(3)
    calls = [(x, at(0, 1, 2, j)) for j in (1, -100, -1, 3)]
    compare(lambda x, t: F.cross_entropy(x, t, reduction=reduction), *calls)
    compare(lambda x, t: F.cross_entropy(x, t, w, reduction=reduction), *calls)
    compare(lambda x, t: F.nll_loss(x, t, ignore_index=-1, reduction=reduction), *calls)


def test_changed_argument_is_not_computed_twice():
    """Its old contents are gone when a position turns out to be out of range."""

    def f(x, i):
        x.add_(x[i])

    compiled = torch.compile(f, backend="dvm")
    with pytest.raises(IndexError):
        compiled(torch.randn(4), at(0, 1, 2, 9))


# ---------------------------------------------------------------- what a kernel was not built for


def select_nonzero(x):
    return x[x.nonzero().squeeze(1)]


ROWS_OF_UNKNOWN_LENGTH = {
    "softmax": lambda x: select_nonzero(x).softmax(0),
    "log_softmax": lambda x: (select_nonzero(x) * 2)[:, None].expand(-1, 4).log_softmax(0),
    "logsumexp": lambda x: select_nonzero(x).logsumexp(0) + 1,
    "sum and mean": lambda x: select_nonzero(x).sum() + select_nonzero(x).mean(),
}


@pytest.mark.parametrize("name", ROWS_OF_UNKNOWN_LENGTH)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_rows_of_no_elements(name):
    calls = [(at(1.0, 0.0, 2.0),), (torch.zeros(3),), (torch.ones(3),)]
    s = compare(ROWS_OF_UNKNOWN_LENGTH[name], *calls, dynamic=True)
    # torch itself may ask for the size in logsumexp, which breaks the graph
    assert len(s.graphs) == 1 or name == "logsumexp"


@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_softmax_of_nothing_is_counted(caplog):
    f = torch.compile(ROWS_OF_UNKNOWN_LENGTH["softmax"], backend="dvm")
    for _ in range(2):
        assert f(torch.zeros(3)).shape == (0,)
    s = dvm.torch.summary()
    assert list(s.rescued.values()) == [2]
    assert "2 runs of dvm_index_softmax_0 by torch: ShapeError" in str(s)
    assert sum("is run by torch" in m for m in caplog.messages) == 1


@pytest.mark.parametrize("requires_grad", [True, False])
def test_nothing_to_differentiate(requires_grad):
    """All results are integers or booleans; the graph is one for inference, inputs may train."""
    x = torch.randn(7, 5, requires_grad=requires_grad)
    for f in (lambda x: x.to(torch.int64).sum(0), lambda x: (x > 0).any(1), lambda x: x.argmax(1)):
        assert not compare(f, (x,), (x.t(),), (x[1:].detach(),)).rescued


def unaligned(n):
    return torch.frombuffer(bytearray(4 * n + 1), dtype=torch.float32, offset=1, count=n).normal_()


def test_memory_that_is_not_aligned():
    x = unaligned(5)
    assert not compare(lambda x: x * 2 + 1, (x,)).rescued
    s = compare(lambda x: x.relu_() + 1, (x,))
    assert list(s.rescued) == [("dvm_relu_add_0", "ArgumentError")]


@pytest.mark.parametrize("dynamic", [False, True])
def test_rescue_computes_views_and_sizes(dynamic):
    """Every node of a kernel again by torch, sizes included."""

    def f(x):
        y = x.relu_().reshape(-1, 6)  # the kernel cannot write this x
        n = y.shape[0] - 1
        return y[:n].sum(0, keepdim=True).expand(n, 6) / y.shape[0] + y[1:].max(1, keepdim=True)[0]

    s = compare(f, (unaligned(24),), (torch.randn(36),), dynamic=dynamic)
    assert s.rescued


# ---------------------------------------------------------------------------- kinds of tensors


def triangle():
    x = torch.randn(4, 4)
    return x * (x > 0)


def complexes(dtype=torch.complex64):
    return torch.randn(4, 4, dtype=dtype)


X = torch.randn(4, 4)
KINDS = {
    "sparse times dense": (lambda s, y: torch.sparse.mm(s, y) * 2 + y, triangle().to_sparse(), X),
    "csr times dense": (lambda s, y: s @ y + 1, triangle().to_sparse_csr(), X),
    "conjugated": (lambda c: c * 2 + 1, complexes().conj()),
    "imaginary part of a conjugate": (lambda r: r * 2 + 1, complexes().conj().imag),
    "imaginary part": (lambda r: r * 2 + 1, complexes().imag),
    "negated": (lambda r: r * 2 + 1, torch._neg_view(X)),
    "negated inside": (lambda x: torch._neg_view(x) * 2 + torch._neg_view(x * 2), X),
    "conjugated inside": (lambda c: (c.conj() @ c).real * 2 + c.conj().imag, complexes()),
    "complex and real": (lambda c, x: (c * x).abs() * 2 + x, complexes(), X),
    "complex as real": (lambda c: torch.view_as_real(c) * 2, complexes()),
    "complex128": (lambda c: c * 2 + 1, complexes(torch.complex128)),
    "float64": (lambda x: x * 2 + 1, X.double()),
    "float8": (lambda x: x.float() * 2, X.to(torch.float8_e4m3fn)),
    "int16": (lambda x: x * 2, at(1, 2).short()),
    "uint16": (lambda x: x.int() * 2, at(1, 2).to(torch.uint16)),
    "parameter": (lambda x: x * 2, torch.nn.Parameter(X)),
    "channels last": (
        lambda x: x.relu() * 2,
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
    ),
    "no arguments": (lambda: torch.arange(4) * 2,),
    "given back": (lambda x: x, X),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_tensors(name):
    f, *args = KINDS[name]
    compare(f, tuple(args))


def test_sparse_and_quantized_results():
    f = torch.compile(lambda x: (x * 2).to_sparse(), backend="dvm")
    assert torch.equal(f(X).to_dense(), X * 2)
    f = torch.compile(
        lambda x: torch.quantize_per_tensor(x * 2, 0.1, 0, torch.qint8), backend="dvm"
    )
    want = torch.quantize_per_tensor(X * 2, 0.1, 0, torch.qint8)
    assert torch.equal(f(X).int_repr(), want.int_repr())
    f = torch.compile(lambda q: q.dequantize() * 2, backend="dvm")
    assert torch.equal(f(want), want.dequantize() * 2)


def test_what_kernels_do_not_take_is_counted():
    s = compare(lambda c: (c * c).real * 2, (complexes(),))
    assert s.fallbacks[("aten.mul.Tensor", "dtype complex64")] == 1
    assert s.fused >= 1


class Plain(torch.Tensor):
    pass


def test_subclasses():
    compare(lambda s: s * 2 + 1, (X.as_subclass(Plain),))
    two = pytest.importorskip("torch.testing._internal.two_tensor").TwoTensor
    got = torch.compile(lambda s: (s * 2 + 1).sin(), backend="dvm")(two(X, X + 1))
    torch.testing.assert_close(got.a, (X * 2 + 1).sin())
    torch.testing.assert_close(got.b, ((X + 1) * 2 + 1).sin())


def test_nested_tensors():
    parts = [torch.randn(2, 3), torch.randn(4, 3)]
    t = torch.nested.nested_tensor(parts, layout=torch.jagged)
    got = torch.compile(lambda t: (t * 2).sin(), backend="dvm")(t)
    torch.testing.assert_close(got.values(), (torch.cat(parts) * 2).sin())


def test_meta_tensors():
    x = torch.empty(4, 4, device="meta")
    got = torch.compile(lambda x: torch.relu(x * 2), backend="dvm")(x)
    assert (got.device.type, got.shape) == ("meta", (4, 4))


def test_arguments_that_share_memory():
    def f(a, b):
        a.add_(1)
        return b * 2

    def both(g):
        z = torch.zeros(6)
        return z, g(z[:4], z[2:])

    for got, want in zip(both(torch.compile(f, backend="dvm")), both(f), strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_graphs_of_nothing(dynamic):
    """Nothing to compute, nothing to return, no tensors, tensors from nowhere, no elements."""
    x = torch.randn(0, 3)
    for f, args in (
        (lambda x: x, (X,)),
        (lambda x: None, (X,)),
        (lambda n, a: (n * 2, a), (5, 2.5)),
        (lambda n: torch.ones(n) * 2, (5,)),
        (lambda: torch.arange(4) + 1, ()),
        (lambda x: (x.exp(), x.sum(), x.sum(0)), (x,)),
    ):
        got = torch.compile(f, backend="dvm", dynamic=dynamic)(*args)
        torch.testing.assert_close(got, f(*args)) if f(*args) is not None else None
        assert type(got) is type(f(*args))
