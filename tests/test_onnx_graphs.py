"""ONNX files become workload graphs: the numbers, one trap at a time, and what is refused."""

from __future__ import annotations

import builtins
import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
from laws import check_bytes, check_run
from onnx import TensorProto, helper
from onnx_models import became, count, load, model, node, numbers, remark, weight

from stallscope import StallscopeError, compile_graph, load_graph, load_system, simulate
from stallscope.workloads import op_cost, op_nodes
from stallscope.workloads.foreign.summary import counts

SHARED = Path(__file__).parents[2] / "shared" / "graphs"
FILES = sorted(SHARED.glob("*.onnx")) if SHARED.is_dir() else []
shared = pytest.mark.skipif(not FILES, reason="no ../shared")
STYLES = ("h100-sxm", "groq-3-lpu", "sn40l")
LLAMA, MIXTRAL = "made_llama9m_s64.onnx", "made_mixtral_tiny_moe_batched_mm_s32.onnx"
SMOLLM = next((path.name for path in FILES if path.name.startswith("smollm")), "")


def indexed(name: str) -> list[int]:
    """The numbers that INDEX.csv expects of a file, in its order."""
    with (SHARED / "INDEX.csv").open(encoding="utf-8") as file:
        row = next(row for row in csv.DictReader(file) if row["file"] == name)
    return [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*\d|\d", row["expected_numbers"])]


@shared
def test_llama_has_the_numbers_of_its_index() -> None:
    _, whole, per_token, without_head, square, causal = indexed(LLAMA)
    c = counts(load_graph(SHARED / LLAMA))
    assert (c.weight_macs, c.attention_macs, c.other_macs) == (whole, square, 0)
    assert c.weight_macs == 64 * per_token
    assert c.weight_macs - 64 * 128 * 32000 == 64 * without_head
    c = counts(load_graph(SHARED / LLAMA, causal=True))
    assert (c.weight_macs, c.attention_macs) == (whole, causal)


@shared
def test_experts_that_are_gathered_are_stored_once() -> None:
    _, whole, _, experts, square, _ = indexed(MIXTRAL)
    c = counts(load_graph(SHARED / MIXTRAL))
    assert (c.weight_macs, c.expert_macs, c.attention_macs) == (whole, experts, square)
    graph = load_graph(SHARED / MIXTRAL)
    stacks = [d["shape"] for _, d in graph.nodes(data=True) if d.get("tensor") == "expert"]
    assert sum(a * b * c for a, b, c in stacks) == 786_432
    read = [op_cost(graph, n).reads for n in op_nodes(graph) if graph.nodes[n]["op"] == "expert_linear"]
    assert sum(n for r in read for t, n in r.items() if graph.nodes[t]["tensor"] == "expert") <= 786_432 * 4


@shared
def test_a_table_that_is_the_head_too_is_stored_once() -> None:
    _, whole, _, causal = indexed(SMOLLM)
    graph = load_graph(SHARED / SMOLLM)
    c = counts(graph)
    assert (c.weight_macs, c.attention_macs, c.parameters) == (whole, causal, 167_778_304)
    tied = [d["tied_to"] for _, d in graph.nodes(data=True) if "tied_to" in d]
    assert tied == ["lm_head_weight"]
    assert (c.kv_written, c.kv_new) == (2 * 10 * 2048, 2 * 10 * 2048)


@shared
def test_single_attentions_have_the_numbers_of_their_index() -> None:
    causal, past = sorted(path for path in FILES if path.name.startswith("op_attention_4d_gqa"))
    c = counts(load_graph(causal))
    assert c.attention_macs == 2880
    c = counts(load_graph(past))
    assert (c.attention_macs, c.kv_read, c.kv_written, c.kv_new) == (20_736, 1728, 1728, 576)


@shared
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem[:24])
def test_every_file_runs_and_keeps_the_laws(path: Path, style: str) -> None:
    graph, system = load_graph(path), load_system(style)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)


@shared
def test_tensor_parallel_cuts_what_a_decoders_own_graph_cuts() -> None:
    graph = load_graph(SHARED / LLAMA)
    how = [
        graph.nodes[n].get("parallel")
        for n in op_nodes(graph)
        if graph.nodes[n].get("layer") == 2 and graph.nodes[n]["op"] == "linear"
    ]
    assert how == ["column"] * 3 + ["row"] + ["column"] * 2 + ["row"]
    system = load_system("h100-sxm", tp=2)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)


# Attention, as the operator of opset 23 and later.

ATTENTION = {"Q": [2, 9, 4, 8], "K": [2, 3, 6, 8], "V": [2, 3, 6, 8]}


def attention(inputs: dict[str, Any], names: str = "Q K V", outputs: str = "Y", **attributes: Any) -> Any:
    opset = 25 if "left_window_size" in attributes else 24
    return model(
        [node("Attention", names, outputs, **attributes)], inputs, outputs.replace("- ", "").split(), opset=opset
    )


