"""Calls of the C library with arguments by name, and the words around its errors."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import _dvm

SWA, STRICT, PSE_ADDED, NO_PSE_GRADIENT = 1, 2, 4, 1 << 16
# Read in Python only (as_torch.py): the call stands for scaled_dot_product_attention; its mask has
# a gradient; everything is seen, and nothing has a gradient.
AS_TORCH, MASK_TRAINS, FULL = 1 << 17, 1 << 18, 1 << 19
ALL = 2147483647  # default of pre_tockens and next_tockens: no limit

# What torch_npu puts after the text of an argument error, without its time and process.
SUFFIX = "\n[ERROR] ERR01001 OPS invalid parameter"


class Spec(NamedTuple):
    """The arguments that are no tensors."""

    flags: int
    head_num: int
    input_layout: str
    softmax_layout: str
    scale: float
    keep_prob: float
    pre_tockens: int
    next_tockens: int
    sparse_mode: int
    prefix: Sequence[int] | None = None
    actual_seq_qlen: Sequence[int] | None = None
    actual_seq_kvlen: Sequence[int] | None = None
    seed: int = 0
    offset: int = 0
    numels: int = 0


def is_torch(tensors: tuple[Any, ...]) -> bool:
    """Whether the operands are tensors of torch: all that are given, or none."""
    torch = sys.modules.get("torch")
    given = [t for t in tensors if t is not None]
    others = [t for t in given if torch is None or not isinstance(t, torch.Tensor)]
    if others and len(others) < len(given):
        raise _dvm.ArgumentError(
            f"operands are tensors of torch and {type(others[0]).__name__} in one call; "
            "pass all of them as one kind, with torch.as_tensor(x) or x.numpy()"
        )
    return bool(given) and not others


def low(function: Any, spec: Spec, tensors: tuple[Any, ...]) -> Any:
    """Calls _dvm.attn_*; errors about arguments get the suffix of torch_npu."""
    head = (
        spec.flags,
        spec.head_num,
        spec.input_layout,
        spec.softmax_layout,
        spec.scale,
        spec.keep_prob,
        spec.pre_tockens,
        spec.next_tockens,
        spec.sparse_mode,
        spec.seed,
        spec.offset,
        spec.numels,
        spec.prefix,
        spec.actual_seq_qlen,
        spec.actual_seq_kvlen,
    )
    try:
        return function(*head, *tensors)
    except OverflowError:
        raise _dvm.ArgumentError(
            f"{', '.join(_too_large(spec))}: an integer beyond 64 bits{_suffix()}"
        ) from None
    except (
        _dvm.ArgumentError,
        _dvm.DTypeError,
        _dvm.ShapeError,
        _dvm.LimitError,
        _dvm.OverlapError,
    ) as error:
        if not _suffix():
            raise
        raise type(error)(f"{error}{SUFFIX}") from None
    except (TypeError, ValueError) as error:
        if isinstance(error, _dvm.Error):
            raise
        raise _dvm.ArgumentError(f"{_wrong_kind(spec) or error}{_suffix()}") from None


def _suffix() -> str:
    return "" if os.environ.get("TORCH_NPU_COMPACT_ERROR_OUTPUT") else SUFFIX


def _wrong_kind(spec: Spec) -> str:
    """What is said of the first argument that is no text, number, integer or list of integers."""

    def is_integers(value: Any) -> bool:
        return value is None or (
            hasattr(value, "__iter__") and all(hasattr(n, "__index__") for n in value)
        )

    kinds: list[tuple[str, Callable[[Any], bool], tuple[str, ...]]] = [
        (
            "a string",
            lambda v: isinstance(v, str) and v.isprintable(),
            ("input_layout", "softmax_layout"),
        ),
        ("a number", lambda v: hasattr(v, "__float__"), ("scale", "keep_prob")),
        ("a list of integers", is_integers, ("prefix", "actual_seq_qlen", "actual_seq_kvlen")),
        (
            "an integer",
            lambda v: hasattr(v, "__index__"),
            ("head_num", "pre_tockens", "next_tockens", "sparse_mode"),
        ),
    ]
    for kind, fits, names in kinds:
        for name in names:
            value = getattr(spec, name)
            if not fits(value):
                return f"{name}: expected {kind}, given {value!r}"
    return ""


def _too_large(spec: Spec) -> list[str]:
    """Names of the arguments that hold an integer beyond 64 bits."""
    found = []
    for name, value in spec._asdict().items():
        numbers = value if isinstance(value, (list, tuple)) else (value,)
        if any(isinstance(n, int) and not -(1 << 63) <= n < 1 << 63 for n in numbers):
            found.append(name)
    return found or ["an argument"]


def draw() -> int:
    """A seed from numpy's global generator, which np.random.seed sets."""
    import numpy as np

    return int(np.random.randint(0, 2**63 - 1, dtype=np.int64))


def forward(tensors: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    import numpy as np

    if 0 < spec.keep_prob < 1:
        low(_dvm.attn_infer, spec, tensors)  # a refused call draws nothing
        spec = spec._replace(seed=draw())
    (out, top, total), numels = low(_dvm.attn_forward, spec, tensors)
    return out, top, total, np.empty(0, out.dtype), spec.seed, spec.offset, numels


def backward(tensors: tuple[Any, ...], spec: Spec) -> tuple[Any, ...]:
    import numpy as np

    dq, dk, dv, dpse, dsink = low(_dvm.attn_backward, spec, tensors)
    return dq, dk, dv, dpse, np.empty(0, np.float32) if dsink is None else dsink
