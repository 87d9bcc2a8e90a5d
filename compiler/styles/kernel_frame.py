"""What every GPU kernel is made of: launch and barrier, tiles that stream through the cores, tails, and sums of
partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..emit import Emitter
from ..machine import HOST, KERNEL, LAUNCH, VECTOR
from ..plan import Block
from ..program import Dep, Ints, Opcode
from ..tile import latency_fs, vector_fs

Way = tuple[str, str, str]  # route, tier and kind of tensor
BARRIER = "barrier"  # with overlap, barriers have an engine of their own: launches pass them


@dataclass
class Kernels:
    """The state between the kernels of one block: what the next launch and the next reads wait for."""

    block: Block
    em: Emitter

    def __post_init__(self) -> None:
        self.plan, self.chip = self.block.plan, self.block.plan.chip
        self.cores = int(self.chip.cores.value)
        self.stages = self.chip.execution.stages or 2
        self.overlap = self.chip.execution.overlap == "programmatic"
        self.kernels = 0
        self.end: Ints | None = None
        self.before: Ints | None = None
        self.launch: Ints | None = None
        self.near = next(t.name for t in self.chip.tiers if t.scope == "chip")
        m = self.em.machine
        self.load0, self.matrix0, self.vector0, self.store0 = (
            m.engine(f"{x}0") for x in ("load", "matrix", "vector", "store")
        )

    def begin(self, prologue: int = 0) -> None:
        """Launch: after the barrier of the kernel before, or with overlap after its launch. Every launch opens a group.
        `prologue`: time before its first loads."""
        self.em.group = self.kernels
        self.kernels += 1
        gap = self.em.machine.cycles_fs(float(self.chip.execution.launch_gap.value) / self.chip.period_fs)
        before, older, self.before = self.launch, self.before, self.end
        launcher = self.em.machine.engine("launcher")
        self.launch = self.em.hold(launcher, gap, LAUNCH, opcode=Opcode.LAUNCH)
        if self.overlap:
            self._wait(self.launch, before, 1)
            # The kernel before the one that still runs is over: of the block before, its last but one, then its last.
            self._wait(self.launch, older, 2 if before is None else 0)
        else:
            self._wait(self.launch, self.before, 0)
        if prologue:
            ready = self.em.hold(launcher, prologue, KERNEL)
            self.em.after(ready, self.launch, Dep.ORDER)
            self.launch = ready

    def host(self) -> None:
        """What the host does between two steps: the first launch comes behind it in the launcher's queue."""
        launcher = self.em.machine.engine("launcher")
        gap = self.em.hold(launcher, int(self.chip.execution.step_gap.value), HOST)
        self.em.after_slot(gap, 0, Dep.ORDER)

    def _wait(self, to: Ints, pred: Ints | None, slot: int) -> None:
        if pred is None:
            self.em.after_slot(to, slot, Dep.ORDER)
        else:
            self.em.after(to, pred, Dep.ORDER)

    def started(self, to: Ints, reads_results: Any = True) -> None:
        """Instructions that wait for the launch, and (where they read results) for the kernel before."""
        assert self.launch is not None
        self.em.after(to, self.launch, Dep.ORDER)
        if self.overlap:
            to = to[np.broadcast_to(reads_results, to.shape)]
            if len(to):
                self._wait(to, self.before, 0)

    def finish(self, finals: Ints) -> None:
        """Barrier: the kernel is over when all of these are done."""
        gate = self.em.machine.engine(BARRIER if self.overlap else "launcher")
        self.end = self.em.hold(gate, 0, LAUNCH, opcode=Opcode.BARRIER)
        self.em.after(np.broadcast_to(self.end, finals.shape), finals, Dep.ORDER)

    def move(
        self, first: int, core: Ints, nbytes: Ints, way: Way, address: Any = 0, step: int = 0
    ) -> tuple[Ints, Ints]:
        """Transfers of the cores that have something to move: their numbers, and which of `core` they are of."""
        which = np.flatnonzero(nbytes)
        where = np.broadcast_to(address, nbytes.shape)[which]
        return self.em.move(first + core[which], nbytes[which], [way] * len(which), where, step), which

    def way(self, tensor: str, by: str = "load") -> Way:
        """Route, tier and kind of a tensor; `by`: load, copy (of tiles) or store."""
        tier = self.block.home(tensor)
        return f"{by}:{tier}", tier, self.plan.kind(tensor)

    def again(self) -> Way:
        """Route of what another core has just loaded: from the nearest tier that all share, counted nowhere."""
        return f"copy:{self.near}", "", "weight"

    def scratch(self, store: bool) -> Way:
        """Route, tier and kind of partial results."""
        tier = next(t.name for t in self.chip.tiers_for("activation") if t.scope == "chip")
        return f"{'store' if store else 'load'}:{tier}", tier, "activation"


