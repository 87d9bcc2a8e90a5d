"""From a TileProgram to the arrays of the kernel, and the checks that keep it inside them."""

import numpy as np

from ..compiler.program import DRAM_PARAMS, TIME_LIMIT, Body, Form, Ints, TileProgram, ints
from ..errors import StallscopeError
from . import columns as k


class ProgramError(StallscopeError):
    """A TileProgram that the machine cannot run: which part, and why."""


def lay_out(program: TileProgram) -> k.Prog:
    """The program in the kernel's form. Raises ProgramError if its sums could pass 2^62 or its parts do not fit."""
    bodies = program.bodies
    counts = [len(b) for b in bodies]
    body_ptr = ints(np.concatenate([[0], np.cumsum(counts)]))
    engines = len(program.engines.name)
    slots = 1 + max((int(b.export.max(initial=-1)) for b in bodies), default=-1)
    slots = max(slots, 1 + max((int(b.dep_pred[b.dep_slot == 1].max(initial=-1)) for b in bodies), default=-1), 1)
    groups = 1 + max((int(b.group.max(initial=0)) for b in bodies), default=0)

    which = np.concatenate([np.full(n, i) for i, n in enumerate(counts)]) if bodies else np.zeros(0, int)
    local = np.arange(body_ptr[-1]) - body_ptr[which]
    instr = _instructions(program)
    queue, queue_ptr = _grouped(which * engines + instr[:, k.N_ENGINE], local, len(bodies) * engines)

    dep_ptr, deps, owner = _edges(bodies, body_ptr)
    inside = deps[:, 2] == 0
    edge = np.arange(len(deps))
    body_of = which[owner] if len(owner) else owner
    near = np.stack([local[owner], edge], axis=1) if len(edge) else np.zeros((0, 2))
    succ, succ_ptr = _grouped((body_ptr[body_of] + deps[:, 0])[inside], near[inside], int(body_ptr[-1]))
    imports, import_ptr = _grouped((body_of * slots + deps[:, 0])[~inside], near[~inside], len(bodies) * slots)
    exporter = np.full(len(bodies) * slots, -1)
    out = instr[:, k.N_EXPORT] >= 0
    exporter[(which * slots + instr[:, k.N_EXPORT])[out]] = local[out]

    e, s, r = program.engines, program.stations, program.routes
    last = np.full(engines, -1)
    for i, segment in enumerate(program.segments):
        last[program.bodies[segment.body].engine] = i
    first_lane = np.concatenate([[0], np.cumsum(s.lanes)[:-1]]) if len(s.name) else np.zeros(0)
    first_lane = ints(first_lane)
    chunks = (
        -(-instr[:, k.N_BYTES] // np.maximum(r.chunk_bytes[instr[:, k.N_ROUTE]], 1)) if len(r.name) else np.zeros(1)
    )
    prog = k.Prog(
        engines=ints(np.stack([e.period_fs, e.window_bytes, e.port_num, e.port_den, e.port_cause, last], axis=1)),
        hops=ints(np.stack(
            [*(x[r.station] for x in (first_lane, s.lanes, s.interleave, s.num, s.den, s.cause)),
             r.latency_fs, r.latency_cause, np.where(s.dram >= 0, np.cumsum(s.dram >= 0) - 1, -1)[r.station]],
            axis=1)),
        routes=ints(np.stack([r.chunk_bytes, r.ptr[:-1], np.diff(r.ptr)], axis=1)),
        instr=instr, body_ptr=body_ptr, queue_ptr=queue_ptr, queue=queue,
        dep_ptr=dep_ptr, deps=deps, succ_ptr=succ_ptr, succ=succ,
        import_ptr=import_ptr, imports=imports, exporter=ints(exporter),
        group_op=_group_ops(bodies, groups),
        segments=ints([[x.body, x.repeat, x.static, x.length_fs] for x in program.segments]).reshape(-1, 4),
        sizes=ints([engines, len(program.causes), slots, groups, max(int(chunks.max(initial=1)), 1)]),
    )  # fmt: skip
    _check_sums(program, prog)
    return prog


def _group_ops(bodies: tuple[Body, ...], groups: int) -> Ints:
    """[body * groups + group]: op of the group's first instruction."""
    out = np.zeros((len(bodies), groups))
    for i, body in enumerate(bodies):
        out[i, body.group[::-1]] = body.op[::-1]
    return ints(out.ravel())


def _instructions(program: TileProgram) -> Ints:
    kinds = len(program.kinds)

    def columns(b: Body) -> Ints:
        counter = np.where(b.tier >= 0, (b.tier * kinds + b.kind) * 2 + b.write, -1)
        return ints(np.stack(
            [b.engine, b.form, b.group, b.hold_fs, b.latency_fs, b.cause, b.nbytes, b.route, b.address, b.step,
             counter, b.start_fs, b.export, b.op, b.write], axis=1))  # fmt: skip

    return ints(np.concatenate([columns(b) for b in program.bodies])) if program.bodies else ints(np.zeros((0, 15)))


def _edges(bodies: tuple[Body, ...], body_ptr: Ints) -> tuple[Ints, Ints, Ints]:
    per = np.concatenate([np.diff(b.dep_ptr) for b in bodies]) if bodies else np.zeros(0, int)
    deps = [np.stack([b.dep_pred, b.dep_type, b.dep_slot], axis=1) for b in bodies]
    owner = np.repeat(np.arange(body_ptr[-1]), per)
    return (
        ints(np.concatenate([[0], np.cumsum(per)])),
        ints(np.concatenate(deps) if deps else np.zeros((0, 3))),
        ints(owner),
    )


def _grouped(key: Ints, rows: Ints, groups: int) -> tuple[Ints, Ints]:
    """Rows sorted by key (stable), and the CSR pointer of each key in 0..groups-1."""
    order = np.argsort(key, kind="stable")
    return ints(rows[order]), ints(np.concatenate([[0], np.cumsum(np.bincount(key, minlength=groups))]))


def _check_sums(program: TileProgram, prog: k.Prog) -> None:
    """An upper bound of all time is under 2^62, and keys fit their fields."""
    hops = int(np.diff(program.routes.ptr).max(initial=0))
    if hops >= 15 or len(program.engines.name) >= 2**18:
        raise ProgramError(
            f"program for {program.info.chip}: at most 14 hops a route and 262,143 engines, "
            f"found {hops} and {len(program.engines.name)}"
        )
    _check_products(program)
    _check_drams(program)
    total = 0
    for segment in program.segments:
        total += segment.repeat * (_longest(program, program.bodies[segment.body]) + segment.length_fs)
    if total >= TIME_LIMIT:
        raise ProgramError(
            f"program for {program.info.chip}: its times could sum to {total / 1e15:.3g} s, "
            f"and int64 femtoseconds end at "
            f"{TIME_LIMIT / 1e15:.0f} s: check the units of bandwidths, latencies and sizes"
        )


def _check_drams(program: TileProgram) -> None:
    """What is known of a DRAM lane must come before its chunks go on; and it keeps to no schedule."""
    r, s, d = program.routes, program.stations, program.drams
    if not d.name:
        return
    if any(x.static for x in program.segments):
        raise ProgramError(
            f"program for {program.info.chip}: has DRAM lanes and static segments; expected one of the two"
        )
    of = s.dram[r.station]
    tick = d.params[np.maximum(of, 0), DRAM_PARAMS.index("tick_fs")]
    short = np.flatnonzero((of >= 0) & (r.latency_fs < tick))
    if len(short):
        name = s.name[r.station[short[0]]]
        raise ProgramError(
            f"program for {program.info.chip}: {r.latency_fs[short[0]]} fs behind the DRAM lanes of {name}; "
            f"expected one tick ({tick[short[0]]} fs) or more"
        )


def _check_products(program: TileProgram) -> None:
    """Bytes of a chunk times the numerator of a rate stay inside int64, wherever a chunk goes."""
    e, s, r = program.engines, program.stations, program.routes
    for body in program.bodies:
        moves = body.form == Form.TRANSFER
        for route in np.unique(body.route[moves]):
            mine = moves & (body.route == route)
            chunk = min(int(r.chunk_bytes[route]), int(body.nbytes[mine].max()))
            way = r.station[r.ptr[route] : r.ptr[route + 1]]
            rates = [(s.name[x], int(s.num[x])) for x in way]
            rates += [(e.name[x], int(e.port_num[x])) for x in np.unique(body.engine[mine])]
            for name, num in rates:
                if chunk * num >= TIME_LIMIT:
                    raise ProgramError(
                        f"program for {program.info.chip}: a chunk of {chunk} bytes at {name} takes {num} parts of a "
                        "femtosecond per byte, beyond int64 femtoseconds: check the units, use smaller chunks, or a "
                        "rate with fewer digits"
                    )


def _longest(program: TileProgram, b: Body) -> int:
    """Time of a body if nothing overlapped, in Python integers."""
    total = int(b.hold_fs.sum(dtype=object)) + int(b.latency_fs.sum(dtype=object))
    total += int(program.engines.period_fs[b.engine].sum(dtype=object))
    move = b.form == Form.TRANSFER
    r, s, e = program.routes, program.stations, program.engines
    for route in np.unique(b.route[move]):
        mine = move & (b.route == route)
        size = int(b.nbytes[mine].sum(dtype=object))
        chunks = int((-(-b.nbytes[mine] // r.chunk_bytes[route])).sum(dtype=object))
        for h in range(int(r.ptr[route]), int(r.ptr[route + 1])):
            at = int(r.station[h])
            total += size * int(s.num[at]) // int(s.den[at]) + chunks * (1 + int(r.latency_fs[h]))
        slowest = max(
            (int(e.port_num[x]) / int(e.port_den[x]) for x in np.unique(b.engine[mine]) if e.port_num[x]), default=0
        )
        total += int(size * slowest) + chunks
    return total
