"""The program object of a compiled graph: places of buffers, shapes, threads, errors."""

import gc
import threading
import weakref

import pytest

torch = pytest.importorskip("torch")
_dvm = pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
from dvm.torch.program import Size, Slot, record  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402


def program_of(low):
    return low._call.__globals__["run"].__self__


def chain(n, w):
    def f(x):
        for _ in range(n):
            x = torch.relu(x * 1.5 + x) @ w
        return x

    return f


def test_one_sequence_with_two_buffers():
    f = chain(6, torch.eye(4))
    x = torch.randn(4, 4)
    low = lowered(f, x)
    for _ in range(3):
        torch.testing.assert_close(low(x), f(x))
    stats = program_of(low).stats()
    # six products, the last one returned; a relu and a product are alive at a time
    assert (stats["runs"], stats["buffers"], stats["records"]) == (6, 11, 1)
    assert (stats["planned_bytes"], stats["naive_bytes"]) == (128, 11 * 64)


@pytest.mark.parametrize("n", [0, 2])
def test_buffers_of_no_bytes_are_tensors_too(n):
    """All of them in a call: nothing to allocate, and a torch operator reads one."""

    def f(x, w):
        return torch.relu(x + 1) @ w, torch.exp(x).sum(0) @ w

    x, w = torch.randn(n, 0), torch.ones(0, 3)
    low = lowered(f, x, w)
    for _ in range(2):
        for got, want in zip(low(x, w), f(x, w), strict=True):
            torch.testing.assert_close(got, want)


def test_results_are_never_in_the_arena():
    w = torch.eye(3)
    low = lowered(lambda x: [(x + 1) @ w, torch.relu(x @ w).t(), x * 2], torch.ones(3, 3))
    first = low(torch.ones(3, 3))
    kept = [t.clone() for t in first]
    low(torch.full((3, 3), 9.0))
    assert all(map(torch.equal, first, kept))


def test_views_of_buffers_are_kept():
    """And everything that reads them sees the values of the call."""
    w = torch.randn(6, 6)

    def g(x):
        y = torch.relu(x + 1)
        z = (y @ w).view(4, 9)[1:3].unfold(1, 3, 3)
        return torch.special.i0(z) + z.sum(), y.view(3, 12) @ torch.ones(12, 2)

    low = lowered(g, torch.randn(6, 6))
    for _ in range(3):
        x = torch.randn(6, 6)
        for got, want in zip(low(x), g(x), strict=True):
            torch.testing.assert_close(got, want)


def test_views_that_are_read_only_are_no_calls():
    """Of weights, of results of kernels and of torch, one behind the other: no operator of torch
    makes them."""

    def f(x, w, b):
        y = torch.relu(x + 1)
        z = torch.special.i0(y).view(2, 6).t()[1:5] @ w.t()
        return torch.addmm(b, y[1:].t(), b.expand(3, 5)), z.split(2)[1] @ w

    x, w, b = torch.randn(4, 3), torch.randn(5, 2), torch.randn(5)
    low = lowered(f, x, w, b)
    assert "p.view(" not in low.program.call and low.program.call.count("p.lent(") == 5
    for _ in range(3):
        for n in (x, x.clone(), torch.randn(4, 3)):
            for got, want in zip(low(n, w, b), f(n, w, b), strict=True):
                torch.testing.assert_close(got, want)
        w, b = w.clone(), torch.randn(5)


@pytest.mark.parametrize("n", [0, 1, 4])
def test_views_of_tensors_that_move(n):
    """The transpose of a weight is made once, and again where the weight has other memory; one
    that is laid out in another way than the graph was told is right too."""

    def text(p):
        x, w = p.inputs(2)
        rows = p.size(x, 0)
        y = p.lent(x, (2, rows), (1, 2), 0, (2, 1))
        v = p.lent(w, (2,), (3,), 1, (3, 1))
        p.output((p.call(torch.mul, y, 2), p.call(torch.mul, v, 3)))

    program = record(text)
    w = torch.arange(6.0).view(2, 3)
    xs = [torch.randn(n, 2), torch.randn(2, n).t(), torch.randn(n, 4)[:, ::2], torch.randn(n, 2)]
    for x in (*xs, *xs):
        for v in (w, w, w.clone(), w.t().contiguous().t(), torch.zeros(2, 6)[:, 1:4]):
            y, z = program.call(x, v)
            assert torch.equal(y, x.t() * 2) and torch.equal(z, v[:, 1] * 3)


