"""The static style: what the compiler says of its schedule is what the machine does, to the femtosecond."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import networkx as nx
import numpy as np
import pytest
from drafts import EngineRow, StationRow, build, hold, load

from stallscope import Request, compile_graph, decode_graph, load_model, load_system
from stallscope.compiler.program import Form, Segment, TileProgram, ints
from stallscope.compiler.styles.starts import fix_starts
from stallscope.compiler.verify import VerifyError, verify
from stallscope.sim.run import MachineError, simulate, simulate_detailed
from stallscope.workloads import op_cost, op_nodes

CHIPS = ("groq-lpu-v1", "groq-3-lpu")
EIGHT_BITS = {"groq-lpu-v1": "int8", "groq-3-lpu": "fp8"}
JOBS = [
    (chip, model, dtype)
    for chip in CHIPS
    for model in ("llama-3.1-8b", "llama-3.1-70b")
    for dtype in ("bf16", EIGHT_BITS[chip])
]


@cache
def graph_of(model: str, dtype: str = "bf16", context: int = 1024, batch: int = 1) -> nx.DiGraph:
    return decode_graph(load_model(model), Request(batch, context, weight=dtype, kv=dtype, activation=dtype))


@cache
def compiled(chip: str, model: str, dtype: str = "bf16", context: int = 1024, batch: int = 1) -> TileProgram:
    return compile_graph(graph_of(model, dtype, context, batch), load_system(chip))


def must_read(graph: nx.DiGraph, tp: int) -> dict[str, int]:
    """Bytes of a token by tensor kind, from the whole graph: matrices and caches are cut, norms are on each chip."""
    out: dict[str, int] = {}
    for op in op_nodes(graph):
        for tensor, n in op_cost(graph, op).reads.items():
            data = graph.nodes[tensor]
            copies = tp if data["tensor"] == "weight" and len(data["shape"]) == 1 else 1
            out[data["tensor"]] = out.get(data["tensor"], 0) + n * copies
    return out


@pytest.mark.parametrize(("chip", "model", "dtype"), JOBS)
def test_schedule_is_what_happens(chip, model, dtype):
    program = compiled(chip, model, dtype)
    run = simulate(program)
    assert run.time_fs == program.info.schedule_fs > 0
    assert all(s.static for s in program.segments)
    assert sum(run.critical_path_fs.values()) == run.time_fs
    for engine in run.engines:
        assert engine.busy_fs + sum(engine.stalls_fs.values()) == run.time_fs * engine.count


@pytest.mark.parametrize(("chip", "model", "dtype"), JOBS)
def test_reads_each_weight_and_cache_once(chip, model, dtype):
    program = compiled(chip, model, dtype)
    read, must = simulate(program).bytes["sram"]["read"], must_read(graph_of(model, dtype), program.info.tp)
    assert {k: read[k] for k in ("weight", "kv", "embedding")} == {k: must[k] for k in ("weight", "kv", "embedding")}


def test_writes_the_new_tokens_keys_and_values():
    written = simulate(compiled("groq-lpu-v1", "llama-3.1-8b")).bytes["sram"]["write"]["kv"]
    assert written == 2 * 32 * 8 * 128 * 2


@pytest.mark.parametrize(("chip", "model", "dtype"), JOBS)
def test_near_its_bound(chip, model, dtype):
    """The bound is the largest of its terms. Collectives and weights come one after the other: their sum is near."""
    program = compiled(chip, model, dtype)
    terms, time = program.info.bound.terms_fs, simulate(program).time_fs
    assert program.info.bound.time_fs <= time
    assert time < 1.5 * (terms["link"] + max(fs for name, fs in terms.items() if name != "link"))
    if dtype == "bf16":
        assert time < 2 * program.info.bound.time_fs


@pytest.mark.parametrize(("context", "batch"), [(1, 1), (40_000, 1), (300, 9)])
def test_other_shapes(context, batch):
    program = compiled("groq-lpu-v1", "llama-3.2-1b", "bf16", context, batch)
    run = simulate(program)
    assert run.time_fs == program.info.schedule_fs
    must = must_read(graph_of("llama-3.2-1b", "bf16", context, batch), program.info.tp)
    assert all(run.bytes["sram"]["read"][k] == must[k] for k in ("weight", "kv", "embedding"))


def test_every_layer_simulated_gives_the_same():
    program = compiled("groq-lpu-v1", "llama-3.2-1b")
    one, other = simulate(program), simulate(program, skip=False)
    assert one.time_fs == other.time_fs
    assert one.critical_path_fs == other.critical_path_fs
    assert one.engines == other.engines
    assert one.bytes == other.bytes


def test_planes_work_side_by_side():
    """Of the time in which a stage streams its largest products, every plane's stream is busy for most."""
    program = compiled("groq-lpu-v1", "llama-3.1-70b")
    detail = simulate_detailed(program)
    streams = [i for i, name in enumerate(program.engines.name) if name.startswith("stream")]
    busy = detail.engine_busy_fs[streams]
    assert len(streams) == 4
    assert busy.max() < 1.05 * busy.min()
    assert busy.min() > 0.7 * detail.time_fs


