"""The attention of torch_npu on the CPU, for code that calls torch_npu.npu_fusion_attention(...).

    import dvm.compat.torch_npu   # from here on `import torch_npu` finds this module

A torch_npu that is installed, or imported before, stays what it is. Everything but the names below
raises AttributeError: this is no device.
"""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from ..attn import (
    library,
    npu_fusion_attention,
    npu_fusion_attention_grad,
    swa_backward,
    swa_forward,
)

__all__ = [
    "npu_fusion_attention",
    "npu_fusion_attention_grad",
    "swa_backward",
    "swa_forward",
]


def install() -> ModuleType:
    """Puts this module in the place of torch_npu, unless there is one; returns the one that is."""
    if "torch_npu" not in sys.modules and importlib.util.find_spec("torch_npu") is None:
        sys.modules["torch_npu"] = sys.modules[__name__]
    return sys.modules.get("torch_npu", sys.modules[__name__])


def __getattr__(name: str) -> object:
    raise AttributeError(
        f"torch_npu.{name}: dvm.compat.torch_npu stands in for torch_npu and has only "
        + ", ".join(__all__)
    )


assert library.lib is not None  # registers torch.ops.dvm
install()
