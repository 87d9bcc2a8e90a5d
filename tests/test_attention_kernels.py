"""Kernels of attention on GPUs: which one runs, its parts, and what sharing a core, sums and softmax take."""

from __future__ import annotations

import csv
from functools import cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import check_run, system_of

from stallscope import compile_graph, load_chip, simulate
from stallscope.arch import Chip
from stallscope.arch.parts import AttentionParts, MaskedKernel
from stallscope.compiler.program import Opcode, TileProgram
from stallscope.compiler.tile import attention_parts, masked_parts
from stallscope.validation.cases import decode_attention, latent_attention, prefill_attention
from stallscope.validation.change import change
from stallscope.validation.command import run_validation
from stallscope.workloads import add_tensor

US = 10**9


@cache
def chip(name: str = "h100-sxm") -> Chip:
    return load_chip(name)


def attention(**changed: Any) -> Chip:
    """The chip with other kernels of attention."""
    execution = chip().execution
    known = execution.attention.model_copy(update=changed)
    return chip().model_copy(update={"execution": execution.model_copy(update={"attention": known})})


def program(graph: nx.DiGraph, on: Chip | None = None) -> TileProgram:
    return compile_graph(graph, system_of(on or chip(), tp=1))


def us(graph: nx.DiGraph, on: Chip | None = None) -> float:
    run = simulate(program(graph, on))
    check_run(run)
    return run.time_fs / US


def launches(graph: nx.DiGraph) -> int:
    (body,) = program(graph).bodies
    return int((body.opcode == Opcode.LAUNCH).sum())


def rule() -> AttentionParts:
    known = chip().execution.attention.parts
    assert known is not None
    return known


def masked() -> MaskedKernel:
    known = chip().execution.attention.masked
    assert known is not None
    return known


@given(pairs=st.integers(1, 20000), tokens=st.integers(1, 10**6))
def test_parts_are_no_smaller_and_no_more_than_the_rule_says(pairs: int, tokens: int) -> None:
    parts = attention_parts(132, rule(), pairs, tokens)
    assert parts == 1 or tokens // parts >= rule().tokens
    assert parts == 1 or parts * pairs <= rule().waves * 132
    assert parts == 1 or (parts - 0.5) ** 2 <= rule().spread * tokens / rule().tokens


@pytest.mark.parametrize(
    ("pairs", "tokens", "parts"),
    [(1, 127, 1), (1, 512, 4), (1, 4096, 16), (1, 131072, 91), (64, 8192, 16), (8, 255, 1)],
)
def test_parts_are_those_of_the_library(pairs: int, tokens: int, parts: int) -> None:
    assert attention_parts(132, rule(), pairs, tokens) == parts


@given(blocks=st.integers(1, 10**5), tokens=st.integers(1, 10**5))
def test_blocks_of_a_masked_kernel_have_work_and_room(blocks: int, tokens: int) -> None:
    parts, resident = masked_parts(132, masked(), blocks, tokens)
    assert 1 <= resident <= int(masked().resident.value)
    assert parts == 1 or (parts - 1) * blocks < 132
    assert parts == 1 or (parts - 1) * int(masked().tokens.value) < tokens + 1


@pytest.mark.parametrize(
    ("blocks", "tokens", "found"),
    [
        (4, 128, (1, 1)),
        (4, 512, (2, 1)),
        (32, 4096, (5, 1)),
        (128, 512, (2, 1)),
        (256, 4096, (1, 2)),
        (2048, 2, (1, 4)),
    ],
)
def test_few_blocks_of_a_masked_kernel_are_large(blocks: int, tokens: int, found: tuple[int, int]) -> None:
    assert masked_parts(132, masked(), blocks, tokens) == found


def test_what_is_too_small_for_the_matrix_units_runs_without_them() -> None:
    """Of 132 cores a quarter must have a part of 128 tokens; heads that share nothing, and they alone, always."""
    assert launches(decode_attention(1, 512, 32, 8, 128, "bf16")) == 1, "32 parts"
    assert launches(decode_attention(1, 640, 32, 8, 128, "bf16")) == 3, "40 parts: offsets, positions, attention"
    assert launches(decode_attention(64, 8192, 32, 32, 128, "bf16")) == 1
    assert launches(decode_attention(1, 512, 32, 8, 128, "fp8")) == 1, "one kernel that appends itself"
    assert launches(decode_attention(1, 8192, 32, 8, 128, "fp8")) == 1


@pytest.mark.parametrize("kv", ["bf16", "fp8"])
@pytest.mark.parametrize(("heads", "kv_heads"), [(32, 32), (32, 4), (4, 1)])
@pytest.mark.parametrize("batch", [1, 40, 300])
def test_more_tokens_in_as_many_parts_are_never_faster(kv: str, heads: int, kv_heads: int, batch: int) -> None:
    times = [us(decode_attention(batch, tokens, heads, kv_heads, 128, kv)) for tokens in (2, 64, 128, 255)]
    assert times == sorted(times)


