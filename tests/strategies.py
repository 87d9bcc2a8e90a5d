"""Random programs for hypothesis: every feature of docs/model.md, at sizes that the oracle can run."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from drafts import CAUSES, KINDS, TIERS, Draft, EngineRow, RouteRow, StationRow, build, with_column
from dram_golden import lane
from dram_rules import dram_table
from hypothesis import assume
from hypothesis import strategies as st
from naive import NaiveConflict, naive_run

from stallscope.compiler.program import DRAM_PARAMS, NO_DRAMS, Dep, Drams, Form, Segment, TileProgram

SLOTS = 3
MAPPINGS = ("RoBaBgCo", "RoBaCoBg", "RoBaCoBgC1", "MOP4CLXOR")
PERIODS = (1, 2, 3, 7, 10, 60, 64, 100, 141)
# Times are multiplied by one of these: the last makes chains of more than 2^31 fs, which are shared with a shift.
SCALES = (1, 1, 1, 97, 10**7)


@dataclass(frozen=True)
class Machine:
    """What the instructions of a program may use."""

    engines: list[EngineRow]
    stations: list[StationRow]
    routes: list[RouteRow]
    scale: int
    drams: Drams = NO_DRAMS


def _pick(draw: st.DrawFn, low: int, high: int) -> int:
    return draw(st.integers(low, high))


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    scale = draw(st.sampled_from(SCALES))
    cause, hop_cause = st.sampled_from(CAUSES), st.sampled_from(CAUSES[3:])
    latency = st.sampled_from((0, 0, 1, 5, 30, 100, 250))
    stations = [
        StationRow(
            lanes=_pick(draw, 1, 4),
            interleave=draw(st.sampled_from((1, 8, 16, 48, 64))),
            rate=(_pick(draw, 1, 9) * scale, _pick(draw, 1, 7)),
            cause=draw(hop_cause),
        )
        for _ in range(_pick(draw, 1, 3))
    ]
    routes = [
        RouteRow(
            chunk=draw(st.sampled_from((1, 8, 16, 31, 64))),
            hops=tuple(
                (_pick(draw, 0, len(stations) - 1), draw(latency) * scale, draw(hop_cause))
                for _ in range(_pick(draw, 1, 3))
            ),
        )
        for _ in range(_pick(draw, 1, 3))
    ]
    largest = max(r.chunk for r in routes)
    engines = [
        EngineRow(
            kind=draw(st.sampled_from(("load", "matrix"))),
            period=draw(st.sampled_from(PERIODS)) * (scale if draw(st.booleans()) else 1),
            window=draw(st.sampled_from((0, largest, largest + 7, 2 * largest, 3 * largest))),
            port=(_pick(draw, 1, 9) * scale, _pick(draw, 1, 7)) if draw(st.booleans()) else (0, 1),
            port_cause=draw(cause),
        )
        for _ in range(_pick(draw, 1, 5))
    ]
    return Machine(engines, stations, routes, scale)


@st.composite
def edges(draw: st.DrawFn, before: int) -> tuple[tuple[int, Dep, bool], ...]:
    """Up to three edges to the `before` instructions before this one, or to slots."""
    found = []
    for _ in range(draw(st.sampled_from((0, 1, 1, 2, 3)))):
        slot = before == 0 or _pick(draw, 0, 3) == 0
        found.append((_pick(draw, 0, SLOTS - 1 if slot else before - 1), draw(st.sampled_from(Dep)), slot))
    return tuple(found)


@st.composite
def instructions(draw: st.DrawFn, machine: Machine, before: int, group: int) -> Draft:
    common = {
        "engine": _pick(draw, 0, len(machine.engines) - 1),
        "op": _pick(draw, 0, 3),
        "group": group,
        "deps": draw(edges(before)),
    }
    if draw(st.booleans()):
        return Draft(
            form=Form.HOLD,
            hold_fs=draw(st.sampled_from((0, 1, 10, 99, 100, 300))) * machine.scale,
            latency_fs=draw(st.sampled_from((0, 0, 3, 50))) * machine.scale,
            cause=_pick(draw, 0, len(CAUSES) - 1),
            **common,
        )
    route = _pick(draw, 0, len(machine.routes) - 1)
    sent = _pick(draw, 0, 4) == 0  # counted at no tier
    return Draft(
        form=Form.TRANSFER,
        nbytes=_pick(draw, 1, 8 * machine.routes[route].chunk),
        route=route,
        address=_pick(draw, 0, 300),
        step=draw(st.sampled_from((0, 0, 1, 64, 192))),
        tier=-1 if sent else _pick(draw, 0, len(TIERS) - 1),
        kind=-1 if sent else _pick(draw, 0, len(KINDS) - 1),
        write=_pick(draw, 0, 1),
        **common,
    )


@st.composite
def bodies(draw: st.DrawFn, machine: Machine) -> list[Draft]:
    rows: list[Draft] = []
    slots = draw(st.lists(st.integers(-1, 12), min_size=SLOTS, max_size=SLOTS))
    for i in range(_pick(draw, 1, 12)):
        group = (rows[-1].group if rows else 0) + draw(st.sampled_from((0, 0, 1)))
        row = draw(instructions(machine, i, group))
        rows.append(replace(row, export=slots.index(i) if i in slots else -1))
    return rows


def _assemble(machine: Machine, rows: list[list[Draft]], segments: list[Segment]) -> TileProgram:
    return build(machine.engines, rows, segments, machine.stations, machine.routes, machine.drams)


@st.composite
def programs(draw: st.DrawFn) -> TileProgram:
    """Programs that end: edges go backward in body order, which is the order of the queues."""
    machine = draw(machines())
    rows = [draw(bodies(machine)) for _ in range(_pick(draw, 1, 3))]
    segments = [Segment(body=_pick(draw, 0, len(rows) - 1), repeat=_pick(draw, 1, 5)) for _ in range(_pick(draw, 1, 3))]
    return _assemble(machine, rows, segments)


@st.composite
def small_drams(draw: st.DrawFn, scale: int) -> Drams:
    """One kind of DRAM lane, with small rows and frequent refresh."""
    x = lane(draw(st.sampled_from(("hbm3", "hbm2", "ddr4", "lpddr5", "hbm3pc2"))), draw(st.sampled_from(MAPPINGS)))
    t = dict(x.timings)
    t["REFI"] = max(t.get("RFC", 0), t.get("RFCab", 0)) + _pick(draw, 60, 600)
    refresh = draw(st.sampled_from(("none", "all-bank")))
    size = {"columns": draw(st.sampled_from((4, 8))), "rows": 8, "queue": draw(st.sampled_from((4, 10, 32)))}
    drams = dram_table([replace(x, timings=t, refresh=refresh, **size)])
    drams.params[:, DRAM_PARAMS.index("tick_fs")] = _pick(draw, 1, 9) * scale
    return drams


@st.composite
def dram_programs(draw: st.DrawFn) -> TileProgram:
    """Programs on machines with DRAM lanes: larger chunks, and some latency behind every such station."""
    machine = draw(machines())
    drams = draw(small_drams(machine.scale))
    tick = int(drams.params[0, DRAM_PARAMS.index("tick_fs")])
    which = _pick(draw, 0, len(machine.stations) - 1)
    stations = [
        replace(s, dram=0, interleave=draw(st.sampled_from((64, 200, 256)))) if i == which or draw(st.booleans()) else s
        for i, s in enumerate(machine.stations)
    ]
    larger = draw(st.sampled_from((1, 4, 16)))
    routes = [
        RouteRow(r.chunk * larger, tuple((s, ns + tick * (stations[s].dram >= 0), cause) for s, ns, cause in r.hops))
        for r in machine.routes
    ]
    engines = [replace(e, window=e.window * larger) for e in machine.engines]
    machine = Machine(engines, stations, routes, machine.scale, drams)
    rows = [draw(bodies(machine)) for _ in range(_pick(draw, 1, 2))]
    segments = [Segment(body=_pick(draw, 0, len(rows) - 1), repeat=_pick(draw, 1, 5)) for _ in range(_pick(draw, 1, 3))]
    return _assemble(machine, rows, segments)


@st.composite
def repetitive_programs(draw: st.DrawFn) -> TileProgram:
    """Long segments of small bodies, which settle into a rhythm that can be skipped.

    Every engine that works at all does so in every body, and mostly waits for a transfer of the block before, so that
    none runs far ahead (holds that wait for nothing but holds are all scheduled at once).
    """
    machine = draw(machines())
    tidy = _pick(draw, 0, 7) > 0  # periods and addresses that come round soon
    if tidy:
        machine = replace(machine, engines=[replace(e, period=min(e.period, 2)) for e in machine.engines])
    rows = [draw(bodies(machine))[:5] for _ in range(_pick(draw, 1, 2))]
    used = sorted({row.engine for body in rows for row in body})  # the others never work
    for b, body in enumerate(rows):
        if tidy:
            body = [replace(row, step=row.step // 64 * 64) for row in body]
        missing = [e for e in used if e not in {row.engine for row in body}]
        last = body[-1].group
        body += [Draft(e, Form.HOLD, group=last, hold_fs=40 * machine.scale) for e in missing]
        if tidy:
            beat = Draft(draw(st.sampled_from(used)), Form.TRANSFER, group=last, nbytes=9, export=SLOTS)
            body = [*(row.after_slot(SLOTS, draw(st.sampled_from(Dep))) for row in body), beat.after(len(body) - 1)]
        rows[b] = body
    segments = [
        Segment(body=_pick(draw, 0, len(rows) - 1), repeat=_pick(draw, 10, 40)) for _ in range(_pick(draw, 1, 2))
    ]
    return _assemble(machine, rows, segments)


@st.composite
def static_programs(draw: st.DrawFn, valid: bool = False) -> TileProgram:
    """Static programs: each body is run alone by the oracle, and its starts are stated.

    A block's length lies at or after the time when the body is over, or (unless `valid`) a little before, so that
    blocks overlap. Lanes that were queued for, steps and overlaps make some of them conflict; `valid` sorts those out.
    """
    machine = draw(machines())
    machine = replace(machine, engines=[replace(e, period=10 if e.period % 2 else 4) for e in machine.engines])
    rows = []
    segments = []
    for b in range(_pick(draw, 1, 2)):
        body = [row if row.form == Form.HOLD else _lone(machine, row) for row in draw(bodies(machine))]
        alone = naive_run(_assemble(machine, [body], [Segment(body=0, repeat=1)]))
        starts = [alone.start[0, i] for i in range(len(body))]
        edge = math.lcm(*(e.period for e in machine.engines))
        end = max(alone.makespan_fs, *alone.release.values())
        blocks = -(-end // edge) + (0 if valid else draw(st.sampled_from((0, 0, 1, -1, -2, -5))))
        rows.append([replace(row, start_fs=start) for row, start in zip(body, starts, strict=True)])
        segments.append(Segment(body=b, repeat=_pick(draw, 1, 5), static=True, length_fs=max(blocks, 1) * edge))
    program = _assemble(machine, rows, segments)
    if valid:
        assume(not _conflicts(program))
    return program


def _lone(machine: Machine, row: Draft) -> Draft:
    """The transfer with one chunk only: it never queues behind itself."""
    return replace(row, nbytes=min(row.nbytes, machine.routes[row.route].chunk), step=0)


def _conflicts(program: TileProgram) -> bool:
    try:
        naive_run(program)
    except NaiveConflict:
        return True
    return False


@st.composite
def conflicting_programs(draw: st.DrawFn) -> TileProgram:
    """A valid static program with one start moved off the clock edge or before its time."""
    program = draw(static_programs(valid=True))
    b = program.segments[_pick(draw, 0, len(program.segments) - 1)].body
    starts = [int(fs) for fs in program.bodies[b].start_fs]
    late = [i for i, fs in enumerate(starts) if fs > 0]
    if late and draw(st.booleans()):
        starts[draw(st.sampled_from(late))] = 0  # it was as early as it could be
    else:
        starts[_pick(draw, 0, len(starts) - 1)] += 1  # all periods are even
    return with_column(program, b, "start_fs", starts)


@st.composite
def deadlocked_programs(draw: st.DrawFn) -> TileProgram:
    """A program whose body waits for itself: an edge forward in one queue, or two queues that wait for each other."""
    machine = draw(machines())
    rows = draw(bodies(machine))
    n, last = len(rows), rows[-1].group
    first, second = _pick(draw, 0, len(machine.engines) - 1), _pick(draw, 0, len(machine.engines) - 1)
    # Each of the first two waits for the one that is queued behind the other.
    waits = ((first, n + 3), (second, n + 2), (first, None), (second, None))
    for engine, pred in waits:
        row = Draft(engine, Form.HOLD, group=last, hold_fs=10)
        rows.append(row if pred is None else row.after(pred, dep=draw(st.sampled_from(Dep))))
    return _assemble(machine, [rows], [Segment(body=0, repeat=_pick(draw, 1, 3))])
