"""Arrays and tensors: what the extension asks about types it meets, and copies that it cannot
avoid. numpy and torch are imported only when one of their objects turns up.
"""

from __future__ import annotations

import numbers
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import _dvm

from . import types
from .threads import guard

REFUSED, NUMPY, TORCH, OTHER = 0, 1, 2, 3


def family_of(type_: type) -> int:
    """1 numpy arrays and scalars, 2 torch tensors, 3 everything else; 0: not a plain array."""
    if _derives(type_, "numpy.ma.core", "MaskedArray"):
        return REFUSED  # its mask would be lost
    if _derives(type_, "numpy", "ndarray") or _derives(type_, "numpy", "generic"):
        return NUMPY
    if _derives(type_, "torch", "Tensor"):
        with guard:
            watch_profiler()
        return TORCH
    return OTHER


def _derives(type_: type, module: str, name: str) -> bool:
    """Whether a type derives from a class of a module, which is not imported for that (np.ma is
    imported when it is first named) and may be half imported by another thread.
    """
    base = vars(sys.modules.get(module, sys)).get(name)
    return isinstance(base, type) and issubclass(type_, base)


def watch_profiler() -> None:
    """Has runs of kernels appear in the profiler of torch, while one is on."""
    from torch.autograd import profiler

    _dvm.watch_profiler(vars(profiler), _open_range)


def _open_range(label: str) -> Callable[[], None]:
    import torch

    # torch's own for generated code: less of it in the times of small kernels.
    kind = getattr(torch._C._profiler, "_RecordFunctionFast", torch.profiler.record_function)
    opened = kind(label)
    opened.__enter__()
    return lambda: opened.__exit__(None, None, None)


def register(is_torch: bool) -> None:
    """Tells the extension how to allocate results."""
    with guard:
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
    if not str(tensor.device).startswith("cpu"):
        raise ValueError("not in the memory of the CPU")  # refuse() says the rest
    found = types._search(tensor.dtype)
    return -1 if found is None else found.code


def resolve_neg(tensor: Any) -> Any:
    return tensor.resolve_neg()


_LAYOUTS = {
    "sparse": "pass x.to_dense()",
    "_mkldnn": "pass x.to_dense()",
    "jagged": "pass its parts (x.unbind()) or x.to_padded_tensor(0)",
}


