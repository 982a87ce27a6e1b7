"""DVM for PyTorch: `torch.compile(f, backend="dvm")`.

    summary()   what was compiled: graphs, kernels, fused ops, fallbacks with reasons, seconds
    explain()   compiles and runs a model, and writes what it became as an HTML page
    Options     what `options={...}` may hold

torch finds the backend by its entry point; nothing has to be imported for that.
"""

from collections.abc import Callable
from typing import Any

from ..arrays import watch_profiler
from .options import OptionError, Options
from .stats import GraphRecord, Summary, setup_logging, summary


def explain(f: Callable, *args: Any, **options: Any) -> str:
    """See explain_page.explain, which is imported when it is needed."""
    from .explain_page import explain

    return explain(f, *args, **options)


setup_logging()
watch_profiler()

__all__ = ["GraphRecord", "OptionError", "Options", "Summary", "explain", "summary"]