def band(queries: int, keys: int, offset: int, left: int = -1, right: int = 0) -> int:
    """Pairs by enumeration, independently of the code."""
    return sum(
        (left < 0 or j >= i + offset - left) and (right < 0 or j <= i + offset + right)
        for i in range(queries)
        for j in range(keys)
    )


@pytest.mark.parametrize(
    ("queries", "fresh", "past"),
    [(4, 6, 0), (6, 6, 0), (6, 4, 0), (4, 4, 12), (4, 6, 12), (1, 1, 12), (6, 2, 12), (1, 5, 0)],
)
@pytest.mark.parametrize("left", [-1, 0, 2, 30])
def test_causal_is_aligned_to_the_past_and_without_one_to_the_top_left(
    tmp_path: Path, queries: int, fresh: int, past: int, left: int
) -> None:
    inputs = {"Q": [2, 9, queries, 8], "K": [2, 3, fresh, 8], "V": [2, 3, fresh, 8]}
    names, outputs = "Q K V", "Y"
    if past:
        inputs |= {"pk": [2, 3, past, 8], "pv": [2, 3, past, 8]}
        names, outputs = "Q K V - pk pv", "Y nk nv"
    window = {} if left < 0 else {"left_window_size": left}
    c = count(tmp_path, attention(inputs, names, outputs, is_causal=1, **window))
    assert c.attention_macs == 2 * 9 * (8 + 8) * band(queries, past + fresh, past, left)


@pytest.mark.parametrize(("left", "right"), [(-1, -1), (1, 1), (-1, 2), (2, -1), (0, 0), (3, 0)])
def test_windows_on_both_sides(tmp_path: Path, left: int, right: int) -> None:
    c = count(tmp_path, attention(ATTENTION, left_window_size=left, right_window_size=right))
    assert c.attention_macs == 2 * 9 * 16 * band(4, 6, 0, left, right)


def test_three_dimensions_are_the_same_as_four(tmp_path: Path) -> None:
    flat = {"Q": [2, 4, 72], "K": [2, 6, 24], "V": [2, 6, 30]}
    c = count(tmp_path, attention(flat, q_num_heads=9, kv_num_heads=3, is_causal=1, softcap=20.0))
    assert c.attention_macs == 2 * 9 * (8 + 10) * 10
    with pytest.raises(StallscopeError, match="q_num_heads"):
        load(tmp_path, attention(flat))


def test_a_static_cache_counts_its_valid_keys(tmp_path: Path) -> None:
    inputs = {**ATTENTION, "valid": ("i", [2])}
    made = attention(inputs, "Q K V - - - valid", is_causal=1)
    assert count(tmp_path, made, dims={"valid": 5}).attention_macs == 2 * 9 * 16 * band(4, 5, 1)
    assert count(tmp_path, made).attention_macs == 2 * 9 * 16 * band(4, 6, 2)


def test_scores_that_are_a_result_are_written(tmp_path: Path) -> None:
    graph = load(tmp_path, attention(ATTENTION, outputs="Y - - S"))
    assert became(graph) == ["matmul", "softmax", "matmul"]
    assert counts(graph).attention_macs == 2 * 9 * 16 * 24
    assert op_cost(graph, "n_Y.scores").writes == {"n_Y.scores.out": 2 * 9 * 24 * 4}


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "attributes",
    [{}, {"is_causal": 1}, {"left_window_size": 1, "right_window_size": 1}, {"is_causal": 1, "left_window_size": 0}],
)
def test_every_band_runs(tmp_path: Path, style: str, attributes: dict[str, int]) -> None:
    inputs = {
        "Q": [2, 8, 300, 64],
        "K": [2, 2, 200, 64],
        "V": [2, 2, 200, 32],
        "pk": [2, 2, 90, 64],
        "pv": [2, 2, 90, 32],
    }
    graph = load(tmp_path, attention(inputs, "Q K V - pk pv", "Y nk nv", **attributes))
    system = load_system(style)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)


# Attention written out, and its masks.


def written(mask: list[Any], stored: list[Any], inputs: dict[str, Any] | None = None, where: str = "") -> Any:
    """softmax(q k^T / 8 [+ m]) v of 2 x 4 heads, 16 tokens, with `mask` the nodes that make m."""
    nodes = [
        *mask,
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "s0"),
        node("Div", "s0 eight", "s1"),
        node("Where", where, "s2") if where else node("Add", "s1 m", "s2"),
        node("Softmax", "s2", "p", axis=-1),
        node("MatMul", "p v", "y"),
    ]
    shapes: dict[str, Any] = {name: [2, 4, 16, 32] for name in "qkv"}
    return model(nodes, shapes | (inputs or {}), ["y"], [numbers("eight", np.float32(8)), *stored])


SQUARE, HALF = 2 * 2 * 4 * 32 * 256, 2 * 2 * 4 * 32 * 136
TRIANGLE = np.triu(np.full((1, 1, 16, 16), -np.inf, np.float32), 1)


