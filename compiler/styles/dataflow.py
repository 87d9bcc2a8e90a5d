"""RDU style: a block is a section laid out in space. Its groups run at once, each on its own share of the cores, tile by tile.

Tiles of weights, caches and tables stream from the memories ahead of use, across the borders of ops and sections, as far as the
on-chip buffers go. What passes from group to group is a stream between cores: it is no memory traffic, and only what is loaded,
stored and sent is counted as bytes.

**Buffers.** Every tile takes one of `slots` buffers of `tile` bytes, from its load until its compute is done. Tiles are numbered in the order
of use, over all blocks. The load of tile i of a block waits (WAR) for
* the compute of the tile `slots` before it, where that is in the same block or in the block before. A block exports its tiles' computes, counted from its
  end: the last under slot `ENTRY + 1`, the one before under `ENTRY + 2`, and so on; a slot that the block before does not export is no edge;
* the entry of the block before, which waits for all results of the block before that one. So where the tile `slots` before lies further back than one block, it has been used.
Either way at most `slots` tiles are loaded or on their way and not yet used: never more than the buffers hold, whatever blocks follow each other.

**Pieces.** A product cut by columns gives its result in pieces, attention gives its heads. A product that reads such a result is cut along its sum
instead, and each tile waits for the piece that covers it. All else waits for the last piece.

**Time.** Engines have no common clock edge: a tile starts when its data is there, and then takes whole cycles. (A stream that never pauses would
drift against the edges, and no two layers would be equal.) The launch of a section is in sight where its results wait for it; its loads do not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import lcm
from typing import TYPE_CHECKING, Any

import numpy as np

from ...workloads import DTYPE_BITS
from ..collectives import rounds
from ..emit import Emitter
from ..fuse import ELEMENTWISE
from ..machine import LAUNCH, LINK, MATRIX, VECTOR, EngineRow, nearest_buffer, port_of, window_of
from ..plan import Group, Plan, PlanOp, gemms
from ..program import Dep, Ints, Opcode, ints
from ..tile import latency_fs, matrix_dtype, matrix_fs, shares, vector_fs

if TYPE_CHECKING:
    from ..schedule import Block

TILE = 1 << 20  # bytes of a tile where there is room: large beside latency x bandwidth / window, small beside a layer
SMALLEST_TILE = 1 << 14
WANTED_SLOTS = 8  # smaller tiles rather than fewer buffers
MOST_SLOTS = 4096  # more than two blocks of any model in tiles; keeps the table of exports small
SIDE = Fraction(1, 16)  # share of the cores of a group without matrix work
HANDOVER, ENTRY = 0, 1  # exported: all results are there; the section is entered. Tiles from the end: ENTRY + 1, ENTRY + 2, ...
STREAMED = frozenset({"weight", "expert", "kv", "embedding"})


def engines(plan: Plan) -> list[EngineRow]:
    """A launcher, a load engine per memory, one for lookups that wait for data, a store engine, a share of the cores per group, a network port."""
    chip = plan.chip
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    homes = [t.name for t in chip.tiers if t.scope != "core" and STREAMED & set(t.holds)]
    most = max(len(unit.groups) for stage in plan.stages for unit in stage.units)
    rows = [EngineRow("launcher", "launcher")]
    rows += [EngineRow(f"load.{t}", "load", window_of(chip.load), port_of(chip.load), buffer) for t in homes]
    rows += [EngineRow("gather", "gather", window_of(chip.load), port_of(chip.load), buffer)]
    rows += [EngineRow("store", "store", window_of(chip.store), port_of(chip.store), buffer)]
    rows += [EngineRow(f"pcu{i}", "pcu") for i in range(most)]
    if chip.link is not None:
        rows.append(EngineRow("network", "network", port_cause=LINK))
    return [replace(row, clocked=False) for row in rows]


def emit(block: Block, em: Emitter) -> None:
    """One section: launch, all groups, the way to the next stage, and the handover to the next block."""
    s = _Section(block, em)
    groups = block.unit.groups
    em.op, em.group = em.number_op(groups[0]), 0
    s.enter()
    for i, group in enumerate(groups):
        em.op, em.group, s.index = em.number_op(group), i, i
        EMITTERS.get(group.kind, _vector)(s, group)
    if block.send_bytes:
        em.op, em.group = em.number_op("send to next stage"), len(groups)
        sent = em.send(em.machine.engine("network"), block.send_bytes)
        em.after(np.repeat(sent, len(s.finals)), np.concatenate(s.finals), Dep.RAW)
        s.finals.append(sent)
    s.leave()


@dataclass(frozen=True)
class _Pieces:
    """An activation as it is made: `made[i]` completes its columns below `upto[i]`."""

    made: Ints
    upto: Ints

    def covering(self, columns: Ints) -> Ints:
        """For each number of columns, the instruction that completes them."""
        return self.made[np.minimum(np.searchsorted(self.upto, columns), len(self.made) - 1)]


class _Section:
    """A block in the making: buffers, the cores of each group, and what has been made so far."""

    def __init__(self, block: Block, em: Emitter) -> None:
        self.block, self.em, self.plan, self.chip = block, em, block.plan, block.plan.chip
        self.tile, self.slots = buffers(self.plan)
        self.cores = _cores(self.plan, block.unit.groups)
        self.index = 0
        self.made: dict[str, _Pieces] = {}
        self.used = ints([])  # computes of all tiles so far, in order
        self.finals: list[Ints] = []
        self.launch = ints([])

    @property
    def units(self) -> tuple[float, float]:
        """Matrix and vector units of the present group."""
        cores = self.cores[self.index]
        return cores * float(self.chip.matrix.count.value), cores * float(self.chip.vector.count.value)

    @property
    def pcu(self) -> int:
        """Engine of the present group."""
        return self.em.machine.engine(f"pcu{self.index}")

    def enter(self) -> None:
        """Entry when the block before has handed over, then the launch."""
        em, launcher = self.em, self.em.machine.engine("launcher")
        gap = em.machine.cycles_fs(Fraction(str(self.chip.execution.launch_gap.value)) / self.chip.period_fs)
        entry = em.hold(launcher, 0, LAUNCH, opcode=Opcode.BARRIER)
        em.after_slot(entry, HANDOVER, Dep.ORDER)
        em.export(entry, ENTRY)
        self.launch = em.hold(launcher, gap, LAUNCH, opcode=Opcode.LAUNCH)
        em.after(self.launch, entry, Dep.ORDER)

    def leave(self) -> None:
        """Handover when every group has done its last."""
        finals = np.concatenate(self.finals)
        over = self.em.hold(self.em.machine.engine("launcher"), 0, LAUNCH, opcode=Opcode.BARRIER)
        self.em.after(np.broadcast_to(over, finals.shape), finals, Dep.ORDER)
        self.em.export(over, HANDOVER)
        last = self.used[::-1][: self.slots]
        self.em.export(last, ENTRY + 1 + np.arange(len(last)))

    def streamed(self, group: Group) -> int:
        """Bytes that a group reads from memories."""
        return sum(group.scaled(n) for t, n in group.reads.items() if self.plan.kind(t) != "activation")

    def inputs(self, to: Ints, group: Group, but: str = "") -> None:
        """`to` waits for all of the activations that a group reads, except one; those of earlier blocks are there when the section is launched."""
        names = [t for t in group.reads if self.plan.kind(t) == "activation" and t != but]
        here = [self.made[t].made[-1:] for t in names if t in self.made]
        if len(here) < len(names) or not (here or but in self.made):
            self.em.after(to, self.launch, Dep.ORDER)
        for pred in here:
            self.em.after(to, pred, Dep.RAW)

    def tiled(self, group: Group, weights: Ints, hold: Ints, cause: str, tail: tuple[int, int] | None = None) -> tuple[Ints, Ints]:
        """Load and compute one tile per weight, each with its share of the group's bytes, and a vector tail (elementwise, special operations
        in all) behind each. Returns the computes, and what completes each tile."""
        em, n = self.em, len(weights)
        first = em.count
        loads = self._loads(group, weights)
        work = out = em.hold(self.pcu, hold, cause, latency_fs(self.chip, cause), n=n)
        if tail is not None and any(tail):
            ops, special = (portions(total, weights) for total in tail)
            out = em.hold(self.pcu, vector_fs(self.chip, ops, special, self.units[1]), VECTOR, latency_fs(self.chip, VECTOR), n=n)
            em.after(out, work, Dep.RAW)
        keys = [3 * tile for tile, _ in loads] + [3 * np.arange(n) + 1] + ([3 * np.arange(n) + 2] if out is not work else [])
        em.sort(first, np.concatenate(keys))
        if loads:
            self._buffer(loads, work)
        return work, out

    def _loads(self, group: Group, weights: Ints) -> list[tuple[Ints, Ints]]:
        """For each memory and kind, the tiles that have bytes there and their loads."""
        plan, em = self.plan, self.em
        ways: dict[tuple[str, str, str], list[str]] = {}
        for t, n in group.reads.items():
            if plan.kind(t) != "activation" and n:
                tier = self.block.home(t)
                ways.setdefault((f"load:{tier}", tier, plan.kind(t)), []).append(t)
        out = []
        for way, tensors in ways.items():
            tile, size, at = self._spread(way[1], sum(group.scaled(group.reads[t]) for t in tensors), weights)
            lookup = way[2] == "embedding"
            engine = em.machine.engine("gather" if lookup else f"load.{way[1]}")
            address = plan.address.get(tensors[0], 0) + at
            loads = em.move(engine, size, [way] * len(size), address, self.block.step.get(tensors[0], 0))
            if lookup:  # which rows: told by the token
                em.after(loads, self.launch, Dep.ORDER)
            out.append((tile, loads))
        return out

    def _spread(self, tier: str, total: int, weights: Ints) -> tuple[Ints, Ints, Ints]:
        """Transfers that move `total` bytes in proportion to weights: (number of the weight, bytes, offset) of each.

        All take the lanes of the tier evenly: whole turns, and what is left at the end in equal parts on every lane. Else one lane would
        get a little more in every block, and fall behind more and more.
        """
        t = self.chip.tier(tier)
        turn = lcm(t.lanes * int(t.interleave.value), int(t.chunk.value))
        if turn > self.tile // 4:
            turn = 1
        size = portions(total // turn, weights) * turn
        rest = shares(total % turn, t.lanes)
        number = np.concatenate([np.arange(len(weights)), np.full(t.lanes, len(weights) - 1)])
        offset = np.concatenate([np.cumsum(size) - size, size.sum() + np.arange(t.lanes) * int(t.interleave.value)])
        size = np.concatenate([size, rest])
        return number[size > 0], size[size > 0], offset[size > 0]

    def _buffer(self, loads: list[tuple[Ints, Ints]], work: Ints) -> None:
        """Computes wait for their tiles; loads wait for free buffers (see above)."""
        before = len(self.used)
        self.used = np.concatenate([self.used, work])
        for tile, load in loads:
            self.em.after(work[tile], load, Dep.RAW)
            back = before + tile - self.slots
            here = back >= 0
            self.em.after(load[here], self.used[back[here]], Dep.WAR)
            self.em.after_slot(load[~here], ENTRY - back[~here], Dep.WAR)
            self.em.after_slot(load[~here], ENTRY, Dep.WAR)

    def vector(self, ops: int, special: int) -> Ints:
        """One hold for elementwise and special operations."""
        hold = vector_fs(self.chip, ops, special, self.units[1])
        return self.em.hold(self.pcu, hold, VECTOR, latency_fs(self.chip, VECTOR))

    def result(self, ops: tuple[PlanOp, ...], made: Ints, share: Ints | None = None) -> None:
        """What a group makes: in pieces that complete the columns in proportion to `share` (cumulative), or at the end. The cache's part is stored."""
        for t in (t for op in ops for t in op.outputs.values()):
            if self.plan.kind(t) != "activation":
                tier = self.block.home(t)
                _, size, at = self._spread(tier, self.plan.size(t), np.ones(1, np.int64))
                stores = self.em.store(self.em.machine.engine("store"), size, tier, self.plan.kind(t), at, n=len(size))
                self.em.after(stores, made[-1:], Dep.RAW)
                continue
            width = int(self.plan.graph.nodes[t]["shape"][-1])
            whole = share is None
            self.made[t] = _Pieces(made[-1:], ints([width])) if whole else _Pieces(made, width * share // share[-1])  # type: ignore[index, operator]
        self.finals.append(made[-1:])


def buffers(plan: Plan) -> tuple[int, int]:
    """(bytes of a tile, number of buffers) in the nearest memory, beside what lives there on the fullest stage."""
    nearest = plan.chip.tiers[0]
    capacity = int(nearest.capacity.value) * (int(plan.chip.cores.value) if nearest.scope == "core" else 1)
    room = capacity - max(sum(used.get(nearest.name, {}).values()) for used in plan.used)
    tile = TILE
    while tile > SMALLEST_TILE and room // tile < WANTED_SLOTS:
        tile //= 2
    return tile, min(max(room // tile, plan.chip.matrix.weight_buffers), MOST_SLOTS)


def portions(total: int, weights: Ints) -> Ints:
    """A whole number in proportion to weights, the sum exact."""
    edges = np.concatenate([[0], np.cumsum(weights)])
    return ints(np.diff(total * edges // edges[-1]))


def cuts(whole: int, parts: int, granule: int) -> Ints:
    """A length in at most that many parts, all but the last of whole granules."""
    blocks = -(-whole // granule)
    parts = min(parts, blocks)
    return ints(np.diff(np.minimum(granule * (blocks * np.arange(parts + 1) // parts), whole)))


def _cores(plan: Plan, groups: tuple[Group, ...]) -> list[int]:
    """Cores of each group: in proportion to its multiply-adds; those without have a small fixed share, never more than half in all."""
    work = [sum(g.m * g.n * g.k * g.count for g in gemms(group)) for group in groups]
    cores, idle = int(plan.chip.cores.value), work.count(0)
    side = int(cores * min(SIDE, Fraction(1, 2 * idle))) if idle else 0
    left = cores - idle * side
    return [max(1, left * w // sum(work) if w else side) for w in work]


def _operations(ops: tuple[PlanOp, ...]) -> tuple[int, int]:
    """Elementwise and special operations, biases included."""
    return sum(o.cost.vector_ops for o in ops), sum(o.cost.special_ops for o in ops)


def _gemm(s: _Section, group: Group) -> None:
    """Products of one activation, side by side: by columns, or along the sum where the activation comes in pieces."""
    parts, granule = gemms(group), s.chip.matrix.granule
    g, n = parts[0], sum(p.n for p in parts)
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    dtype = matrix_dtype(s.chip, s.plan.dtype(weight), s.plan.dtype(x))
    pieces = s.made.get(x)
    along = pieces is not None and len(pieces.made) > 1 and g.count == 1
    whole, step, across = (g.k, granule.k, n) if along else (n, granule.n, g.k)
    size = s.streamed(group)
    width = cuts(whole, max(1, -(-size // s.tile)), step)
    split = -(-int(width.max()) * size // whole // s.tile) or 1  # a granule of a long matrix may be more than a tile: cut it the other way too
    width, across = np.repeat(width, split), -(-across // split)
    n_k = (across, width) if along else (width, across)
    hold = matrix_fs(s.chip, dtype, g.m, *n_k, s.units[0] / g.count)
    piecewise = not along and split == 1 and g.count == 1
    work, out = s.tiled(group, width, hold, MATRIX, _operations(group.ops) if piecewise else None)
    s.inputs(work[:1], group, x if along else "")
    if along:
        assert pieces is not None
        s.em.after(work, pieces.covering(np.cumsum(width) // split), Dep.RAW)
    if piecewise:
        s.result(group.ops, out, np.cumsum(width))
    elif any(_operations(group.ops)):
        tail = s.vector(*_operations(group.ops))
        s.em.after(tail, work[-1:], Dep.RAW)
        s.result(group.ops, tail)
    else:
        s.result(group.ops, work)


def _attention(s: _Section, group: Group) -> None:
    """Rotary positions and the append; then the cache head by head, its tokens in tiles. The cache is known beforehand: it streams as weights do."""
    op = next(o for o in group.ops if o.op == "attention")
    around = tuple(o for o in group.ops if o is not op)
    c, cache = op.cost, op.inputs["k_cache"]
    batch, heads, tokens = (int(n) for n in s.plan.graph.nodes[cache]["shape"][:3])
    start = s.vector(*_operations(around))
    s.inputs(start, group)
    s.result(around, start)
    wanted = max(1, -(-s.streamed(group) // s.tile))
    per = shares(heads, min(wanted, heads))  # heads of each piece
    split = min(-(-wanted // len(per)), tokens)
    head = np.repeat(per, split)
    keys = np.tile(shares(tokens, split), len(per))
    weights = head * keys
    keys = keys + (np.arange(len(keys)) % split == split - 1)  # the new token, from the chip
    units = s.units[0] / (batch * head)
    dtype = matrix_dtype(s.chip, s.plan.dtype(cache), s.plan.dtype(op.inputs["q"]))
    hold = matrix_fs(s.chip, dtype, c.m, keys, c.k, units) + matrix_fs(s.chip, dtype, c.m, c.k, keys, units)
    work, out = s.tiled(group, weights, hold, MATRIX, _operations((op,)))
    s.em.after(work[:1], start, Dep.RAW)
    s.result((op,), out[split - 1 :: split], np.cumsum(per))


def _vector(s: _Section, group: Group) -> None:
    """Norms, lookups, sampling wait for all of their input; elementwise ops follow the pieces of theirs."""
    size = s.streamed(group)
    ops, special = _operations(group.ops)
    follow = None
    if not size and all(o.op in ELEMENTWISE for o in group.ops):
        follow = max((t for t in group.reads if t in s.made), key=lambda t: len(s.made[t].made), default=None)
    lead = s.made[follow] if follow else _Pieces(ints([]), np.arange(1, max(1, -(-size // s.tile)) + 1))
    weights = np.diff(lead.upto, prepend=0)
    hold = vector_fs(s.chip, portions(ops, weights), portions(special, weights), s.units[1])
    work, _ = s.tiled(group, weights, hold, VECTOR)
    s.inputs(work[:1], group, follow or "")
    if follow:
        s.em.after(work, lead.made, Dep.RAW)
    s.result(group.ops, work, lead.upto if follow else None)


def _collective(s: _Section, group: Group) -> None:
    """All-reduce or all-gather: rounds of sends; what came is summed on the group's cores."""
    link = s.chip.link
    assert link is not None
    result = next(iter(group.ops[0].outputs.values()))
    bits = DTYPE_BITS.get(s.plan.dtype(result), 16)
    before = ints([])
    for r in rounds(group.kind, s.plan.size(result), s.plan.tp, link):
        sent = s.em.send(s.em.machine.engine("network"), r.send)
        if len(before):
            s.em.after(sent, before, Dep.RAW)
        else:
            s.inputs(sent, group)
        before = sent
        if r.reduce:
            before = s.vector(r.reduce * 8 // bits, 0)
            s.em.after(before, sent, Dep.RAW)
    s.result(group.ops, before)


EMITTERS: dict[str, Callable[[_Section, Group], Any]] = {
    "linear": _gemm,
    "matmul": _gemm,
    "attention": _attention,
    "all_reduce": _collective,
    "all_gather": _collective,
}