@pytest.mark.parametrize(("chip", "dtype"), [("groq-lpu-v1", "bf16"), ("groq-lpu-v1", "int8"), ("groq-3-lpu", "fp8")])
def test_weights_arrive_when_their_buffer_is_free(chip, dtype):
    """With double buffering a tile is there no sooner than the last but one product on its plane has been issued."""
    program = compiled(chip, "llama-3.1-8b", dtype)
    detail = simulate_detailed(program, skip=False)
    block = 5
    body = program.bodies[_body_of(program, block)]
    for plane in range(4):
        mxm, stream = (program.engines.name.index(f"{x}{plane}") for x in ("mxm", "stream"))
        products = np.flatnonzero((body.engine == mxm) & (body.hold_fs > 0))
        arrived = np.array([_last_load(body, i, stream) for i in products])
        assert np.all(detail.done[block][arrived[2:]] > detail.release[block][products[:-2]])


def _body_of(program: TileProgram, block: int) -> int:
    for segment in program.segments:
        if block < segment.repeat:
            return segment.body
        block -= segment.repeat
    raise AssertionError


def _last_load(body: Any, product: int, stream: int) -> int:
    preds = body.dep_pred[body.dep_ptr[product] : body.dep_ptr[product + 1]]
    return int(max(p for p in preds if body.engine[p] == stream))


# The list scheduler, on programs of a few instructions. A lane takes 2 fs a byte, memory is 500 fs behind it.


def starts(program: TileProgram) -> list[int]:
    fixed = fix_starts(program)
    verify(fixed)
    assert simulate(fixed).time_fs == fixed.info.schedule_fs
    return [int(x) for x in fixed.bodies[0].start_fs]


def whole(program: TileProgram) -> TileProgram:
    """Every transfer in one chunk."""
    return replace(program, routes=replace(program.routes, chunk_bytes=ints(program.routes.chunk_bytes * 0 + 2**20)))


def test_second_transfer_waits_until_the_lane_is_free():
    program = whole(build([EngineRow(), EngineRow()], [[load(0, 64), load(1, 64)]]))
    assert starts(program) == [0, 128]


def test_a_short_transfer_fits_between_two_long_ones():
    """The third goes before the second, which waits for a product, and then finds the lane as it was promised."""
    rows = [load(0, 64), hold(2, 300), load(1, 64).after(1), load(0, 32)]
    program = whole(build([EngineRow(), EngineRow(), EngineRow("matrix")], [rows]))
    assert starts(program) == [0, 0, 300, 128]


def test_a_gap_that_is_too_short_is_left():
    rows = [load(0, 64), hold(2, 300), load(1, 64).after(1), load(0, 128)]
    program = whole(build([EngineRow(), EngineRow(), EngineRow("matrix")], [rows]))
    assert starts(program) == [0, 0, 300, 428]


def test_two_lanes_serve_at_once():
    program = whole(
        build([EngineRow(), EngineRow()], [[load(0, 64), load(1, 64, address=64)]], stations=[StationRow(lanes=2)])
    )
    assert starts(program) == [0, 0]


def test_starts_lie_on_the_clocks_edges():
    rows = [load(0, 10), load(1, 10), hold(2, 100).after(1)]
    program = whole(build([EngineRow(period=100), EngineRow(period=100), EngineRow("matrix", period=100)], [rows]))
    assert starts(program) == [0, 100, 700]


def test_blocks_follow_when_all_is_done():
    program = whole(build([EngineRow(period=100)], [[load(0, 64)]], segments=[Segment(0, 3)]))
    fixed = fix_starts(program)
    assert fixed.segments[0].length_fs == 700
    assert fixed.info.schedule_fs == simulate(fixed).time_fs == 2 * 700 + 628


def _moved(program: TileProgram, body: int, instruction: int, start_fs: int) -> TileProgram:
    start = program.bodies[body].start_fs.copy()
    start[instruction] = start_fs
    bodies = list(program.bodies)
    bodies[body] = replace(bodies[body], start_fs=start)
    return replace(program, bodies=tuple(bodies))


def test_two_instructions_on_one_engine_are_refused_by_name():
    program = compiled("groq-lpu-v1", "llama-3.1-8b")
    body = program.bodies[1]
    mine = np.flatnonzero((body.engine == program.engines.name.index("mxm2")) & (body.hold_fs > 0))
    one, two = int(mine[3]), int(mine[4])
    with pytest.raises(VerifyError, match=rf"'%{one} mxm2 .*' and '%{two} mxm2 .*' are on mxm2 at once"):
        verify(_moved(program, 1, two, int(body.start_fs[one])))


def test_a_transfer_that_finds_its_lane_busy_is_refused_by_name():
    program = compiled("groq-lpu-v1", "llama-3.1-8b")
    body = program.bodies[1]
    moves = np.flatnonzero(body.form == Form.TRANSFER)
    streams = [int(moves[body.engine[moves] == program.engines.name.index(f"stream{i}")][8]) for i in range(2)]
    broken = _moved(program, 1, streams[1], int(body.start_fs[streams[0]]))
    with pytest.raises(MachineError, match=r"static schedule of groq-lpu-v1: '%\d+ stream\d .*' of block 1"):
        simulate(broken)