def test_a_mask_in_the_file_is_seen_to_be_causal(tmp_path: Path) -> None:
    graph = load(tmp_path, written([], [numbers("m", TRIANGLE)]))
    assert became(graph) == ["attention"]
    assert counts(graph).attention_macs == HALF
    assert "shown to be causal" in remark(graph, "attention")


def test_so_is_one_of_lowest_numbers_that_the_graph_makes_beside_padding(tmp_path: Path) -> None:
    """arange <= arange, and padding from an input: what exporters of transformers write."""
    lowest = np.float32(np.finfo(np.float32).min)
    mask = [
        node("Shape", "q", "shape"),
        node("Gather", "shape two", "length", axis=0),
        node("Range", "zero length one", "at"),
        node("Unsqueeze", "at axis1", "rows"),
        node("LessOrEqual", "at rows", "seen"),
        node("Cast", "padding", "real", to=TensorProto.BOOL),
        node("Unsqueeze", "real axes12", "real4"),
        node("And", "seen real4", "both"),
        node("Where", "both nothing lowest", "m"),
    ]
    stored = [
        numbers("two", np.int64(2)),
        numbers("zero", np.int64(0)),
        numbers("one", np.int64(1)),
        numbers("axis1", np.array([1])),
        numbers("axes12", np.array([1, 2])),
        numbers("nothing", np.float32(0)),
        numbers("lowest", lowest),
    ]
    graph = load(tmp_path, written(mask, stored, {"padding": ("i", [2, 16])}))
    assert counts(graph).attention_macs == HALF
    assert became(graph) == ["attention"], "what makes the mask is gone with it"


def test_a_window_in_a_mask(tmp_path: Path) -> None:
    keep = np.tril(np.ones((16, 16), bool)) & ~np.tril(np.ones((16, 16), bool), -5)
    graph = load(tmp_path, written([], [numbers("m", np.where(keep, 0, -1e9).astype(np.float32))]))
    assert counts(graph).attention_macs == 2 * 2 * 4 * 32 * int(keep.sum())


@pytest.mark.parametrize(
    ("mask", "why"),
    [
        ("input", "values are not known"),
        ("external", "values are not known"),
        ("half", "not causal"),
        ("bias", "not causal"),
    ],
)
def test_what_is_not_shown_counts_whole(tmp_path: Path, mask: str, why: str) -> None:
    odd = np.zeros((16, 16), np.float32)
    if mask == "half":
        odd[0, 5:] = odd[3, 5] = -np.inf
    stored = [] if mask == "input" else [weight("m", [16, 16]) if mask == "external" else numbers("m", odd)]
    made = written([], stored, {"m": [16, 16]} if mask == "input" else None)
    graph = load(tmp_path, made)
    assert counts(graph).attention_macs == SQUARE
    assert why in remark(graph, "attention")
    assert counts(load(tmp_path, made, causal=True)).attention_macs == (HALF if "known" in why else SQUARE)


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_by_where(tmp_path: Path, turned: bool) -> None:
    keep = np.tril(np.ones((1, 1, 16, 16), bool))
    stored = [numbers("m", ~keep if turned else keep), numbers("low", np.float32(-np.inf))]
    graph = load(tmp_path, written([], stored, where="m low s1" if turned else "m s1 low"))
    assert counts(graph).attention_macs == HALF


