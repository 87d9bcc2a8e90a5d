"""The TileProgram: all that the simulator is told, and its text form.

docs/model.md gives the meaning of every field, docs/ir.md the text form. This module imports nothing of ours: the
simulator, the verifier and the reports read programs, and only the compiler writes them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

FS_PER_S = 10**15
TIME_LIMIT = 2**62


class Form(IntEnum):
    """How the machine runs an instruction (docs/model.md, section 2)."""

    HOLD = 0
    TRANSFER = 1


class Opcode(IntEnum):
    """What an instruction is for: shown in texts and counted in reports, never read by the kernel."""

    LOAD = 0
    STORE = 1
    COMPUTE = 2
    SEND = 3
    RECV = 4
    LAUNCH = 5
    BARRIER = 6


class Dep(IntEnum):
    """Type of a dependency edge."""

    RAW = 0
    WAR = 1
    ORDER = 2


@dataclass(frozen=True, eq=False)
class Engines:
    """One row per engine. `port_num / port_den` is femtoseconds per byte of its own port (0: no port)."""

    name: tuple[str, ...]
    kind: tuple[str, ...]
    period_fs: Ints
    window_bytes: Ints
    port_num: Ints
    port_den: Ints
    port_cause: Ints


@dataclass(frozen=True, eq=False)
class Stations:
    """One row per station; a lane serves `num / den` femtoseconds per byte.

    `dram`: the row of `TileProgram.drams` that each of its lanes is, -1 for a fixed rate. Such a station's lost time
    goes to the causes `lost_cause` and the three after it: refresh, row miss, bank conflict, turnaround.
    """

    name: tuple[str, ...]
    lanes: Ints
    interleave: Ints
    num: Ints
    den: Ints
    cause: Ints
    dram: Ints
    lost_cause: Ints


LOST = ("refresh", "row-miss", "bank-conflict", "turnaround")
"""Why the data bus of a DRAM lane is idle while bursts wait: causes `refresh:TIER` and so on."""
DRAM_COMMANDS = ("ACT", "PRE", "PREA", "RD", "WR", "REFA", "REFB")
DRAM_LEVELS = ("channel", "rank", "sid", "group", "bank")
DRAM_FIELDS = ("rank", "sid", "group", "bank", "row", "column")
DRAM_PARAMS = (
    "ranks", "sids", "groups", "banks", "rows", "columns", "burst_bytes", "tick_fs", "burst_ticks", "buses", "edges",
    "read_ticks", "read_queue", "write_queue", "drain_from", "drain_to", "refresh", "refresh_ticks", "refresh_busy",
    "split_ticks", "clocked", "clock_read", "clock_write", "hash",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Drams:
    """One row per kind of DRAM lane (docs/model.md, section 10).

    `params` has the columns DRAM_PARAMS: counts of ranks (or pseudo-channels) behind the controller, of stack ids,
    groups, banks of a group, rows, and bursts of a row; bytes of a burst; femtoseconds of a tick; ticks of a burst on
    its data bus; command buses; whether only PRE may start at even ticks; ticks from RD to its last beat; queue sizes;
    writes queued that start (`drain_from`) and end (`drain_to`) draining; refresh (0 none, 1 all banks, 2 one bank, 3
    one bank by sets), its interval and, by sets, the busy time of one; most ticks from ACT-1 to ACT-2 (0: one command);
    whether the data clock is synchronised, and how long a read or write keeps it running; whether banks and row are
    XORed with column bits.
    Rules in CSR form, rows (command before, command after, level, ticks, commands back, 1: in sibling nodes).
    Mappings in CSR form, rows (field, size, worth), least significant first.
    """

    name: tuple[str, ...]
    params: Ints
    rule_ptr: Ints
    rules: Ints
    field_ptr: Ints
    fields: Ints


NO_DRAMS = Drams(
    (), np.zeros((0, len(DRAM_PARAMS)), np.int64), np.zeros(1, np.int64), np.zeros((0, 6), np.int64),
    np.zeros(1, np.int64), np.zeros((0, 3), np.int64),
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Routes:
    """Routes in CSR form: hops `ptr[r]:ptr[r+1]`, each a station and the latency behind it."""

    name: tuple[str, ...]
    chunk_bytes: Ints
    ptr: Ints
    station: Ints
    latency_fs: Ints
    latency_cause: Ints


@dataclass(frozen=True, eq=False)
class Body:
    """A block of instructions, in the order of every engine's queue.

    All arrays are int64. Per instruction (n): `engine`, `form`, `opcode`, `op` (row of `TileProgram.ops`), `group`,
    `hold_fs`, `latency_fs` and `cause` (holds), `nbytes`, `route`, `address`, `step`, `tier`, `kind`, `write`
    (transfers; tier and kind -1: counted nowhere), `start_fs` (static segments, else -1), `export` (slot or -1).
    Edges in CSR form: `dep_ptr` (n+1), and per edge `dep_pred`, `dep_type`, `dep_slot` (1: `dep_pred` is a slot of
    the block before, 0: an instruction of this body).
    """

    name: str
    engine: Ints
    form: Ints
    opcode: Ints
    op: Ints
    group: Ints
    hold_fs: Ints
    latency_fs: Ints
    cause: Ints
    nbytes: Ints
    route: Ints
    address: Ints
    step: Ints
    tier: Ints
    kind: Ints
    write: Ints
    start_fs: Ints
    export: Ints
    dep_ptr: Ints
    dep_pred: Ints
    dep_type: Ints
    dep_slot: Ints

    def __len__(self) -> int:
        return len(self.engine)


PER_INSTRUCTION = tuple(f.name for f in dataclasses.fields(Body) if f.name != "name" and not f.name.startswith("dep_"))


@dataclass(frozen=True)
class Segment:
    """`repeat` runs of one body. Static segments state the length of a block and every start in it.

    `stage` is the pipeline stage of the first block, `stage_step` what each further block adds to it.
    """

    body: int
    repeat: int
    static: bool = False
    length_fs: int = 0
    stage: int = 0
    stage_step: int = 0


@dataclass(frozen=True)
class OpInfo:
    """A row of the report. `must_bytes` and `bound_fs` are for one execution on one chip (docs/chips.md)."""

    name: str
    kind: str
    must_bytes: int = 0
    bound_fs: int = 0


@dataclass(frozen=True)
class Assumption:
    """Something a result rests on that no source states."""

    what: str
    why: str


@dataclass(frozen=True)
class Bound:
    """The analytic limit of one token. `terms_fs` holds every limiter's own time; the largest is the limit."""

    time_fs: int
    limiter: str
    terms_fs: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Info:
    """What reports print of the job. The simulator never reads it."""

    chip: str
    chips: int = 1
    tp: int = 1
    pp: int = 1
    replicas: int = 1
    """Groups of tp x pp chips that do the same beside each other, their experts spread over them."""
    model: str = "graph"
    phase: str = "decode"
    batch: int = 1
    context: int = 0
    spans: tuple[tuple[int, ...], ...] = ()
    """What the step works on, as (sequences, new tokens, cached tokens, of these shared) of each kind of sequence;
    empty: every sequence of the batch brings one token to `context` cached ones."""
    dtypes: dict[str, str] = field(default_factory=dict)
    clock_hz: float = 1e9
    clock_fs: int = 10**6
    bound: Bound = Bound(0, "none")
    fit: tuple[str, ...] = ()
    placement: dict[str, dict[str, int]] = field(default_factory=dict)
    copied_bytes: dict[str, int] = field(default_factory=dict)
    """By tensor kind, what all chips together read beyond one copy: tensors that tensor parallelism copies, or pads."""
    assumptions: tuple[Assumption, ...] = ()
    notes: tuple[str, ...] = ()
    schedule_fs: int = 0
    """Makespan of a static schedule as its compiler computed it (0: not static); the simulated one must be equal."""


