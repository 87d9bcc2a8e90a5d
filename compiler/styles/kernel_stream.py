"""Tiles of several sources that stream through the cores together: what attention and grouped products are made of."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..machine import MATRIX, VECTOR
from ..program import Dep, Ints
from ..tile import latency_fs
from .kernel_frame import Kernels

PIECES = 16384  # tiles of a kernel: those of longer ones are simulated several at a time
Way = tuple[str, str, str]


@dataclass(frozen=True)
class Feed:
    """One source of the tiles: bytes of each [cta, step], and their way. `result`: of the kernel before."""

    nbytes: Ints
    way: Way
    result: bool = False
    address: int = 0
    step: int = 0


def flow(
    k: Kernels, feeds: list[Feed], operand: Feed, hold_fs: Ints, unpack_fs: Ints | None = None
) -> tuple[Ints, Ints]:
    """Emit loads and products of all CTAs. `operand` [cta] comes before a CTA's first tile, `hold_fs` is [cta, step].

    `unpack_fs` [cta, step]: what the vector unit does with a tile before its product.

    CTAs take the cores in turn. Returns each CTA's core and its last product.
    """
    ctas, steps = hold_fs.shape
    core = np.arange(ctas) % k.cores
    start = k.em.count
    cta, step = np.repeat(np.arange(ctas), steps), np.tile(np.arange(steps), ctas)
    first, has = k.move(k.load0, core, operand.nbytes, operand.way, operand.address, operand.step)
    k.started(first, operand.result)
    wide, at = 3 * (steps + 1), 3 * step + 1
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
    takes = compute
    if unpack_fs is not None:
        takes = k.em.hold(k.vector0 + core[cta], unpack_fs.ravel(), VECTOR, latency_fs(k.chip, VECTOR), n=ctas * steps)
        k.em.after(compute, takes, Dep.RAW)
    for loads, filled in parts:
        k.em.after(takes[filled], loads, Dep.RAW)
        late = j[filled] >= 0
        k.em.after(loads[late], compute[user[filled][late]], Dep.WAR)
        fed[filled] = True
    alone = compute[~fed & ~np.isin(np.arange(ctas * steps), has * steps)]
    k.started(alone)
    order = cta * wide + at + 2
    k.em.sort(start, np.concatenate([*keys, order, *([order - 1] if unpack_fs is not None else [])]))
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
    edges = np.concatenate([[0], np.cumsum(weights)])
    out: Ints = np.diff(total * edges // max(int(edges[-1]), 1))
    return out
