"""Weights in safetensors files, and checkpoints. What does not fit is named, never guessed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from refuse import Refused
from torch import nn


def load_weights(model: nn.Module, path: str, say: Callable[[str], None]) -> None:
    """Copies tensors of a .safetensors file, or of all such files of a folder, into the model."""
    from safetensors import SafetensorError, safe_open

    p = Path(path)
    files = sorted(p.glob("*.safetensors")) if p.is_dir() else [p]
    if not files or not all(f.is_file() for f in files):
        raise Refused(f"--weights {path}: no such .safetensors file or folder of them")
    wanted = {n: t for n, t in model.state_dict().items()}
    seen: set[str] = set()
    for file in files:
        try:
            with safe_open(file, framework="pt") as f:
                for name in list(f.keys()):
                    if name not in wanted:
                        say(f"{file.name}: the model has no {name}; left out")
                        continue
                    tensor = f.get_tensor(name)
                    if tensor.shape != wanted[name].shape:
                        raise Refused(
                            f"{file.name}: {name} is {tuple(tensor.shape)}, the model has"
                            f" {tuple(wanted[name].shape)}; choose the CONFIG it was made with"
                        )
                    wanted[name].copy_(tensor)
                    seen.add(name)
        except (SafetensorError, OSError) as error:
            raise Refused(f"{file}: not a whole safetensors file ({error})") from None
    missing = [n for n in wanted if n not in seen]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise Refused(f"--weights {path}: lacks {', '.join(missing[:3])}{more}")


def save_weights(model: nn.Module, path: Path) -> None:
    from safetensors.torch import save_file

    state = {n: t.detach().clone().contiguous() for n, t in model.state_dict().items()}
    _whole(path, lambda temporary: save_file(state, temporary))


def save_checkpoint(path: Path, **parts: Any) -> None:
    _whole(path, lambda temporary: torch.save(parts, temporary))


def _whole(path: Path, write: Callable[[Path], Any]) -> None:
    """A reader, or a run that is stopped here, sees the old file or the new one."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        write(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def load_checkpoint(path: Path, settings: dict) -> dict:
    """The parts of a checkpoint of the same settings; holds data only, no code is run."""
    if not path.is_file():
        raise Refused(f"--resume: no checkpoint at {path}")
    try:
        parts = torch.load(path, weights_only=True, map_location="cpu")
        known = parts["settings"]
    except Exception as error:  # torch raises many classes here
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise Refused(f"{path}: not a whole checkpoint ({reason})") from None
    other = [k for k in settings if known.get(k) != settings[k]]
    if other:
        said = ", ".join(f"{k} {known.get(k)!r} (now {settings[k]!r})" for k in other)
        raise Refused(f"{path}: was made with {said}")
    return parts
