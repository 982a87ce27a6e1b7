"""DVM for PyTorch: `torch.compile(f, backend="dvm")`.

    summary()   what was compiled: graphs, kernels, fused ops, fallbacks with reasons, seconds
    Options     what `options={...}` may hold

torch finds the backend by its entry point; nothing has to be imported for that.
"""

from ..arrays import watch_profiler
from .options import OptionError, Options
from .stats import GraphRecord, Summary, setup_logging, summary

setup_logging()
watch_profiler()

__all__ = ["GraphRecord", "OptionError", "Options", "Summary", "summary"]