def test_blocks_that_share_a_core_hide_each_others_beginning() -> None:
    graph, path = decode_attention(1024, 2, 8, 1, 128, "fp8"), "execution.attention.grouped.fp8.resident"
    alone, two = us(graph, change(chip(), path, 1)), us(graph)
    assert 0.5 * alone < two < 0.7 * alone
    few = decode_attention(100, 2, 8, 1, 128, "fp8")
    assert us(few) == pytest.approx(us(few, change(chip(), path, 1)), rel=0.01), "a core for each"


def test_sums_take_longer_with_more_parts() -> None:
    path = "execution.attention.grouped.fp8.merge"
    few, many = decode_attention(1, 512, 4, 1, 128, "fp8"), decode_attention(1, 131072, 4, 1, 128, "fp8")
    saved = [us(g) - us(g, change(chip(), path, 0)) for g in (few, many)]
    merge = float(chip().execution.attention.grouped["fp8"].merge.value) / US
    assert saved == pytest.approx([4 * merge, 91 * merge], rel=0.01)


def test_latents_are_read_once_by_blocks_of_some_heads() -> None:
    """128 query heads are two blocks of 64: from memory their keys come once, and twice as many cores work."""
    graph = latent_attention(2, 1000, 128, "bf16")
    made = program(graph)
    (body,) = made.bodies
    kv = (body.kind == made.kinds.index("kv")) & (body.write == 0) & (body.tier >= 0)
    assert int(body.nbytes[kv].sum()) == 2 * 1000 * 576 * 2
    whole = change(chip(), "execution.attention.latent.rows", 128)
    short = latent_attention(64, 4096, 128, "bf16")
    assert us(short) < us(short, whole)


def test_softmax_beside_products_adds_its_time() -> None:
    """4,096 tokens of 32 heads: exponentials at 16 a cycle take half as long again as the products."""
    flash = chip().execution.attention.flash
    graph = prefill_attention(1, 4096, 32, 8, 128, "bf16", "bf16")
    beside, under = us(graph), us(graph, attention(flash=flash.model_copy(update={"softmax": "under"})))
    assert 1.3 * under < beside < 2 * under


def test_keys_of_few_blocks_are_split_where_the_kernel_does() -> None:
    flash = chip().execution.attention.flash
    graph = prefill_attention(1, 2048, 4, 1, 128, "bf16", "bf16")
    assert us(graph, attention(flash=flash.model_copy(update={"split": True}))) < 0.8 * us(graph)


def test_only_prompts_are_left_whole() -> None:
    """One new token against a long cache, with the sinks that make it no plain decode, is split over the cores."""
    graph = decode_attention(1, 65536, 8, 1, 128, "bf16")
    sinks = add_tensor(graph, "sinks", "weight", (8,))
    graph.add_edge(sinks, "attend", role="sinks")
    assert us(graph) < 3 * us(decode_attention(1, 65536, 8, 1, 128, "bf16"))


def decode_rows(gpu: str) -> list[dict[str, object]]:
    shapes = [(1, 4096, 32, 8), (64, 2, 32, 32), (128, 8192, 64, 8)]
    return [
        {"gpu": gpu, "kv_dtype": word, "batch": b, "context": c, "n_heads": h, "n_kv_heads": kv, "head_dim": 128}
        for b, c, h, kv in shapes
        for word in ("bfloat16", "float16", "fp8", "fp8_e4m3")
    ]


def prefill_rows(gpu: str) -> list[dict[str, object]]:
    names = ("batch_size", "isl", "num_heads", "num_key_value_heads")
    return [
        {"gpu": gpu, "attn_dtype": q, "kv_cache_dtype": kv, **dict(zip(names, shape, strict=True)), "head_dim": 128}
        for q, kv in (("bfloat16", "bfloat16"), ("bfloat16", "fp8"), ("fp8", "fp8"))
        for shape in ((1, 128, 8, 1), (1, 2048, 32, 8))
    ]


def latent_rows(gpu: str) -> list[dict[str, object]]:
    return [
        {"gpu": gpu, "mla_dtype": "bfloat16", "kv_cache_dtype": kv, "num_heads": heads, "batch": b, "context": c}
        for kv in ("bfloat16", "fp8")
        for heads, b, c in ((16, 1, 2), (128, 32, 4096))
    ]


@pytest.mark.parametrize("rows", [decode_rows, prefill_rows, latent_rows], ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", ["h200-sxm", "b200-sxm"])
def test_tables_of_other_chips_are_predicted_near_the_first(tmp_path: Path, name: str, rows: Any) -> None:
    """A newer chip takes little longer than H100, where its kernels are others, and no less than its rates allow."""
    times = []
    for gpu in ("h100-sxm", name):
        path = tmp_path / f"{gpu}.csv"
        with path.open("w", newline="") as file:
            made = [{**row, "latency_ms": 1.0} for row in rows(gpu.replace("-", "_"))]
            writer = csv.DictWriter(file, list(made[0]))
            writer.writeheader()
            writer.writerows(made)
        result = run_validation([path], [gpu], None, None)
        assert not result.tables[0].left_out
        assert len(result.compared) == len(made)
        times.append([1 + c.error for c in result.compared])
    ratio = np.array(times[1]) / np.array(times[0])
    assert np.all(ratio < (1.02 if name == "h200-sxm" else 1.25)), ratio
    assert np.all(ratio > 0.3), ratio
