"""Reports: sums that are shown add up, lines fit, JSON has its keys, every word is explained."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fake_run import TIME_FS, make_info, make_program, make_run
from hypothesis import given
from hypothesis import strategies as st

import stallscope
from stallscope.compiler.program import Bound
from stallscope.errors import StallscopeError
from stallscope.report import units
from stallscope.report.bound import bound_json, bound_table
from stallscope.report.compare import Column, compare_json, compare_table
from stallscope.report.definitions import GROUPS
from stallscope.report.explain import INDEX, define, explain_text
from stallscope.report.json import check_target, json_text, run_json, run_schema, write_json
from stallscope.report.program import program_table
from stallscope.report.tables import SECTIONS, stall_table

DOES_NOT_FIT = StallscopeError("hbm of x holds 80 GB, but llama-3.1-70b needs 141.2 GB: 61.2 GB too much. Use 2 chips.")

PARTS = st.lists(st.integers(0, 10**18), min_size=1, max_size=12)

RUN_KEYS = """
    schema chip chips tp pp model phase batch context dtypes time_s time_fs cycles clock_hz tokens_per_s_per_user
    tokens_per_s interval_fs bound critical_path_fs engines bytes dram ops assumptions fit notes placement
    copied_bytes blocks simulated_blocks spans ep
