"""The GPU style: what the tiles of an op move, what limits a kernel, what overlaps."""

from __future__ import annotations

from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import check_kernels, check_run, graph_of, run_on, system_of, with_fact

from stallscope import compile_graph, load_chip, simulate
from stallscope.arch import Chip
from stallscope.compiler.program import Body, Dep, Form, Opcode, TileProgram
from stallscope.sim.run import Run
from stallscope.workloads import add_op, add_tensor, new_graph, tensor_bytes

DTYPES = ("fp32", "bf16", "fp8", "int4")
CLOSING = ("launcher", "barrier")  # engines whose barriers end a kernel; those of other engines only fill a queue
FREE = {  # memory, links and launches that cost next to nothing
    "tiers__hbm__bandwidth": 1e18,
    "tiers__hbm__latency": 3,
    "tiers__hbm__availability": 1.0,
    "tiers__l2__bandwidth": 1e18,
    "tiers__l2__latency": 2,
    "tiers__smem__latency": 1,
    "load__port": 1e9,
    "store__port": 1e9,
    "execution__launch_gap": 0,
    "execution__prologue": 0,
    "execution__epilogue": 0,
    "execution__step": 0,
    "load__copy_latency": 0,
    "matrix__availability__bf16": 1.0,
}


@cache
def h100() -> Chip:
    return load_chip("h100-sxm")


def linear_graph(m: int, n: int, k: int, weight: str = "bf16", bias: bool = False, siblings: int = 1) -> nx.DiGraph:
    """One product, or several of the same activation."""
    graph = new_graph("one", batch=m, dtypes={"weight": weight})
    add_tensor(graph, "x", "activation", (m, k))
    for i in range(siblings):
        inputs = {"x": "x", "weight": add_tensor(graph, f"w{i}", "weight", (n, k))}
        if bias:
            inputs["bias"] = add_tensor(graph, f"b{i}", "weight", (n,))
        add_op(graph, f"fc{i}", "linear", inputs, {"out": (m, n)})
    return graph


def compiled(graph: nx.DiGraph, chip: Chip | None = None, **split: int) -> TileProgram:
    return compile_graph(graph, system_of(chip or h100(), **split))


def moved(program: TileProgram, kind: str, write: bool = False) -> int:
    """Bytes of a tensor kind that a program's instructions move, on one chip."""
    number = program.kinds.index(kind)
    return sum(
        int(body.nbytes[(body.kind == number) & (body.tier >= 0) & (body.write == write)].sum()) * segment.repeat
        for segment in program.segments
        for body in [program.bodies[segment.body]]
    )


def weights_of(graph: nx.DiGraph) -> int:
    return sum(tensor_bytes(data) for _, data in graph.nodes(data=True) if data.get("tensor") == "weight")


def of_kind(program: TileProgram, body: Body, kind: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array(program.engines.kind)[body.engine] == kind


@settings(max_examples=60, deadline=None)
@given(
    m=st.integers(1, 300),
    n=st.integers(1, 20_000),
    k=st.integers(1, 20_000),
    weight=st.sampled_from(DTYPES),
    bias=st.booleans(),
    siblings=st.integers(1, 3),
)
def test_tiles_of_a_linear_sum_to_its_weight(m: int, n: int, k: int, weight: str, bias: bool, siblings: int) -> None:
    graph = linear_graph(m, n, k, weight, bias, siblings)
    program = compiled(graph)
    assert moved(program, "weight") == weights_of(graph)
    assert moved(program, "activation") >= m * k * 2
    assert moved(program, "activation", write=True) >= m * n * 2


def test_siblings_store_all_their_results() -> None:
    program = compiled(linear_graph(1, 4096, 64, siblings=3))
    assert moved(program, "activation", write=True) >= 3 * 4096 * 2


@settings(max_examples=25, deadline=None)
@given(m=st.integers(1, 40), n=st.integers(1, 300), k=st.integers(1, 300), weight=st.sampled_from(DTYPES))
def test_small_linears_too(m: int, n: int, k: int, weight: str) -> None:
    graph = linear_graph(m, n, k, weight, bias=True)
    program = compiled(graph)
    assert moved(program, "weight") == weights_of(graph)
    run = simulate(program)
    check_run(run)
    check_kernels(run)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.sampled_from(DTYPES), min_size=2, max_size=3), st.integers(1, 3000), st.integers(1, 3000))
