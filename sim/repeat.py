"""Skipping by exact repetition (docs/model.md, section 9)."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..compiler.program import Ints, TileProgram
from . import columns as k

PERIODS = 8  # longest period, in blocks, that is looked for


@dataclass
class Mark:
    """The machine when block `block` began: its relative state, and what had been counted."""

    block: int
    time_fs: int
    state: bytes
    oldest: int  # the row from which the next mark must look
    done: NDArray[np.bool_]  # per row: it is known when it is done
    cuts: int
    counted: Ints
    lane_busy: Ints
    events: int


@dataclass
class Jump:
    """`times` periods of `period` blocks and `length_fs` each that were counted without being simulated."""

    block: int
    segment: int
    period: int
    times: int
    length_fs: int
    before: NDArray[np.bool_]  # per row: done before the period
    within: NDArray[np.bool_]  # per row: done before the period's end
    cuts: tuple[int, int]  # made before the period, and before its end
    counted: Ints
    lane_busy: Ints
    events: int


@dataclass
class Repeats:
    """Watches the blocks of repeating segments, and jumps when the machine has been in the same state three times."""

    program: TileProgram
    prog: k.Prog
    marks: dict[int, Mark] = field(default_factory=dict)
    jumps: list[Jump] = field(default_factory=list)
    oldest: int = 0

    def __post_init__(self) -> None:
        self.allowed = [s.repeat > 3 and steps_keep_lanes(self.program, i) for i, s in enumerate(self.program.segments)]

    def watch(self, s: k.State) -> None:
        """Called at a mark: remember the state, and jump if it repeats."""
        block = int(s.g[k.G_MARK])
        s.g[k.G_MARK] = -1
        segment = int(s.block[block, k.B_SEGMENT])
        whole = int(s.g[k.G_SEGMENT]) != segment
        if not self.allowed[segment] or whole or any(j.segment == segment for j in self.jumps):
            return
        if block == 0 or s.block[block - 1, k.B_SEGMENT] != segment:
            self.marks.clear()
            return
        mark = take_mark(self.prog, s, block, self.oldest)
        self.oldest = mark.oldest
        self.marks[block] = mark
        self.marks.pop(block - 2 * PERIODS - 1, None)
        for period in range(1, PERIODS + 1):
            one, two = self.marks.get(block - period), self.marks.get(block - 2 * period)
            if one and two and one.state == mark.state == two.state:
                self._jump(s, mark, one, segment, period)
                return

    def _jump(self, s: k.State, now: Mark, before: Mark, segment: int, period: int) -> None:
        left = int(self.prog.segments[segment, 1] - s.g[k.G_ITER])
        times = left // period
        if times == 0:
            return
        s.g[k.G_ITER] += times * period
        if s.g[k.G_ITER] == self.prog.segments[segment, 1]:
            s.g[k.G_SEGMENT] += 1
            s.g[k.G_ITER] = 0
        s.g[k.G_LEFT] -= times * period * len(self.program.bodies[self.program.segments[segment].body])
        self.jumps.append(
            Jump(now.block, segment, period, times, now.time_fs - before.time_fs, before.done, now.done,
                 (before.cuts, now.cuts), now.counted - before.counted, now.lane_busy - before.lane_busy,
                 now.events - before.events)
        )  # fmt: skip


def steps_keep_lanes(program: TileProgram, segment: int) -> bool:
    """True if every address step of the segment leaves the lanes that its chunks take as they are."""
    body = program.bodies[program.segments[segment].body]
    r, s = program.routes, program.stations
    for route in np.unique(body.route[body.step != 0]):
        steps = np.unique(body.step[(body.step != 0) & (body.route == route)])
        for station in r.station[r.ptr[route] : r.ptr[route + 1]]:
            if s.lanes[station] > 1 and np.any(steps % (s.lanes[station] * s.interleave[station])):
                return False
    return True


def take_mark(p: k.Prog, s: k.State, block: int, since: int) -> Mark:
    """The machine's state relative to the block's first instruction and its start.

    `since`: a row before which all instructions are over and bound to nothing to come.
    """
    base = int(s.block[block, k.B_BASE])
    time = int(s.inst[base, k.I_START])
    now = int(s.g[k.G_NOW])
    rel = _Relative(p, s, block, base, time, since)
    parts = [np.array([now - time, s.g[k.G_BLOCKS] - block, s.g[k.G_HEAP]])]
    parts += [rel.engines(), rel.lanes(now), rel.heap(), rel.instructions()]
    state = b"".join(np.ascontiguousarray(x, dtype=np.int64).tobytes() for x in parts)
    counts = s.counted.copy(), s.lane[:, k.L_BUSY].copy(), int(s.g[k.G_EVENTS])
    return Mark(block, time, state, rel.oldest, s.inst[: s.g[k.G_ROWS], k.I_DONE] >= 0, int(s.g[k.G_CUTS]), *counts)


class _Relative:
    """Views of the state with times relative to `time`, rows to `base` and tags to the block."""

    def __init__(self, p: k.Prog, s: k.State, block: int, base: int, time: int, since: int) -> None:
        self.p, self.s, self.block, self.base, self.time = p, s, block, base, time
        self.since = self.oldest = since
        self.width = int(p.sizes[1]) + 2

    def chain(self, rows: Ints) -> Ints:
        """Chains with relative origin and tag; a cut is shown by what it remembers."""
        out = rows.copy()
        groups = int(self.p.sizes[3])
        cut = out[:, 0] < -1
        seen = self.s.cut[np.where(cut, -2 - out[:, 0], 0)].copy()
        inner = seen[:, 0] < -1
        seen[:, 0] = np.where(inner, -2, seen[:, 0] - self.base)
        seen[:, 1] -= self.block * groups
        seen[:, self.width] -= self.block * groups
        seen[~cut] = 0
        out[:, 0] = np.where(cut, -2, out[:, 0] - self.base)
        out[:, 1] -= self.block * groups
        return np.concatenate([out, seen], axis=1)

    def engines(self) -> Ints:
        s = self.s
        eng = self.s.eng.copy()
        busy = eng[:, k.E_BUSY] == 1
        over = self.p.engines[:, 5] < self.s.block[self.block, k.B_SEGMENT]
        eng[:, k.E_FREE] -= self.time
        eng[:, k.E_BLOCK] -= self.block
        eng[:, k.E_ROW] -= self.base
        eng[:, k.E_TAG] -= self.block * int(self.p.sizes[3])
        eng[:, k.E_ADDRESS] -= s.block[s.eng[:, k.E_BLOCK], k.B_ITER] * self.p.instr[eng[:, k.E_INSTR], k.N_STEP]
        eng[~busy, k.E_OFFSET] = 0
        eng[~busy, k.E_ROW : k.E_CHAIN] = 0
        eng[busy, k.E_FREE] = 0
        eng[:, k.E_CHUNKS] = 0
        out = np.concatenate([eng[:, : k.E_CHAIN], self.chain(eng[:, k.E_CHAIN :])], axis=1)
        out[over] = 0
        return out

    def lanes(self, now: int) -> Ints:
        lane = self.s.lane
        out = self.chain(lane[:, k.L_CHAIN :])
        live = lane[:, k.L_FREE] > now
        out[~live] = 0
        return np.concatenate([np.where(live, lane[:, k.L_FREE] - self.time, 0)[:, None], out], axis=1)

    def heap(self) -> Ints:
        s, n = self.s, int(self.s.g[k.G_HEAP])
        key, row = s.heap[:n, 1], s.heap[:n, 2]
        order = np.argsort(key)
        key, row, time = key[order], row[order], s.heap[:n, 0][order] - self.time
        engine = key >> 44
        number = ((key >> 4) & (2**40 - 1)) - s.eng[engine, k.E_CHUNKS]
        chunk = s.chunk[np.maximum(row, 0)].copy()
        chunk[:, k.C_TAG] -= self.block * int(self.p.sizes[3])
        b = s.inst[chunk[:, k.C_ROW], k.I_BLOCK]
        chunk[:, k.C_ADDRESS] -= s.block[b, k.B_ITER] * self.p.instr[chunk[:, k.C_INSTR], k.N_STEP]
        chunk[:, k.C_ROW] -= self.base
        rows = np.concatenate([chunk[:, : k.C_CHAIN], self.chain(chunk[:, k.C_CHAIN :])], axis=1)
        rows[row < 0] = 0
        return np.concatenate([np.stack([time, engine, number, key & 15, row < 0], axis=1), rows], axis=1)

    def instructions(self) -> Ints:
        """Instructions that are under way, or that others will look back at.

        Left out: what has not been touched (it is as its body says), and what is over and bound to nothing to come.
        The last block is shown whole: the next one will ask which of its exports are done.
        """
        s = self.s
        inst = s.inst[self.since : s.g[k.G_ROWS]]
        begun, done, bind = inst[:, k.I_START] >= 0, inst[:, k.I_DONE], inst[:, k.I_BIND]
        wanted = (done < 0) | (done > s.g[k.G_NOW])
        wanted[bind[~begun & (bind >= 0)] - self.since] = True
        wanted[s.block[s.g[k.G_BLOCKS] - 1, k.B_BASE] - self.since :] = True
        self.oldest = self.since + int(np.argmax(wanted))
        touched = np.flatnonzero(wanted & (begun | (bind >= 0)))
        number = (touched + self.since - self.base)[:, None]
        inst = inst[touched]
        begun, done = inst[:, k.I_START] >= 0, inst[:, k.I_DONE] >= 0
        met = inst[:, k.I_BIND] >= 0
        inst[:, k.I_READY] = np.where(met, inst[:, k.I_READY] - self.time, 0)
        inst[:, k.I_BIND] = np.where(met, inst[:, k.I_BIND] - self.base, 0)
        inst[:, k.I_START] = np.where(begun, inst[:, k.I_START] - self.time, 0)
        inst[:, k.I_RELEASE] = np.where(done, inst[:, k.I_RELEASE] - self.time, 0)
        inst[:, k.I_LEFT] = np.where(begun & ~done, inst[:, k.I_LEFT], 0)
        inst[:, k.I_DONE] = np.where(done, inst[:, k.I_DONE] - self.time, 1)
        inst[:, k.I_BLOCK] -= self.block
        chain = self.chain(np.where(done[:, None], inst[:, k.I_CHAIN :], 0))
        chain[~done] = 0
        return np.concatenate([number, inst[:, : k.I_CHAIN], begun[:, None], done[:, None], chain], axis=1)
