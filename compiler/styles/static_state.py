"""An LPU's block in the making: where tensors are, the vector unit, and the weights that stream past the planes.

What a group makes goes straight to the group behind it, as streams from unit to unit; it is written to SRAM only where
something else reads it. Weights run ahead of the planes by their buffers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..emit import Emitter
from ..machine import LAUNCH, MATRIX, VECTOR, port_of
from ..plan import Block, Group, Plan
from ..program import Dep, Ints, Opcode, ints
from ..tile import latency_fs, shares, vector_fs

NOTHING = ints([])
REMEMBERED = 64  # products of each plane that later weights may wait for: more than any number of buffers
PIECES = (4, 2, 1)  # transfers of one tile's weights


def planes_of(plan: Plan) -> int:
    """Planes of the whole chip."""
    return int(plan.chip.cores.value) * int(plan.chip.matrix.count.value)


@dataclass(frozen=True)
class Made:
    """A tensor on its way from the unit that makes it: `who` makes columns up to `ends` (of `ends[-1]`), part by part.

    `early`, per part: what is done no later than a memory access before the part is there (nothing: the block's begin).
    """

    who: tuple[Ints, ...]
    early: tuple[Ints, ...]
    ends: tuple[int, ...] = (1,)

    def parts(self) -> Iterator[tuple[Ints, Ints, int, int]]:
        """Who makes the columns from where to where, and the part's `early`."""
        yield from zip(self.who, self.early, [0, *self.ends[:-1]], self.ends, strict=True)

    def whole(self) -> Made:
        """As one part."""
        return Made((self.all,), (self.early[-1],))

    @property
    def all(self) -> Ints:
        """Everything that makes it."""
        return np.concatenate(self.who)


@dataclass(frozen=True)
class Tiles:
    """Tiles of weights (or of a cache) in the order in which they stream. One entry per tile.

    A tile needs the activation's columns from `begin` to `end` of `of`; where `last`, its plane has then summed up a
    column tile of results.
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
    counted: bool = True
    """Bytes count at the tensor's tier; else they have been counted before."""
    unpack_fs: Ints | None = None
    """What the vector unit does with each tile before its product."""


class Lpu:
    """One block in the making: where its tensors are, and what each plane did last."""

    def __init__(self, block: Block, em: Emitter) -> None:
        self.block, self.em, self.plan = block, em, block.plan
        self.chip, self.planes = self.plan.chip, planes_of(self.plan)
        number = em.machine.engine
        self.mxm, self.stream, self.vxm, self.read_engine = (number(x) for x in ("mxm0", "stream0", "vxm", "read"))
        self.units = int(self.chip.cores.value) * int(self.chip.vector.count.value)
        self.products: list[list[int]] = [[] for _ in range(self.planes)]
        self.stalls: list[list[tuple[int, Ints]]] = [[] for _ in range(self.planes)]
        self.made: dict[str, tuple[int, Made]] = {}
        self.memory: dict[str, Ints] = {}
        self.leaves: list[Ints] = []
        self.last = NOTHING
        self.here: dict[str, Made] = {}  # what the present group has read
        self.index = 0
        self.launch: Ints | None = None
        gap = self.em.machine.cycles_fs(float(self.chip.execution.launch_gap.value) / self.chip.period_fs)
        if gap:
            self.em.op = self.em.number_op(block.unit.work[0])
            self.launch = self.em.hold(number("launcher"), gap, LAUNCH, opcode=Opcode.LAUNCH)
            self.em.after_slot(self.launch, 0, Dep.ORDER)

    def after(self, to: Ints, pred: Ints, kind: Dep = Dep.RAW) -> None:
        """Every one of `to` waits for all of `pred`; without any, for the block's begin."""
        if len(pred):
            self.em.after(np.tile(to, len(pred)), np.repeat(pred, len(to)), kind)
        elif self.launch is not None:
            self.em.after(to, self.launch, kind)
        else:
            self.em.after_slot(to, 0, kind)

    def way(self, tensor: str, store: bool = False) -> tuple[str, str, str]:
        """Route, tier and kind of a tensor."""
        tier = self.block.home(tensor)
        return f"{'store' if store else 'load'}:{tier}", tier, self.plan.kind(tensor)

    def read(self, tensor: str, nbytes: int, pred: Ints = NOTHING) -> Ints:
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
        fresh = self.fresh(tensor) or self.here.get(tensor)
        if fresh is None:
            before = self.memory.get(tensor, NOTHING)
            fresh = self.here[tensor] = Made((self.read(tensor, self.plan.size(tensor), before),), (before,))
        return fresh

    def takes(self, ops: int, special: int) -> int:
        """Time of work of the vector unit, in fs."""
        return int(vector_fs(self.chip, ops, special, self.units)[0])

    def compute(self, ops: int, special: int, pred: Ints) -> Ints:
        """Work of the vector unit."""
        out = self.em.hold(self.vxm, self.takes(ops, special), VECTOR, latency_fs(self.chip, VECTOR))
        self.after(out, pred)
        return out

    def soon(self, unit: str, work_fs: int, pred: Ints, then: Ints) -> Ints:
        """The `early` of what a unit makes: what it waits for, if no longer ago than a memory access; else itself."""
        access = min(int(t.latency.value) for t in self.chip.tiers_for("weight"))
        return pred if work_fs + latency_fs(self.chip, unit) <= access else then

    def worked(self, ops: int, special: int, pred: Ints) -> Made:
        """What the vector unit makes of `pred`, in one part."""
        out = self.compute(ops, special, pred)
        return Made((out,), (self.soon(VECTOR, self.takes(ops, special), pred, out),))

    def keep(self, group: Group, tensor: str, made: Made) -> None:
        """Pass a result on; write it if others than the next group read it, or nobody (a result of the whole)."""
        self.made[tensor] = self.index, made
        self.last = made.all
        groups = self.block.unit.work
        behind = {o.name for o in groups[self.index + 1].ops} if self.index + 1 < len(groups) else set()
        inside = {o.name for o in group.ops}
        readers = [r for r in self.plan.graph.successors(tensor) if r not in inside]
        if readers and all(r in behind for r in readers):
            return
        step = self.block.step.get(tensor, 0)
        # Parts of a product make columns; of a table, one part has the whole row.
        size = self.plan.size(tensor)
        nbytes = size if group.kind == "embedding" else max(group.scaled(size), 1)
        out = self.em.move(
            self.em.machine.engine("write"), nbytes, [self.way(tensor, True)], self.plan.address.get(tensor, 0), step
        )
        self.after(out, made.all)
        self.memory[tensor] = out
        self.leaves.append(out)

    def results(self, group: Group) -> list[str]:
        """Tensors that leave a group: read outside, or by nobody."""
        inside = {o.name for o in group.ops}
        out = [t for op in group.ops for t in op.outputs.values()]
        return [t for t in out if not (r := list(self.plan.graph.successors(t))) or any(x not in inside for x in r)]


def stream(s: Lpu, t: Tiles, x: Made) -> tuple[Ints, Ints]:
    """Loads and products of tiles. Returns the last product of each column tile, and what tells that its sum is out."""
    em, n = s.em, len(t.plane)
    first, loaded = em.count, np.flatnonzero(t.nbytes)
    pieces, ahead = _pace(s, t) if len(loaded) else (1, s.chip.matrix.weight_buffers)
    loads = _loads(s, t, loaded, pieces)
    products = em.hold(s.mxm + t.plane, t.hold_fs, MATRIX, n=n)
    out = np.flatnonzero(t.last)
    # A plane is free for its next tile when a product has been issued; the sum takes the unit's latency to come out.
    drains = em.hold(s.mxm + t.plane[out], 0, MATRIX, latency_fs(s.chip, MATRIX), n=len(out))
    takes = products
    if t.unpack_fs is not None:
        takes = em.hold(s.vxm, t.unpack_fs, VECTOR, latency_fs(s.chip, VECTOR), n=n)
        em.after(products, takes, Dep.RAW)
    em.after(takes[loaded], loads[:, -1], Dep.RAW)
    em.after(drains, products[out], Dep.RAW)
    for who, early, lo, hi in x.parts():
        needs = np.flatnonzero((t.begin * x.ends[-1] < hi * t.of) & (t.end * x.ends[-1] > lo * t.of))
        for plane, one in zip(*np.unique(t.plane[needs], return_index=True), strict=True):
            s.after(products[needs[one] : needs[one] + 1], who)
            s.stalls[plane].append((int(products[needs[one]]), early))
    for plane in range(s.planes):
        mine = t.plane == plane
        _buffers(s, plane, loads[mine[loaded], 0], np.flatnonzero(t.nbytes[mine]), products[mine], ahead)
    key = 4 * np.arange(n)
    keys = [np.repeat(key[loaded], pieces), key + 2, key[out] + 3]
    if t.unpack_fs is not None:  # made last
        keys.append(key + 1)
    em.sort(first, np.concatenate(keys))
    return products[out], drains


def _loads(s: Lpu, t: Tiles, loaded: Ints, pieces: int) -> Ints:
    """The loads of the tiles that have any bytes: [tile, piece]."""
    if not len(loaded):
        return ints(np.zeros((0, 1)))
    nbytes = np.maximum(np.stack([shares(b, pieces) for b in t.nbytes[loaded]]).ravel(), 1)
    at = s.plan.address.get(t.tensor, 0) + t.offset + np.concatenate([[0], np.cumsum(nbytes)[:-1]])
    route, tier, kind = s.way(t.tensor)
    way = (route, tier if t.counted else "", kind)
    step = s.block.step.get(t.tensor, 0)
    return s.em.move(s.stream + np.repeat(t.plane[loaded], pieces), nbytes, [way] * len(nbytes), at, step).reshape(
        len(loaded), pieces
    )


def _pace(s: Lpu, t: Tiles) -> tuple[int, int]:
    """Transfers per tile, and how many tiles a load is ahead of the product that frees its buffer.

    A transfer is there as soon as its lane has served it, whatever its port time. So a tile comes in pieces, each
    behind the port time of those before it: as many as the lanes, which serve whole cycles, can serve in that time.
    Weights on their way are in no buffer yet: where an access is as long as several tiles, so many more are under way.
    """
    tier, period = s.chip.tier(s.block.home(t.tensor)), s.chip.period_fs
    most, least = int(t.nbytes.max()), int(t.nbytes[t.nbytes > 0].min())
    rate = port_of(s.chip.load, s.planes)
    port = most * period / float(rate) if rate else 0.0

    def served(n: int) -> int:
        return -(-round(most / n / float(tier.bandwidth.value) * 1e15) // period) * period

    fits = [n for n in PIECES if n <= least and n * s.planes * served(n) <= port]
    pieces = fits[0] if fits else 1
    tile = max(port, s.planes * pieces * served(pieces))
    way = port * (pieces - 1) / pieces + served(pieces) + int(tier.latency.value) + int(t.hold_fs.max()) + period
    return pieces, max(s.chip.matrix.weight_buffers, -int(-way // tile))


def _buffers(s: Lpu, plane: int, loads: Ints, which: Ints, products: Ints, ahead: int) -> None:
    """WAR edges of a plane's loads: each waits for the product `ahead` of its own, that is of number `which`.

    Where a product waits for its activation, the buffers are full for so long: what comes behind them may leave when
    the activation is a memory access away. So no tile arrives before its buffer is free, and none later than need be.
    """
    before = s.products[plane]
    known = ints([*before, *products])
    place = which + len(before) - ahead
    s.em.after(loads[place >= 0], known[place[place >= 0]], Dep.WAR)
    if (place < 0).any():
        s.after(loads[place < 0], NOTHING, Dep.WAR)
    buffers, open_ = s.chip.matrix.weight_buffers, []
    for product, early in s.stalls[plane]:
        at = int(np.flatnonzero(known == product)[0]) + buffers - len(before)
        if 0 <= at < len(products) and ahead > buffers:
            s.after(loads[which == at], early, Dep.WAR)
        if at >= len(products):
            open_.append((product, early))
    s.stalls[plane] = open_
    s.products[plane] = known[-REMEMBERED:].tolist()