def test_siblings_of_different_formats(formats: list[str], n: int, k: int) -> None:
    graph = linear_graph(1, n, k, siblings=len(formats))
    for i, dtype in enumerate(formats):
        graph.nodes[f"w{i}"]["dtype"] = dtype
    assert moved(compiled(graph), "weight") == weights_of(graph)


@settings(max_examples=25, deadline=None)
@given(
    batch=st.integers(1, 70),
    kv_heads=st.integers(1, 20),
    group=st.integers(1, 8),
    head_dim=st.sampled_from((1, 5, 64, 128)),
    context=st.integers(1, 9000),
    kv=st.sampled_from(("bf16", "fp8", "int4")),
)
def test_attention_reads_its_cache_once(
    batch: int, kv_heads: int, group: int, head_dim: int, context: int, kv: str
) -> None:
    graph = new_graph("one", batch, context, {"kv": kv})
    q, new, cached = kv_heads * group * head_dim, kv_heads * head_dim, (batch, kv_heads, context, head_dim)
    inputs = {role: add_tensor(graph, role, "activation", (batch, w)) for role, w in (("q", q), ("k", new), ("v", new))}
    add_op(graph, "append", "kv_append", {"k": "k", "v": "v"},
           {"k_slot": (batch, kv_heads, 1, head_dim), "v_slot": (batch, kv_heads, 1, head_dim)})  # fmt: skip
    inputs |= {role: add_tensor(graph, role, "kv", cached) for role in ("k_cache", "v_cache")}
    heads = {"heads": kv_heads * group, "kv_heads": kv_heads, "head_dim": head_dim}
    add_op(graph, "attend", "attention", inputs, {"out": (batch, q)}, **heads)
    program = compiled(graph)
    assert moved(program, "kv") == sum(tensor_bytes(graph.nodes[t]) for t in ("k_cache", "v_cache"))
    assert moved(program, "kv", write=True) == sum(tensor_bytes(graph.nodes[f"append.{r}_slot"]) for r in "kv")
    check_run(simulate(program))


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 400),
    width=st.integers(66, 9000),  # narrower rows: see the next test
    op=st.sampled_from(("rmsnorm", "layernorm", "softmax", "silu", "gelu")),
)
def test_row_work_moves_what_it_must(rows: int, width: int, op: str) -> None:
    graph = new_graph("one", rows)
    inputs = {"x": add_tensor(graph, "x", "activation", (rows, width))}
    if op.endswith("norm"):
        inputs["weight"] = add_tensor(graph, "w", "weight", (width,))
    add_op(graph, "f", op, inputs, {"out": (rows, width)})
    program = compiled(graph)
    assert moved(program, "weight") == weights_of(graph)
    assert moved(program, "activation") == moved(program, "activation", write=True) == rows * width * 2
    run = simulate(program)
    check_run(run)
    check_kernels(run)


def test_a_norm_of_many_narrow_rows_reads_its_weight_once() -> None:
    graph = new_graph("one", 100)
    inputs = {"x": add_tensor(graph, "x", "activation", (100, 4)), "weight": add_tensor(graph, "w", "weight", (4,))}
    add_op(graph, "f", "rmsnorm", inputs, {"out": (100, 4)})
    assert moved(compiled(graph), "weight") == 8


