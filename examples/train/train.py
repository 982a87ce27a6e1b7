"""Trains a small model; run it by ../run_train.sh, or by torchrun, or alone.

--data PATH       .tar, folder of .tar, or pattern; without it a tiny one is made
--weights PATH    .safetensors to begin with; without it random weights
--tokenizer PATH  tokenizer.json, or bytes
--out DIR         weights, checkpoint, losses and curve go there
--resume          goes on from the checkpoint in --out
--curve           trains with eager as well, from the same start, and draws both
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from data import Source, tokenizer
from models import Recipe, recipe
from ranks import Lost, Ranks
from refuse import Refused
from tar_stream import make_tiny, shards
from weights import load_checkpoint, load_weights, save_checkpoint, save_weights

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description="trains a small model")
    p.add_argument("--module", default=os.environ.get("MODULE", "flux"))
    p.add_argument("--config", default=os.environ.get("CONFIG"))
    p.add_argument("--data")
    p.add_argument("--weights")
    p.add_argument("--tokenizer", default="bytes")
    p.add_argument("--out", default="train_out")
    p.add_argument("--steps", type=int, default=20)
    p.add_argument("--batch", type=int, default=2, help="samples of a step and rank")
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--dtype", choices=DTYPES, default="fp32")
    p.add_argument("--backend", default="dvm", help="of torch.compile, or none")
    p.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    p.add_argument("--resume", action="store_true")
    p.add_argument("--curve", action="store_true")
    return p.parse_args(arguments)


class Run:
    """One training run of one rank."""

    def __init__(self, a: argparse.Namespace, ranks: Ranks, data: list[Path]):
        self.a, self.ranks, self.out = a, ranks, Path(a.out)
        self.recipe: Recipe = recipe(a.module, a.config)
        vocab = self.recipe.sizes.get("vocab", 1 << 62)
        tokens = tokenizer(a.tokenizer, vocab)
        self.source = Source(
            self.recipe, data, tokens, a.batch, ranks.rank, ranks.world, a.seed, self.say
        )
        self.settings = {
            "module": a.module, "config": a.config, "dtype": a.dtype, "world": ranks.world,
            "batch": a.batch, "seed": a.seed,
        }  # fmt: skip

    def say(self, text: str) -> None:
        print(f"rank {self.ranks.rank}: {text}" if self.ranks.world > 1 else text, flush=True)

    def model(self) -> torch.nn.Module:
        torch.manual_seed(self.a.seed)
        model = self.recipe.build(self.recipe.sizes).train().to(DTYPES[self.a.dtype])
        if self.a.weights:
            load_weights(model, self.a.weights, self.say)
        return model

    def train(self, backend: str, resume: bool) -> list[float]:
        """Losses, mean over ranks, of every step since the start of the run."""
        model = self.model()
        blocks = list(self.recipe.blocks(model))
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(parameters, lr=self.a.lr)
        losses: list[float] = []
        file = self.out / "checkpoint.pt"
        if resume:
            parts = load_checkpoint(file, self.settings)
            model.load_state_dict(parts["model"])
            optimizer.load_state_dict(parts["optimizer"])
            losses = parts["losses"]
            self.say(f"resumed after step {len(losses)} of {file}")
        if backend != "none":
            for block in blocks:
                block.compile(backend=backend, fullgraph=True)
        times = []
        batches = self.source.batches(skip=len(losses))
        first = len(losses)
        with progress(first, self.a.steps, backend, self.ranks.rank == 0) as show:
            for step in range(first, self.a.steps):
                self.ranks.begin(step)
                begun = time.perf_counter()
                loss = self.recipe.loss(model, next(batches))
                loss.backward()
                value = loss.detach().float()
                self.ranks.mean([*(p.grad for p in parameters), value])
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(float(value))
                times.append(time.perf_counter() - begun)
                if backend == self.a.backend and self._due(step):
                    save_checkpoint(
                        file,
                        settings=self.settings,
                        losses=losses,
                        model=model.state_dict(),
                        optimizer=optimizer.state_dict(),
                    )
                show(step + 1, losses[-1])
        self._speed(backend, times)
        if self.ranks.rank == 0 and backend == self.a.backend:
            save_weights(model, self.out / "weights.safetensors")
        return losses

    def _due(self, step: int) -> bool:
        """Rank 0 keeps a checkpoint at every interval and at the end."""
        n = self.a.checkpoint_every
        return self.ranks.rank == 0 and (
            step + 1 == self.a.steps or (n > 0 and (step + 1) % n == 0)
        )

    def _speed(self, backend: str, times: list[float]) -> None:
        if not times:
            return
        s = self.recipe.sizes
        per_sample = s["length"] if "length" in s else (s["image"] // 16) ** 2 + s["text"]
        peak = self.ranks.largest(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        later = sorted(times[1:]) or times
        median = later[len(later) // 2]
        tokens = per_sample * self.a.batch * self.ranks.world
        if self.ranks.rank == 0:
            print(
                f"{backend}: first step {times[0]:.2f} s, then {median * 1e3:.1f} ms,"
                f" {tokens / median:.0f} tokens/s, peak memory {peak:.0f} MiB a rank"
            )


@contextmanager
def progress(first: int, steps: int, name: str, mine: bool) -> Iterator[Any]:
    """A bar on a terminal, lines elsewhere, nothing on other ranks."""
    if not mine:
        yield lambda step, loss: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        console = Console()
        bar = console.is_terminal
    except ImportError:
        bar = False
    if not bar:
        every = max(1, steps // 10)

        def line(step: int, loss: float) -> None:
            if step % every == 0 or step == steps:
                print(f"{name}: step {step} of {steps}, loss {loss:.5f}", flush=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.5f}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as p:
        task = p.add_task(name, total=steps, completed=first, loss=float("nan"))
        yield lambda step, loss: p.update(task, completed=step, loss=loss)


def draw(curves: dict[str, list[float]], path: Path) -> None:
    """Losses of both runs in one picture."""
    try:
        import matplotlib
    except ImportError:
        print("no picture: matplotlib is not installed; the numbers are in losses.json")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for (name, losses), style in zip(curves.items(), ("-", "--", ":"), strict=False):
        axes.plot(range(1, len(losses) + 1), losses, style, label=name)
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
    print(f"picture of the losses: {path}")


def work(a: argparse.Namespace, ranks: Ranks) -> None:
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "tiny.tar"
        run = Run(a, ranks, shards(a.data) if a.data else [tiny])
        if not a.data:
            make_tiny(tiny, seed=a.seed)
        run.out.mkdir(parents=True, exist_ok=True)
        curves = {}
        if a.curve and a.backend != "none":
            curves["eager"] = run.train("none", resume=False)
        curves[a.backend] = run.train(a.backend, a.resume)
    if ranks.rank:
        return
    (run.out / "losses.json").write_text(json.dumps(curves))
    if len(curves) > 1:
        draw(curves, run.out / "curve.png")
        eager, other = curves["eager"], curves[a.backend]
        apart = max(abs(x - y) for x, y in zip(eager, other, strict=True))
        print(f"losses of eager and {a.backend}: at most {apart:.2e} apart, last {other[-1]:.6f}")
    if a.backend == "dvm":
        import dvm.torch

        print(dvm.torch.summary())


def main(arguments: list[str] | None = None) -> int:
    a = parsed(arguments)
    who = f"rank {os.environ['RANK']}" if "RANK" in os.environ else "train"
    try:
        ranks = Ranks()
        if ranks.world > 1:
            print(f"rank {ranks.rank} of {ranks.world}: process {os.getpid()}", flush=True)
        work(a, ranks)
        ranks.close()
    except Lost as lost:
        print(f"{who}: {lost}", file=sys.stderr, flush=True)
        time.sleep(2)  # the launcher sees the rank that died before the ones that noticed
        os._exit(3)  # the transport's threads may wait for the dead
    except ModuleNotFoundError as error:
        print(
            f"{who}: the Python package {error.name} is not installed: './dev exec --models ...' "
            "brings what the recipes need",
            file=sys.stderr,
            flush=True,
        )
        return 2
    except (Refused, ValueError, OSError) as error:
        print(f"{who}: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