def test_sinks_stand_beside_the_keys(tmp_path: Path) -> None:
    """A stored score per head joins the scores before the softmax, and its weight is dropped behind it (gpt-oss)."""
    nodes = [
        node("Transpose", "k", "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "s0"),
        node("Add", "s0 m", "s1"),
        node("Reshape", "sinks four", "t0"),
        node("Expand", "t0 full", "t1"),
        node("Concat", "s1 t1", "s2", axis=-1),
        node("ReduceMax", "s2 last", "top"),
        node("Sub", "s2 top", "s3"),
        node("Softmax", "s3", "p0", axis=-1),
        node("Slice", "p0 zero minus last", "p"),
        node("MatMul", "p v", "y"),
    ]
    stored = [
        weight("sinks", [4]),
        numbers("m", TRIANGLE),
        numbers("four", np.array([1, 4, 1, 1])),
        numbers("full", np.array([2, 4, 16, 1])),
        numbers("last", np.array([-1])),
        numbers("zero", np.array([0])),
        numbers("minus", np.array([-1])),
    ]
    graph = load(tmp_path, model(nodes, {name: [2, 4, 16, 32] for name in "qkv"}, ["y"], stored))
    assert became(graph) == ["attention"]
    cost = op_cost(graph, "n_s0")
    assert cost.macs == HALF
    assert cost.reads["sinks"] == 4 * 4


def test_attention_whose_weights_are_a_result_stays_products(tmp_path: Path) -> None:
    made = written([], [numbers("m", TRIANGLE)])
    made.graph.output.append(onnx.ValueInfoProto(name="p"))
    graph = load(tmp_path, made)
    assert became(graph) == ["matmul", "pointwise", "add", "softmax", "matmul"]
    assert counts(graph).other_macs == SQUARE


@pytest.mark.parametrize("repeat", ["expand", "none"])
def test_past_and_new_and_repeated_heads(tmp_path: Path, repeat: str) -> None:
    """KV heads are counted before they are repeated; the joined cache is a result, so it is written whole."""
    kv = 2 if repeat == "expand" else 8
    nodes = [node("Concat", "pk k", "nk", axis=2), node("Concat", "pv v", "nv", axis=2)]
    k, v = "nk", "nv"
    stored = [numbers("mask", np.float32(0))]
    if repeat == "expand":
        stored += [
            numbers("five", np.array([3, 2, 4, 41, 16])),
            numbers("four", np.array([3, 8, 41, 16])),
            numbers("two", np.array([2])),
        ]
        for name in ("k", "v"):
            nodes += [
                node("Unsqueeze", f"n{name} two", f"{name}5"),
                node("Expand", f"{name}5 five", f"{name}r"),
                node("Reshape", f"{name}r four", f"{name}all"),
            ]
        k, v = "kall", "vall"
    nodes += [
        node("Transpose", k, "kt", perm=[0, 1, 3, 2]),
        node("MatMul", "q kt", "s"),
        node("Softmax", "s", "p"),
        node("MatMul", f"p {v}", "y"),
    ]
    inputs = {
        "q": [3, 8, 1, 16],
        "k": [3, kv, 1, 16],
        "v": [3, kv, 1, 16],
        "pk": [3, kv, 40, 16],
        "pv": [3, kv, 40, 16],
    }
    made = model(nodes, inputs, ["y", "nk", "nv"], stored)
    c = count(tmp_path, made)
    assert c.attention_macs == 2 * 3 * 8 * 16 * 41
    assert c.kv_read == c.kv_written == 2 * 3 * kv * 41 * 16
    assert c.kv_new == 2 * 3 * kv * 16
    assert count(tmp_path, made, in_place=True).kv_written == c.kv_new


# Products.


@pytest.mark.parametrize("turned", [0, 1])
def test_gemm_with_a_bias(tmp_path: Path, turned: int) -> None:
    stored = [weight("w", [96, 64] if turned else [64, 96]), weight("b", [96])]
    graph = load(tmp_path, model([node("Gemm", "x w b", "y", transB=turned)], {"x": [5, 64]}, ["y"], stored))
    assert became(graph) == ["linear"]
    assert counts(graph).weight_macs == 5 * 64 * 96
    assert graph.nodes["w"]["shape"] == (96, 64)


def test_a_weight_on_the_left(tmp_path: Path) -> None:
    graph = load(tmp_path, model([node("MatMul", "w x", "y")], {"x": [64, 5]}, ["y"], [weight("w", [96, 64])]))
    assert became(graph) == ["linear"]
    assert op_cost(graph, "n_y").m == 5


@pytest.mark.parametrize(
    ("equation", "shape", "stored", "op", "macs"),
    [
        ("bsh,hnd->bsnd", [2, 3, 64], [64, 4, 16], "linear", 2 * 3 * 64 * 64),
        ("bsnd,hnd->bsh", [2, 3, 4, 16], [64, 4, 16], "linear", 2 * 3 * 64 * 64),
        ("nd,bsd->bsn", None, None, "linear", 0),
        ("bhqd,bhkd->bhqk", [2, 4, 3, 16], None, "matmul", 2 * 4 * 3 * 16 * 5),
        ("etd,edf->etf", [8, 3, 16], [8, 16, 32], "matmul", 8 * 3 * 16 * 32),
    ],
)
def test_einsum(tmp_path: Path, equation: str, shape: Any, stored: Any, op: str, macs: int) -> None:
    inputs: dict[str, Any] = {"x": shape}
    names, weights = "x w", [weight("w", stored)] if stored else []
    if equation == "nd,bsd->bsn":
        inputs, names, weights, macs = {"x": [2, 3, 16]}, "w x", [weight("w", [8, 16])], 2 * 3 * 16 * 8
    elif not stored:
        inputs["w"] = [2, 4, 5, 16]
    graph = load(tmp_path, model([node("Einsum", names, "y", equation=equation)], inputs, ["y"], weights))
    assert became(graph) == [op]
    assert op_cost(graph, "n_y").macs == macs


def test_an_outer_product_sums_nothing(tmp_path: Path) -> None:
    stored = [numbers("f", np.ones((1, 32, 1), np.float32))]
    graph = load(tmp_path, model([node("MatMul", "f t", "y")], {"t": [1, 1, 10]}, ["y"], stored))
    assert became(graph) == ["mul"]


def test_one_product_for_q_k_and_v_is_three(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "y0"),
        node("Add", "y0 b", "y"),
        node("Split", "y cut", "q k v", axis=-1),
        node("Relu", "q", "q1"),
        node("Relu", "k", "k1"),
        node("Relu", "v", "v1"),
    ]
    stored = [weight("w", [64, 96]), weight("b", [96]), numbers("cut", np.array([64, 16, 16]))]
    graph = load(tmp_path, model(nodes, {"x": [2, 5, 64]}, ["q1", "k1", "v1"], stored))
    assert sorted(became(graph)) == ["linear"] * 3 + ["pointwise"] * 3
    c = counts(graph)
    assert (c.weight_macs, c.parameters) == (10 * 64 * 96, 65 * 96)