def test_an_embedding_reads_one_row_per_token() -> None:
    graph = new_graph("one", 5)
    table = add_tensor(graph, "table", "embedding", (32_000, 4096))
    add_op(graph, "embed", "embedding", {"weight": table}, {"out": (5, 4096)}, rows=5)
    assert moved(compiled(graph), "embedding") == 5 * 4096 * 2


def test_each_kernel_has_one_launch_and_one_barrier() -> None:
    program = compiled(graph_of("llama-3.2-1b"))
    for body in program.bodies:
        kernels = len(np.unique(body.group))
        assert int((body.opcode == Opcode.LAUNCH).sum()) == kernels
        at_launcher = body.engine == program.engines.name.index("launcher")
        assert int(((body.opcode == Opcode.BARRIER) & at_launcher).sum()) == kernels
    layer = next(body for body in program.bodies if body.name.startswith("layer"))
    names = [program.ops[op].name.rpartition(".")[2] for op in dict.fromkeys(layer.op.tolist())]
    whole = [n for n in names if not n.endswith((" rope", " append", " sum"))]
    assert len(whole) == 8, f"two norms, QKV, attention, output, gate and up, their product, down: {names}"


@pytest.mark.parametrize("overlap", ["none", "programmatic"])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("request_", [{}, {"batch": 40, "context": 3000}], ids=str)
def test_a_barrier_waits_for_all_of_its_kernel(request_: dict[str, int], tp: int, overlap: str) -> None:
    """By edges, or as the one before in a queue: nothing of a kernel may still be at work when the next one begins."""
    chip = with_fact(h100(), execution__overlap=overlap)
    program = compiled(graph_of("qwen2.5-0.5b", **request_), chip, tp=tp)
    for body in program.bodies:
        waits: list[list[int]] = [[] for _ in range(len(body))]
        ptr, before = body.dep_ptr, dict[tuple[int, int], int]()
        for i in range(len(body)):
            waits[i] = [int(body.dep_pred[d]) for d in range(ptr[i], ptr[i + 1]) if not body.dep_slot[d]]
            queue = int(body.engine[i]), int(body.group[i])
            waits[i] += [before[queue]] if queue in before else []
            before[queue] = i
        closing = np.isin(body.engine, [i for i, kind in enumerate(program.engines.kind) if kind in CLOSING])
        for group in np.unique(body.group):
            mine = np.flatnonzero((body.group == group) & (body.hold_fs + body.nbytes > 0))
            (barrier,) = np.flatnonzero((body.group == group) & (body.opcode == Opcode.BARRIER) & closing)
            seen, stack = {int(barrier)}, [int(barrier)]
            while stack:
                for pred in waits[stack.pop()]:
                    if pred not in seen:
                        seen.add(pred)
                        stack.append(pred)
            assert set(mine.tolist()) <= seen, f"{body.name} group {group}"


@pytest.mark.parametrize("overlap", ["none", "programmatic"])
@pytest.mark.parametrize("tp", [1, 2])
def test_nothing_of_a_kernel_begins_before_its_launch(tp: int, overlap: str) -> None:
    chip = with_fact(h100(), execution__overlap=overlap)
    program = compiled(graph_of("qwen2.5-0.5b", batch=9, context=3000), chip, tp=tp)
    for body in program.bodies:
        launched = np.full(len(body), -1)  # the latest kernel whose launch an instruction waits for, by its edges
        for i in range(len(body)):
            preds = body.dep_pred[body.dep_ptr[i] : body.dep_ptr[i + 1]]
            inside = preds[body.dep_slot[body.dep_ptr[i] : body.dep_ptr[i + 1]] == 0]
            launched[i] = body.group[i] if body.opcode[i] == Opcode.LAUNCH else launched[inside].max(initial=-1)
        works = (body.hold_fs + body.nbytes > 0) & (body.cause != program.causes.index("host"))
        assert np.array_equal(launched[works], body.group[works]), body.name