@dataclass(frozen=True, eq=False)
class TileProgram:
    """A model lowered onto a chip: engines, stations, routes, bodies of tile instructions, and their order.

    `causes` are the names behind the cause numbers, in the order used for sharing (docs/model.md, section 6).
    """

    causes: tuple[str, ...]
    tiers: tuple[str, ...]
    kinds: tuple[str, ...]
    engines: Engines
    stations: Stations
    routes: Routes
    ops: tuple[OpInfo, ...]
    bodies: tuple[Body, ...]
    segments: tuple[Segment, ...]
    info: Info
    drams: Drams = NO_DRAMS

    @property
    def blocks(self) -> int:
        """Number of blocks: every segment's repeats."""
        return sum(s.repeat for s in self.segments)

    @property
    def instructions(self) -> int:
        """Number of instructions, each repeat counted."""
        return sum(s.repeat * len(self.bodies[s.body]) for s in self.segments)

    def text(self) -> str:
        """The whole program as text: the same program always gives the same text (docs/ir.md)."""
        return "\n".join(_lines(self)) + "\n"


def ints(values: Any) -> Ints:
    """A C-contiguous int64 array, the only kind that the kernel takes."""
    return np.ascontiguousarray(values, dtype=np.int64)


def _lines(p: TileProgram) -> Iterator[str]:
    yield f"program chip={p.info.chip} model={p.info.model} tp={p.info.tp} pp={p.info.pp}"
    e, s, r = p.engines, p.stations, p.routes
    for i, name in enumerate(e.name):
        port = f" port={e.port_num[i]}/{e.port_den[i]}fs/B:{p.causes[e.port_cause[i]]}" if e.port_num[i] else ""
        window = f" window={e.window_bytes[i]}B" if e.window_bytes[i] else ""
        yield f"engine {i} {name} kind={e.kind[i]} period={e.period_fs[i]}fs{window}{port}"
    for i, name in enumerate(s.name):
        yield (
            f"station {i} {name} lanes={s.lanes[i]} interleave={s.interleave[i]}B "
            f"rate={s.num[i]}/{s.den[i]}fs/B cause={p.causes[s.cause[i]]}"
            + (f" dram={s.dram[i]}:{p.causes[s.lost_cause[i]]}" if s.dram[i] >= 0 else "")
        )
    yield from _dram_lines(p.drams)
    for i, name in enumerate(r.name):
        hops = " ".join(
            f"{s.name[r.station[h]]}+{r.latency_fs[h]}fs:{p.causes[r.latency_cause[h]]}"
            for h in range(r.ptr[i], r.ptr[i + 1])
        )
        yield f"route {i} {name} chunk={r.chunk_bytes[i]}B {hops}"
    for i, op in enumerate(p.ops):
        yield f"op {i} {op.name} kind={op.kind} must={op.must_bytes}B bound={op.bound_fs}fs"
    for b, body in enumerate(p.bodies):
        yield f"body {b} {body.name} instructions={len(body)}"
        for i in range(len(body)):
            yield f"  {instruction_text(p, b, i)}"
    for seg in p.segments:
        static = f" static length={seg.length_fs}fs" if seg.static else ""
        yield f"run {p.bodies[seg.body].name} x{seg.repeat} stage={seg.stage}+{seg.stage_step}{static}"


