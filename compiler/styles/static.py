"""LPU style: one schedule for the whole chip. Weights stream from SRAM into the planes of the matrix unit, results pass on to the vector unit.

What a group makes goes straight to the group behind it, as streams from unit to unit; it is written to SRAM only where something else reads it.
Weights run ahead of the planes by their buffers. Instructions are emitted with edges and no starts; starts.py fixes those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...workloads import DTYPE_BITS
from ..collectives import rounds
from ..emit import Emitter
from ..machine import LAUNCH, LINK, MATRIX, VECTOR, EngineRow, nearest_buffer, port_of
from ..plan import Gemm, Group, Plan, PlanOp, gemms
from ..program import Dep, Ints, Opcode, ints
from ..tile import MIN_TOKENS, latency_fs, matrix_dtype, matrix_fs, shares, vector_fs
from .starts import fix_starts

if TYPE_CHECKING:
    from ..schedule import Block

__all__ = ["emit", "engines", "fix_starts", "whole_transfers"]

NOTHING = ints([])
REMEMBERED = 64  # products of each plane that later weights may wait for: more than any number of buffers
PIECES = (4, 2, 1)  # transfers of one tile's weights


def planes_of(plan: Plan) -> int:
    """Planes of the whole chip."""
    return int(plan.chip.cores.value) * int(plan.chip.matrix.count.value)


def engines(plan: Plan) -> list[EngineRow]:
    """A plane and its stream of weights, as often as the chip has planes; a vector unit, activations in and out, the links."""
    chip, planes = plan.chip, planes_of(plan)
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    rows = [EngineRow("launcher", "launcher")] if chip.execution.launch_gap.value else []
    rows += [EngineRow(f"mxm{i}", "matrix") for i in range(planes)]
    rows += [EngineRow(f"stream{i}", "load", 0, port_of(chip.load, planes), buffer) for i in range(planes)]
    rows += [EngineRow("read", "load", 0, port_of(chip.load, planes), buffer), EngineRow("vxm", "vector")]
    rows += [EngineRow("write", "store", 0, port_of(chip.store), buffer)]
    if chip.link is not None:
        rows.append(EngineRow("c2c", "network", port_cause=LINK))
    return rows


def whole_transfers(plan: Plan) -> int:
    """A chunk size, a power of two, that no transfer of the plan exceeds: so each claims its lanes once."""
    most = 1
    for stage in plan.stages:
        for unit in stage.units:
            made = sum(plan.size(t) for g in unit.groups for t in g.produced)
            most = max(most, made * (plan.tp + 1), *(max([0, *g.reads.values()]) for g in unit.groups))
    return 1 << most.bit_length()


@dataclass(frozen=True)
class Made:
    """A tensor on its way from the unit that makes it: `who` makes columns up to `ends` (of `ends[-1]`), part by part.

    `early`: what the first part waits for; its results come no sooner than a memory access later. None: the block's begin.
    """

    who: tuple[Ints, ...]
    ends: tuple[int, ...] = (1,)
    early: Ints | None = None

    def parts(self) -> Iterator[tuple[Ints, int, int]]:
        """Who makes the columns from where to where."""
        yield from zip(self.who, [0, *self.ends[:-1]], self.ends, strict=True)

    @property
    def all(self) -> Ints:
        """Everything that makes it."""
        return np.concatenate(self.who)


@dataclass(frozen=True)
class _Tiles:
    """Tiles of weights (or of a cache) in the order in which they stream. One entry per tile.

    A tile needs the activation's columns from `begin` to `end` of `of`; where `last`, its plane has then summed a column of results.
    """

    plane: Ints
    nbytes: Ints
    hold_fs: Ints
    begin: Ints
    end: Ints
    of: int
    last: Ints
    tensor: str
    offset: int = 0


class _Lpu:
    """One block in the making: where its tensors are, and what each plane did last."""

    def __init__(self, block: Block, em: Emitter) -> None:
        self.block, self.em, self.plan = block, em, block.plan
        self.chip, self.planes = self.plan.chip, planes_of(self.plan)
        number = em.machine.engine
        self.mxm, self.stream, self.vxm, self.read_engine = (number(x) for x in ("mxm0", "stream0", "vxm", "read"))
        self.units = int(self.chip.cores.value) * int(self.chip.vector.count.value)
        self.products: list[list[int]] = [[] for _ in range(self.planes)]
        self.made: dict[str, tuple[int, Made]] = {}
        self.memory: dict[str, Ints] = {}
        self.leaves: list[Ints] = []
        self.last = NOTHING
        self.index = 0
        self.launch: Ints | None = None
        gap = self.em.machine.cycles_fs(float(self.chip.execution.launch_gap.value) / self.chip.period_fs)
        if gap:
            self.em.op = self.em.number_op(block.unit.groups[0])
            self.launch = self.em.hold(number("launcher"), gap, LAUNCH, opcode=Opcode.LAUNCH)
            self.em.after_slot(self.launch, 0, Dep.ORDER)

    def after(self, to: Ints, pred: Ints | None, kind: Dep = Dep.RAW) -> None:
        """Every one of `to` waits for all of `pred`; without any, for the block's begin."""
        if pred is not None and len(pred):
            self.em.after(np.tile(to, len(pred)), np.repeat(pred, len(to)), kind)
        elif self.launch is not None:
            self.em.after(to, self.launch, kind)
        else:
            self.em.after_slot(to, 0, kind)

    def way(self, tensor: str, store: bool = False) -> tuple[str, str, str]:
        """Route, tier and kind of a tensor."""
        tier = self.block.home(tensor)
        return f"{'store' if store else 'load'}:{tier}", tier, self.plan.kind(tensor)

    def read(self, tensor: str, nbytes: int, pred: Ints | None = None) -> Ints:
        """A tensor, or a part of one, from memory to the units, once `pred` is done."""
        step = self.block.step.get(tensor, 0)
        out = self.em.move(self.read_engine, nbytes, [self.way(tensor)], self.plan.address.get(tensor, 0), step)
        self.after(out, pred)
        return out

    def fresh(self, tensor: str) -> Made | None:
        """A tensor that the group before has just made."""
        born, made = self.made.get(tensor, (-1, None))
        return made if born >= self.index - 1 else None

    def need(self, tensor: str) -> Made:
        """An activation: as it comes from the group before, or from memory."""
        fresh = self.fresh(tensor)
        if fresh is not None:
            return fresh
        before = self.memory.get(tensor)
        return Made((self.read(tensor, self.plan.size(tensor), before),), early=before)

    def takes(self, ops: int, special: int) -> int:
        """Time of work of the vector unit, in fs."""
        return int(vector_fs(self.chip, ops, special, self.units)[0])

    def compute(self, ops: int, special: int, pred: Ints) -> Ints:
        """Work of the vector unit."""
        out = self.em.hold(self.vxm, self.takes(ops, special), VECTOR, latency_fs(self.chip, VECTOR))
        self.after(out, pred)
        return out

    def vector_made(self, work: list[Ints], ends: list[int], pred: Ints, longest_fs: int) -> Made:
        """What the vector unit made. Where it works no longer than a memory access, weights may be under way when it begins."""
        access = min(int(t.latency.value) for t in self.chip.tiers_for("weight"))
        soon = longest_fs + latency_fs(self.chip, VECTOR) <= access
        return Made(tuple(work), tuple(ends), pred if soon else work[0])

    def keep(self, group: Group, tensor: str, made: Made) -> None:
        """Pass a result on; write it where someone other than the next group reads it, or nobody (a result of the whole)."""
        self.made[tensor] = self.index, made
        self.last = made.all
        groups = self.block.unit.groups
        behind = {o.name for o in groups[self.index + 1].ops} if self.index + 1 < len(groups) else set()
        inside = {o.name for o in group.ops}
        readers = [r for r in self.plan.graph.successors(tensor) if r not in inside]
        if readers and all(r in behind for r in readers):
            return
        step = self.block.step.get(tensor, 0)
        nbytes = max(group.scaled(self.plan.size(tensor)), 1)
        out = self.em.move(self.em.machine.engine("write"), nbytes, [self.way(tensor, True)], self.plan.address.get(tensor, 0), step)
        self.after(out, made.all)
        self.memory[tensor] = out
        self.leaves.append(out)

    def results(self, group: Group) -> list[str]:
        """Tensors that leave a group: read outside, or by nobody."""
        inside = {o.name for o in group.ops}
        out = [t for op in group.ops for t in op.outputs.values()]
        return [t for t in out if not (r := list(self.plan.graph.successors(t))) or any(x not in inside for x in r)]


