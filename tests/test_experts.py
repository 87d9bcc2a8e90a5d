"""Routing is a draw, not an average; what is read is what the draw wakes, what is stored is all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from decoder_drafts import DRAFTS
from laws import check_bytes, check_run, system_of

from stallscope import Request, StallscopeError, compile_graph, decode_graph, load_model, simulate
from stallscope.workloads.routing import expert_loads


def loads_of(graph: nx.DiGraph) -> dict[int, tuple[int, ...]]:
    """Layer -> tokens of each woken expert."""
    found = graph.nodes(data=True)
    return {d["layer"]: d["loads"] for n, d in found if d.get("op") == "expert_linear" and n.endswith("down_proj")}


@pytest.mark.parametrize(("experts", "top_k"), [(256, 8), (128, 4), (8, 2)])
@pytest.mark.parametrize("tokens", [1, 8, 64, 256])
def test_uniform_routing_wakes_as_many_as_the_formula_says(experts: int, top_k: int, tokens: int) -> None:
    draws = np.array([len(expert_loads("uniform", experts, top_k, tokens, seed, 0)) for seed in range(200)])
    mean = experts * (1 - (1 - top_k / experts) ** tokens)
    error = draws.std() / np.sqrt(len(draws))
    assert abs(draws.mean() - mean) <= 4 * error + 1 / len(draws)  # what is rarer than one draw may not show
    if tokens == 1:
        assert set(draws) == {top_k}


def test_distinct_experts_of_deepseek_v3_per_layer() -> None:
    """8 of 256 for one token; the batches of the papers come close to all."""
    woken = {}
    for batch in (1, 8, 64, 256):
        loads = loads_of(decode_graph(load_model("deepseek-v3"), Request(batch=batch)))
        assert len(loads) == 58
        assert {sum(layer) for layer in loads.values()} == {8 * batch}
        woken[batch] = sum(map(len, loads.values())) / 58
    assert woken[1] == 8
    for batch, mean in ((8, 57.4), (64, 222.4), (256, 255.9)):
        assert woken[batch] == pytest.approx(mean, rel=0.02)


def test_layers_differ_and_seeds_repeat() -> None:
    def one(seed: int) -> dict[int, tuple[int, ...]]:
        return loads_of(decode_graph(load_model("qwen3-30b-a3b"), Request(batch=16, seed=seed)))

    assert one(5) == one(5) != one(6)
    assert len(set(one(5).values())) > 40


def test_a_power_law_wakes_fewer_and_loads_them_more() -> None:
    even, skewed = (expert_loads(word, 128, 8, 64, 0, 3) for word in ("uniform", "power:1.2"))
    assert len(skewed) < len(even)
    assert skewed[0] > 2 * even[0]
    assert max(skewed) <= 64, "a token goes to an expert once"
    flat = [len(expert_loads("power:0", 128, 8, 16, seed, 0)) for seed in range(100)]
    assert np.mean(flat) == pytest.approx(128 * (1 - (1 - 8 / 128) ** 16), rel=0.03)


def test_a_trace_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("layer,experts\n0,1 2\n0,2 3\n0,5 6\n1,0 7\n", encoding="utf-8")
    assert expert_loads(str(path), 8, 2, 2, 0, 0) == (2, 1, 1)
    for layer, tokens, says in ((0, 4, "3 tokens"), (2, 1, "0 tokens")):
        with pytest.raises(StallscopeError, match=says):
            expert_loads(str(path), 8, 2, tokens, 0, layer)
    with pytest.raises(StallscopeError, match="2 distinct experts from 0 to 4"):
        expert_loads(str(path), 5, 2, 3, 0, 0)
    path.write_text("a,b\n1,2\n", encoding="utf-8")
    with pytest.raises(StallscopeError, match="columns layer,experts"):
        expert_loads(str(path) + "", 8, 2, 1, 1, 1)


@pytest.mark.parametrize("chip", ["h100-sxm", "groq-3-lpu", "sn40l"])
def test_woken_experts_are_read_and_all_are_stored(chip: str) -> None:
    model = DRAFTS["experts"]
    size = 3 * 256 * 512 * 2
    for batch, more in ((1, {}), (20, {}), (20, {"routing": "power:1.5"})):
        graph = decode_graph(model, Request(batch=batch, context=64, **more))
        run = simulate(compile_graph(graph, system_of(chip, tp=1, pp=1)))
        read = sum(ways["read"].get("expert", 0) for ways in run.bytes.values())
        assert read == size * sum(map(len, loads_of(graph).values()))
        held = sum(kinds.get("expert", 0) for kinds in run.program.info.placement.values())
        assert held == 3 * 16 * size


@pytest.mark.parametrize(
    ("field", "value"), [("loads", (4, 3)), ("loads", (1, 0)), ("loads", [12]), ("loads", (1,) * 17)]
)
def test_loads_that_do_not_fit(field: str, value: Any) -> None:
    graph = decode_graph(DRAFTS["experts"], Request(batch=3))
    graph.nodes["model.layers.1.mlp.experts.up_proj"][field] = value
    with pytest.raises(StallscopeError, match=r"mlp\.experts\.up_proj.*loads"):
        compile_graph(graph, system_of("h100-sxm"))


# Expert parallelism.


@pytest.mark.parametrize("chip", ["h100-sxm", "groq-3-lpu", "sn40l"])
def test_experts_are_spread_and_rows_go_to_them(chip: str) -> None:
    model = DRAFTS["latent"]
    for ep in (2, 4):
        graph = decode_graph(model, Request(batch=16, context=64, ep=ep))
        system = system_of(chip, tp=1, pp=1)
        run = simulate(compile_graph(graph, system))
        check_run(run)
        check_bytes(run, graph, system)
        assert run.program.info.chips == ep
        held = sum(kinds.get("expert", 0) for kinds in run.program.info.placement.values())
        assert held == 2 * 3 * 256 * 512 * 2 * 16 // ep
        assert sum(op.count for op in run.ops if op.kind == "all_to_all") == 2 * 2, "there and back, in two layers"
        assert run.tokens_per_s == pytest.approx(16 / run.interval_fs * 1e15)


def test_the_group_that_gets_most_is_the_one_that_all_wait_for() -> None:
    for seed in range(20):
        whole = expert_loads("power:1.0", 16, 2, 64, seed, 0)
        most = expert_loads("power:1.0", 16, 2, 16, seed, 0, 4)
        assert sum(whole) == 128
        assert 128 / 4 <= sum(most) <= 128
        assert len(most) <= 4
        assert set(most) <= set(whole), "the same tokens, the same draw"


@pytest.mark.parametrize(
    ("model", "request_", "says"),
    [
        ("mixtral-8x7b", {"batch": 9, "ep": 3}, "divisor of the number of experts"),
        ("llama-3.2-1b", {"batch": 4, "ep": 2}, "for no experts"),
        ("mixtral-8x7b", {"batch": 3, "ep": 2}, "divisor of the batch"),
        ("mixtral-8x7b", {"batch": 2, "ep": 2, "phase": "mixed", "prompt": 8}, "1 in phase mixed"),
    ],
)
def test_spreads_that_make_no_sense(model: str, request_: dict[str, Any], says: str) -> None:
    with pytest.raises(StallscopeError, match=says):
        decode_graph(load_model(model), Request(**request_))


def test_chips_must_make_equal_groups() -> None:
    graph = decode_graph(DRAFTS["experts"], Request(batch=4, ep=4))
    with pytest.raises(StallscopeError, match="--ep 4: found 6 chips"):
        compile_graph(graph, system_of("h100-sxm", chips=6))
    assert compile_graph(graph, system_of("h100-sxm", chips=8)).info.tp == 2


def test_more_rows_take_longer_to_go_round() -> None:
    times = []
    for batch in (8, 512):
        graph = decode_graph(DRAFTS["experts"], Request(batch=batch, context=64, ep=8))
        run = simulate(compile_graph(graph, system_of("h100-sxm", tp=1, pp=1)))
        times.append(sum(op.causes_fs.get("link", 0) for op in run.ops if op.kind == "all_to_all"))
    link = system_of("h100-sxm").chip.link
    assert link is not None
    assert times[1] > times[0] >= 2 * 3 * int(link.latency.value)
