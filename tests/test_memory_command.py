"""The `memory` command: reference runs, sums that must be exact, its output, and bad input."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_cli import invoke

from stallscope.memory import MemoryRun, Request, run_memory
from stallscope.report.memory import MEANING, memory_json, memory_table
from stallscope.sim.lanes import CAUSES

GOLDEN = Path(__file__).parents[1] / "../shared/golden/dram.csv"
KEYS = ("cycles", "tick_ns", "efficiency", "mean_latency_cycles", "p50_latency_cycles", "p99_latency_cycles")
KEYS += ("row_hits", "row_misses", "row_conflicts", "lost")


def run(dram: str, pattern: str = "seq", params: str = "", requests: int = 5000, **more: Any) -> MemoryRun:
    words: dict[str, Any] = {
        "mapping": "RoBaCoBg",
        "load": "sat",
        "arrivals": "det",
        "refresh": None,
        "queue": None,
    }
    return run_memory(Request(dram=dram, pattern=pattern, params=params, requests=requests, **{**words, **more}))


@pytest.mark.parametrize(
    ("config", "pattern", "params"),
    [
        ("hbm3", "seq", ""),
        ("hbm3", "streams", "S=4;C=256;off=same"),
        ("hbm2", "rand", "g=64"),
        ("ddr4", "rwseq2", "pr=50"),
        ("hbm3_noref", "burst", ""),
    ],
)
def test_the_words_of_the_reference_file(config: str, pattern: str, params: str) -> None:
    if not GOLDEN.exists():
        pytest.skip("the reference file is not here")
    with GOLDEN.open() as file:
        row = next(
            row
            for row in csv.DictReader(file)
            if row["simulator"].startswith("ramulator")
            and (row["config"], row["pattern"], row["params"]) == (config, pattern, params)
        )
    words = ["--dram", config, "--mapping", row["address_mapping"], "--pattern", pattern, "--params", params]
    result = invoke("memory", *words, "--requests", row["requests"], "--json", "-")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["cycles"] == pytest.approx(int(row["cycles"]), rel=0.005)
    assert found["efficiency"] == pytest.approx(float(row["efficiency"]), abs=0.002)
    assert found["tick_ns"] == float(row["tick_ns"])
    assert found["mean_latency_cycles"] == pytest.approx(float(row["mean_latency_cycles"]), rel=0.01)
    for key in ("p50_latency_cycles", "p99_latency_cycles", "row_hits", "first_data_cycle"):
        assert found[key] == pytest.approx(int(row[key]), rel=0.02), key


@pytest.mark.parametrize(
    ("dram", "mapping", "pattern", "params", "efficiency"),
    [
        # Saturated figures that the reference runs' README states for standards that are not in its file.
        ("ddr5", "RoBaCoBg", "seq", "", 0.9159),
        ("lpddr5", "RoBaCoBg", "seq", "", 0.9343),
        ("gddr6", "RoBaCoBg", "seq", "", 0.9181),
        ("ddr5", "RoBaCoBg", "rand", "g=64", 0.6102),
        ("lpddr5", "RoBaBgCo", "rand", "g=64", 0.702),
        ("gddr6", "RoBaBgCo", "rand", "g=64", 0.437),
        ("gddr6", "RoBaBgCo", "seq", "", 0.729),
        ("gddr6_noref", "RoBaBgCo", "seq", "", 0.696),
        ("lpddr5", "RoBaBgCo", "seq", "", 0.806),
        ("lpddr5_noref", "RoBaBgCo", "seq", "", 0.800),
        ("ddr5", "RoBaBgCo", "rwseq2", "pr=50", 0.299),
        ("lpddr5_refpb", "RoBaCoBg", "seq", "", 0.959),
        ("hbm2_refpb", "RoBaCoBg", "seq", "", 0.936),
        ("hbm3_refpb", "RoBaCoBg", "seq", "", 0.818),
        ("hbm3pc2", "RoBaCoBg", "seq", "", 0.836),
        ("hbm3pc2_q64", "RoBaCoBg", "seq", "", 0.898),
        ("hbm3pc2_refpb", "RoBaCoBg", "seq", "", 0.550),
        ("hbm3_q128", "RoBaCoBg", "rand", "g=64", 0.308),
    ],
)
def test_standards_that_the_reference_file_leaves_out(
    dram: str, mapping: str, pattern: str, params: str, efficiency: float
) -> None:
    found = run(dram, pattern, params, 50_000, mapping=mapping)
    assert found.efficiency == pytest.approx(efficiency, abs=0.002)


def beyond_the_file() -> list[dict[str, str]]:
    """Rows measured with Ramulator 2.1 (CMU-SAFARI/ramulator2 @c5b1c3a) of what the reference file leaves out.

    Its own timings and organisations, GenericDDR, HBM12, HBM34 or LPDDR5 controller, FRFCFS-RowHit, open rows; of HBM,
    one pseudo-channel unless the name says _pc2. `latency` is the sum over all reads.
    """
    with (Path(__file__).parent / "dram_measured.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", beyond_the_file(), ids=lambda row: " ".join(list(row.values())[:5]))
def test_rows_measured_with_ramulator_beyond_the_file(row: dict[str, str]) -> None:
    found = run(
        row["config"], row["pattern"], row["params"], int(row["requests"]), mapping=row["mapping"], load=row["load"]
    )
    data = memory_json(found)
    assert {
        "cycles": found.cycles,
        "first_data": found.first_data,
        "latency": int(found.latency.sum()),
        "p50": data["p50_latency_cycles"],
        "p99": data["p99_latency_cycles"],
        "hits": found.hits,
        "misses": found.misses,
        "conflicts": found.conflicts,
    } == {key: int(text) for key, text in list(row.items())[6:]}


DRAMS = ("hbm1_2000", "hbm2", "hbm3", "hbm3pc2", "hbm4_8000_8hi", "ddr4", "ddr5", "lpddr5", "gddr6")
STREAMS = (
    ("seq", ""),
    ("streams", "S=4;C=256;off=same"),
    ("stride", "stride=16384"),
    ("rand", "g=64"),
    ("rwseq1", "pr=70"),
    ("rwseq2", "pr=50"),
    ("rwrand", "pr=30"),
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(DRAMS),
    st.sampled_from(STREAMS),
    st.sampled_from(("RoBaBgCo", "RoBaCoBg")),
    st.sampled_from(("sat", "0.05", "0.4", "0.9")),
    st.sampled_from(("det", "poi")),
    st.integers(1, 3000),
)
def test_every_cycle_is_data_or_lost(
    dram: str, stream: tuple[str, str], mapping: str, load: str, arrivals: str, requests: int
) -> None:
    found = run(dram, *stream, requests=requests, mapping=mapping, load=load, arrivals=arrivals)
    buses = found.preset.together
    data = found.cycles * buses - sum(found.lost.values()) * buses
    bursts = requests * found.preset.burst_ticks
    assert min(found.lost.values(), default=0) >= 0
    assert found.hits + found.misses + found.conflicts <= requests
    if stream[0] == "rwrand":  # bursts that met in the write queue go to the DRAM once
        assert data <= bursts + buses * len(MEANING)
    else:
        behind = found.preset.burst_ticks * buses if found.stream.writes.any() else 0
        assert bursts - behind <= data <= bursts + buses * len(MEANING)


def test_losses_tell_what_is_lacking() -> None:
    def largest(*words: str, **more: Any) -> str:
        lost = run(*words, **more).lost
        return max(lost, key=lambda cause: lost[cause])

    assert largest("hbm3") == "refresh"
    assert largest("hbm3_noref", "streams", "S=8;C=64;off=same") == "bank conflict"
    assert largest("hbm3_noref", "stride", "stride=128;g=32") == "bank group"
    assert largest("ddr4_noref", "rwseq1", "pr=50") == "turnaround"
    assert largest("hbm3_noref", load="0.1") == "no request"
    assert largest("hbm3", requests=1) == "latency"


def test_one_read_takes_the_sum_of_its_times() -> None:
    alone = run("hbm3", requests=1)
    assert alone.cycles == 1 + (2 * 31 + 3 - 2) + 1 + 2 * (20 + 2)  # accepted, ACT on the next odd tick, RD, data
    assert alone.lost == {"latency": alone.cycles - 4}
    data = memory_json(alone)
    assert data["mean_latency_cycles"] == data["p50_latency_cycles"] == data["p99_latency_cycles"] == alone.cycles


def test_writes_alone_have_no_latency() -> None:
    data = memory_json(run("ddr4", "rwseq1", "pr=0"))
    assert data["reads"] == 0
    assert data["mean_latency_cycles"] is data["p50_latency_cycles"] is data["p99_latency_cycles"] is None
    assert "no reads" in memory_table(run("ddr4", "rwseq1", "pr=0"))


def test_the_table() -> None:
    result = invoke("memory", "--dram", "hbm3pc2_q64", "--pattern", "streams", "--params", "S=4;C=256;off=stag")
    assert (result.exit_code, result.stderr) == (0, "")
    for words in (
        "51.2 GB/s",
        "2 pseudo-channels of 32 bits",
        "queues of 64 reads",
        "refresh all-bank",
        "p99",
        "100.0%",
    ):
        assert words in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 100
    assert set(MEANING) == {*CAUSES, "latency", "no request"}


def test_json_to_a_file_comes_with_the_table(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    result = invoke("memory", "--dram", "ddr4", "--requests", "100", "--json", str(target))
    data = json.loads(target.read_text(encoding="utf-8"))
    assert set(KEYS) <= set(data)
    assert f"{data['cycles']:,} of 0.625 ns" in result.stdout


def test_options_go_before_suffixes() -> None:
    assert memory_json(run("hbm3_noref_q64", refresh="all-bank", queue=16))["queue"] == 16
    assert run("hbm3_noref_q64", refresh="all-bank").lane.refresh == "all-bank"
    assert run("hbm3", refresh="none").cycles == run("hbm3_noref").cycles


def test_a_preset_of_ones_own(tmp_path: Path) -> None:
    from stallscope.arch.dram import PRESETS

    path = tmp_path / "mine.yaml"
    path.write_text((PRESETS / "ddr4.yaml").read_text(encoding="utf-8").replace("nCL: 22", "nCL: 30"), encoding="utf-8")
    assert run(str(path), requests=1).cycles == run("ddr4", requests=1).cycles + 8


STREAMED = ("--dram", "hbm3", "--pattern", "streams", "--params")
BAD = (
    (("--dram", "hbm33"), "unknown DRAM preset 'hbm33'; did you mean 'hbm3'"),
    (("--dram", ""), "unknown DRAM preset ''"),
    (("--dram", "no/such.yaml"), "no such file"),
    (("--dram", "hbm3", "--mapping", "RoBaBgCx"), "unknown mapping 'RoBaBgCx'; did you mean 'RoBaBgCo'"),
    (("--dram", "hbm3", "--mapping", "RoBaCo"), "leaves out the bank_group"),
    (("--dram", "hbm3", "--pattern", "strams"), "unknown 'strams'; did you mean 'streams'"),
    (("--dram", "hbm3", "--pattern", "streams"), "found no S; expected S=streams;C=bytes of a chunk;off=same|stag"),
    (("--dram", "hbm3", "--pattern", "streams", "--params", "Q=1"), "found Q and no S; expected S=streams;C="),
    (("--dram", "hbm3", "--pattern", "streams", "--params", "S=1;C=64"), "found no off; expected S=streams"),
    ((*STREAMED, "S=2;C=64;off=far"), "found off=far; expected one of same, stag"),
    ((*STREAMED, "S=2;C=50;off=same"), "expected whole bursts of 32 bytes; write 'C=32'"),
    ((*STREAMED, "S=0;C=64;off=same"), "found S=0"),
    ((*STREAMED, "S=2;S=2"), "every 'key=value' once"),
    ((*STREAMED, "S:2"), "found 'S:2'"),
    (("--dram", "hbm3", "--params", "g=64"), "seq: unknown g; it takes none"),
    (("--dram", "hbm3", "--pattern", "rand", "--params", "g=64;x=1"), "unknown x; it takes g="),
    (("--dram", "hbm3", "--pattern", "rand", "--params", "g=-64"), "found g=-64"),
    (("--dram", "hbm3", "--pattern", "rand", "--params", "g=9999999999999"), "expected a whole number from 1 to"),
    (("--dram", "hbm3", "--pattern", "rwseq1", "--params", "pr=101"), "expected a whole number from 0 to 100"),
    (("--dram", "hbm3", "--requests", "0"), "--requests: found 0; expected from 1 to"),
    (("--dram", "hbm3", "--requests", "999999999999"), "--requests: found 999999999999"),
    (("--dram", "hbm3", "--load", "fast"), "--load: found 'fast'; expected sat, or a share"),
    (("--dram", "hbm3", "--load", "0"), "--load: found 0"),
    (("--dram", "hbm3", "--load", "nan"), "--load: found 'nan'"),
    (("--dram", "hbm3", "--load", "1/0"), "--load: found '1/0'"),
    (("--dram", "hbm3", "--arrivals", "never"), "--arrivals: found 'never'"),
    (("--dram", "hbm3", "--refresh", "often"), "--refresh: found 'often'; expected one of all-bank, per-bank, none"),
    (("--dram", "ddr4", "--refresh", "per-bank"), "DDR4 has no refresh of single banks"),
    (("--dram", "hbm3", "--queue", "0"), "queue: found 0; expected from 1"),
    (("--dram", "hbm3_q99999",), "unknown DRAM preset"),
)  # fmt: skip


@pytest.mark.parametrize(("words", "says"), BAD, ids=[" ".join(words[1:]) or "nothing" for words, _ in BAD])
def test_bad_input(words: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = invoke("memory", *words, "--json", "out.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert says in result.stderr
    assert len(result.stderr) < 1200
    assert list(tmp_path.iterdir()) == []