def _remedy(tensor: Any) -> str:
    """What a caller can pass instead of a tensor of torch without plain memory, or ""."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(tensor, torch.Tensor):
        return ""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return (
            "it is inside a transform of torch.func (vmap, grad, jvp), which does not see into "
            "kernels: call the kernel outside of it, or batch by a further dimension"
        )
    if tensor.is_nested:
        return "it is a nested tensor: " + _LAYOUTS["jagged"]
    if tensor.is_quantized:
        return "it is quantized: pass x.dequantize() or x.int_repr()"
    layout = str(tensor.layout).removeprefix("torch.")
    for prefix, text in _LAYOUTS.items():
        if layout.startswith(prefix):
            return f"its layout is {layout}: {text}"
    return ""


def refuse(value: Any, role: str, which: int, reason: Any) -> None:
    """Raises the error for an argument whose memory cannot be had."""
    try:
        device = str(getattr(value, "device", "cpu"))
    except Exception:
        device = "cpu"
    if device == "meta":
        raise _dvm.UnsupportedError(
            f"{role} {which} is on device meta and has no data: pass a CPU tensor "
            "(torch.empty_like(x, device='cpu'))"
        ) from reason
    if not device.startswith("cpu"):
        raise _dvm.UnsupportedError(
            f"{role} {which} is on device {device}, and this context runs on the CPU: "
            "pass a CPU tensor (x.cpu())"
        ) from reason
    text = _remedy(value)
    if not text:
        said = (str(reason).strip().splitlines() or [""])[0]
        text = f"{type(reason).__name__}: {said}" if said else type(reason).__name__
        text += "; pass a numpy array or a CPU tensor of torch"
    raise _dvm.ArgumentError(
        f"{role} {which}, a {type(value).__name__}, cannot be read: {text}"
    ) from reason


def about_output(text: str, target: types.DataType) -> str:
    """Results would be written to a converted copy; the array that was meant keeps its values."""
    return f"{text}: results are written into it, so pass memory of dtype {target.name}, not a copy"


def about_kind(value: Any, want: int, output: bool) -> str:
    """The type of an argument that is no array, and what to pass instead."""
    name = type(value).__name__
    if output and want < len(types.ALL) and isinstance(value, list | tuple):
        return about_output(name, types.ALL[want])
    if isinstance(value, numbers.Number):
        return f"{name}; a number is an argument of a kernel only where it was declared by scalar()"
    if isinstance(value, list | tuple):
        return f"{name}: pass np.asarray(x, dtype)"
    if hasattr(value, "filled"):
        return f"{name}: pass x.filled(value)"
    if type(value).__module__ == "dvm.record":
        return (
            f"{name}, a value inside another kernel: kernels are called with arrays; what several "
            "kernels share is a plain function of k and values"
        )
    return name


def about_dtype(value: Any, want: int, output: bool, given: str | None) -> str:
    """The dtype of an argument that was refused for it, and how to convert it."""
    dtype = getattr(value, "dtype", None)
    text = given or ("?" if dtype is None else str(dtype))
    torch, target = sys.modules.get("torch"), None if want >= len(types.ALL) else types.ALL[want]
    if output and target is not None:
        return about_output(text, target)
    if "complex" in text:
        return f"{text}: pass its real and imaginary parts as arrays of their own"
    if text.startswith(("torch.quint", "torch.qint")):
        return f"{text}: pass x.dequantize() or x.int_repr()"
    if target is None and getattr(dtype, "isnative", True) is False:
        return (
            f"{text}, in the byte order of another machine: "
            "pass x.astype(x.dtype.newbyteorder('='))"
        )
    if target is None:
        return text
    if torch is not None and isinstance(value, torch.Tensor):
        return f"{text}: convert it, x.to(torch.{target.name})"
    if given == "bf16" and getattr(dtype, "name", "") == "uint16":
        return (
            "uint16, which stands for the raw bits of bfloat16: pass dvm.PyKernel."
            f"convert_from_bf16(x), or x.astype('{target.numpy_name}') when they are integers"
        )
    if target is types.bfloat16:
        return (
            f"{text}: numpy holds bfloat16 as uint16 with the raw bits (PyKernel.convert_to_bf16)"
        )
    if getattr(dtype, "kind", "?") in "biufO" and hasattr(value, "astype"):
        return f"{text}: convert it, x.astype('{target.numpy_name}')"
    return text


def name_arguments(error: Exception, names: tuple[str, ...]) -> None:
    """Adds the names of the arguments to an error that counts them."""

    def named(found: re.Match[str]) -> str:
        i = int(found[1])
        return f"{found[0]} ({names[i]})" if i < len(names) else found[0]

    text = re.sub(r"\binput (\d+)\b", named, str(error))
    text = re.sub(r"^expected \d+ arguments?(?=,)", rf"\g<0> ({', '.join(names)})", text)
    error.args = (text, *error.args[1:])


def plural(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def by_name(
    names: Sequence[str] | None, outputs: int, given: Sequence[Any], named: dict[str, Any]
) -> tuple[Any, ...]:
    """The arguments of a call in order: inputs, of which some were given by name, then the outputs,
    which may come together as `out`. None: the inputs have no names.
    """
    known = () if names is None else names
    named = dict(named)
    out: tuple[Any, ...] = ()
    if outputs and "out" in named and "out" not in known:
        value = named.pop("out")
        out = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        if len(out) != outputs:
            raise _dvm.ArgumentError(f"out= takes {plural(outputs, 'output')}, given {len(out)}")
    for name in named:
        if names is None:
            raise _dvm.ArgumentError(
                f"there is no argument {name!r}: inputs that a kernel declares by load() have no "
                "names, pass them by position"
            )
        if name not in known:
            raise _dvm.ArgumentError(
                f"there is no argument {name!r}: the kernel takes {', '.join(known) or 'none'}"
                + (", and out= for its outputs" if outputs else "")
            )
        if known.index(name) < len(given):
            raise _dvm.ArgumentError(f"the argument {name!r} is given by position and by name")
    rest = known[len(given) :]
    missing = [name for name in rest if name not in named]
    if missing:
        raise _dvm.ArgumentError(
            f"arguments are missing: {', '.join(missing)}; the kernel takes {', '.join(known)}"
        )
    return (*given, *[named[name] for name in rest], *out)


def raw_bits(array: Any) -> Any:
    """A uint16 view of an array of ml_dtypes.bfloat16, else None."""
    if getattr(getattr(array, "dtype", None), "name", "") == "bfloat16" and hasattr(array, "view"):
        return array.view("uint16")
    return None


def dense_copy(array: Any) -> Any:
    """A copy in aligned memory, dense, of the same family."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.empty_like(array, memory_format=torch.contiguous_format).copy_(array)
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
