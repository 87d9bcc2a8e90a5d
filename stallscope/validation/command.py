"""The commands `validate` and `sensitivity`: what they read, and what they hand out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arch import Chip, System, chip_names, load_chip
from ..errors import StallscopeError
from ..report.layout import grid, pairs, plain, render, section
from ..report.units import percent_text
from .change import number_text
from .errors import Compared, Errors, compare, errors_json, errors_of
from .fit import Fit, fit, parse
from .report import errors_table, plot
from .sensitivity import Moved, StepTime, sensitivity
from .tables import Names, Table, read_table

if TYPE_CHECKING:
    import networkx as nx

_INSTALLED, _CLONE = Path(__file__).parent / "measured", Path(__file__).resolve().parents[2] / "tests" / "measured"
OURS = _INSTALLED if _INSTALLED.is_dir() else _CLONE
"""Extracts of public tables, in a clone."""


@dataclass(frozen=True)
class Validation:
    """Compared rows, their errors, and a number that was looked for."""

    tables: Sequence[Table]
    compared: Sequence[Compared]
    errors: Sequence[Errors]
    fit: Fit | None

    def text(self) -> str:
        """The report."""
        found = f"\n{fit_text(self.fit)}" if self.fit else ""
        return errors_table(self.tables, self.compared, self.errors) + found

    def json(self) -> list[dict[str, Any]] | dict[str, Any]:
        """Errors by table, chip, op, dtype and bucket; with the number that was looked for, if one was."""
        errors = errors_json(self.errors)
        return errors if self.fit is None else {"errors": errors, "fit": asdict(self.fit)}

    def plot(self, path: Path) -> None:
        """Write the image."""
        plot(self.compared, path)


def run_validation(paths: Sequence[Path], chips: Sequence[str], sample: int | None, wanted: str | None) -> Validation:
    """Read tables (ours without any), predict their rows on the chips (all without any). Raises StallscopeError."""
    files = list(paths) or sorted(OURS.glob("*.csv"))
    if not files:
        raise StallscopeError(f"no tables in {OURS}; give some with --table FILE")
    known = {chip.name: chip for chip in map(load_chip, chips or chip_names())}
    names = Names.of(known.values(), chip_names())
    tables = [read_table(path, names) for path in files]
    found: Fit | None = None
    if wanted is not None:
        if len(known) != 1:
            raise StallscopeError(f"--fit {wanted}: found {len(known)} chips; expected one; name it with --chip")
        (chip,) = known.values()
        path, low, high = parse(wanted, chip)

        def median(changed: Chip) -> float:
            rows = compare(
                [replace(t) for t in tables], {changed.name: changed}, sample or 60, f"{path}: rows predicted"
            )
            return float(np.median([abs(c.error) for c in rows])) if rows else float("inf")

        found = fit(chip, path, low, high, median)
    compared = compare(tables, known, sample)
    if not compared:
        reasons = Counter[str]()
        for table in tables:
            reasons.update(table.left_out)
        said = "; ".join(f"{n:,} for {reason}" for reason, n in reasons.most_common(5))
        raise StallscopeError(f"{', '.join(t.name for t in tables)}: no row to compare; rows left out: {said}")
    return Validation(tables, compared, errors_of(compared), found)


def fit_text(found: Fit) -> str:
    """What was found, and how well the rows determine it."""
    best, least, most = (number_text(v, found.kind) for v in (found.best, found.least, found.most))
    rows = [(number_text(v, found.kind), percent_text(e)) for v, e in zip(found.values, found.errors, strict=True)]
    how = (
        "the rows give no more than a bound: the range has values as good at its end"
        if found.open_ended
        else f"{percent_text((found.most - found.least) / (2 * found.best), 0)} either way are as good"
    )
    alone = found.least == found.most and not found.open_ended
    said = [("best", best), ("as good", "no other value tried" if alone else f"{least} to {most}; {how}")]
    return render(section(f"{found.path}: median error by value", grid(("value", "median error"), rows), pairs(said)))


@dataclass(frozen=True)
class Sensitivity:
    """Assumed numbers of one chip by what they do to one step."""

    chip: str
    time_ms: float
    moved: Sequence[Moved]

    def text(self) -> str:
        """The report."""
        rows = [(m.path, m.text, _move(m.less), _move(m.more)) for m in self.moved]
        title = f"{self.chip}: {len(self.moved)} assumed numbers, a step of {self.time_ms:.3f} ms"
        columns = ("number", "stands at", "10% less", "10% more")
        note = plain("Change of the step's time. Whole numbers move by one at least; -: it cannot be moved alone.")
        return render(section(title, grid(columns, rows, words=(0, 1)), note))

    def json(self) -> dict[str, Any]:
        """All numbers."""
        return {"chip": self.chip, "time_ms": self.time_ms, "assumed": [asdict(m) for m in self.moved]}


def _move(share: float | None) -> str:
    """0 is no move at all; what is there but rounds to nothing says so."""
    if not share:
        return "-" if share is None else "0"
    text = percent_text(share, 2, sign=True)
    return "<0.01%" if text in ("+0.00%", "-0.00%") else text


def run_sensitivity(graph: nx.DiGraph[Any], system: System) -> Sensitivity:
    """Every assumed number of a system's chip, 10 % less and more. Raises StallscopeError if the step cannot be run."""
    time_fs, moved = sensitivity(system.chip, StepTime(graph, system))
    return Sensitivity(system.chip.name, time_fs / 1e12, moved)
