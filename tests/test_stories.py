"""Programs of a few instructions, each of which shows one cause, with every number worked out by hand.

Unless a story says otherwise a lane takes 2 fs per byte (64 bytes: 128 fs) and the memory behind it 500 fs, and a
chunk has 64 bytes.
"""

from __future__ import annotations

from typing import Any

import agree
import pytest
from drafts import EngineRow, RouteRow, StationRow, build, hold, load, with_column
from naive import NaiveConflict, NaiveDeadlock, naive_run

from stallscope.compiler.program import Dep, Segment, TileProgram
from stallscope.errors import StallscopeError
from stallscope.sim.run import simulate


@pytest.fixture(params=["naive", "kernel"])
def run(request: pytest.FixtureRequest) -> Any:
    """The machine that a story is told of: both must tell it alike."""
    return {"naive": agree.oracle, "kernel": agree.kernel}[request.param]


LOADER = EngineRow("load")
MATRIX = EngineRow("matrix")


def test_lone_access_shows_the_latency(run):
    story = run(build([LOADER, MATRIX], [[load(0, 64), hold(1, 100, op=1).after(0)]]))
    assert story["start"] == {(0, 0): 0, (0, 1): 628}
    assert story["done"] == {(0, 0): 628, (0, 1): 728}
    assert story["path"] == {"bandwidth:hbm": 128, "latency:hbm": 500, "matrix": 100}
    assert story["ops"] == {0: 628, 1: 100}
    assert story["busy"] == [0, 100]
    assert story["stalls"] == [{"idle": 728}, {"bandwidth:hbm": 128, "latency:hbm": 500}]
    assert story["bytes"] == {("hbm", "weight", "read"): 64}
    assert story["lanes"] == {(0, 0): 128}


def test_two_chunks_queue_for_one_lane(run):
    story = run(build([LOADER], [[load(0, 128)]]))
    assert story["makespan"] == 756
    assert story["path"] == {"bandwidth:hbm": 256, "latency:hbm": 500}


def test_two_lanes_serve_two_chunks_at_once(run):
    story = run(build([LOADER], [[load(0, 128)]], stations=[StationRow(lanes=2)]))
    assert story["makespan"] == 628
    assert story["lanes"] == {(0, 0): 128, (0, 1): 128}


def test_an_unlucky_address_keeps_to_one_lane(run):
    story = run(build([LOADER], [[load(0, 128)]], stations=[StationRow(lanes=2, interleave=128)]))
    assert story["makespan"] == 756
    assert story["lanes"] == {(0, 0): 256}


def test_steps_move_the_address_from_block_to_block(run):
    program = build([LOADER], [[load(0, 64, step=64)]], [Segment(body=0, repeat=3)], stations=[StationRow(lanes=4)])
    assert run(program)["lanes"] == {(0, 0): 128, (0, 1): 128, (0, 2): 128}


def test_the_last_chunk_may_be_small_and_rates_round_up(run):
    story = run(build([LOADER], [[load(0, 65)]], stations=[StationRow(lanes=2, rate=(2, 3))]))
    assert story["lanes"] == {(0, 0): 43, (0, 1): 1}
    assert story["makespan"] == 543


def test_a_small_window_shows_the_latency_twice(run):
    story = run(build([EngineRow(window=64)], [[load(0, 128)]]))
    assert story["release"] == {(0, 0): 628}
    assert story["makespan"] == 1256
    assert story["path"] == {"bandwidth:hbm": 256, "latency:hbm": 1000}
    assert story["stalls"] == [{"bandwidth:hbm": 128, "latency:hbm": 500, "idle": 628}]


def test_a_window_gates_to_the_byte(run):
    enough, short = (build([EngineRow(window=w)], [[load(0, 128)]]) for w in (128, 127))
    assert run(enough)["makespan"] == 756
    assert run(short)["makespan"] == 1256


def test_a_slow_port_spaces_the_chunks(run):
    story = run(build([EngineRow(port=(4, 1))], [[load(0, 128)]]))
    assert story["release"] == {(0, 0): 512}
    assert story["makespan"] == 884
    assert story["path"] == {"bandwidth:l2": 256, "bandwidth:hbm": 128, "latency:hbm": 500}
    assert story["busy"] == [512]
    assert story["stalls"] == [{"idle": 372}]