def emit(block: Block, em: Emitter) -> None:
    """All groups of one unit, in order; then what the next stage needs is sent; the block is over when all is done."""
    s = _Lpu(block, em)
    for i, group in enumerate(block.unit.groups):
        em.op, em.group, s.index = em.number_op(group), i, i
        GROUPS.get(group.kind, _vector)(s, group)
    if block.send_bytes:
        em.op, em.group = em.number_op("send to next stage"), len(block.unit.groups)
        sent = em.send(em.machine.engine("c2c"), block.send_bytes)
        s.after(sent, s.last)
        s.leaves.append(sent)
    end = em.hold(s.vxm, 0, VECTOR, opcode=Opcode.BARRIER)
    s.after(end, np.concatenate([*s.leaves, s.last]))
    em.export(end, 0)


def _stream(s: _Lpu, t: _Tiles, x: Made) -> Ints:
    """Loads and products of tiles, plane by plane; returns, for each tile that is the last of its column, when the sum comes out."""
    em, n = s.em, len(t.plane)
    pieces, ahead = _pace(s, t)
    nbytes = np.maximum(np.stack([shares(b, pieces) for b in t.nbytes]).ravel(), 1)
    at = s.plan.address.get(t.tensor, 0) + t.offset + np.concatenate([[0], np.cumsum(nbytes)[:-1]])
    first = em.count
    loads = em.move(
        s.stream + np.repeat(t.plane, pieces), nbytes, [s.way(t.tensor)] * len(nbytes), at, s.block.step.get(t.tensor, 0)
    ).reshape(n, pieces)
    products = em.hold(s.mxm + t.plane, t.hold_fs, MATRIX, n=n)
    out = np.flatnonzero(t.last)
    # A plane is free for its next tile when a product has been issued; the sum takes the unit's latency to come out.
    drains = em.hold(s.mxm + t.plane[out], 0, MATRIX, latency_fs(s.chip, MATRIX), n=len(out))
    em.after(products, loads[:, -1], Dep.RAW)
    em.after(drains, products[out], Dep.RAW)
    for who, lo, hi in x.parts():
        needs = np.flatnonzero((t.begin * x.ends[-1] < hi * t.of) & (t.end * x.ends[-1] > lo * t.of))
        _, one = np.unique(t.plane[needs], return_index=True)
        if len(one):
            s.after(products[needs[one]], who)
    for plane in range(s.planes):
        _buffers(s, plane, loads[t.plane == plane, 0], products[t.plane == plane], ahead, x.early)
    key = 3 * np.arange(n)
    em.sort(first, np.concatenate([np.repeat(key, pieces), key + 1, key[out] + 2]))
    return drains


