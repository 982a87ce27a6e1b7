"""Sums of gradients of parts: one tensor is put together instead of zeros being added."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("_dvm")

import dvm.torch  # noqa: E402


def gradient(f, x, **options):
    """Gradient of x by backend dvm, and by eager; the backward graph's text."""
    torch._dynamo.reset()
    wanted, got = x.clone().requires_grad_(), x.clone().requires_grad_()
    f(wanted).backward()
    torch.compile(f, backend="dvm", fullgraph=True, options=options)(got).backward()
    torch.testing.assert_close(got.grad, wanted.grad, rtol=1e-5, atol=1e-6)
    assert got.grad.stride() == wanted.grad.stride()
    return dvm.torch.summary().graphs[-1].source


def weighted(*tensors):
    return sum((t.sin() * (i + 2)).sum() for i, t in enumerate(tensors))


SUMS = {
    "selected, all": lambda x: weighted(x[:, 2], x[:, 0], x[:, 1]),
    "selected from the end": lambda x: weighted(x[:, -1], x[:, 0] * 2),
    "selected, the last axis": lambda x: weighted(x[..., 1], x[..., 0], x[..., 5]),
    "chunks": lambda x: weighted(x[..., :1], x[..., 1:3], x[..., 3:]),
    "a gap in front, between and behind": lambda x: weighted(x[..., 1:2], x[..., 3:5]),
    "slices from the end": lambda x: weighted(x[..., -2:], x[..., :-3]),
    "a slice and a selected row": lambda x: weighted(x[:, 1:], x[:, 0]),
    "a slice beyond the end": lambda x: weighted(x[..., 4:100], x[..., :2]),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SUMS)
def test_parts_side_by_side_are_put_together(name, dtype):
    def f(x):
        return SUMS[name](x.float())

    source = gradient(f, torch.randn(4, 3, 6).to(dtype))
    joined = "stack" if name.startswith("selected") else "cat"
    assert f"aten.{joined}.default" in source
    assert "slice_backward" not in source and "select_backward" not in source


OTHERS = {
    "parts that overlap": lambda x: weighted(x[..., :4], x[..., 2:]),
    "the same row twice": lambda x: weighted(x[:, 1], x[:, 1].exp()),
    "parts of two axes": lambda x: weighted(x[:, 1:], x[..., 2:]),
    "every other element": lambda x: weighted(x[..., ::2], x[..., 1::2]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_sums_stay(name):
    source = gradient(OTHERS[name], torch.randn(4, 3, 6))
    assert "aten.cat.default" not in source and "aten.stack.default" not in source


@pytest.mark.parametrize("op", ["cat", "slice_backward", "add"])
def test_switched_off_operators_stay(op):
    f = SUMS["chunks"]
    assert "aten.cat.default" not in gradient(f, torch.randn(4, 3, 6), disable_ops=[op])


def test_rows_are_joined_by_what_is_not_switched_off():
    f = SUMS["selected, all"]
    assert "aten.cat.default" in gradient(f, torch.randn(4, 3, 6), disable_ops=["stack"])
    neither = gradient(f, torch.randn(4, 3, 6), disable_ops=["stack", "cat"])
    assert "aten.cat.default" not in neither and "aten.stack.default" not in neither


def test_rows_of_a_matrix_that_is_not_row_major():
    """The gradient has the strides of x, which torch's stack of these rows would not have."""
    x = torch.randn(3, 4, 6).transpose(0, 1)
    gradient(SUMS["selected, all"], x)


def test_sizes_that_are_not_known():
    torch._dynamo.reset()
    f = SUMS["chunks"]
    c = torch.compile(f, backend="dvm", fullgraph=True, dynamic=True)
    for rows in (4, 7, 3):
        x = torch.randn(rows, 3, 6)
        wanted, got = x.clone().requires_grad_(), x.clone().requires_grad_()
        f(wanted).backward()
        c(got).backward()
        torch.testing.assert_close(got.grad, wanted.grad)
    assert not dvm.torch.summary().recompiles


def test_not_a_number_stays_in_its_part():
    x = torch.randn(4, 3, 6)
    x[1, 2, 3] = float("nan")
    x[0, 0, 0] = float("inf")
    gradient_of = SUMS["chunks"]
    torch._dynamo.reset()
    got = x.clone().requires_grad_()
    torch.compile(gradient_of, backend="dvm", fullgraph=True)(got).backward()
    assert got.grad.isnan().sum() == 2
