"""Options of `torch.compile(f, backend="dvm", options={...}, mode=...)`.

Every option and environment variable of the backend stands in this file. Options reach the backend
as keyword arguments of the compile call; they are checked here and frozen for the graph being
compiled, so a variable that changes later does not change compiled graphs.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields


class OptionError(ValueError):
    """An option or mode that the backend does not know, or a value of the wrong kind."""


# Modes that torch.compile documents. DVM has nothing to tune, so all of them mean the same.
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


PRODUCTS = ("auto", "all", "none")


@dataclass(frozen=True)
class Options:
    """What one graph is compiled with.

    disable_ops  ATen ops left to torch: "softmax", "aten.mul" or "aten.mul.Tensor";
                 added to DVM_DISABLE_OPS (comma separated)
    strict       round 16-bit floats after every operation, as eager does (DVM_STRICT=1)
    check        compare every kernel run with torch, op by op, and raise on a difference
                 (DVM_CHECK=1)
    cache        keep programs on disk and take them from there, see cache.py; the same for what
                 torch's AOTAutograd makes, see aot_cache.py (DVM_CACHE=1)
    products     which matrix products are kernels instead of torch's: "auto" (rows_matmul.py),
                 "all", "none" (DVM_PRODUCTS)
    debug_dir    folder for output_code.py and its companions (DVM_DEBUG_DIR; with
                 TORCH_COMPILE_DEBUG=1 torch's own debug folder is taken)
    """

    disable_ops: frozenset[str] = frozenset()
    strict: bool = False
    check: bool = False
    cache: bool = False
    products: str = "auto"
    debug_dir: str = ""


def parse_options(options: Mapping | None, mode: str | None) -> Options:
    """Options of one compile call: what the caller gave, over the environment.

    Raises OptionError for unknown names, with the nearest known one, and for values of the wrong
    kind.
    """
    if mode is not None and mode not in MODES:
        raise OptionError(
            f"torch.compile mode {mode!r} is not known to backend dvm{_near(mode, MODES)}"
        )
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options of backend dvm must be a dict, not {type(options).__name__}")
    given = dict(options or {})
    names = tuple(f.name for f in fields(Options))
    for name in given:
        if name not in names:
            raise OptionError(
                f"option {name!r} is not known to backend dvm{_near(str(name), names)}"
            )
    return Options(
        disable_ops=_names("DVM_DISABLE_OPS", os.environ.get("DVM_DISABLE_OPS", ""))
        | _names("disable_ops", given.get("disable_ops", ())),
        strict=_flag("strict", given.get("strict"), "DVM_STRICT"),
        check=_flag("check", given.get("check"), "DVM_CHECK"),
        cache=_flag("cache", given.get("cache"), "DVM_CACHE"),
        products=_choice("products", given.get("products"), "DVM_PRODUCTS", PRODUCTS),
        debug_dir=_path(given.get("debug_dir")),
    )


def is_disabled(target: object, disable_ops: frozenset[str]) -> bool:
    """Whether an ATen overload was switched off by overload, by op or by bare name."""
    if not disable_ops:
        return False
    full = str(target)  # aten.mul.Tensor
    packet = full.rpartition(".")[0]
    bare = packet.rpartition(".")[2]
    return not disable_ops.isdisjoint((full, packet, bare, bare + full[len(packet) :]))


def _near(name: str, known: Iterable[str]) -> str:
    known = tuple(known)
    near = difflib.get_close_matches(name, known, 1, 0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"


def _flag(name: str, value: object, variable: str) -> bool:
    if value is None:
        return os.environ.get(variable, "0").lower() not in ("", "0", "false", "off")
    if not isinstance(value, bool):
        raise OptionError(f"option {name!r} must be True or False, not {value!r}")
    return value


def _choice(name: str, value: object, variable: str, known: tuple[str, ...]) -> str:
    """One of the known words, the first of them where nothing is given."""
    given = os.environ.get(variable, "") or known[0] if value is None else value
    if given not in known:
        said = f"option {name!r}" if value is not None else variable
        raise OptionError(f"{said} must be one of {', '.join(known)}, not {given!r}")
    return str(given)


def _names(name: str, value: object) -> frozenset[str]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, (list, tuple, set, frozenset)) or not all(
        isinstance(i, str) for i in items
    ):
        raise OptionError(f"option {name!r} must be a list of op names, not {value!r}")
    return frozenset(i.strip() for i in items if i.strip())


def _path(value: object) -> str:
    if value is None:
        return os.environ.get("DVM_DEBUG_DIR", "")
    if not isinstance(value, (str, os.PathLike)):
        raise OptionError(f"option 'debug_dir' must be a path, not {value!r}")
    return os.fspath(value)
