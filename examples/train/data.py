"""Batches for the recipes from streamed samples.

Texts become token ids, all of them one after the other, cut into rows. Pictures become latents
without a trained encoder: averages of 8 x 8 pixels, packed 2 x 2; captions become rows of a fixed
random table. That stands in for the frozen encoders of a real run: same shapes, no downloads.
"""

from __future__ import annotations

import io
import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from models import Batch, Recipe, image_ids
from refuse import Refused
from tar_stream import Say, samples

END = 2


class Bytes:
    """Token ids of UTF-8 bytes; 0 to 3 are pad, begin, end, unknown."""

    size = 260

    def encode(self, text: str) -> list[int]:
        return [b + 4 for b in text.encode()]


class File:
    """A tokenizer.json of the tokenizers package."""

    def __init__(self, path: Path):
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise Refused("a tokenizer file needs the package tokenizers") from None
        try:
            self._tokenizer = Tokenizer.from_file(str(path))
        except Exception as error:  # the package has no class of its own for this
            raise Refused(f"--tokenizer {path}: {error}") from None
        self.size = self._tokenizer.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text).ids


def tokenizer(path: str, vocab: int) -> Bytes | File:
    """`bytes`, a tokenizer.json, or a folder with one; not more tokens than the model embeds."""
    if path == "bytes":
        found: Bytes | File = Bytes()
    else:
        file = Path(path)
        file = file / "tokenizer.json" if file.is_dir() else file
        if not file.is_file():
            raise Refused(f"--tokenizer {path}: no such file, nor tokenizer.json in it")
        found = File(file)
    if found.size > vocab:
        raise Refused(
            f"--tokenizer {path}: has {found.size} tokens, the model embeds {vocab};"
            " choose another CONFIG or tokenizer"
        )
    return found


class Source:
    """Endless batches for one rank. Position n of every rank's stream is the same at every run."""

    def __init__(
        self, recipe: Recipe, paths: list[Path], tokens: Bytes | File, batch: int, rank: int,
        world: int, seed: int, say: Say,
    ):  # fmt: skip
        self.recipe, self.sizes, self.paths, self.tokens = recipe, recipe.sizes, paths, tokens
        self.batch, self.rank, self.world, self.seed = batch, rank, world, seed
        self.said: set[str] = set()
        self.say = say

    def batches(self, skip: int) -> Iterator[Batch]:
        """From batch `skip` on. Noise depends on seed, rank and batch only."""
        rows = self._pictures() if self.recipe.kind == "image" else self._texts()
        mine = itertools.islice(rows, self.rank, None, self.world)
        for step in itertools.count():
            chosen = list(itertools.islice(mine, self.batch))
            if step >= skip:
                yield (
                    self._noised(chosen, step)
                    if self.recipe.kind == "image"
                    else {"tokens": torch.tensor(chosen)}
                )

    def _once(self, text: str) -> None:
        """Every fault is told once, though the files are read again and again."""
        if text not in self.said:
            self.said.add(text)
            if self.rank == 0:
                self.say(text)

    def _rounds(self, needed: tuple[str, ...]) -> Iterator[Iterator[dict]]:
        while True:
            yield samples(self.paths, needed, self._once)

    def _texts(self) -> Iterator[list[int]]:
        rest: list[int] = []
        for stream in self._rounds(("txt",)):
            used = False
            for sample in stream:
                try:
                    text = sample["txt"].decode()
                except UnicodeDecodeError as error:
                    self._once(f"{sample['name']}.txt: no UTF-8 text ({error.reason}); skipped")
                    continue
                rest += [*self.tokens.encode(text), END]
                used = used or bool(text)
                while len(rest) >= self.sizes["length"]:
                    yield rest[: self.sizes["length"]]
                    del rest[: self.sizes["length"]]
            self._some(used)

    def _pictures(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for stream in self._rounds(("jpg", "txt")):
            used = False
            for sample in stream:
                picture = self._picture(sample)
                if picture is not None:
                    used = True
                    ids = self.tokens.encode(sample["txt"].decode("utf-8", "replace"))
                    yield (
                        picture,
                        torch.tensor((ids + [0] * self.sizes["text"])[: self.sizes["text"]]),
                    )
            self._some(used)

    def _some(self, used: bool) -> None:
        if not used:
            names = ", ".join(p.name for p in self.paths)
            raise Refused(f"{names}: not one usable sample; the lines above say why")

    def _picture(self, sample: dict) -> torch.Tensor | None:
        """Latents [tokens, 4 channels] of a picture's middle; None, and told, when unusable."""
        import numpy as np
        from PIL import Image, UnidentifiedImageError

        side = self.sizes["image"]
        try:
            with Image.open(io.BytesIO(sample["jpg"])) as image:
                image.load()
                rgb = image.convert("RGB")
        except Exception as error:  # decoders raise what they like
            unknown = isinstance(error, UnidentifiedImageError)
            reason = "of no known format" if unknown else error
            self._once(f"{sample['name']}: unreadable image ({reason}); skipped")
            return None
        if min(rgb.size) < side:
            self._once(f"{sample['name']}: {rgb.width}x{rgb.height} is below {side}; skipped")
            return None
        left, top = (rgb.width - side) // 2, (rgb.height - side) // 2
        pixels = np.asarray(rgb.crop((left, top, left + side, top + side)), dtype=np.float32)
        x = torch.from_numpy(pixels / 127.5 - 1).movedim(2, 0)
        x = torch.nn.functional.avg_pool2d(torch.cat([x.mean(0, keepdim=True), x]), 8)
        x = x[: self.sizes["channels"]]
        half = side // 16
        x = x.reshape(-1, half, 2, half, 2).permute(1, 3, 0, 2, 4)
        return x.reshape(half * half, -1)

    def _noised(self, chosen: list, step: int) -> Batch:
        """The batch of flow matching, with captions embedded by a fixed random table."""
        s = self.sizes
        table = torch.Generator().manual_seed(self.seed)
        words = torch.randn(self.tokens.size, s["text_dim"], generator=table)
        pool = torch.randn(s["text_dim"], s["pooled_dim"], generator=table) / s["text_dim"] ** 0.5
        latents = torch.stack([c[0] for c in chosen])
        text = words[torch.stack([c[1] for c in chosen])]
        rng = torch.Generator().manual_seed(hash((self.seed, self.rank, step)) % 2**62)
        return {
            "latents": latents,
            "noise": torch.randn(latents.shape, generator=rng),
            "time": torch.rand(len(chosen), generator=rng),
            "text": text,
            "pooled": text.mean(1) @ pool,
            "image_ids": image_ids(s["image"] // 16, s["image"] // 16),
            "text_ids": torch.zeros(s["text"], 3),
        }
