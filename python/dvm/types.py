"""Dtypes of the kernel language.

The six dtypes of the Ascend interface have its numbers; float64, uint8 and int8 can be loaded,
stored and cast, not computed with. bfloat16 in numpy is uint16 with the raw bits.
"""

from __future__ import annotations

import contextlib
from typing import Any


class DataType:
    """A dtype. Compares equal to its own name: `dvm.float32 == "float32"`."""

    __slots__ = ("code", "is_float", "is_int", "itemsize", "name", "numpy_name", "short")

    def __init__(
        self, name: str, code: int, itemsize: int, short: str, numpy_name: str = ""
    ) -> None:
        self.name = name
        self.code = code
        self.itemsize = itemsize
        self.short = short
        self.numpy_name = numpy_name or name
        self.is_float = "float" in name
        self.is_int = "int" in name

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if isinstance(other, str):
            return _BY_NAME.get(other) is self
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return "dvm.bool_" if self.code == 0 else f"dvm.{self.name}"

    def __str__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return (dtype_of, (self.name,))


bool_ = DataType("bool", 0, 1, "bool")
float16 = DataType("float16", 1, 2, "fp16")
bfloat16 = DataType("bfloat16", 2, 2, "bf16", "uint16")
float32 = DataType("float32", 3, 4, "fp32")
int32 = DataType("int32", 4, 4, "int32")
int64 = DataType("int64", 5, 8, "int64")
float64 = DataType("float64", 6, 8, "fp64")
uint8 = DataType("uint8", 7, 1, "uint8")
int8 = DataType("int8", 8, 1, "int8")

ALL = (bool_, float16, bfloat16, float32, int32, int64, float64, uint8, int8)

_BY_NAME: dict[str, DataType] = {t.name: t for t in ALL} | {t.short: t for t in ALL}
_BY_NAME |= {"bool_": bool_, "half": float16, "float": float32, "double": float64}
_BY_NAME |= {"f16": float16, "f32": float32, "f64": float64, "i32": int32, "i64": int64}
_BY_NAME |= {"u8": uint8, "i8": int8}

_KNOWN: dict[Any, DataType] = {t: t for t in ALL}
_KNOWN |= {bool: bool_, int: int64, float: float32}


def dtype_of(spec: Any) -> DataType:
    """The dtype meant by a DataType, a name ("float32", "bf16"), a numpy or torch dtype, or the
    Python types bool, int (int64) and float (float32).

    Raises DTypeError for anything else.
    """
    try:
        return _KNOWN[spec]
    except (KeyError, TypeError):
        pass
    found = _search(spec)
    if found is None:
        from _dvm import DTypeError

        names = ", ".join(t.name for t in ALL)
        raise DTypeError(f"{spec!r} is not a dtype of DVM; these are: {names}")
    with contextlib.suppress(TypeError):  # not hashable
        _KNOWN[spec] = found
    return found


def _search(spec: Any) -> DataType | None:
    if isinstance(spec, str):
        return _BY_NAME.get(spec.removeprefix("torch.").removeprefix("dvm."))
    text = str(spec)
    if text.startswith("torch."):
        return _BY_NAME.get(text.removeprefix("torch."))
    module = getattr(type(spec), "__module__", "")
    if isinstance(spec, type) or module.split(".")[0] in ("numpy", "ml_dtypes"):
        import numpy as np

        try:
            return _BY_NAME.get(np.dtype(spec).name)
        except TypeError:
            return None
    return None
