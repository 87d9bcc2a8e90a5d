"""Laws of the shipped chips and systems, and of units."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

import stallscope.arch as arch
from stallscope.arch import Chip, chip_names, chip_schema, load_chip, load_system, system_names
from stallscope.arch.load import CHIPS, SYSTEMS
from stallscope.arch.units import KINDS, UnitError, to_base
from stallscope.errors import StallscopeError
from stallscope.memory import Request as Stream
from stallscope.memory import run_memory

SHIPPED = {"a100-sxm", "h100-sxm", "h200-sxm", "b200-sxm", "groq-lpu-v1", "groq-3-lpu", "sn40l"}
FILES = sorted([*CHIPS.glob("*.yaml"), *SYSTEMS.glob("*.yaml")])

# Dense peaks of data sheets, in TFLOPS, kept apart from the files so that a file cannot agree with itself alone.
PEAKS = [
    ("a100-sxm", "bf16", 312),
    ("a100-sxm", "int8", 624),
    ("a100-sxm", "tf32", 156),
    ("a100-sxm", "fp32", 19.5),
    ("h100-sxm", "bf16", 989),
    ("h100-sxm", "fp8", 1979),
    ("h100-sxm", "tf32", 494.5),
    ("h200-sxm", "bf16", 989),
    ("h200-sxm", "int8", 1979),
    ("b200-sxm", "bf16", 2250),
    ("b200-sxm", "fp8", 4500),
    ("b200-sxm", "fp4", 9000),
    ("groq-lpu-v1", "int8", 750),
    ("groq-lpu-v1", "fp16", 188),
    ("groq-3-lpu", "fp8", 1200),
    ("sn40l", "bf16", 638),
]

# Name, tier, bytes, bytes/s.
MEMORIES = [
    ("a100-sxm", "hbm", 80 * 2**30, 2039 * 10**9),
    ("h100-sxm", "hbm", 80 * 2**30, 3350 * 10**9),
    ("h200-sxm", "hbm", 141 * 2**30, 4800 * 10**9),
    ("b200-sxm", "hbm", 180 * 2**30, 8000 * 10**9),
    ("groq-lpu-v1", "sram", 220 * 2**20, 55 * 2**40),
    ("groq-3-lpu", "sram", 500 * 10**6, 150 * 10**12),
    ("sn40l", "sram", 520 * 2**20, None),
    ("sn40l", "hbm", 64 * 2**30, 1600 * 10**9),
    ("sn40l", "ddr", 3 * 2**39, 100 * 10**9),
]


@pytest.fixture(scope="module")
def chips() -> dict[str, Chip]:
    return {name: load_chip(name) for name in chip_names()}


def test_the_public_names() -> None:
    assert set(arch.__all__) == {
        "Chip",
        "System",
        "chip_names",
        "chip_schema",
        "load_chip",
        "load_system",
        "system_names",
    }


def test_every_shipped_chip_loads_under_its_own_name(chips: dict[str, Chip]) -> None:
    assert set(chips) == SHIPPED
    for name, chip in chips.items():
        assert chip.name == name


@pytest.mark.parametrize("name", system_names())
def test_every_shipped_system_loads_under_its_own_name(name: str) -> None:
    system = load_system(name)
    assert system.name == name
    assert system.chips is not None
    assert (system.tp or 1) * (system.pp or 1) <= system.chips


@pytest.mark.parametrize(("name", "dtype", "tflops"), PEAKS)
def test_peaks_are_those_of_the_data_sheet(chips: dict[str, Chip], name: str, dtype: str, tflops: float) -> None:
    assert chips[name].peak_flops(dtype) == pytest.approx(tflops * 1e12, rel=0.03)


@pytest.mark.parametrize(("name", "tier", "size", "rate"), MEMORIES)
def test_memories_are_those_of_the_data_sheet(
    chips: dict[str, Chip], name: str, tier: str, size: int, rate: int | None
) -> None:
    memory = chips[name].tier(tier)
    assert memory.capacity.value == size
    assert rate is None or memory.bandwidth.value == rate


def _numbers(node: object, path: tuple[object, ...] = ()) -> list[tuple[tuple[object, ...], dict]]:
    """Every mapping of a file that holds a number of its own; a number outside of one fails."""
    if isinstance(node, dict):
        own = [k for k, v in node.items() if type(v) in (int, float) and k not in ("tp", "pp")]
        below = [n for k, v in node.items() for n in _numbers(v, (*path, k))]
        return ([(path, node)] if own or "value" in node else []) + below
    if isinstance(node, list):
        return [n for i, v in enumerate(node) for n in _numbers(v, (*path, i))]
    return []


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_every_number_says_where_it_comes_from(file: Path) -> None:
    data = YAML(typ="safe").load(file)
    numbers = _numbers(data)
    assert numbers
    for path, node in numbers:
        origins = [k for k in ("source", "derived", "assumed") if k in node]
        assert len(origins) == 1, path
        if origins == ["source"]:
            assert node["source"] in data["sources"], path


@pytest.mark.parametrize("file", FILES, ids=lambda p: p.stem)
def test_every_source_is_cited_and_can_be_found(file: Path) -> None:
    data, text = YAML(typ="safe").load(file), file.read_text(encoding="utf-8")
    for key, source in data.get("sources", {}).items():
        assert source["url"].startswith("https://")
        assert re.search(rf"(source: |[( ]){key}[,;)}}]", text), f"{key} is listed but nothing cites it"


def test_facts_lists_every_number_once_with_one_origin(chips: dict[str, Chip]) -> None:
    for chip in chips.values():
        paths = [path for path, _ in chip.facts()]
        assert len(paths) == len(set(paths))
        assert {"clock", "cores", "matrix.granule", "execution.launch_gap"} <= set(paths)
        for path, fact in chip.facts():
            assert fact.origin in ("source", "derived", "assumed"), path
            assert fact.source is None or fact.source in chip.sources


def test_derived_values_follow_from_what_they_are_derived_from(chips: dict[str, Chip]) -> None:
    h100 = chips["h100-sxm"]
    assert h100.tier("hbm").latency.value == pytest.approx(654 / 1755e6 * 1e15, rel=1e-3)
    assert h100.tier("l2").latency.value == pytest.approx(265 / 1755e6 * 1e15, rel=1e-3)
    assert h100.tier("smem").bandwidth.value == pytest.approx(128 * 132 * 1.83e9, rel=1e-3)
    assert h100.tier("hbm").availability.value == pytest.approx(2890 / 3350, abs=1e-3)
    assert chips["a100-sxm"].tier("hbm").latency.value == pytest.approx(560 / 1410e6 * 1e15, rel=1e-3)
    for name, preset in (("h200-sxm", "hbm3e_6400"), ("b200-sxm", "hbm3e_8000")):
        tiles = Stream(preset, "RoBaBgCo", "streams", "S=48;C=128;off=stag", 200_000, "sat", "det", None, None)
        assert chips[name].tier("hbm").availability.value == pytest.approx(run_memory(tiles).efficiency, abs=1e-3)


def test_little_law_leaves_the_loads_room(chips: dict[str, Chip]) -> None:
    # No shipped chip is kept below its memory's bandwidth by its own window of bytes in flight.
    for chip in chips.values():
        if chip.load.bytes_in_flight is None:
            continue
        engines = chip.cores.value if chip.style == "kernels" else 1
        hbm = chip.tier("hbm")
        assert chip.load.bytes_in_flight.value * engines > hbm.bandwidth.value * hbm.latency.value / 1e15


def test_base_units(chips: dict[str, Chip]) -> None:
    chip = chips["h100-sxm"]
    assert chip.clock_hz == 1.83e9
    assert chip.period_fs == 546448
    assert chip.execution.launch_gap.value == 1_300_000_000
    assert chip.tier("hbm").energy.value == 3.59
    assert chip.tier("smem").energy.value == pytest.approx(0.16)  # 1.28 pJ/B
    assert isinstance(chip.tier("hbm").latency.value, int)
    assert (chip.tier("hbm").lanes, chip.link.lanes, chip.execution.stages, chip.matrix.weight_buffers) == (5, 1, 6, 2)


def test_tiers_for_gives_homes_nearest_first(chips: dict[str, Chip]) -> None:
    assert [t.name for t in chips["sn40l"].tiers_for("weight")] == ["hbm", "ddr"]
    assert [t.name for t in chips["sn40l"].tiers_for("activation")] == ["sram", "hbm", "ddr"]
    with pytest.raises(StallscopeError, match="did you mean 'hbm'"):
        chips["sn40l"].tier("hbn")


def test_compute_dtype_is_the_next_wider_one(chips: dict[str, Chip]) -> None:
    assert chips["a100-sxm"].compute_dtype("fp8") == "bf16"
    assert chips["groq-lpu-v1"].compute_dtype("int4") == "int8"
    assert chips["b200-sxm"].compute_dtype("fp4") == "fp4"
    with pytest.raises(StallscopeError, match="unknown dtype 'bf61'; did you mean 'bf16'"):
        chips["h100-sxm"].compute_dtype("bf61")


def test_chips_are_frozen(chips: dict[str, Chip]) -> None:
    with pytest.raises(ValueError, match="frozen"):
        chips["h100-sxm"].name = "other"  # type: ignore[misc]


def test_schema_describes_the_yaml_form() -> None:
    schema = json.loads(json.dumps(chip_schema()))
    keys = set(YAML(typ="safe").load(CHIPS / "h100-sxm.yaml"))
    assert keys <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    for name, key in [("Chip", schema), *schema["$defs"].items()]:
        for field, about in key["properties"].items():
            assert about.get("description") or field in ("source", "derived", "assumed", "note"), f"{name}.{field}"
    tier = schema["$defs"]["Tier"]["properties"]
    assert "lanes" in tier
    assert "lanes_fact" not in tier


def test_a_chip_is_a_system_whose_split_is_left_open() -> None:
    system = load_system("h100-sxm")
    assert (system.chips, system.tp, system.pp, system.topology) == (None, None, None, "switch")
    assert load_system("h100-sxm", chips=4, tp=2, pp=2).chips == 4


def test_options_go_before_the_system_file() -> None:
    assert (load_system("dgx-h100").tp, load_system("dgx-h100").pp) == (8, 1)
    one = load_system("dgx-h100", tp=4)
    assert (one.chips, one.tp, one.pp) == (8, 4, None)
    assert load_system("dgx-h100", chips=2).tp is None


def test_chip_and_system_files_by_path(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text((CHIPS / "h100-sxm.yaml").read_text(encoding="utf-8").replace("name: h100-sxm", "name: mine"))
    pair = tmp_path / "pair.yaml"
    pair.write_text("system: pair\nchip: mine.yaml\ncount: 2\n")
    assert load_chip(mine).name == load_chip(str(mine)).name == "mine"
    system = load_system(pair)
    assert (system.chip.name, system.chips) == ("mine", 2)


def test_a_bare_number_counts_as_assumed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    text = (CHIPS / "h100-sxm.yaml").read_text(encoding="utf-8")
    mine.write_text(text.replace("bandwidth: {value: 3350 GB/s, source: aic}", "bandwidth: 3.35 TB/s"))
    fact = load_chip(mine).tier("hbm").bandwidth
    assert (fact.value, fact.text, fact.assumed) == (3_350_000_000_000, "3.35 TB/s", "no source given")


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("3.35 TB/s", "bandwidth", 3_350_000_000_000),
        ("55 TiB/s", "bandwidth", 55 * 2**40),
        ("112 Gb/s", "bandwidth", 14_000_000_000),
        ("100 Gbps", "bandwidth", 12_500_000_000),
        ("80 GiB", "bytes", 80 * 2**30),
        ("1,024 KB", "bytes", 1_024_000),
        (".5 KiB", "bytes", 512),
        ("560 ns", "time", 560_000_000),
        ("2.5 µs", "time", 2_500_000_000),
        ("0 ns", "time0", 0),
        ("0.9 GHz", "frequency", 900_000_000),
        ("128 B/cycle", "bytes_per_cycle", 128),
        ("64 B / clk", "bytes_per_cycle", 64),
        ("20 cycles", "cycles", 20),
        ("3.9 pJ/bit", "energy_per_bit", 3.9),
        ("0.5 nJ/B", "energy_per_bit", 62.5),
        ("91 %", "fraction", 0.91),
        (0.91, "fraction", 0.91),
        (132, "count", 132),
        ("1024 MAC/cycle", "macs_per_cycle", 1024),
        ("1.2 PFLOPS", "flops", 1_200_000_000_000_000),
        ("700 W", "power", 700),
    ],
)
def test_units(text: str | float, kind: str, value: float) -> None:
    assert to_base(text, kind) == value


@given(
    st.one_of(st.text(max_size=30), st.integers(), st.floats(), st.booleans(), st.none()), st.sampled_from(list(KINDS))
)
def test_any_value_is_a_positive_number_or_refused(value: object, kind: str) -> None:
    try:
        number = to_base(value, kind)
    except UnitError:
        return
    assert 0 < number < 2**62 or (number == 0 and KINDS[kind].zero)


@given(st.integers(1, 10**6), st.sampled_from(["B", "KB", "KiB", "MB", "MiB", "GB", "GiB"]))
def test_sizes_are_exact(number: int, unit: str) -> None:
    scale = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[unit]
    assert to_base(f"{number} {unit}", "bytes") == number * scale
