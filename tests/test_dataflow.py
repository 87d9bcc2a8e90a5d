"""The dataflow style: what a section streams, how far ahead, and what the buffers and cores bound."""

from __future__ import annotations

from functools import cache

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import check_bytes, check_run, graph_of, run_on, system_of, with_fact

from stallscope import compile_graph, load_chip, simulate
from stallscope.arch import Chip
from stallscope.compiler.program import Body, Dep, Opcode, TileProgram
from stallscope.compiler.styles.section_frame import TILE, buffers, portions
from stallscope.compiler.styles.section_ops import cuts
from stallscope.sim.run import Run, simulate_detailed
from stallscope.workloads import add_op, add_tensor, new_graph

MIB = 1 << 20


@cache
def sn40l() -> Chip:
    """Without the host between steps: these tests are about sections."""
    return with_fact(load_chip("sn40l"), execution__step_gap=0)


def test_the_host_between_steps_counts_once() -> None:
    graph = graph_of("llama-3.2-1b")
    with_host, without = run_on("sn40l", graph, tp=8), run_on(sn40l(), graph, tp=8)
    assert with_host.critical_path_fs["host"] == load_chip("sn40l").execution.step_gap.value
    assert without.time_fs < with_host.time_fs <= without.time_fs + with_host.critical_path_fs["host"]


def sram_of(size: int) -> Chip:
    return with_fact(sn40l(), tiers__sram__capacity=size)


@cache
def step_of(model: str, tp: int, context: int = 1024, **request: int) -> Run:
    """One decode step on sn40l."""
    return run_on(sn40l(), graph_of(model, context=context, **request), tp=tp, pp=1)


def same(one: Run, two: Run) -> bool:
    """Equal to the femtosecond, but for what was simulated."""
    fields = ("time_fs", "critical_path_fs", "engines", "bytes", "ops", "lanes_busy_fs", "interval_fs", "events")
    return all(getattr(one, f) == getattr(two, f) for f in fields)


@pytest.mark.parametrize(
    ("model", "tp", "request_"),
    [
        ("llama-3.1-8b", 1, {}),
        ("llama-3.1-8b", 8, {}),
        ("llama-3.1-70b", 8, {}),
        ("llama-3.2-1b", 8, {"batch": 3, "context": 777}),
        ("llama-2-7b", 4, {"batch": 2, "context": 50}),
        ("qwen2.5-0.5b", 2, {"context": 1}),
    ],
)
def test_bytes_and_bound(model: str, tp: int, request_: dict[str, int]) -> None:
    run = step_of(model, tp, **request_)
    check_run(run)
    check_bytes(run, graph_of(model, **{"context": 1024, **request_}), system_of(sn40l(), tp=tp, pp=1))
    assert run.time_fs < 1.15 * run.program.info.bound.time_fs
    assert "activation" not in {kind for ways in run.bytes.values() for kinds in ways.values() for kind in kinds}


@pytest.mark.parametrize(("model", "tp"), [("llama-3.1-8b", 1), ("llama-3.1-70b", 8)])
def test_weights_stream_ahead_without_a_pause(model: str, tp: int) -> None:
    run = step_of(model, tp)
    lanes = int(sn40l().tier("hbm").lanes) * tp
    assert run.lanes_busy_fs["hbm"] > 0.99 * lanes * run.time_fs
    assert run.critical_path_fs.get("launch", 0) < 0.01 * run.time_fs


def test_every_op_has_its_share_of_the_critical_path() -> None:
    run = step_of("llama-3.1-8b", 1)
    for op in run.ops:
        if op.kind == "linear":
            assert 1 <= op.time_fs / op.bound_fs < 1.15, op.name


def test_identical_layers_are_skipped() -> None:
    run = step_of("llama-3.1-70b", 8)
    assert run.simulated_blocks < 12 < run.blocks


@pytest.mark.parametrize("changes", [{}, {"tiers__sram__capacity": 3 * MIB}, {"tiers__hbm__capacity": 256 * MIB}])
def test_skipping_changes_nothing(changes: dict[str, float]) -> None:
    chip = with_fact(sn40l(), **changes)
    program = compile_graph(graph_of("llama-3.2-1b"), system_of(chip, tp=8, pp=1))
    short, full = simulate(program), simulate(program, skip=False)
    assert short.simulated_blocks < full.simulated_blocks == full.blocks
    assert same(short, full)


