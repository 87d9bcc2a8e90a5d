"""Tiles of several sources that stream through the cores together: what the general form of attention is made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..machine import MATRIX
from ..program import Dep, Ints, ints
from ..tile import PIECES, latency_fs
from .kernel_frame import Kernels

Way = tuple[str, str, str]


@dataclass(frozen=True)
class Feed:
    """One source of the tiles: bytes of each [cta, step], and their way. `result`: of the kernel before."""

    nbytes: Ints
    way: Way
    result: bool = False
    address: int = 0
    step: int = 0


def flow(k: Kernels, feeds: list[Feed], operand: Feed, hold_fs: Ints) -> tuple[Ints, Ints]:
    """Emit loads and products of all CTAs. `operand` [cta] comes before a CTA's first tile, `hold_fs` is [cta, step].

    CTAs take the cores in turn. Returns each CTA's core and its last product.
    """
    ctas, steps = hold_fs.shape
    core = np.arange(ctas) % k.cores
    start = k.em.count
    cta, step = np.repeat(np.arange(ctas), steps), np.tile(np.arange(steps), ctas)
    first, has = k.move(k.load0, core, operand.nbytes, operand.way, operand.address, operand.step)
    k.started(first, operand.result)
    wide, at = 2 * (steps + 1), 2 * step + 1
    keys = [has * wide]
    parts = []
    for feed in feeds:
        nbytes = feed.nbytes.ravel()
        address = feed.address + np.cumsum(nbytes) - nbytes
        loads, filled = k.move(k.load0, core[cta], nbytes, feed.way, address, feed.step)
        k.started(loads, feed.result)
        parts.append((loads, filled))
        keys.append((cta * wide + at)[filled])
    compute = k.em.hold(k.matrix0 + core[cta], hold_fs.ravel(), MATRIX, latency_fs(k.chip, MATRIX), n=ctas * steps)
    k.em.after(compute[has * steps], first, Dep.RAW)
    # Buffers: the tiles of step j of a core wait until those of step j - stages have been used.
    j = cta // k.cores * steps + step - k.stages
    user = (j // steps * k.cores + core[cta]) * steps + j % steps
    fed = np.zeros(ctas * steps, bool)
    for loads, filled in parts:
        k.em.after(compute[filled], loads, Dep.RAW)
        late = j[filled] >= 0
        k.em.after(loads[late], compute[user[filled][late]], Dep.WAR)
        fed[filled] = True
    alone = compute[~fed & ~np.isin(np.arange(ctas * steps), has * steps)]
    k.started(alone)
    k.em.sort(start, np.concatenate([*keys, cta * wide + at + 1]))
    return core, compute.reshape(ctas, steps)[:, -1]


def pieces(k: Kernels, ctas: int, most_bytes: int, stage: int) -> int:
    """Tiles of each CTA: no larger than a stage's buffer, fewer where a kernel would have too many."""
    return max(1, min(-(-most_bytes // stage), max(1, PIECES // ctas)))


def cut(total: Ints, steps: int) -> Ints:
    """[cta, step]: each CTA's number in equal parts, sums exact."""
    edges = np.asarray(total)[:, None] * np.arange(steps + 1)[None, :] // steps
    out: Ints = np.diff(edges, axis=1)
    return out


def in_proportion(total: int, weights: Ints) -> Ints:
    """A whole number in proportion to weights, the sum exact; all to none where the weights are 0."""
    edges = np.concatenate([[0], np.cumsum(weights)]).astype(object)  # products of these may pass 64 bits
    return ints(np.diff(total * edges // max(int(edges[-1]), 1)))
