"""Prefill, chunks, mixed steps, verification, shared prefixes and contexts that differ: what they read and compute."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from laws import check_bytes, check_run, graph_of, run_on, system_of

from stallscope import Request, StallscopeError, compile_graph, decode_graph, load_model, simulate
from stallscope.workloads import Span, add_op, add_tensor, check_graph, new_graph, op_cost, op_nodes
from stallscope.workloads.checks import GraphError
from stallscope.workloads.spans import kept_tokens

MODEL = "llama-3.2-1b"
STYLES = ("h100-sxm", "groq-3-lpu", "sn40l")
PHASES: tuple[dict[str, Any], ...] = (
    {"phase": "prefill", "prompt": 200},
    {"phase": "prefill", "prompt": 65, "batch": 2, "prefix": 30},
    {"phase": "prefill", "prompt": 48, "chunk": 20},
    {"phase": "mixed", "prompt": 64, "chunk": 40, "batch": 3, "context": 150},
    {"phase": "verify", "verify": 5, "batch": 2, "context": 99},
    {"batch": 4, "contexts": (10, 300)},
    {"batch": 6, "contexts": "exponential:200", "seed": 3},
    {"batch": 5, "context": 200, "prefix": 120},
)


def steps(**request: Any) -> list[nx.DiGraph]:
    asked = Request(**request)
    return [decode_graph(load_model(MODEL), asked, step) for step in range(len(asked.plan))]


def moved(graph: nx.DiGraph) -> tuple[Counter[str], int]:
    """Bytes read by kind, and multiply-adds."""
    read: Counter[str] = Counter()
    macs = 0
    for op in op_nodes(graph):
        cost = op_cost(graph, op)
        macs += cost.macs
        for tensor, n in cost.reads.items():
            read[graph.nodes[tensor]["tensor"]] += n
    return read, macs


# Spans.

spans = st.builds(Span, st.integers(1, 3), st.integers(1, 12), st.integers(0, 20), st.just(0))


@given(spans, st.one_of(st.none(), st.integers(1, 25)))
def test_pairs_are_those_that_a_mask_leaves(span: Span, window: int | None) -> None:
    pairs = 0
    for token in range(span.cached, span.cached + span.new):
        pairs += sum(window is None or token - key <= window for key in range(token + 1))
    assert span.pairs(window) == span.sequences * pairs
    assert span.within(window).pairs(window) == span.pairs(window), "what falls out of the window is seen by nobody"


@given(st.integers(1, 40), st.integers(1, 40))
def test_chunks_make_the_pairs_of_the_whole(prompt: int, chunk: int) -> None:
    plan = Request(phase="prefill", prompt=prompt, chunk=chunk).plan
    assert len(plan) == -(-prompt // min(chunk, prompt))
    assert sum(span.pairs(None) for step in plan for span in step) == prompt * (prompt + 1) // 2
    assert [step[0].cached for step in plan] == [min(chunk, prompt) * i for i in range(len(plan))]


@given(st.lists(st.builds(Span, st.integers(1, 3), st.just(1), st.integers(5, 30), st.just(5)), min_size=1, max_size=4))
def test_a_prefix_is_kept_once(some: list[Span]) -> None:
    assert kept_tokens(some) == 5 + sum(s.sequences * (s.cached - 5) for s in some)


# What a step reads and computes.


@pytest.mark.parametrize("request_", PHASES, ids=lambda r: "-".join(map(str, r.values())))
def test_work_by_formula(request_: dict[str, Any]) -> None:
    model, asked = load_model(MODEL), Request(**request_)
    for graph, plan in zip(steps(**request_), asked.plan, strict=True):
        check_graph(graph)
        rows = sum(s.sequences * s.new for s in plan)
        drawn = rows if asked.phase == "verify" else sum(s.sequences for s in plan)
        heads, kv_heads, dim, layers = 32, 8, 64, 16
        pairs = sum(s.sequences * (s.new * s.cached + s.new * (s.new + 1) // 2) for s in plan)
        read, macs = moved(graph)
        assert read["weight"] == 2 * model.params_read_per_token
        assert read["kv"] == 2 * layers * kv_heads * dim * 2 * kept_tokens(plan)
        head = model.embedding_params
        matrices = model.params_read_per_token - head - (2 * layers + 1) * model.hidden_size
        assert macs == rows * matrices + drawn * head + layers * heads * pairs * 2 * dim
        written = sum(op_cost(graph, op).writes[t] for op in op_nodes(graph) for t in op_cost(graph, op).writes
                      if graph.nodes[t]["tensor"] == "kv")  # fmt: skip
        assert written == 2 * layers * kv_heads * dim * 2 * rows


def test_four_chunks_read_the_weights_four_times_and_one_prefill_once() -> None:
    whole, chunked = ([moved(g)[0] for g in steps(phase="prefill", prompt=512, chunk=c)] for c in (None, 128))
    assert len(whole) == 1
    assert sum(read["weight"] for read in chunked) == 4 * whole[0]["weight"]
    assert whole[0]["kv"] == 0
    assert sum(read["kv"] for read in chunked) == (128 + 256 + 384) * 2 * 16 * 8 * 64 * 2


def test_verification_reads_as_one_step_and_computes_as_many() -> None:
    (one,), (five,) = steps(context=100), steps(phase="verify", verify=5, context=100)
    assert moved(one)[0]["weight"] == moved(five)[0]["weight"]
    assert moved(one)[0]["kv"] == moved(five)[0]["kv"]
    assert moved(five)[1] > 4.9 * moved(one)[1]


def test_kv_passes_weights_at_the_batch_that_the_closed_form_says() -> None:
    model, context = load_model("llama-3.1-70b"), 131_072
    crossing = 2 * model.params_read_per_token / (2 * 80 * 8 * 128 * context * 2)
    for batch in (int(crossing), int(crossing) + 1):
        read, _ = moved(graph_of("llama-3.1-70b", batch=batch, context=context))
        assert (read["kv"] > read["weight"]) == (batch > crossing)
    assert 3 < crossing < 4


def test_drawn_contexts_depend_on_the_seed_alone() -> None:
    def one(seed: int) -> tuple[int, ...]:
        return Request(batch=50, contexts="lognormal:1000:0.8", seed=seed).sequence_contexts

    assert one(1) == one(1) != one(2)
    assert 500 < sorted(one(1))[25] < 2000
    assert min(Request(batch=999, contexts="uniform:3:5").sequence_contexts) == 3
    assert max(Request(batch=999, contexts="uniform:3:5").sequence_contexts) == 5


def test_steps_grow_the_cache() -> None:
    plan = Request(batch=2, context=10, steps=3).plan
    assert plan == ((Span(2, 1, 10),), (Span(2, 1, 11),), (Span(2, 1, 12),))
    drafted = Request(phase="verify", verify=4, context=10, steps=2).plan
    assert drafted == ((Span(1, 4, 10),), (Span(1, 4, 14),))
    mixed = Request(phase="mixed", prompt=30, chunk=20, batch=2, context=7).plan
    assert mixed == ((Span(1, 20, 0), Span(2, 1, 7)), (Span(1, 10, 20), Span(2, 1, 8)))


# Whole runs.


@pytest.mark.parametrize("request_", PHASES, ids=lambda r: "-".join(map(str, r.values())))
@pytest.mark.parametrize("chip", STYLES)
def test_the_laws_hold(chip: str, request_: dict[str, Any]) -> None:
    for tp in (1, 2):
        graph, system = steps(**request_)[-1], system_of(chip, tp=tp)
        run = simulate(compile_graph(graph, system))
        check_run(run)
        check_bytes(run, graph, system)
        rows = sum(count * new for count, new, *_ in graph.graph["spans"])
        assert run.tokens_per_s == pytest.approx(rows / run.interval_fs * 1e15)


@pytest.mark.parametrize("chip", ["h100-sxm", "sn40l"])
def test_a_shared_prefix_takes_less_time_and_memory(chip: str) -> None:
    alone, shared = (run_on(chip, graph_of(MODEL, batch=8, context=4000, prefix=p), tp=2) for p in (0, 3900))
    assert shared.time_fs < alone.time_fs
    held = [sum(kinds.get("kv", 0) for kinds in run.program.info.placement.values()) for run in (alone, shared)]
    assert held[0] - held[1] == 7 * 3900 * 2 * 16 * 4 * 64 * 2


@pytest.mark.parametrize("chip", STYLES)
def test_equal_contexts_one_by_one_move_what_they_move_together(chip: str) -> None:
    together = run_on(chip, graph_of(MODEL, batch=4, context=512))
    apart = run_on(chip, graph_of(MODEL, batch=4, contexts=(512, 513)))
    token = 2 * 16 * 8 * 64 * 2
    kv = [sum(ways["read"].get("kv", 0) for ways in run.bytes.values()) for run in (together, apart)]
    assert kv[1] - kv[0] == 2 * token
    assert apart.time_fs == pytest.approx(together.time_fs, rel=0.1)


def test_the_new_tokens_of_a_prefill_have_room() -> None:
    (graph,) = steps(phase="prefill", prompt=1000)
    placed = run_on("h100-sxm", graph).program.info.placement["hbm"]["kv"]
    assert placed == 1000 * 2 * 16 * 8 * 64 * 2


@pytest.mark.parametrize("layers", [2, pytest.param(32, marks=pytest.mark.slow)])
def test_a_long_prefill_computes_and_decode_fetches(layers: int) -> None:
    """8,192 tokens of llama-3.1-8b on an H100: the matrix units work at the rate that they sustain, nearly always."""
    model = load_model("llama-3.1-8b")
    model = replace(model, layers=model.layers[:layers])
    system = system_of("h100-sxm")
    prefill, decode = (
        simulate(compile_graph(decode_graph(model, request), system))
        for request in (Request(phase="prefill", prompt=8192), Request(context=8192))
    )
    assert prefill.program.info.bound.limiter == "matrix"
    assert max(prefill.critical_path_fs, key=lambda c: prefill.critical_path_fs[c]) == "matrix"
    assert prefill.critical_path_fs["matrix"] > 0.75 * prefill.time_fs
    sustained = prefill.program.info.bound.time_fs / float(system.chip.matrix.availability["bf16"].value)
    assert sustained / (prefill.time_fs - prefill.critical_path_fs["host"]) > 0.65
    assert decode.program.info.bound.limiter == "bandwidth:hbm"
    assert decode.critical_path_fs.get("matrix", 0) < 0.1 * decode.time_fs


# Bad input.


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"phase": "prefill"}, "prompt: found none"),
        ({"prompt": 5}, "without a prefill"),
        ({"phase": "prefill", "prompt": 5, "steps": 2}, "steps: found 2"),
        ({"verify": 3}, "verify: found 3"),
        ({"prefix": 50, "contexts": (40, 60), "batch": 2}, "prefix: found 50"),
        ({"contexts": "zipf:3"}, "uniform:LEAST:MOST"),
        ({"contexts": ()}, "contexts: found an empty list"),
        ({"latent": "x"}, "latent"),
        ({"routing": "nowhere.csv"}, "routing"),
        ({"routing": "power:x"}, "power:ALPHA"),
        ({"weight": "fp8/0x1s8"}, "weight"),
        ({"expert": "mxfp5"}, "mxfp"),
    ],
)
def test_requests_that_make_no_sense(request_: dict[str, Any], says: str) -> None:
    with pytest.raises(StallscopeError, match="request: .*" + says.split(":")[0]) as caught:
        Request(**request_)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("spans_", "says"),
    [
        (((1, 3, 10, 0),), "spans bring 3 new tokens"),
        (((2, 1, 9, 0),), "its spans need 18"),
        (((2, 1, 10, 11),), "shared no more than cached"),
        (((2, 1, 10),), "four whole numbers"),
    ],
)
def test_spans_that_do_not_fit(spans_: tuple[Any, ...], says: str) -> None:
    graph = new_graph("one", batch=2, context=10)
    shapes = {"q": (2, 8), "k": (2, 4), "v": (2, 4)}
    inputs = {role: add_tensor(graph, role, "activation", shape) for role, shape in shapes.items()}
    inputs |= {role: add_tensor(graph, role, "kv", (2, 1, 10, 4)) for role in ("k_cache", "v_cache")}
    sizes = {"heads": 2, "kv_heads": 1, "head_dim": 4}
    add_op(graph, "op", "attention", inputs, {"out": (2, 8)}, spans=spans_, **sizes)
    with pytest.raises(GraphError, match=says):
        check_graph(graph)
