"""Ratios beside their bars: what a benchmark of matrix products says at its end, and how often a row is measured."""

import math
from collections import defaultdict
from collections.abc import Callable

AGAIN = (1, 2, 4, 8)
CLEAR = 1.05  # a row is measured again unless it is so much above its bar: stopping just above it would favour one side


def rounds_until(turn: Callable[[int], None], good: Callable[[], bool], rounds: int) -> int:
    """Calls turn, in which every side runs once and keeps its least time, `rounds` times; as long as the row is not clearly above its bar,
    twice as often again, and so on. Both sides gain alike by more rounds. Returns how many there were."""
    done = 0
    for times in AGAIN:
        for _ in range(rounds * times):
            turn(done)
            done += 1
        if good():
            break
    return done


class Bars:
    """Rows by what they are compared for. A bar holds for the geometric mean, for every row, or both."""

    def __init__(self) -> None:
        self._mean: dict[str, float | None] = {}
        self._each: dict[str, float | None] = {}
        self._rows: dict[str, list[tuple[float, str]]] = defaultdict(list)

    def add(
        self,
        what: str,
        value: float,
        row: str,
        mean: float | None = None,
        each: float | None = None,
    ) -> None:
        self._mean[what], self._each[what] = mean, each
        self._rows[what].append((value, row))

    def report(self) -> None:
        print("\nbars (ratios of times, above 1 DVM is faster; shares of a rate)")
        for what, rows in self._rows.items():
            values = [v for v, _ in rows]
            mean = math.exp(sum(map(math.log, values)) / len(values))
            print(
                f"{what}: {len(rows)} rows, mean {mean:.2f}{_bar(mean, self._mean[what])}, "
                f"worst {min(values):.2f}{_bar(min(values), self._each[what])}"
            )
            least = self._each[what] or self._mean[what] or 0
            for value, row in rows:
                if value < least:
                    print(f"    below {least:.2f}: {value:.2f}  {row}")


def _bar(value: float, bar: float | None) -> str:
    return "" if bar is None else f" (bar {bar:.2f}{'' if value >= bar else ', missed'})"
