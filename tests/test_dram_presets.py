"""DRAM presets, command rules, address mappings and request streams, against sums done by hand."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stallscope.arch.dram import PRESETS, DramPreset, choose_dram, dram_names, load_dram
from stallscope.arch.dram_rules import rule_names
from stallscope.arch.mapping import NAMED, Location, make_mapping
from stallscope.compiler.dram import Lane, lane_tables
from stallscope.compiler.program import DRAM_COMMANDS, DRAM_PARAMS
from stallscope.errors import StallscopeError
from stallscope.workloads.streams import Geometry, arrival_ticks, make_stream, scatter

GOLDEN = Path(__file__).parents[1] / "../shared/golden/dram.csv"
HBM3 = (PRESETS / "hbm3.yaml").read_text(encoding="utf-8")


def geometry(preset: DramPreset) -> Geometry:
    return Geometry(preset.burst_bytes, preset.row_bytes, preset.bank_groups, preset.capacity)


@pytest.mark.parametrize("name", dram_names())
def test_every_preset_is_named_as_its_file_and_says_where_it_is_from(name: str) -> None:
    preset = load_dram(name)
    assert preset.name == name
    assert (preset.source is not None) == (preset.confidence == "seen")
    assert (preset.derived is not None) == (preset.confidence == "derived")
    assert preset.assumed is None
    assert set(preset.rules.standards) & {preset.standard}


def test_every_rule_is_used() -> None:
    assert {load_dram(name).rules.rules for name in dram_names()} == set(rule_names())


@pytest.mark.parametrize(
    ("name", "gb_per_s", "tick_fs"),
    [
        ("hbm3_6400_8hi", 819.2, 312_500),
        ("hbm3_5200", 665.6, 384_615),  # 769.23 ps / 2; the source's 769 ps are rounded
        ("hbm2_2000", 256.0, 1_000_000),
        ("ddr5_4800AN", 19.2, 416_667),
        ("lpddr5x_8533", 17.066, 937_537),
        ("gddr6_14000_1350mv_double", 28.070, 570_000),  # 571.43 ps is not what 570 ps was rounded from: as stated
    ],
)
def test_peak_of_a_device(name: str, gb_per_s: float, tick_fs: int) -> None:
    preset = load_dram(name)
    assert preset.peak_bytes_per_s * preset.controllers / 1e9 == pytest.approx(gb_per_s, abs=1e-3)
    assert preset.tick_fs == tick_fs


@pytest.mark.parametrize(
    ("name", "level", "before", "after", "ticks"),
    [
        # A tick of HBM3 is half a CK; ACT takes 3 ticks of its bus, RD 2, PRE 1, and JEDEC counts from their ends.
        ("hbm3", "bank", "ACT", "RD", 2 * 31 + 3 - 2),
        ("hbm3", "bank", "PREpb", "ACT", 2 * 26 + 1 - 3),
        ("hbm3", "bank", "RD", "PREpb", 2 * 9 + 2 - 1),
        ("hbm3", "pseudochannel", "WR", "RD", 2 * (10 + 2 + 7)),
        ("hbm3", "bankgroup", "RD", "RD", 8),
        ("hbm3", "channel", "ACT", "PREpb", 3),
        ("hbm3", "pseudochannel", "REFab", "ACT", 2 * 416 + 1 - 3),
        ("hbm2", "bank", "ACT", "RD", 14 + 2 - 1),
        ("hbm2", "pseudochannel", "RD", "WR", 14 + 2 + 2 - 5),
        ("ddr4", "bank", "ACT", "RD", 22),
        ("ddr4", "pseudochannel", "RD", "RD", 4),
        ("ddr5", "bankgroup", "WR", "WR", 48),
        ("ddr5", "bank", "PREpb", "ACT", 34 + 1 - 2),
        ("lpddr5", "bankgroup", "WR", "RD", 9 + 4 + 10),
        ("gddr6", "pseudochannel", "RD", "WR", 25),
    ],
)
def test_gaps_in_ticks(name: str, level: str, before: str, after: str, ticks: int) -> None:
    assert load_dram(name).gaps[level, before, after] == ticks


def test_refresh_of_single_banks() -> None:
    # A share of REFI for each bank behind the controller, rounded up once.
    assert load_dram("hbm2").refresh_ticks("per-bank") == 244
    assert choose_dram("hbm2_pc2").preset.refresh_ticks("per-bank") == 122
    assert load_dram("hbm2_1600").refresh_ticks("per-bank") == 195
    assert choose_dram("hbm2_1600_pc2").preset.refresh_ticks("per-bank") == 98
    assert load_dram("hbm2_2400").refresh_ticks("per-bank") == 293
    assert load_dram("hbm3sid2").refresh_ticks("per-bank") == 2 * 195
    assert load_dram("hbm3pc2").refresh_ticks("per-bank") == 2 * 195
    with pytest.raises(StallscopeError, match="DDR4 has no refresh of single banks"):
        load_dram("ddr4").refresh_ticks("per-bank")


def test_tables_for_the_kernel() -> None:
    tables = lane_tables([Lane(load_dram("hbm3")), Lane(load_dram("lpddr5"), "RoBaBgCo", "none", 64, False)])
    first, second = (dict(zip(DRAM_PARAMS, row, strict=True)) for row in tables.params.tolist())
    assert (first["read_ticks"], first["buses"], first["edges"], first["refresh_ticks"]) == (44, 2, 1, 12480)
    assert (first["drain_from"], first["drain_to"], first["clocked"], first["split_ticks"]) == (26, 6, 0, 0)
    assert (second["refresh"], second["refresh_ticks"], second["clocked"], second["split_ticks"]) == (0, 0, 0, 8)
    assert (second["drain_from"], second["drain_to"]) == (52, 12)
    window = [row for row in tables.rules[: tables.rule_ptr[1]].tolist() if row[4] == 4]
    act = DRAM_COMMANDS.index("ACT")
    assert window == [[act, act, 1, 48, 4, 0]]


@pytest.mark.parametrize(
    ("name", "refresh", "queue", "stops"),
    [
        ("hbm3", None, None, True),
        ("hbm3_noref", "none", None, True),
        ("hbm3_q64_refpb", "per-bank", 64, True),
        ("lpddr5_wckon", None, None, False),
        ("ddr5_4800AN_noref", "none", None, True),
    ],
)
def test_suffixes(name: str, refresh: str | None, queue: int | None, stops: bool) -> None:
    choice = choose_dram(name)
    assert (choice.refresh, choice.queue, choice.data_clock_stops) == (refresh, queue, stops)


def test_two_pseudo_channels_behind_one_controller() -> None:
    whole = choose_dram("hbm3_6400_8hi_pc2").preset
    assert (whole.together, whole.controllers, whole.all_banks) == (2, 16, 64)
    assert whole.peak_bytes_per_tick == 16
    assert load_dram("hbm3pc2").model_dump(exclude={"name", "rules"}) == whole.model_dump(
        exclude={"name", "rules", "note"}
    ) | {"note": None}


WRONG = (
    ("a slip in a key", "rate_mbps:", "rate_mpbs:", "did you mean 'rate_mbps'"),
    ("unknown rules", "rules: hbm3", "rules: hbm33", "unknown rules 'hbm33'; did you mean 'hbm3'"),
    ("another standard", "standard: HBM3", "standard: HBM2", "standard: unknown standard 'HBM2'"),
    ("a time lacking", "nRTW: 20, ", "", "timing_ck: has no nRTW"),
    ("a time below zero", "nCL: 20", "nCL: -20", "timing_ck.nCL: found -20"),
    ("a time of a half", "nCL: 20", "nCL: 20.5", "timing_ck.nCL: found 20.5"),
    ("a name that is none", "nCL: 20", "CL: 20", "timing_ck.CL"),
    ("a clock of another rate", "tCK_ps: 625", "tCK_ps: 1250", "tCK_ps: found 1250; expected about 625"),
    ("half a burst", "row_bytes: 1024", "row_bytes: 1000", "row_bytes: found 1000; expected whole bursts of 32"),
    ("no banks", "banks: 4\nrows", "banks: 0\nrows", "banks: found 0"),
    ("no such source", "source: ram", "source: rum", "source: unknown source 'rum'; did you mean 'ram'"),
    ("no refresh", "nREFI: 6240", "nREFI: 0", "nREFI is 0; expected 1 or more"),
    ("three together", "pseudochannels: 2", "pseudochannels: 2\ntogether: 3", "together: found 3; expected a divisor"),
)  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "words"), WRONG, ids=[w[0] for w in WRONG])
def test_a_wrong_preset_is_refused_with_its_line(tmp_path: Path, name: str, old: str, new: str, words: str) -> None:
    assert HBM3.count(old) == 1
    path = tmp_path / "mine.yaml"
    path.write_text(HBM3.replace(old, new), encoding="utf-8")
    with pytest.raises(StallscopeError) as caught:
        load_dram(path)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


def test_unknown_names_give_the_nearest() -> None:
    with pytest.raises(StallscopeError, match="unknown DRAM preset 'hbm3_5600'; did you mean 'hbm3_5200'"):
        load_dram("hbm3_5600")
    with pytest.raises(StallscopeError, match="known suffixes"):
        choose_dram("hbm3_norfe")
    with pytest.raises(StallscopeError, match="found _pc3; expected 1 or 2"):
        choose_dram("hbm3_pc3")


# Address mappings


def place(name: str, preset: str, burst: int) -> dict[str, int]:
    at = make_mapping(name, choose_dram(preset).preset).decode(np.array([burst]))
    return {field: int(value[0]) for field, value in at._asdict().items() if value[0]}


@pytest.mark.parametrize(
    ("name", "preset", "burst", "wanted"),
    [
        ("RoBaBgCo", "hbm3", 31, {"column": 31}),
        ("RoBaBgCo", "hbm3", 32, {"bank_group": 1}),
        ("RoBaBgCo", "hbm3", 32 * 4, {"bank": 1}),
        ("RoBaBgCo", "hbm3", 32 * 16, {"row": 1}),
        ("RoBaBgCo", "hbm3pc2", 32, {"pseudochannel": 1}),
        ("RoBaBgCo", "hbm3pc2", 64, {"sid": 1}),
        ("RoBaBgCo", "hbm3pc2", 128, {"bank_group": 1}),
        ("RoBaCoBg", "hbm3", 1, {"bank_group": 1}),
        ("RoBaCoBg", "hbm3", 4, {"column": 1}),
        ("RoBaCoBg", "hbm3", 128, {"bank": 1}),
        ("RoBaCoBg", "hbm3pc2", 1, {"pseudochannel": 1}),
        ("RoBaCoBg", "hbm3sid2", 128, {"sid": 1}),
        ("RoBaCoBgC1", "hbm3", 1, {"column": 1}),
        ("RoBaCoBgC1", "hbm3", 2, {"bank_group": 1}),
        ("RoBaCoBgC1", "hbm3", 8, {"column": 2}),
        ("RoCoBaBg", "hbm3", 16, {"column": 1}),
        ("RoCoBaBg", "hbm3", 512, {"row": 1}),
        ("robacobg", "hbm3", 1, {"bank_group": 1}),
        ("rochrababgco", "ddr4", 128, {"bank_group": 1}),
        ("RoBaSiBgCo", "hbm3sid2", 32 * 4, {"sid": 1}),
        ("RoBaBgCo", "hbm3", 32 * 16 * 16384, {}),  # wraps around
        ("MOP4CLXOR", "hbm3", 4, {"bank_group": 1}),
        ("MOP4CLXOR", "hbm3", 1, {"column": 1, "bank_group": 1}),
        ("MOP4CLXOR", "hbm3", 64, {"column": 4, "bank": 1}),  # bit 2 of the column flips the lowest of the bank
        ("MOP4CLXOR", "hbm3", 64 * 4, {"column": 16, "row": 1}),  # bit 4 is left for the row
    ],
)
def test_where_a_burst_lies(name: str, preset: str, burst: int, wanted: dict[str, int]) -> None:
    assert place(name, preset, burst) == wanted


SPELLED = ("RoBaSiPcCoBgC2", "CoRoPcSiBgBa", "C1RoC2BaCoBgSiPc", "PcSiBgBaRoCo")


@given(st.sampled_from((*NAMED, *SPELLED)), st.sampled_from(dram_names()), st.integers(0, 2**40), st.integers(1, 2**34))
def test_mappings_are_one_to_one(name: str, preset: str, first: int, step: int) -> None:
    device = load_dram(preset)
    mapping = make_mapping(name, device)
    assert mapping.bursts * device.burst_bytes == device.capacity
    bursts = (first + step * np.arange(64, dtype=np.int64)) % 2**62
    at = mapping.decode(bursts)
    assert np.array_equal(mapping.encode(at), bursts % mapping.bursts)
    for field, value in at._asdict().items():
        assert value.min() >= 0
        assert value.max() < mapping.sizes[field]
    assert np.array_equal(mapping.decode(mapping.encode(at)), at)


def test_a_mapping_over_channels() -> None:
    mapping = make_mapping("RoBaBgSiCoCh", load_dram("hbm3"), channels=5)
    at = mapping.decode(np.arange(10))
    assert at.channel.tolist() == [0, 1, 2, 3, 4] * 2
    assert at.column.tolist() == [0] * 5 + [1] * 5
    assert isinstance(at, Location)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("RoBaCoBx", "unknown mapping 'RoBaCoBx'; did you mean 'RoBaCoBg"),
        ("", "unknown mapping ''"),
        ("RoBaCo", "leaves out the bank_group (4 of them); add Bg"),
        ("RoBaCoBgBg", "names the bank_group twice"),
        ("RoBaBgC1", "leaves out the column"),
        ("RoBaCoBgC7", "more low column bits than 32 columns have"),
        ("RoBaBgCo" * 40, "twice"),
    ],
)
def test_a_wrong_mapping(name: str, words: str) -> None:
    with pytest.raises(StallscopeError) as caught:
        make_mapping(name, load_dram("hbm3"))
    assert words in str(caught.value)


# Request streams


def bursts(pattern: str, params: str, requests: int, preset: str = "hbm3") -> list[int]:
    return make_stream(pattern, params, requests, geometry(load_dram(preset))).bursts.tolist()


def test_the_hash() -> None:
    # splitmix64 of seed 0: its first two outputs are in the generator's public test vectors.
    assert scatter(np.array([0, 1])).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_streams_by_hand() -> None:
    far, row = 2**28 // 32 // 32, 1024 // 32  # capacity / 32 and a row of 1 KB, in bursts of 32 bytes
    assert bursts("seq", "", 4) == bursts("burst", "", 4) == [0, 1, 2, 3]
    assert bursts("streams", "S=2;C=64;off=same", 6) == [0, 1, far, far + 1, 2, 3]
    assert bursts("streams", "S=2;C=64;off=stag", 4) == [0, 1, far + 5 * row, far + 5 * row + 1]
    assert bursts("stride", "stride=1024", 4) == [0, 1, 32, 33]
    assert bursts("stride", "stride=1024;g=32", 3) == [0, 32, 64]
    assert bursts("stride", "stride=8192", 3, "ddr4") == [0, 128, 256]
    places = 2**28 // 64
    assert bursts("rand", "g=64", 4) == [
        2 * (0xE220A8397B1DCDAF % places), 2 * (0xE220A8397B1DCDAF % places) + 1,
        2 * (0x6E789E6AA1B965F4 % places), 2 * (0x6E789E6AA1B965F4 % places) + 1,
    ]  # fmt: skip


def h(x: int) -> int:
    return int(scatter(np.array([x]))[0])


def naive_mix(pattern: str, percent: int, requests: int) -> Iterator[tuple[int, bool]]:
    capacity, row = 2**28, 1024
    walked = {True: 0, False: capacity // 2 + 2 * 5 * row}
    for i in range(requests):
        r, within = divmod(i, 2)
        read = h(r ^ 0xABCDEF) % 100 < percent
        if pattern == "rwseq1":
            address = 32 * i
        elif pattern == "rwrand":
            address = 64 * (h(r) % (capacity // 64)) + 32 * within
        else:
            address = walked[read] + 32 * within
            walked[read] += 64 * within
        yield address // 32, not read


@pytest.mark.parametrize("pattern", ["rwseq1", "rwseq2", "rwrand"])
@pytest.mark.parametrize("percent", [0, 50, 90, 100])
def test_mixes_one_by_one(pattern: str, percent: int) -> None:
    stream = make_stream(pattern, f"pr={percent}", 400, geometry(load_dram("hbm3")))
    assert list(zip(stream.bursts.tolist(), stream.writes.tolist(), strict=True)) == [*naive_mix(pattern, percent, 400)]


def test_tx_is_one_burst() -> None:
    for preset, burst in (("hbm3", 32), ("ddr4", 64)):
        for pattern, params in (("stride", "stride=8192;g="), ("rand", "g=")):
            assert bursts(pattern, f"{params}TX", 50, preset) == bursts(pattern, f"{params}{burst}", 50, preset)


def test_arrivals() -> None:
    preset = load_dram("hbm3")
    stream = make_stream("rand", "g=64", 5, geometry(preset))

    def ticks(load: str, arrivals: str) -> list[int]:
        return arrival_ticks(stream, Fraction(load), preset.peak_bytes_per_tick, 32, arrivals).tolist()

    assert ticks("1", "det") == [0, 0, 8, 8, 16]
    assert ticks("0.3", "det") == [0, 0, 26, 26, 53]  # 8 / 0.3 = 26.67 ticks a request
    stream = make_stream("rand", "g=256", 5, geometry(preset))
    assert ticks("1", "det") == [0, 0, 8, 8, 16]  # 64 bytes at a time, however long the requests are
    stream = make_stream("streams", "S=2;C=128;off=same", 5, geometry(preset))
    assert ticks("1", "det") == [0, 4, 8, 12, 16]
    many = make_stream("seq", "", 200_000, geometry(preset))
    last = int(arrival_ticks(many, Fraction(1, 2), preset.peak_bytes_per_tick, 32, "poi")[-1])
    assert last == pytest.approx(200_000 * 8, rel=0.01)
    assert arrival_ticks(stream, None, preset.peak_bytes_per_tick, 32, "det").tolist() == [0] * 5


def test_streams_are_those_of_the_reference_runs() -> None:
    """The counts of reads, and the peaks, that the reference runs state."""
    if not GOLDEN.exists():
        pytest.skip("the reference file is not here")
    with GOLDEN.open() as file:
        rows = [row for row in csv.DictReader(file) if row["simulator"].startswith("ramulator")]
    for row in {(r["config"], r["pattern"], r["params"], r["requests"]): r for r in rows}.values():
        preset = choose_dram(row["config"]).preset
        stream = make_stream(row["pattern"], row["params"], int(row["requests"]), geometry(preset))
        assert stream.reads == int(row["reads"])
        assert preset.peak_bytes_per_tick == int(row["peak_bytes_per_cycle"])
        assert preset.tick_fs == pytest.approx(float(row["tick_ns"]) * 1e6)
