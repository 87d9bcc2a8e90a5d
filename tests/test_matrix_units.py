"""Matrix units: cycles as SCALE-Sim and Gemmini's RTL have them, laws at random shapes, and the `gemm` command."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_chip_files import GOOD

from stallscope import cli
from stallscope.arch import Chip, load_chip
from stallscope.compiler.matrix import array_time, gemm, unit_cycles
from stallscope.compiler.tile import matrix_fs, vector_fs
from stallscope.errors import StallscopeError

GOLDEN = Path(__file__).parent / "golden" / "systolic.csv"
ROWS = list(csv.DictReader(x for x in GOLDEN.read_text(encoding="utf-8").splitlines() if not x.startswith("#")))
# m, k, n, cycles of Gemmini's RTL on an 8 x 8 weight-stationary array, as ONNXim's tests record them (within 5 %).
GEMMINI = [(1, 512, 1000, 66_360), (1, 2048, 1000, 270_431), (512, 512, 1024, 4_227_300), (512, 1024, 4096, 33_912_072)]

SIDE = st.integers(1, 130)
SIZE = st.one_of(st.integers(1, 300), st.integers(1, 10**12 - 1))
FLOW = st.sampled_from(["os", "ws", "is"])
BUFFERS = st.integers(1, 2)


def named(row: dict[str, str]) -> str:
    return "-".join(row[key] for key in ("array", "dataflow", "m", "k", "n"))


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_cycles_are_those_of_scale_sim(row: dict[str, str]) -> None:
    g = gemm(row["array"], row["dataflow"], 1, int(row["m"]), int(row["n"]), int(row["k"]))
    assert g.time.cycles == int(row["cycles"])
    assert g.time.cycles == int(row["reported_cycles"]) + 1
    assert round(100 * g.mapping_efficiency, 4) == float(row["mapping_efficiency_pct"])
    assert round(100 * g.compute_utilization, 4) == float(row["compute_utilization_pct"])


def test_the_golden_file_is_whole() -> None:
    assert len(ROWS) == 86
    assert {row["dataflow"] for row in ROWS} == {"os", "ws", "is"}


@pytest.mark.parametrize(("m", "k", "n", "cycles"), GEMMINI)
def test_double_buffered_weights_are_those_of_gemmini(m: int, k: int, n: int, cycles: int) -> None:
    ours = gemm("8x8", "ws", 2, m, n, k).time.cycles
    assert abs(ours / cycles - 1) <= 0.05, f"{ours:,} against {cycles:,}"


def timeline(rows: int, cols: int, flow: str, buffers: int, m: int, n: int, k: int) -> int:
    """Tile after tile: when its operands are in the array, when its stream ends, when its last result is out."""
    if flow == "os":
        return sum(k + cols - 1 + rows - 1 for _ in range(0, m, rows) for _ in range(0, n, cols))
    across, steps = (n, m) if flow == "ws" else (m, n)
    now = 0
    for _ in range(0, across, cols):
        loaded, free = now + rows, now
        for _ in range(0, k, rows):
            start = max(loaded, free)
            free = start + steps
            now = free + rows - 1 + cols - 1
            loaded = start + rows if buffers == 2 else now + rows
            free = free if buffers == 2 else now
    return now


@given(st.integers(1, 9), st.integers(1, 9), FLOW, BUFFERS, *[st.integers(1, 40)] * 3)
def test_the_formula_is_the_timeline(rows: int, cols: int, flow: str, buffers: int, m: int, n: int, k: int) -> None:
    assert array_time(rows, cols, flow, buffers, m, n, k).cycles == timeline(rows, cols, flow, buffers, m, n, k)


@given(SIDE, SIDE, FLOW, BUFFERS, SIZE, SIZE, SIZE)
def test_laws(rows: int, cols: int, flow: str, buffers: int, m: int, n: int, k: int) -> None:
    g = gemm(f"{rows}x{cols}", flow, buffers, m, n, k)
    cycles = g.time.cycles
    assert cycles * rows * cols >= m * n * k
    assert cycles == g.time.fill + g.time.stream + g.time.drain
    assert 0 < g.compute_utilization <= g.utilization <= g.mapping_efficiency <= 1
    assert cycles <= array_time(rows, cols, flow, 1, m, n, k).cycles
    assert g.time.alone <= cycles
    for more in ((m + 1, n, k), (m, n + 1, k), (m, n, k + 1)):
        assert array_time(rows, cols, flow, buffers, *more).cycles >= cycles
    whole = [-(-size // side) * side for size, side in zip((m, n, k), _sides(flow, rows, cols), strict=True)]
    assert array_time(rows, cols, flow, buffers, *whole).cycles == cycles  # edge tiles take as long as whole ones


def _sides(flow: str, rows: int, cols: int) -> tuple[int, int, int]:
    return {"os": (rows, cols, 1), "ws": (1, cols, rows), "is": (cols, 1, rows)}[flow]


@given(SIDE, SIDE, BUFFERS, SIZE, SIZE, SIZE)
def test_input_stationary_is_weight_stationary_with_the_operands_exchanged(
    rows: int, cols: int, buffers: int, m: int, n: int, k: int
) -> None:
    assert array_time(rows, cols, "is", buffers, m, n, k) == array_time(rows, cols, "ws", buffers, n, m, k)


def test_one_cell() -> None:
    for flow in ("os", "ws", "is"):
        time = gemm("1x1", flow, 1, 1, 1, 1).time
        assert (time.cycles, time.skew, time.stream, time.drain) == (1 if flow == "os" else 2, 0, 1, 0)


def chip_with(folder: Path, more: str, rate: int = 256) -> Chip:
    path = folder / "tiny.yaml"
    text = GOOD.replace("    bf16: 256\n", f"    bf16: {rate}\n    fp8: {2 * rate}\n    fp32: {rate // 4}\n")
    path.write_text(text.replace("  latency: 10 cycles\n", f"  latency: 10 cycles\n{more}", 1).split("peaks:")[0])
    return load_chip(str(path))


@pytest.mark.parametrize("flow", ["os", "ws", "is"])
def test_a_chip_with_a_systolic_array(flow: str, tmp_path: Path) -> None:
    chip = chip_with(tmp_path, f"  array: {{rows: 16, cols: 16}}\n  dataflow: {flow}\n")
    one = array_time(16, 16, flow, 2, 5, 100, 70)
    assert unit_cycles(chip, "bf16", 5, 100, 70) == one.cycles
    assert unit_cycles(chip, "fp32", 5, 100, 70) == 4 * one.cycles
    assert unit_cycles(chip, "fp8", 5, 100, 70) == -(-one.cycles // 2)
    assert unit_cycles(chip, "bf16", 5, 100, 70, 2) == max(-(-one.cycles // 2), one.alone)
    assert unit_cycles(chip, "bf16", 5, 100, 70, 10**6) == one.alone
    assert unit_cycles(chip, "bf16", 5, 100, 70, 0.5) == 2 * one.cycles
    n, k = np.array([1, 16, 17, 300]), np.array([40, 1, 16, 7])
    each = [array_time(16, 16, flow, 2, 5, int(a), int(b)).cycles for a, b in zip(n, k, strict=True)]
    assert matrix_fs(chip, "bf16", 5, n, k).tolist() == [cycles * chip.period_fs for cycles in each]


def test_a_chip_with_a_mac_array(tmp_path: Path) -> None:
    chip = chip_with(tmp_path, "  granules:\n    fp8: {m: 8, n: 16, k: 32}\n")
    assert unit_cycles(chip, "bf16", 1, 17, 17) == 8 * 32 * 32 // 256
    assert unit_cycles(chip, "fp8", 1, 17, 17) == 8 * 32 * 32 // 512
    assert unit_cycles(chip, "fp8", 1, 16, 33) == 8 * 16 * 64 // 512
    assert unit_cycles(chip, "bf16", 1, 1, 1, 1000) == 1


def test_planes_stream_vectors(tmp_path: Path) -> None:
    chip = chip_with(tmp_path, "  array: {rows: 32, cols: 8}\n  dataflow: mxm\n")
    assert unit_cycles(chip, "bf16", 7, 8, 32) == 7
    assert unit_cycles(chip, "bf16", 7, 9, 33) == 7 * 4
    assert unit_cycles(chip, "fp32", 7, 9, 33) == 7 * 4 * 4


def test_vector_units_are_slower_at_special_functions(tmp_path: Path) -> None:
    chip = chip_with(tmp_path, "")
    assert vector_fs(chip, 320, 0) == 10 * chip.period_fs
    assert vector_fs(chip, 320, 320) == 90 * chip.period_fs
    assert vector_fs(chip, 0, 0) == chip.period_fs


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("  dataflow: ws\n", "dataflow.*no array"),
        ("  array: {rows: 8, cols: 8}\n  dataflow: rs\n", "dataflow"),
        ("  granules:\n    int8: {m: 1, n: 1, k: 1}\n", "granules.*no such dtype"),
        ("  granules:\n    fp8: {m: 0, n: 1, k: 1}\n", "granules.*m"),
    ],
)
def test_bad_matrix_units(more: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(StallscopeError, match=f"(?s){words}"):
        chip_with(tmp_path, more)


def command(*words: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["stallscope", "gemm", *words])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), argv, pytest.raises(SystemExit) as left:
        cli.main()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


SKINNY = ("--array", "128x128", "--dataflow", "ws", "-m", "1", "-n", "4096", "-k", "4096")


@pytest.mark.parametrize("flow", ["os", "ws", "is"])
@pytest.mark.parametrize("buffers", ["1", "2"])
def test_the_command_prints_json(flow: str, buffers: str) -> None:
    words = ("--array", "128x128", "--dataflow", flow, "-m", "64", "-n", "4096", "-k", "1024")
    code, out, err = command(*words, "--weight-buffers", buffers, "--json", "-")
    data = json.loads(out)
    g = gemm("128x128", flow, int(buffers), 64, 4096, 1024)
    assert (code, err) == (0, "")
    assert data["cycles"] == g.time.cycles == data["fill_cycles"] + data["stream_cycles"] + data["drain_cycles"]
    assert data["fill_cycles"] == data["load_cycles"] + data["skew_cycles"]
    assert (data["array"], data["dataflow"], data["m"], data["n"], data["k"]) == ("128x128", flow, 64, 4096, 1024)
    assert data["folds"] == data["row_folds"] * data["col_folds"] == g.time.folds
    assert data["mapping_efficiency"] == (1.0 if flow == "ws" else 0.5)
    assert 0 < data["compute_utilization"] <= data["utilization"] <= 1


@pytest.mark.parametrize("flow", ["os", "ws", "is"])
@pytest.mark.parametrize("buffers", ["1", "2"])
def test_the_command_prints_a_table(flow: str, buffers: str) -> None:
    code, out, err = command(*SKINNY[:2], "--dataflow", flow, *SKINNY[4:], "--weight-buffers", buffers)
    assert (code, err) == (0, "")
    assert f"{array_time(128, 128, flow, int(buffers), 1, 4096, 4096).cycles:,}" in out
    assert all(word in out for word in ("fill: skew", "stream", "drain", "mapping efficiency", "%"))
    assert max(map(len, out.splitlines())) <= 100


def test_the_largest_sizes_are_exact() -> None:
    code, out, _ = command("--array", "1x1", "-m", str(10**12), "-n", str(10**12), "-k", str(10**12), "--json", "-")
    assert (code, json.loads(out)["cycles"]) == (0, 10**24 * (10**12 + 1))
    assert command("--array", "1x1", "-m", str(10**12), "-n", str(10**12), "-k", str(10**12))[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--array", "0x8"), "--array 0x8"),
        (("--array", "axb"), "--array axb"),
        (("--array", "8"), "ROWSxCOLUMNS"),
        (("--array", "8x8x8"), "ROWSxCOLUMNS"),
        (("--array", "-8x8"), "ROWSxCOLUMNS"),
        (("--array", "٨x8"), "ROWSxCOLUMNS"),
        (("--array", "9999999x8"), "1,048,576"),
        (("--array", f"{'9' * 5000}x8"), "ROWSxCOLUMNS"),
        (("-m", "0"), "-m 0"),
        (("-n", "-4"), "-n -4"),
        (("-k", "9" * 40), "-k 9999"),
        (("-k", "9" * 4000), "more than 40 digits"),
        (("--dataflow", "rs"), "output-stationary"),
        (("--weight-buffers", "3"), "--weight-buffers 3"),
        (("--json", "/"), "folder"),
    ],
)
def test_bad_input_is_one_message(words: tuple[str, ...], said: str) -> None:
    code, out, err = command(*SKINNY, *words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert said in err
