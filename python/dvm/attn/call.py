"""Calls of the C library with arguments by name, and the words around its errors."""

from __future__ import annotations

import os
import re
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
    return len(given) > 0 and not others  # torch 2.11 traces no bool of a list


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
    except (
        _dvm.ArgumentError,
        _dvm.DTypeError,
        _dvm.ShapeError,
        _dvm.LimitError,
        _dvm.OverlapError,
    ) as error:
        raise type(error)(f"{_named(str(error))}{_suffix()}") from None


_TENSORS = (
    "query", "key", "value", "pse", "atten_mask", "sink", "dy", "softmax_max", "softmax_sum",
    "attention_in",
)  # fmt: skip


def _named(text: str) -> str:
    """The library counts tensors."""
    return re.sub(r"^input (\d+)(?=[:,])", lambda m: _TENSORS[int(m[1]) - 1], text)


def _suffix() -> str:
    return "" if os.environ.get("TORCH_NPU_COMPACT_ERROR_OUTPUT") else SUFFIX


_INTEGERS = (
    ("head_num", "pre_tockens", "next_tockens", "sparse_mode", "seed", "offset", "numels"),
    ("prefix", "actual_seq_qlen", "actual_seq_kvlen"),
)


def _is_integers(value: Any) -> bool:
    return value is None or (
        hasattr(value, "__iter__") and all(hasattr(n, "__index__") for n in value)
    )


_KINDS: tuple[tuple[str, Callable[[Any], bool], tuple[str, ...]], ...] = (
    (
        "a string",
        lambda v: isinstance(v, str) and v.isprintable(),
        ("input_layout", "softmax_layout"),
    ),
    ("a number", lambda v: hasattr(v, "__float__"), ("scale", "keep_prob")),
    ("a list of integers", _is_integers, _INTEGERS[1]),
    ("an integer", lambda v: hasattr(v, "__index__"), _INTEGERS[0]),
)


def checked(spec: Spec) -> Spec:
    """The arguments, lists as lists and an absent softmax_layout as "". Refuses what is no string,
    number, integer or list of integers: torch's dispatcher and C would do so in their own words.
    """
    given = {n: getattr(spec, n) for n in _INTEGERS[1]}
    lists = {n: [*map(_plain, v)] for n, v in given.items() if hasattr(v, "__iter__")}
    text = "" if spec.softmax_layout is None else spec.softmax_layout
    spec = spec._replace(softmax_layout=text, scale=_plain(spec.scale), **lists)
    for kind, fits, names in _KINDS:
        for name in names:
            value = getattr(spec, name)
            if not fits(value):
                _refuse(f"{name}: expected {kind}, given {given.get(name, value)!r}")
    large = _too_large(spec)
    if large:
        _refuse(f"{', '.join(large)}: an integer beyond 64 bits")
    for name in ("scale", "keep_prob"):
        value = getattr(spec, name)
        if isinstance(value, int) and abs(value) >= 1 << 1024:
            _refuse(f"{name}: a number beyond the largest float")
    return spec


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's own, which torch's dispatcher wants."""
    return value.item() if hasattr(value, "dtype") and hasattr(value, "item") else value


def _refuse(text: str) -> None:
    raise _dvm.ArgumentError(text + _suffix())


def _too_large(spec: Spec) -> list[str]:
    """Names of the arguments that hold an integer beyond 64 bits."""
    found = [n for n in _INTEGERS[0] if _is_large(getattr(spec, n))]
    return found + [n for n in _INTEGERS[1] if any(map(_is_large, getattr(spec, n) or ()))]


def _is_large(value: Any) -> bool:
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 63


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
