"""DVM: tensor kernels compiled to tile bytecode in microseconds, at run time.

    import dvm
    import numpy as np

    @dvm.kernel
    def scaled_add(k, x, y, a):
        x, y = k.load(x, dvm.float32), k.load(y, dvm.float32)
        return k.store(x * k.scalar(a) + y)

    z = scaled_add(np.ones((4, 8), np.float32), np.ones(8, np.float32), 2.0)

`python -m dvm doctor` says what is installed and whether it works.
"""

from __future__ import annotations

try:
    import _dvm
except ImportError as error:
    raise ImportError(
        f"dvm (from {__file__}) needs its extension module _dvm, which did not load: {error}. "
        "Install the distribution libdvm; in a source tree run ./dev exec python"
    ) from error

# The extension this package was written for; another number means that files of two versions, or
# of another project called dvm, are mixed.
_ABI = 3
if getattr(_dvm, "PROJECT", None) != "libdvm" or getattr(_dvm, "ABI", None) != _ABI:
    raise ImportError(
        f"the package dvm (from {__file__}) and the extension module _dvm (from {_dvm.__file__}) "
        "do not belong together. Another project on the package index is called dvm: uninstall it, "
        "then install libdvm again"
    )

from _dvm import (  # noqa: E402
    ArgumentError,
    DTypeError,
    Error,
    FileError,
    ForeignValueError,
    FormatError,
    InternalError,
    KindError,
    LimitError,
    OutOfMemoryError,
    OutOfRangeError,
    OverlapError,
    ParseError,
    ShapeError,
    StateError,
    UnsupportedError,
)

from . import arrays  # noqa: E402, F401 imported here, not in a first call, which may be forking
from .builder import Kernel  # noqa: E402
from .device import Device  # noqa: E402
from .jit import KernelFunction, kernel  # noqa: E402
from .record import Dim, IntArrayRef, NDObject, ScalarRef  # noqa: E402
from .threads import get_num_threads, set_num_threads  # noqa: E402
from .types import (  # noqa: E402
    DataType,
    bfloat16,
    bool_,
    dtype_of,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)

__version__: str = _dvm.__version__

ShapeRef = IntArrayRef


def __getattr__(name: str) -> object:
    if name in ("PyKernel", "KernelBase"):  # need numpy; the second is the gen-2 name
        from .runner import PyKernel

        return PyKernel
    if name in ("tester", "torch"):  # need numpy, torch
        import importlib

        return importlib.import_module(f"dvm.{name}")
    raise AttributeError(f"module 'dvm' has no attribute {name!r}")


__all__ = [
    "ArgumentError",
    "DTypeError",
    "DataType",
    "Device",
    "Dim",
    "Error",
    "FileError",
    "ForeignValueError",
    "FormatError",
    "IntArrayRef",
    "InternalError",
    "Kernel",
    "KernelBase",
    "KernelFunction",
    "KindError",
    "LimitError",
    "NDObject",
    "OutOfMemoryError",
    "OutOfRangeError",
    "OverlapError",
    "ParseError",
    "PyKernel",
    "ScalarRef",
    "ShapeError",
    "ShapeRef",
    "StateError",
    "UnsupportedError",
    "bfloat16",
    "bool_",
    "dtype_of",
    "float16",
    "float32",
    "float64",
    "get_num_threads",
    "int8",
    "int32",
    "int64",
    "kernel",
    "set_num_threads",
    "uint8",
]
