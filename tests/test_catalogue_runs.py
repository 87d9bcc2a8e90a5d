"""Every chip of the catalogue with every model: it runs and keeps all laws, or says why it does not fit."""

from __future__ import annotations

import re

import networkx as nx
import pytest
from laws import SIMULATED, check_bytes, check_kernels, check_run, graph_of, system_of

from stallscope import StallscopeError, compile_graph, load_model, simulate
from stallscope.arch import System, chip_names, load_chip, load_system, system_names
from stallscope.compiler.fit import DoesNotFitError
from stallscope.sim.run import Run

QUICK = ("llama-3.2-1b", "qwen2.5-0.5b", "llama-3.1-8b")
REQUESTS = (
    {"batch": 16, "context": 300},
    {"batch": 3, "context": 1000, "weight": "fp8", "kv": "fp8"},
    {"context": 1},
    {"context": 4096, "weight": "int4", "activation": "fp16"},
    {"batch": 200, "context": 64, "weight": "fp32", "kv": "fp32", "activation": "fp32"},
)


def check_pair(name: str, model: str, **request: object) -> None:
    graph, system = graph_of(model, **request), load_system(name)
    try:
        program = compile_graph(graph, system)
    except DoesNotFitError as error:
        reason = str(error)
    else:
        return check_all(simulate(program), graph, system)
    assert re.search(r"\d[\d.,]* (GiB|MiB|stages)", reason), reason
    return None


def check_all(run: Run, graph: nx.DiGraph, system: System) -> None:
    """All laws, and that the report is about what was asked for."""
    check_run(run)
    check_bytes(run, graph, system)
    assert run.program.info.model == graph.graph["name"]
    assert run.program.info.chip == system.chip.name
    if system.chip.style == "kernels" and system.chip.execution.overlap == "none":
        check_kernels(run)


@pytest.mark.parametrize("model", QUICK)
@pytest.mark.parametrize("chip", chip_names())
def test_a_pair(chip: str, model: str) -> None:
    check_pair(chip, model)


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda r: "-".join(f"{k}.{v}" for k, v in r.items()))
@pytest.mark.parametrize("chip", chip_names())
def test_other_requests(chip: str, request_: dict[str, object]) -> None:
    check_pair(chip, "llama-3.2-1b", **request_)


@pytest.mark.parametrize("name", system_names())
def test_a_system(name: str) -> None:
    check_pair(name, "llama-3.2-1b")


@pytest.mark.slow
@pytest.mark.parametrize("model", [m for m in SIMULATED if m not in QUICK])
@pytest.mark.parametrize("chip", chip_names())
def test_all_pairs(chip: str, model: str) -> None:
    check_pair(chip, model)


@pytest.mark.slow
@pytest.mark.parametrize("model", SIMULATED)
@pytest.mark.parametrize("name", system_names())
def test_all_systems(name: str, model: str) -> None:
    tp, heads = load_system(name).tp, load_model(model).layers[0].attention.heads
    if tp and heads % tp:
        with pytest.raises(StallscopeError, match=rf"tp {tp} does not share out {heads} heads"):
            compile_graph(graph_of(model), load_system(name))
    else:
        check_pair(name, model)


@pytest.mark.slow
@pytest.mark.parametrize("model", SIMULATED)
@pytest.mark.parametrize("chip", chip_names())
def test_a_long_context_in_small_formats(chip: str, model: str) -> None:
    check_pair(chip, model, batch=8, context=32_768, weight="int4", kv="fp8")


@pytest.mark.parametrize("name", [c for c in chip_names() if load_chip(c).style == "kernels"])
def test_more_chips_are_not_slower(name: str) -> None:
    graph = graph_of("llama-3.2-3b")
    times = [simulate(compile_graph(graph, system_of(name, tp=tp))).time_fs for tp in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
