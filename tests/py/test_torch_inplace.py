"""Values that are written where they lie: pieces, index_put and scatter into what is dead."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402
from dvm.torch.testing import lowered  # noqa: E402

i0 = torch.special.i0  # an op of torch: what it gives lies in memory
LONG = 5000  # so long that a copy of 8 rows costs more than a call


def agree(f, *args, dynamic=False):
    """Compiled against eager, arguments that change too; twice, so that memory is used again."""
    changed = torch.func.functionalize(f, remove="mutations")
    low = lowered(changed, *[a.clone() for a in args], dynamic=dynamic)
    for _ in range(2):
        mine, theirs = [a.clone() for a in args], [a.clone() for a in args]
        torch.testing.assert_close(low(*mine), f(*theirs), equal_nan=True)
        torch.testing.assert_close(mine, theirs, equal_nan=True)
    return low


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# ----------------------------------------------------------------------------- arguments


def test_a_row_of_an_argument():
    def f(x, y):
        x[2] = y.exp()
        return y * 2

    low = agree(f, data(4, 6), data(6))
    assert len(low.program.kernels) == 1 and not low.fallbacks
    assert "concat" not in low.source and "torch.ops.aten.select.int" not in low.source
    assert "p.view(torch_select, " in low.source


def test_a_slice_of_an_argument_with_a_step():
    def f(x, y):
        x[:, 1:9:3] = y + 1

    low = agree(f, data(4, 10), data(4, 3))
    assert "concat" not in low.source and not low.fallbacks


def test_pieces_of_pieces():
    def f(x, y):
        x[1, 2:5] = y.exp()

    agree(f, data(3, 7), data(3))


def test_a_cache_is_filled_at_positions():
    """What a model that writes text does: keys of new positions into a long buffer."""

    def f(cache, k, at, q):
        cache[:, at] = k * 2
        return q @ cache.sum(0).t()

    low = agree(f, data(2, 9, 4), data(2, 3, 4), torch.tensor([4, 0, 7]), data(5, 4))
    assert "index_put__default" in low.source and "copy_" not in low.source
    assert ("aten.index_put.default", "no row for this op") in low.fallbacks


def test_an_argument_that_is_read_before():
    def f(x, i, v):
        old = i0(x)
        x.index_put_((i,), v, accumulate=False)
        return old + x

    low = agree(f, data(5, 3), torch.tensor([1, -1]), data(2, 3))
    assert "copy_" not in low.source


def test_an_argument_that_is_read_later():
    def f(x, i, v):
        y = x.index_put((i,), v)
        old = i0(x) * 2
        x.copy_(y)
        return old

    agree(f, data(5, 3), torch.tensor([1, -1]), data(2, 3))


def test_a_result_that_is_the_new_argument():
    """It must not share memory with the argument: whoever changes one would change the other."""

    def f(x, i, v):
        y = x.index_put((i,), v)
        x.copy_(y)
        return y

    low = lowered(f, torch.zeros(3), torch.tensor([1]), torch.ones(1))
    x = torch.zeros(3)
    y = low(x, torch.tensor([1]), torch.ones(1))
    assert y.data_ptr() != x.data_ptr()
    assert y.tolist() == x.tolist() == [0, 1, 0]


def test_an_argument_that_is_a_view_of_itself():
    """One row in memory seen as three: its piece is not a piece of the argument's memory."""

    def f(x, y):
        return torch.select_scatter(x, y, 0, 1) * 2

    agree(f, data(1, 4).expand(3, 4), data(4))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_old_contents_in_the_new(dynamic):
    """The kernel reads what it writes next to: the piece is computed first, then copied."""

    def f(x, y):
        x[3:5] += y
        x[1] = x[2] * x[4]

    low = agree(f, data(64, LONG), data(2, LONG), dynamic=dynamic)
    assert low.source.count("p.share(aten_copy__default") == 2
    assert not any("scatter, " in line for line in low.source.splitlines() if "k.store" in line)


def test_a_shift_inside_an_argument():
    def f(x):
        x[1:] = x[:-1].clone()
        x[:, 1:] = x[:, :-1] + 0

    agree(f, data(8, LONG))


def test_small_arguments_are_not_worth_a_call():
    def f(x):
        x[1] = x[0] + x[2]

    low = agree(f, data(3, 5))
    assert "p.share(aten_copy__default" not in low.source


def test_two_arguments_change_places():
    def f(x, y):
        a, b = x[0] + 1, y[0] * 2
        x[0] = b
        y[0] = a

    agree(f, data(8, LONG), data(8, LONG, seed=1))


def test_both_halves_of_one():
    def f(x, y):
        x[:2] = y.exp()
        x[2:] = y.sin()
        x[1:3] = y.cos()

    agree(f, data(4, 5), data(2, 5))
    agree(f, data(4, LONG * 8), data(2, LONG * 8))


# -------------------------------------------------------------------------------- values


