"""Mixtures on a GPU: kernels around the products of experts, from expert to expert, and the benchmark's loads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import check_run, system_of, with_fact

from stallscope import compile_graph, load_chip, simulate
from stallscope.arch import Chip
from stallscope.compiler.program import Opcode
from stallscope.compiler.styles.kernel_stream import in_proportion
from stallscope.sim.run import Run
from stallscope.validation.cases import experts
from stallscope.validation.routed import balanced, power_law, routed
from stallscope.workloads.dtypes import dtype_of

FORMATS = (("bf16", False), ("fp8", True), ("fp8/128x128s32", True), ("mxfp4", False))
WALKS = "fp8/128x128s32"


def h100(**facts: Any) -> Chip:
    return with_fact(load_chip("h100-sxm"), **{f"execution__{name}": value for name, value in facts.items()})


def mixture(
    chip: Chip, tokens: int, weight: str = "bf16", cast: bool = False, count: int = 16, inner: int = 512, ways: int = 1
) -> Run:
    graph = experts(tokens, 1024, inner, 2, count, ways, "balanced", weight, cast)
    run = simulate(compile_graph(graph, system_of(chip)))
    check_run(run)
    return run


@pytest.mark.parametrize("loop", ["once", "persistent"])
@pytest.mark.parametrize(("weight", "cast"), FORMATS)
@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_woken_experts_are_read_once(tokens: int, weight: str, cast: bool, loop: str) -> None:
    run = mixture(h100(expert_loop=loop), tokens, weight, cast)
    woken = len(routed("balanced", 16, 2, tokens, 1))
    shapes = [(16, 512, 1024), (16, 512, 1024), (16, 1024, 512)]
    stored = sum(dtype_of(weight).size(shape) for shape in shapes)
    assert run.bytes["hbm"]["read"]["expert"] == pytest.approx(stored * woken / 16, abs=16)


@pytest.mark.parametrize(("weight", "cast"), FORMATS)
def test_more_tokens_are_not_faster(weight: str, cast: bool) -> None:
    times = [mixture(h100(), tokens, weight, cast).time_fs for tokens in (1, 2, 4, 8, 64, 256, 1024)]
    assert times == sorted(times)


@pytest.mark.parametrize("tokens", [4, 64])
@pytest.mark.parametrize(("weight", "cast"), FORMATS)
def test_a_loop_over_tiles_is_not_slower(weight: str, cast: bool, tokens: int) -> None:
    """Many tiles for each core, of short sums: where each begins anew, its first loads wait for the end before."""
    times = [mixture(h100(expert_loop=w), tokens, weight, cast, 128, 256).time_fs for w in ("once", "persistent")]
    assert times[1] <= times[0]


def test_only_products_with_scales_along_the_sum_walk_through_experts_that_sleep() -> None:
    for weight, cast in FORMATS:
        few, many = (mixture(h100(), 1, weight, cast, count).time_fs for count in (16, 116))
        scores = 2 * 10**9  # the router's choice among more experts
        walk = h100().execution.expert_walk
        assert walk is not None
        walked = 2 * 100 * int(walk.value) if weight == WALKS else 0
        assert abs(many - few - walked) < scores, weight


def test_another_expert_takes_its_time_where_descriptors_are_written() -> None:
    for weight, cast in FORMATS:
        none, some = (mixture(h100(expert_switch=us * 10**9), 1, weight, cast) for us in (0, 2))
        assert some.time_fs - none.time_fs == pytest.approx(4e9 if weight in ("bf16", "fp8") else 0, abs=10**8), weight


def test_kernels_around_the_products() -> None:
    def kernels(chip: Chip) -> int:
        graph = experts(4, 1024, 512, 2, 16, 1, "balanced", "bf16", False)
        (body,) = compile_graph(graph, system_of(chip)).bodies
        return int((body.opcode == Opcode.LAUNCH).sum())

    whole = kernels(h100())
    assert whole == 8, "choice, sort, addresses, gather, gate and up, activation, down, sum"
    assert kernels(h100(expert_gather="inside")) == whole - 1
    assert kernels(h100(expert_helpers__bf16=3)) == whole + 1
    chip = h100()
    fused = chip.model_copy(update={"execution": chip.execution.model_copy(update={"apart": ()})})
    assert kernels(fused) == whole - 1


@given(
    tokens=st.integers(1, 300),
    shape=st.sampled_from([(8, 2, 8), (128, 8, 4), (384, 8, 32), (60, 4, 1)]),
    seed=st.integers(0, 5),
)
@settings(max_examples=40, deadline=None)
def test_the_benchmarks_loads(tokens: int, shape: tuple[int, int, int], seed: int) -> None:
    count, top_k, ways = shape
    even = balanced(count, top_k, tokens)
    drawn = power_law(count, top_k, tokens, ways, 1.2, seed)
    for loads in (even, drawn):
        assert loads.sum() == tokens * top_k
        assert loads.min() >= 0
        assert loads.max() <= tokens
    assert np.count_nonzero(even) == min(count, tokens * top_k)
    chips = drawn.reshape(ways, -1).sum(axis=1)
    assert chips[0] == chips.max()


def test_a_power_law_of_loads_wakes_fewer() -> None:
    assert len(routed("balanced", 128, 8, 16, 1)) == 128
    assert 50 < len(routed("power_law_1.2", 128, 8, 16, 1)) < 70


def test_large_shares_are_exact() -> None:
    """Bytes times elements of a large mixture pass 64 bits."""
    weights = np.full(5000, 10**7)
    shares = in_proportion(11 * 10**9, weights)
    assert shares.sum() == 11 * 10**9
    assert shares.max() - shares.min() <= 1
