"""Matrix products as kernels of torch.compile: values, the rule, switches, counts."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm  # noqa: E402
import dvm.torch  # noqa: E402
import judge  # noqa: E402
import optable  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from compiled import compiled  # noqa: E402
from dvm.torch import rows_matmul  # noqa: E402
from dvm.torch.options import OptionError  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
TOLERANCE = {F32: (1e-5, 1e-5), BF16: (1.6e-2, 1e-2), F16: (2e-3, 2e-3)}


def numbers(*shape, dtype=F32, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=g).to(dtype)


def right(got, f, args):
    """As near to float64 as eager is, or near eager."""
    judge.check(got, f(*args), lambda: f(*map(judge.widened, args)), TOLERANCE.get)


def one(f, *args, products=1, dynamic=False):
    low = lowered(f, *args, products="all", dynamic=dynamic)
    assert low.program.products == products, low.fallbacks
    got = low(*args)
    right(got, f, args)
    assert got.stride() == f(*args).stride()
    if products:
        optable.note(low)
    return low


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (3, 5, 7), (16, 33, 257), (0, 4, 5), (4, 0, 5), (70, 65, 129)]
)
def test_layouts(dtype, shape):
    m, n, k = shape
    a, b, bias = numbers(m, k, dtype=dtype), numbers(k, n, dtype=dtype), numbers(n, dtype=dtype)
    at, bt = a.t().contiguous().t(), b.t().contiguous().t()
    for x in (a, at):
        for y in (b, bt):
            one(torch.mm, x, y)
            one(torch.addmm, bias, x, y)
    wide = numbers(2 * m, 3 * k, dtype=dtype)[::2, ::3]
    one(torch.mm, wide, b)
    batches = numbers(2, m, k, dtype=dtype), numbers(2, k, n, dtype=dtype)
    one(torch.bmm, *batches, products=0 if k == 1 else 1)  # a depth of one: no product


def test_no_depth():
    one(torch.mm, numbers(3, 0), numbers(0, 4))
    one(torch.addmm, numbers(4), numbers(3, 0), numbers(0, 4))


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
def test_special_numbers(dtype):
    a, b = numbers(6, 40, dtype=dtype), numbers(40, 9, dtype=dtype)
    a[1, 3], a[2, 5], b[7, 2], b[8, 3] = torch.inf, torch.nan, -torch.inf, 1e-40
    one(torch.mm, a, b)
    one(lambda x, y: F.gelu(x @ y), a, b)


SURROUNDED = {
    "bias and activation": lambda x, w, b, r: F.gelu(F.linear(x, w, b)),
    "residual": lambda x, w, b, r: r + F.linear(x, w),
    "row scale": lambda x, w, b, r: F.linear(x, w, b) * x.sum(-1, keepdim=True),
    "casts": lambda x, w, b, r: F.linear(x, w, b).float().sigmoid(),
    "computed factor": lambda x, w, b, r: F.linear(F.silu(x), w, b),
    "norm of rows": lambda x, w, b, r: F.layer_norm(F.linear(x, w, b), (w.shape[0],)),
}


@pytest.mark.parametrize("dtype", [F32, BF16, F16])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", SURROUNDED)
def test_with_what_surrounds_them(name, dynamic, dtype):
    args = [
        numbers(*s, dtype=dtype, seed=i)
        for i, s in enumerate([(19, 24), (40, 24), (40,), (19, 40)])
    ]
    low = one(SURROUNDED[name], *args, dynamic=dynamic)
    if dynamic:
        args[0], args[3] = numbers(7, 24, dtype=dtype), numbers(7, 40, dtype=dtype)
        right(low(*args), SURROUNDED[name], args)


def test_swiglu_of_three_products():
    def f(x, up, gate, down):
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)

    one(f, numbers(5, 32), numbers(48, 32), numbers(48, 32), numbers(32, 48), products=3)


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_gradients(dtype):
    def f(x, w, b):
        return F.gelu(F.linear(x, w, b)).float().square().sum()

    def gradients(g, *args):
        leaves = [a.detach().clone().requires_grad_() for a in args]
        return torch.autograd.grad(g(*leaves), leaves)

    args = numbers(12, 20, dtype=dtype), numbers(30, 20, dtype=dtype), numbers(30, dtype=dtype)
    torch._dynamo.reset()
    got = gradients(compiled(f, options={"products": "all"}), *args)
    assert dvm.torch.summary().products == 3  # forward, and one for each of x and w
    assert not any("mm" in op for op, _ in dvm.torch.summary().fallbacks)
    judge.check(
        got,
        gradients(f, *args),
        lambda: gradients(f, *map(judge.widened, args)),
        lambda t: (5e-2, 5e-2) if t is BF16 else (1e-4, 1e-5),
    )


def test_same_bits_for_any_number_of_threads():
    f = SURROUNDED["bias and activation"]
    args = numbers(300, 200), numbers(600, 200), numbers(600), numbers(1)
    low = lowered(f, *args, products="all")
    before, want = dvm.get_num_threads(), low(*args)
    try:
        for threads in (1, 2, 3, 16):
            dvm.set_num_threads(threads)
            assert torch.equal(low(*args), want)
    finally:
        dvm.set_num_threads(before)


def test_bias_that_is_no_row_is_torchs():
    a, b = numbers(4, 5), numbers(5, 6)
    one(torch.addmm, numbers(4, 6), a, b, products=0)
    one(lambda c, x, y: torch.addmm(c, x, y, beta=0.5), numbers(6), a, b, products=0)
    one(lambda c, x, y: torch.addmm(c, x, y, alpha=2), numbers(6), a, b, products=0)


# ------------------------------------------------------------------------------ the rule


def taken(f, *args, dynamic=False, **options):
    return lowered(f, *args, dynamic=dynamic, **options).program.products


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "m, n, k, kernel",
    [
        (1, 1024, 1024, 1),
        (1, 512, 512, 0),
        (3, 1024, 1024, 1),
        (4, 1024, 1024, 1),
        (4, 512, 512, 0),
        (12, 1024, 512, 1),
        (13, 512, 512, 1),
        (16, 128, 4096, 1),
        (16, 128, 4097, 0),
        (17, 128, 1025, 0),
        (64, 128, 1024, 1),
        (65, 128, 64, 0),
    ],
)
def test_f32_by_size_and_with_work_on_the_result(m, n, k, kernel, dynamic, monkeypatch):
    x, w = numbers(m, k), numbers(n, k)
    for wide in (False, True):
        monkeypatch.setattr(rows_matmul, "has_wide", lambda wide=wide: wide)
        want = kernel if (m not in (2, 3) if wide else m <= 16) else 0
        assert taken(lambda x, w: F.relu(x @ w.T), x, w, dynamic=dynamic) == want
        assert taken(lambda x, w: F.relu((x @ w.T).view(1, m, n)), x, w) == want
        assert taken(lambda x, w: x @ w.T, x, w) == 0
        assert taken(lambda x, w: (x @ w.T) @ w, x, w) == 0


@pytest.mark.parametrize("dtype, least", [(BF16, 1), (F16, 4)])
def test_sixteen_bits_where_torch_adds_one_by_one(dtype, least, monkeypatch):
    w = numbers(64, 64, dtype=dtype)
    for fast in (False, True):
        monkeypatch.setattr(rows_matmul, "has_fast", lambda dtype, fast=fast: fast)
        for m in (1, 3, 4, 100):
            want = m == 1 and dtype is BF16 if fast else m >= least
            assert taken(torch.mm, numbers(m, 64, dtype=dtype), w) == want, (m, fast)


def test_switches(monkeypatch):
    x, w = numbers(16, 64), numbers(64, 64)
    f = lambda x, w: F.relu(x @ w)
    monkeypatch.delenv("DVM_PRODUCTS", raising=False)
    assert taken(f, x, w) == 1
    assert taken(f, x, w, products="none") == 0
    assert taken(torch.mm, x, w) == 0
    assert taken(torch.mm, x, w, products="all") == 1
    assert taken(torch.mm, x, w, products="all", disable_ops=frozenset({"mm"})) == 0
    monkeypatch.setenv("DVM_PRODUCTS", "all")
    assert dvm.torch.options.parse_options(None, None).products == "all"
    assert dvm.torch.options.parse_options({"products": "none"}, None).products == "none"
    monkeypatch.setenv("DVM_PRODUCTS", "some")
    with pytest.raises(
        OptionError, match="DVM_PRODUCTS must be one of auto, all, none, not 'some'"
    ):
        dvm.torch.options.parse_options(None, None)
    with pytest.raises(OptionError, match="option 'products' must be one of"):
        dvm.torch.options.parse_options({"products": True}, None)


def test_summary_counts_them():
    torch._dynamo.reset()
    compiled(lambda x, w: F.relu(x @ w))(numbers(16, 64), numbers(64, 64))
    assert "1 matrix product among them" in str(dvm.torch.summary())
    torch._dynamo.reset()
    compiled(lambda x, w: x @ w)(numbers(16, 64), numbers(64, 64))
    assert "among them" not in str(dvm.torch.summary())
    assert dvm.torch.summary().fallbacks[("aten.mm.default", "matrix product")] == 1


THIN = {  # batch, rows, depth, columns
    "one column": (5, 7, 6, 1),
    "depth of one": (5, 7, 1, 4),
    "one number each": (3, 1, 1, 1),
    "one row and column": (4, 1, 9, 1),
    "no rows": (4, 0, 9, 1),
    "no batch": (0, 3, 1, 2),
    "no depth": (2, 3, 0, 1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("turned", ["", "a", "b", "ab"])
@pytest.mark.parametrize("name", THIN)
def test_thin_products_are_sums_of_products(name, turned, dtype):
    torch._dynamo.reset()
    batch, m, k, n = THIN[name]

    def matrices(x, y):
        a = x.transpose(1, 2) if "a" in turned else x
        return a, y.transpose(1, 2) if "b" in turned else y

    def f(x, y):
        return torch.bmm(*matrices(x, y)) * 2

    x = torch.randn((batch, k, m) if "a" in turned else (batch, m, k)).to(dtype)
    y = torch.randn((batch, n, k) if "b" in turned else (batch, k, n)).to(dtype)
    all_ = []
    for g, to in ((torch.compile(f, backend="dvm", fullgraph=True), dtype), (f, dtype), (f, None)):
        leaves = [t.detach().clone().to(to or torch.float64).requires_grad_() for t in (x, y)]
        r = g(*leaves)
        r.double().sin().sum().backward()
        all_.append([r.detach(), *(t.grad for t in leaves)])
    for got, eager, exact in zip(*all_, strict=True):
        assert (got.shape, got.dtype) == (eager.shape, eager.dtype)
        error, eagers = ((t.double() - exact).norm() for t in (got, eager))
        # Sums are made in f32: a rounding for each product; the rest are roundings to dtype.
        roundings = 4 * torch.finfo(dtype).eps + (m + k) * torch.finfo(torch.float32).eps
        assert error <= 1.5 * eagers + roundings * exact.norm()
    left = {op for g in dvm.torch.summary().graphs if g.kind == "forward" for op, _ in g.fallbacks}
    assert not left


def test_thin_products_switched_off():
    torch._dynamo.reset()
    f = torch.compile(torch.bmm, backend="dvm", options={"disable_ops": ["bmm"]})
    a, b = torch.randn(2, 3, 1), torch.randn(2, 1, 4)
    torch.testing.assert_close(f(a, b), torch.bmm(a, b))
    (graph,) = dvm.torch.summary().graphs
    assert {op for op, _ in graph.fallbacks} == {"aten.bmm.default"}