def test_every_expert_at_once_is_a_batch(tmp_path: Path) -> None:
    graph = load(tmp_path, model([node("MatMul", "x w", "y")], {"x": [8, 5, 64]}, ["y"], [weight("w", [8, 64, 32])]))
    c = counts(graph)
    assert (c.weight_macs, c.weight_bytes_read) == (8 * 5 * 64 * 32, 8 * 64 * 32 * 4)


def test_experts_picked_one_by_one(tmp_path: Path) -> None:
    """Gather of whole experts by top-k indices, and the products with them."""
    nodes = [
        node("TopK", "scores k", "best which", axis=-1),
        node("Reshape", "which flat", "ids"),
        node("Gather", "w ids", "picked", axis=0),
        node("MatMul", "picked x", "y"),
    ]
    stored = [numbers("k", np.array([2])), numbers("flat", np.array([-1])), weight("w", [4, 32, 64])]
    graph = load(tmp_path, model(nodes, {"scores": [50, 4], "x": [100, 64, 1]}, ["y"], stored))
    c = counts(graph)
    assert c.expert_macs == 100 * 32 * 64
    assert c.weight_bytes_read == 4 * 32 * 64 * 4, "100 rows, four stored experts"


@pytest.mark.parametrize("form", ["qlinear", "integer", "dequantised", "blocks"])
def test_quantised_weights_weigh_a_byte(tmp_path: Path, form: str) -> None:
    w = weight("w", [64, 96], "i8")
    scale = weight("ws", [2, 96] if form == "blocks" else [96])
    if form == "qlinear":
        stored = [w, numbers("as", np.float32(1)), numbers("az", np.uint8(0)), scale, numbers("wz", np.int8(0))]
        nodes = [node("QLinearMatMul", "x as az w ws wz as az", "y")]
    elif form == "integer":
        stored, nodes = [w], [node("MatMulInteger", "x w", "y")]
    else:
        stored = [w, scale]
        more = {"axis": 0, "block_size": 32} if form == "blocks" else {"axis": 1}
        nodes = [node("DequantizeLinear", "w ws", "wf", **more), node("MatMul", "x wf", "y")]
    kind = "f" if form in ("dequantised", "blocks") else "u8"
    c = count(tmp_path, model(nodes, {"x": (kind, [5, 64])}, ["y"], stored))
    assert c.weight_macs == 5 * 64 * 96
    scales = {"dequantised": 96 * 4, "blocks": 2 * 96 * 4}.get(form, 0)
    assert c.weight_bytes_read == 64 * 96 + scales


