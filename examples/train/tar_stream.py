"""Samples from .tar files, read once from front to back: NNNN.jpg and NNNN.txt lie side by side.

A damaged header, a short file or a member without its pair is named and left out; reading goes on
at the next header that has a right check sum.
"""

from __future__ import annotations

import io
import random
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from refuse import Refused

Say = Callable[[str], None]
BLOCK = tarfile.BLOCKSIZE


def shards(path: str) -> list[Path]:
    """The tar files of --data: a file, a folder of them, or a pattern."""
    p = Path(path)
    if p.is_dir():
        found = sorted(p.glob("*.tar"))
    elif any(c in path for c in "*?["):
        found = sorted(p.parent.glob(p.name))
    elif p.exists():
        found = [p]
    else:
        raise Refused(f"--data {path}: no such file or folder")
    if not found:
        raise Refused(f"--data {path}: no .tar file there")
    return found


def members(f: BinaryIO, name: str, say: Say) -> Iterator[tuple[str, bytes]]:
    """Regular files of a tar stream: name and content."""
    offset, lost, long_name = 0, -1, ""
    while block := f.read(BLOCK):
        here, offset = offset, offset + len(block)
        if len(block) < BLOCK:
            say(f"{name}: ends in the middle of a header, at byte {here}")
            return
        if not block.strip(b"\0"):
            if lost >= 0:
                continue  # zeros of a damaged member
            return
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        except tarfile.HeaderError as error:
            if lost < 0:
                say(f"{name}: no tar header at byte {here} ({error}); looking for the next")
                lost = here
            continue
        lost = -1
        content = f.read(info.size)
        padding = f.read(-info.size % BLOCK)
        offset += len(content) + len(padding)
        if len(content) < info.size:
            missing = info.size - len(content)
            say(f"{name}: {long_name or info.name} is cut short, {missing} bytes are missing")
            return
        if info.type == tarfile.GNUTYPE_LONGNAME:
            long_name = content.rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif info.type == tarfile.XHDTYPE:
            long_name = _pax_path(content)
        elif info.isreg():
            yield long_name or info.name, content
            long_name = ""
        else:
            long_name = ""
    if lost < 0:
        say(f"{name}: has no end mark; the last members may be missing")


def _pax_path(content: bytes) -> str:
    """The path of a pax header: records of `length key=value`."""
    for record in content.split(b"\n"):
        key, _, value = record.partition(b" ")[2].partition(b"=")
        if key == b"path":
            return value.decode("utf-8", "surrogateescape")
    return ""


def samples(paths: list[Path], needed: tuple[str, ...], say: Say) -> Iterator[dict[str, bytes]]:
    """Neighbouring members with one stem: extension -> content, and "name". An image's extension is
    jpg whatever it is called; `needed` extensions that a sample lacks are named."""
    for path in paths:
        try:
            with path.open("rb") as f:
                group: dict = {}
                for name, content in members(f, path.name, say):
                    stem, _, extension = name.rpartition(".")
                    key = (
                        "jpg" if extension.lower() in ("jpg", "jpeg", "png", "webp") else extension
                    )
                    if group and group["name"] != f"{path.name}/{stem}":
                        yield from _complete(group, needed, say)
                        group = {}
                    group.setdefault("name", f"{path.name}/{stem}")
                    group[key] = content
                yield from _complete(group, needed, say)
        except OSError as error:
            say(f"{path}: {error.strerror}")


def _complete(group: dict, needed: tuple[str, ...], say: Say) -> Iterator[dict]:
    missing = [e for e in needed if e not in group]
    if group and missing:
        say(f"{group['name']}: has no .{' and no .'.join(missing)}; skipped")
    elif group:
        yield group


WORDS = [
    "a",
    "small",
    "red",
    "square",
    "beside",
    "blue",
    "circle",
    "under",
    "green",
    "line",
    "over",
    "yellow",
    "cross",
    "the",
    "tile",
    "holds",
    "four",
    "rows",
    "of",
    "light",
    "and",
    "shadow",
    "near",
    "water",
    "stone",
    "wind",
]


def make_tiny(path: Path, count: int = 32, side: int = 160, seed: int = 0) -> None:
    """A tar of pictures with captions, the same at every call."""
    import numpy as np
    from PIL import Image

    rng, words = np.random.default_rng(seed), random.Random(seed)
    ramp = np.linspace(0, 1, side)
    with tarfile.open(path, "w") as tar:
        for i in range(count):
            a, b, c = rng.random((3, 3))
            picture = (
                a * ramp[:, None, None] + b * ramp[None, :, None] + c * rng.random((side, side, 1))
            )
            data = io.BytesIO()
            Image.fromarray((picture * 85).astype(np.uint8)).save(data, "JPEG", quality=90)
            text = " ".join(words.choice(WORDS) for _ in range(40))
            for extension, content in (("jpg", data.getvalue()), ("txt", text.encode())):
                info = tarfile.TarInfo(f"{i:04}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