"""


@given(PARTS, st.integers(0, 10**15))
def test_apportioned_parts_sum_exactly_and_stray_by_less_than_one(parts: list[int], total: int) -> None:
    shares = units.apportion(parts, total)
    whole = sum(parts)
    assert sum(shares) == (total if whole else 0)
    assert all(abs(share * whole - part * total) < max(whole, 1) for part, share in zip(parts, shares, strict=True))


@given(PARTS)
def test_shown_columns_add_up_digit_by_digit(parts: list[int]) -> None:
    *times, total = (float(text.split()[0].replace(",", "")) for text in units.time_column(parts))
    assert round(sum(times) * 1000) == round(total * 1000)
    assert len({text.split()[1] for text in units.time_column(parts)}) == 1
    *shares, all_of_it = units.share_column(parts)
    assert all_of_it == ("100.0%" if sum(parts) else "0.0%")
    tenths = [0 if s == "<0.1%" else round(float(s[:-1]) * 10) for s in shares]
    assert sum(tenths) == (1000 if sum(parts) else 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (units.time_text(5_612_345_678_901), "5.612 ms"),
        (units.time_text(999_999_999_999), "1,000.000 us"),
        (units.time_text(41_791_044_776_119), "41.791 ms"),
        (units.time_text(700 * 10**6), "700.000 ns"),
        (units.time_text(0), "0 fs"),
        (units.bytes_text(16_060_522_496), "16.06 GB"),
        (units.bytes_text(999), "999 B"),
        (units.capacity_text(40 * 2**30), "42.95 GB (40.00 GiB)"),
        (units.number_text(12345.6), "12,346"),
        (units.number_text(178.18), "178.2"),
        (units.number_text(0.0042), "4.20e-03"),
        (units.clock_text(1.755e9), "1.755 GHz"),
        (units.clock_text(9e8), "900 MHz"),
        (units.ratio_text(5, 4), "1.25x"),
        (units.ratio_text(5, 0), "-"),
    ],
)
def test_numbers_as_people_read_them(text: str, wanted: str) -> None:
    assert text == wanted


def texts() -> dict[str, str]:
    run = make_run(make_info(model="a-model-with-quite-a-long-name" * 5), ops=40)
    many = [Column(f"chip-number-{i}", make_run() if i % 3 else DOES_NOT_FIT) for i in range(11)]
    return {
        "run": stall_table(run),
        "compare": compare_table(many),
        "explain": explain_text(),
        "program": program_table(run.program),
    }


@pytest.mark.parametrize("name", ["run", "compare", "explain", "program"])
def test_lines_fit_in_100_columns_and_carry_no_terminal_codes(name: str) -> None:
    lines = texts()[name].splitlines()
    assert max(map(len, lines)) <= 100
    assert all(line == line.rstrip() and line.isprintable() for line in lines)


def test_the_report_is_golden(golden: Callable[[str, str], None]) -> None:
    golden("stall_table.txt", stall_table(make_run()))


def test_the_comparison_is_golden(golden: Callable[[str, str], None]) -> None:
    other = make_run(
        make_info(chip="sn40l", chips=8, tp=8, model="llama-3.1-8b", dtypes={"weight": "fp8", "kv": "bf16"})
    )
    columns = [Column("h100-sxm", make_run()), Column("sn40l", other), Column("x", DOES_NOT_FIT)]
    golden("compare_table.txt", compare_table(columns))


def column_of(text: str, title: str, column: int) -> tuple[list[str], str]:
    """The cells of a column of the section of that title, and its total."""
    body = text[text.index(title) :].split("\n\n")[1]
    _, rows, total = re.split(r"\n\s*─+\n", body)

    def cell(line: str) -> str:
        return re.split(r"\s{2,}", line.strip())[column]

    return [cell(line) for line in rows.splitlines()], cell(total)


def test_cycles_of_causes_add_up_to_the_total_shown() -> None:
    cells, total = column_of(stall_table(make_run()), "Where the time goes", 1)
    cycles = [int(cell.replace(",", "")) for cell in cells]
    assert sum(cycles) == int(total.replace(",", "")) == make_run().cycles


def test_times_of_ops_add_up_to_the_time_per_token() -> None:
    text = stall_table(make_run(ops=40))
    times = re.findall(r"([\d.]+) ms +[<\d.]+%", text[text.index("Ops that cost most") :])
    assert round(sum(map(float, times[:-1])) * 1000) == round(float(times[-1]) * 1000) == 5612
    assert "28 others" in text


def test_the_answer_comes_first_and_the_words_are_pointed_at_last() -> None:
    lines = stall_table(make_run()).splitlines()
    assert lines[0].startswith("llama-3.1-8b on h100-sxm")
    assert lines[2].split()[:5] == ["time", "per", "token", "5.612", "ms"]
    assert "--explain" in lines[-1]
    assert [s.__name__ for s in SECTIONS][:2] == ["answer", "critical_path"]


def test_pipeline_stages_show_the_interval() -> None:
    run = make_run(make_info(chips=2, pp=2))
    object.__setattr__(run, "interval_fs", TIME_FS // 2)
    assert "a step leaves every 2.806 ms" in stall_table(run)


def test_a_run_below_its_bound_is_called_impossible() -> None:
    assert "please report this" in stall_table(make_run(make_info(bound=Bound(2 * TIME_FS, "matrix"))))


def test_names_are_taken_literally() -> None:
    text = stall_table(make_run(make_info(model="[bold]evil[/bold] \x1b[31m :smile:")))
    assert "[bold]evil[/bold] ?[31m :smile:" in text


def test_a_run_without_engines_ops_or_bound_still_reports() -> None:
    run = make_run(make_info(bound=Bound(0, "none"), assumptions=(), notes=(), fit=()))
    for field in ("engines", "ops"):
        object.__setattr__(run, field, ())
    object.__setattr__(run, "bytes", {})
    text = stall_table(run)
    assert "no bound is known" in text
    assert "every number of the chip has a source" in text


def test_a_chip_that_cannot_says_why_in_its_column() -> None:
    text = compare_table([Column("h100-sxm", make_run()), Column("x", DOES_NOT_FIT)])
    squeezed = " ".join(text.split())
    assert str(DOES_NOT_FIT) in squeezed
    assert "5.612 ms -" in squeezed
    assert compare_json([Column("x", DOES_NOT_FIT)])[0] == {
        "schema": "stallscope-run/1",
        "chip": "x",
        "error": str(DOES_NOT_FIT),
    }


def test_json_has_exactly_the_promised_keys_and_keeps_the_sums() -> None:
    data = json.loads(json_text(run_json(make_run())))
    assert sorted(data) == sorted(RUN_KEYS.split())
    assert sum(data["critical_path_fs"].values()) == data["time_fs"] == TIME_FS
    assert sum(op["time_fs"] for op in data["ops"]) == TIME_FS
    for engine in data["engines"]:
        assert engine["busy_fs"] + sum(engine["stalls_fs"].values()) == TIME_FS * engine["count"]
    assert set(data["bytes"]["hbm"]) == {"read", "write"}


def follows(data: Any, schema: dict[str, Any]) -> bool:
    """Whether data follows the part of JSON Schema that the run's schema uses."""
    types: dict[str, Any] = {"string": str, "integer": int, "number": int | float, "object": dict, "array": list}
    if "const" in schema:
        return bool(data == schema["const"])
    if not isinstance(data, types[schema["type"]]):
        return False
    if schema["type"] == "array":
        return all(follows(item, schema["items"]) for item in data)
    if schema["type"] == "object":
        named, others = schema.get("properties", {}), schema["additionalProperties"]
        if not set(schema.get("required", ())) <= set(data) or (others is False and set(data) - set(named)):
            return False
        return all(follows(value, named.get(key, others)) for key, value in data.items())
    return data >= schema.get("minimum", data) if isinstance(data, int) else True


