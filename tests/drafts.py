"""Programs written by hand: rows of plain numbers and names that `build` turns into a TileProgram."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, replace

from stallscope.compiler.program import (
    LOST,
    NO_DRAMS,
    PER_INSTRUCTION,
    Body,
    Dep,
    Drams,
    Engines,
    Form,
    Info,
    Opcode,
    OpInfo,
    Routes,
    Segment,
    Stations,
    TileProgram,
    ints,
)

CAUSES = (
    "matrix",
    "vector",
    "launch",
    "link",
    "bandwidth:hbm",
    "latency:hbm",
    "bandwidth:l2",
    "latency:l2",
    *(f"{why}:hbm" for why in LOST),
)
TIERS = ("l2", "hbm")
KINDS = ("weight", "kv", "activation")
OPS = tuple(OpInfo(f"op{i}", "linear") for i in range(4))


@dataclass(frozen=True)
class EngineRow:
    """`port` is (num, den) fs per byte; (0, 1) is no port, window 0 no limit."""

    kind: str = "load"
    period: int = 1
    window: int = 0
    port: tuple[int, int] = (0, 1)
    port_cause: str = "bandwidth:l2"


@dataclass(frozen=True)
class StationRow:
    lanes: int = 1
    interleave: int = 64
    rate: tuple[int, int] = (2, 1)
    cause: str = "bandwidth:hbm"
    dram: int = -1
    """Row of `drams`, for DRAM lanes."""


@dataclass(frozen=True)
class RouteRow:
    """`hops`: (station, latency in fs, cause of the latency) each."""

    chunk: int
    hops: tuple[tuple[int, int, str], ...]


@dataclass(frozen=True)
class Draft:
    """One instruction; its fields are named as in `Body`. `deps`: (instruction or slot, Dep, is a slot) each."""

    engine: int
    form: Form
    op: int = 0
    group: int = 0
    hold_fs: int = 0
    latency_fs: int = 0
    cause: int = 0
    nbytes: int = 0
    route: int = 0
    address: int = 0
    step: int = 0
    tier: int = -1
    kind: int = -1
    write: int = 0
    start_fs: int = -1
    export: int = -1
    deps: tuple[tuple[int, Dep, bool], ...] = ()

    @property
    def opcode(self) -> Opcode:
        if self.form == Form.HOLD:
            return Opcode.COMPUTE
        return Opcode.STORE if self.write else Opcode.LOAD

    def after(self, *preds: int, dep: Dep = Dep.RAW) -> Draft:
        """The same instruction with edges to earlier ones of its body."""
        return replace(self, deps=self.deps + tuple((p, dep, False) for p in preds))

    def after_slot(self, slot: int, dep: Dep = Dep.WAR) -> Draft:
        """The same instruction with an edge to a slot of the block before."""
        return replace(self, deps=(*self.deps, (slot, dep, True)))


def hold(engine: int, fs: int, cause: str = "matrix", latency: int = 0, **more: int) -> Draft:
    return Draft(engine, Form.HOLD, hold_fs=fs, latency_fs=latency, cause=CAUSES.index(cause), **more)


def load(engine: int, nbytes: int, tier: str = "hbm", kind: str = "weight", **more: int) -> Draft:
    return Draft(engine, Form.TRANSFER, nbytes=nbytes, tier=TIERS.index(tier), kind=KINDS.index(kind), **more)


def body_of(name: str, rows: list[Draft]) -> Body:
    columns = {f: ints([getattr(row, f) for row in rows]) for f in PER_INSTRUCTION}
    edges = [dep for row in rows for dep in row.deps]
    ptr = [0]
    for row in rows:
        ptr.append(ptr[-1] + len(row.deps))
    return Body(
        name,
        **columns,
        dep_ptr=ints(ptr),
        dep_pred=ints([e[0] for e in edges]),
        dep_type=ints([e[1] for e in edges]),
        dep_slot=ints([e[2] for e in edges]),
    )


def build(
    engines: list[EngineRow],
    bodies: list[list[Draft]],
    segments: list[Segment] | None = None,
    stations: list[StationRow] | None = None,
    routes: list[RouteRow] | None = None,
    drams: Drams = NO_DRAMS,
) -> TileProgram:
    """The program; without segments every body runs once."""
    stations, routes = stations or [StationRow()], routes or [RouteRow(64, ((0, 500, "latency:hbm"),))]
    hops = [hop for r in routes for hop in r.hops]
    ptr = [0]
    for r in routes:
        ptr.append(ptr[-1] + len(r.hops))
    return TileProgram(
        causes=CAUSES,
        tiers=TIERS,
        kinds=KINDS,
        engines=Engines(
            name=tuple(f"{e.kind}{i}" for i, e in enumerate(engines)),
            kind=tuple(e.kind for e in engines),
            period_fs=ints([e.period for e in engines]),
            window_bytes=ints([e.window for e in engines]),
            port_num=ints([e.port[0] for e in engines]),
            port_den=ints([e.port[1] for e in engines]),
            port_cause=ints([CAUSES.index(e.port_cause) for e in engines]),
        ),
        stations=Stations(
            name=tuple(f"station{i}" for i in range(len(stations))),
            lanes=ints([s.lanes for s in stations]),
            interleave=ints([s.interleave for s in stations]),
            num=ints([s.rate[0] for s in stations]),
            den=ints([s.rate[1] for s in stations]),
            cause=ints([CAUSES.index(s.cause) for s in stations]),
            dram=ints([s.dram for s in stations]),
            lost_cause=ints([CAUSES.index(f"{LOST[0]}:hbm") for _ in stations]),
        ),
        routes=Routes(
            name=tuple(f"route{i}" for i in range(len(routes))),
            chunk_bytes=ints([r.chunk for r in routes]),
            ptr=ints(ptr),
            station=ints([h[0] for h in hops]),
            latency_fs=ints([h[1] for h in hops]),
            latency_cause=ints([CAUSES.index(h[2]) for h in hops]),
        ),
        ops=OPS,
        bodies=tuple(body_of(f"body{i}", rows) for i, rows in enumerate(bodies)),
        segments=tuple(segments or [Segment(body=i, repeat=1) for i in range(len(bodies))]),
        info=Info(chip="test"),
        drams=drams,
    )


def with_column(program: TileProgram, body: int, column: str, values: list[int]) -> TileProgram:
    """The program with one column of one body replaced."""
    bodies = list(program.bodies)
    bodies[body] = dataclasses.replace(bodies[body], **{column: ints(values)})
    return dataclasses.replace(program, bodies=tuple(bodies))
