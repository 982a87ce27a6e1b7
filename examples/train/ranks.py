"""The other ranks: meeting them, averaging with them, and naming the one that is gone.

Each rank leaves the number of its last step with the store it was met at, and a beat every second.
When a collective fails or takes longer than HCCL_EXEC_TIMEOUT seconds, the ranks to name are those
behind, else those that beat no more.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterable
from datetime import timedelta

import torch
import torch.distributed as dist
from refuse import Refused


def seconds(variable: str, default: float) -> timedelta:
    text = os.environ.get(variable, "").strip()
    try:
        value = float(text or default)
    except ValueError:
        value = 0
    if value <= 0:
        raise Refused(f"{variable}={text}: a number of seconds above 0 is needed")
    return timedelta(seconds=value)


BEAT = 1.0  # seconds


def transports() -> str:
    """What carries tensors, by the memory they lie in: of a process group with nccl alone, tensors
    of the CPU, where the engine runs, would have nothing that takes them."""
    nccl = torch.cuda.is_available() and dist.is_nccl_available()
    return "cpu:gloo,cuda:nccl" if nccl else "cpu:gloo"


class Lost(Exception):
    """A rank that did not answer, by number."""


class Ranks:
    """World of one or of many; variables are those that torchrun sets."""

    def __init__(self) -> None:
        self.rank = int(os.environ.get("RANK", "0"))
        self.world = int(os.environ.get("WORLD_SIZE", "1"))
        self.store: dist.Store | None = None
        if self.world > 1:
            self._meet()

    def _meet(self) -> None:
        connect = seconds("HCCL_CONNECT_TIMEOUT", 120)
        self.exec = seconds("HCCL_EXEC_TIMEOUT", 1800)
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            self.store = dist.TCPStore(
                host, port, None, self.rank == 0 and not agent, connect, wait_for_workers=False
            )
        except (dist.DistError, RuntimeError) as error:
            first = str(error).splitlines()[0]
            raise Lost(f"no store at {host} port {port}: {first}") from None
        self._leave("here", 1)
        absent = self._absent(connect)
        if absent:
            raise Lost(f"{absent} did not connect within {connect} (HCCL_CONNECT_TIMEOUT)")
        dist.init_process_group(
            transports(),
            store=dist.PrefixStore("group", self.store),
            rank=self.rank,
            world_size=self.world,
            timeout=self.exec,
        )
        threading.Thread(target=self._beats, daemon=True).start()

    def _beats(self) -> None:
        count = 0
        try:
            while True:
                count += 1
                self._leave("beat", count)
                time.sleep(BEAT)
        except (dist.DistError, RuntimeError):
            return  # the store went with the run

    def _absent(self, limit: timedelta) -> str:
        try:
            self.store.wait([f"here/{r}" for r in range(self.world)], limit)
        except (dist.DistError, RuntimeError):
            return _named(r for r in range(self.world) if not self.store.check([f"here/{r}"]))
        return ""

    def _leave(self, key: str, value: int) -> None:
        self.store.set(f"{key}/{self.rank}", str(value))

    def _left(self, key: str, rank: int) -> int:
        """What a rank left last; -1 when it left nothing."""
        name = f"{key}/{rank}"
        return int(self.store.get(name)) if self.store.check([name]) else -1

    def begin(self, step: int) -> None:
        """Says which step this rank is in."""
        if self.world > 1:
            self._leave("step", step)
            self.step = step

    def mean(self, tensors: Iterable[torch.Tensor]) -> None:
        """Averages over ranks, in place; one collective for each dtype, in a fixed order."""
        if self.world == 1:
            return
        groups: dict[torch.dtype, list[torch.Tensor]] = {}
        for t in tensors:
            groups.setdefault(t.dtype, []).append(t)
        for group in groups.values():
            flat = torch.cat([t.flatten() for t in group])
            self._all_reduce(flat, dist.ReduceOp.SUM)
            flat /= self.world
            for t, part in zip(group, flat.split([t.numel() for t in group]), strict=True):
                t.copy_(part.view_as(t))

    def largest(self, value: float) -> float:
        if self.world == 1:
            return value
        t = torch.tensor([value], dtype=torch.float64)
        self._all_reduce(t, dist.ReduceOp.MAX)
        return float(t)

    def _all_reduce(self, t: torch.Tensor, op: dist.ReduceOp) -> None:
        try:
            dist.all_reduce(t, op)
        except RuntimeError as error:
            raise Lost(self._behind(error)) from None

    def _behind(self, error: RuntimeError) -> str:
        """Which ranks have not come as far as this one, and what the transport said."""
        said = (str(error).splitlines() or [""])[0][:160]
        others = [r for r in range(self.world) if r != self.rank]
        try:
            at = {r: self._left("step", r) for r in others}
            silent = [r for r in others if at[r] < self.step]
            if not silent:
                beats = {r: self._left("beat", r) for r in others}
                time.sleep(3 * BEAT)
                silent = [r for r in others if self._left("beat", r) == beats[r]]
        except (dist.DistError, RuntimeError):
            return f"the store of the ranks is gone ({said})"
        late = "imed out" in said or "imeout" in said
        limit = f" within {self.exec} (HCCL_EXEC_TIMEOUT)" if late else ""
        who = "; ".join(f"rank {r}, last seen in step {at[r]}" for r in silent)
        who = who or "a rank that is alive and in the same step"
        return f"step {self.step}: no answer{limit} from {who} ({said})"

    def close(self) -> None:
        if self.world > 1:
            dist.destroy_process_group()


def _named(ranks: Iterable[int]) -> str:
    numbers = list(ranks)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def how_it_ended(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        try:
            return f"died of {signal.Signals(-code).name}"
        except ValueError:
            return f"died of signal {-code}"
    return f"ended with code {code}"
