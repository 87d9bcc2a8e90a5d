"""Formats with scales: what a tensor weighs, which part of a model has which, and the work of making bf16 of it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import networkx as nx
import pytest
from decoder_drafts import DRAFTS
from hypothesis import given
from hypothesis import strategies as st
from laws import check_bytes, check_run, graph_of, run_on, system_of

from stallscope import Request, compile_graph, decode_graph, load_model, simulate
from stallscope.compiler.tile import latency_fs, matrix_dtype, unpack_fs
from stallscope.sim.run import Run
from stallscope.workloads import add_op, add_tensor, check_graph, new_graph, op_nodes, tensor_bytes
from stallscope.workloads.dtypes import DTYPE_BITS, dtype_of
from stallscope.workloads.formats import Format, Formats
from stallscope.workloads.types import format_name, part_types

STYLES = ("h100-sxm", "groq-3-lpu", "sn40l")


@pytest.mark.parametrize(
    ("dtype", "per_element"),
    [
        ("mxfp4", Fraction(53125, 100000)),
        ("nvfp4", Fraction(5625, 10000)),
        ("mxfp8", Fraction(103125, 100000)),
        ("int4/1x128s16", Fraction(4 * 128 + 16, 8 * 128)),
        ("int4/1x128s16z4", Fraction(4 * 128 + 16 + 4, 8 * 128)),
        ("fp8/128x128s32", Fraction(8 * 128 * 128 + 32, 8 * 128 * 128)),
        ("fp8", Fraction(1)),
        ("bf16", Fraction(2)),
    ],
)
def test_bytes_per_element(dtype: str, per_element: Fraction) -> None:
    assert dtype_of(dtype).size((1024, 2048)) == 1024 * 2048 * per_element
    assert dtype_of(dtype).size((7, 1024, 2048)) == 7 * 1024 * 2048 * per_element


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 200), st.integers(1, 200))
def test_every_block_that_is_begun_has_a_scale(rows: int, columns: int, high: int, wide: int) -> None:
    scales = len({(r // high, c // wide) for r in range(rows) for c in range(columns)}) if rows < 30 else None
    size = dtype_of(f"fp8/{high}x{wide}s32").size((rows, columns))
    assert size == rows * columns + 4 * -(-rows // high) * -(-columns // wide)
    assert scales is None or size == rows * columns + 4 * scales


def test_one_scale_per_row_and_per_tensor() -> None:
    assert dtype_of("int8/1x*s16").size((10, 64)) == 10 * 64 + 10 * 2
    assert dtype_of("fp8/*x*s32").size((10, 64)) == 10 * 64 + 4
    assert DTYPE_BITS["int4/1x64s16"] == 4


@pytest.mark.parametrize(
    ("stored", "name"),
    [
        (Format("fp8", 8, (128, 128), 32), "fp8/128x128s32"),
        (Format("int4", 4, (1, 128), 16, 4), "int4/1x128s16z4"),
        (Format("int8", 8, (1, None), 16), "int8/1x*s16"),
        (Format("fp8", 8, (None, None), 32), "fp8/*x*s32"),
        (Format("mxfp4", 4, (1, 32), 8), "mxfp4"),
        (Format("nf4", 4, (1, 64), 8), "nf4/1x64s8"),
    ],
)
def test_names_of_what_files_say(stored: Format, name: str) -> None:
    assert format_name(stored) == name
    assert dtype_of(name).bits == stored.bits


def kinds_of(graph: nx.DiGraph, ending: str) -> set[str]:
    return {d["dtype"] for n, d in graph.nodes(data=True) if n.endswith(ending)}


def test_each_part_has_its_format() -> None:
    request = Request(
        weight="fp8/128x128s32", attention="bf16", expert="nvfp4", embedding="fp16", head="int8", kv="fp8"
    )
    graph = decode_graph(load_model("mixtral-8x7b"), request)
    check_graph(graph)
    assert kinds_of(graph, "q_proj.weight") == {"bf16"}
    assert kinds_of(graph, "experts.up_proj.weight") == {"nvfp4"}
    assert kinds_of(graph, "router.weight") == {"fp8/128x128s32"}
    assert kinds_of(graph, "embed_tokens.weight") == {"fp16"}
    assert kinds_of(graph, "lm_head.weight") == {"int8"}
    assert kinds_of(graph, "k_cache") == {"fp8"}
    assert kinds_of(graph, "layernorm.weight") == {"bf16"}
    assert graph.graph["dtypes"] == {
        "weight": "fp8/128x128s32", "kv": "fp8", "activation": "bf16", "expert": "nvfp4", "attention": "bf16",
        "embedding": "fp16", "head": "int8",
    }  # fmt: skip


def test_a_file_says_its_formats_unless_the_request_does() -> None:
    model = load_model("deepseek-v3")
    assert part_types(model, Request())["experts"] == "fp8/128x128s32"
    assert part_types(model, Request())["cast"] == "fp8/1x128s32"
    assert part_types(model, Request())["router"] == "bf16"
    assert set(part_types(model, Request(weight="bf16")).values()) == {"bf16"}
    assert "cast" not in part_types(model, Request(cast="none"))
    assert part_types(load_model("gpt-oss-120b"), Request())["experts"] == "mxfp4"
    assert part_types(load_model("gpt-oss-120b"), Request())["attention"] == "bf16"


def test_activations_are_cast_once_before_the_products_that_share_them() -> None:
    graph = decode_graph(load_model("deepseek-v3"), Request(batch=2, context=100))
    of_layer = [n for n in op_nodes(graph) if n.startswith("model.layers.0.") and graph.nodes[n]["op"] == "quantize"]
    # Input of q_a and kv_a, of q_b, of o_proj, of gate and up, of down.
    assert len(of_layer) == 5
    out = graph.nodes[f"{of_layer[0]}.out"]
    assert out["dtype"] == "fp8/1x128s32"
    assert tensor_bytes(out) == 2 * 7168 + 4 * 2 * 7168 // 128


def run_of(chip: str, graph: nx.DiGraph, **split: int) -> Run:
    system = system_of(chip, **split)
    run = simulate(compile_graph(graph, system))
    check_run(run)
    check_bytes(run, graph, system)
    return run


FORMATS: tuple[dict[str, Any], ...] = (
    {"weight": "nvfp4"},
    {"weight": "mxfp4", "expert": "int4/1x128s16z4", "kv": "fp8"},
    {"weight": "fp8/128x128s32", "cast": "fp8/1x128s32", "kv": "mxfp8"},
    {"weight": "int8/1x*s16", "cast": "int8"},
)


@pytest.mark.parametrize("request_", FORMATS, ids=lambda r: "-".join(r.values()).replace("/", "_"))
@pytest.mark.parametrize("chip", STYLES)
def test_the_laws_hold(chip: str, request_: dict[str, Any]) -> None:
    for name in ("experts", "latent"):
        for tp in (1, 2):
            run_of(chip, decode_graph(DRAFTS[name], Request(batch=3, context=64, **request_)), tp=tp, pp=1)


@pytest.mark.parametrize("chip", STYLES)
def test_smaller_formats_read_fewer_bytes(chip: str) -> None:
    sizes = []
    for weight in ("bf16", "mxfp8", "nvfp4", "mxfp4"):
        run = run_of(chip, graph_of("llama-3.2-1b", weight=weight, embedding="bf16", head="bf16"), tp=1)
        sizes.append(sum(ways["read"].get("weight", 0) for ways in run.bytes.values()))
    matrices = 973_078_528  # of 16 layers: (2 x 2048 + 2 x 512) x 2048 + 3 x 8192 x 2048 each
    rest = sizes[0] - 2 * matrices
    norms = 2 * 33 * 2048
    assert rest == norms + 2 * 128_256 * 2048
    for size, bits in zip(sizes[1:], (Fraction(33, 4), Fraction(9, 2), Fraction(17, 4)), strict=True):
        assert size == rest + matrices * bits / 8


def test_what_a_unit_lacks_is_made_by_the_vector_unit() -> None:
    chip = system_of("h100-sxm").chip
    assert matrix_dtype(chip, "mxfp4", "bf16") == "bf16"
    assert matrix_dtype(chip, "fp8/128x128s32", "fp8/1x128s32") == "fp8"
    assert matrix_dtype(chip, "nvfp4", "nvfp4") == "fp8", "there is no fp4 unit"
    assert unpack_fs(chip, "fp8/128x128s32", "fp8", 1000) is None
    assert unpack_fs(chip, "bf16", "bf16", 1000) is None
    made = unpack_fs(chip, "mxfp4", "bf16", 128 * 1000)
    assert made is not None
    assert int(made[0]) == 1000 * chip.period_fs


def test_weights_that_a_unit_takes_beside_wider_activations_are_not_unpacked() -> None:
    chip = system_of("b200-sxm").chip
    assert unpack_fs(chip, "mxfp4", matrix_dtype(chip, "mxfp4", "mxfp8"), 1000) is None
    assert unpack_fs(chip, "mxfp4", matrix_dtype(chip, "mxfp4", "bf16"), 1000) is not None
    assert unpack_fs(system_of("h100-sxm").chip, "mxfp4", "fp8", 1000) is not None


def test_a_scale_per_row_takes_a_second_pass() -> None:
    """Its scale, the row from the L2 again, and its cast; no byte is counted twice."""
    chip = system_of("h100-sxm").chip

    def cast(to: str) -> Run:
        graph = new_graph("cast", batch=4)
        add_op(graph, "cast", "quantize", {"x": add_tensor(graph, "x", "activation", (4, 4096))}, {"out": (4, 4096)})
        graph.nodes["cast.out"]["dtype"] = to
        return run_on(chip, graph)

    row, block = cast("fp8/1x*s32"), cast("fp8/1x128s32")
    scale = int(chip.execution.row_scale.value) * chip.period_fs
    least = scale + latency_fs(chip, "vector") + int(chip.tier("l2").latency.value)
    assert least < row.time_fs - block.time_fs < 1.2 * least
    assert row.bytes["l2"]["read"]["activation"] == block.bytes["l2"]["read"]["activation"] == 4 * 4096 * 2


@pytest.mark.parametrize("chip", STYLES)
def test_unpacking_shows_as_vector_time(chip: str) -> None:
    def busy(weight: str) -> float:
        graph = decode_graph(DRAFTS["experts"], Request(batch=4, context=64, expert=weight))
        engines = run_of(chip, graph, tp=1, pp=1).engines
        return sum(e.busy_fs for e in engines if e.name in ("vector", "pcu"))

    assert busy("int8" if chip == "sn40l" else "fp8") > busy("bf16")


def test_formats_of_a_model_of_ones_own() -> None:
    stored = Formats("gptq", {"mlp": Format("int4", 4, (1, 128), 16, 4)})
    model = replace(DRAFTS["predicts"], formats=stored)
    graph = decode_graph(model, Request())
    assert kinds_of(graph, "mlp.up_proj.weight") == {"int4/1x128s16z4"}
    assert kinds_of(graph, "q_proj.weight") == {"bf16"}
