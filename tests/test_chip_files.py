"""Bad chip and system files: each is refused in one message with file, line and field, and says what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stallscope.arch import load_chip, load_system
from stallscope.arch.chip import Chip
from stallscope.arch.document import MAX_BYTES, parse_yaml
from stallscope.arch.load import build
from stallscope.errors import StallscopeError

GOOD = """\
name: tiny
title: A tiny chip
style: kernels
sources:
  mine: {title: my own notes}
clock: {value: 1 GHz, source: mine}
cores: 4
core_name: core
matrix:
  count: 1
  macs_per_cycle:
    bf16: 256
  granule: {m: 8, n: 16, k: 16}
  latency: 10 cycles
  weight_buffers: 2
vector:
  count: 1
  ops_per_cycle: 32
  special_per_cycle: 4
  latency: 4 cycles
load:
  bytes_in_flight: 16 KiB
  port: 64 B/cycle
store:
  port: 64 B/cycle
tiers:
  - name: sram
    scope: chip
    capacity: 8 MiB
    bandwidth: 1 TB/s
    latency: 50 ns
    holds: [activation]
  - name: hbm
    scope: chip
    capacity: 4 GiB
    bandwidth: 100 GB/s
    latency: 300 ns
    lanes: 2
    availability: 0.95
    holds: [weight, kv, embedding, activation]
node:
  chips: 1
execution:
  launch_gap: 1 us
peaks:
  bf16: 2 TFLOPS
