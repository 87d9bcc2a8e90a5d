"""The laws of a TileProgram, as (name, check) pairs. Every program is checked against all of them before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from ..errors import StallscopeError
from .program import Body, Form, TileProgram, instruction_text


class VerifyError(StallscopeError):
    """A program that breaks a law: the law's name and the instructions that break it."""


def verify(program: TileProgram) -> None:
    """Check all laws. Raises VerifyError about the first that is broken."""
    for name, law in LAWS:
        for fault in law(program):
            raise VerifyError(f"program for {program.info.chip} breaks the law '{name}': {fault}")


def _each(program: TileProgram) -> Iterator[tuple[int, Body]]:
    return enumerate(program.bodies)


def _first(bad: NDArray[np.bool_]) -> int:
    return int(np.flatnonzero(bad)[0])


def _numbers(program: TileProgram) -> Iterator[str]:
    """Every number names something that exists."""
    limits = {
        "engine": len(program.engines.name), "op": len(program.ops), "cause": len(program.causes), "form": len(Form),
        "route": max(len(program.routes.name), 1),
        "tier": len(program.tiers), "kind": len(program.kinds),
    }  # fmt: skip
    for b, body in _each(program):
        for name, limit in limits.items():
            values = getattr(body, name)
            bad = (values >= limit) | (values < (-1 if name in ("tier", "kind") else 0))
            if bad.any():
                yield f"{instruction_text_safe(program, b, _first(bad))}: {name} {values[_first(bad)]} of {limit}"
    for i, segment in enumerate(program.segments):
        if not 0 <= segment.body < len(program.bodies) or segment.repeat < 1 or segment.length_fs < 0:
            yield f"segment {i}: body {segment.body}, repeat {segment.repeat}, length {segment.length_fs}"


def instruction_text_safe(program: TileProgram, body: int, i: int) -> str:
    """An instruction as text, or its number where its own fields are wrong."""
    try:
        return instruction_text(program, body, i)
    except (IndexError, ValueError):
        return f"body {body} instruction {i}"


def _times(program: TileProgram) -> Iterator[str]:
    """Times and addresses are not negative; transfers move something; periods and rates are positive."""
    for b, body in _each(program):
        bad = (body.hold_fs < 0) | (body.latency_fs < 0) | (body.address < 0) | (body.step < 0)
        bad |= (body.form == Form.TRANSFER) & (body.nbytes < 1)
        if bad.any():
            yield f"{instruction_text(program, b, _first(bad))}: negative, or no bytes"
    e, s, r = program.engines, program.stations, program.routes
    if np.any(e.period_fs < 1) or np.any(e.port_den < 1) or np.any(e.port_num < 0) or np.any(e.window_bytes < 0):
        yield "an engine's period, port or window is out of range"
    if np.any(s.num < 1) or np.any(s.den < 1) or np.any(s.lanes < 1) or np.any(s.interleave < 1):
        yield "a station's rate, lanes or interleave is out of range"
    if np.any(r.chunk_bytes < 1) or np.any(np.diff(r.ptr) < 1) or np.any(r.latency_fs < 0):
        yield "a route has no chunk size, no hop, or a negative latency"


def _edges(program: TileProgram) -> Iterator[str]:
    """Edges go back in the body, so queues and edges can never wait for each other in a circle; slots are exported
    once."""
    for b, body in _each(program):
        owner = np.repeat(np.arange(len(body)), np.diff(body.dep_ptr))
        bad = (body.dep_slot == 0) & ((body.dep_pred >= owner) | (body.dep_pred < 0))
        if bad.any():
            yield (
                f"{instruction_text(program, b, int(owner[_first(bad)]))}: "
                "waits for an instruction that does not come before it"
            )
        if np.any((body.dep_slot == 1) & (body.dep_pred < 0)) or np.any((body.dep_type < 0) | (body.dep_type > 2)):
            yield f"body {body.name}: an edge's slot or type is out of range"
        out = body.export[body.export >= 0]
        if len(np.unique(out)) < len(out):
            yield f"body {body.name}: a slot is exported twice"


def _windows(program: TileProgram) -> Iterator[str]:
    """A chunk fits in its engine's window."""
    for b, body in _each(program):
        moves = body.form == Form.TRANSFER
        window = program.engines.window_bytes[body.engine]
        chunk = (
            np.minimum(program.routes.chunk_bytes[np.where(moves, body.route, 0)], body.nbytes)
            if moves.any()
            else body.nbytes
        )
        bad = moves & (window > 0) & (chunk > window)
        if bad.any():
            yield f"{instruction_text(program, b, _first(bad))}: a chunk is larger than the engine's window"


def _static(program: TileProgram) -> Iterator[str]:
    """In a static block every instruction states its start, on its engine's edge; no two hold one engine at once; all
    is over within the block's length."""
    for segment in program.segments:
        if not segment.static:
            continue
        body = program.bodies[segment.body]
        if np.any(body.start_fs < 0):
            yield f"{instruction_text(program, segment.body, _first(body.start_fs < 0))}: states no start"
            return
        off = body.start_fs % program.engines.period_fs[body.engine] != 0
        if off.any():
            yield f"{instruction_text(program, segment.body, _first(off))}: does not start on its clock's edge"
        yield from _overlaps(program, segment.body)
        end = body.start_fs + body.hold_fs
        if np.any(end > segment.length_fs):
            late = instruction_text(program, segment.body, _first(end > segment.length_fs))
            yield f"{late}: ends behind its block's {segment.length_fs} fs"


def _overlaps(program: TileProgram, number: int) -> Iterator[str]:
    body = program.bodies[number]
    e = program.engines
    port = -(-body.nbytes * e.port_num[body.engine] // np.maximum(e.port_den[body.engine], 1))
    end = body.start_fs + np.where(body.form == Form.HOLD, body.hold_fs, port)
    order = np.lexsort((body.start_fs, body.engine))
    same = body.engine[order][1:] == body.engine[order][:-1]
    bad = same & (body.start_fs[order][1:] < end[order][:-1])
    if bad.any():
        at = _first(bad)
        one, two = int(order[at]), int(order[at + 1])
        yield (
            f"'{instruction_text(program, number, one)}' and '{instruction_text(program, number, two)}' "
            f"are on {program.engines.name[body.engine[one]]} at once"
        )


LAWS: tuple[tuple[str, Callable[[TileProgram], Iterator[str]]], ...] = (
    ("numbers name what exists", _numbers),
    ("times and sizes are possible", _times),
    ("edges go back", _edges),
    ("chunks fit windows", _windows),
    ("static starts hold", _static),
)
