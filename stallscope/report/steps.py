"""Several steps one after the other: time of each and in all, as text and as JSON; then the last one in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import units
from .json import run_json
from .layout import grid, pairs, render, section
from .tables import stall_table, work_text

if TYPE_CHECKING:
    from ..sim.run import Run

SCHEMA = "stallscope-steps/1"
SHOWN = 12
"""Steps at each end that a table shows."""


def steps_table(runs: list[Run]) -> str:
    """Time and bytes read of each step and in all, then the report of the last step."""
    rows = [
        (f"{i + 1:,}", work_text(run.program.info), units.time_text(run.time_fs), units.bytes_text(_read(run)))
        for i, run in enumerate(runs)
    ]
    total = ("all", "", units.time_text(sum(run.time_fs for run in runs)), units.bytes_text(sum(map(_read, runs))))
    shown = rows if len(rows) <= 2 * SHOWN else [*rows[:SHOWN], ("...", "", "", ""), *rows[-SHOWN:]]
    answer = [("time", units.time_text(sum(run.time_fs for run in runs))), ("steps", f"{len(runs):,}")]
    info = runs[-1].program.info
    head = section(f"{info.model} on {info.chip}: {info.phase} in {len(runs):,} steps", "", pairs(answer))
    table = section("Steps", grid(("step", "works on", "time", "read"), shown, total, words=(0, 1)))
    return render(head, table) + "\nThe last step\n\n" + stall_table(runs[-1])


def _read(run: Run) -> int:
    return sum(n for ways in run.bytes.values() for n in ways["read"].values())


def steps_json(runs: list[Run]) -> dict[str, Any]:
    """The time in all, and every step as `run_json` has it."""
    return {"schema": SCHEMA, "time_fs": sum(run.time_fs for run in runs), "steps": [run_json(run) for run in runs]}
