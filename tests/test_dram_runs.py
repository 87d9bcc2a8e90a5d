"""Runs of bursts that are sent to a lane: when they are through, what it had counted by then, whoever looks when."""

from __future__ import annotations

import numpy as np
from dram_rules import dram_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_dram import Ints, Stream, streams

from stallscope.compiler.program import Drams
from stallscope.sim import dram
from stallscope.sim.lanes import as_runs, new_lane, offer, run_stream

COUNTERS = slice(dram.D_DATA, dram.LOST_OTHER + 1)
SNAPSHOT = slice(dram.R_DATA, dram.R_OTHER + 1)
Case = tuple[Drams, Ints, Ints, Ints]


def case_of(stream: Stream) -> Case:
    lane, *rest = stream
    b, w, a = (np.array(v, np.int64) for v in rest)
    return dram_table([lane]), b, w, a


def lane_of(table: Drams, streaks: bool = True) -> Ints:
    lane = new_lane(table, 0)
    if not streaks:
        lane[dram.S_PACE] = lane[dram.S_PACE_W] = 0
    return lane


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams(), st.integers(1, 500), st.booleans(), st.integers(0, 2**32 - 1))
def test_it_does_not_matter_when_a_lane_is_looked_at(stream: Stream, longest: int, streaks: bool, seed: int) -> None:
    """Sent when they come, with the lane run up to any ticks between, or all at once: the same ticks and counters."""
    table, b, w, a = case_of(stream)
    rng = np.random.default_rng(seed)
    whole, sent = lane_of(table), as_runs(b, w, a)
    whole_done = np.zeros((len(b), 2), np.int64)
    offer(whole, sent)
    dram.drain(whole, sent, whole_done)

    lane, done, runs, t = lane_of(table, streaks), np.zeros_like(whole_done), np.zeros_like(sent), 0
    for k, (first, count, write, available) in enumerate(sent[:, :4].tolist()):
        while (t := t + int(rng.integers(0, longest + 1))) < available:
            dram.serve(lane, runs, done, t)
        t = available
        dram.send(lane, runs, t, k, first, count, write)
    while dram.busy(lane):
        t += int(rng.integers(0, longest + 1))
        dram.serve(lane, runs, done, t)
    np.testing.assert_array_equal(done, whole_done)
    np.testing.assert_array_equal(lane[COUNTERS], whole[COUNTERS])
    assert lane[dram.D_IDLE] == whole[dram.D_IDLE]
    np.testing.assert_array_equal(runs, sent)
    assert not runs[:, dram.R_LEFT].any()
    ends = np.cumsum(sent[:, dram.R_COUNT])
    expected = [done[e - n : e, 1].max() for e, n in zip(ends, sent[:, dram.R_COUNT], strict=True)]
    np.testing.assert_array_equal(runs[:, dram.R_DONE], expected)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams())
def test_a_run_that_is_through_holds_what_the_lane_had_counted(stream: Stream) -> None:
    """Looked at after every tick: a run of reads is through with its last RD, and has the counters of that tick."""
    table, b, _, a = case_of(stream)
    sent = as_runs(b, np.zeros_like(b), a)
    lane, runs, done = lane_of(table), sent.copy(), np.zeros((0, 2), np.int64)
    offer(lane, runs)
    order, t = [], 0
    while dram.busy(lane):
        dram.serve(lane, runs, done, t)
        through = through_now(lane, runs)
        assert len(through) <= 1
        for row in through:
            assert runs[row, dram.R_LEFT] == 0
            assert runs[row, dram.R_DONE] == t + lane[dram.P_READ]
            np.testing.assert_array_equal(runs[row, SNAPSHOT], lane[COUNTERS])
        order += through
        t += 1
    assert sorted(order) == list(range(len(runs)))


def through_now(lane: Ints, runs: Ints) -> list[int]:
    """Rows of the runs that are through and were not noted yet; notes them."""
    rows, row = [], int(lane[dram.D_THROUGH])
    while row >= 0:
        rows.append(row)
        row = int(runs[row, dram.R_NEXT])
    lane[dram.D_THROUGH] = -1
    return rows


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams(), st.integers(1, 5), st.integers(1, 200))
def test_rows_are_used_again(stream: Stream, rows: int, piece: int) -> None:
    """With few rows, a run is sent when one is free: as with one row each, at the same ticks."""
    table, b, w, a = case_of(stream)
    sent = as_runs(b, w, a)
    lane, runs, done = lane_of(table), np.zeros((rows, dram.RUN_COLUMNS), np.int64), np.zeros((len(b), 2), np.int64)
    free, t, came, through = list(range(rows)), 0, np.zeros(len(sent), np.int64), 0
    for k, (first, count, write, available) in enumerate(sent[:, :4].tolist()):
        t = max(t, available)
        dram.serve(lane, runs, done, t)
        while True:
            ended = through_now(lane, runs)
            through += len(ended)
            free += ended
            if free:
                break
            t += piece
            dram.serve(lane, runs, done, t)
        came[k] = t
        dram.send(lane, runs, t, free.pop(0), first, count, write)
    dram.drain(lane, runs, done)
    assert through + len(through_now(lane, runs)) == len(sent)
    again = run_stream(table, b, w, np.repeat(came, sent[:, dram.R_COUNT]))
    np.testing.assert_array_equal(done[:, 0], again.accepted)
    np.testing.assert_array_equal(done[:, 1], again.done)
