"""The machine's state at the start of a run, and the same state in larger arrays."""

from __future__ import annotations

import numpy as np

from ..compiler.program import DRAM_PARAMS, Ints, TileProgram, ints
from . import columns as k
from .dram import RUN_COLUMNS
from .lanes import new_lane


def new_state(program: TileProgram, prog: k.Prog) -> k.State:
    """All engines and lanes idle at time 0."""
    engines, causes, most = int(prog.sizes[0]), int(prog.sizes[1]), int(prog.sizes[4])
    lanes = int(program.stations.lanes.sum())
    chunks = 2 * most + 1024
    heap = 2 * chunks + 2 * most + engines + 4 * lanes + 8
    stack = np.flatnonzero(prog.engines[:, 5] >= 0)[::-1]
    s = k.State(
        g=np.zeros(k.SCALARS, np.int64),
        eng=np.zeros((engines, k.E_CHAIN + 2 + causes), np.int64),
        lane=np.zeros((lanes, k.L_CHAIN + 2 + causes), np.int64),
        chunk=np.zeros((chunks, k.C_CHAIN + 2 + causes), np.int64),
        free=np.arange(chunks, dtype=np.int64),
        heap=np.empty((heap, 3), np.int64),
        inst=np.empty((program.instructions, k.I_CHAIN + 2 + causes), np.int64),
        block=np.empty((program.blocks, k.BLOCK_COLUMNS), np.int64),
        cut=np.empty((2 * most + 1024, causes + 3), np.int64),
        stack=np.zeros(engines, np.int64),
        counted=np.zeros(len(program.tiers) * len(program.kinds) * 2, np.int64),
    )  # fmt: skip
    s.g[k.G_FREE], s.g[k.G_LEFT], s.g[k.G_STACK] = chunks, program.instructions, len(stack)
    s.g[k.G_MARK] = s.g[k.G_LAST] = -1
    s.stack[: len(stack)] = stack
    s.eng[:, k.E_STACKED] = prog.engines[:, 5] >= 0
    s.eng[:, k.E_WINDOW] = prog.engines[:, 1]
    return s


def grow(s: k.State) -> k.State:
    """The same state with twice the room for chunks, events and cuts."""
    old = len(s.chunk)
    chunk = np.concatenate([s.chunk, np.zeros_like(s.chunk)])
    free = np.empty(2 * old, np.int64)
    n = int(s.g[k.G_FREE])
    free[:n], free[n : n + old] = s.free[:n], np.arange(old, 2 * old)
    s.g[k.G_FREE] = n + old
    heap, cut = (np.concatenate([x, np.zeros_like(x)]) for x in (s.heap, s.cut))
    return s._replace(chunk=chunk, free=free, heap=heap, cut=cut)


def new_memory(program: TileProgram, prog: k.Prog, chunks: int) -> k.Memory | None:
    """The DRAM lanes, idle; None if no station has any."""
    s, params = program.stations, program.drams.params
    with_dram = np.flatnonzero(s.dram >= 0)
    if not len(with_dram):
        return None
    stations: list[list[int]] = []
    lanes: list[Ints] = []
    watch: list[list[int]] = []
    first_lane = np.concatenate([[0], np.cumsum(s.lanes)])
    for station in with_dram:
        kind = int(s.dram[station])
        of = dict(zip(DRAM_PARAMS, params[kind].tolist(), strict=True))
        behind = int(program.routes.latency_fs[program.routes.station == station].min(initial=2**62)) // of["tick_fs"]
        stations.append(
            [len(lanes), of["tick_fs"], of["burst_bytes"], int(s.lost_cause[station]),
             1 + of["read_ticks"] + behind, 1 + behind]
        )  # fmt: skip
        one = new_lane(program.drams, kind)
        for i in range(int(s.lanes[station])):
            lanes.append(one)
            watch.append([len(stations) - 1, int(first_lane[station]) + i, 0, 0] + [0] * k.COUNTED)
    ram = np.zeros((len(lanes), max(map(len, lanes))), np.int64)
    for row, lane in zip(ram, lanes, strict=True):
        row[: len(lane)] = lane
    return k.Memory(
        stations=ints(stations), ram=ram, watch=ints(watch),
        runs=np.zeros((chunks, RUN_COLUMNS), np.int64), visit=np.zeros((chunks, k.VISIT_COLUMNS), np.int64),
        present=np.zeros((len(stations), 3), np.int64), record=np.zeros((0, 2), np.int64),
    )  # fmt: skip


def grow_memory(d: k.Memory | None, chunks: int) -> k.Memory | None:
    """The same lanes with room for so many chunks."""
    if d is None:
        return None
    runs, visit = (np.concatenate([x, np.zeros((chunks - len(x), x.shape[1]), np.int64)]) for x in (d.runs, d.visit))
    return d._replace(runs=runs, visit=visit)
