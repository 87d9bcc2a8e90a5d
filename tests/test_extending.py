"""The examples of docs/extending.md are run as they stand there."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import shown, write_files

from stallscope import load_chip, load_graph, stall_table
from stallscope.compiler import fuse, place
from stallscope.report import tables
from stallscope.sim.run import Run
from stallscope.workloads.ops import OPS

Example = Callable[[str], dict[str, Any]]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Example:
    """Run one of the page's files in a folder with all of them; what it registers is forgotten afterwards."""
    write_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for table, name in ((OPS, "relu2"), (place.POLICIES, "cache_first")):
        monkeypatch.setitem(table, name, None)  # type: ignore[arg-type]
        del table[name]
    monkeypatch.delitem(__import__("sys").modules, "relu2", raising=False)
    for module, name in ((fuse, "RULES"), (tables, "SECTIONS")):
        monkeypatch.setattr(module, name, getattr(module, name))
    return lambda name: runpy.run_path(name)


def sums_are_exact(run: Run) -> None:
    assert sum(run.critical_path_fs.values()) == run.time_fs
    assert sum(op.time_fs for op in run.ops) == run.time_fs
    for engine in run.engines:
        assert engine.busy_fs + sum(engine.stalls_fs.values()) == run.time_fs * engine.count
    assert run.time_fs >= run.program.info.bound.time_fs


def test_a_chip_by_one_file(example: Example) -> None:
    chip = load_chip("toy.yaml")
    assert chip.cores.value == 2
    assert chip.tier("dram").bandwidth.source == "sheet"
    report = json.loads(shown("stallscope run --chip toy.yaml --model llama-3.2-1b --json -"))
    assert report["chip"] == "toy"
    assert report["time_fs"] == sum(report["critical_path_fs"].values())
    assert set(report["bytes"]) == {"sram", "dram"}


def test_an_operator_by_one_row(example: Example) -> None:
    assert "relu2" not in OPS
    row = example("relu2.py")["OPS"]["relu2"]
    assert row.vector({"...": 4096}) == 8192


def test_a_graph_in_ten_lines(example: Example) -> None:
    run = example("mlp.py")["run"]
    sums_are_exact(run)
    assert run.program.info.chip == "h100-sxm"
    assert run.bytes["hbm"]["read"]["weight"] == 2 * 1024 * 4096 * 2


def test_a_graph_by_one_file(example: Example) -> None:
    assert len(load_graph("tiny.json")) == 4
    report = json.loads(shown("stallscope run --chip h100-sxm --graph tiny.json --json -"))
    assert report["bytes"]["hbm"]["read"]["weight"] == 256 * 64 * 2


def test_a_placement_policy(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    told = example("policy.py")
    new = 16 * 2 * 8 * 64 * 2  # the new token of all layers
    assert told["before"].info.placement["sram"]["kv"] == 2**20 + new
    assert told["plan"].used[0]["sram"]["kv"] == 3 * 2**20 + new
    one, two = (int(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert round((one - two) / 1e9) == 23  # us, as the page says


def test_a_fusion_rule(example: Example) -> None:
    told = example("fusion.py")
    apart, fused = told["apart"], told["fused"]
    assert [op.name for op in apart.ops] == ["up", "act"]
    assert [op.name for op in fused.ops] == ["up+act"]
    assert fused.time_fs < apart.time_fs
    assert fused.program.instructions < apart.program.instructions
    for run in (apart, fused):
        sums_are_exact(run)


def test_a_stall_cause(example: Example) -> None:
    run = example("cause.py")["run"]
    assert run.critical_path_fs["warmup"] == 500_000_000
    sums_are_exact(run)


def test_a_part_of_the_report(example: Example, capsys: pytest.CaptureFixture[str]) -> None:
    told = example("section.py")
    assert "Stations" in capsys.readouterr().out
    assert told["stations"] in tables.SECTIONS
    assert stall_table.__module__ == "stallscope.report.tables"
