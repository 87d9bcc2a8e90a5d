"""Why a run could not end, in words: a static conflict names both parties, a deadlock its circle of waits."""

from ..compiler.program import TileProgram, instruction_text
from ..errors import StallscopeError
from . import columns as k

EVENT_BUDGET = 2**40


class MachineError(StallscopeError):
    """A program that ended in a deadlock or a conflict: it names the instructions and engines."""


def why(program: TileProgram, prog: k.Prog, s: k.State, status: int) -> str:
    """The message for a run that could not end."""
    if status == k.CONFLICT:
        return _conflict(program, prog, s)
    if status == k.BUDGET:
        return f"program for {program.info.chip}: not done after {EVENT_BUDGET} events"
    waiting = []
    for e in range(len(s.eng)):
        b = int(s.eng[e, k.E_BLOCK])
        body = int(s.block[b, k.B_BODY])
        at = int(prog.queue_ptr[body * len(s.eng) + e] + s.eng[e, k.E_QUEUE])
        if at < prog.queue_ptr[body * len(s.eng) + e + 1]:
            waiting.append(int(s.block[b, k.B_BASE] + prog.queue[at]))
    return "deadlock: " + _circle(program, prog, s, waiting)


def _conflict(program: TileProgram, prog: k.Prog, s: k.State) -> str:
    """Which static instruction cannot start when it says, and what is in its way."""
    row, why = int(s.g[k.G_ERROR_A]), int(s.g[k.G_ERROR_B])
    text = f"static schedule of {program.info.chip}: {_name(program, s, row)} cannot start when it says"
    if why >= 0:
        return f"{text}: {_name(program, s, why)} is done only at {s.inst[why, k.I_DONE]} fs"
    if why == k.OFF_EDGE:
        return f"{text}: that is off its engine's clock edge"
    if why <= k.LANE_BUSY:
        hop = k.LANE_BUSY - why
        other, station = _name(program, s, int(s.g[k.G_ERROR_C])), program.stations.name[program.routes.station[hop]]
        return f"{text}: its chunk finds a lane of station {station} busy with {other}"
    return f"{text}: {_holder(program, prog, s, row)} holds its engine at that time"


def _circle(program: TileProgram, prog: k.Prog, s: k.State, waiting: list[int]) -> str:
    """Follow who waits for whom among the heads of queues until one comes round again."""
    heads = {int(prog.instr[_number(prog, s, r), k.N_ENGINE]): r for r in waiting}
    seen: list[int] = []
    row = waiting[0] if waiting else -1
    while row >= 0 and row not in seen:
        seen.append(row)
        b, n = int(s.inst[row, k.I_BLOCK]), _number(prog, s, row)
        row = -1
        for d in range(int(prog.dep_ptr[n]), int(prog.dep_ptr[n + 1])):
            if prog.deps[d, 2] == 0:
                pred = int(s.block[b, k.B_BASE] + prog.deps[d, 0])
            else:
                x = int(prog.exporter[s.block[b - 1, k.B_BODY] * prog.sizes[2] + prog.deps[d, 0]]) if b else -1
                pred = int(s.block[b - 1, k.B_BASE]) + x if x >= 0 else -1
            if pred >= 0 and s.inst[pred, k.I_DONE] < 0:
                row = heads.get(int(prog.instr[_number(prog, s, pred), k.N_ENGINE]), pred)
                break
    if row in seen:
        seen = [*seen[seen.index(row) :], row]
    return " waits for ".join(_name(program, s, r) for r in seen[:8]) or "nothing can start"


def _number(prog: k.Prog, s: k.State, row: int) -> int:
    b = int(s.inst[row, k.I_BLOCK])
    return int(prog.body_ptr[s.block[b, k.B_BODY]] + row - s.block[b, k.B_BASE])


def _name(program: TileProgram, s: k.State, row: int) -> str:
    b = int(s.inst[row, k.I_BLOCK])
    body = int(s.block[b, k.B_BODY])
    text = instruction_text(program, body, row - int(s.block[b, k.B_BASE]))
    return f"'{text}' of block {b} ({program.bodies[body].name})"


def _holder(program: TileProgram, prog: k.Prog, s: k.State, row: int) -> str:
    """The instruction before this one on its engine."""
    e = prog.instr[_number(prog, s, row), k.N_ENGINE]
    for r in range(row - 1, -1, -1):
        if prog.instr[_number(prog, s, r), k.N_ENGINE] == e:
            return _name(program, s, r)
    return "another instruction"