def test_json_follows_its_schema() -> None:
    assert follows(json.loads(json_text(run_json(make_run()))), run_schema())
    assert not follows(run_json(make_run()) | {"cycles": -1}, run_schema())
    assert not follows(run_json(make_run()) | {"more": 1}, run_schema())


def test_every_json_key_and_cause_is_explained() -> None:
    data = run_json(make_run())
    words = {*data, *data["bound"], *data["engines"][0], *data["ops"][0], *data["critical_path_fs"], "dram:hbm"}
    words |= {"buffer", "imbalance", "idle", "read", "write"} | {"must_bytes", "bound_s"}
    for word in words - {"name", "kind"}:
        assert define(word).text


def test_labels_of_the_tables_are_explained() -> None:
    labels = ["time per token", "tokens/s per user", "tokens/s in all", "chips", "bound", "distance", "cycles", "share"]
    for label in [*labels, "/bound", "/must", "moved", "busy", "main cause", "bound limited by", "assumptions"]:
        assert define(label).text


def test_definitions_are_unique_and_findable() -> None:
    words = [word for _, group in GROUPS for d in group for word in (d.word, *d.also)]
    assert sorted(words) == sorted(set(words)) == sorted(INDEX)
    assert define("Bandwidth:HBM").word == "bandwidth"
    assert define("time  per TOKEN").word == "time per token"
    with pytest.raises(StallscopeError, match="did you mean 'bandwidth'"):
        define("bandwith")


def test_json_files_are_whole_or_absent(tmp_path: Path) -> None:
    target = tmp_path / "run.json"
    write_json(str(target), {"a": 1})
    assert json.loads(target.read_text()) == {"a": 1}
    with pytest.raises(ValueError):
        write_json(str(target), {"a": float("nan")})
    assert json.loads(target.read_text()) == {"a": 1}
    link = tmp_path / "link.json"
    link.symlink_to(target)
    target.chmod(0o640)
    write_json(str(link), {"b": 2})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"b": 2}
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "run.json"]


@pytest.mark.parametrize(("target", "reason"), [("", "this is a folder"), ("no/such/run.json", "there is no folder")])
def test_targets_that_cannot_be_written_are_refused(tmp_path: Path, target: str, reason: str) -> None:
    with pytest.raises(StallscopeError, match=reason):
        check_target(str(tmp_path / target))


def test_public_names_are_few_lazy_and_documented() -> None:
    assert sorted(stallscope.__all__) == stallscope.__all__
    assert len(stallscope.__all__) == 13
    page = Path(__file__).parents[1] / "docs" / "extending.md"
    text = page.read_text(encoding="utf-8")
    for name in stallscope.__all__:
        assert getattr(stallscope, name) is not None
        assert re.search(rf"\b{name}\b", text), f"{name} is public but not in {page.name}"
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        stallscope.nonsense  # noqa: B018


def test_importing_the_package_loads_nothing_heavy() -> None:
    code = "import sys, stallscope; print(*sorted({'numpy', 'numba', 'pydantic', 'rich', 'typer'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []


def test_bound_shows_the_arithmetic_of_each_term() -> None:
    term = SimpleNamespace(
        name="bandwidth:hbm", amount_text="140 GB", rate_text="3.35 TB/s", time_fs=41_791_044_776_119
    )
    small = SimpleNamespace(name="matrix", amount_text="70 GMAC", rate_text="989 TFLOP/s", time_fs=142_000_000_000)
    bound = SimpleNamespace(
        chips=1,
        terms=(small, term),
        time_fs=term.time_fs,
        limiter=term.name,
        weight_bytes=140 * 10**9,
        kv_bytes=40 * 2**30,
        capacity={"hbm": 80 * 10**9},
        remarks=("hbm of one chip holds 80 GB, so 140 GB of weights do not fit",),
    )
    text = bound_table(cast(Any, bound), "toy on a chip: decode")
    assert text.startswith("Bound of one step of toy on a chip: decode\n")
    assert re.search(r"bandwidth:hbm +140 GB +3.35 TB/s +41.791 ms\n", text)
    assert "42.95 GB (40.00 GiB)" in text
    assert text.index("bandwidth:hbm  ") < text.index("matrix  ")
    assert "do not fit" in text
    assert max(map(len, text.splitlines())) <= 100
    assert bound_json(cast(Any, bound))["terms"][0]["name"] == "matrix"


def test_program_summary_counts_repeats() -> None:
    text = program_table(make_program(make_info()))
    assert re.search(r"instructions +33,", text)