"""
SYSTEM = "system: pair\nchip: tiny.yaml\ncount: 2\n"
LINK = "link: {name: wire, bandwidth: 10 GB/s, latency: 1 us, topology: ring}\n"

# (name, text of GOOD, what replaces it, field that the message names, words in it)
EDITS = [
    ("unknown unit", "bandwidth: 100 GB/s", "bandwidth: 100 GX/s", "tiers[1].bandwidth", "unknown unit 'GX/s'"),
    ("wrong dimension", "bandwidth: 100 GB/s", "bandwidth: 100 GB", "tiers[1].bandwidth", "another dimension"),
    ("no unit", "capacity: 4 GiB", "capacity: 4", "tiers[1].capacity", "no unit"),
    ("time in cycles", "latency: 300 ns", "latency: 300 cycles", "tiers[1].latency", "another dimension"),
    ("cycles in time", "latency: 10 cycles", "latency: 10 ns", "matrix.latency", "number of core clock cycles"),
    ("two units", "clock: {value: 1 GHz", "clock: {value: 1 GHz 2 MHz", "clock.value", "cannot be read"),
    ("negative", "latency: 300 ns", "latency: -300 ns", "tiers[1].latency", "is negative"),
    ("NaN text", "bandwidth: 1 TB/s", "bandwidth: nan TB/s", "tiers[0].bandwidth", "not a finite number"),
    ("NaN", "cores: 4", "cores: .nan", "cores", "not a finite number"),
    ("infinite text", "bandwidth: 1 TB/s", "bandwidth: inf TB/s", "tiers[0].bandwidth", "not a finite number"),
    ("infinite", "cores: 4", "cores: .inf", "cores", "not a finite number"),
    ("infinite exponent", "bandwidth: 1 TB/s", "bandwidth: 1e999 TB/s", "tiers[0].bandwidth", "is above"),
    ("endless exponent", "bandwidth: 1 TB/s", "bandwidth: 1e999999999 TB/s", "tiers[0].bandwidth", "cannot be read"),
    ("endless integer", "cores: 4", f"cores: {'9' * 6000}", "the file", "can be read"),
    ("zero capacity", "capacity: 4 GiB", "capacity: 0 GiB", "tiers[1].capacity", "is zero"),
    ("zero bandwidth", "bandwidth: 1 TB/s", "bandwidth: 0 TB/s", "tiers[0].bandwidth", "is zero"),
    ("too slow", "bandwidth: 1 TB/s", "bandwidth: 1e-9 B/s", "tiers[0].bandwidth", "less than one"),
    ("half a byte", "capacity: 4 GiB", "capacity: 0.5 B", "tiers[1].capacity", "not a whole number"),
    ("no cores", "cores: 4", "cores: 0", "cores", "is zero"),
    ("half a core", "cores: 4", "cores: 4.5", "cores", "not a whole number"),
    ("cores as a truth", "cores: 4", "cores: true", "cores", "expected a whole number"),
    ("cores as a list", "cores: 4", "cores: [4]", "cores", "expected a whole number"),
    ("nothing after the colon", "cores: 4", "cores:", "cores", "is empty"),
    ("availability above 1", "availability: 0.95", "availability: 1.2", "tiers[1].availability", "above 1"),
    ("availability 0", "availability: 0.95", "availability: 0", "tiers[1].availability", "is zero"),
    ("no lanes", "lanes: 2", "lanes: 0", "tiers[1].lanes", "is zero"),
    ("three weight buffers", "weight_buffers: 2", "weight_buffers: 3", "matrix.weight_buffers", "expected 1 or 2"),
    ("granule of 0", "granule: {m: 8", "granule: {m: 0", "matrix.granule.m", "greater than or equal to 1"),
    ("granule as text", "granule: {m: 8", "granule: {m: eight", "matrix.granule.m", "integer"),
    ("granule without k", ", k: 16}", "}", "matrix.granule.k", "is missing"),
    ("unknown key", "    lanes: 2", "    lane: 2", "tiers[1].lane", "did you mean 'lanes'"),
    ("unknown key at the top", "cores: 4", "coers: 4", "coers", "did you mean 'cores'"),
    ("number as a key", "cores: 4", "cores: 4\n7: x", "7", "unknown key"),
    ("unknown key of a fact", "clock: {value: 1 GHz, source", "clock: {value: 1 GHz, sorce", "clock.sorce", "'source'"),
    ("a fact without its value", "clock: {value: 1 GHz, source", "clock: {source", "clock", "has no 'value'"),
    ("missing key", "cores: 4\n", "", "cores", "is missing"),
    ("missing clock", "clock: {value: 1 GHz, source: mine}\n", "", "clock", "is missing"),
    ("missing key of a tier", "    capacity: 4 GiB\n", "", "tiers[1].capacity", "is missing"),
    ("unknown dtype", "    bf16: 256", "    bf61: 256", "matrix.macs_per_cycle.bf61", "did you mean 'bf16'"),
    ("no dtypes", "macs_per_cycle:\n    bf16: 256", "macs_per_cycle: {}", "matrix.macs_per_cycle", "at least 1"),
    ("unknown kind held", "holds: [weight,", "holds: [weights,", "tiers[1].holds[0]", "did you mean 'weight'"),
    ("holds no list", "holds: [activation]", "holds: activation", "tiers[0].holds", "expected a list"),
    ("unknown style", "style: kernels", "style: kernel", "style", "did you mean 'kernels'"),
    ("unknown scope", "scope: chip\n    capacity: 4", "scope: chips\n    capacity: 4", "tiers[1].scope", "'chip'"),
    ("unknown overlap", "launch_gap: 1 us", "launch_gap: 1 us\n  overlap: some", "execution.overlap", "programmatic"),
    ("unknown timing", "    lanes: 2", "    timing: hbm5", "tiers[1].timing", "fixed"),
    ("tier names twice", "name: hbm", "name: sram", "tiers[1].name", "rename one"),
    ("tier name with blanks", "name: hbm", "name: my hbm", "tiers[1].name", "pattern"),
    ("tiers in wrong order", "latency: 50 ns", "latency: 500 ns", "tiers[1].latency", "nearest first"),
    ("nobody holds kv", "weight, kv, emb", "weight, emb", "tiers", "no tier holds 'kv'"),
    ("nobody holds weights", "[weight, kv,", "[expert, kv,", "tiers", "no tier holds 'weight'"),
    (
        "weights beyond the chip",
        "scope: chip\n    capacity: 4",
        "scope: host\n    capacity: 4",
        "tiers",
        "scope 'chip'",
    ),
    ("a tier as text", "  - name: sram\n", "  - sram\n  - name: sram\n", "tiers[0]", "expected keys and values"),
    ("a tier list as text", "node:\n  chips: 1", "node: 1", "node", "expected keys and values"),
    ("source not listed", "source: mine}", "source: mien}", "clock.source", "did you mean 'mine'"),
    ("source and assumed", "source: mine}", "source: mine, assumed: so}", "clock", "exactly one of"),
    ("no origin", "clock: {value: 1 GHz, source: mine}", "clock: {value: 1 GHz}", "clock", "exactly one of"),
    ("empty reason", "source: mine}", "assumed: ''}", "clock.assumed", "expected a text"),
    ("source as a number", "source: mine}", "source: 3}", "clock.source", "expected a text"),
    ("granule with two origins", "k: 16}", "k: 16, source: mine, derived: x}", "matrix.granule", "exactly one of"),
    ("source without a title", "mine: {title: my own notes}", "mine: {url: x}", "sources.mine.title", "is missing"),
    ("peak that does not follow", "bf16: 2 TFLOPS", "bf16: 4 TFLOPS", "peaks.bf16", "2.0 TFLOPS"),
    ("peak without a rate", "bf16: 2 TFLOPS", "fp8: 4 TFLOPS", "peaks.fp8", "no fp8"),
    (
        "link to nowhere",
        "node:\n",
        "link: {bandwidth: 1 GB/s, latency: 1 us, topology: ring}\nnode:\n",
        "link.name",
        "miss",
    ),
    ("unknown topology", "node:\n", LINK.replace("ring", "rong") + "node:\n", "link.topology", "did you mean 'ring'"),
    ("duplicate key", "cores: 4", "cores: 4\ncores: 5", "cores", "second key 'cores'"),
    ("duplicate key inside", "    lanes: 2", "    lanes: 2\n    lanes: 3", "lanes", "second key 'lanes'"),
    ("tab indentation", "  count: 1\n  macs", "\tcount: 1\n  macs", "the line", "tab"),
    ("unclosed bracket", "k: 16}", "k: 16", "the line", "not YAML"),
    ("two documents", "cores: 4", "cores: 4\n---\nname: other", "the file", "second document"),
    ("python object", "cores: 4", "cores: !!python/object:os.system {}", "cores", "expected"),
    ("tagged number", "cores: 4", "cores: !mine 4", "cores", "found"),
    ("unknown alias", "cores: 4", "cores: *nothing", "the line", "undefined alias"),
    ("a date", "title: A tiny chip", "title: 2026-11-30", "title", "in quotes"),
    ("a name with a slash", "name: tiny", "name: ../tiny", "name", "pattern"),
]

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{new}: &{new} [{', '.join(['*' + old] * 9)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)

# (name, content of the file, field, words)
WHOLE = [
    ("empty", b"", "the file", "is empty"),
    ("comments only", b"# nothing\n", "the file", "is empty"),
    ("a list at the top", b"- name: x\n", "the file", "a list at the top"),
    ("a text at the top", b"h100-sxm\n", "the file", "at the top"),
    ("alias bomb", BOMB.encode(), "", "blow up"),
    ("alias of itself", b"name: &a [*a]\n", "name", "found a list"),
    ("deep nesting", b"name: " + b"[" * 20_000, "the file", "deep"),
    ("binary with NUL", b"name: x\n\0\1\2", "the file", "is binary"),
    ("not UTF-8", b"name: x\ntitle: \xff\xfe\n", "the file", "not UTF-8"),
    ("too large", b"#" * (MAX_BYTES + 1), "the file", "larger than"),
    ("control characters", b"name: x\ntitle: \x07\n", "the file", "U+0007"),
    ("a system file", SYSTEM.encode(), "system", "is a system file"),
]

# (name, text of SYSTEM, what replaces it, options, field, words). The chip has no link unless the text asks for it.
SYSTEMS = [
    ("a chip without a link", "", "", {}, "count", "has no link"),
    (
        "tp x pp above the count",
        "count: 2",
        "count: 2\ntp: 2\npp: 2",
        {},
        "tp",
        "tp 2 x pp 2 = 4 chips, but there are 2",
    ),
    ("pp above the count", "count: 2", "count: 2\npp: 3", {}, "pp", "3 chips, but there are 2"),
    ("tp 0", "count: 2", "count: 2\ntp: 0", {}, "tp", "greater than or equal to 1"),
    ("tp as a text", "count: 2", "count: 2\ntp: two", {}, "tp", "integer"),
    ("count 0", "count: 2", "count: 0", {}, "count", "is zero"),
    ("negative count", "count: 2", "count: -2", {}, "count", "is negative"),
    ("unknown key", "count: 2", "cuont: 2", {}, "cuont", "did you mean 'count'"),
    ("missing chip", "chip: tiny.yaml\n", "", {}, "chip", "is missing"),
    ("no such chip", "tiny.yaml", "h10-sxm", {}, "chip", "did you mean 'h100-sxm'"),
    ("no such chip file", "tiny.yaml", "tinny.yaml", {}, "chip", "no such file"),
    ("unknown topology", "count: 2", "count: 2\ntopology: star", {}, "topology", "ring"),
    ("count from nowhere", "count: 2", "count: {value: 2, source: x}", {}, "count.source", "unknown source"),
    ("option tp 0", "count: 2", "count: 1", {"tp": 0}, "tp", "from 1 to"),
    ("option tp above the count", "count: 2", "count: 1", {"tp": 4}, "tp", "4 chips, but there are 1"),
    ("option chips without a link", "count: 2", "count: 1", {"chips": 4}, "chips", "has no link"),
    ("option pp without a link", "count: 2\n", "", {"pp": 4}, "tp", "has no link"),
]


def _ids(rows: list[tuple]) -> list[str]:
    return [row[0].replace(" ", "-") for row in rows]


def _refused(call: Callable[[], object], file: str, field: str, words: str) -> str:
    with pytest.raises(StallscopeError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    assert re.match(rf"{re.escape(file)}:\d+: ", text), text
    assert f": {field}" in text or f"option {field}" in text, text
    assert words in text, text
    assert re.search(r"expected|it is one of|did you mean", text), text
    return text


def _line(text: str) -> int:
    return int(re.search(r"\.yaml:(\d+): ", text)[1])


def test_the_good_file_is_good(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(GOOD)
    assert load_chip(file).peak_flops("bf16") == pytest.approx(2.048e12)


@pytest.mark.parametrize(("name", "old", "new", "field", "words"), EDITS, ids=_ids(EDITS))
def test_a_wrong_edit(tmp_path: Path, name: str, old: str, new: str, field: str, words: str) -> None:
    assert old in GOOD
    file = tmp_path / "tiny.yaml"
    file.write_text(GOOD.replace(old, new, 1))
    text = _refused(lambda: load_chip(file), str(file), field, words)
    if new and field not in ("tiers", "the file") and "missing" not in words and "wrong order" not in name:
        first = GOOD[: GOOD.index(old)].count("\n") + 1
        assert first <= _line(text) <= first + max(old.count("\n"), new.count("\n")) + 1


@pytest.mark.parametrize(("name", "content", "field", "words"), WHOLE, ids=_ids(WHOLE))
def test_a_wrong_file(tmp_path: Path, name: str, content: bytes, field: str, words: str) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_bytes(content)
    _refused(lambda: load_chip(file), str(file), field, words)


@pytest.mark.parametrize(("name", "old", "new", "options", "field", "words"), SYSTEMS, ids=_ids(SYSTEMS))
def test_a_wrong_system(
    tmp_path: Path, name: str, old: str, new: str, options: dict[str, int], field: str, words: str
) -> None:
    linked = "no link" not in words and "link" not in name
    (tmp_path / "tiny.yaml").write_text(GOOD + LINK if linked else GOOD)
    file = tmp_path / "pair.yaml"
    file.write_text(SYSTEM.replace(old, new, 1) if old else SYSTEM)
    _refused(lambda: load_system(file, **options), str(file), field, words)


def test_a_wrong_chip_of_a_system_is_named_by_its_own_file(tmp_path: Path) -> None:
    chip = tmp_path / "tiny.yaml"
    chip.write_text(GOOD.replace("cores: 4", "cores: 0"))
    (tmp_path / "pair.yaml").write_text(SYSTEM)
    _refused(lambda: load_system(tmp_path / "pair.yaml"), str(chip), "cores", "is zero")


def test_a_directory_and_no_file(tmp_path: Path) -> None:
    gone = tmp_path / "gone.yaml"
    for load in (load_chip, load_system):
        _refused(lambda load=load: load(tmp_path), str(tmp_path), "the file", "is a directory")
        _refused(lambda load=load: load(gone), str(gone), "the file", "no such file")


@pytest.mark.parametrize("name", ["h10-sxm", "", "x" * 5000, "a\0b", "H100-SXM"])
def test_an_unknown_name(name: str) -> None:
    for load in (load_chip, load_system):
        with pytest.raises(StallscopeError, match=r"unknown chip.*it is one of: .*h100-sxm.*or give the path"):
            load(name)


def test_the_first_problem_is_told_and_the_rest_counted(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(GOOD.replace("cores: 4", "cores: 0").replace("latency: 50 ns", "latency: 50"))
    text = _refused(lambda: load_chip(file), str(file), "cores", "is zero")
    assert "1 more problem in this file" in text


def test_aliases_within_reason_are_fine(tmp_path: Path) -> None:
    file = tmp_path / "tiny.yaml"
    file.write_text(GOOD.replace("load:\n", "load: &port\n").replace("store:\n  port: 64 B/cycle\n", "store: *port\n"))
    assert load_chip(file).store.bytes_in_flight.value == 16 * 1024


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    raw = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 6))] = data.draw(st.binary(max_size=4))
    try:
        build(Chip, parse_yaml(bytes(raw), "damaged.yaml"))
    except StallscopeError as e:
        text = str(e)
    else:
        return
    assert text.startswith("damaged.yaml:")
    assert "\n" not in text
