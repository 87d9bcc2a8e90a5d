"""Predictions against tables: what is read, left out, counted and found."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stallscope import load_chip
from stallscope.arch import System
from stallscope.cli import app
from stallscope.errors import StallscopeError
from stallscope.validation.cases import product
from stallscope.validation.change import change, kind_of, number_text
from stallscope.validation.command import OURS, Sensitivity, run_validation
from stallscope.validation.fit import fit
from stallscope.validation.parallel import FEW, answers
from stallscope.validation.predict import Predictor
from stallscope.validation.report import errors_table
from stallscope.validation.sensitivity import Moved, StepTime, sensitivity
from stallscope.validation.tables import LeftOut, Names, Table, read_table

NAMES = Names.of([load_chip("h100-sxm"), load_chip("a100-sxm")])
COLUMNS = "gpu,dtype,m,n,k,latency_ms"
MOE = "gpu,moe_dtype,num_tokens,hidden_size,inter_size,topk,num_experts,moe_tp_size,moe_ep_size,distribution,latency_ms"
SUMS = "gpu,op,impl,num_gpus,message_bytes,latency_ms"
STEP = "model,dtype,hardware,n_devices,framework,batch,isl,osl,tpot_ms,metric,spec_decode"


def test_our_tables_are_there_wherever_it_is_installed() -> None:
    assert len(list(OURS.glob("*.csv"))) > 8


def write(path: Path, rows: list[dict[str, object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def products(chip: str, times: dict[tuple[int, int, int], float]) -> list[dict[str, object]]:
    return [
        {"gpu": chip, "dtype": "bfloat16", "m": m, "n": n, "k": k, "latency_ms": ms} for (m, n, k), ms in times.items()
    ]


@pytest.mark.parametrize("path", sorted(OURS.glob("*.csv")), ids=lambda p: p.stem)
def test_every_row_of_our_tables_is_a_case_or_left_out_with_a_reason(path: Path) -> None:
    table = read_table(path, NAMES)
    with path.open() as file:
        rows = len(list(csv.DictReader(file)))
    assert len(table.cases) + table.left_out.total() == rows
    assert table.cases
    assert all(reason for reason in table.left_out)


def test_a_perfect_table_has_no_error_and_its_number_is_found_again(tmp_path: Path) -> None:
    """Rows made by the model itself, with another launch gap: --fit finds that gap."""
    chip = change(load_chip("h100-sxm"), "execution.launch_gap", 2_000_000_000)
    shapes = [(1, 1024, 1024), (1, 4096, 1024), (8, 2048, 2048)]
    empty = write(tmp_path / "shapes.csv", products("h100_sxm", dict.fromkeys(shapes, 1.0)))
    said = Predictor(chip)
    times = {s: said(c.ask).ms for s, c in zip(shapes, read_table(empty, NAMES).cases, strict=True)}
    made = write(tmp_path / "made.csv", products("h100_sxm", times))
    result = run_validation([made], ["h100-sxm"], None, "execution.launch_gap=1 us:3 us")
    assert result.fit is not None
    assert result.fit.best == pytest.approx(2_000_000_000, rel=0.01)
    assert not result.fit.open_ended
    assert all(e.bias < 0 for e in result.errors), "the file's own gap is shorter"


WORDS = ("bfloat16", "float16", "fp8", "fp8_ootb", "fp8_block", "nvfp4", "mxfp4", "int8_wo", "int4_wo", "sq", "int2_wo")


@pytest.mark.parametrize("chip", ["h200", "b200"])
@pytest.mark.parametrize("framework", ["TRTLLM", "VLLM", "SGLang"])
def test_every_dtype_word_is_predicted_or_left_out_and_faster_than_on_h100(
    tmp_path: Path, chip: str, framework: str
) -> None:
    def rows(chip: str) -> list[dict[str, object]]:
        one = {"gpu": f"{chip}_sxm", "latency_ms": 1.0, "framework": framework, "version": "1"}
        return [{**one, "dtype": d, "m": m, "n": 16384, "k": 8192} for d in WORDS for m in (8, 512)]

    said = {}
    for name in ("h100", chip):
        result = run_validation([write(tmp_path / f"{name}.csv", rows(name))], [f"{name}-sxm"], None, None)
        assert dict(result.tables[0].left_out) == {"products in int2_wo": 2}
        said[name] = {(c.case.dtype, c.case.ask[1]): c.said.ms for c in result.compared}
    assert len(said[chip]) == 2 * len(WORDS) - 2
    read = load_chip(f"{chip}-sxm").tier("hbm").bandwidth.value / load_chip("h100-sxm").tier("hbm").bandwidth.value
    for (word, m), ms in said[chip].items():
        gain = said["h100"][word, m] / ms
        assert 0.95 <= gain < 1.1 * max(read, 2.5 if m > 8 else 1) * (2 if word == "nvfp4" else 1), (word, m, gain)
    assert said[chip]["fp8", 8] < said[chip]["bfloat16", 8]


def test_what_the_host_launches_takes_the_longer_of_host_and_chip(tmp_path: Path) -> None:
    """Block-scaled products of vLLM, launch by launch; products below one tile of their kernel are left out."""
    one = {"gpu": "h100_sxm", "dtype": "fp8_block", "m": 16, "latency_ms": 0.06, "framework": "VLLM", "version": "1"}
    sizes = ((1024, 1024), (512, 128), (32, 1024), (512, 64), (16384, 16384))
    result = run_validation(
        [write(tmp_path / "t.csv", [{**one, "n": n, "k": k} for n, k in sizes])], ["h100-sxm"], None, None
    )
    gap = load_chip("h100-sxm").execution.host_gap
    assert gap is not None
    small, smaller, large = (c.said for c in result.compared)
    assert small.ms == smaller.ms == 3 * gap.value / 10**12
    assert small.causes == (("host", 1.0),)
    assert large.ms > small.ms
    assert "host" not in dict(large.causes)
    assert {c.case.op for c in result.compared} == {"gemm, host launch"}
    assert result.tables[0].left_out.total() == 2


def test_errors_as_json_by_bucket(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", products("h100_sxm", {(1, 1024, 1024): 0.004, (1, 8192, 8192): 0.049}))
    out = CliRunner().invoke(app, ["validate", "--table", str(table), "--chip", "h100-sxm", "--json", "-"])
    assert out.exit_code == 0, out.output
    errors = json.loads(out.stdout)
    assert [e["bucket"] for e in errors] == ["all", "under 10 MB", "100 to 400 MB"]
    assert [e["rows"] for e in errors] == [2, 1, 1]
    assert set(errors[0]) == {"table", "chip", "op", "dtype", "bucket", "rows", "median_ape", "p90_ape", "bias"}
    assert all(0 <= e["median_ape"] <= e["p90_ape"] for e in errors)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "found columns a, b"),
        ("", "t.csv:1: found no header; expected the names of columns"),
        (f"{COLUMNS}\n", "found no rows"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,one,2,3,4\n", "t.csv:2: m: found one; expected a number"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1.5,2,3,4\n", "t.csv:2: m: found 1.5; expected a whole number"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,,4\n", "t.csv:2: k: found nothing"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2\n", "t.csv:2: found 4 fields; expected 6, as in the header"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,3,4,5\n", "t.csv:2: found 7 fields; expected 6"),
        (f"{COLUMNS}\n\nh100_sxm,bfloat16,0,2,3,4\n", "t.csv:3: m: found 0; expected a whole number from 1 to"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,1e12,4\n", "t.csv:2: k: found 1e12; expected a whole number from 1 to"),
        (f"{COLUMNS},k\nh100_sxm,bfloat16,1,2,3,4,5\n", "t.csv:1: found column 'k' twice"),
        (f"{MOE}\nh100_sxm,bfloat16,4,128,128,2,8,0,1,balanced,1\n", "t.csv:2: moe_tp_size: found 0"),
        (f"{MOE}\nh100_sxm,bfloat16,4,128,128,9,8,1,1,balanced,1\n", "t.csv:2: topk: found 9; expected at most 8"),
        (f"{MOE}\nh100_sxm,bfloat16,4,128,128,2,8,1,3,balanced,1\n", "moe_ep_size: found 3; expected a divisor of 8"),
        (f"{MOE}\nh100_sxm,bfloat16,4,128,128,2,8,3,1,balanced,1\n", "moe_tp_size: found 3; expected a divisor of 128"),
        (f"{MOE}\nh100_sxm,bfloat16,{2**21},128,128,2,8,1,1,balanced,1\n", "num_tokens: found 2097152; expected at"),
        (f"{STEP}\nllama-3.1-8b,bf16,h100-sxm,1,x,1,128,many,3,m,\n", "t.csv:2: osl: found many; expected a number"),
        (f"{STEP}\nllama-3.1-8b,bf16,h100-sxm,1,x,0,128,1,3,m,\n", "t.csv:2: batch: found 0"),
        (f"{SUMS}\nh100_sxm,all_reduce,x,1,100,1\n", "t.csv:2: num_gpus: found 1; expected a whole number from 2"),
        ("\0\1gpu\n", "found columns"),
        ("a" * 200_000, "is no CSV text in UTF-8"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,3,0\n", "t.csv:2: latency_ms: found 0; expected milliseconds"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,3,nan\n", "t.csv:2: latency_ms: found nan"),
    ],
)
def test_bad_tables_are_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(StallscopeError, match=message):
        read_table(path, NAMES)


def test_a_table_that_is_not_there_is_one_message(tmp_path: Path) -> None:
    for path, message in ((tmp_path / "t.csv", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(StallscopeError, match=f"cannot be read: {message}") as found:
            read_table(path, NAMES)
        assert "Errno" not in str(found.value)


def test_blank_lines_and_blank_fields_behind_a_row_are_nothing(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{COLUMNS}\n\nh100_sxm,bfloat16,1,2,3,4,,\n,,,,,\n")
    assert len(read_table(path, NAMES).cases) == 1


@pytest.mark.parametrize("word", ["uniform", "power_law_", "power_law_x", "power_law_1.0", ""])
def test_experts_chosen_in_an_unknown_way_are_left_out(tmp_path: Path, word: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{MOE}\nh100_sxm,bfloat16,4,128,128,2,8,1,1,{word},1\n")
    assert read_table(path, NAMES).left_out == {f"experts chosen by {word or '(nothing)'}": 1}


def test_a_table_of_experts_needs_no_name_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(f"{MOE}\nh100_sxm,bfloat16,4,128,128,2,8,1,1,balanced,1\n")
    assert [case.name for case in read_table(path, NAMES).cases] == ["4 tokens, tp 1, ep 1, balanced"]


def test_columns_come_in_any_order_with_others_among_them(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(
        "\ufefflatency_ms,note,k,n,m,framework,dtype,gpu\n0.5,x,3,2,1,of nobody,bfloat16,H100\n", encoding="utf-8"
    )
    (case,) = read_table(path, NAMES).cases
    assert (case.chip, case.ask, case.measured_ms) == ("h100-sxm", ("gemm", 1, 2, 3, "bf16", "bf16", 0, 5, 0), 0.5)


@pytest.mark.parametrize(
    ("dtype", "framework", "weight", "casts"),
    [
        ("bfloat16", "TRTLLM", "bf16", 0),
        ("fp8", "TRTLLM", "fp8", 6),
        ("fp8", "of nobody", "fp8", 1),
        ("nvfp4", "TRTLLM", "nvfp4", 1),
    ],
)
def test_products_hold_the_casts_of_their_framework(
    tmp_path: Path, dtype: str, framework: str, weight: str, casts: int
) -> None:
    row = {"gpu": "H100", "dtype": dtype, "m": 1, "n": 2, "k": 3, "latency_ms": 1, "framework": framework}
    (case,) = read_table(write(tmp_path / "t.csv", [row]), NAMES).cases
    assert case.ask == ("gemm", 1, 2, 3, weight, weight, casts, 5, 0)


@pytest.mark.parametrize("word", ["h100-sxm", "h100_sxm", "H100 SXM", "H100", "Nvidia H100 GPU"])
def test_a_chip_goes_by_its_name_in_any_spelling(word: str) -> None:
    assert NAMES[word] == "h100-sxm"


@pytest.mark.parametrize(("word", "others"), [("H300", ()), ("", ()), ("h100", ("h100-pcie",)), ("h100_pcie", ())])
def test_a_word_that_may_mean_another_chip_names_none(word: str, others: tuple[str, ...]) -> None:
    with pytest.raises(LeftOut, match="chip"):
        Names.of([load_chip("h100-sxm")], others)[word]


def test_rows_of_other_chips_are_counted_and_alone_they_are_an_error(tmp_path: Path) -> None:
    rows = products("h300_sxm", {(1, 64, 64): 1.0}) * 2
    said = CliRunner().invoke(app, ["validate", "--table", str(write(tmp_path / "t.csv", rows)), "--chip", "h200-sxm"])
    assert said.exit_code == 2
    assert "no row to compare; rows left out: 2 for chip h300_sxm" in said.output
    both = write(tmp_path / "t.csv", [*rows, *products("H200", {(1, 64, 64): 1.0})])
    result = run_validation([both], ["h200-sxm"], None, None)
    assert (len(result.compared), result.tables[0].left_out.total()) == (1, 2)


def test_a_plot_is_written_or_refused_before_anything_is_predicted(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    table = write(tmp_path / "t.csv", products("h100_sxm", {(1, 64, 64): 0.003}))
    words = ["validate", "--table", str(table), "--chip", "h100-sxm", "--plot"]
    assert CliRunner().invoke(app, [*words, str(tmp_path / "p.png")]).exit_code == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    refused = CliRunner().invoke(app, ["validate", "--table", "none.csv", "--plot", str(tmp_path / "no" / "p.png")])
    assert refused.exit_code == 2
    assert "there is no folder" in refused.output
    refused = CliRunner().invoke(app, ["validate", "--table", "none.csv", "--plot", str(tmp_path / "p.plot")])
    assert refused.exit_code == 2
    assert "found suffix '.plot'" in refused.output


def test_many_cores_say_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal questions are asked once; the order is that of the questions."""
    chip = load_chip("a100-sxm")
    asks = [("all-reduce", 1024 * n, 2, False) for n in range(1, FEW + 3)]
    alone = [Predictor(chip)(ask) for ask in asks]
    monkeypatch.setattr("stallscope.validation.parallel._cores", lambda: 2)
    assert answers(Predictor(chip), asks, "rows") == alone