def test_what_torch_made_and_nobody_reads():
    def f(a, b, i, v):
        y = a @ b
        return y.index_put((i,), v).exp()

    low = agree(f, data(4, 3), data(3, 5), torch.tensor([0, 3]), data(2, 5))
    assert "index_put__default" in low.source


def test_what_is_read_later_is_copied():
    def f(a, b, i, v):
        y = a @ b
        return y.index_put((i,), v).exp(), i0(y)

    agree(f, data(4, 3), data(3, 5), torch.tensor([0, 3]), data(2, 5))


def test_what_is_returned_is_copied():
    def f(a, b, i, v):
        y = a @ b
        return y.index_put((i,), v), y.t()

    low = agree(f, data(4, 3), data(3, 5), torch.tensor([0, 3]), data(2, 5))
    assert "index_put__default" not in low.source


@pytest.mark.parametrize(
    "change",
    [
        lambda x, i, v: x.index_put((i,), v, accumulate=True),
        lambda x, i, v: x.index_add(0, i, v),
        lambda x, i, v: x.index_copy(0, i, v),
        lambda x, i, v: x.index_fill(0, i, 3.0),
        lambda x, i, v: x.scatter(0, i[:, None].expand_as(v), v),
        lambda x, i, v: x.scatter(0, i[:, None].expand_as(v), 2.0),
        lambda x, i, v: x.scatter_add(0, i[:, None].expand_as(v), v),
        lambda x, i, v: x.scatter_reduce(0, i[:, None].expand_as(v), v, "amax"),
        lambda x, i, v: x.masked_scatter(x > 0, v.repeat(3, 1)),
        lambda x, i, v: x.put(i, v[:, 0]),
    ],
)
def test_each_op(change):
    def f(a, i, v):
        return change(i0(a.t()).contiguous() * 1, i, v).sin()

    low = agree(f, data(5, 8), torch.tensor([7, 0, 3]), data(3, 5))
    (op,) = {op for op, _ in low.fallbacks} - {"aten.special_i0.default", "aten.i0.default"}
    name, overload = op.removeprefix("aten.").split(".")
    assert f"p.share(aten_{name}__{overload}, " in low.source


def test_the_operand_twice():
    def f(x, i):
        y = x.exp()
        return y.index_put((i,), y), y.sigmoid().index_add(0, i, y)

    agree(f, data(4), torch.tensor([3, 1, 0, 2]))


def test_two_from_one():
    def f(x, i, v):
        y = i0(x) @ x
        a, b = y.index_put((i,), v), y.index_put((i,), v, accumulate=True)
        return torch.select_scatter(y, v[0], 0, 1), torch.slice_scatter(y, v, 0, 1, 3), a, b

    agree(f, data(4, 4), torch.tensor([3, 1]), data(2, 4))


def test_a_long_chain_of_rows():
    """A recurrence that fills its result row by row, each from what torch computed."""

    def f(x, w):
        out = torch.zeros(6, 4)
        h = x[:1]
        for t in range(6):
            h = torch.tanh(x[t] + h @ w)
            out[t] = h[0]
        return out

    agree(f, data(6, 4), data(4, 4))
    agree(lambda x, w: f(x, w) @ w, data(6, 4), data(4, 4))


def test_option_check_keeps_arguments_as_they_were():
    def f(x, y):
        x[1] = y.exp()

    low = lowered(f, data(3, 4), data(4), check=True)
    x, w = data(3, 4), data(3, 4)
    low(x, data(4))
    f(w, data(4))
    torch.testing.assert_close(x, w)


@pytest.mark.parametrize("dynamic", [False, True])
def test_through_dynamo_with_gradients(fresh, dynamic):
    def f(x, w, i):
        h = (x @ w).clone()
        h[:, 2] = h[:, 1].exp()
        h[i] = h[i] * 2
        return h.tanh().sum()

    def gradients(g):
        x, w = (t.requires_grad_() for t in (data(6, 5), data(5, 7)))
        g(x, w, torch.tensor([5, 1])).backward()
        return x.grad, w.grad

    compiled = torch.compile(f, backend="dvm", dynamic=dynamic)
    torch.testing.assert_close(gradients(compiled), gradients(f))


def test_a_buffer_that_a_module_fills(fresh):
    class Cache(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("keys", torch.zeros(2, 16, 4))

        def forward(self, k, at):
            self.keys.index_copy_(1, at, k)
            self.keys[:, 0] = k[:, 0]
            return self.keys.sum(1)

    mine, theirs = Cache(), Cache()
    compiled = torch.compile(mine, backend="dvm")
    for step in range(3):
        k, at = data(2, 1, 4, seed=step), torch.tensor([step + 3])
        torch.testing.assert_close(compiled(k, at), theirs(k, at))
    torch.testing.assert_close(mine.keys, theirs.keys)
    (graph,) = dvm.torch.summary().graphs
    assert "index_copy__default" in graph.source and "aten_copy__default" not in graph.source
