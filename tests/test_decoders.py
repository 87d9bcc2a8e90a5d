"""Every kind of decoder, in every phase, style and split: it runs, and all laws hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from decoder_drafts import DRAFTS
from laws import check_bytes, check_run, system_of

from stallscope import Request, StallscopeError, compile_graph, decode_graph, load_model, simulate
from stallscope.sim.run import Run
from stallscope.workloads import check_graph, op_cost, op_nodes

STYLES = ("h100-sxm", "groq-3-lpu", "sn40l")
QUICK: tuple[dict[str, Any], ...] = (
    {"batch": 3, "context": 200},
    {"phase": "mixed", "prompt": 64, "chunk": 32, "batch": 4, "context": 150},
)
MORE: tuple[dict[str, Any], ...] = (
    {"phase": "prefill", "prompt": 100},
    {"phase": "prefill", "prompt": 60, "chunk": 30},
    {"phase": "verify", "verify": 4, "batch": 2, "context": 90, "prefix": 40},
)


def checked(chip: str, graph: nx.DiGraph, **split: int) -> Run:
    check_graph(graph)
    system = system_of(chip, **split)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)
    return run


def all_steps(chip: str, name: str, request: dict[str, Any], ways: tuple[int, ...]) -> None:
    asked = Request(**request)
    for step in range(len(asked.plan)):
        for tp in ways:
            checked(chip, decode_graph(DRAFTS[name], asked, step), tp=tp, pp=1)


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("chip", STYLES)
def test_a_decoder(chip: str, name: str) -> None:
    all_steps(chip, name, QUICK[0], (1, 2))
    checked(chip, decode_graph(DRAFTS[name], Request(**QUICK[1]), 1), tp=2, pp=1)


@pytest.mark.slow
@pytest.mark.parametrize("request_", [*QUICK, *MORE], ids=lambda r: "-".join(map(str, r.values())))
@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("chip", STYLES)
def test_all_phases_and_splits(chip: str, name: str, request_: dict[str, Any]) -> None:
    all_steps(chip, name, request_, (1, 2, 8))


@pytest.mark.parametrize("chip", STYLES)
@pytest.mark.parametrize("form", ["absorbed", "plain"])
def test_both_forms_of_latent_attention_in_every_phase(chip: str, form: str) -> None:
    for request in (QUICK[0], MORE[0]):
        checked(chip, decode_graph(DRAFTS["latent"], Request(latent=form, **request)), tp=2, pp=1)


# What each part reads and computes.


def of_layer(graph: nx.DiGraph, layer: int, kind: str) -> int:
    reads = 0
    for op in op_nodes(graph):
        if graph.nodes[op].get("layer") == layer:
            reads += sum(n for t, n in op_cost(graph, op).reads.items() if graph.nodes[t]["tensor"] == kind)
    return reads


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_latent_cache_is_one_row_per_token_and_layer(dtype: str) -> None:
    graph = decode_graph(load_model("deepseek-v3"), Request(batch=3, context=777, kv=dtype))
    size = {"bf16": 2, "fp8": 1}[dtype]
    assert {of_layer(graph, layer, "kv") for layer in range(61)} == {(512 + 64) * size * 777 * 3}


@pytest.mark.parametrize("chip", STYLES)
def test_chips_of_a_group_each_have_the_latents(chip: str) -> None:
    graph = decode_graph(DRAFTS["latent"], Request(batch=2, context=100))
    one, two = (checked(chip, graph, tp=tp, pp=1) for tp in (1, 2))
    kv = [sum(ways["read"].get("kv", 0) for ways in run.bytes.values()) for run in (one, two)]
    assert kv == [3 * 160 * 2 * 100 * 2, 2 * 3 * 160 * 2 * 100 * 2]
    assert two.program.info.copied_bytes["kv"] == kv[0]


def test_absorbing_saves_bytes_and_plain_saves_work() -> None:
    def work(form: str, **request: Any) -> tuple[int, int]:
        graph = decode_graph(load_model("deepseek-v2-lite"), Request(latent=form, **request))
        costs = [op_cost(graph, op) for op in op_nodes(graph)]
        return sum(c.macs for c in costs), sum(n for c in costs for n in c.reads.values())

    decode = [work(form, batch=8, context=4096) for form in ("absorbed", "plain")]
    prefill = [work(form, phase="prefill", prompt=4096) for form in ("absorbed", "plain")]
    assert decode[0][1] < decode[1][1]
    assert decode[0][0] < decode[1][0], "plain makes keys and values of all cached tokens anew"
    assert prefill[0][0] > prefill[1][0]


def test_plain_latent_attention_by_formula() -> None:
    (graph,) = (decode_graph(DRAFTS["latent_full"], Request(phase="prefill", prompt=10)),)
    macs = {op.rpartition(".")[2]: op_cost(graph, op).macs for op in op_nodes(graph) if ".0." in op}
    assert macs["attention"] == 8 * (96 + 64) * 55
    assert macs["kv_b_proj"] == 10 * 8 * (64 + 64) * 128
    (step,) = (decode_graph(DRAFTS["latent_full"], Request(context=10)),)
    macs = {op.rpartition(".")[2]: op_cost(step, op).macs for op in op_nodes(step) if ".0." in op}
    assert macs["attention"] == 8 * (160 + 128) * 11
    assert macs["absorb_q"] + macs["absorb_v"] == 8 * (64 + 64) * 128


@pytest.mark.parametrize("context", [50, 64, 500])
def test_local_layers_read_their_window_at_most(context: int) -> None:
    graph = decode_graph(DRAFTS["local"], Request(batch=2, context=context))
    row = 2 * 4 * 64 * 2 * 2
    assert [of_layer(graph, layer, "kv") for layer in range(3)] == [row * min(context, 64)] * 2 + [row * context]


def test_prediction_heads_are_kept_and_not_read() -> None:
    model = DRAFTS["predicts"]
    without = replace(model, prediction_layers=())
    for chip in STYLES:
        one, two = (checked(chip, decode_graph(m, Request(context=100)), tp=1, pp=1) for m in (without, model))
        assert one.bytes == two.bytes
        assert one.time_fs == two.time_fs
        held = [sum(sum(kinds.values()) for kinds in run.program.info.placement.values()) for run in (one, two)]
        assert held[1] - held[0] == 2 * model.prediction_params


def test_parts_of_a_sum_are_added_up_once_per_layer() -> None:
    """A parallel layer, and a layer whose experts stand beside a shared MLP, have one all-reduce for both."""
    for name, per_layer in (("parallel", 1), ("latent", 2), ("experts", 2)):
        run = checked("h100-sxm", decode_graph(DRAFTS[name], Request(context=100)), tp=2, pp=1)
        many = sum(op.count for op in run.ops if op.kind == "all_reduce" and "layers" in op.name)
        assert many == per_layer * len(DRAFTS[name].layers)


def test_an_indexer_reads_its_own_keys_whole_and_the_latents_that_it_picks() -> None:
    for context, picked in ((30, 30), (48, 48), (200, 48)):
        graph = decode_graph(DRAFTS["indexed"], Request(batch=2, context=context))
        assert of_layer(graph, 0, "kv") == 2 * 2 * (32 * context + 160 * picked)
        held = [d["shape"] for n, d in graph.nodes(data=True) if n.endswith("layers.0.self_attn.latent_cache")]
        assert held == [(2, 1, context, 160)], "all latents are kept"
        costs = {n.rpartition(".")[2]: op_cost(graph, n).macs for n in op_nodes(graph) if ".0." in n}
        assert costs["scores"] == 2 * 4 * 32 * (context + 1)
        assert costs["attention"] == 2 * 8 * (160 + 128) * (picked + 1)
    with pytest.raises(StallscopeError, match="an indexer picks latents"):
        decode_graph(DRAFTS["indexed"], Request(latent="plain"))