def test_all_cores_load_about_the_same() -> None:
    graph = linear_graph(1, 28_672, 8192)
    (body,) = compiled(graph).bodies
    loads = (body.form == Form.TRANSFER) & (body.kind == 0)
    per_core = np.bincount(body.engine[loads], weights=body.nbytes[loads])
    per_core = per_core[per_core > 0]
    assert len(per_core) == 132
    assert per_core.max() < 1.2 * per_core.mean()


def test_few_columns_are_split_along_their_sum() -> None:
    program = compiled(linear_graph(1, 1024, 16_384))
    (body,) = program.bodies
    busy = np.unique(body.engine[of_kind(program, body, "load") & (body.kind == 0)])
    assert len(busy) > 1024 // 64, "16 tiles of 64 columns keep 16 cores busy; parts of the sum keep more"
    partial = moved(program, "activation", write=True) - 1024 * 2
    assert partial
    assert partial % (1024 * 4) == 0, "partial sums are fp32, one row of them per part"
    launches = [body.opcode == Opcode.LAUNCH for body in program.bodies]
    assert sum(int(x.sum()) for x in launches) == 2, "the product, and the kernel that adds its parts"


def test_a_long_cache_is_read_by_all_cores() -> None:
    for context, least in ((64, 8), (16_384, 32)):
        program = compiled(graph_of("llama-3.1-8b", context=context))
        body = next(b for b in program.bodies if b.name.startswith("layer"))
        reads = of_kind(program, body, "load") & (body.kind == program.kinds.index("kv"))
        assert len(np.unique(body.engine[reads])) >= least


@pytest.mark.parametrize("stages", [1, 2, 4, 7])
def test_loads_run_ahead_by_the_stages_of_the_chip(stages: int) -> None:
    program = compiled(linear_graph(1, 8192, 8192), with_fact(h100(), execution__stages_fact=stages))
    (body,) = program.bodies
    owner = np.repeat(np.arange(len(body)), np.diff(body.dep_ptr))
    loads = np.flatnonzero((body.form == Form.TRANSFER) & (body.kind == 0))
    waits = {int(owner[d]): int(body.dep_pred[d]) for d in np.flatnonzero(body.dep_type == Dep.WAR)}
    for core in np.unique(body.engine[loads]):
        mine = [int(i) for i in loads if body.engine[i] == core]
        assert [i in waits for i in mine] == [False] * min(stages, len(mine)) + [True] * (len(mine) - stages)
        users = [waits[i] for i in mine[stages:]]
        assert users == sorted(users)
    run = simulate(program)
    check_run(run)


def test_more_stages_are_not_slower() -> None:
    times = [
        simulate(compiled(linear_graph(1, 8192, 8192), with_fact(h100(), execution__stages_fact=s))).time_fs
        for s in (1, 2, 3, 4)
    ]
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


def test_free_memory_leaves_the_compute_bound() -> None:
    """A product whose tiles fill all 132 cores evenly and pad nothing."""
    chip = with_fact(h100(), **FREE)
    program = compiled(linear_graph(256, 132 * 256, 4096), chip)
    run = simulate(program)
    check_run(run)
    matrix = program.info.bound.terms_fs["matrix"]
    assert matrix <= run.time_fs
    (body,) = program.bodies
    tail = body.cause == program.causes.index("vector")
    overhead = int((body.hold_fs + body.latency_fs)[tail].max()) + 40 * chip.period_fs
    assert run.time_fs <= matrix * 1.01 + overhead
    assert run.critical_path_fs["matrix"] >= 0.98 * matrix


def test_free_compute_leaves_the_memory_bound() -> None:
    free = {f"matrix__macs_per_cycle__{d}": 1e12 for d in h100().matrix.macs_per_cycle}
    chip = with_fact(h100(), vector__ops_per_cycle=1e9, vector__special_per_cycle=1e9, **free)
    program = compiled(linear_graph(1, 132 * 256, 8192), chip)
    run = simulate(program)
    check_run(run)
    hbm = chip.tier("hbm")
    assert hbm.availability is not None
    served = program.info.bound.terms_fs["bandwidth:hbm"] / hbm.availability.value
    latencies = sum(float(t.latency.value) for t in chip.tiers) + float(chip.execution.launch_gap.value)
    assert served <= run.time_fs <= 1.02 * served + latencies + 10**9