def test_views_do_not_keep_memory():
    def text(p):
        (x,) = p.inputs(1)
        p.output((p.call(torch.neg, p.lent(x, (2, 2), (1, 2), 0, (2, 1))),))

    program = record(text)
    x = torch.ones(2, 2)
    ref = weakref.ref(x.untyped_storage())
    program.call(x)
    del x
    assert ref() is None


def test_arguments_live_as_long_as_their_views():
    """The list of arguments is emptied: nobody else holds them."""

    def text(p):
        (x,) = p.inputs(1)
        v = p.lent(x, (3,), (1,), 1, (1,))
        a = p.call(torch.zeros, (1 << 16,))
        p.output((p.call(torch.add, v, p.call(torch.sum, a)),))

    program = record(text)
    for i in range(20):
        assert torch.equal(program.run([torch.arange(4.0) + i])[0], torch.arange(1.0, 4.0) + i)


def test_a_view_that_is_returned_counts_changes():
    """Autograd sees that a weight was changed between forward and backward."""
    torch._dynamo.reset()
    w = torch.randn(3, 3, requires_grad=True)
    x = torch.randn(3, 3, requires_grad=True)
    y = torch.compile(lambda x, w: torch.relu(x) @ w.t(), backend="dvm")(x, w)
    with torch.no_grad():
        w.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_sizes_are_placed_again():
    def f(x, y):
        z = torch.relu(x + 1) @ y
        return (z * 2).view(-1) @ torch.ones(z.shape[0] * z.shape[1], 2), z.shape[0] * 3

    low = lowered(f, torch.randn(5, 6), torch.randn(6, 7), dynamic=True)
    assert "p.size(" in low.program.call and "p.expression(lambda" in low.program.call
    for n in (5, 8, 2, 5, 33, *range(2, 30), 5):
        x, y = torch.randn(n, n + 1), torch.randn(n + 1, 4)
        got, want = low(x, y), f(x, y)
        torch.testing.assert_close(got[0], want[0], rtol=1e-4, atol=1e-4)
        assert got[1] == want[1]
    stats = program_of(low).stats()
    assert stats["records"] == 16
    assert 0 < stats["planned_bytes"] < stats["naive_bytes"]


def test_float_arguments_do_not_make_records():
    torch._dynamo.reset()
    f = torch.compile(lambda x, a: (x * a) @ x, backend="dvm", dynamic=True)
    x = torch.randn(3, 3)
    for a in (0.5, 1.5, 2.5):
        torch.testing.assert_close(f(x, a), (x * a) @ x)
    for graph in dvm.torch.summary().graphs:
        assert all(p.stats()["records"] <= 1 for p in graph.programs())


def test_arguments_are_let_go_early():
    seen = []

    def spy(x):
        seen.append(ref() is None)
        return x

    t = torch.ones(4)
    ref = weakref.ref(t)

    def text(p):
        x, y = p.inputs(2)
        a = p.call(torch.neg, x)
        b = p.opaque(spy, a)
        p.output((b, y, None, 3))

    args = [t, 2.5]
    del t
    out = record(text).run(args)
    assert args == [] and seen == [True]
    assert out[1:] == (2.5, None, 3) and (out[0] == -1).all()


def test_values_that_an_unknown_op_keeps_are_not_in_the_arena():
    held = []

    @torch.library.custom_op("dvm_test::hold", mutates_args=())
    def hold(x: torch.Tensor) -> torch.Tensor:
        held.append(x)
        return x + 1

    hold.register_fake(lambda x: torch.empty_like(x))
    low = lowered(lambda x: hold(x * 2) + 1, torch.ones(3))
    low(torch.ones(3))
    low(torch.zeros(3))
    assert (held[0] == 2).all() and (held[1] == 0).all()
    assert program_of(low).stats()["buffers"] == 0


