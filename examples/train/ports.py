"""Which port the ranks meet at.

DVM_PORT_RANGE or HCCL_NPU_SOCKET_PORT_RANGE ("16700-16799") names candidates; a taken one is named
with its owner and the next is tried. Without either the system chooses. gloo opens further sockets
of its own between ranks, on ports the system chooses.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

from refuse import Refused

VARIABLES = ("DVM_PORT_RANGE", "HCCL_NPU_SOCKET_PORT_RANGE")


def candidates() -> range | None:
    """Ports named by the environment."""
    for variable in VARIABLES:
        text = os.environ.get(variable, "").strip()
        if not text:
            continue
        first, _, last = text.partition("-")
        try:
            ports = range(int(first), int(last or first) + 1)
        except ValueError:
            ports = range(0)
        if not ports or ports[0] < 1 or ports[-1] > 65535:
            raise Refused(f"{variable}={text}: a port or FIRST-LAST between 1 and 65535 is needed")
        return ports
    return None


def choose(say: Callable[[str], None], host: str = "127.0.0.1") -> int:
    """A port that is free now."""
    ports = candidates()
    if ports is None:
        with socket.socket() as s:
            s.bind((host, 0))
            return s.getsockname()[1]
    for port in ports:
        try:
            with socket.socket() as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                s.bind((host, port))
            return port
        except OSError as error:
            reason = owner(port) or error.strerror
            say(f"port {port} is taken ({reason}); trying the next")
    raise Refused(f"no port between {ports[0]} and {ports[-1]} is free")


def owner(port: int) -> str | None:
    """The process that listens on a port: its name and id, as far as the system tells."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = Path(f"/proc/net/{table}").read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if int(fields[1].rpartition(":")[2], 16) == port and fields[3] == "0A":
                inodes.add(f"socket:[{fields[9]}]")
    for process in Path("/proc").glob("[0-9]*") if inodes else ():
        try:
            if any(os.readlink(f) in inodes for f in (process / "fd").iterdir()):
                return f"{(process / 'comm').read_text().strip()}, pid {process.name}"
        except OSError:
            continue
    return None