def _dram_lines(d: Drams) -> Iterator[str]:
    for i, name in enumerate(d.name):
        params = " ".join(f"{k}={n}" for k, n in zip(DRAM_PARAMS, d.params[i], strict=True) if n)
        yield f"dram {i} {name} {params}"
        fields = d.fields[d.field_ptr[i] : d.field_ptr[i + 1]].tolist()
        yield "  mapping " + " ".join(f"{DRAM_FIELDS[f]}:{size}x{worth}" for f, size, worth in fields)
        for before, after, level, ticks, back, near in d.rules[d.rule_ptr[i] : d.rule_ptr[i + 1]].tolist():
            where = ("other " if near else "") + DRAM_LEVELS[level]
            times = f" x{back}" if back > 1 else ""
            yield f"  rule {DRAM_COMMANDS[before]}{times} -> {DRAM_COMMANDS[after]} {ticks} in {where}"


def instruction_text(p: TileProgram, body: int, i: int) -> str:
    """One instruction of a body as text; errors use it to name the parties."""
    b = p.bodies[body]
    parts = [f"%{i}", p.engines.name[b.engine[i]], Opcode(b.opcode[i]).name.lower()]
    parts.append(f"{p.ops[b.op[i]].name}/g{b.group[i]}")
    if b.form[i] == Form.HOLD:
        parts.append(f"hold={b.hold_fs[i]}fs latency={b.latency_fs[i]}fs cause={p.causes[b.cause[i]]}")
    else:
        where = "" if b.tier[i] < 0 else f" {p.tiers[b.tier[i]]}:{p.kinds[b.kind[i]]}"
        step = f"+{b.step[i]}" if b.step[i] else ""
        way = "write" if b.write[i] else "read"
        parts.append(f"{way} {b.nbytes[i]}B @{b.address[i]}{step} via {p.routes.name[b.route[i]]}{where}")
    if b.start_fs[i] >= 0:
        parts.append(f"start={b.start_fs[i]}fs")
    deps = [
        f"{Dep(b.dep_type[d]).name}:{'^' if b.dep_slot[d] else '%'}{b.dep_pred[d]}"
        for d in range(b.dep_ptr[i], b.dep_ptr[i + 1])
    ]
    if deps:
        parts.append("after " + " ".join(deps))
    if b.export[i] >= 0:
        parts.append(f"exports ^{b.export[i]}")
    return " ".join(parts)