def test_an_op_that_returns_its_operand_keeps_it_alive():
    """native_dropout in evaluation returns its argument itself."""

    def f(x):
        y, _ = torch.ops.aten.native_dropout.default(x * 2, 0.5, False)
        z = torch.special.i0(x + 1)
        return torch.special.i0(z * 3) + torch.special.i0(y)

    x = torch.rand(5)
    low = lowered(f, x)
    low(x)
    torch.testing.assert_close(low(x), f(x))


def test_changed_arguments():
    def f(x, i):
        y = torch.relu(x) + 1
        x.index_add_(0, i, y)
        x.mul_(2)
        return y @ x

    a, i = torch.randn(3, 3), torch.tensor([2, 0, 1])
    b = a.clone()
    compiled = torch.compile(f, backend="dvm")
    for _ in range(3):
        torch.testing.assert_close(compiled(a, i), f(b, i))
        torch.testing.assert_close(a, b)


def test_threads_have_memory_of_their_own():
    n = 300
    w = torch.randn(n, n) / n
    f = chain(4, w)
    low = lowered(f, torch.randn(n, n))
    bad = []

    def work(seed):
        x = torch.full((n, n), float(seed))
        want = f(x)
        for _ in range(12):
            if not torch.allclose(low(x), want, rtol=1e-4, atol=1e-5):
                bad.append(seed)

    threads = [threading.Thread(target=work, args=(s,)) for s in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not bad


def test_a_program_inside_itself():
    """An op that calls the compiled graph again, while it is running."""
    depth = []

    def again(x):
        depth.append(1)
        if len(depth) < 3:
            (inner,) = low_run([x + 1])
            return x + inner
        return x

    inner = lowered(lambda x: x * 2 + 1, torch.ones(3))
    kernel = next(v for k, v in inner._call.__globals__.items() if k.startswith("dvm_"))

    def text(p):
        (x,) = p.inputs(1)
        y = p.empty((3,), (1,), torch.float32)
        p.run(kernel, x, y)
        z = p.share(again, y)
        out = p.empty((3,), (1,), torch.float32)
        p.run(kernel, y, out)
        p.output((p.share(torch.add, z, out),))

    low_run = record(text).run

    def reference(x, level=0):
        y = x * 2 + 1
        z = y + reference(y + 1, level + 1) if level < 2 else y
        return z + (y * 2 + 1)

    (got,) = low_run([torch.ones(3)])
    assert torch.equal(got, reference(torch.ones(3)))


def test_errors_leave_the_program_usable():
    def fail(x):
        if x.sum() > 5:
            raise KeyError("no")
        return x

    kernel = next(
        v
        for k, v in lowered(lambda x: x * 2, torch.ones(3))._call.__globals__.items()
        if k.startswith("dvm_")
    )

    def text(p):
        (x,) = p.inputs(1)
        y = p.empty((3,), (1,), torch.float32)
        p.run(kernel, x, y)
        p.output((p.call(torch.neg, p.share(fail, y)),))

    run = record(text).run
    assert (run([torch.ones(3) / 2])[0] == -1).all()
    with pytest.raises(KeyError):
        run([torch.ones(3)])
    assert (run([torch.ones(3) / 2])[0] == -1).all()
    with pytest.raises(dvm.ArgumentError, match="list of 1 arguments"):
        run([])


def test_inference_mode_and_grad_mode_mix():
    w = torch.randn(4, 4)
    f = chain(3, w)
    compiled = torch.compile(f, backend="dvm")
    x = torch.randn(4, 4)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), f(x))
    torch.testing.assert_close(compiled(x), f(x))
    y = x.clone().requires_grad_()
    compiled(y).sum().backward()
    z = x.clone().requires_grad_()
    f(z).sum().backward()
    torch.testing.assert_close(y.grad, z.grad)
    with torch.inference_mode():
        torch.testing.assert_close(compiled(x), f(x))


