"""The kernel and the oracle agree, tick for tick, on random programs: times, stalls, path, bytes and lanes.

The examples are the same at every run. `pytest -m slow` tries ten times as many, drawn anew.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import strategies
from agree import agree, kernel
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from naive import time_for

from stallscope.compiler.program import Form, TileProgram, ints

TESTS = Path(__file__).parent
Check = Callable[[Any], None]


def fixed(examples: int) -> Callable[[Check], Check]:
    """The same examples at every run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


def fresh(examples: int) -> Callable[[Check], Check]:
    """New examples at every run."""
    return settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))


def bounds_hold(program: TileProgram, outcome: dict[str, Any]) -> None:
    """No run is shorter than the work of any engine, or than what any lane served."""
    work: Counter[int] = Counter()
    served: Counter[tuple[int, int]] = Counter()
    e, s, r = program.engines, program.stations, program.routes
    for segment in program.segments:
        body = program.bodies[segment.body]
        for i in range(len(body)):
            if body.form[i] == Form.HOLD:
                work[int(body.engine[i])] += segment.repeat * int(body.hold_fs[i])
                continue
            route = int(body.route[i])
            chunk, nbytes = int(r.chunk_bytes[route]), int(body.nbytes[i])
            sizes = [min(chunk, nbytes - at) for at in range(0, nbytes, chunk)]
            stations = [int(hop) for hop in r.station[r.ptr[route] : r.ptr[route + 1]]]
            for iteration in range(segment.repeat):
                address = int(body.address[i]) + iteration * int(body.step[i])
                for n, size in enumerate(sizes):
                    for station in stations:
                        if s.dram[station] >= 0:
                            continue
                        lane = (address + n * chunk) // int(s.interleave[station]) % int(s.lanes[station])
                        served[station, lane] += time_for(size, int(s.num[station]), int(s.den[station]))
            # The last chunk's port time may end after the run.
            port = [time_for(size, int(e.port_num[body.engine[i]]), int(e.port_den[body.engine[i]])) for size in sizes]
            work[int(body.engine[i])] += segment.repeat * sum(port)
    slack = Counter({k: int(e.port_num[k]) * int(r.chunk_bytes.max()) for k in range(len(e.name))})
    fixed_lanes = {lane: fs for lane, fs in outcome["lanes"].items() if s.dram[lane[0]] < 0}
    assert fixed_lanes == {lane: fs for lane, fs in served.items() if fs}
    assert all(fs <= outcome["makespan"] for fs in served.values())
    assert all(fs - slack[k] <= outcome["makespan"] for k, fs in work.items())


def laws_hold(program: TileProgram, outcome: dict[str, Any]) -> None:
    makespan = outcome["makespan"]
    for busy, stalls in zip(outcome["busy"], outcome["stalls"], strict=True):
        assert busy >= 0
        assert all(fs > 0 for fs in stalls.values())
        assert busy + sum(stalls.values()) == makespan
    assert all(fs > 0 for fs in outcome["path"].values())
    assert sum(outcome["path"].values()) == makespan
    assert sum(outcome["ops"].values()) == makespan
    assert max(outcome["done"].values()) == makespan
    bounds_hold(program, outcome)


def check(program: TileProgram) -> None:
    """The kernel does as the oracle does, and what it does obeys the laws."""
    outcome = agree(program)
    if not isinstance(outcome, str):
        laws_hold(program, outcome)


@fixed(1200)
@given(strategies.programs())
def test_random_programs(program):
    check(program)


@fixed(200)
@given(strategies.dram_programs())
def test_programs_on_dram_lanes(program):
    check(program)


@fixed(500)
@given(strategies.repetitive_programs())
def test_long_segments_skipped_or_not(program):
    check(program)


@fixed(250)
@given(strategies.static_programs())
def test_static_programs(program):
    check(program)


@fixed(100)
@given(strategies.conflicting_programs())
def test_planted_conflicts(program):
    assert agree(program) == "conflict"


@fixed(100)
@given(strategies.deadlocked_programs())
def test_planted_deadlocks(program):
    assert agree(program) == "deadlock"


@pytest.mark.slow
@fresh(20_000)
@given(
    st.one_of(
        strategies.programs(),
        strategies.dram_programs(),
        strategies.repetitive_programs(),
        strategies.static_programs(),
    )
)
def test_many_random_programs(program):
    check(program)


@fixed(50)
@given(strategies.programs())
def test_the_same_program_gives_the_same_run(program):
    assert kernel(program) == kernel(program)
    assert program.text() == dataclasses.replace(program).text()


@fixed(100)
@given(strategies.programs(), st.integers(2, 4))
def test_a_better_machine_keeps_to_its_bound(program, factor):
    wide = dataclasses.replace(
        program, engines=dataclasses.replace(program.engines, window_bytes=ints(program.engines.window_bytes * factor))
    )
    fast = dataclasses.replace(
        program, stations=dataclasses.replace(program.stations, den=ints(program.stations.den * factor))
    )
    for better in (wide, fast):
        outcome = kernel(better)
        assert not isinstance(outcome, str)
        laws_hold(better, outcome)


@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_other_modes_of_numba(mode, tmp_path):
    run_in_mode(mode, 15, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["NUMBA_DISABLE_JIT", "NUMBA_BOUNDSCHECK"])
def test_other_modes_of_numba_at_length(mode, tmp_path):
    run_in_mode(mode, 1000, tmp_path)


def run_in_mode(mode: str, examples: int, cache: Path) -> None:
    """Checks `examples` programs of each sort in a new process with a mode of Numba switched on."""
    environment = {**os.environ, mode: "1", "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, str(TESTS / "test_kernel_equals_naive.py"), str(examples)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def main(examples: int) -> None:
    """Random programs of each sort, in the mode that this process was started in."""
    fixed(max(examples // 5, 3))(given(strategies.dram_programs())(check))()  # each takes the oracle long
    sorts = (
        strategies.programs(),
        strategies.repetitive_programs(),
        strategies.static_programs(),
        strategies.conflicting_programs(),
        strategies.deadlocked_programs(),
    )
    for sort in sorts:
        fixed(examples)(given(sort)(check))()


if __name__ == "__main__":
    main(int(sys.argv[1]))
