"""Finding one number of a chip file from measured rows, and how well they determine it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..arch import Chip
from ..arch.units import KINDS
from ..errors import StallscopeError
from .change import change, kind_of, read_number

POINTS = 7  # of the range, twice: once over all of it, once between the neighbours of the best
CLOSE = 1.1  # times the least error: values with no more than this cannot be told apart


@dataclass(frozen=True)
class Fit:
    """`least` and `most`: the ends of the values whose median error is close to the best one's."""

    path: str
    kind: str
    values: tuple[float, ...]
    errors: tuple[float, ...]
    best: float
    least: float
    most: float

    @property
    def open_ended(self) -> bool:
        """The range does not hold both ends: the rows say no more than a bound."""
        return self.least <= min(self.values) or self.most >= max(self.values)


def parse(text: str, chip: Chip) -> tuple[str, float, float]:
    """NAME=lo:hi -> the path and both ends in base units. Raises StallscopeError."""
    path, _, ends = text.partition("=")
    parts = ends.split(":")
    if not path or len(parts) != 2:
        raise StallscopeError(f"--fit {text}: expected NAME=LOW:HIGH, such as 'execution.launch_gap=0.5 us:2 us'")
    kind = kind_of(chip, path)
    low, high = (read_number(part, kind, f"--fit {text}") for part in parts)
    if not low < high:
        raise StallscopeError(f"--fit {text}: found a low end that is not below the high one; swap them")
    return path, low, high


def fit(chip: Chip, path: str, low: float, high: float, error: Callable[[Chip], float]) -> Fit:
    """The value of least median error in [low, high]."""
    kind, tried = kind_of(chip, path), dict[float, float]()

    def look(a: float, b: float) -> float:
        for value in np.linspace(a, b, POINTS):
            at = float(round(value)) if value > 1000 or KINDS[kind].whole else float(value)
            if at not in tried:
                tried[at] = error(change(chip, path, int(at) if at == int(at) else at))
        return min(tried, key=lambda v: tried[v])

    best = look(low, high)
    step = (high - low) / (POINTS - 1)
    best = look(max(low, best - step), min(high, best + step))
    values = sorted(tried)
    near = [v for v in values if tried[v] <= CLOSE * tried[best]]
    return Fit(path, kind, tuple(values), tuple(tried[v] for v in values), best, min(near), max(near))
