"""The compiler as a whole: must-show figures, exact repetition, pipelines, the text form, and the laws of programs."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from drafts import Draft, EngineRow, RouteRow, StationRow, build, with_column
from laws import check_bytes, check_kernels, check_run, graph_of, run_on, system_of
from test_chip_files import GOOD
from test_cli import invoke

from stallscope import compile_graph, load_chip, load_model, simulate
from stallscope.arch import Chip
from stallscope.arch.document import parse_yaml
from stallscope.arch.load import build as build_chip
from stallscope.compiler.fit import DoesNotFitError
from stallscope.compiler.program import Dep, Form, Segment, TileProgram
from stallscope.compiler.verify import LAWS, VerifyError, verify
from stallscope.sim.run import Run, simulate_detailed
from stallscope.workloads import add_op, add_tensor, new_graph


def same_but_simulated(one: Run, two: Run) -> None:
    """Equal in every number but how many blocks were simulated."""
    for field in dataclasses.fields(Run):
        if field.name not in ("program", "simulated_blocks"):
            assert getattr(one, field.name) == getattr(two, field.name), field.name


def test_an_8b_model_on_one_h100() -> None:
    graph, system = graph_of("llama-3.1-8b", context=1024), system_of("h100-sxm")
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)
    check_kernels(run)
    assert run.bytes["hbm"]["read"]["weight"] == 15_009_849_344
    assert run.bytes["hbm"]["read"]["kv"] == 2 * 32 * 8 * 128 * 1024 * 2 == 134_217_728
    assert run.bytes["hbm"]["write"]["kv"] == 2 * 32 * 8 * 128 * 2
    assert run.program.info.bound.time_fs <= run.time_fs < 2 * run.program.info.bound.time_fs
    assert (run.program.info.chips, run.blocks) == (1, 34)


def test_the_article_figures() -> None:
    text = " ".join(invoke("bound", "--chip", "h100-sxm", "--model", "llama-3.1-70b").stdout.split())
    assert "140 GB / 3.35 TB/s = 41.8 ms" in text
    assert "h100-sxm cannot hold this: 131.73 GiB are needed" in text
    assert "has 80.00 GiB; 2 chips (tp 2, pp 1) can" in text
    text = invoke("bound", "--chip", "h100-sxm", "--model", "llama-3.1-70b", "--context", "131072").stdout
    assert "(40.00 GiB)" in next(line for line in text.splitlines() if "KV cache" in line)


@pytest.mark.parametrize(
    ("chip", "model", "split", "request_"),
    [
        ("h100-sxm", "llama-3.1-70b", {"tp": 8}, {}),
        ("h100-sxm", "llama-3.1-70b", {"tp": 8}, {"batch": 32, "context": 2048}),
        pytest.param("sn40l", "llama-3.1-70b", {"chips": 8}, {}, marks=pytest.mark.slow),
        pytest.param("groq-lpu-v1", "llama-3.1-70b", {}, {}, marks=pytest.mark.slow),
        pytest.param("h200-sxm", "llama-3.1-405b", {"tp": 8}, {"weight": "fp8"}, marks=pytest.mark.slow),
    ],
)
def test_large_models_on_many_chips(chip: str, model: str, split: dict[str, int], request_: dict[str, object]) -> None:
    graph, system = graph_of(model, **request_), system_of(chip, **split)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)
    assert run.program.info.fit[0].count("chip") >= 1, "the arithmetic behind the count"
    if "tp" in split:
        assert (run.program.info.chips, run.program.info.tp) == (8, 8)
        assert run.time_fs < 2.2 * run.program.info.bound.time_fs


@pytest.mark.parametrize(
    ("chip", "split", "request_"),
    [
        ("h100-sxm", {}, {}),
        ("h100-sxm", {"tp": 2}, {"batch": 5}),
        ("h100-sxm", {"tp": 2, "pp": 2}, {}),
        ("b200-sxm", {}, {"context": 333}),
        ("a100-sxm", {"pp": 4}, {"weight": "int4"}),
        ("groq-lpu-v1", {}, {}),
        ("groq-3-lpu", {}, {}),
        ("sn40l", {}, {}),
        ("sn40l", {"tp": 8}, {}),
    ],
    ids=str,
)
def test_skipping_changes_nothing(chip: str, split: dict[str, int], request_: dict[str, int]) -> None:
    program = compile_graph(graph_of("llama-3.2-1b", **request_), system_of(chip, **split))
    skipped, whole = simulate(program), simulate(program, skip=False)
    same_but_simulated(skipped, whole)
    assert whole.simulated_blocks == whole.blocks
    check_run(whole)


@pytest.mark.slow
def test_skipping_changes_nothing_for_70b_in_fp8_on_one_h100() -> None:
    program = compile_graph(graph_of("llama-3.1-70b", weight="fp8"), system_of("h100-sxm"))
    skipped, whole = simulate(program), simulate(program, skip=False)
    same_but_simulated(skipped, whole)
    assert skipped.simulated_blocks < 20 < whole.simulated_blocks == 82


@pytest.mark.parametrize(("tp", "pp"), [(1, 2), (1, 4), (2, 2), (1, 16)])
def test_stages_add_up_to_the_latency_and_the_slowest_gives_the_rate(tp: int, pp: int) -> None:
    program = compile_graph(graph_of("llama-3.2-1b"), system_of("h100-sxm", tp=tp, pp=pp))
    run = simulate(program)
    check_run(run)
    stages = stage_times(program)
    assert len(stages) == pp
    assert sum(stages) == run.time_fs
    assert max(stages) == run.interval_fs < run.time_fs
    assert run.tokens_per_s > run.tokens_per_s_per_user
    alone = simulate(compile_graph(graph_of("llama-3.2-1b"), system_of("h100-sxm", tp=tp, pp=1)))
    assert alone.interval_fs == alone.time_fs < run.time_fs
    assert run.time_fs - alone.time_fs < pp * 10**10, "a stage more costs a send and a launch: not 10 us"


def stage_times(program: TileProgram) -> list[int]:
    """From the first start of each stage to that of the next, all blocks simulated."""
    detail = simulate_detailed(program, skip=False)
    stage = [s.stage + i * s.stage_step for s in program.segments for i in range(s.repeat)]
    begun: dict[int, int] = {}
    for number, starts in zip(stage, detail.start, strict=True):
        begun.setdefault(number, int(starts[0]))
    edges = [*(begun[s] for s in sorted(begun)), detail.time_fs]
    return [b - a for a, b in pairwise(edges)]


def test_a_model_that_does_not_fit_is_a_typed_result() -> None:
    with pytest.raises(DoesNotFitError, match=r"smallest split that fits is tp 2, pp 1 \(2 chips\)") as caught:
        compile_graph(graph_of("llama-3.1-70b"), system_of("h100-sxm", chips=1))
    misfit = caught.value.misfit
    assert misfit is not None
    assert (misfit.tier, misfit.capacity) == ("hbm", 80 * 2**30)
    assert misfit.needed == sum(misfit.terms.values())
    assert misfit.missing == misfit.needed - misfit.capacity > 50 * 2**30
    assert misfit.terms["weight"] == 2 * load_model("llama-3.1-70b").params_read_per_token


@pytest.mark.parametrize("chip", ["h100-sxm", "groq-3-lpu", "sn40l"])
def test_the_same_twice(chip: str) -> None:
    graph = graph_of("llama-3.2-1b")
    one, two = (compile_graph(g, system_of(chip)) for g in (graph, graph_of("llama-3.2-1b")))
    assert one.text() == two.text()
    same_but_simulated(simulate(one), simulate(two))


def test_the_same_in_processes_with_other_hash_seeds() -> None:
    code = (
        "import hashlib\nfrom stallscope import *\n"
        "p = compile_graph(decode_graph(load_model('llama-3.2-1b'), Request()), load_system('h100-sxm', tp=2))\n"
        "print(hashlib.sha256(p.text().encode()).hexdigest())"
    )
    program = compile_graph(graph_of("llama-3.2-1b"), system_of("h100-sxm", tp=2))
    wanted = hashlib.sha256(program.text().encode()).hexdigest()
    for seed in ("77",):
        env = {**os.environ, "PYTHONHASHSEED": seed}
        assert subprocess.check_output([sys.executable, "-P", "-c", code], env=env, text=True).strip() == wanted


def tiny_chip() -> Chip:
    return build_chip(Chip, parse_yaml(GOOD.encode(), "tiny.yaml"))


def test_the_text_of_a_tiny_program(golden: Callable[[str, str], None]) -> None:
    graph = new_graph("tiny", 1)
    add_tensor(graph, "x", "activation", (1, 64))
    add_tensor(graph, "g", "weight", (64,))
    (y,) = add_op(graph, "norm", "rmsnorm", {"x": "x", "weight": "g"}, {"out": (1, 64)})
    add_tensor(graph, "w", "weight", (24, 64))
    add_op(graph, "fc", "linear", {"x": y, "weight": "w"}, {"out": (1, 24)})
    program = compile_graph(graph, system_of(tiny_chip()))
    golden("tiny_program.txt", program.text())
    run = simulate(program)
    check_run(run)
    check_kernels(run)


def test_a_graph_of_ten_lines_runs_on_a_chip_given_by_path(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(GOOD)
    graph = new_graph("mine", batch=2)
    add_tensor(graph, "x", "activation", (2, 256))
    for name, kind, shape in (("up", "weight", (512, 256)), ("down", "weight", (256, 512))):
        add_tensor(graph, name, kind, shape)
    (h,) = add_op(graph, "first", "linear", {"x": "x", "weight": "up"}, {"out": (2, 512)})
    (h,) = add_op(graph, "act", "gelu", {"x": h}, {"out": (2, 512)})
    (h,) = add_op(graph, "second", "linear", {"x": h, "weight": "down"}, {"out": (2, 256)})
    add_op(graph, "sum", "add", {"a": "x", "b": h}, {"out": (2, 256)})
    run = run_on(load_chip(str(tmp_path / "tiny.yaml")), graph)
    check_run(run)
    assert run.bytes["hbm"]["read"]["weight"] == 2 * 512 * 256 * 2


# The laws: a good program, and for each law one that breaks only that law.

GOOD_ROWS = [
    Draft(0, Form.TRANSFER, nbytes=96, tier=1, kind=0),
    Draft(1, Form.HOLD, hold_fs=100, latency_fs=20).after(0),
    Draft(0, Form.TRANSFER, nbytes=64, tier=1, kind=0, export=0).after(1, dep=Dep.WAR),
]
STATIC_ROWS = [
    Draft(0, Form.HOLD, hold_fs=100, start_fs=0),
    Draft(1, Form.HOLD, hold_fs=50, start_fs=100).after(0),
    Draft(0, Form.HOLD, hold_fs=30, start_fs=100),
]


def program_of(rows: list[Draft], window: int = 128, static: bool = False) -> TileProgram:
    engines = [EngineRow("load", period=10, window=window), EngineRow("matrix", period=10)]
    segment = Segment(0, 2, static=static, length_fs=200 if static else 0)
    return build(engines, [rows], [segment], [StationRow()], [RouteRow(64, ((0, 30, "latency:hbm"),))])


def machine(program: TileProgram, part: str, column: str, value: int) -> TileProgram:
    """One number of an engine, station or route changed."""
    table = getattr(program, part)
    changed = getattr(table, column).copy()
    changed[0] = value
    return dataclasses.replace(program, **{part: dataclasses.replace(table, **{column: changed})})


def column(name: str, values: list[int], static: bool = False) -> TileProgram:
    good = program_of(STATIC_ROWS, static=True) if static else program_of(GOOD_ROWS)
    return with_column(good, 0, name, values)


BREAKS: tuple[tuple[str, str, Callable[[], TileProgram]], ...] = (
    ("numbers", "unknown engine", lambda: column("engine", [0, 2, 0])),
    ("numbers", "negative cause", lambda: column("cause", [0, -1, 0])),
    ("numbers", "unknown op", lambda: column("op", [0, 0, 9])),
    ("numbers", "unknown tier", lambda: column("tier", [2, -1, 1])),
    ("numbers", "unknown kind", lambda: column("kind", [3, -1, 0])),
    ("numbers", "unknown form", lambda: column("form", [1, 2, 1])),
    ("numbers", "unknown route", lambda: column("route", [1, 0, 0])),
    ("numbers", "segment of no body", lambda: dataclasses.replace(program_of(GOOD_ROWS), segments=(Segment(1, 2),))),
    (
        "numbers",
        "segment that never runs",
        lambda: dataclasses.replace(program_of(GOOD_ROWS), segments=(Segment(0, 0),)),
    ),
    ("times", "negative hold", lambda: column("hold_fs", [0, -1, 0])),
    ("times", "negative latency", lambda: column("latency_fs", [0, -1, 0])),
    ("times", "negative address", lambda: column("address", [-64, 0, 0])),
    ("times", "negative step", lambda: column("step", [-64, 0, 0])),
    ("times", "transfer of nothing", lambda: column("nbytes", [96, 0, 0])),
    ("times", "no period", lambda: machine(program_of(GOOD_ROWS), "engines", "period_fs", 0)),
    ("times", "no rate", lambda: machine(program_of(GOOD_ROWS), "stations", "den", 0)),
    ("times", "no lanes", lambda: machine(program_of(GOOD_ROWS), "stations", "lanes", 0)),
    ("times", "no chunk", lambda: machine(program_of(GOOD_ROWS), "routes", "chunk_bytes", 0)),
    ("times", "negative latency of a route", lambda: machine(program_of(GOOD_ROWS), "routes", "latency_fs", -1)),
    ("edges", "edge forward", lambda: column("dep_pred", [2, 1])),
    ("edges", "edge to itself", lambda: column("dep_pred", [1, 1])),
    ("edges", "edge to nowhere", lambda: column("dep_pred", [-1, 1])),
    ("edges", "unknown type", lambda: column("dep_type", [3, 1])),
    ("edges", "slot twice", lambda: column("export", [0, -1, 0])),
    ("chunks", "window too small", lambda: program_of(GOOD_ROWS, window=63)),
    ("static", "no start", lambda: column("start_fs", [0, -1, 100], static=True)),
    ("static", "off the clock edge", lambda: column("start_fs", [0, 105, 100], static=True)),
    ("static", "two at once on one engine", lambda: column("start_fs", [0, 100, 90], static=True)),
    ("static", "behind the block's end", lambda: column("start_fs", [0, 160, 100], static=True)),
)


@pytest.mark.parametrize(("law", "name", "make"), BREAKS, ids=[name for _, name, _ in BREAKS])
def test_each_law_refuses_what_breaks_it(law: str, name: str, make: Callable[[], TileProgram]) -> None:
    program = make()
    broken = next(full for full, _ in LAWS if full.startswith(law))
    with pytest.raises(VerifyError, match=f"breaks the law '{broken}'"):
        verify(program)
    for full, check in LAWS:
        if full not in (broken, "numbers name what exists") and law != "numbers":
            assert list(check(program)) == [], f"{name} breaks '{full}' too"


def test_good_programs_pass_all_laws() -> None:
    assert {law.split()[0] for law, _ in LAWS} == {law for law, _, _ in BREAKS}
    for program in (program_of(GOOD_ROWS), program_of(STATIC_ROWS, static=True)):
        verify(program)
        simulate(program)


def test_two_instructions_on_one_engine_are_both_named() -> None:
    with pytest.raises(VerifyError, match=r"'%0 .*' and '%2 .*' are on \S+ at once"):
        verify(column("start_fs", [0, 100, 90], static=True))


@pytest.mark.parametrize("chip", ["groq-lpu-v1", "groq-3-lpu"])
def test_a_static_schedule_ends_when_its_compiler_said(chip: str) -> None:
    run = run_on(chip, graph_of("llama-3.2-1b"))
    assert run.program.info.schedule_fs == run.time_fs
    assert all(segment.static for segment in run.program.segments)


def test_blocks_of_identical_layers_share_a_body() -> None:
    program = compile_graph(graph_of("llama-3.1-8b"), system_of("h100-sxm"))
    assert [s.repeat for s in program.segments if s.repeat > 1] in ([31], [30], [32])
    assert len(program.bodies) <= 5
    layer = program.bodies[max(program.segments, key=lambda s: s.repeat).body]
    assert np.unique(layer.step[(layer.form == Form.TRANSFER) & (layer.kind == 0)]).tolist() != [0]
