"""Threads of the default context."""

from __future__ import annotations

import sys

import _dvm


def default_threads() -> int:
    """0 for the library's own choice (DVM_NUM_THREADS or the processors available); torch's number
    when torch is loaded and DVM_NUM_THREADS is not set.
    """
    import os

    torch = sys.modules.get("torch")
    if os.environ.get("DVM_NUM_THREADS") or torch is None or not hasattr(torch, "get_num_threads"):
        return 0
    return int(torch.get_num_threads())


def set_num_threads(n: int) -> None:
    """Threads that a kernel may use, the calling one counted. Results do not depend on it."""
    _dvm.default_context().set_threads(n)


def get_num_threads() -> int:
    """Threads that a kernel may use, the calling one counted."""
    return _dvm.default_context().threads