@pytest.mark.parametrize("group", [1, 16, 4])
def test_convolutions(tmp_path: Path, group: int) -> None:
    stored = [weight("w", [16, 16 // group, 4])]
    made = model(
        [node("Conv", "x w", "y", group=group, kernel_shape=[4], pads=[3, 0])], {"x": [1, 16, 30]}, ["y"], stored
    )
    graph = load(tmp_path, made)
    cost = op_cost(graph, "n_y")
    assert cost.macs + cost.vector_ops // 2 == 16 * 30 * 16 // group * 4


# Norms, activations, rotations as exporters write them.


def test_written_norms_are_norms(tmp_path: Path) -> None:
    root = [
        node("Pow", "d two", "sq"),
        node("ReduceMean", "sq axes", "var"),
        node("Add", "var eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "d sd", "n"),
        node("Mul", "n g", "scaled"),
    ]
    layer = [node("ReduceMean", "x axes", "mean"), node("Sub", "x mean", "d"), *root, node("Add", "scaled b", "y")]
    stored = [
        numbers("two", np.float32(2)),
        numbers("axes", np.array([-1])),
        numbers("eps", np.float32(1e-6)),
        weight("g", [64]),
        weight("b", [64]),
    ]
    assert became(load(tmp_path, model(layer, {"x": [2, 5, 64]}, ["y"], stored))) == ["layernorm"]
    rms = [helper.make_node(n.op_type, ["x" if i == "d" else i for i in n.input], n.output, name=n.name) for n in root]
    assert became(load(tmp_path, model(rms, {"x": [2, 5, 64]}, ["scaled"], stored))) == ["rmsnorm"]


def test_a_norm_whose_inside_is_wanted_stays_as_it_is(tmp_path: Path) -> None:
    rms = [
        node("Mul", "x x", "sq"),
        node("ReduceMean", "sq axes", "var"),
        node("Add", "var eps", "ve"),
        node("Sqrt", "ve", "sd"),
        node("Div", "x sd", "n"),
        node("Mul", "n g", "y"),
    ]
    stored = [numbers("axes", np.array([-1])), numbers("eps", np.float32(1e-6)), weight("g", [64])]
    graph = load(tmp_path, model(rms, {"x": [2, 5, 64]}, ["y", "var"], stored))
    assert "rmsnorm" not in became(graph)
    assert sum(op_cost(graph, n).special_ops for n in op_nodes(graph)) == 10 + 10 + 640


@pytest.mark.parametrize("form", ["erf", "tanh"])
def test_written_gelu_is_gelu(tmp_path: Path, form: str) -> None:
    one = numbers("one", np.float32(1))
    if form == "erf":
        nodes = [
            node("Div", "x root", "a"),
            node("Erf", "a", "e"),
            node("Add", "e one", "f"),
            node("Mul", "x f", "g"),
            node("Mul", "g half", "y"),
        ]
    else:
        nodes = [
            node("Pow", "x three", "c"),
            node("Mul", "c root", "d"),
            node("Add", "x d", "a"),
            node("Mul", "a root", "b"),
            node("Tanh", "b", "e"),
            node("Add", "e one", "f"),
            node("Mul", "x half", "h"),
            node("Mul", "h f", "y"),
        ]
    stored = [one, numbers("root", np.float32(1.4)), numbers("half", np.float32(0.5)), numbers("three", np.float32(3))]
    assert became(load(tmp_path, model(nodes, {"x": [2, 5, 64]}, ["y"], stored))) == ["gelu"]


def test_gates_and_rotations(tmp_path: Path) -> None:
    swiglu = [node("Sigmoid", "g", "s"), node("Mul", "g s", "t"), node("Mul", "t u", "y")]
    assert became(load(tmp_path, model(swiglu, {"g": [5, 64], "u": [5, 64]}, ["y"]))) == ["swiglu"]
    turned = [
        node("Slice", "x zero half last", "a"),
        node("Slice", "x half end last", "b"),
        node("Neg", "b", "nb"),
        node("Concat", "nb a", "r", axis=-1),
        node("Mul", "x cos", "p"),
        node("Mul", "r sin", "q"),
        node("Add", "p q", "y"),
    ]
    stored = [
        numbers("zero", np.array([0])),
        numbers("half", np.array([16])),
        numbers("end", np.array([2**62])),
        numbers("last", np.array([-1])),
        weight("cos", [1, 1, 5, 32]),
        weight("sin", [1, 1, 5, 32]),
    ]
    graph = load(tmp_path, model(turned, {"x": [1, 4, 5, 32]}, ["y"], stored))
    assert became(graph) == ["rope"]
    assert op_cost(graph, "n_y").vector_ops == 3 * 4 * 5 * 32


@pytest.mark.parametrize("part", [0, 16])
def test_the_rotation_operator(tmp_path: Path, part: int) -> None:
    stored = [weight("c", [5, 16 if not part else 8]), weight("s", [5, 16 if not part else 8])]
    at = node("RotaryEmbedding", "x c s", "y", num_heads=4, rotary_embedding_dim=part)
    graph = load(
        tmp_path,
        model(
            [at],
            {"x": [1, 5, 128]},
            ["y"],
            [
                *stored[:0],
                numbers("c", np.zeros((1, 5, 16 if not part else 8), np.float32)),
                numbers("s", np.zeros((1, 5, 16 if not part else 8), np.float32)),
            ],
        ),
    )
    assert sum(op_cost(graph, n).vector_ops for n in op_nodes(graph)) == 3 * 5 * 4 * (part or 32)


# Data movement, constants, bodies.


def test_views_are_free_and_copies_are_read_and_written(tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x s", "a"),
        node("Transpose", "a", "b", perm=[1, 0]),
        node("Relu", "b", "c"),
        node("Concat", "c c2", "d", axis=0),
        node("Gather", "d ids", "y", axis=0),
    ]
    made = model(nodes, {"x": [4, 6], "c2": [8, 3], "ids": ("i", [5])}, ["y"], [numbers("s", np.array([3, 8]))])
    graph = load(tmp_path, made)
    assert became(graph) == ["pointwise", "rearrange", "rearrange"]
    assert sum(op_cost(graph, "n_d").reads.values()) == 2 * 24 * 4
    assert op_cost(graph, "n_y").reads["n_d.out"] == 5 * 3 * 4
    assert op_cost(graph, "n_c").reads == {"x": 24 * 4}


def test_an_operand_that_repeats_is_read_once(tmp_path: Path) -> None:
    graph = load(tmp_path, model([node("Mul", "x r", "y")], {"x": [4, 6], "r": [6]}, ["y"]))
    assert op_cost(graph, "n_y").reads == {"x": 24 * 4, "r": 6 * 4}


def test_the_same_tensor_in_two_places_of_an_op(tmp_path: Path) -> None:
    nodes = [node("Split", "x cut", "a b", axis=1), node("Sub", "a b", "y")]
    graph = load(tmp_path, model(nodes, {"x": [4, 6]}, ["y"], [numbers("cut", np.array([3, 3]))]))
    assert became(graph) == ["pointwise", "pointwise"]
    assert "a second part of one tensor" in remark(graph, "pointwise")


def test_lengths_are_worked_out(tmp_path: Path) -> None:
    """Shape -> Gather -> Mul -> Concat -> Reshape, as exporters flatten heads."""
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape zero", "b"),
        node("Mul", "b three", "m"),
        node("Unsqueeze", "m zeros", "m1"),
        node("Concat", "m1 minus", "s", axis=0),
        node("Reshape", "x s", "r"),
        node("Relu", "r", "y"),
    ]
    stored = [
        numbers("zero", np.int64(0)),
        numbers("three", np.int64(3)),
        numbers("zeros", np.array([0])),
        numbers("minus", np.array([-1])),
    ]
    graph = load(tmp_path, model(nodes, {"x": ["batch", 3, 8]}, ["y"], stored), dims={"batch": 5})
    assert graph.nodes["n_y.out"]["shape"] == (15, 8)


def test_what_depends_on_weights_alone_costs_nothing(tmp_path: Path) -> None:
    nodes = [
        node("Add", "g one", "g1"),
        node("Transpose", "w", "wt", perm=[1, 0]),
        node("MatMul", "x wt", "a"),
        node("Mul", "a g1", "y"),
    ]
    stored = [weight("g", [96]), numbers("one", np.float32(1)), weight("w", [96, 64])]
    graph = load(tmp_path, model(nodes, {"x": [5, 64]}, ["y"], stored))
    assert became(graph) == ["linear", "mul"]
    assert graph.nodes["w"]["shape"] == (96, 64)


def body(name: str, nodes: list[Any], outputs: list[str], inputs: list[Any] | None = None) -> Any:
    results = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in outputs]
    return helper.make_graph(nodes, name, inputs or [], results)


def test_a_branch_is_taken_by_its_condition(tmp_path: Path) -> None:
    one = body("one", [node("MatMul", "x w", "t")], ["t"])
    two = body("two", [node("Relu", "x", "t")], ["t"])
    made = model(
        [node("If", "c", "y", then_branch=one, else_branch=two)],
        {"x": [5, 64], "c": ("b", [])},
        ["y"],
        [weight("w", [64, 64])],
    )
    assert became(load(tmp_path, made, dims={"c": 1})) == ["linear"]
    assert became(load(tmp_path, made, dims={"c": 0})) == ["pointwise"]
    with pytest.raises(
        StallscopeError, match=r"node 'n_y' \(If\): found a condition 'c' that depends on the inputs.*--dim"
    ):
        load(tmp_path, made)


def test_a_loop_is_unrolled(tmp_path: Path) -> None:
    inputs = [
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("h", TensorProto.FLOAT, [5, 64]),
    ]
    trip = helper.make_graph(
        [node("Identity", "go", "go2"), node("MatMul", "h w", "h2"), node("Relu", "h2", "seen")],
        "trip",
        inputs,
        [
            helper.make_tensor_value_info("go2", TensorProto.BOOL, []),
            helper.make_tensor_value_info("h2", TensorProto.FLOAT, [5, 64]),
            helper.make_tensor_value_info("seen", TensorProto.FLOAT, [5, 64]),
        ],
    )
    made = model(
        [node("Loop", "n - x", "last all", body=trip)],
        {"x": [5, 64], "n": ("i", [])},
        ["last", "all"],
        [weight("w", [64, 64])],
    )
    graph = load(tmp_path, made, dims={"n": 3})
    assert became(graph).count("linear") == 3
    assert counts(graph).parameters == 64 * 64
    with pytest.raises(StallscopeError, match="number of trips that depends"):
        load(tmp_path, made)


def test_a_function_is_its_body(tmp_path: Path) -> None:
    inner = helper.make_function(
        "local", "Twice", ["a"], ["c"], [node("Relu", "a", "b"), node("Relu", "b", "c")], [helper.make_opsetid("", 23)]
    )
    made = model([node("Twice", "x", "y", "local")], {"x": [5, 64]}, ["y"], functions=[inner])
    assert became(load(tmp_path, made)) == ["pointwise"] * 2


def test_layers_that_repeat_are_numbered(tmp_path: Path) -> None:
    nodes: list[Any] = []
    x = "x"
    for i in range(5):
        nodes += [
            node("MatMul", f"{x} w{i}", f"a{i}"),
            node("Relu", f"a{i}", f"b{i}"),
            node("Add", f"{x} b{i}", f"x{i}"),
        ]
        x = f"x{i}"
    stored = [weight(f"w{i}", [64, 64]) for i in range(5)]
    graph = load(tmp_path, model(nodes, {"x": [5, 64]}, [x], stored))
    layers = [graph.nodes[n].get("layer") for n in op_nodes(graph)]
    assert layers == [i for i in range(5) for _ in range(3)]
    assert graph.nodes["layers.3.n_a0"]["origin"] == "n_a3"
    system = load_system("h100-sxm")
    whole, skipped = (simulate(compile_graph(graph, system), skip=skip) for skip in (False, True))
    assert whole.time_fs == skipped.time_fs


# What is refused.


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({}, r"lengths that are not known: 'batch' of input 'x', 'past \+ new' of input 'm'.*--dim batch=NUMBER"),
        ({"batch": 2, "past": 3, "new": 4, "sqe": 5}, "--dim sqe: found no such length.*Known|Did you mean"),
        ({"batch": -1}, "--dim batch: found -1"),
    ],
)
def test_symbolic_lengths(tmp_path: Path, dims: dict[str, int], says: str) -> None:
    made = model(
        [node("Relu", "x", "y"), node("Relu", "m", "z")], {"x": ["batch", 8], "m": ["batch", "past + new"]}, ["y", "z"]
    )
    with pytest.raises(StallscopeError, match=says):
        load(tmp_path, made, dims=dims)


