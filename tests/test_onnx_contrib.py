"""Operators of com.microsoft: each against its closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("onnx")
from onnx_models import MS, became, count, load, model, node, remark, weight

from stallscope.workloads import op_cost

GQA = {"num_heads": 8, "kv_num_heads": 2}


def gqa(new: int, past: int | None, buffer: int | None = None, packed: bool = False, **attributes: Any) -> Any:
    """GroupQueryAttention of head size 16 over a batch of 3."""
    width = (8 + 2 * 2 if packed else 8) * 16
    inputs: dict[str, Any] = {"q": [3, new, width]}
    names = "q"
    if packed:
        names += " - -"
    else:
        inputs |= {"k": [3, new, 32], "v": [3, new, 32]}
        names += " k v"
    held = buffer or past
    if held:
        inputs |= {"pk": [3, 2, held, 16], "pv": [3, 2, held, 16]}
    names += " pk pv" if held else " - -"
    inputs |= {"lens": ("i32", [3]), "total": ("i32", [])}
    at = node("GroupQueryAttention", f"{names} lens total", "y nk nv", MS, **GQA, **attributes)
    return model([at], inputs, ["y", "nk", "nv"])


@pytest.mark.parametrize(("new", "past"), [(1, 40), (5, 40), (64, None)])
@pytest.mark.parametrize("packed", [False, True])
def test_group_query_attention_is_causal_and_appends(tmp_path: Path, new: int, past: int | None, packed: bool) -> None:
    c = count(tmp_path, gqa(new, past, packed=packed))
    old = past or 0
    pairs = sum(old + i + 1 for i in range(new))
    assert c.attention_macs == 2 * 3 * 8 * 16 * pairs
    assert c.kv_read == 2 * 3 * 2 * 16 * (old + new)
    assert (c.kv_written, c.kv_new) == (2 * 3 * 2 * 16 * (old + new), 2 * 3 * 2 * 16 * new)


def test_a_buffer_of_past_and_present_is_written_in_place(tmp_path: Path) -> None:
    made = gqa(1, None, buffer=128)
    c = count(tmp_path, made, dims={"total": 100})
    assert c.attention_macs == 2 * 3 * 8 * 16 * 100
    assert c.kv_read == 2 * 3 * 2 * 16 * 100
    assert c.kv_written == c.kv_new == 2 * 3 * 2 * 16


def test_the_window_counts_the_token_itself(tmp_path: Path) -> None:
    c = count(tmp_path, gqa(1, 40, local_window_size=8))
    assert c.attention_macs == 2 * 3 * 8 * 16 * 8
    assert c.kv_read == 2 * 3 * 2 * 16 * 8


def test_rotation_inside_is_an_op(tmp_path: Path) -> None:
    graph = load(tmp_path, gqa(1, 40, do_rotary=1))
    assert became(graph) == ["rope", "rope", "attention", "kv_append"]
    assert op_cost(graph, "n_y.q_rope").vector_ops == 3 * 3 * 128


@pytest.mark.parametrize("simple", [True, False])
def test_skip_norms_give_the_sum_too(tmp_path: Path, simple: bool) -> None:
    op = "SkipSimplifiedLayerNormalization" if simple else "SkipLayerNormalization"
    names = "x s g" if simple else "x s g b"
    at = node(op, names, "y - - total", MS)
    graph = load(
        tmp_path,
        model([at], {"x": [2, 5, 64], "s": [2, 5, 64]}, ["y", "total"], [weight("g", [64]), weight("b", [64])]),
    )
    assert became(graph) == ["add", "rmsnorm" if simple else "layernorm"]
    assert not graph.out_degree("n_y.out")
    assert graph.nodes["n_y.skip.out"]["shape"] == (10, 64)


@pytest.mark.parametrize(("bits", "zero"), [(4, True), (4, False), (8, False)])
def test_weights_of_few_bits_weigh_what_they_weigh(tmp_path: Path, bits: int, zero: bool) -> None:
    n, k, block = 96, 256, 32
    blocks = k // block
    stored = [weight("w", [n, blocks, block * bits // 8], "u8"), weight("s", [n * blocks], "h")]
    if zero:
        stored.append(weight("z", [n * blocks * bits // 8], "u8"))
    at = node("MatMulNBits", "x w s z" if zero else "x w s", "y", MS, N=n, K=k, bits=bits, block_size=block)
    c = count(tmp_path, model([at], {"x": ("h", [1, 7, k])}, ["y"], stored))
    assert c.weight_macs == 7 * n * k
    assert c.weight_bytes_read == n * k * bits // 8 + n * blocks * 2 + (n * blocks * bits // 8 if zero else 0)


def test_a_quantised_table_is_read_by_rows(tmp_path: Path) -> None:
    stored = [weight("t", [1000, 64], "u8"), weight("s", [1000, 4], "h")]
    at = node("GatherBlockQuantized", "t ids s", "y", MS, bits=4, block_size=32, gather_axis=0, quantize_axis=1)
    graph = load(tmp_path, model([at], {"ids": ("i", [1, 9])}, ["y"], stored))
    assert sum(op_cost(graph, "n_y").reads.values()) == 9 * (64 + 4 * 2)


@pytest.mark.parametrize("causal", [0, 1])
def test_multi_head_attention(tmp_path: Path, causal: int) -> None:
    at = node("MultiHeadAttention", "q k v - - - pk pv", "y nk nv", MS, num_heads=4, unidirectional=causal)
    inputs = {"q": [2, 5, 64], "k": [2, 5, 64], "v": [2, 5, 64], "pk": [2, 4, 7, 16], "pv": [2, 4, 7, 16]}
    c = count(tmp_path, model([at], inputs, ["y", "nk", "nv"]))
    pairs = sum(7 + i + 1 for i in range(5)) if causal else 5 * 12
    assert c.attention_macs == 2 * 2 * 4 * 16 * pairs
    assert c.kv_written == 2 * 2 * 4 * 12 * 16


def test_cross_attention_and_packed_forms(tmp_path: Path) -> None:
    at = node("MultiHeadAttention", "q k v", "y", MS, num_heads=4)
    c = count(tmp_path, model([at], {"q": [2, 5, 64], "k": [2, 9, 64], "v": [2, 9, 64]}, ["y"]))
    assert c.attention_macs == 2 * 2 * 4 * 16 * 5 * 9
    at = node("MultiHeadAttention", "q", "y", MS, num_heads=4)
    c = count(tmp_path, model([at], {"q": [2, 5, 4, 3, 16]}, ["y"]))
    assert c.attention_macs == 2 * 2 * 4 * 16 * 25


def test_attention_with_its_projection(tmp_path: Path) -> None:
    at = node("Attention", "x w b - past", "y present", MS, num_heads=4, unidirectional=1)
    stored = [weight("w", [64, 192]), weight("b", [192])]
    c = count(tmp_path, model([at], {"x": [2, 1, 64], "past": [2, 2, 4, 7, 16]}, ["y", "present"], stored))
    assert c.weight_macs == 2 * 64 * 192
    assert c.attention_macs == 2 * 2 * 4 * 16 * 8
    assert c.kv_written == 2 * 2 * 4 * 8 * 16


@pytest.mark.parametrize("packed", [False, True])
def test_a_mixture_of_experts(tmp_path: Path, packed: bool) -> None:
    many, hidden, inner, tokens, k = 8, 64, 128, 6, 2
    if packed:
        stored = [
            weight("w1", [many, 2 * inner, hidden // 2], "u8"),
            weight("s1", [many, 2 * inner], "h"),
            weight("w2", [many, hidden, inner // 2], "u8"),
            weight("s2", [many, hidden], "h"),
        ]
        at = node("QMoE", "x r w1 s1 - w2 s2", "y", MS, k=k, activation_type="swiglu", expert_weight_bits=4)
    else:
        stored = [weight("w1", [many, hidden, 2 * inner]), weight("w2", [many, inner, hidden])]
        at = node("MoE", "x r w1 - w2", "y", MS, k=k, activation_type="swiglu")
    graph = load(tmp_path, model([at], {"x": ("h", [1, tokens, hidden]), "r": ("h", [tokens, many])}, ["y"], stored))
    from stallscope.workloads.foreign.summary import counts

    c = counts(graph)
    assert c.expert_macs == tokens * k * (2 * inner * hidden + inner * hidden)
    assert c.parameters == many * 3 * inner * hidden
    assert c.weight_bytes_read <= many * (3 * inner * hidden // 2 + 2 * (2 * inner + hidden)) * (1 if packed else 8)
    assert "topk" in became(graph)
    assert "combine" in became(graph)


def test_rotary_embedding_needs_no_positions(tmp_path: Path) -> None:
    stored = [weight("c", [100, 8]), weight("s", [100, 8])]
    at = node("RotaryEmbedding", "x p c s", "y", MS)
    graph = load(tmp_path, model([at], {"x": [1, 5, 64], "p": ("i", [1, 5])}, ["y"], stored))
    assert op_cost(graph, "n_y").vector_ops == 3 * 5 * 64
    assert graph.nodes["n_y"]["head_dim"] == 16


@pytest.mark.parametrize(("op", "names"), [("FastGelu", "x b"), ("BiasGelu", "x b"), ("QuickGelu", "x"), ("Gelu", "x")])
def test_forms_of_gelu(tmp_path: Path, op: str, names: str) -> None:
    graph = load(tmp_path, model([node(op, names, "y", MS)], {"x": [4, 64]}, ["y"], [weight("b", [64])]))
    assert op_cost(graph, "n_y").special_ops >= 256


def test_a_product_with_turned_operands(tmp_path: Path) -> None:
    at = node("FusedMatMul", "x w", "y", MS, transA=1, transB=1)
    c = count(tmp_path, model([at], {"x": [32, 5]}, ["y"], [weight("w", [7, 32])]))
    assert c.weight_macs == 5 * 7 * 32


def test_embedding_norm(tmp_path: Path) -> None:
    stored = [weight(n, [size, 16]) for n, size in (("w", 99), ("p", 50), ("s", 2))] + [
        weight("g", [16]),
        weight("b", [16]),
    ]
    at = node("EmbedLayerNormalization", "ids seg w p s g b", "y mask", MS)
    graph = load(tmp_path, model([at], {"ids": ("i32", [2, 5]), "seg": ("i32", [2, 5])}, ["y"], stored))
    assert became(graph) == ["embedding"] * 3 + ["add"] * 2 + ["layernorm"]


def test_an_unknown_operator_names_itself_and_its_place(tmp_path: Path) -> None:
    from stallscope import StallscopeError

    says = (
        r"m\.onnx: node 'n_y' \(com\.microsoft\.GroupQueryAttentio\).*not known.*'com\.microsoft\.GroupQueryAttention'"
    )
    with pytest.raises(StallscopeError, match=says):
        load(tmp_path, model([node("GroupQueryAttentio", "x", "y", MS)], {"x": [4, 64]}, ["y"]))
    assert remark(load(tmp_path, gqa(1, 40)), "attention").startswith("causal")
