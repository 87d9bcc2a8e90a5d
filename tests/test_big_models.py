"""The models that people run, on the chips of each style: every byte against a count from the numbers of their configs.

The count below knows nothing of ops, graphs or formats of ours: it is arithmetic on config.json, written by hand.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from laws import check_bytes, check_run, system_of

from stallscope import Request, compile_graph, decode_graph, load_model, simulate
from stallscope.workloads.routing import expert_loads

MODELS = Path(__file__).parents[1] / "workloads" / "models"
NAMES = ("deepseek-v3", "gpt-oss-120b", "qwen3-235b-a22b", "mixtral-8x7b", "gemma-3-27b")
CHIPS = ("h200-sxm", "groq-3-lpu", "sn40l")
BATCH, CONTEXT = 4, 1500

Count = dict[str, int]


def blocks(rows: int, columns: int) -> int:
    """fp8 with one fp32 scale for each 128 x 128."""
    return rows * columns + 4 * -(-rows // 128) * -(-columns // 128)


def deepseek(c: dict[str, Any], layer: int, woken: int) -> Count:
    h, heads, rank = c["hidden_size"], c["num_attention_heads"], c["kv_lora_rank"]
    nope, rope, v = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    low, inner = c["q_lora_rank"], c["moe_intermediate_size"]
    weight = blocks(low, h) + blocks(heads * (nope + rope), low) + blocks(rank + rope, h)
    weight += blocks(heads * (nope + v), rank) + blocks(h, heads * v) + 2 * (2 * h + low + rank)
    latents = 2 * (rank + rope) * BATCH
    found = {"weight": weight, "kv": latents * CONTEXT, "kv written": latents, "expert": 0, "expert stored": 0}
    if layer < c["first_k_dense_replace"]:
        found["weight"] += 2 * blocks(c["intermediate_size"], h) + blocks(h, c["intermediate_size"])
        return found
    one = 2 * blocks(inner, h) + blocks(h, inner)
    found["weight"] += one + 2 * c["n_routed_experts"] * (h + 1)
    return found | {"expert": woken * one, "expert stored": c["n_routed_experts"] * one}


def gpt_oss(c: dict[str, Any], layer: int, woken: int) -> Count:
    h, heads, kv, d = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    inner, experts = c["intermediate_size"], c["num_local_experts"]
    weight = 2 * ((heads + 2 * kv) * d * (h + 1) + h * (heads * d + 1) + heads + 2 * h + experts * (h + 1))
    kept = min(CONTEXT, c["sliding_window"]) if c["layer_types"][layer] == "sliding_attention" else CONTEXT
    mxfp4 = 3 * inner * h * 17 // 32  # 4 bits, and 8 for each 32
    one = mxfp4 + 2 * (2 * inner + h)
    token = 2 * 2 * kv * d * BATCH
    return {"weight": weight, "kv": token * kept, "kv written": token, "expert": woken * one,
            "expert stored": experts * one}  # fmt: skip


def grouped(c: dict[str, Any], layer: int, woken: int) -> Count:
    """Qwen3-MoE, Mixtral, Gemma 3."""
    h, heads, kv, d = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
    gemma = c["model_type"].startswith("gemma")
    weight = 2 * (2 * heads * d * h + 2 * kv * d * h + (4 if gemma else 2) * h)
    weight += 0 if c["model_type"] == "mixtral" else 2 * 2 * d
    kept = min(CONTEXT, c["sliding_window"]) if gemma and (layer + 1) % c["sliding_window_pattern"] else CONTEXT
    token = 2 * 2 * kv * d * BATCH
    found = {"weight": weight, "kv": token * kept, "kv written": token, "expert": 0, "expert stored": 0}
    if gemma:
        found["weight"] += 2 * 3 * h * c["intermediate_size"]
        return found
    experts = c.get("num_experts") or c["num_local_experts"]
    one = 2 * 3 * h * (c.get("moe_intermediate_size") or c["intermediate_size"])
    found["weight"] += 2 * experts * h
    return found | {"expert": woken * one, "expert stored": experts * one}


COUNTS = {"deepseek_v3": deepseek, "gpt_oss": gpt_oss}


def counted(name: str, layers: int) -> Count:
    """Bytes that one step moves, by kind, and bytes that are stored: of the first `layers` layers and the ends."""
    c = json.loads((MODELS / f"{name}.json").read_text(encoding="utf-8"))
    h, vocab = c["hidden_size"], c["vocab_size"]
    total: Count = {"weight": 2 * (vocab * h + h), "embedding": 2 * BATCH * h}
    experts = c.get("n_routed_experts") or c.get("num_experts") or c.get("num_local_experts") or 0
    for layer in range(layers):
        woken = len(expert_loads("uniform", experts, c["num_experts_per_tok"], BATCH, 0, layer)) if experts else 0
        for kind, n in COUNTS.get(c["model_type"], grouped)(c, layer, woken).items():
            total[kind] = total.get(kind, 0) + n
    return total


def check(name: str, chip: str, layers: int | None) -> None:
    model = load_model(name)
    if layers is not None:
        model = replace(model, layers=model.layers[:layers], prediction_layers=())
    graph = decode_graph(model, Request(batch=BATCH, context=CONTEXT))
    system = system_of(chip, tp=1)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)
    want = counted(name, len(model.layers))
    for kind in ("weight", "embedding", "kv", "expert"):
        per_tier = {tier: ways["read"].get(kind, 0) for tier, ways in run.bytes.items()}
        assert sum(per_tier.values()) == want[kind], kind
        if layers is not None:  # small enough for the nearest memory that holds weights
            assert {t for t, n in per_tier.items() if n} <= {"hbm", "sram"}, kind
    assert sum(ways["write"].get("kv", 0) for ways in run.bytes.values()) == want["kv written"]
    if run.program.info.pp == 1 and layers is not None:
        held = [sum(kinds.get(kind, 0) for kinds in run.program.info.placement.values()) for kind in ("expert", "kv")]
        assert held == [want["expert stored"], want["kv"] + want["kv written"]]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chip", CHIPS)
def test_first_layers(chip: str, name: str) -> None:
    check(name, chip, 4 if name == "deepseek-v3" else 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("chip", CHIPS)
def test_whole_models(chip: str, name: str) -> None:
    check(name, chip, None)


def test_sizes_as_their_makers_state_them() -> None:
    """gpt-oss-120b in its checkpoint's formats: 65.25 GB, of which experts 60.9 GB at 4.25 bits."""
    c = json.loads((MODELS / "gpt-oss-120b.json").read_text(encoding="utf-8"))
    matrices = 36 * 128 * 3 * 2880 * 2880
    assert counted("gpt-oss-120b", 36)["expert stored"] - 36 * 128 * 3 * 2880 * 2 == matrices * 17 // 32
    assert matrices * 17 // 32 == int(matrices * 0.53125)
    assert c["num_hidden_layers"] == 36