def test_a_sum_of_lengths_is_worked_out(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], {"x": ["batch", "past + 1"]}, ["y"])
    assert load(tmp_path, made, dims={"batch": 2, "past": 4}).nodes["x"]["shape"] == (2, 5)


def test_a_length_without_a_name_is_bound_by_its_place(tmp_path: Path) -> None:
    made = model([node("Relu", "x", "y")], {"x": [None, 8]}, ["y"])
    with pytest.raises(StallscopeError, match=r"--dim x\.0=NUMBER"):
        load(tmp_path, made)
    assert load(tmp_path, made, dims={"x.0": 3}).nodes["x"]["shape"] == (3, 8)


def test_a_length_that_the_data_decide(tmp_path: Path) -> None:
    made = model(
        [node("NonZero", "x", "z"), node("Cast", "z", "f", to=1), node("Relu", "f", "y")], {"x": [4, 8]}, ["y"]
    )
    with pytest.raises(StallscopeError, match=r"node 'n_z' \(NonZero\).*axis 1 of 'z'.*--dim z\.1=NUMBER"):
        load(tmp_path, made)
    assert load(tmp_path, made, dims={"z.1": 6}).nodes["n_y.out"]["shape"] == (2, 6)


def test_no_tensor_is_empty_in_the_graph(tmp_path: Path) -> None:
    made = model([node("Concat", "p x", "j", axis=0), node("Relu", "j", "y")], {"p": ["past", 8], "x": [3, 8]}, ["y"])
    graph = load(tmp_path, made, dims={"past": 0})
    assert became(graph) == ["pointwise"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git-LFS pointer.*git lfs pull"),
        (b"\x00\x01\x02 not a model", "no ONNX model"),
        (b'{"irVersion": 8}', r"no ONNX model \(JSON or text\)"),
        (None, "no such file"),
    ],
)
def test_files_that_are_no_model(tmp_path: Path, content: bytes | None, says: str) -> None:
    path = tmp_path / "m.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(StallscopeError, match=says):
        load_graph(path)


