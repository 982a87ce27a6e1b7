"""Threads of the default context."""

from __future__ import annotations

import os
import sys
from typing import Any

import _dvm


def default_options() -> dict[str, Any]:
    """Options of the default context, which the first kernel makes.

    Where torch is loaded, its number of threads and, unless DVM_OPENMP is 0, its OpenMP runtime;
    elsewhere the library's own pool of as many threads as there are processors. DVM_NUM_THREADS
    overrides the number.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "get_num_threads"):
        return {}
    options: dict[str, Any] = {"openmp": os.environ.get("DVM_OPENMP", "1") != "0"}
    if not os.environ.get("DVM_NUM_THREADS"):
        options["threads"] = int(torch.get_num_threads())
    return options


def set_num_threads(n: int) -> None:
    """Threads that a kernel may use, the calling one counted. Results do not depend on it."""
    _dvm.default_context().set_threads(n)


def get_num_threads() -> int:
    """Threads that a kernel may use, the calling one counted."""
    return _dvm.default_context().threads
