"""Tensor parallelism, placement and the choice of a split."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import networkx as nx
import pytest
from laws import graph_of, system_of, with_fact

from stallscope import load_chip
from stallscope.arch import Chip
from stallscope.compiler.fit import DoesNotFitError
from stallscope.compiler.place import POLICIES, place, stored
from stallscope.compiler.plan import Plan
from stallscope.compiler.shard import shard
from stallscope.compiler.split import split
from stallscope.errors import StallscopeError
from stallscope.workloads import add_op, add_tensor, check_graph, new_graph, op_cost, op_nodes, tensor_bytes

LAYER = "model.layers.3."


def shape(graph: nx.DiGraph, name: str) -> tuple[int, ...]:
    return tuple(graph.nodes[name]["shape"])


def total(graph: nx.DiGraph, kind: str) -> int:
    return sum(tensor_bytes(d) for n, d in graph.nodes(data=True) if d.get("tensor") == kind and not graph.in_degree(n))


def macs(graph: nx.DiGraph) -> int:
    return sum(op_cost(graph, op).macs for op in op_nodes(graph))


def test_one_chip_has_the_graph_as_it_is() -> None:
    graph = graph_of("llama-3.2-1b")
    assert shard(graph, 1) is graph


@pytest.mark.parametrize("tp", [2, 4, 8])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "llama-3.1-70b"])
def test_each_chip_has_its_share(model: str, tp: int) -> None:
    graph = graph_of(model, batch=3)
    local = shard(graph, tp)
    assert macs(local) * tp == macs(graph)
    assert total(local, "kv") * tp == total(graph, "kv")
    assert total(local, "embedding") * tp == total(graph, "embedding")
    vectors = sum(
        tensor_bytes(d) for _, d in graph.nodes(data=True) if d.get("tensor") == "weight" and len(d["shape"]) == 1
    )
    assert total(local, "weight") * tp == total(graph, "weight") + (tp - 1) * vectors


@pytest.mark.parametrize("tp", [2, 8])
@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen2.5-72b"])
def test_a_share_is_a_graph_by_the_schema(model: str, tp: int) -> None:
    check_graph(shard(graph_of(model), tp))


def test_a_tied_head_is_cut_as_its_table_or_stored_twice() -> None:
    check_graph(shard(graph_of("llama-3.2-1b"), 2))


def test_megatron_cuts() -> None:
    local = shard(graph_of("llama-3.1-8b", context=77), 4)
    assert shape(local, f"{LAYER}self_attn.q_proj.weight") == (1024, 4096)
    assert shape(local, f"{LAYER}self_attn.k_proj.weight") == (256, 4096)
    assert shape(local, f"{LAYER}self_attn.k_cache") == (1, 2, 77, 128)
    assert shape(local, f"{LAYER}self_attn.o_proj.weight") == (4096, 1024)
    assert shape(local, f"{LAYER}mlp.gate_proj.weight") == (3584, 4096)
    assert shape(local, f"{LAYER}mlp.down_proj.weight") == (4096, 3584)
    assert shape(local, f"{LAYER}input_layernorm.weight") == (4096,)
    assert shape(local, "lm_head.weight") == (32_064, 4096)
    assert shape(local, "model.embed_tokens.weight") == (128_256, 1024)


def test_collectives_are_where_parts_meet() -> None:
    local = shard(graph_of("llama-3.1-8b"), 4)
    found = Counter((d["op"], d.get("layer")) for _, d in local.nodes(data=True) if d.get("op", "").startswith("all_"))
    wanted = {("all_reduce", layer): 2 for layer in range(32)}
    assert found == {**wanted, ("all_gather", None): 1, ("all_reduce", None): 1}
    for node, data in local.nodes(data=True):
        if data.get("op") == "all_reduce" and data.get("layer") is not None:
            (source,), (result,) = local.predecessors(node), local.successors(node)
            assert shape(local, source) == shape(local, result) == (1, 4096)


def test_more_chips_than_kv_heads_copy_them() -> None:
    graph = graph_of("llama-3.2-1b", context=50)  # 32 heads, 8 KV heads of 64
    local = shard(graph, 16)
    assert shape(local, f"{LAYER}self_attn.k_cache") == (1, 1, 50, 64)
    assert shape(local, f"{LAYER}self_attn.k_proj.weight") == (64, 2048)
    assert shape(local, f"{LAYER}self_attn.q_proj.weight") == (128, 2048)
    assert total(local, "kv") * 16 == 2 * total(graph, "kv")


@pytest.mark.parametrize(("model", "tp"), [("llama-3.2-1b", 3), ("llama-3.2-1b", 64), ("qwen2.5-7b", 8)])
def test_heads_that_do_not_divide_are_refused(model: str, tp: int) -> None:
    with pytest.raises(StallscopeError, match=rf"tp {tp} does not share out .* expected a tp of 1, 2, 4"):
        shard(graph_of(model), tp)


def test_biases_go_with_their_columns() -> None:
    local = shard(graph_of("qwen2.5-7b"), 4)
    assert shape(local, f"{LAYER}self_attn.q_proj.bias") == (896,)
    assert shape(local, f"{LAYER}self_attn.k_proj.bias") == (128,)


def test_a_graph_without_marks_runs_on_every_chip_alike() -> None:
    graph = new_graph("plain")
    add_tensor(graph, "x", "activation", (1, 64))
    add_tensor(graph, "w", "weight", (32, 64))
    add_op(graph, "fc", "linear", {"x": "x", "weight": "w"}, {"out": (1, 32)})
    local = shard(graph, 4)
    assert shape(local, "w") == (32, 64)
    assert not [n for n, d in local.nodes(data=True) if d.get("op", "").startswith("all_")]


def test_a_split_result_is_gathered_once_for_all_that_need_it_whole() -> None:
    graph = new_graph("gather")
    add_tensor(graph, "x", "activation", (1, 64))
    add_tensor(graph, "w", "weight", (32, 64))
    (y,) = add_op(graph, "fc", "linear", {"x": "x", "weight": "w"}, {"out": (1, 32)}, parallel="column")
    add_op(graph, "one", "softmax", {"x": y}, {"out": (1, 32)})
    add_op(graph, "two", "softmax", {"x": y}, {"out": (1, 32)})
    local = shard(graph, 4)
    check_graph(local)
    assert shape(local, "fc.out") == (1, 8)
    gathers = [n for n, d in local.nodes(data=True) if d.get("op") == "all_gather"]
    assert len(gathers) == 1
    assert local.out_degree(next(iter(local.successors(gathers[0])))) == 2


# Placement.


def planned(chip: str | Chip, graph: nx.DiGraph, **parts: int) -> Plan:
    return split(graph, system_of(chip, **parts))


@pytest.mark.parametrize(
    ("chip", "model", "parts"),
    [
        ("h100-sxm", "llama-3.1-8b", {}),
        ("h100-sxm", "llama-3.2-1b", {"pp": 3}),
        ("sn40l", "llama-3.1-8b", {}),
        ("groq-lpu-v1", "llama-3.2-1b", {}),
    ],
)
def test_every_tensor_has_a_tier_that_may_hold_it_and_room(chip: str, model: str, parts: dict[str, int]) -> None:
    plan = planned(chip, graph_of(model), **parts)
    for node, data in plan.graph.nodes(data=True):
        if data["kind"] == "tensor":
            assert data["tensor"] in plan.chip.tier(plan.tier[node]).holds, node
    for used in plan.used:
        for tier, kinds in used.items():
            assert sum(kinds.values()) <= plan.chip.tier(tier).capacity.value
    held = sum(n for used in plan.used for kinds in used.values() for kind, n in kinds.items() if kind != "activation")
    assert held == sum(sum(stored(plan, stage.units).values()) for stage in plan.stages)


@pytest.mark.parametrize("chip", ["h100-sxm", "sn40l", "groq-3-lpu"])
def test_addresses_do_not_overlap(chip: str) -> None:
    plan = planned(chip, graph_of("llama-3.2-3b"))
    for stage in plan.stages:
        spans: dict[str, list[tuple[int, int]]] = {}
        for tensor, size in stored(plan, stage.units).items():
            if size and not plan.graph.in_degree(tensor):  # what is appended has room, and no address of its own
                spans.setdefault(plan.tier[tensor], []).append((plan.address[tensor], size))
        for tier in spans.values():
            tier.sort()
            assert all(a + n <= b for (a, n), (b, _) in pairwise(tier))


def test_identical_layers_are_equally_far_apart() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.1-8b"))
    at = [plan.address[f"model.layers.{i}.mlp.up_proj.weight"] for i in range(32)]
    steps = {b - a for a, b in pairwise(at)}
    assert len(steps) == 1
    hbm = plan.chip.tier("hbm")
    assert steps.pop() % (hbm.lanes * int(hbm.interleave.value)) == 0


def test_a_tied_head_is_stored_once_and_lies_where_its_table_does() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.2-1b"))
    held = plan.used[0]["hbm"]
    table = 128_256 * 2048 * 2
    assert held["embedding"] == table
    assert held["weight"] == total(plan.graph, "weight") - table
    assert plan.tier["lm_head.weight"] == plan.tier["model.embed_tokens.weight"]


def test_a_tied_head_in_another_stage_is_a_copy() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.2-1b"), pp=2)
    held = [used["hbm"] for used in plan.used]
    assert held[0]["embedding"] == 128_256 * 2048 * 2
    assert "embedding" not in held[1]
    assert held[1]["weight"] > held[0]["weight"]


def test_what_is_read_most_is_nearest() -> None:
    chip = load_chip("sn40l")
    near = next(t for t in chip.tiers if t.scope == "chip" and "weight" in t.holds and "embedding" in t.holds)
    graph = graph_of("llama-3.1-8b")
    smaller = with_fact(chip, **{f"tiers__{near.name}__capacity": 16_000_000_000})
    plan = planned(smaller, graph, chips=1)
    assert plan.tier["lm_head.weight"] == near.name
    assert plan.tier["model.embed_tokens.weight"] != near.name, "one row in 128,256 of the table is read"
    in_order = place(Plan(plan.chip, plan.graph, 1, plan.stages), "order")
    assert in_order.tier["model.embed_tokens.weight"] == near.name
    assert set(POLICIES) == {"reuse", "order"}


def test_a_full_tier_is_full_to_the_byte() -> None:
    graph = new_graph("exact")
    add_tensor(graph, "x", "activation", (1, 64))
    add_tensor(graph, "w", "weight", (512, 64))
    add_op(graph, "fc", "linear", {"x": "x", "weight": "w"}, {"out": (1, 512)})
    chip = load_chip("h100-sxm")
    fits = with_fact(chip, tiers__hbm__capacity=512 * 64 * 2)
    assert planned(fits, graph, chips=1).used[0]["hbm"] == {"weight": 65_536}
    with pytest.raises(DoesNotFitError) as caught:
        planned(with_fact(chip, tiers__hbm__capacity=512 * 64 * 2 - 1), graph, chips=1)
    assert caught.value.misfit is not None
    assert caught.value.misfit.missing >= 1


def test_a_misfit_says_how_many_bytes_are_missing() -> None:
    graph = new_graph("exact")
    add_tensor(graph, "x", "activation", (1, 64))
    add_tensor(graph, "w", "weight", (512, 64))
    add_op(graph, "fc", "linear", {"x": "x", "weight": "w"}, {"out": (1, 512)})
    with pytest.raises(DoesNotFitError) as caught:
        planned(with_fact(load_chip("h100-sxm"), tiers__hbm__capacity=512 * 64 * 2 - 1), graph, chips=1)
    assert caught.value.misfit is not None
    assert caught.value.misfit.missing == 1


# The choice of a split.


@pytest.mark.parametrize(
    ("chip", "model", "tp", "pp"),
    [
        ("h100-sxm", "llama-3.1-8b", 1, 1),
        ("h100-sxm", "llama-3.1-70b", 2, 1),
        ("b200-sxm", "llama-3.1-70b", 1, 1),
        ("h200-sxm", "qwen2.5-14b", 1, 1),
        pytest.param("h200-sxm", "llama-3.1-405b", 8, 1, marks=pytest.mark.slow),
        pytest.param("h100-sxm", "llama-3.1-405b", 8, 2, marks=pytest.mark.slow),
        pytest.param("a100-sxm", "llama-3.1-405b", 8, 2, marks=pytest.mark.slow),
        ("sn40l", "llama-3.1-70b", 1, 1),
    ],
)
def test_the_smallest_split_that_fits(chip: str, model: str, tp: int, pp: int) -> None:
    plan = planned(chip, graph_of(model))
    assert (plan.tp, plan.pp) == (tp, pp)
    if tp * pp > 1:
        smaller = {"tp": tp, "pp": pp - 1} if pp > 1 else {"tp": tp // 2, "pp": 1}
        with pytest.raises(DoesNotFitError, match=f"smallest split that fits is tp {tp}, pp {pp}"):
            planned(chip, graph_of(model), **smaller)


@pytest.mark.parametrize("model", ["qwen2.5-0.5b", "qwen2.5-7b"])
def test_heads_that_do_not_fill_a_node_still_get_stages(model: str) -> None:
    plan = planned("groq-lpu-v1", graph_of(model))
    assert plan.pp > 1


def test_a_number_of_chips_that_heads_do_not_share_becomes_stages() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.2-1b"), chips=5)
    assert plan.tp * plan.pp == 5


@pytest.mark.parametrize(
    "parts", [{"chips": 9, "tp": 4, "pp": 2}, {"chips": 5, "pp": 2}, {"chips": 5, "tp": 2}], ids=str
)
def test_chips_left_over_are_refused(parts: dict[str, int]) -> None:
    with pytest.raises(StallscopeError, match="chips"):
        planned("h100-sxm", graph_of("llama-3.2-1b"), **parts)


def test_stages_are_of_equal_numbers_of_layers() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.2-1b"), pp=5)
    layers = [len({u.layer for u in stage.units} - {None}) for stage in plan.stages]
    assert sum(layers) == 16
    assert max(layers) - min(layers) <= 1
    seen = [u.layer for stage in plan.stages for u in stage.units]
    assert seen == [None, *range(16), None]


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(StallscopeError, match=r"pp 17: .* has 16 layers; .* lower --pp"):
        planned("h100-sxm", graph_of("llama-3.2-1b"), pp=17)


def test_the_arithmetic_behind_the_count_is_told() -> None:
    plan = planned("h100-sxm", graph_of("llama-3.1-70b"))
    first, second = plan.fit
    assert "/ (80.00 GiB hbm) = at least 2 chips" in first
    assert second.startswith("tp 2 x pp 1 = 2 chips; the fullest holds ")
