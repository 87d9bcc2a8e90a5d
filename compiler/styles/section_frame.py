"""What the groups of a section share: buffers and their edges, cores, and results that come in pieces (dataflow.py)."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np

from ...arch import Chip
from ...arch.parts import Tier
from ..emit import Emitter
from ..machine import HOST, LAUNCH, VECTOR
from ..plan import Block, Group, Plan, PlanOp, group_macs
from ..program import Dep, Ints, Opcode, ints
from ..tile import latency_fs, shares, vector_fs

TILE = 1 << 20  # bytes of a tile where there is room: small beside a layer, many chunks of any memory
SMALLEST_TILE = 1 << 14
WANTED_SLOTS = 8  # smaller tiles rather than fewer buffers
MOST_SLOTS = 4096  # two blocks of any model; keeps the table of exports small
SIDE = Fraction(1, 16)  # share of the cores of a group without matrix work
HANDOVER, ENTRY = 0, 1  # slots: all results are there; the section is entered. ENTRY + d: d-th tile from the end
STREAMED = frozenset({"weight", "expert", "kv", "embedding"})


@dataclass(frozen=True)
class Pieces:
    """An activation as it is made: `made[i]` completes its columns below `upto[i]`."""

    made: Ints
    upto: Ints

    def covering(self, columns: Ints) -> Ints:
        """For each number of columns, the instruction that completes them."""
        return self.made[np.minimum(np.searchsorted(self.upto, columns), len(self.made) - 1)]


class Section:
    """A block in the making. `index` is the group that is being emitted."""

    def __init__(self, block: Block, em: Emitter) -> None:
        self.block, self.em, self.plan, self.chip = block, em, block.plan, block.plan.chip
        self.tile, self.slots = buffers(self.plan)
        self.cores = core_shares(self.plan, block.unit.work)
        self.index = 0
        self.made: dict[str, Pieces] = {}
        self.used = ints([])  # computes of all tiles so far, in order
        self.finals: list[Ints] = []
        self.launch = self.entry = ints([])

    @property
    def matrix_units(self) -> float:
        """Matrix units of the present group."""
        return self.cores[self.index] * float(self.chip.matrix.count.value)

    @property
    def vector_units(self) -> float:
        """Vector units of the present group."""
        return self.cores[self.index] * float(self.chip.vector.count.value)

    @property
    def pcu(self) -> int:
        """Engine of the present group."""
        return self.em.machine.engine(f"pcu{self.index}")

    def enter(self) -> None:
        """Entry when the block before has handed over, then the launch."""
        em, launcher = self.em, self.em.machine.engine("launcher")
        gap = em.machine.cycles_fs(Fraction(str(self.chip.execution.launch_gap.value)) / self.chip.period_fs)
        self.entry = entry = em.hold(launcher, 0, LAUNCH, opcode=Opcode.BARRIER)
        em.after_slot(entry, HANDOVER, Dep.ORDER)
        em.export(entry, ENTRY)
        before, host = entry, int(self.chip.execution.step_gap.value)
        if host and self.block.first and self.plan.samples:
            before = em.hold(launcher, host, HOST)
            em.after(before, entry, Dep.ORDER)
        self.launch = em.hold(launcher, gap, LAUNCH, opcode=Opcode.LAUNCH)
        em.after(self.launch, before, Dep.ORDER)

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
        """`to` waits for the activations that a group reads, all but one.

        Those of earlier blocks are there when the section is launched.
        """
        names = [t for t in group.reads if self.plan.kind(t) == "activation" and t != but]
        here = [self.made[t].made[-1:] for t in names if t in self.made]
        if len(here) < len(names) or not (here or but in self.made):
            self.em.after(to, self.launch, Dep.ORDER)
        for pred in here:
            self.em.after(to, pred, Dep.RAW)

    def tiled(
        self, group: Group, weights: Ints, hold: Ints, cause: str, tail: tuple[int, int] = (0, 0),
        share: Ints | None = None, unpack: Ints | None = None,
    ) -> tuple[Ints, Ints]:  # fmt: skip
        """Load and compute a tile for each weight, with its share of the group's bytes.

        `tail`: elementwise and special operations in all, shared over holds behind each tile in proportion to `share`
        (None: to the weights); `unpack`: time of making what is computed with of each tile. Returns the computes, and
        what completes each tile.
        """
        em, n = self.em, len(weights)
        first = em.count
        loads = self._loads(group, weights)
        work = out = em.hold(self.pcu, hold, cause, latency_fs(self.chip, cause), n=n)
        keys = [4 * tile for tile, _ in loads] + [4 * np.arange(n) + 2]
        takes = work
        if unpack is not None:
            takes = em.hold(self.pcu, unpack, VECTOR, latency_fs(self.chip, VECTOR), n=n)
            em.after(work, takes, Dep.RAW)
            keys.append(4 * np.arange(n) + 1)
        if any(tail):
            ops, special = (portions(total, weights if share is None else share) for total in tail)
            after = vector_fs(self.chip, ops, special, self.vector_units)
            out = em.hold(self.pcu, after, VECTOR, latency_fs(self.chip, VECTOR), n=n)
            em.after(out, work, Dep.RAW)
            keys.append(4 * np.arange(n) + 3)
        em.sort(first, np.concatenate(keys))
        if loads:
            self._buffer(loads, work, takes)
        return work, out

    def _loads(self, group: Group, weights: Ints) -> list[tuple[Ints, Ints]]:
        """For each memory and kind, loads and the tiles that they belong to."""
        plan, em = self.plan, self.em
        ways: dict[tuple[str, str, str], list[str]] = {}
        for t, n in group.reads.items():
            if plan.kind(t) != "activation" and n:
                tier = self.block.home(t)
                ways.setdefault((f"load:{tier}", tier, plan.kind(t)), []).append(t)
        out = []
        for way, tensors in ways.items():
            total = sum(group.scaled(group.reads[t]) for t in tensors)
            tile, size, at = self._spread(way[1], total, weights if weights.any() else np.ones_like(weights))
            lookup = way[2] == "embedding"
            engine = em.machine.engine("gather" if lookup else f"load.{way[1]}")
            address = plan.address.get(tensors[0], 0) + at
            loads = em.move(engine, size, [way] * len(size), address, self.block.step.get(tensors[0], 0))
            if lookup:
                em.after(loads, self.launch, Dep.ORDER)
            elif self.block.opens_stage:  # other chips: they begin when the token reaches them
                em.after(loads, self.entry, Dep.ORDER)
            out.append((tile, loads))
        return out

    def _spread(self, tier: str, total: int, weights: Ints) -> tuple[Ints, Ints, Ints]:
        """Transfers that move `total` bytes in proportion to weights: (number of the weight, bytes, offset) of each.

        They take all lanes of the tier evenly: whole turns, and what is left over in equal parts on every lane. Else
        one lane would get a little more in every block, and fall behind more and more.
        """
        t = self.chip.tier(tier)
        turn = lane_turn(t, self.tile)
        size = portions(total // turn, weights) * turn
        rest = shares(total % turn, t.lanes)
        number = np.concatenate([np.arange(len(weights)), np.full(t.lanes, len(weights) - 1)])
        apart = np.arange(t.lanes) * int(t.interleave.value)
        offset = np.concatenate([np.cumsum(size) - size, size.sum() + apart])
        size = np.concatenate([size, rest])
        return number[size > 0], size[size > 0], offset[size > 0]

    def _buffer(self, loads: list[tuple[Ints, Ints]], work: Ints, takes: Ints) -> None:
        """What takes a tile waits for it, loads for free buffers."""
        before = len(self.used)
        self.used = np.concatenate([self.used, work])
        for tile, load in loads:
            self.em.after(takes[tile], load, Dep.RAW)
            back = before + tile - self.slots
            here = back >= 0
            self.em.after(load[here], self.used[back[here]], Dep.WAR)
            self.em.after_slot(load[~here], ENTRY - back[~here], Dep.WAR)
            self.em.after_slot(load[~here], ENTRY, Dep.WAR)

    def vector(self, ops: int, special: int) -> Ints:
        """One hold for elementwise and special operations."""
        hold = vector_fs(self.chip, ops, special, self.vector_units)
        return self.em.hold(self.pcu, hold, VECTOR, latency_fs(self.chip, VECTOR))

    def result(self, ops: tuple[PlanOp, ...], made: Ints, upto: Ints | None = None) -> None:
        """What ops make: in pieces that end in proportion to `upto`, or at once. What belongs in a cache is stored."""
        for t in (t for op in ops for t in op.outputs.values()):
            if self.plan.kind(t) != "activation":
                self._store(t, made[-1:])
                continue
            width = int(self.plan.graph.nodes[t]["shape"][-1])
            whole = Pieces(made[-1:], ints([width]))
            self.made[t] = whole if upto is None else Pieces(made, ints(width * upto // upto[-1]))
        self.finals.append(made[-1:])

    def _store(self, tensor: str, after: Ints) -> None:
        tier = self.block.home(tensor)
        _, size, at = self._spread(tier, self.plan.size(tensor), ints([1]))
        engine = self.em.machine.engine("store")
        self.em.after(self.em.store(engine, size, tier, self.plan.kind(tensor), at, n=len(size)), after, Dep.RAW)


def streaming_tiers(chip: Chip) -> list[Tier]:
    """Memories that may hold what a section streams."""
    return [t for t in chip.tiers if t.scope != "core" and set(t.holds) & STREAMED]


def lane_turn(tier: Tier, tile: int) -> int:
    """Bytes that go once round all lanes of a tier; 1 where that is too coarse for tiles of this size."""
    turn = lcm(tier.lanes * int(tier.interleave.value), int(tier.chunk.value))
    return turn if turn <= tile // 16 else 1


def buffers(plan: Plan) -> tuple[int, int]:
    """(bytes of a tile, buffers for tiles) in the nearest memory, beside what lives there on the fullest stage.

    A buffer is larger than a tile by what rounding to the lanes may add, once for each memory and end of the tile.
    """
    chip, nearest = plan.chip, plan.chip.tiers[0]
    capacity = int(nearest.capacity.value) * (int(chip.cores.value) if nearest.scope == "core" else 1)
    room = capacity - max(sum(used.get(nearest.name, {}).values()) for used in plan.used)

    def size(tile: int) -> int:
        return tile + 2 * sum(lane_turn(t, tile) for t in streaming_tiers(chip))

    tile = TILE
    while tile > SMALLEST_TILE and room // size(tile) < WANTED_SLOTS:
        tile //= 2
    return tile, min(max(room // size(tile), chip.matrix.weight_buffers), MOST_SLOTS)


def portions(total: int, weights: Ints) -> Ints:
    """A whole number in proportion to weights, the sum exact."""
    edges = np.concatenate([[0], np.cumsum(weights)])
    return ints(np.diff(total * edges // edges[-1]))


def core_shares(plan: Plan, groups: tuple[Group, ...]) -> list[int]:
    """Cores of each group: in proportion to its multiply-adds; those without have SIDE each, at most half in all."""
    work = [sum(macs for _, macs in group_macs(group)) for group in groups]
    cores, idle = int(plan.chip.cores.value), work.count(0)
    side = int(cores * min(SIDE, Fraction(1, 2 * idle))) if idle else 0
    left = cores - idle * side
    return [max(1, left * w // sum(work) if w else side) for w in work]
