"""Starts train.py on NGPU ranks of this machine through torchrun's launcher.

The first rank that dies ends the run, and is named with what ended it.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from ports import choose
from ranks import how_it_ended, seconds
from refuse import Refused

TRAIN = Path(__file__).with_name("train.py")


def say(text: str) -> None:
    print(f"launch: {text}", file=sys.stderr, flush=True)


def number() -> int:
    text = os.environ.get("NGPU", "1")
    try:
        n = int(text)
    except ValueError:
        n = 0
    if n < 1:
        raise Refused(f"NGPU={text}: a number of ranks is needed, 1 or more")
    return n


def launch(arguments: list[str]) -> int:
    n = number()
    if n == 1:
        for variable in ("RANK", "WORLD_SIZE"):
            os.environ.pop(variable, None)
        os.execv(sys.executable, [sys.executable, str(TRAIN), *arguments])
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, len(os.sched_getaffinity(0)) // n)))
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # told() tells it
    port = choose(say)
    connect = int(seconds("HCCL_CONNECT_TIMEOUT", 120).total_seconds())
    say(f"{n} ranks meet at port {port}")
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=n, run_id="train",
        rdzv_backend="static", rdzv_endpoint=f"127.0.0.1:{port}",
        rdzv_configs={"rank": 0, "timeout": max(1, connect)},
        max_restarts=0, monitor_interval=0.1,
    )  # fmt: skip
    try:
        elastic_launch(config, sys.executable)(str(TRAIN), *arguments)
    except ChildFailedError as error:
        return told(error)
    return 0


def told(error: object) -> int:
    """Names the rank that failed first; 2 when it refused what it was given."""
    rank, first = error.get_first_failure()
    say(f"rank {rank} (process {first.pid}) {how_it_ended(first.exitcode)}; the run is over")
    return 2 if first.exitcode == 2 else 1


def main() -> int:
    try:
        return launch(sys.argv[1:])
    except Refused as error:
        say(str(error))
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
