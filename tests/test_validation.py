"""Predictions against tables: what is read, left out, counted and found."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stallscope import load_chip
from stallscope.arch import System
from stallscope.cli import app
from stallscope.errors import StallscopeError
from stallscope.validation.cases import product
from stallscope.validation.change import change, kind_of
from stallscope.validation.command import OURS, run_validation
from stallscope.validation.parallel import FEW, answers
from stallscope.validation.predict import Predictor
from stallscope.validation.sensitivity import StepTime, sensitivity
from stallscope.validation.tables import LeftOut, Names, read_table

NAMES = Names.of([load_chip("h100-sxm"), load_chip("a100-sxm")])
COLUMNS = "gpu,dtype,m,n,k,latency_ms"


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
        ("", r"found columns \(none\)"),
        (f"{COLUMNS}\n", "found no rows"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,one,2,3,4\n", "t.csv:2: m: found one; expected a number"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1.5,2,3,4\n", "t.csv:2: m: found 1.5; expected a whole number"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2\n", "t.csv:2: k: found nothing"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,3,0\n", "t.csv:2: latency_ms: found 0; expected milliseconds"),
        (f"{COLUMNS}\nh100_sxm,bfloat16,1,2,3,nan\n", "t.csv:2: latency_ms: found nan"),
    ],
)
def test_bad_tables_are_one_message(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(StallscopeError, match=message):
        read_table(path, NAMES)


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


def test_many_cores_say_what_one_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal questions are asked once; the order is that of the questions."""
    chip = load_chip("a100-sxm")
    asks = [("all-reduce", 1024 * n, 2, False) for n in range(1, FEW + 3)]
    alone = [Predictor(chip)(ask) for ask in asks]
    monkeypatch.setattr("stallscope.validation.parallel._cores", lambda: 2)
    assert answers(Predictor(chip), asks) == alone


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
