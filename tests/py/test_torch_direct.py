"""Compiled graphs without AOTAutograd's wrapper: same results, gradients and refusals."""

import threading

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from compiled import compiled, same  # noqa: E402
from dvm.torch import direct  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def made(monkeypatch):
    """What goes without the wrapper: "inference" and "training", as it is made."""
    found = []
    infer, function = direct.inference, direct._function

    def inference(*a):
        call = infer(*a)
        found.extend(["inference"] * (call is not None))
        return call

    def training(*a):
        found.append("training")
        return function(*a)

    monkeypatch.setattr(direct, "inference", inference)
    monkeypatch.setattr(direct, "_function", training)
    return found


# --------------------------------------------------------------------------------------- inference


def agrees(f, *args, **options):
    got, want = compiled(f, **options)(*args), f(*args)
    if isinstance(want, torch.Tensor):
        got, want = [got], [want]
    for g, w in zip(got, want, strict=True):
        same(g, w)
        assert g.requires_grad == w.requires_grad


def test_graphs_of_kernels_alone(made):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    agrees(lambda x, y: torch.relu(x * y + x), x, y)
    agrees(lambda x, y: [x + y.t(), x.sum(0)], x, y)
    with torch.no_grad():
        agrees(lambda x, y: x + y, x.requires_grad_(), y)
    assert made == ["inference"] * 3


def test_other_graphs_keep_the_wrapper(made):
    x, y = torch.randn(4, 4), torch.randn(4, 4)
    agrees(lambda x, y: x @ y, x, y)  # an operator of torch
    agrees(lambda x, y: (x + y, x.view(-1)), x, y)  # an alias
    agrees(lambda x, y: (x + y).t(), x, y)  # a view
    agrees(lambda x, y: x + y, x, y, dynamic=True)  # marks dynamic sizes
    agrees(lambda x, y: x + y, x.requires_grad_(), y)
    agrees(lambda x, y: x > y, x, y)  # nothing to differentiate

    def change(x, y):
        x.add_(y)
        return x * 2

    a, b = torch.ones(3), torch.ones(3)
    same(compiled(change)(a, b), torch.full((3,), 4.0))
    same(a, torch.full((3,), 2.0))
    assert not made


def test_forward_mode(made):
    """A tangent is seen at the first call and at later ones, whichever came first."""
    import torch.autograd.forward_ad as fa

    def f(x):
        return x.sin() * 2

    x = torch.rand(3)
    for plain_first in (True, False):
        c = compiled(f)
        if plain_first:
            same(c(x), f(x))
        for _ in range(3):
            with fa.dual_level():
                got, want = (fa.unpack_dual(g(fa.make_dual(x, torch.ones(3)))) for g in (c, f))
                same(got.primal, want.primal)
                same(got.tangent, want.tangent)
    assert "inference" in made


def test_dynamo_does_not_trace_what_a_program_calls():
    """New sizes, a new arena, a kernel that torch has to run: Python inside a direct program."""

    def f(x):
        return torch.softmax(x, 0).cumsum(0).sum(1) + 1

    c = compiled(f)
    x = torch.randn(6, 8)
    same(c(x), f(x))
    frames = torch._dynamo.utils.counters["frames"].copy()
    for t in (x, -x, x.neg(), torch.randn(8, 6).t()[:, :], torch._neg_view(x)):
        same(c(t), f(t), rtol=1e-5, atol=1e-6)
    with torch.profiler.profile():
        same(c(x), f(x))
    after = torch._dynamo.utils.counters["frames"]
    # A transposed or negated argument is a graph of its own, by Dynamo's guards.
    assert after["total"] - frames["total"] <= 2, (frames, after)


# ---------------------------------------------------------------------------------------- training


class Pair:
    """A function and its compiled form, on arguments of their own."""

    def __init__(self, f, *args, **options):
        self.f, self.c = f, compiled(f, **options)
        self.args = args

    def copies(self):
        return [
            a.detach().clone().requires_grad_(a.requires_grad) if torch.is_tensor(a) else a
            for a in self.args
        ]

    def run(self, f, gradients):
        args = self.copies()
        out = f(*args)
        outs = out if isinstance(out, tuple) else (out,)
        chosen = [(o, g(o)) for o, g in zip(outs, gradients, strict=True) if g is not None]
        torch.autograd.backward(*map(list, zip(*chosen, strict=True)))
        grads = [a.grad for a in args if torch.is_tensor(a) and a.requires_grad]
        return outs, grads

    def check(self, *gradients, times=3, **kw):
        """`gradients`: for each result a function that makes its gradient, or None."""
        gradients = gradients or (torch.ones_like,)
        want = self.run(self.f, gradients)
        for _ in range(times):
            got = self.run(self.c, gradients)
            for g, w in zip(got[0], want[0], strict=True):
                if torch.is_tensor(w):
                    same(g, w, **kw)
                    assert (g.requires_grad, g._is_view()) == (w.requires_grad, False)
                else:
                    assert g == w
            for g, w in zip(got[1], want[1], strict=True):
                assert (g is None) == (w is None)
                if w is not None:
                    same(g, w, **kw)