def test_a_graph_without_nodes(tmp_path: Path) -> None:
    with pytest.raises(StallscopeError, match="an ONNX graph without nodes"):
        load(tmp_path, model([], {"x": [4]}, ["x"]))


def test_a_graph_of_constants_alone(tmp_path: Path) -> None:
    with pytest.raises(StallscopeError, match="nothing that works on inputs"):
        load(tmp_path, model([node("Shape", "x", "y")], {"x": [4]}, ["y"]))


@pytest.mark.parametrize("op", ["LSTM", "NonMaxSuppression", "StringNormalizer", "SequenceEmpty"])
def test_what_is_not_mapped_is_an_error_with_its_place(tmp_path: Path, op: str) -> None:
    inputs: dict[str, Any] = {"x": [4, 1, 8], "w": [1, 32, 8], "r": [1, 32, 8]}
    at = node(
        op,
        {"LSTM": "x w r", "NonMaxSuppression": "x w"}.get(op, "x"),
        "y",
        **({"hidden_size": 8} if op == "LSTM" else {}),
    )
    with pytest.raises(StallscopeError, match=rf"m\.onnx: node 'n_y' \({op}\): found"):
        load(tmp_path, model([at], inputs, ["y"]))


def test_without_the_package_one_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"\x08\x0a")
    real = builtins.__import__

    def without(name: str, scope: Any = None, own: Any = None, names: Any = (), level: int = 0) -> Any:
        if not level and name.partition(".")[0] == "onnx":
            raise ImportError(name)
        return real(name, scope, own, names, level)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StallscopeError, match=r"pip install 'stallscope\[onnx\]'"):
        load_graph(path)


def test_all_operators_that_are_named_are_operators() -> None:
    from stallscope.workloads.foreign.contrib import SHAPES
    from stallscope.workloads.foreign.tables import OPERATORS

    standard = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    ours = {"Silu", "Rope", "Stack", "Rsqrt", "Index", "GroupedMatMul"}  # what patterns and readers put in
    later = {"SwiGLU", "BitCast", "CumProd", "Swish", "TensorScatter"}  # of later versions of onnx
    assert {op for op in OPERATORS if "." not in op} <= standard | ours | later | {"SimplifiedLayerNormalization"}
    assert {op for op in OPERATORS if "." in op} <= set(SHAPES)