@dataclass(frozen=True)
class Tiles:
    """What streams through the cores: per CTA (block of threads) and piece, bytes and the unit's time. Arrays [cta,
    piece]."""

    nbytes: Ints
    hold_fs: Ints
    way: Way
    address: int
    step: int
    cause: str
    operand: Ints
    """Bytes of the activation that come with each piece."""
    operand_way: Way
    stages: int
    """Pieces that a core has buffers for."""
    leader: Ints | None = None
    """Per CTA, the one whose weights it shares, itself or an earlier one; None: nobody shares."""
    operand_leader: Ints | None = None
    """The same for the activation."""
    start_fs: int = 0
    """From the end of a CTA to the first loads of the next one on its core."""
    unpack_fs: Ints | None = None
    """What the vector unit does with a piece's weights before their product."""
    seek_fs: Ints | None = None
    """How long the core of each CTA stands before its first loads; then, of each core, behind its last loads."""
    persistent: bool = False
    """A core goes on to its next CTA in one loop: its loads run ahead as those of one CTA do."""
    resident: int = 1
    """CTAs that a core works on at once: the first loads of one wait for the end of the one so many before it."""
    promote_fs: Ints | None = None
    """What it does with the sums behind a piece's product, while the matrix unit waits."""


def stream(k: Kernels, tiles: Tiles) -> tuple[Ints, Ints]:
    """Emit loads, computes and epilogues of all CTAs. Returns each CTA's core and its epilogue."""
    ctas, steps = tiles.nbytes.shape
    core = np.arange(ctas) % k.cores
    slots = k.cores * tiles.resident
    unit = k.vector0 if tiles.cause == VECTOR else k.matrix0
    single = tiles.stages == 1  # then every load waits for the product before it
    ahead = min(tiles.stages, steps) if k.overlap and not single else 0
    start = k.em.count
    cta, step = np.repeat(np.arange(ctas), steps), np.tile(np.arange(steps), ctas)
    x, x_again = _shared(k, core, tiles.operand, tiles.operand_leader, tiles.operand_way)
    w, w_again = _shared(k, core, tiles.nbytes, tiles.leader, tiles.way, tiles.address, tiles.step)
    for loads, _ in (x, x_again):
        k.started(loads)
    for loads, _ in (w, w_again):
        k.started(loads, False)
    latency = latency_fs(k.chip, tiles.cause)
    compute = k.em.hold(unit + core[cta], tiles.hold_fs.ravel(), tiles.cause, latency, n=ctas * steps)
    seeks, seeking, last_ones = _seek(k, core, tiles.seek_fs)
    takes = compute
    if tiles.unpack_fs is not None:
        latency = latency_fs(k.chip, VECTOR)
        takes = k.em.hold(k.vector0 + core[cta], tiles.unpack_fs.ravel(), VECTOR, latency, n=ctas * steps)
        k.em.after(compute, takes, Dep.RAW)
    sums = compute
    if tiles.promote_fs is not None:
        sums = k.em.hold(unit + core[cta], tiles.promote_fs.ravel(), VECTOR, n=ctas * steps)
    last = sums.reshape(ctas, steps)[:, -1]
    epilogue = int(k.chip.execution.epilogue.value)
    if tiles.resident == 1:
        ends = k.em.hold(unit + core, epilogue, KERNEL, n=ctas)
        anew = core[ctas if tiles.persistent else slots :]
        turns = k.em.hold(unit + anew, tiles.start_fs, KERNEL, n=len(anew))
        k.em.after(turns, ends[: len(turns)], Dep.ORDER)
    else:  # others go on meanwhile: the unit is not held
        ends = k.em.hold(unit + core, 0, KERNEL, epilogue, n=ctas)
        turns = k.em.hold(unit + core[slots:], 0, KERNEL, epilogue + tiles.start_fs, n=max(ctas - slots, 0))
        k.em.after(turns, last[: len(turns)], Dep.RAW)
    k.em.after(ends, last, Dep.RAW)
    k.em.after(ends[seeking[last_ones]], seeks[last_ones], Dep.ORDER)
    # Buffers: a piece waits until the one `stages` before it has been used; a CTA's first ones that are not in one loop
    # with the CTA before it on its core, for its beginning after the end of the CTA whose place it takes.
    if tiles.persistent:
        before = cta // k.cores * steps + step - tiles.stages
        late = before >= 0
        user = compute[np.maximum((before // steps * k.cores + core[cta]) * steps + before % steps, 0)]
    else:
        inner, later = step >= tiles.stages, cta >= slots
        user = compute[np.maximum(np.arange(ctas * steps) - tiles.stages, 0)]
        user[later & ~inner] = turns[(cta - slots)[later & ~inner]]
        late = inner | later
    for (load, which), taker in ((x, compute), (x_again, compute), (w, takes), (w_again, takes)):
        k.em.after(taker[which], load, Dep.RAW)
        k.em.after(load[late[which]], user[which][late[which]], Dep.WAR)
    # Queue order: piece by piece, a piece's operand first (with overlap: behind the weights that may already come).
    begin, pace = _turns(tiles, k.cores)
    at = 8 * (begin[cta] + pace * step)
    after = np.where(step < tiles.stages, 0, pace * (step - tiles.stages) + 1)
    wanted = 8 * (begin[cta] + after) if tiles.resident > 1 else at
    behind = np.where(step < ahead, at + 8 * pace * (ahead - 1 - step) + 5, wanted + 2)
    due = np.maximum(step, ahead - 1)
    turn = at + 8 * pace * (due - step) + np.where(due == steps - 1, 6, 7)
    over = turn.reshape(ctas, steps)[:, -1]
    k.em.sort(start, np.concatenate([
        behind[x[1]], behind[x_again[1]], wanted[w[1]] + 3, wanted[w_again[1]] + 3, turn,
        8 * begin[seeking] + np.where(last_ones, 8 * pace * (steps - 1) + 5, 1),
        *([turn - 1] if takes is not compute else []), *([turn] if sums is not compute else []), over,
        over[: len(turns)],
    ]))  # fmt: skip
    return core, ends


def _seek(k: Kernels, core: Ints, seek_fs: Ints | None) -> tuple[Ints, Ints, Any]:
    """What cores do before the first loads of their CTAs and after their last: instructions, the CTAs before or behind
    which they are, and which are behind."""
    which = np.flatnonzero(np.zeros(0) if seek_fs is None else seek_fs)
    behind = which >= len(core)
    cta = which - behind * min(k.cores, len(core))
    seeks = k.em.hold(k.load0 + core[cta], 0 if seek_fs is None else seek_fs[which], f"latency:{k.near}", n=len(which))
    k.started(seeks, False)
    return seeks, cta, behind


def _turns(tiles: Tiles, cores: int) -> tuple[Ints, int]:
    """Where each CTA's first step stands in its core's queues, and how far apart its steps are: CTAs that are resident
    together go step by step if all begin at once, else each as far behind the one before it as lets them take turns."""
    ctas, steps = tiles.nbytes.shape
    if tiles.resident == 1:
        return np.arange(ctas) * steps, 1
    if ctas <= cores * tiles.resident:
        return np.zeros(ctas, np.int64), 1
    life = steps - (-tiles.start_fs // max(1, int(tiles.hold_fs.max())))
    return np.arange(ctas) // cores * life, tiles.resident


Loads = tuple[Ints, Ints]  # instructions, and which of the [cta, piece] they are for


def _shared(
    k: Kernels,
    core: Ints,
    nbytes: Ints,
    leader: Ints | None,
    way: Way,
    address: int = 0,
    step: int = 0,
) -> tuple[Loads, Loads]:
    """Loads of an operand's pieces [cta, piece]: of the leaders from where it is held, and of those that share theirs,
    which find it in the nearest tier once it has come."""
    ctas, steps = nbytes.shape
    cta = np.repeat(np.arange(ctas), steps)
    lead = np.arange(ctas) if leader is None else leader
    own = np.where(np.repeat(lead == np.arange(ctas), steps), nbytes.ravel(), 0)
    loads, filled = k.move(k.load0, core[cta], own, way, address + np.cumsum(own) - own, step)
    again, more = k.move(k.load0, core[cta], nbytes.ravel() - own, k.again())
    first = np.zeros(ctas * steps, np.int64)
    first[filled] = loads
    k.em.after(again, first[lead[cta] * steps + np.tile(np.arange(steps), ctas)][more], Dep.RAW)
    return (loads, filled), (again, more)


def epilogue(k: Kernels, core: Ints, after: Ints, ops: Any, special: Any, nbytes: Ints, way: Way) -> Ints:
    """A vector tail and the store of the results; returns what completes each: the stores, or the tails without one."""
    n = len(core)
    tail = k.em.hold(k.vector0 + core, vector_fs(k.chip, ops, special), VECTOR, latency_fs(k.chip, VECTOR), n=n)
    k.em.after(tail, after, Dep.RAW)
    stores, which = k.move(k.store0, core, nbytes, way)
    k.em.after(stores, tail[which], Dep.RAW)
    finals = tail.copy()
    finals[which] = stores
    return finals


def reduce(k: Kernels, core: Ints, last: Ints, partial: Ints, parts: int, tail: Callable[[Ints, Ints], Ints]) -> Ints:
    """Each CTA stores a partial result; the first of every `parts` loads them all, and its tail sums and stores. CTAs
    are [part, tile]."""
    stores = k.em.move(k.store0 + core, partial, [k.scratch(True)] * len(core))
    k.em.after(stores, last, Dep.RAW)
    tiles = len(core) // parts
    loads = k.em.move(k.load0 + core[:tiles], partial.reshape(parts, tiles).sum(axis=0), [k.scratch(False)] * tiles)
    k.em.after(np.tile(loads, parts), stores, Dep.RAW)
    return tail(core[:tiles], loads)
