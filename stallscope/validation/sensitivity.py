"""Which numbers of a chip file are assumed, and how far a result moves with each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arch import Chip
from ..arch.units import KINDS
from ..errors import StallscopeError
from .change import change, kind_of

STEP = 0.1


@dataclass(frozen=True)
class Moved:
    """One assumed number: the time with 10 % less and 10 % more of it over the time as it stands, less 1."""

    path: str
    text: str
    why: str
    less: float | None
    more: float | None

    @property
    def most(self) -> float:
        """The larger of the two moves, without its sign."""
        return max(abs(self.less or 0.0), abs(self.more or 0.0))


def sensitivity(chip: Chip, time: Callable[[Chip], float]) -> list[Moved]:
    """All assumed numbers, those that matter most first. `time`: the result for a chip; None where it cannot be run."""
    base = time(chip)
    out = []
    for path, fact in chip.facts():
        if fact.assumed is None or fact.assumed == "the default":
            continue
        moves: list[float | None] = []
        for factor in (1 - STEP, 1 + STEP):
            try:
                moves.append(time(change(chip, path, _moved(chip, path, fact.value, factor))) / base - 1)
            except (StallscopeError, AttributeError, StopIteration):
                moves.append(None)  # numbers that share one origin, and what no run can do with another value
        out.append(Moved(path, fact.text, fact.assumed, *moves))
    return sorted(out, key=lambda m: -m.most)


def _moved(chip: Chip, path: str, value: float, factor: float) -> float:
    """10 % less or more; of a whole number at least one; of a share at most all."""
    kind = KINDS[kind_of(chip, path)]
    new = value * factor
    if kind.whole or isinstance(value, int):
        new = round(new)
        if new == value and kind.whole:
            new = value + (1 if factor > 1 else -1)
        new = max(int(new), 0 if kind.zero else 1)
    return min(new, kind.most)