def test_compiled_graphs_are_collected():
    torch._dynamo.reset()
    low = lowered(chain(2, torch.eye(3)), torch.ones(3, 3))
    low(torch.ones(3, 3))
    ref = weakref.ref(low._call)
    del low
    gc.collect()
    assert ref() is None


def test_summary_tells_planned_bytes():
    torch._dynamo.reset()
    compiled = torch.compile(chain(6, torch.eye(4)), backend="dvm")
    compiled(torch.randn(4, 4))
    (graph,) = dvm.torch.summary().graphs
    assert 0 < graph.planned_bytes < graph.naive_bytes
    assert f"{graph.planned_bytes} bytes planned" in str(dvm.torch.summary())


@pytest.mark.parametrize(
    "change",
    [
        {"values": 0},
        {"steps": [(7, None, (), None, -1, 0, ())]},
        {"steps": [(0, len, (), None, -1, 0, ())]},
        {"steps": [(1, len, (Slot(0),), None, 9, 0, ())]},
        {"steps": [(1, len, (Slot(0),), None, -1, 0, (5,))]},
        {"steps": [(1, len, (Slot(0),), None, -1, 4, ())]},
        {"steps": [()]},
        {"steps": [(1, len, (Slot(0),), None, -1, 0, (0,) * 9)]},
        {"sources": [(3, 0, 0)]},
        {"sources": [(0, 5, 0)]},
        {"buffers": [(9, 0, 4, (), (), 0, 0, None)]},
        {"buffers": [(1, 0, 4, (1,), (), 0, 0, None)]},
        {"buffers": [(1, 0, 4, (Size(3),), (1,), 0, 0, None)]},
        {"buffers": [(1, 0, 4, (1,), (1,), 0, 1, None)]},
        {"buffers": [(1, 0, 4, (1,), (1,), 1, 0, None)]},
        {"results": [(1, 0, 4, (1,), (1,), 0, 2, None)]},
        {"results": [(1, 0, 4, (1,), (1,), -1, 1, None)]},
        {"steps": [(1, len, (Slot(0),), None, 1, 9, ())]},
        {"steps": [(3, None, (Slot(0), (), (), 0, ()), None, -1, 0, ())]},
        {"steps": [(3, None, (Slot(9), (), (), 0, ()), None, 1, 0, ())]},
        {"steps": [(3, None, (Slot(0), (1,), (), 0, ()), None, 1, 0, ())]},
        {"steps": [(3, None, (Slot(0), (1,) * 11, (1,) * 11, 0, ()), None, 1, 0, ())]},
        {"steps": [(3, None, (Slot(0), (), (), "1", ()), None, 1, 0, ())]},
        {"steps": [(3, None, (Slot(0), (), ()), None, 1, 0, ())]},
        {"runtime": ()},
    ],
)
def test_tables_that_do_not_fit_are_refused(change):
    tables = {
        "values": 2,
        "inputs": 1,
        "buffers": [],
        "results": [],
        "steps": [(1, len, (Slot(0),), None, 1, 0, ())],
        "sources": [],
        "nsize": 0,
        "sizes": tuple,
        "result": Slot(1),
        "slot_type": Slot,
        "size_type": Size,
        "runtime": (None, None, None, None, None),
    }
    assert _dvm.Program(**tables).run([[1, 2, 3]]) == 3
    with pytest.raises((dvm.Error, TypeError)):
        _dvm.Program(**{**tables, **change})


def test_saved_results_cost_no_calls():
    """relu saves its result; as a detached view, it would be a call of torch in every forward."""
    torch._dynamo.reset()
    f = torch.compile(lambda x, y: torch.relu(x * y + x), backend="dvm")
    f(torch.randn(3, requires_grad=True), torch.randn(3)).sum().backward()
    for g in dvm.torch.summary().graphs:
        assert [p.stats()["calls"] for p in g.programs()] == [0]