def test_less_sram_is_never_faster() -> None:
    graph = graph_of("llama-3.2-1b")
    sizes = [520 * MIB, 64 * MIB, 16 * MIB, 12 * MIB, 8 * MIB, 6 * MIB, 4 * MIB, 2 * MIB, MIB, MIB // 2]
    times = [run_on(sram_of(size), graph, tp=8, pp=1).time_fs for size in sizes]
    assert times == sorted(times)
    assert times[1] == times[0]  # all of a layer fits
    assert times[-1] > 1.5 * times[0]


def test_too_few_buffers_show_as_a_stall() -> None:
    run = run_on(sram_of(MIB), graph_of("llama-3.2-1b"), tp=8, pp=1)
    load = next(e for e in run.engines if e.name == "load")
    assert load.stalls_fs["buffer"] > 0.1 * run.time_fs


def waits(body: Body) -> list[tuple[int, int]]:
    """(load, compute that uses it) of a body."""
    owner = np.repeat(np.arange(len(body)), np.diff(body.dep_ptr))
    raw = (body.dep_type == Dep.RAW) & (body.dep_slot == 0)
    edges = zip(body.dep_pred[raw], owner[raw], strict=True)
    return [(int(p), int(o)) for p, o in edges if body.opcode[p] == Opcode.LOAD]


def most_buffered(program: TileProgram) -> int:
    """The most bytes that were asked for and not yet used at any time."""
    detail = simulate_detailed(program, skip=False)
    bodies = [program.bodies[s.body] for s in program.segments for _ in range(s.repeat)]
    events = []
    for b, body in enumerate(bodies):
        for load, use in waits(body):
            size = int(body.nbytes[load])
            events += [(int(detail.start[b][load]), size), (int(detail.release[b][use]), -size)]
    return max(np.cumsum([size for _, size in sorted(events)]))


@pytest.mark.parametrize("size", [2 * MIB, 6 * MIB, 20 * MIB, 520 * MIB])
@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen2.5-0.5b"])
def test_sram_never_holds_more_than_it_can(model: str, size: int) -> None:
    program = compile_graph(graph_of(model, context=5000), system_of(sram_of(size), tp=1, pp=1))
    held = most_buffered(program)
    assert held <= size - program.info.placement["sram"]["activation"]
    assert held > 0.5 * min(size, 8 * MIB)


def test_every_load_has_a_buffer_to_wait_for() -> None:
    program = compile_graph(graph_of("llama-3.2-1b"), system_of(sram_of(6 * MIB), tp=1, pp=1))
    for body in program.bodies:
        owner = np.repeat(np.arange(len(body)), np.diff(body.dep_ptr))
        waiting = set(owner[body.dep_type == Dep.WAR].tolist())
        assert waiting == set(np.flatnonzero(body.opcode == Opcode.LOAD).tolist())


def test_what_hbm_cannot_hold_streams_from_ddr() -> None:
    chip = with_fact(sn40l(), tiers__hbm__capacity=1000 * MIB)
    graph = graph_of("llama-3.2-1b")
    run = run_on(chip, graph, tp=1, pp=1)
    check_run(run)
    check_bytes(run, graph, system_of(chip, tp=1, pp=1))
    assert run.program.info.placement["ddr"]["weight"] > 100 * MIB
    assert run.bytes["ddr"]["read"]["weight"] > 100 * MIB
    assert run.critical_path_fs["bandwidth:ddr"] > 0.5 * run.time_fs


@pytest.mark.slow
def test_llama_405b_spills_on_eight_sockets() -> None:
    run = step_of("llama-3.1-405b", 8)
    check_run(run)
    assert run.bytes["ddr"]["read"]["weight"] > 200e9
    assert run.time_fs < 2 * run.program.info.bound.time_fs


def test_pipeline_stages() -> None:
    graph = graph_of("llama-3.2-1b")
    whole, staged = step_of("llama-3.2-1b", 1), run_on(sn40l(), graph, tp=1, pp=4)
    check_run(staged)
    assert staged.time_fs >= whole.time_fs
    assert staged.interval_fs < 0.5 * whole.time_fs


def mlp(pieces: bool) -> nx.DiGraph:
    """Two products, the second behind an activation that comes in pieces, or behind a norm of it."""
    graph = new_graph("mlp")
    add_tensor(graph, "x", "activation", (1, 4096))
    add_tensor(graph, "up.weight", "weight", (8192, 4096))
    add_op(graph, "up", "linear", {"x": "x", "weight": "up.weight"}, {"out": (1, 8192)})
    add_op(graph, "act", "gelu", {"x": "up.out"}, {"out": (1, 8192)})
    between = "act.out"
    if not pieces:
        add_tensor(graph, "norm.weight", "weight", (8192,))
        add_op(graph, "norm", "rmsnorm", {"x": "act.out", "weight": "norm.weight"}, {"out": (1, 8192)})
        between = "norm.out"
    add_tensor(graph, "down.weight", "weight", (4096, 8192))
    add_op(graph, "down", "linear", {"x": between, "weight": "down.weight"}, {"out": (1, 4096)})
    return graph


@pytest.mark.parametrize("pieces", [True, False])
def test_a_product_follows_the_pieces_of_the_one_before(pieces: bool) -> None:
    """With slow cores the second product starts long before the first has ended, unless a norm stands between."""
    slow = with_fact(sn40l(), clock=16e6, tiers__hbm__bandwidth=1e15, execution__launch_gap=0)
    program = compile_graph(mlp(pieces), system_of(slow, tp=1, pp=1))
    detail = simulate_detailed(program)
    (body,) = program.bodies
    engine = {name: np.flatnonzero(body.engine == i) for i, name in enumerate(program.engines.name)}
    matrix = [i for i in engine["pcu0"] if program.causes[body.cause[i]] == "matrix"]
    second = engine["pcu1"] if pieces else engine["pcu2"]
    overlap = detail.start[0][second[0]] < detail.start[0][matrix[-1]]
    assert overlap == pieces


def test_other_graphs_run() -> None:
    """Elementwise ops on pieces, a product of two activations, softmax."""
    graph = new_graph("other", batch=2)
    add_tensor(graph, "x", "activation", (2, 2048))
    add_tensor(graph, "w", "weight", (2048, 2048))
    add_op(graph, "fc", "linear", {"x": "x", "weight": "w"}, {"out": (2, 2048)})
    add_op(graph, "act", "silu", {"x": "fc.out"}, {"out": (2, 2048)})
    add_op(graph, "more", "mul", {"a": "fc.out", "b": "act.out"}, {"out": (2, 2048)})
    add_tensor(graph, "table", "activation", (2048, 64))
    add_op(graph, "mm", "matmul", {"a": "more.out", "b": "table"}, {"out": (2, 64)})
    add_op(graph, "soft", "softmax", {"x": "mm.out"}, {"out": (2, 64)})
    run = run_on(sn40l(), graph, tp=1, pp=1)
    check_run(run)
    assert run.bytes == {"hbm": {"read": {"weight": 2048 * 2048 * 2}, "write": {}}}


@given(st.integers(0, 10**10), st.lists(st.integers(1, 10**6), min_size=1, max_size=50))
def test_portions_are_exact_and_fair(total: int, weights: list[int]) -> None:
    parts = portions(total, np.array(weights))
    assert parts.sum() == total
    assert np.all(np.abs(parts - total * np.array(weights) / sum(weights)) <= 1 + 1e-6)


@given(st.integers(1, 10**6), st.integers(0, 2000), st.integers(1, 512))
def test_cuts_are_whole_granules(whole: int, parts: int, granule: int) -> None:
    out = cuts(whole, parts, granule)
    assert out.sum() == whole
    assert np.all(out > 0)
    assert np.all(out[:-1] % granule == 0)
    assert len(out) <= max(parts, 1)


def test_buffers_fill_the_sram() -> None:
    program = compile_graph(graph_of("llama-3.2-1b"), system_of(sn40l(), tp=1, pp=1))
    held = program.info.placement["sram"]["activation"]

    class Placed:
        chip, used = sn40l(), ({"sram": {"activation": held}},)

    tile, slots = buffers(Placed())  # type: ignore[arg-type]
    assert tile == TILE
    assert 0.9 * 520 * MIB < tile * slots <= 520 * MIB - held