@pytest.mark.parametrize("text", ["launch_gap", "execution.launch_gap=3 us:1 us", "execution.lunch_gap=1 us:2 us"])
def test_a_fit_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(StallscopeError, match=r"expected|swap|unknown|no "):
        run_validation([OURS / "gemm_tiny_overhead.csv"], ["h100-sxm"], 1, text)


def test_a_number_that_a_step_does_not_meet_asks_for_no_further_run() -> None:
    chip, graph = load_chip("h100-sxm"), product(1, 64, 64, "bf16", "bf16", 0)
    step = StepTime(graph, System(chip, 1, 1, 1, "none", chip.name))
    base, moved = sensitivity(chip, step)
    assert base == step(chip)
    (unmet,) = [m for m in moved if m.path == "matrix.availability.fp16"]
    assert unmet.less == unmet.more == 0
    assert len(step.known) < len(moved)


@pytest.mark.parametrize("name", ["h100-sxm", "a100-sxm", "h200-sxm", "b200-sxm"])
def test_every_assumed_number_can_be_moved(name: str) -> None:
    chip = load_chip(name)
    for path, fact in chip.facts():
        try:
            kind_of(chip, path)
        except StallscopeError:  # several numbers of one origin
            assert path.endswith(("granule", "tiles", "dram", "parts")), path
            continue
        assert dict(change(chip, path, 7).facts())[path].value == 7, path
        assert kind_of(chip, path)
        assert fact.origin


