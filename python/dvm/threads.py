"""Threads of the default context, and what holds when a process forks."""

from __future__ import annotations

import operator
import os
import sys
import threading
from typing import Any

import _dvm

# Held while a kernel is prepared for new arguments and while a module is imported for them. A fork
# waits for it: a child would find the lock, and those of Python's import, held for ever by a thread
# that only the parent has, and a program half built.
guard = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=guard.acquire, after_in_parent=guard.release, after_in_child=guard.release
    )


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
    """Threads that a kernel may use, the calling one counted. Results do not depend on it.

    Raises:
        ArgumentError: `n` is no integer from 1 to 65536.
    """
    try:
        count = operator.index(n)
    except TypeError:
        count = 0
    if isinstance(n, bool) or not 1 <= count <= 1 << 16:
        raise _dvm.ArgumentError(
            f"the number of threads is an integer from 1 to 65536, given {n!r}"
        )
    _dvm.default_context().set_threads(count)


def get_num_threads() -> int:
    """Threads that a kernel may use, the calling one counted."""
    return _dvm.default_context().threads
