"""Which numbers of a chip file are assumed, and how far a result moves with each."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from ..arch import Chip, System
from ..arch.units import KINDS
from ..errors import StallscopeError
from .change import change, kind_of
from .parallel import answers

if TYPE_CHECKING:
    import networkx as nx

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


def sensitivity(chip: Chip, time: Callable[[Chip], float]) -> tuple[float, list[Moved]]:
    """The time as the chip stands, and all assumed numbers, those that matter most first.

    `time`: the result for a chip, picklable. Raises StallscopeError if there is none for the chip as it stands.
    """
    base = time(chip)
    numbers = [(path, f) for path, f in chip.facts() if f.assumed is not None and f.assumed != "the default"]
    changes = [(path, f.value, factor) for path, f in numbers for factor in (1 - STEP, 1 + STEP)]
    times = answers(partial(_time_of, chip, time), changes, f"{chip.name}: changed numbers tried")
    moves = [None if t is None else t / base - 1 for t in times]
    out = [
        Moved(path, fact.text, fact.assumed or "", less, more)
        for (path, fact), less, more in zip(numbers, moves[::2], moves[1::2], strict=True)
    ]
    return base, sorted(out, key=lambda m: -m.most)


def _time_of(chip: Chip, time: Callable[[Chip], float], changed: tuple[str, float, float]) -> float | None:
    path, value, factor = changed
    try:
        return time(change(chip, path, _moved(chip, path, value, factor)))
    except (StallscopeError, AttributeError, StopIteration):
        return None  # numbers that share one origin, and what no run can do with another value


@dataclass
class StepTime:
    """How long a step takes on a chip, each program simulated once: many a number is not met by a step."""

    graph: nx.DiGraph[Any]
    system: System
    known: dict[bytes, float] = field(default_factory=dict)

    def __call__(self, chip: Chip) -> float:
        """Femtoseconds. Raises StallscopeError if the step cannot be run."""
        from ..compiler.pipeline import compile_graph
        from ..compiler.program import Info
        from ..sim.run import simulate

        program = compile_graph(self.graph, replace(self.system, chip=chip))
        key = sha256(pickle.dumps(replace(program, info=Info("")))).digest()  # what is printed changes no time
        if key not in self.known:
            self.known[key] = float(simulate(program).time_fs)
        return self.known[key]


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
