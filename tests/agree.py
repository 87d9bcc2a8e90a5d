"""One run of a program by the kernel and one by the oracle, brought to the same form and compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from naive import NaiveConflict, NaiveDeadlock, NaiveRun, naive_run

from stallscope.compiler.program import TileProgram
from stallscope.errors import StallscopeError

Outcome = dict[str, Any] | str
# How the messages of the two refusals begin.
REFUSALS = {"deadlock": "deadlock", "static schedule": "conflict"}


def oracle(program: TileProgram) -> Outcome:
    """The oracle's numbers, or "deadlock" or "conflict"."""
    try:
        run = naive_run(program)
    except NaiveDeadlock:
        return "deadlock"
    except NaiveConflict:
        return "conflict"
    return {**_totals_of_naive(run), "start": run.start, "release": run.release, "done": run.done}


def kernel(program: TileProgram, skip: bool = False) -> Outcome:
    """The kernel's numbers (with `skip` only the totals), or "deadlock" or "conflict"."""
    from stallscope.sim.run import simulate_detailed

    try:
        run = simulate_detailed(program, skip=skip)
    except StallscopeError as error:
        found = [what for start, what in REFUSALS.items() if str(error).startswith(start)]
        if not found:
            raise
        return found[0]
    totals = {
        "makespan": int(run.time_fs),
        "path": _clean(run.critical_path_fs),
        "ops": _clean(run.path_by_op),
        "busy": [int(fs) for fs in run.engine_busy_fs],
        "stalls": [_clean(stalls) for stalls in run.engine_stalls_fs],
        "bytes": _clean(
            {(_name(program.tiers, t), _name(program.kinds, k), way): n for (t, k, way), n in run.bytes.items()}
        ),
        "lanes": _clean({(_number(program.stations.name, s), int(n)): fs for (s, n), fs in run.lane_busy_fs.items()}),
    }
    if skip:
        return totals
    return {**totals, **{what: _by_key(getattr(run, what)) for what in ("start", "release", "done")}}


def agree(program: TileProgram) -> Outcome:
    """Asserts that the kernel, with and without skipping, does as the oracle does; returns what that is."""
    expected = oracle(program)
    assert kernel(program) == expected
    if isinstance(expected, str):
        assert kernel(program, skip=True) == expected
    else:
        totals = {name: value for name, value in expected.items() if name not in ("start", "release", "done")}
        assert kernel(program, skip=True) == totals
    return expected


def _totals_of_naive(run: NaiveRun) -> dict[str, Any]:
    return {
        "makespan": run.makespan_fs,
        "path": _clean(run.critical_path),
        "ops": _clean(run.path_by_op),
        "busy": run.busy_fs,
        "stalls": [_clean(stalls) for stalls in run.stalls],
        "bytes": _clean(run.bytes),
        "lanes": _clean(run.lane_busy_fs),
    }


def _clean(counts: Mapping[Any, Any]) -> dict[Any, int]:
    """Without the entries that are 0."""
    return {key: int(n) for key, n in counts.items() if n}


def _name(names: tuple[str, ...], key: Any) -> str:
    return key if isinstance(key, str) else names[int(key)]


def _number(names: tuple[str, ...], key: Any) -> int:
    return names.index(key) if isinstance(key, str) else int(key)


def _by_key(blocks: Any) -> dict[tuple[int, int], int]:
    return {(block, i): int(fs) for block, column in enumerate(blocks) for i, fs in enumerate(column)}
