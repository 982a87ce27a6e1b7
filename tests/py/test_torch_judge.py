"""judge.py: whose results pass when eager's are no better than ours, and whose never do."""

import pytest

torch = pytest.importorskip("torch")

import judge  # noqa: E402

INF, NAN = float("inf"), float("nan")
# eager, float64, what passes, what does not; tolerance 1e-3
CASES = (
    (1.0, 1.0, (1.0, 1.0009), (1.01, 0.9, NAN, INF)),
    (1.1, 1.0, (1.1, 1.0, 0.95, 1.1005), (0.85, 1.2, NAN, INF)),
    (1e-2, 0.0, (0.0, -1e-2), (-2e-2, 2e-2, NAN)),
    (NAN, 2.0, (NAN, 2.0, 2.001), (2.1, 1.9, INF, -2.0)),
    (INF, 2.0, (INF, 2.0), (2.1, 1e30, NAN, -INF)),
    (2.0, INF, (2.0, INF), (3.0, 1e30, NAN, -INF)),
    (2.0, NAN, (2.0, NAN), (3.0, INF)),
)


@pytest.mark.parametrize("eager, exact, right, wrong", CASES)
def test_elements(eager, exact, right, wrong):
    for got in right + wrong:
        tensors = [torch.tensor([0.0, v, 1.0], dtype=torch.float64) for v in (got, eager, exact)]

        def check(g, w, e):
            judge.check([g], [w], lambda: [e], lambda _: (1e-3, 1e-3))

        if got in right:
            check(*tensors)
        else:
            with pytest.raises(AssertionError, match="1 / 3"):
                check(*tensors)


def test_only_floats_of_one_shape_and_dtype_have_a_second_judge():
    for got, eager in (
        (torch.tensor([2]), torch.tensor([1])),
        (torch.ones(2, dtype=torch.float16), torch.ones(2)),
        (torch.ones(2, 1), torch.ones(1, 2)),
    ):
        with pytest.raises(AssertionError):
            judge.check(got, eager, lambda g=got: g, lambda _: (1e-3, 1e-3))
    with pytest.raises(AssertionError):
        judge.check(torch.ones(2), torch.zeros(2), lambda: torch.ones(1), lambda _: (1e-3, 1e-3))


@pytest.mark.parametrize("dtype", (torch.float32, torch.bfloat16))
def test_quotients_above_the_largest_number(dtype):
    """torch's vectorised remainders are NaN where x / y is infinite; those of single elements are
    right, and so are the engine's."""
    pytest.importorskip("_dvm")
    from dvm.torch.testing import lowered

    x = torch.tensor([6.156, -8.0, 1.0, 3e38] * 16).to(dtype)
    y = torch.full_like(x, torch.finfo(dtype).tiny)
    for f in (torch.fmod, torch.remainder):
        got = lowered(f, x, y)(x, y)
        assert torch.equal(got.double(), f(x.double(), y.double()))
        judge.check(got, f(x, y), lambda f=f: f(x.double(), y.double()), lambda _: (1e-5, 1e-5))
