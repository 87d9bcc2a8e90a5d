"""Run a TileProgram: `simulate` for a report, `simulate_detailed` for tests and tools that want every instruction."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ..compiler.program import DRAM_PARAMS, FS_PER_S, LOST, Ints, TileProgram
from . import columns as k
from .blame import EXTRA, Blame, PathDoesNotRepeat, blame
from .dram import D_DATA
from .failure import EVENT_BUDGET, MachineError, why
from .kernel import advance, open_first
from .layout import lay_out
from .repeat import Jump, Repeats
from .state import grow, grow_memory, new_memory, new_state


@dataclass(frozen=True)
class EngineAccount:
    """All engines of one kind, over all chips: `busy_fs` + the sum of `stalls_fs` = makespan x `count`."""

    name: str
    count: int
    busy_fs: int
    stalls_fs: dict[str, int]


@dataclass(frozen=True)
class OpAccount:
    """One operator. `time_fs` is its part of the critical path; bytes are system-wide."""

    name: str
    kind: str
    count: int
    time_fs: int
    causes_fs: dict[str, int]
    bytes: int
    must_bytes: int
    bound_fs: int

    @property
    def cause(self) -> str:
        """The cause that took most of its time."""
        return max(self.causes_fs, key=lambda c: self.causes_fs[c], default="none")


@dataclass(frozen=True)
class DramAccount:
    """The DRAM lanes of one tier, over all chips: the four parts below sum to makespan x `buses`."""

    buses: int
    """Data buses: of every controller, one for each of its pseudo-channels."""
    data_fs: int
    """Their data buses carried bytes."""
    lost_fs: dict[str, int]
    """Bursts waited, and the bus was idle: by cause (`LOST`, and `bus` for all that bus and bank groups ask)."""
    too_few_fs: int
    """No burst waited here, while the tier had chunks to bring: too few bytes in flight, or all of them elsewhere."""
    unasked_fs: int
    """No chunk was asked of the tier at all."""
    peak_bytes_per_s: float = 0.0
    """What all the data buses could carry."""


@dataclass(frozen=True)
class Run:
    """A finished run. Every dict of times sums exactly as docs/model.md says."""

    program: TileProgram
    time_fs: int
    critical_path_fs: dict[str, int]
    engines: tuple[EngineAccount, ...]
    bytes: dict[str, dict[str, dict[str, int]]]
    ops: tuple[OpAccount, ...]
    lanes_busy_fs: dict[str, int]
    interval_fs: int
    blocks: int
    simulated_blocks: int
    events: int
    drams: dict[str, DramAccount] = field(default_factory=dict)
    """By tier: those whose DRAM was simulated."""

    @property
    def time_s(self) -> float:
        """Seconds from the first instruction to the token."""
        return self.time_fs / FS_PER_S

    @property
    def cycles(self) -> int:
        """Cycles of the chip's core clock, rounded up."""
        return -(-self.time_fs // self.program.info.clock_fs)

    @property
    def tokens_per_s_per_user(self) -> float:
        """One sequence's rate: the tokens that it brings, per pass through all stages."""
        return (self.program.info.spans or ((1, 1),))[-1][1] * FS_PER_S / self.time_fs

    @property
    def tokens_per_s(self) -> float:
        """The rate in all, with every pipeline stage at work on a batch of its own."""
        info = self.program.info
        tokens = sum(count * new for count, new, *_ in info.spans) or info.batch
        return tokens * info.replicas * FS_PER_S / self.interval_fs


@dataclass(frozen=True)
class Detail:
    """What one simulated chip did, engine by engine. `start`, `release`, `done`: one array per simulated block."""

    time_fs: int
    start: list[Ints]
    release: list[Ints]
    done: list[Ints]
    critical_path_fs: dict[str, int]
    path_by_op: dict[int, int]
    path: Ints
    engine_busy_fs: Ints
    engine_stalls_fs: list[dict[str, int]]
    bytes: dict[tuple[str, str, str], int]
    lane_busy_fs: dict[tuple[int, int], int]
    interval_fs: int
    events: int
    blocks: int
    drams: dict[str, DramAccount] = field(default_factory=dict)


def simulate(program: TileProgram, skip: bool = True) -> Run:
    """Run a program. With `skip`, blocks that repeat exactly are counted without being simulated: the result is the
    same.

    Raises MachineError for a deadlock or a static conflict, ProgramError for a program that the machine cannot hold.
    """
    d = simulate_detailed(program, skip)
    info = program.info
    size: dict[str, dict[str, dict[str, int]]] = {}
    for (tier, kind, way), n in d.bytes.items():
        size.setdefault(tier, {"read": {}, "write": {}})[way][kind] = n * info.tp * info.replicas
    lanes: dict[str, int] = {}
    for (station, _), busy in d.lane_busy_fs.items():
        name = program.stations.name[station]
        lanes[name] = lanes.get(name, 0) + busy * info.tp * info.replicas
    return Run(
        program, d.time_fs, d.critical_path_fs, _engine_accounts(program, d), size, _op_accounts(program, d), lanes,
        d.interval_fs, program.blocks, d.blocks, d.events, {t: _over_chips(program, a) for t, a in d.drams.items()},
    )  # fmt: skip


def _engine_accounts(program: TileProgram, d: Detail) -> tuple[EngineAccount, ...]:
    """Per kind, over all chips: those of a stage work alike, and wait while another stage has the token."""
    info = program.info
    ways = info.tp * info.replicas
    used = {int(e) for b in program.bodies for e in np.unique(b.engine)}
    out = []
    for kind in dict.fromkeys(program.engines.kind):
        mine = [e for e in used if program.engines.kind[e] == kind]
        if not mine:
            continue
        stalls: dict[str, int] = {}
        for e in mine:
            for cause, fs in d.engine_stalls_fs[e].items():
                stalls[cause] = stalls.get(cause, 0) + fs * ways
        elsewhere = d.time_fs * len(mine) * ways * (info.pp - 1)
        if elsewhere:
            stalls["idle"] = stalls.get("idle", 0) + elsewhere
        busy = int(d.engine_busy_fs[mine].sum()) * ways
        out.append(EngineAccount(kind, len(mine) * ways * info.pp, busy, stalls))
    return tuple(out)


def _over_chips(program: TileProgram, a: DramAccount) -> DramAccount:
    """A chip's account times the chips; those of other stages are not asked for anything meanwhile."""
    info = program.info
    whole = a.data_fs + sum(a.lost_fs.values()) + a.too_few_fs + a.unasked_fs
    lost = {cause: fs * info.tp for cause, fs in a.lost_fs.items()}
    unasked = (a.unasked_fs + whole * (info.pp - 1)) * info.tp
    return DramAccount(
        a.buses * info.tp * info.pp, a.data_fs * info.tp, lost, a.too_few_fs * info.tp, unasked,
        a.peak_bytes_per_s * info.tp * info.pp,
    )  # fmt: skip


def _op_accounts(program: TileProgram, d: Detail) -> tuple[OpAccount, ...]:
    count, moved = np.zeros(len(program.ops), np.int64), np.zeros(len(program.ops), np.int64)
    for segment in program.segments:
        body = program.bodies[segment.body]
        count[np.unique(body.op)] += segment.repeat
        homed = body.tier >= 0
        np.add.at(moved, body.op[homed], body.nbytes[homed] * segment.repeat)
    tp = program.info.tp * program.info.replicas
    out = []
    for i, op in enumerate(program.ops):
        causes = {c: int(fs) for c, fs in zip(program.causes, d.path[i], strict=True) if fs}
        n = int(count[i])
        out.append(
            OpAccount(
                op.name,
                op.kind,
                n,
                sum(causes.values()),
                causes,
                int(moved[i]) * tp,
                op.must_bytes * n * tp,
                op.bound_fs * n,
            )
        )
    return tuple(out)


def simulate_detailed(program: TileProgram, skip: bool = True) -> Detail:
    """Run a program and keep every instruction's times (of the simulated blocks)."""
    prog = lay_out(program)
    # Refresh goes by its own clock, so that a machine with DRAM lanes is never twice in the same state.
    if skip and any(s.repeat > 3 for s in program.segments) and not program.drams.name:
        repeats = Repeats(program, prog)
        state, memory = _advance(program, prog, repeats)
        try:
            return _detail(program, prog, state, memory, repeats.jumps)
        except PathDoesNotRepeat:
            pass
    return _detail(program, prog, *_advance(program, prog, None), [])


def _advance(program: TileProgram, prog: k.Prog, repeats: Repeats | None) -> tuple[k.State, k.Memory | None]:
    s = new_state(program, prog)
    d = new_memory(program, prog, len(s.chunk))
    if program.segments:
        open_first(prog, s)
    while True:
        status = advance(prog, s, d, EVENT_BUDGET, repeats is not None)
        if status == k.DONE:
            return s, d
        if status == k.MARK:
            assert repeats is not None
            repeats.watch(s)
        elif status == k.GROW:
            s = grow(s)
            d = grow_memory(d, len(s.chunk))
        else:
            raise MachineError(why(program, prog, s, status))


def _detail(program: TileProgram, prog: k.Prog, s: k.State, d: k.Memory | None, jumps: list[Jump]) -> Detail:
    time = int(s.g[k.G_END]) + sum(j.times * j.length_fs for j in jumps)
    assert time >= program.info.bound.time_fs, "a run is faster than its bound: one of the two is wrong"
    assert program.info.schedule_fs in (0, time), "a static schedule ended at another time than its compiler said"
    b: Blame = blame(program, prog, s, jumps, time)
    counted = s.counted + sum((j.counted * j.times for j in jumps), np.zeros_like(s.counted))
    busy = s.lane[:, k.L_BUSY] + sum((j.lane_busy * j.times for j in jumps), np.zeros(len(s.lane), np.int64))
    if d is not None:
        busy[d.watch[:, k.W_LANE]] = d.ram[:, D_DATA] * d.stations[d.watch[:, k.W_STATION], k.K_TICK]
    blocks = int(s.g[k.G_BLOCKS])
    ends = np.append(s.block[1:blocks, k.B_BASE], s.g[k.G_ROWS])
    spans = [slice(int(x), int(y)) for x, y in zip(s.block[:blocks, k.B_BASE], ends, strict=True)]
    kinds = len(program.kinds)
    total = b.path.sum(axis=0)
    lane = [(i, j) for i in range(len(program.stations.name)) for j in range(int(program.stations.lanes[i]))]
    names = (*program.causes, *EXTRA)
    return Detail(
        time,
        [s.inst[x, k.I_START].copy() for x in spans],
        [s.inst[x, k.I_RELEASE].copy() for x in spans],
        [s.inst[x, k.I_DONE].copy() for x in spans],
        {c: int(fs) for c, fs in zip(program.causes, total, strict=True) if fs},
        {i: int(row.sum()) for i, row in enumerate(b.path) if row.any()},
        b.path,
        b.busy,
        [{c: int(fs) for c, fs in zip(names, row, strict=True) if fs} for row in b.stalls],
        {
            (program.tiers[c // 2 // kinds], program.kinds[c // 2 % kinds], "write" if c % 2 else "read"): int(n)
            for c, n in enumerate(counted)
            if n
        },
        {lane[i]: int(fs) for i, fs in enumerate(busy)},
        _interval(program, s, jumps),
        int(s.g[k.G_EVENTS]) + sum(j.events * j.times for j in jumps),
        blocks,
        {} if d is None else _dram_accounts(program, d, time),
    )


def _dram_accounts(program: TileProgram, d: k.Memory, time: int) -> dict[str, DramAccount]:
    """Each station's lanes together: every femtosecond of every lane in one of its parts."""
    out = {}
    for i, station in enumerate(np.flatnonzero(program.stations.dram >= 0)):
        lanes, tick = int(program.stations.lanes[station]), int(d.stations[i, k.K_TICK])
        first = int(d.stations[i, k.K_FIRST])
        of = dict(zip(DRAM_PARAMS, program.drams.params[program.stations.dram[station]].tolist(), strict=True))
        buses = lanes * of["ranks"]
        data, *lost, bus = (
            int(n) * tick for n in d.ram[first : first + lanes, D_DATA : D_DATA + k.COUNTED].sum(axis=0)
        )
        idle = time * buses - data - sum(lost) - bus
        unasked = min(max(time - int(d.present[i, 2]), 0) * buses, max(idle, 0))
        # The data of a last write lie behind its end, and may lie behind that of the run.
        out[program.stations.name[station]] = DramAccount(
            buses, data + min(idle, 0), {**dict(zip(LOST, lost, strict=True)), "bus": bus}, max(idle, 0) - unasked,
            unasked, buses * of["burst_bytes"] * FS_PER_S / (of["burst_ticks"] * tick),
        )  # fmt: skip
    return out


def _interval(program: TileProgram, s: k.State, jumps: list[Jump]) -> int:
    """Time of the slowest pipeline stage: from the start of its first block to that of the next stage's.

    Skipped blocks are like simulated ones: a stage of its own each, or more time of the stage that they are in.
    """
    blocks = int(s.g[k.G_BLOCKS])
    if not blocks:
        return 1
    starts = s.inst[s.block[:blocks, k.B_BASE], k.I_START]
    begun: dict[int, int] = {}
    skipped: dict[int, int] = {}
    for b in range(blocks):
        segment = program.segments[int(s.block[b, k.B_SEGMENT])]
        stage = segment.stage + int(s.block[b, k.B_ITER]) * segment.stage_step
        begun.setdefault(stage, int(starts[b]))
        if not segment.stage_step:
            skipped[stage] = skipped.get(stage, 0) + sum(j.times * j.length_fs for j in jumps if j.block == b)
    order = sorted(begun)
    ends = [begun[x] for x in order[1:]] + [int(s.g[k.G_END])]
    return max(1, *(end - begun[x] + skipped.get(x, 0) for x, end in zip(order, ends, strict=True)))
