"""What a result is measured by where eager is not the last word: eager rounds too, at times badly.

A float element is right when it is within tolerance of eager's or, failing that, no further from
the same computation in float64 than eager's is. Where eager's is NaN or infinite and the float64
answer is not, tolerance counts from the float64 answer. The rest is compared with eager alone.
"""

import torch
from torch.utils import _pytree as pytree


def widened(value):
    """The same in float64; what is no tensor of floats as it is."""
    narrow = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.double() if narrow else value


def _right(got, eager, exact, rtol, atol):
    g, w, e = (t.detach().double() for t in (got, eager, exact))
    near_eager = torch.isclose(g, w, rtol=rtol, atol=atol, equal_nan=True)
    # isclose allows rtol of an infinite number, which is everything.
    tolerance = torch.where(w.isfinite(), (w - e).abs(), atol + rtol * e.abs())
    near_exact = e.isfinite() & ((g - e).abs() <= tolerance)
    return near_eager | near_exact | (g.isnan() & e.isnan()) | (g == e)


def check(got, eager, exact, tolerance):
    """Trees of results; `exact()` makes the float64 ones, and is asked only when eager's are not
    near. `tolerance(dtype)` is (rtol, atol)."""
    wide = None
    leaves = map(pytree.tree_leaves, (got, eager))
    for i, (g, w) in enumerate(zip(*leaves, strict=True)):
        if not isinstance(w, torch.Tensor):
            continue
        rtol, atol = tolerance(w.dtype)
        try:
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)
        except AssertionError:
            if not w.is_floating_point() or g.dtype != w.dtype or g.shape != w.shape:
                raise
            wide = wide or pytree.tree_leaves(exact())
            if wide[i].shape != w.shape or not _right(g, w, wide[i], rtol, atol).all():
                raise