def leaf(*shape, **kw):
    return torch.randn(*shape, requires_grad=True, **kw)


NEAR = {"rtol": 1e-5, "atol": 1e-5}
CASES = {
    "one kernel": (lambda x, y: torch.relu(x * y + x), 1),
    "results that are saved": (lambda x, y: (torch.tanh(x), torch.exp(y), torch.sigmoid(x * y)), 3),
    "products": (lambda x, y: F.gelu(x @ y.t()), 1),
    "a view of a product": (lambda x, y: F.linear(x[None], y), 1),
    "reductions": (lambda x, y: (F.softmax(x, -1), F.layer_norm(y, (4,))), 2),
    "a result of integers": (lambda x, y: (x * y, x.argmax(-1)), 1),
    "a result without gradient": (lambda x, y: (x * y, x.detach() * 2), 1),
    "an argument without gradient": (lambda x, y: (x * 2, y.detach().sum()), 1),
    "a scalar": (lambda x, y: (x * y).sum(), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, made):
    f, n = CASES[name]
    ones = [torch.ones_like] * n
    pair = Pair(f, leaf(4, 4), leaf(4, 4))
    more = [None] * (len(out) - n if isinstance(out := f(*pair.copies()), tuple) else 0)
    pair.check(*ones, *more, **NEAR)
    assert made == ["training"]


def test_results_without_a_gradient_of_theirs(made):
    """The gradient of a result that nobody used is zero."""
    pair = Pair(lambda x, y: (x * y, x + y, x - y), leaf(3, 5), leaf(3, 5))
    pair.check(torch.ones_like, None, torch.ones_like)
    pair.check(None, torch.ones_like, None)
    assert made == ["training"]


def test_gradients_in_any_layout(made):
    """Expanded, transposed, with a gap: the backward graph was compiled for dense rows."""
    pair = Pair(lambda x, y: torch.tanh(x) * y, leaf(6, 6), leaf(6, 6))
    base = torch.randn(12, 6)
    pair.check(lambda o: torch.ones(()).expand_as(o))
    pair.check(lambda o: torch.arange(36.0).view(6, 6).t())
    pair.check(lambda o: base[::2])
    pair.check(lambda o: torch._neg_view(base[:6]))
    assert made == ["training"]


def test_sizes_that_change(made):
    f = lambda x, y: (torch.tanh(x) * y).sum(0)
    c = compiled(f, dynamic=True)
    for n in (5, 9, 2):
        x, y = leaf(n, 4), leaf(n, 4)
        u, v = x.detach().clone().requires_grad_(), y.detach().clone().requires_grad_()
        for _ in range(2):
            got, want = c(x, y), f(u, v)
            same(got, want, **NEAR)
            got.sum().backward()
            want.sum().backward()
        same(x.grad, u.grad, **NEAR)
        same(y.grad, v.grad, **NEAR)
    assert made == ["training"]
    assert not dvm.torch.summary().recompiles


def test_a_dynamic_result_keeps_its_mark(made):
    """What feeds the next graph tells it which sizes change, so that it is not compiled twice."""
    c = compiled(lambda x: torch.tanh(x) * 2, dynamic=True)
    marks = []
    for n in (5, 9, 7):
        out = c(leaf(n, 4))
        out.sum().backward()
        marks.append({k: v for k, v in vars(out).items() if k.startswith("_dynamo")})
    assert made == ["training"]
    assert marks[0] == marks[1] == marks[2] and marks[0]


def test_gradients_add_up_and_a_graph_is_kept(made):
    pair = Pair(lambda x, y: torch.sigmoid(x) * y, leaf(8), leaf(8))
    pair.check()
    x, y = pair.copies()
    out = pair.c(x, y)
    out.sum().backward(retain_graph=True)
    once = x.grad.clone()
    out.sum().backward()
    same(x.grad, 2 * once)
    with pytest.raises(RuntimeError, match="second time"):
        out.sum().backward()
    assert made == ["training"]


def test_gradients_of_gradients_are_refused(made):
    pair = Pair(lambda x: torch.sigmoid(x) * x, leaf(8))
    pair.check()
    x, *_ = pair.copies()
    (g,) = torch.autograd.grad(pair.c(x).sum(), x, create_graph=True)
    assert g.requires_grad
    same(g, torch.autograd.grad(pair.f(x).sum(), x)[0], **NEAR)
    with pytest.raises(RuntimeError, match="double backward"):
        g.sum().backward()
    assert made == ["training"]


def test_a_changed_value_is_refused(made):
    pair = Pair(torch.tanh, leaf(4))
    pair.check()
    x, *_ = pair.copies()
    y = pair.c(x)
    y.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    pair = Pair(lambda x, w: torch.tanh(x) * w, leaf(4), leaf(4))
    pair.check()
    x, w = pair.copies()
    y = pair.c(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    assert made == ["training"] * 2


def test_hooks_see_what_is_saved_and_what_flows(made):
    pair = Pair(lambda x, y: torch.tanh(x) * y, leaf(4), leaf(4))
    pair.check()
    x, y = pair.copies()
    packed, seen = [], []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda t: (packed.append(t.shape), t)[1], lambda t: t
    ):
        out = pair.c(x, y)
    out.register_hook(lambda g: (seen.append(g.clone()), 3 * g)[1])
    out.sum().backward()
    assert packed and len(seen) == 1
    u, v = pair.copies()
    (3 * pair.f(u, v).sum()).backward()
    same(x.grad, u.grad, **NEAR)
    same(y.grad, v.grad, **NEAR)
    assert made == ["training"]


def test_checkpoints(made):
    c = compiled(lambda x, w: torch.tanh(x @ w))
    x, w = leaf(4, 4), leaf(4, 4)

    def both(f):
        x.grad = w.grad = None
        checkpoint(f, x, w, use_reentrant=False).sum().backward()
        return x.grad.clone(), w.grad.clone()

    want = both(lambda x, w: torch.tanh(x @ w))
    for _ in range(3):
        for g, e in zip(both(c), want, strict=True):
            same(g, e, **NEAR)
    assert made == ["training"]


@pytest.mark.parametrize("inside", [True, False])
def test_autocast(inside, made):
    def body(x, w):
        return F.silu(x @ w) + x.sum()

    def f(x, w):
        with torch.autocast("cpu", torch.bfloat16):
            return body(x, w)

    pair = Pair(f, leaf(8, 8), leaf(8, 8))
    if not inside:
        c = compiled(body)

        def outer(x, w):
            with torch.autocast("cpu", torch.bfloat16):
                return c(x, w)

        pair.c = outer
    pair.check(rtol=2e-2, atol=2e-2)
    assert made == ["training"]


def test_algorithms_become_deterministic_between_the_halves(made):
    c = compiled(lambda x: torch.tanh(x) * 2)
    x = leaf(4)
    c(x).sum().backward()
    out = c(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="deterministic"):
            out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert made == ["training"]


def test_a_graph_break_around_backward(made):
    """Dynamo watches while the backward runs, and must not trace it."""

    def step(x, w):
        out = torch.tanh(x * w).sum()
        out.backward()
        return out * 2

    c = compiled(step, fullgraph=False)
    for _ in range(3):
        x, w = leaf(4), leaf(4)
        u, v = x.detach().clone().requires_grad_(), w.detach().clone().requires_grad_()
        same(c(x, w), step(u, v), **NEAR)
        same(x.grad, u.grad, **NEAR)
        same(w.grad, v.grad, **NEAR)
    assert "training" in made


def test_what_keeps_the_wrapper(made):
    def alias(x):
        return x * 2, x.view(-1)

    def change(x, b):
        b.add_(1)
        return x * b

    agrees(alias, leaf(4, 4))
    x, b = leaf(4), torch.ones(4)
    compiled(change)(x, b).sum().backward()
    same(x.grad, torch.full((4,), 2.0))
    same(b, torch.full((4,), 2.0))
    with torch._dynamo.config.patch(compiled_autograd=True):
        y = leaf(4)
        compiled(lambda y: torch.tanh(y) * 2)(y).sum().backward()
    assert y.grad is not None
    assert not made


def test_compiled_autograd_from_outside(made):
    """Switched on when a graph is without its wrapper: torch traces or runs its backward."""
    pair = Pair(lambda x: torch.tanh(x) * x, leaf(6))
    pair.check()
    x, *_ = pair.copies()
    u, *_ = pair.copies()
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        pair.c(x).sum().backward()
    pair.f(u).sum().backward()
    same(x.grad, u.grad, **NEAR)
    assert made == ["training"]


def test_threads_run_both_halves(made):
    pair = Pair(lambda x, y: torch.tanh(x) * y, leaf(64), leaf(64))
    pair.check()
    failed = []

    def work():
        try:
            pair.check(times=50)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed, failed
    assert made == ["training"]


def test_random_numbers_are_the_same_in_both_halves(made):
    """One mask in forward and backward, drawn anew at each call."""
    c = compiled(lambda x: F.dropout(x, 0.5) * 1)
    seen = set()
    for _ in range(4):
        x = torch.ones(64, requires_grad=True)
        y = c(x)
        y.backward(torch.ones(64))
        same(x.grad, y.detach())
        seen.add(tuple(y.tolist()))
    assert len(seen) == 4
    assert made == ["training"]


# ----------------------------------------------------------------------------- gradients in batches


def cube(x, w):
    return (x * w).sin() * x


def with_a_view(x, w):
    y = (x * w).exp()
    return y.view(-1), x.view(-1)  # torch's wrapper makes the second again


def with_a_product(x, w):
    return torch.tanh(x @ w.t()).sum(1), (x * 2) > 1


@pytest.mark.parametrize("f", [cube, with_a_view, with_a_product])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("dynamic", [False, True])
def test_batched_gradients(f, n, dynamic):
    x, w = (torch.randn(4, 5, requires_grad=True) for _ in range(2))

    def gradients(g):
        out = g(x, w)
        out = out[0] if isinstance(out, tuple) else out
        many = torch.randn(n, *out.shape, generator=torch.Generator().manual_seed(1))
        return torch.autograd.grad(out, (x, w), many, is_grads_batched=True)

    c = compiled(f, dynamic=dynamic)
    for _ in range(2):
        same(gradients(c), gradients(f))
    y = c(x, w)  # and plain ones afterwards
    y = y[0] if isinstance(y, tuple) else y
    want = f(x, w)
    want = want[0] if isinstance(want, tuple) else want
    ones = torch.ones_like(y)
    same(torch.autograd.grad(y, x, ones), torch.autograd.grad(want, x, ones))


def test_vectorized_jacobians():
    x, w = torch.randn(3, 2), torch.randn(3, 2)
    jacobian = torch.autograd.functional.jacobian
    c = compiled(cube)
    same(jacobian(c, (x, w), vectorize=True), jacobian(cube, (x, w)))


def test_batched_gradients_are_differentiated_once():
    x, w = torch.randn(3, requires_grad=True), torch.randn(3)
    c, many = compiled(cube), torch.randn(2, 3)
    for _ in range(2):  # through torch's wrapper, and without
        (g,) = torch.autograd.grad(c(x, w), x, many, is_grads_batched=True, create_graph=True)
        with pytest.raises(RuntimeError, match=r"double backward|does not require grad"):
            g.sum().backward()


def parts_of_one(x, w):
    y = torch.tanh(x * w)
    a, b = y.split(3, 1)
    return a, b, (x * 2).sum(), y.t()


def test_results_that_are_views_of_one_tensor(made):
    """Autograd sees the tensor; each view of it may be used, changed, or left out."""
    pair = Pair(parts_of_one, leaf(4, 6), leaf(6))
    for use in (lambda r: r[0].sin().sum(), lambda r: (r[1] * r[3][:3].t()).sum() + r[2]):
        (x, w), (u, v) = pair.copies(), pair.copies()
        results, wanted = pair.c(x, w), pair.f(u, v)
        assert (
            len({r.untyped_storage().data_ptr() for r in (results[0], results[1], results[3])}) == 1
        )
        assert [r.storage_offset() for r in results] == [r.storage_offset() for r in wanted]
        assert [r.stride() for r in results] == [r.stride() for r in wanted]
        use(results).backward()
        use(wanted).backward()
        same(x.grad, u.grad, **NEAR)
        same(w.grad, v.grad, **NEAR)
    assert made == ["training"]


def test_a_view_among_results_is_changed(made):
    """The other view sees it, and so does the gradient."""

    def f(x, w):
        y = x * w
        return y.t(), y.view(-1)

    pair = Pair(f, leaf(4, 6), leaf(6))
    all_ = []
    for g in (pair.c, pair.f):
        x, w = pair.copies()
        turned, flat = g(x, w)
        turned.mul_(3)
        flat.sin().sum().backward()
        all_.append((flat.detach(), x.grad, w.grad))
    for got, want in zip(*all_, strict=True):
        same(got, want, **NEAR)
    assert made == ["training"]
