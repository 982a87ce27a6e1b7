"""The body of a call function: statements with their variables dropped or reused in time.

Every variable is deleted after its last use, so that torch can free the memory early. A buffer that
a kernel filled and that is dead is taken over by the next output of the same size, strides and
dtype instead: an allocation costs more than a small kernel's launch, and fresh memory of a large
one costs page faults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

# How many statements a dead buffer is kept for the next output of its kind.
PATIENCE = 12


class Statement(NamedTuple):
    """One line of the call function.

    uses     variables that must be alive
    buffer   what an allocation makes: size, strides and dtype as text
    made     the variable of the buffer
    views    the result is a view of these variables
    escapes  these may live on elsewhere: returned, or kept by an op that we do not know
    """

    text: str
    uses: tuple[str, ...] = ()
    buffer: str = ""
    made: str = ""
    views: tuple[str, ...] = ()
    escapes: tuple[str, ...] = ()


def body(inputs: Sequence[str], statements: Sequence[Statement]) -> list[str]:
    """Lines of the call function behind the unpacking of its arguments."""
    last = _last_uses(inputs, statements)
    taken = _takeovers(statements, last)
    drops: dict[int, list[str]] = {}
    for name, i in last.items():
        if name not in taken.values():
            drops.setdefault(i, []).append(name)
    lines = [f"del {', '.join(drops[-1])}"] if -1 in drops else []
    for i, s in enumerate(statements):
        if i in taken:
            lines += [f"{s.made} = {taken[i]}", f"del {taken[i]}"]
        else:
            lines.append(s.text)
        if i in drops and not s.text.startswith("return"):
            lines.append(f"del {', '.join(drops[i])}")
    return lines


def _last_uses(inputs: Sequence[str], statements: Sequence[Statement]) -> dict[str, int]:
    last: dict[str, int] = dict.fromkeys(inputs, -1)
    for i, s in enumerate(statements):
        for name in s.uses:
            last[name] = i
    return last


def _takeovers(statements: Sequence[Statement], last: dict[str, int]) -> dict[int, str]:
    """Allocation -> the dead buffer that is used instead."""
    owners: dict[str, set[str]] = {}  # variable -> buffers whose memory it may show
    kind = {s.made: s.buffer for s in statements if s.made}
    until: dict[str, int] = {}  # buffer -> last use of it or of a view of it
    for i, s in enumerate(statements):
        if s.made:
            owners[s.made] = {s.made}
        if s.views:
            seen = set().union(*(owners.get(v, set()) for v in s.views))
            owners[s.uses[-1]] = seen
        for name in s.uses:
            for b in owners.get(name, ()):
                until[b] = i
        for name in s.escapes:
            for b in owners.get(name, ()):
                kind.pop(b, None)
    free: dict[str, list[str]] = {}
    ends: dict[int, list[str]] = {}
    for b, i in until.items():
        if b in kind:
            ends.setdefault(i, []).append(b)
    taken: dict[int, str] = {}
    for i, s in enumerate(statements):
        waiting = free.get(s.buffer) if s.buffer else None
        if waiting:
            b = waiting.pop()
            if i - until[b] <= PATIENCE:
                taken[i] = b
        for b in ends.get(i, ()):
            free.setdefault(kind[b], []).append(b)
    return taken
