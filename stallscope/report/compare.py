"""Chips side by side: a column per chip, a row per number; a chip that cannot do it says why in its own column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from ..errors import StallscopeError
from . import units
from .json import SCHEMA, run_json
from .layout import WIDTH, bullets, grid, render, section
from .tables import job_text

if TYPE_CHECKING:
    from ..sim.run import Run

LABEL_WIDTH = 30
COLUMN_WIDTH = 17
REASON_LENGTH = 120


@dataclass(frozen=True)
class Column:
    """One chip of a comparison: its name, and its run or the reason why there is none."""

    name: str
    result: Run | StallscopeError


Row = tuple[str, Callable[["Run"], str]]

ROWS: tuple[Row, ...] = (
    ("time per token", lambda run: units.time_text(run.time_fs)),
    ("tokens/s per user", lambda run: units.number_text(run.tokens_per_s_per_user)),
    ("tokens/s in all", lambda run: units.number_text(run.tokens_per_s)),
    ("chips", lambda run: f"{run.program.info.chips:,}"),
    ("tp x pp", lambda run: f"{run.program.info.tp} x {run.program.info.pp}"),
    ("cycles", lambda run: f"{run.cycles:,}"),
    ("bound", lambda run: units.time_text(run.program.info.bound.time_fs)),
    ("bound limited by", lambda run: run.program.info.bound.limiter),
    ("distance", lambda run: units.ratio_text(run.time_fs, run.program.info.bound.time_fs)),
    ("main cause", lambda run: max(run.critical_path_fs.items(), key=lambda kv: kv[1], default=("-", 0))[0]),
)
LAST_ROWS: tuple[Row, ...] = (("assumptions", lambda run: f"{len(run.program.info.assumptions)}"),)


def compare_table(columns: Sequence[Column]) -> str:
    """Text of at most 100 columns; chips that do not fit side by side go on in a further table."""
    per_table = (WIDTH - LABEL_WIDTH) // COLUMN_WIDTH
    groups = [columns[i : i + per_table] for i in range(0, len(columns), per_table)]
    parts = [section(_title(columns), *(_side_by_side(group) for group in groups))]
    long = [f"{c.name}: {c.result}" for c in columns if isinstance(c.result, StallscopeError)]
    if long:
        parts.append(section("Why not", bullets(long)))
    parts.append(section("What each number means: stallscope compare --explain, or --explain WORD (such as distance)"))
    return render(*parts)


def compare_json(columns: Sequence[Column]) -> list[dict[str, Any]]:
    """The runs in order; a chip without one gives its name and the error."""
    return [
        {"schema": SCHEMA, "chip": c.name, "error": str(c.result)}
        if isinstance(c.result, StallscopeError)
        else run_json(c.result)
        for c in columns
    ]


def _title(columns: Sequence[Column]) -> str:
    runs = _runs(columns)
    return job_text(runs[0], chip=False) if runs else "None of these chips can do it"


def _runs(columns: Sequence[Column]) -> list[Run]:
    return [c.result for c in columns if not isinstance(c.result, StallscopeError)]


def _side_by_side(columns: Sequence[Column]) -> Table:
    rows = [_row(row, columns) for row in (*ROWS, *_cause_rows(columns), *_byte_rows(columns), *LAST_ROWS)]
    if len(_runs(columns)) < len(columns):
        rows.insert(0, ("", *(_reason(c) for c in columns)))
    return grid(("", *(c.name for c in columns)), rows, fold=True)


def _row(row: Row, columns: Sequence[Column]) -> tuple[str, ...]:
    label, cell = row
    return (label, *("-" if isinstance(c.result, StallscopeError) else cell(c.result) for c in columns))


def _reason(column: Column) -> str:
    if not isinstance(column.result, StallscopeError):
        return ""
    first = str(column.result).splitlines()[0] if str(column.result) else "no reason given"
    return first if len(first) <= REASON_LENGTH else first[:REASON_LENGTH].rpartition(" ")[0] + " ..."


def _cause_rows(columns: Sequence[Column]) -> list[Row]:
    """Shares of the critical path, the cause with the largest share on any chip first."""
    largest: dict[str, float] = {}
    for run in _runs(columns):
        for cause, fs in run.critical_path_fs.items():
            if fs:
                largest[cause] = max(largest.get(cause, 0.0), fs / max(run.time_fs, 1))
    return [(f"path: {cause}", _share_of(cause)) for cause in sorted(largest, key=lambda c: (-largest[c], c))]


def _share_of(cause: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        if not run.critical_path_fs.get(cause):
            return "-"
        shares = units.share_column(list(run.critical_path_fs.values()))
        return shares[list(run.critical_path_fs).index(cause)]

    return cell


def _byte_rows(columns: Sequence[Column]) -> list[Row]:
    """Bytes that a step moves, per tier and direction, in the tiers' own order."""
    seen = {
        (tier, way): None
        for run in _runs(columns)
        for tier, ways in run.bytes.items()
        for way in ("read", "write")
        if any(ways.get(way, {}).values())
    }
    return [(f"bytes: {tier} {way}", _bytes_of(tier, way)) for tier, way in seen]


def _bytes_of(tier: str, way: str) -> Callable[[Run], str]:
    def cell(run: Run) -> str:
        total = sum(run.bytes.get(tier, {}).get(way, {}).values())
        return units.bytes_text(total) if total else "-"

    return cell