def test_two_stations_in_a_row(run):
    stations = [StationRow(cause="bandwidth:l2", rate=(1, 1)), StationRow()]
    routes = [RouteRow(64, ((0, 20, "latency:l2"), (1, 500, "latency:hbm")))]
    story = run(build([LOADER], [[load(0, 128)]], stations=stations, routes=routes))
    # The second chunk reaches the memory at 148 and queues until 212 behind the first.
    assert story["makespan"] == 64 + 20 + 2 * 128 + 500
    assert story["path"] == {"bandwidth:l2": 64, "latency:l2": 20, "bandwidth:hbm": 256, "latency:hbm": 500}


def test_one_buffer_makes_the_loader_wait(run):
    body = [load(0, 64).after_slot(0), hold(1, 1000, op=1, export=0).after(0)]
    story = run(build([LOADER, MATRIX], [body], [Segment(body=0, repeat=2)]))
    assert story["start"] == {(0, 0): 0, (0, 1): 628, (1, 0): 1628, (1, 1): 2256}
    assert story["makespan"] == 3256
    assert story["path"] == {"bandwidth:hbm": 256, "latency:hbm": 1000, "matrix": 2000}
    assert story["ops"] == {0: 1256, 1: 2000}
    assert story["stalls"] == [
        {"buffer": 1628, "idle": 1628},
        {"bandwidth:hbm": 256, "latency:hbm": 1000},
    ]


def test_launch_barrier_and_the_core_that_waits_for_the_other(run):
    body = [
        hold(0, 50, "launch", latency=20),
        hold(1, 100).after(0),
        hold(2, 300).after(0),
        hold(0, 10, "launch", latency=20, group=1).after(1, 2, dep=Dep.ORDER),
        hold(1, 100, group=1).after(3, dep=Dep.ORDER),
        hold(2, 100, group=1).after(3, dep=Dep.ORDER),
    ]
    story = run(build([EngineRow("launcher"), MATRIX, MATRIX], [body]))
    assert story["start"] == {(0, 0): 0, (0, 1): 70, (0, 2): 70, (0, 3): 370, (0, 4): 400, (0, 5): 400}
    assert story["path"] == {"launch": 100, "matrix": 400}
    assert story["busy"] == [60, 200, 400]
    assert story["stalls"] == [
        {"imbalance": 320, "idle": 120},
        {"launch": 100, "imbalance": 200},
        {"launch": 100},
    ]


def test_a_gap_of_more_than_2_to_the_31_is_shared_with_a_shift(run):
    # V = (2147483709, 500) is shifted by one: t = 1073742104, c = 1073741854, and 2 * c + (1 * c) // t is one short.
    program = build([LOADER, MATRIX], [[load(0, 63), hold(1, 0).after(0)]], stations=[StationRow(rate=(34_087_043, 1))])
    story = run(program)
    assert story["path"] == {"bandwidth:hbm": 2_147_483_709, "latency:hbm": 500}
    assert story["stalls"][1] == {"bandwidth:hbm": 2_147_483_708, "latency:hbm": 501}


def test_the_tail_is_imbalance_then_idle(run):
    story = run(build([MATRIX, MATRIX, EngineRow("vector")], [[hold(0, 100), hold(1, 300), hold(2, 500, "vector")]]))
    assert story["busy"] == [100, 300, 500]
    assert story["stalls"] == [{"imbalance": 200, "idle": 200}, {"idle": 200}, {}]


def test_an_engine_starts_on_its_clock_edge(run):
    story = run(build([LOADER, EngineRow("matrix", period=100)], [[load(0, 64), hold(1, 100).after(0)]]))
    assert story["start"][0, 1] == 700
    assert story["path"] == {"bandwidth:hbm": 128, "latency:hbm": 500, "matrix": 172}
    assert story["stalls"][1] == {"bandwidth:hbm": 128, "latency:hbm": 500, "matrix": 72}


@pytest.mark.parametrize(
    ("arrival", "path"),
    [
        (127, {"bandwidth:hbm": 256, "latency:hbm": 500}),
        (128, {"vector": 128, "bandwidth:hbm": 128, "latency:hbm": 500}),
        (129, {"vector": 129, "bandwidth:hbm": 128, "latency:hbm": 500}),
    ],
)
def test_a_lane_is_free_to_the_tick(run, arrival, path):
    engines = [LOADER, LOADER, EngineRow("vector")]
    story = run(build(engines, [[load(0, 64), hold(2, arrival, "vector"), load(1, 64).after(1)]]))
    assert story["path"] == path