def _pace(s: _Lpu, t: _Tiles) -> tuple[int, int]:
    """Transfers per tile, and how many tiles a load is ahead of the product that frees its buffer.

    A transfer is there at once when its lane has served it, so a tile comes in pieces, each behind the port time of those before: as many
    as the lanes serve without idle cycles. The weights on their way are in no buffer yet: with an access as long as several tiles, so many more are under way.
    """
    tier, period = s.chip.tier(s.block.home(t.tensor)), s.chip.period_fs
    most = int(t.nbytes.max())
    rate = port_of(s.chip.load, s.planes)
    port = most * period / float(rate) if rate else 0.0

    def served(n: int) -> int:
        return -(-round(most / n / float(tier.bandwidth.value) * 1e15) // period) * period

    fits = [n for n in PIECES if n <= int(t.nbytes.min()) and n * s.planes * served(n) <= port]
    pieces = fits[0] if fits else 1
    tile = max(port, s.planes * pieces * served(pieces))
    way = port * (pieces - 1) / pieces + served(pieces) + int(tier.latency.value) + int(t.hold_fs.max()) + period
    return pieces, max(s.chip.matrix.weight_buffers, -int(-way // tile))


def _buffers(s: _Lpu, plane: int, loads: Ints, products: Ints, ahead: int, early: Ints | None) -> None:
    """WAR edges of a plane's loads. Those beyond its buffers must not arrive before the first product can start: they leave when the activation is a memory access away."""
    before = s.products[plane]
    known = ints([*before, *products])
    place = np.arange(len(loads)) + len(before) - ahead
    held = np.arange(len(loads)) >= s.chip.matrix.weight_buffers
    waits_x = held & (place < len(before))
    waits = ~waits_x & (place >= 0)
    s.em.after(loads[waits], known[place[waits]], Dep.WAR)
    if waits_x.any():
        s.after(loads[waits_x], early, Dep.WAR)
    rest = ~waits_x & ~waits
    if rest.any():
        s.after(loads[rest], None, Dep.WAR)
    s.products[plane] = known[-REMEMBERED:].tolist()


def _linear(s: _Lpu, group: Group) -> None:
    """Products of one activation: column tiles over the planes, the sum in order; columns that do not fill all planes are cut along the sum."""
    parts = gemms(group)
    if len(parts) > 1 and all(p.op.op == "linear" and p.k == parts[0].k for p in parts):
        parts = [Gemm(parts[0].op, parts[0].m, sum(p.n for p in parts), parts[0].k, 1, sum(p.nbytes for p in parts))]
    ops, special = (group.scaled(sum(getattr(o.cost, a) for o in group.ops)) for a in ("vector_ops", "special_ops"))
    bias = [s.read(t, max(group.scaled(o.cost.reads[t]), 1)) for o in group.ops for r, t in o.inputs.items() if r == "bias"]
    work: list[Ints] = []
    ends: list[int] = []
    early: Ints = NOTHING
    longest = 0
    n = sum(g.n * g.count for g in parts)
    for g in parts:
        x = s.need(next(t for r, t in g.op.inputs.items() if r in ("x", "a")))
        tiles, column, width = _gemm_tiles(s, g)
        drains = _stream(s, tiles, x)
        done = column[np.flatnonzero(tiles.last)]
        full = len(width) // s.planes * s.planes
        for first in range(0, len(width), s.planes):
            mine = (done >= first) & (done < first + s.planes)
            columns = int(width[first : first + s.planes].sum())
            share = [v * (sum(ends[-1:]) + columns) // n - v * sum(ends[-1:]) // n for v in (ops, special)]
            if first >= full:  # partial sums of a few columns, from all planes
                share[0] += g.m * int(width[done[mine]].sum() - width[first:].sum())
            tail = drains[mine]
            if any(share):
                longest = max(longest, s.takes(*share))
                tail = s.compute(*share, np.concatenate([tail, *(bias if not work else [])]))
            early = drains[mine] if not work else early
            work.append(tail)
            ends.append(sum(ends[-1:]) + columns)
    made = s.vector_made(work, ends, early, longest)
    out = s.results(group)
    for tensor in out:
        s.keep(group, tensor, made if len(out) == 1 and len(parts) == 1 else Made((made.all,), early=made.early))


def _gemm_tiles(s: _Lpu, g: Gemm) -> tuple[_Tiles, Ints, Ints]:
    """Tiles in streaming order, the column tile of each, and the widths of column tiles."""
    chip, plan = s.chip, s.plan
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    rows, cols = _array(s)
    n = g.n * g.count
    width, depth = shares(n, -(-n // cols)), shares(g.k, -(-g.k // rows))
    columns, sums = len(width), len(depth)
    full = columns // s.planes * s.planes
    # Full rounds: [round, sum, plane]. The rest: [column, sum], dealt out to the planes.
    column = np.arange(full).reshape(-1, 1, s.planes).repeat(sums, axis=1).ravel()
    part = np.tile(np.repeat(np.arange(sums), s.planes), full // s.planes)
    column = np.concatenate([column, np.repeat(np.arange(full, columns), sums)])
    part = np.concatenate([part, np.tile(np.arange(sums), columns - full)])
    plane = np.where(column < full, column, np.arange(len(column)) - full * sums) % s.planes
    area = np.concatenate([[0], np.cumsum(width[column] * depth[part])])
    edges = area * DTYPE_BITS[plan.dtype(weight)] // 8
    edges[-1] = g.nbytes
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    hold = matrix_fs(chip, dtype, g.m, width[column], depth[part])
    upto = np.cumsum(depth)
    _, final = np.unique((column * s.planes + plane)[::-1], return_index=True)
    last = np.zeros(len(column), np.int64)
    last[len(column) - 1 - final] = 1
    return _Tiles(plane, np.diff(edges), hold, (upto - depth)[part], upto[part], g.k, last, weight), column, width


def _array(s: _Lpu) -> tuple[int, int]:
    """Rows and columns of a plane's weights."""
    array, g = s.chip.matrix.array, s.chip.matrix.granule
    return (array.rows, array.cols) if array is not None else (g.k, g.n)


def _attention(s: _Lpu, group: Group) -> None:
    """Rotary positions and the append, then for every sequence and KV head: scores, softmax, values. The next pair's scores come before a pair's values."""
    op = next(o for o in group.ops if o.op == "attention")
    c = op.cost
    new = _append(s, group)
    inputs = [s.need(op.inputs[r]) for r in ("q", "k", "v") if op.inputs[r] not in group.produced]
    pairs = c.batch_gemms // 2
    x = Made((np.concatenate([new.all, *(i.all for i in inputs)]),), early=new.early)
    ops, special = shares(c.vector_ops, pairs), shares(c.special_ops, pairs)
    scores: list[Ints] = []
    work: list[Ints] = []
    early = NOTHING
    for i in range(pairs + 1):
        if i < pairs:
            scores.append(_stream(s, _cache_tiles(s, op, "k_cache", i, pairs), x))
        if i:
            soft = s.compute(int(ops[i - 1]), int(special[i - 1]), scores[i - 1])
            longest = s.takes(ops[i - 1], special[i - 1])
            summed = _stream(s, _cache_tiles(s, op, "v_cache", i - 1, pairs), s.vector_made([soft], [1], scores[i - 1], longest))
            work.append(s.compute(c.m * c.k * len(summed), 0, summed))
            early = summed if i == 1 else early
    made = s.vector_made(work, list(range(1, pairs + 1)), early, s.takes(c.m * c.k * s.planes, 0))
    alone = s.plan.graph.graph["batch"] == 1  # then a pair's results are neighbouring columns
    for tensor in s.results(group):
        if tensor in op.outputs.values():
            s.keep(group, tensor, made if alone else Made((made.all,), early=made.early))
    s.last = made.all


def _append(s: _Lpu, group: Group) -> Made:
    """Rotary positions of the new token; its K and V to the cache. What the attention then has."""
    ops = [o for o in group.ops if o.op in ("rope", "kv_append")]
    new = [t for t in dict.fromkeys(t for o in ops for t in o.inputs.values()) if t not in group.produced]
    sources = [s.need(t) for t in new]
    have = np.concatenate([NOTHING, *(m.all for m in sources)])
    work = sum(o.cost.vector_ops for o in ops)
    early = sources[0].early if sources else None
    made = Made((have,), early=early)
    if work:
        longest = s.takes(work, 0)
        made = s.vector_made([s.compute(work, 0, have)], [1], have, longest)
    for op in ops:
        if op.op == "kv_append":
            for tensor in op.outputs.values():
                s.keep(group, tensor, made)
    return made


def _cache_tiles(s: _Lpu, op: PlanOp, role: str, pair: int, pairs: int) -> _Tiles:
    """The K or V tiles of one sequence and KV head, tokens shared out over the planes."""
    c, cache = op.cost, op.inputs[role]
    rows, cols = _array(s)
    tokens = c.n - 1
    most = max(1, (cols if role == "k_cache" else rows) // -(-c.k // (rows if role == "k_cache" else cols)))
    count = -(-tokens // most)
    count = max(count, min(-(-count // s.planes) * s.planes, tokens // MIN_TOKENS))
    edges = np.arange(pair * count, (pair + 1) * count + 1) * c.reads[cache] // (pairs * count)
    keys = shares(c.n, count)
    dtype = matrix_dtype(s.chip, s.plan.dtype(cache), s.plan.dtype(op.inputs["q"]))
    hold = matrix_fs(s.chip, dtype, c.m, keys, c.k) if role == "k_cache" else matrix_fs(s.chip, dtype, c.m, c.k, keys)
    at = np.arange(count)
    last = np.ones(count, np.int64) if role == "k_cache" else (at >= count - s.planes).astype(np.int64)
    plane = (at + pair * count) % s.planes
    return _Tiles(plane, np.diff(edges), hold, np.zeros(count, np.int64), np.ones(count, np.int64), 1, last, cache, int(edges[0]))


def _vector(s: _Lpu, group: Group) -> None:
    """Norms, lookups, elementwise: what comes meets what is in memory. Of a table cut by rows only the first part reads the row."""
    pred: list[Ints] = []
    early: Ints | None = None
    for tensor, nbytes in group.reads.items():
        if s.plan.kind(tensor) != "activation":
            if nbytes and not group.part[0]:
                pred.append(s.read(tensor, nbytes))
            continue
        made = s.need(tensor)
        pred.append(made.all)
    ops, special = (group.scaled(sum(getattr(o.cost, a) for o in group.ops)) for a in ("vector_ops", "special_ops"))
    if not pred:
        return
    have = np.concatenate(pred)
    out = Made((have,), early=early)
    if ops or special:
        out = s.vector_made([s.compute(ops, special, have)], [1], have, s.takes(ops, special))
    for tensor in s.results(group):
        s.keep(group, tensor, out)


def _collective(s: _Lpu, group: Group) -> None:
    """Rounds of sends, part by part as the results come: what is ready goes out while the planes work on the next columns.

    What comes lies in memory, and is read and summed where the round says so.
    """
    op = group.ops[0]
    source, tensor = next(iter(op.inputs.values())), next(iter(op.outputs.values()))
    link, size, bits = s.chip.link, s.plan.size(tensor), DTYPE_BITS.get(s.plan.dtype(tensor), 16)
    assert link is not None
    made = s.fresh(source) or Made((s.memory.get(source, NOTHING),))
    schedule = rounds(group.kind, size, s.plan.tp, link)
    work: list[Ints] = []
    early: Ints | None = None
    longest = 0
    for who, lo, hi in made.parts():
        before = who
        for r in schedule:
            send, ops_bytes = (max(n * hi // made.ends[-1] - n * lo // made.ends[-1], 1) for n in (r.send, r.reduce))
            came = s.em.send(s.em.machine.engine("c2c"), send)
            s.after(came, before)
            before = came
            if r.reduce:
                came = s.read(tensor, ops_bytes, came)
                before = s.compute(ops_bytes * 8 // bits, 0, came)
                longest = max(longest, s.takes(ops_bytes * 8 // bits, 0))
        early = came if early is None else early
        work.append(before)
    if schedule[-1].reduce:
        assert early is not None
        s.keep(group, tensor, s.vector_made(work, list(made.ends), early, longest))
    else:
        s.memory[tensor] = s.last = np.concatenate(work)
        s.leaves.append(s.last)


GROUPS: dict[str, Callable[[_Lpu, Group], None]] = {
    "linear": _linear,
    "matmul": _linear,
    "attention": _attention,
    "all_reduce": _collective,
    "all_gather": _collective,
}
