"""Attention against the f64 reference: random problems in all layouts, modes and dtypes."""

import numpy as np
import pytest

pytest.importorskip("_dvm")
hypothesis = pytest.importorskip("hypothesis")
st = hypothesis.strategies

from attn_problem import Problem, refused  # noqa: E402
from attn_reference import ALL, LAYOUTS  # noqa: E402

DTYPES = ("float32", "float16", "bfloat16")


@st.composite
def problems(draw, most=150, head=130):
    """A random problem and a gradient of its output."""
    layout = draw(st.sampled_from(LAYOUTS))
    tnd = layout == "TND"
    mode = draw(st.sampled_from([0, 1, 2, 3, 4, 7, 8] if tnd else [0, 1, 2, 3, 4, 5]))
    batch = draw(st.integers(1, 3))
    size = st.integers(0 if tnd else 1, most)
    if tnd:
        qlen = draw(st.lists(size, min_size=batch, max_size=batch))
        klen = draw(st.one_of(st.just(qlen), st.lists(size, min_size=batch, max_size=batch)))
    else:
        qlen, klen = [draw(size)] * batch, [draw(size)] * batch
    nkv, group = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    nq = nkv * group
    d, d2 = draw(st.integers(1, head)), draw(st.integers(1, head))
    edge = st.one_of(st.just(ALL), st.integers(-8, 12), st.integers(-8, 300))
    pre, nxt = draw(edge), draw(edge)
    hypothesis.assume(pre + nxt >= 0)
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))

    def normal(n, lengths, width):
        return [rng.normal(size=(n, s, width)) for s in lengths]

    kw = dict(layout=layout, mode=mode, pre=pre, nxt=nxt)
    kw["op"] = draw(st.sampled_from(["npu", "swa"])) if mode in (0, 4) else "npu"
    kw["dtype"] = draw(st.sampled_from(DTYPES))
    kw["scale"] = draw(st.sampled_from([1 / np.sqrt(d), 0.3, -0.2]))
    kw["keep"] = draw(st.sampled_from([1.0, 1.0, 0.7]))
    kw["seed"] = draw(st.integers(0, 1000))
    if draw(st.integers(0, 3)) == 0:
        kw["sink"] = rng.normal(size=nq)
    if mode in (0, 1) and draw(st.booleans()):
        form = [(max(qlen), max(klen))]
        if not tnd:
            form += [(batch, nq, *form[0]), (batch, 1, *form[0]), (1, 1, *form[0])]
        kw["mask"] = rng.random(draw(st.sampled_from(form))) < 0.3
    if mode == 5:
        kw["prefix"] = [int(rng.integers(0, s + 1)) for s in klen]
    if not tnd and draw(st.integers(0, 3)) == 0:
        form = [(batch, nq, qlen[0], klen[0]), (batch, nq, 1, klen[0]), (1, nq, qlen[0], klen[0])]
        kw["pse"] = rng.normal(size=draw(st.sampled_from(form)))
    kw["rows_first"] = tnd and draw(st.booleans())
    q, k, v = normal(nq, qlen, d), normal(nkv, klen, d), normal(nkv, klen, d2)
    return Problem(q, k, v, **kw), normal(nq, qlen, d2)


@st.composite
def narrow(draw):
    """Bands of few keys at the ends of tiles: rows that see keys stand between rows that do not."""
    size = st.sampled_from([n + more for n in (1, 5, 96, 128, 192) for more in range(5)])
    nq, nk = draw(size), draw(size)
    mode = draw(st.sampled_from([0, 4]))
    nxt = draw(st.integers(-6, 6))
    pre = draw(st.integers(-nxt, 12 - nxt))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    q, k, v, do = (rng.normal(size=(1, n, 3)) for n in (nq, nk, nk, nq))
    mask = {"mask": np.zeros((nq, nk), bool)} if mode == 0 else {}
    return Problem([q], [k], [v], layout="BNSD", mode=mode, pre=pre, nxt=nxt, op="npu", **mask), [
        do
    ]


def judge(case):
    problem, do = case
    try:
        problem.forward()
    except ValueError as error:
        assert "leaves no visible position" in str(error)
        return
    problem.check(do)


@hypothesis.settings(max_examples=60)
@hypothesis.given(problems())
def test_random_problems(case):
    judge(case)


@hypothesis.settings(max_examples=150)
@hypothesis.given(narrow())
def test_narrow_bands(case):
    judge(case)


@pytest.mark.slow
@hypothesis.settings(max_examples=300)
@hypothesis.given(problems(most=400, head=256))
def test_random_problems_wide(case):
    judge(case)


def test_refusal_names_the_last_entry():
    q = [np.ones((1, 3, 2))]
    p = Problem(q, q, q, layout="TND", actual_seq_qlen=[9], actual_seq_kvlen=[3])
    assert refused(p.forward) == "the last entry 9 of actual_seq_qlen exceeds T=3"