def test_at_the_same_moment_the_lower_engine_is_served_first(run):
    story = run(build([LOADER, LOADER], [[load(1, 64), load(0, 64)]]))
    assert story["done"] == {(0, 0): 756, (0, 1): 628}


def test_a_queue_crosses_groups_by_a_cut(run):
    # The second load takes over the first one's chain at the lane: what the first one's group spent stays with its op.
    story = run(build([LOADER, LOADER], [[load(0, 64), load(1, 64, group=1, op=1)]]))
    assert story["path"] == {"bandwidth:hbm": 256, "latency:hbm": 500}
    assert story["ops"] == {0: 128, 1: 628}


def test_a_store_is_counted_as_written(run):
    assert run(build([LOADER], [[load(0, 96, "l2", "kv", write=1)]]))["bytes"] == {("l2", "kv", "write"): 96}


def test_a_port_that_outlasts_the_run_is_counted_to_its_end(run):
    story = run(build([EngineRow(port=(100, 1))], [[load(0, 64)]]))
    assert story["makespan"] == 628
    assert story["busy"] == [628]
    assert story["stalls"] == [{}]


def static_program(second_start: int = 700, period: int = 100) -> TileProgram:
    body = [load(0, 64, start_fs=0), hold(1, 100, start_fs=second_start).after(0), load(0, 64, start_fs=200)]
    segments = [Segment(body=0, repeat=2, static=True, length_fs=900)]
    return build([LOADER, EngineRow("matrix", period=period)], [body], segments)


def test_a_static_block_runs_as_stated(run):
    story = run(static_program())
    assert story["start"] == {(0, 0): 0, (0, 1): 700, (0, 2): 200, (1, 0): 900, (1, 1): 1600, (1, 2): 1100}
    assert story["makespan"] == 1728
    # Block 1's first load starts 700 after its engine is free (its port's cause), and takes 628: the 728 from the
    # matrix unit's release at 800 to that load's end are shared as 700 : 128 : 500.
    assert story["stalls"][1] == {
        "matrix": 72 + 72,
        "bandwidth:hbm": 128 + 70,
        "latency:hbm": 500 + 274,
        "bandwidth:l2": 384,
        "idle": 28,
    }


@pytest.mark.parametrize(
    ("program", "reason", "words"),
    [
        (static_program(second_start=600), "too early", ["%1 matrix1", "%0 load0", "628"]),
        (static_program(second_start=750), "clock edge", ["%1 matrix1", "clock edge"]),
        (with_column(static_program(), 0, "start_fs", [0, 700, 100]), "is busy", ["%2 load0", "%0 load0", "station0"]),
    ],
    ids=["early", "edge", "lane"],
)
def test_a_broken_schedule_is_refused_by_name(program, reason, words):
    with pytest.raises(NaiveConflict, match=reason):
        naive_run(program)
    with pytest.raises(StallscopeError) as error:
        simulate(program)
    assert [word for word in words if word not in str(error.value)] == []


def test_a_steady_rhythm_is_run_once():
    body = [load(0, 64).after_slot(0), hold(1, 1000, op=1, export=0).after(0)]
    program = build([LOADER, MATRIX], [body], [Segment(body=0, repeat=1000)])
    run = simulate(program)
    assert run.time_fs == 1000 * 1628
    assert run.critical_path_fs == {"bandwidth:hbm": 128_000, "latency:hbm": 500_000, "matrix": 1_000_000}
    assert run.blocks == 1000
    assert run.simulated_blocks < 20


def test_an_engine_that_never_works_waits_for_its_kind_through_skipped_blocks():
    body = [load(0, 64, export=0).after_slot(0, Dep.RAW)]
    story = agree.agree(build([LOADER, LOADER], [body], [Segment(body=0, repeat=40)]))
    assert story["makespan"] == 40 * 628
    assert story["stalls"][1] == {"imbalance": 39 * 628, "idle": 628}


def test_a_cycle_of_waits_is_named(run):
    body = [hold(0, 10).after(3), hold(0, 10), hold(1, 10).after(1), hold(1, 10)]
    program = build([MATRIX, MATRIX], [body])
    assert run(program) == "deadlock"
    with pytest.raises(NaiveDeadlock) as error:
        naive_run(program)
    assert error.value.waiting == [(0, 0), (0, 2)]
    assert error.value.cycle == [(0, 0), (0, 2)]
