"""Sums of block-scaled products that the vector units scale and add."""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import networkx as nx
import pytest
from laws import check_kernels, check_run, run_on, system_of

from stallscope import compile_graph, load_chip
from stallscope.arch import Chip
from stallscope.compiler.tile import Product, gemm_tiles, operand_bytes, promote_fs, promoted_terms, step_fs
from stallscope.sim.run import Run
from stallscope.workloads import add_op, add_tensor, new_graph

BLOCK, ROWS = "fp8/128x128s32", "fp8/1x128s32"


@cache
def h100() -> Chip:
    return load_chip("h100-sxm")


def without(chip: Chip) -> Chip:
    return chip.model_copy(update={"execution": chip.execution.model_copy(update={"promotion": None})})


def product(m: int, n: int, k: int, weight: str, activation: str) -> nx.DiGraph:
    graph = new_graph("one", batch=m, dtypes={"weight": weight, "activation": activation})
    inputs = {"x": add_tensor(graph, "x", "activation", (m, k)), "weight": add_tensor(graph, "w", "weight", (n, k))}
    add_op(graph, "fc", "linear", inputs, {"out": (m, n)})
    return graph


def run(m: int, n: int, k: int, weight: str = BLOCK, activation: str = ROWS, chip: Chip | None = None) -> Run:
    return run_on(chip or h100(), product(m, n, k, weight, activation))


def test_only_scales_along_the_sum_that_no_unit_takes_are_promoted() -> None:
    assert promoted_terms(h100(), BLOCK, "fp8") == 128
    assert promoted_terms(h100(), "fp8", "fp8") == 0, "one scale for the tensor"
    assert promoted_terms(h100(), "fp8/1x*s32", "fp8") == 0, "one scale for each output: at the end"
    assert promoted_terms(h100(), "mxfp4", "bf16") == 0, "scaled as they are unpacked"
    assert promoted_terms(without(h100()), BLOCK, "fp8") == 0, "the matrix unit scales"


def test_a_block_takes_one_multiply_add_for_each_sum_and_the_chain() -> None:
    chip = h100()
    made = promote_fs(chip, 128, 128, 128, [128, 256, 300])
    assert made is not None
    assert [int(fs) // chip.period_fs for fs in made] == [128, 256, 384]
    assert promote_fs(chip, 0, 128, 128, 128) is None
    plain, block = (int(step_fs(chip, "fp8", 8, 64, 128, promoted=n).max()) for n in (0, 128))
    promotion = chip.execution.promotion
    assert promotion is not None
    assert block - plain == promotion.chain.value * chip.period_fs, "few tokens: the loop's own cycles are in sight"
    assert step_fs(chip, "fp8", 128, 128, 128, promoted=128) == step_fs(chip, "fp8", 128, 128, 128), "hidden"


def test_tiles_of_promoted_sums_are_smaller_and_never_split() -> None:
    few, many = (Product(m, n, 16384, 8, 8, "fp8", "hbm", 128) for m, n in ((1, 1024), (8192, 8192)))
    assert gemm_tiles(h100(), few).split == 1
    tiles = gemm_tiles(h100(), many)
    assert tiles.rows * tiles.columns <= 128 * 128


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1024, 8192), (64, 4096, 4096), (512, 4096, 4096), (5, 300, 700)])
def test_promotion_takes_vector_time(m: int, n: int, k: int) -> None:
    block, hardware = run(m, n, k), run(m, n, k, chip=without(h100()))
    check_run(block)
    check_kernels(block)
    assert block.critical_path_fs.get("vector", 0) > hardware.critical_path_fs.get("vector", 0)
    assert block.time_fs > 0.95 * hardware.time_fs, "where memory limits both, other tiles may be a little better"


def test_scales_are_read_with_what_they_scale() -> None:
    assert [int(operand_bytes(d, 1280).max()) for d in ("bf16", "fp8", ROWS, BLOCK)] == [2560, 1280, 1320, 1281]
    program = compile_graph(product(16, 512, 1024, BLOCK, ROWS), system_of(h100()))
    kinds = {kind: number for number, kind in enumerate(program.kinds)}
    (body,) = {segment.body for segment in program.segments}
    b = program.bodies[body]
    weights = b.nbytes[(b.kind == kinds["weight"]) & (b.tier >= 0)].sum()
    assert weights == 512 * 1024 + 4 * 8 * 4


@pytest.mark.parametrize(("n", "k"), [(1024, 8192), (8192, 1024), (4096, 4096)])
def test_more_tokens_are_hardly_ever_faster(n: int, k: int) -> None:
    """Tiles are chosen by an estimate: a choice may be a little better than the one for fewer tokens."""
    times = [run(m, n, k).time_fs for m in (1, 16, 64, 128, 256, 1024)]
    assert all(more >= 0.95 * fewer for fewer, more in pairwise(times)), times