def test_large_values_that_are_gone_before_results_are_made():
    """They have memory of their own: in the arena they would lie beside the results."""

    def f(x, w):
        y = torch.relu(x + 1)
        z = (y @ w).view(-1, 4)[1:]  # a view of memory that is new in every call
        s = torch.special.i0(z).sum() + (y.t() @ y).sum()
        return [(x.mean(1) + s)[:, None] @ w[:1] + i for i in range(4)]

    x, w = torch.randn(64, 64), torch.randn(64, 64)
    low = lowered(f, x, w, products="none")  # else z is in the arena where kernels multiply
    for _ in range(4):
        x = torch.randn(64, 64)
        for got, want in zip(low(x, w), f(x, w), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    stats = program_of(low).stats()
    assert stats["arena_bytes"] < 64 * 64 * 4 <= stats["planned_bytes"] < stats["naive_bytes"]


def test_memory_of_its_own_ends_with_its_last_step():
    seen = []

    def look(x):
        seen.append(weakref.ref(x.untyped_storage()))
        return x.sum()

    def text(p):
        (x,) = p.inputs(1)
        y = p.empty((4096,), (1,), torch.float32)
        p.call(torch.mul, x, 2, out=y)
        s = p.call(look, y)
        v = p.view(torch.narrow, y, 0, 0, 2)
        s = p.call(torch.add, s, p.call(torch.sum, v))
        p.call(lambda: [ref() for ref in seen][-1] is None or seen.append(None))
        z = p.empty((8192,), (1,), torch.float32)
        p.call(torch.mul, s, torch.ones(8192), out=z)
        p.output((z,))

    program = record(text)
    x = torch.ones(4096)
    for n in range(1, 4):
        (z,) = program.call(x * n)
        assert z.eq((8192 + 4) * n).all()
    assert None not in seen and len(seen) == 3 and program.stats()["arena_bytes"] == 0


@pytest.mark.parametrize("rows", [0, 1, 3000])
def test_memory_of_its_own_for_every_size(rows):
    def f(x):
        y = torch.relu(x + 1) @ torch.ones(8, 8)
        return [torch.exp(y).sum(1)[:, None] + torch.arange(16.0) * i for i in range(3)]

    low = lowered(f, torch.randn(5, 8), dynamic=True)
    for n in (rows, 5, rows):
        x = torch.randn(n, 8)
        for got, want in zip(low(x), f(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_results_that_are_views_of_nothing_else():
    """One call, or none where views come back to what they began with; views of what is returned
    too, and of arguments, stay views."""

    def f(x, w):
        a, b, c = x @ w, torch.relu(x), x.exp() @ w
        return a.t().t(), b.sum(0, keepdim=True).view(-1), c.view(2, -1)[1:], c, x[1:], x.t().t()

    x, w = torch.randn(4, 3), torch.randn(3, 3)
    low = lowered(f, x, w)
    assert low.program.call.count("p.view(shown, ") == 1
    first = low(x, w)
    for _ in range(3):
        got, want = low(x, w), f(x, w)
        for g, e in zip(got, want, strict=True):
            torch.testing.assert_close(g, e)
            assert (g.stride(), g.storage_offset()) == (e.stride(), e.storage_offset())
        for i, g in enumerate(got):
            g.fill_(0) if i < 4 else None
        assert got[2].eq(0).all()
    torch.testing.assert_close(first, f(x, w))


@pytest.mark.parametrize("change", [0, 1])
def test_changed_results_that_backward_needs_are_refused(change):
    """What was saved is a result, or a view of one: it has the result's version."""

    def f(x, w):
        y = torch.exp(x @ w)
        return y, torch.sigmoid(y.t() @ w)

    torch._dynamo.reset()
    x, w = torch.randn(3, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    compiled = torch.compile(f, backend="dvm")
    for g in (f, compiled, compiled):
        out = g(x, w)
        out[change].detach().zero_()
        with pytest.raises(RuntimeError, match="modified by an inplace"):
            sum(o.sum() for o in out).backward()