def test_one_tile_buffer_shows_as_latency() -> None:
    """Little's law: with one buffer, a tile comes once in the latency of a copy, unless the sum is cut up for it."""
    graph = linear_graph(1, 132 * 64, 8192)
    narrow = simulate(compiled(graph, with_fact(h100(), execution__stages_fact=1)))
    wide = simulate(compiled(graph))
    assert narrow.time_fs > wide.time_fs
    assert narrow.critical_path_fs["latency:hbm"] > 5 * wide.critical_path_fs["latency:hbm"]


@pytest.mark.parametrize("request_", [{}, {"batch": 8, "context": 2000}, {"weight": "fp8"}], ids=str)
@pytest.mark.parametrize("model", ["llama-3.2-1b", "qwen2.5-0.5b", "llama-3.1-8b"])
def test_overlap_is_never_slower(model: str, request_: dict[str, Any]) -> None:
    graph = graph_of(model, **request_)
    plain, overlapped = run_on(h100(), graph), run_on(with_fact(h100(), execution__overlap="programmatic"), graph)
    check_run(overlapped)
    assert overlapped.time_fs < plain.time_fs
    assert overlapped.bytes == plain.bytes


def test_overlap_hides_launches() -> None:
    """Products that take far longer than a launch hide nearly all; short kernels can't, so a model hides less."""
    chain, x = new_graph("chain", 1), "x"
    add_tensor(chain, "x", "activation", (1, 8192))
    for i in range(8):
        weight = add_tensor(chain, f"w{i}", "weight", (8192, 8192))
        (x,) = add_op(chain, f"fc{i}", "linear", {"x": x, "weight": weight}, {"out": (1, 8192)})
    for graph, left in ((chain, 0.25), (graph_of("llama-3.1-8b"), 0.7)):
        plain, overlapped = run_on(h100(), graph), run_on(with_fact(h100(), execution__overlap="programmatic"), graph)
        assert overlapped.critical_path_fs.get("launch", 0) < left * plain.critical_path_fs["launch"]


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_overlap_with_collectives(tp: int) -> None:
    graph = graph_of("llama-3.2-1b")
    plain = run_on(h100(), graph, tp=tp)
    overlapped = run_on(with_fact(h100(), execution__overlap="programmatic"), graph, tp=tp)
    check_run(overlapped)
    assert overlapped.time_fs < plain.time_fs
    assert overlapped.bytes == plain.bytes


def test_a_collective_per_row_product_and_one_per_end() -> None:
    run: Run = run_on(h100(), graph_of("llama-3.2-1b"), tp=4)
    kinds = [(op.kind, op.count) for op in run.ops if op.kind.startswith("all_")]
    assert sorted(kinds) == [("all_gather", 1), ("all_reduce", 1), ("all_reduce", 16), ("all_reduce", 16)]
    assert run.critical_path_fs["link"] > 0


def test_launches_cost_their_gap() -> None:
    """A little more for each launch, so that the same kernels are chosen: with free launches more sums are cut."""

    def launches(run: Run) -> int:
        bodies = run.program.bodies
        return sum(s.repeat * int((bodies[s.body].opcode == Opcode.LAUNCH).sum()) for s in run.program.segments)

    graph, gap, more = graph_of("llama-3.2-1b"), int(h100().execution.launch_gap.value), 24 * h100().period_fs
    before = run_on(h100(), graph)
    after = run_on(with_fact(h100(), execution__launch_gap=gap + more), graph)
    assert launches(after) == launches(before)
    assert after.time_fs - before.time_fs == pytest.approx(launches(before) * more, rel=0.001)
