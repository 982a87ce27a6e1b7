"""The device that programs for Ascend ask about."""

from __future__ import annotations

import os

import _dvm


class Device:
    """Answers in the names of the original; the kernels run on the CPU."""

    @staticmethod
    def arch() -> str:
        """ "AscendC310", the widest surface, or what DVM_ARCH says."""
        return os.environ.get("DVM_ARCH") or "AscendC310"

    @staticmethod
    def core_num() -> int:
        """Threads that a kernel may use."""
        return _dvm.default_context().threads

    @staticmethod
    def soc_name() -> str:
        """Device and instruction set of this machine: "cpu avx512"."""
        return _dvm.default_context().device
