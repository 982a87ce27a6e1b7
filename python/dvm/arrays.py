"""Arrays and tensors: what the extension asks about types it meets, and copies that it cannot
avoid. numpy and torch are imported only when one of their objects turns up.
"""

from __future__ import annotations

import sys
from typing import Any

import _dvm

from . import types

NUMPY, TORCH, OTHER = 1, 2, 3


def family_of(type_: type) -> int:
    """1 numpy arrays and scalars, 2 torch tensors, 3 everything else."""
    np, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if np is not None and issubclass(type_, (np.ndarray, np.generic)):
        return NUMPY
    if torch is not None and hasattr(torch, "Tensor") and issubclass(type_, torch.Tensor):
        return TORCH
    return OTHER


def register(is_torch: bool) -> None:
    """Tells the extension how to allocate results."""
    if is_torch:
        import torch

        dtypes = tuple(torch_dtype_of(t) for t in types.ALL)
        _dvm.register_arrays(TORCH, torch.empty, dtypes)
    else:
        import numpy as np

        dtypes = tuple(np.dtype(t.numpy_name) for t in types.ALL)
        _dvm.register_arrays(NUMPY, np.empty, dtypes)


def torch_dtype_of(t: types.DataType) -> Any:
    import torch

    return getattr(torch, t.name)


def torch_dtype(tensor: Any) -> int:
    """Number of a CPU tensor's dtype, -1 when DVM has none."""
    if tensor.device.type != "cpu":
        raise _dvm.UnsupportedError(
            f"a tensor is on {tensor.device}, and this context runs on the CPU: pass x.cpu()"
        )
    found = types._search(tensor.dtype)
    return -1 if found is None else found.code


def resolve_neg(tensor: Any) -> Any:
    return tensor.resolve_neg()


def refuse(tensor: Any, which: int, reason: Any) -> None:
    """Raises the error for a tensor that has no plain memory."""
    device = str(getattr(tensor, "device", "cpu"))
    if device != "cpu":
        raise _dvm.UnsupportedError(
            f"argument {which} is on device {device}, and this context runs on the CPU: "
            "pass a CPU tensor (x.cpu())"
        )
    text = str(reason).strip().splitlines() or ["it has no plain memory"]
    raise _dvm.ArgumentError(f"argument {which} cannot be read: {text[0]}")


def raw_bits(array: Any) -> Any:
    """A uint16 view of an array of ml_dtypes.bfloat16, else None."""
    if getattr(getattr(array, "dtype", None), "name", "") == "bfloat16" and hasattr(array, "view"):
        return array.view("uint16")
    return None


def dense_copy(array: Any) -> Any:
    import numpy as np

    return np.array(array, order="C", copy=True)


def dtype_of_array(array: Any) -> types.DataType:
    """The DataType of an array or tensor; numpy uint16 holds bfloat16."""
    import numpy as np

    dtype = getattr(array, "dtype", None)
    if dtype is None:
        array = np.asarray(array)
        dtype = array.dtype
    if isinstance(dtype, np.dtype) and dtype == np.uint16:
        return types.bfloat16
    return types.dtype_of(dtype)


def as_array(value: Any, dtype: types.DataType | None = None) -> Any:
    """A numpy array of what a runner was given; tensors of torch are viewed."""
    import numpy as np

    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        if value.dtype == torch.bfloat16:
            return value.view(torch.int16).numpy().view(np.uint16)
        return value.numpy()
    if isinstance(value, np.ndarray):
        return raw_bits(value) if value.dtype.name == "bfloat16" else value
    return np.asarray(value, dtype=None if dtype is None else dtype.numpy_name)


def to_bf16(a: Any) -> Any:
    """Raw bits (uint16) of an array rounded to bfloat16, nearest even; NaN becomes 0x7fc0."""
    import numpy as np

    a = np.asarray(a, dtype=np.float32)
    bits = np.ascontiguousarray(a).view(np.uint32)
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(a), np.uint16(0x7FC0), rounded).reshape(a.shape)


def from_bf16(bits: Any) -> Any:
    """float32 values of raw bfloat16 bits."""
    import numpy as np

    bits = np.ascontiguousarray(bits)
    return (bits.astype(np.uint32) << 16).view(np.float32).reshape(bits.shape)
