"""DRAM lanes: equal to the oracle tick for tick on random streams, and to the reference runs of the golden file."""

from __future__ import annotations

from dataclasses import replace

import naive_dram
import numpy as np
import pytest
from dram_golden import GOLDEN, arrivals, golden_rows, lane, stream
from dram_rules import DramLane, dram_table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stallscope.arch.dram import choose_dram
from stallscope.compiler.dram import Lane, lane_tables
from stallscope.compiler.program import DRAM_PARAMS
from stallscope.errors import StallscopeError
from stallscope.sim.lanes import StreamRun, new_lane, run_stream

CONFIGS = ("hbm3", "hbm3sid2", "hbm3pc2", "hbm2", "ddr4", "ddr5", "lpddr5", "gddr6", "hbm4")
MAPPINGS = ("RoBaBgCo", "RoBaCoBg", "RoBaCoBgC1", "RoCoBaBg", "MOP4CLXOR")
Ints = NDArray[np.int64]
Stream = tuple[DramLane, list[int], list[int], list[int]]


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    """A lane with few rows and frequent refresh, and bursts in sequences, strides and hot spots with gaps between."""
    x = lane(draw(st.sampled_from(CONFIGS)), draw(st.sampled_from(MAPPINGS)))
    columns = draw(st.sampled_from((4, 8, x.columns)))
    t = dict(x.timings)
    t["REFI"] = max(t.get("RFC", 0), t.get("RFCab", 0)) + draw(st.integers(60, 600))
    if "CCDL" in t and draw(st.integers(0, 3)) == 0:
        t["CCDL"] = t["CCDS"]
    if "RFCpb" in t and x.standard != "GDDR6":
        t["REFIpb"] = draw(st.integers(200, 600))
    refresh = draw(st.sampled_from(("none", "all-bank", "per-bank") if "REFIpb" in t else ("none", "all-bank")))
    x = replace(x, columns=columns, rows=8, timings=t, refresh=refresh, queue=draw(st.sampled_from((4, 10, 32))))
    size = x.ranks * x.sids * x.groups * x.banks * x.rows * x.columns
    bursts: list[int] = []
    writes: list[int] = []
    available: list[int] = []
    now = 0
    for _ in range(draw(st.integers(1, 12))):
        n, step = (
            draw(st.sampled_from((1, 3, 20, 60, 300))),
            draw(st.sampled_from((0, 1, 1, 1, 2, 4, columns, 4 * columns, size // 2 + 1))),
        )
        first, share = draw(st.integers(0, size - 1)), draw(st.sampled_from((0, 0, 1, 2)))
        gap = draw(st.sampled_from((0, 0, 0, 1, 7, 300)))
        now += draw(st.sampled_from((0, 0, 1, 50, 2000)))
        for i in range(n):
            bursts.append((first + i * step) % size)
            writes.append(int(share > 0 and i % (share * 2) < share))
            available.append(now)
            now += gap
    return x, bursts, writes, available


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams())
def test_a_lane_equals_the_oracle_tick_for_tick(case: Stream) -> None:
    lane_equals_oracle(case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(streams())
def test_a_lane_equals_the_oracle_on_many_streams(case: Stream) -> None:
    lane_equals_oracle(case)


@st.composite
def chunks(draw: st.DrawFn) -> Stream:
    """What whole-model runs send: chunks of consecutive bursts, from several tensors, some waiting, some with gaps."""
    config = draw(st.sampled_from(("hbm3", "hbm3sid2", "hbm3pc2", "hbm2", "ddr4", "lpddr5", "hbm4")))
    mapping = draw(st.sampled_from(("RoBaCoBg", "RoBaCoBg", "RoBaCoBgC1", "RoBaBgCo", "RoCoBaBg", "RoBaCoBgC2")))
    x = lane(config, mapping)
    t = dict(x.timings)
    t["REFI"] = max(t.get("RFC", 0), t.get("RFCab", 0)) + draw(st.integers(60, 4000))
    x = replace(x, columns=draw(st.sampled_from((8, 32))), rows=16, timings=t, queue=draw(st.sampled_from((8, 16, 32))))
    size = x.ranks * x.sids * x.groups * x.banks * x.rows * x.columns
    chunk = draw(st.sampled_from((16, 64, 128, 100)))
    aligned, writes_too = draw(st.booleans()), draw(st.booleans())
    gap = draw(st.sampled_from((0, 0, 0, chunk, 4 * chunk)))
    at = [draw(st.integers(0, size // chunk - 1)) * chunk for _ in range(draw(st.integers(1, 4)))]
    bursts: list[int] = []
    writes: list[int] = []
    available: list[int] = []
    now = 0
    for _ in range(draw(st.integers(2, 16))):
        k = draw(st.integers(0, len(at) - 1))
        n = chunk if aligned else draw(st.integers(1, chunk))
        bursts += [(at[k] + i) % size for i in range(n)]
        writes += [int(writes_too and k == 0)] * n
        available += [now] * n
        at[k] += n
        now += draw(st.integers(0, 2 * gap))
    return x, bursts, writes, available


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(chunks())
def test_a_lane_equals_the_oracle_on_chunks(case: Stream) -> None:
    lane_equals_oracle(case)


@pytest.mark.slow
@settings(max_examples=5000, deadline=None, suppress_health_check=list(HealthCheck))
@given(chunks())
def test_a_lane_equals_the_oracle_on_many_chunks(case: Stream) -> None:
    lane_equals_oracle(case)


def lane_equals_oracle(case: Stream) -> None:
    """Every burst is accepted and done at the same tick, and begins with the same command."""
    check(*case)


def check(x: DramLane, bursts: list[int], writes: list[int], available: list[int]) -> None:
    table = dram_table([x])
    b, w, a = (np.array(v, np.int64) for v in (bursts, writes, available))
    c = naive_dram.new_channel(table)
    accepted, done = np.zeros(len(b), np.int64), np.zeros(len(b), np.int64)
    naive_dram.run(c, b, w, a, accepted, done)
    for streaks in (True, False):
        mine = run_stream(table, b, w, a, streaks=streaks)
        np.testing.assert_array_equal(mine.accepted, accepted)
        np.testing.assert_array_equal(mine.done, done)
        assert counts(mine) == naive_counts(c)
        assert int(mine.columns[:, 1].max()) == int(c.bus[:, naive_dram.LAST].max())
        between = (mine.columns[:, 1] - mine.columns[:, 0])[mine.columns[:, 0] >= 0] + table.params[0, BURST]
        assert mine.data + mine.idle + sum(mine.lost.values()) == between.sum()


BURST = DRAM_PARAMS.index("burst_ticks")


def counts(run: StreamRun) -> dict[str, int]:
    """All that a lane counts."""
    rows = {"hits": run.hits, "misses": run.misses, "conflicts": run.conflicts}
    return {**rows, "data": run.data, "idle": run.idle, **run.lost}


def naive_counts(c: naive_dram.Channel) -> dict[str, int]:
    """The same of the oracle."""
    keys = {
        "hits": naive_dram.HITS,
        "misses": naive_dram.MISSES,
        "conflicts": naive_dram.CONFLICTS,
        "data": naive_dram.DATA,
    }
    causes = {
        "idle": naive_dram.IDLE,
        "refresh": naive_dram.BY_REFRESH,
        "row miss": naive_dram.BY_MISS,
        "bank conflict": naive_dram.BY_CONFLICT,
        "turnaround": naive_dram.BY_TURN,
        "bank group": naive_dram.BY_GROUP,
        "other": naive_dram.BY_OTHER,
    }
    return {name: int(c.g[k]) for name, k in keys.items()} | {name: int(c.lost[k]) for name, k in causes.items()}


@pytest.mark.parametrize("config", CONFIGS)
def test_streaks_are_served_in_one_step_to_the_same_ticks(config: str) -> None:
    """A long sequence, reads then writes, with refresh: as burst by burst, and the oracle."""
    n = 3000
    x = lane(config, "RoBaCoBg")
    table = dram_table([x])
    b = np.arange(2 * n, dtype=np.int64) % n
    w, a = np.repeat(np.array([0, 1], np.int64), n), np.zeros(2 * n, np.int64)
    c = naive_dram.new_channel(table)
    accepted, done = np.zeros(2 * n, np.int64), np.zeros(2 * n, np.int64)
    naive_dram.run(c, b, w, a, accepted, done)
    run = run_stream(table, b, w, a)
    np.testing.assert_array_equal(run.done, done)
    np.testing.assert_array_equal(run.accepted, accepted)
    assert counts(run) == naive_counts(c)
    if config in ("hbm3", "hbm2", "ddr4", "gddr6"):
        assert run.streaks > 3
    assert run_stream(table, b, w, a, record=False).last == run.last


@pytest.mark.parametrize("mapping", ["RoBaCoBgC1", "RoBaCoBgC2"])
def test_streaks_where_a_bank_group_costs_nothing(mapping: str) -> None:
    """CCD_L = CCD_S (as DDR5-3200): bursts go in their own order, two or more to a bank, from and to any of them."""
    x = lane("ddr5", mapping)
    x = replace(x, timings={**x.timings, "CCDL": x.timings["CCDS"]})
    runs = [(first, n) for first in (0, 1, 3, 6, 16) for n in (1, 2, 5, 7, 40, 131)]
    bursts = [first + 64 * k + i for k, (first, n) in enumerate(runs) for i in range(n)]
    for gap in (0, 7, 9):
        check(x, bursts, [0] * len(bursts), [gap * i for i in range(len(bursts))])


def test_streaks_that_another_stack_id_may_break() -> None:
    """CCD_R < CCD_S: a hit of another stack id comes between two of this one, whichever is older."""
    preset = choose_dram("hbm4_8000_8hi").preset
    preset = preset.model_copy(update={"timing_ck": {**preset.timing_ck, "nCCDL": 3, "nCCDS": 3, "nCCDR": 2}})
    table = lane_tables([Lane(preset, "RoBaBgCo", "none")])
    b = np.array([(0, 32)[i // 16 % 2] + i % 16 for i in range(1600)])
    w, a = np.zeros(1600, np.int64), np.arange(1600) // 32 * 300
    np.testing.assert_array_equal(run_stream(table, b, w, a).done, run_stream(table, b, w, a, streaks=False).done)


SHIPPED = {name: name for name in CONFIGS} | {"hbm4": "hbm4_8000_8hi"}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("refresh", ["none", "all-bank", "per-bank"])
@pytest.mark.parametrize("config", SHIPPED)
def test_shipped_presets_keep_the_rules_as_written_down_here(config: str, refresh: str, mapping: str) -> None:
    """Two tables made apart from each other give every burst the same ticks."""
    if refresh == "per-bank" and config in ("ddr4", "ddr5", "gddr6"):
        return
    x = replace(lane(config, mapping), refresh=refresh)
    shipped = lane_tables([Lane(choose_dram(SHIPPED[config]).preset, mapping, refresh)])  # type: ignore[arg-type]
    rng = np.random.default_rng(7)
    size = x.ranks * x.sids * x.groups * x.banks * 16 * x.columns
    b = np.where(rng.random(4000) < 0.5, rng.integers(0, size, 4000), np.arange(4000))
    w, a = (rng.random(4000) < 0.3).astype(np.int64), np.sort(rng.integers(0, 20_000, 4000))
    mine, theirs = run_stream(dram_table([x]), b, w, a), run_stream(shipped, b, w, a)
    np.testing.assert_array_equal(mine.done, theirs.done)


TOLERANCE = {"burst": 0.0, "seq": 0.005, "streams": 0.03, "stride": 0.02, "rand": 0.02, "rwseq2": 0.05}


@pytest.mark.skipif(not (GOLDEN / "dram.csv").exists(), reason="the golden file is not here")
def test_golden_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Cycles, latencies and row hits of every reference run of the default controller."""
    worst: dict[str, tuple[float, str]] = {}
    for row in golden_rows():
        n = int(row["requests"])
        x = lane(row["config"], row["address_mapping"])
        bursts, writes = stream(x, row["pattern"], row["params"], n)
        run = run_stream(dram_table([x]), bursts, writes, arrivals(row, x, n))
        off = abs(run.last - run.accepted[0] - int(row["cycles"])) / int(row["cycles"])
        latency = np.sort((run.done - run.accepted)[writes == 0])
        words = " ".join(row[k] for k in ("config", "address_mapping", "pattern", "params", "requests"))
        assert off <= TOLERANCE[row["pattern"]], words
        assert abs(latency.mean() - float(row["mean_latency_cycles"])) <= 0.02 * latency.mean(), words
        assert latency[-(-99 * len(latency) // 100) - 1] == int(row["p99_latency_cycles"]), words
        assert run.hits == int(row["row_hits"]), words
        kind = row["pattern"]
        worst[kind] = max(worst.get(kind, (-1.0, "")), (off, words))
    with capsys.disabled():
        for kind, (off, words) in sorted(worst.items()):
            print(f"\n{kind}: worst {off:.4%} ({words})", end="")


@pytest.mark.parametrize(
    ("config", "mapping", "closed", "conflict"),
    [("hbm3", "RoBaCoBg", 109, 50), ("hbm2", "RoBaCoBg", 32, 13), ("ddr4", "RoBaCoBg", 49, 22)],
)
def test_unloaded_latency_is_the_sum_of_its_times(config: str, mapping: str, closed: int, conflict: int) -> None:
    """Closed: a tick of acceptance, RCD, CL, BL, what ACT is longer than RD on its bus, and up to the edge (HBM3).

    A conflict adds RP, less what ACT is longer than PRE.
    """
    x = lane(config + "_noref", mapping)
    far = x.columns * x.groups * x.banks  # the same bank's next row
    gap = 10_000
    run = run_stream(dram_table([x]), *(np.array(v, np.int64) for v in ([0, 0, far], [0, 0, 0], [0, gap, 2 * gap])))
    latency = run.done - run.accepted
    hit = run_stream(dram_table([x]), *(np.array(v, np.int64) for v in ([0], [0], [0]))).last
    assert latency[0] == hit == closed
    t = x.timings
    ticks = 2 if config == "hbm3" else 1
    assert latency[1] == ticks * (t["CL"] + t["BL"]) + 1
    assert latency[2] == closed + conflict


def test_a_lane_that_the_kernel_cannot_hold_is_refused() -> None:
    """Too long a time, too many banks."""
    table = dram_table([lane("hbm3", "RoBaCoBg")])
    rules = table.rules.copy()
    rules[0, 3] = 2**21
    with pytest.raises(StallscopeError, match="ticks"):
        new_lane(replace(table, rules=rules), 0)
    params = table.params.copy()
    params[0, DRAM_PARAMS.index("banks")] = 128
    with pytest.raises(StallscopeError, match="banks"):
        new_lane(replace(table, params=params), 0)
