"""What every GPU kernel is made of: launch and barrier, tiles that stream through the cores, tails, and sums of
partial results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..emit import Emitter
from ..machine import LAUNCH, MATRIX, VECTOR
from ..plan import Block
from ..program import Dep, Ints, Opcode
from ..tile import latency_fs, vector_fs

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
        self.end: Ints | None = None
        self.before: Ints | None = None
        self.launch: Ints | None = None
        m = self.em.machine
        self.load0, self.matrix0, self.vector0, self.store0 = (
            m.engine(f"{x}0") for x in ("load", "matrix", "vector", "store")
        )

    def begin(self) -> None:
        """Launch: after the barrier of the kernel before, or with overlap after its launch."""
        gap = self.em.machine.cycles_fs(float(self.chip.execution.launch_gap.value) / self.chip.period_fs)
        before, older, self.before = self.launch, self.before, self.end
        self.launch = self.em.hold(self.em.machine.engine("launcher"), gap, LAUNCH, opcode=Opcode.LAUNCH)
        if self.overlap:
            self._wait(self.launch, before, 1)
            # The kernel before the one that still runs is over: of the block before, its last but one, then its last.
            self._wait(self.launch, older, 2 if before is None else 0)
        else:
            self._wait(self.launch, self.before, 0)

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
        self, first: int, core: Ints, nbytes: Ints, way: tuple[str, str, str], address: Any = 0, step: int = 0
    ) -> tuple[Ints, Ints]:
        """Transfers of the cores that have something to move: their numbers, and which of `core` they are of."""
        which = np.flatnonzero(nbytes)
        where = np.broadcast_to(address, nbytes.shape)[which]
        return self.em.move(first + core[which], nbytes[which], [way] * len(which), where, step), which

    def way(self, tensor: str, store: bool = False) -> tuple[str, str, str]:
        """Route, tier and kind of a tensor."""
        tier = self.block.home(tensor)
        return f"{'store' if store else 'load'}:{tier}", tier, self.plan.kind(tensor)

    def scratch(self, store: bool) -> tuple[str, str, str]:
        """Route, tier and kind of partial results."""
        tier = next(t.name for t in self.chip.tiers_for("activation") if t.scope == "chip")
        return f"{'store' if store else 'load'}:{tier}", tier, "activation"


@dataclass(frozen=True)
class Tiles:
    """What streams through the cores: per CTA (block of threads) and step, bytes and the unit's time. Arrays [cta,
    step]."""

    nbytes: Ints
    hold_fs: Ints
    way: tuple[str, str, str]
    address: int
    step: int
    cause: str
    operand_bytes: Ints  # per CTA: the activation that it reads first
    operand: tuple[str, str, str]


def stream(k: Kernels, tiles: Tiles) -> tuple[Ints, Ints]:
    """Emit loads and computes of all CTAs. Returns each CTA's core and its last compute."""
    ctas, steps = tiles.nbytes.shape
    core = np.arange(ctas) % k.cores
    ahead = min(k.stages, steps) if k.overlap else 0
    start = k.em.count
    cta, step = np.repeat(np.arange(ctas), steps), np.tile(np.arange(steps), ctas)
    nbytes = tiles.nbytes.ravel()
    operand, has = k.move(k.load0, core, tiles.operand_bytes, tiles.operand)
    address = tiles.address + np.cumsum(nbytes) - nbytes
    loads, filled = k.move(k.load0, core[cta], nbytes, tiles.way, address, tiles.step)
    k.started(operand)
    k.started(loads, False)
    unit = k.matrix0 if tiles.cause == MATRIX else k.vector0
    latency = latency_fs(k.chip, tiles.cause)
    compute = k.em.hold(unit + core[cta], tiles.hold_fs.ravel(), tiles.cause, latency, n=ctas * steps)
    k.em.after(compute[filled], loads, Dep.RAW)
    k.em.after(compute[has * steps], operand, Dep.RAW)
    # Buffers: the j-th load of a core waits until the (j - stages)-th tile has been used.
    j = cta // k.cores * steps + step - k.stages
    user = (j // steps * k.cores + core[cta]) * steps + j % steps
    late = j[filled] >= 0
    k.em.after(loads[late], compute[user[filled][late]], Dep.WAR)
    # Queue order: a CTA's operand first (with overlap: behind the weights that may already come), then tile by tile.
    wide = 4 * (steps + 1)
    k.em.sort(start, np.concatenate([
        has * wide + 4 * ahead - 2, (cta * wide + 4 * step)[filled], cta * wide + 4 * np.maximum(step, ahead - 1) + 3,
    ]))  # fmt: skip
    return core, compute.reshape(ctas, steps)[:, -1]


def epilogue(
    k: Kernels, core: Ints, after: Ints, ops: Any, special: Any, nbytes: Ints, way: tuple[str, str, str]
) -> Ints:
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