def test_steps_over_one_to_eight_chips_are_near_the_measured_time() -> None:
    """A 7B model whose steps hold nothing but themselves."""
    result = run_validation([OURS / "endtoend.csv"], ["a100-sxm"], None, None)
    assert len(result.compared) == 4
    assert all(abs(c.error) < 0.15 for c in result.compared), [(c.case.name, c.error) for c in result.compared]


def test_a_fit_is_told_in_the_units_of_chip_files_and_is_part_of_the_json(tmp_path: Path) -> None:
    table = write(tmp_path / "t.csv", products("h100_sxm", {(1, 1024, 1024): 0.004}))
    words = ["validate", "--table", str(table), "--chip", "h100-sxm", "--fit", "execution.prologue=0 ns:600 ns"]
    text = CliRunner().invoke(app, words).stdout
    assert "\n\nexecution.prologue: median error by value\n" in text
    assert "   100.000 ns " in text
    assert "base units" not in text
    data = json.loads(CliRunner().invoke(app, [*words, "--json", "-"]).stdout)
    assert set(data) == {"errors", "fit"}
    assert (data["fit"]["path"], data["fit"]["values"][0]) == ("execution.prologue", 0)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (650_000_000, "time0", "650.000 ns"),
        (3_350_000_000_000, "bandwidth", "3.35 TB/s"),
        (1_830_000_000, "frequency", "1.83 GHz"),
        (4096, "bytes", "4,096 bytes"),
        (160, "cycles", "160 cycles"),
        (0.863, "fraction", "0.863"),
    ],
)
def test_numbers_in_base_units_are_written_as_chip_files_have_them(value: float, kind: str, text: str) -> None:
    assert number_text(value, kind) == text


def test_a_fit_of_a_whole_number_tries_whole_numbers() -> None:
    found = fit(load_chip("h100-sxm"), "execution.stages", 1, 8, lambda chip: abs((chip.execution.stages or 0) - 3.4))
    assert found.best == 3
    assert all(value == int(value) for value in found.values)


def test_no_move_a_small_one_and_none_that_can_be_made_differ() -> None:
    moved = [Moved("a", "1", "", 0.0, 1e-7), Moved("b", "2", "", None, -0.0123), Moved("c", "3", "", -1e-7, 0.5)]
    cells = [line.split() for line in Sensitivity("toy", 1.0, moved).text().splitlines()]
    assert ["a", "1", "0", "<0.01%"] in cells
    assert ["b", "2", "-", "-1.23%"] in cells
    assert ["c", "3", "<0.01%", "+50.00%"] in cells


def test_a_long_reason_leaves_room_for_how_many_rows_it_took() -> None:
    table = Table("t", [], Counter({"a reason of many words " * 10: 7}))
    lines = errors_table([table], [], []).splitlines()
    assert any(line.split()[:2] == ["7", "a"] for line in lines), lines
