"""Products of a mixture of experts on a GPU: all woken experts in one kernel, each with the tokens that are sent to it.

CTAs are [part of the sum, expert, column tile, row tile]. The row tiles of an expert share its weights: the first reads
them from where they are held, the others find them in the nearest memory that all cores share, counted nowhere.
"""

from __future__ import annotations

import numpy as np

from ...workloads import DTYPE_BITS
from ..machine import MATRIX
from ..plan import Gemm, Group, by_expert, gemms
from ..program import Dep, Ints, ints
from ..tile import PARTIAL, PIECES, GemmTiles, Product, gemm_tiles, matrix_dtype, shares, step_fs
from .kernel_frame import Kernels, Tiles, reduce, stream
from .kernel_ops import Outputs, cut_side, sum_parts, unpack_pieces, with_pieces
from .kernel_stream import in_proportion


def experts_kernel(k: Kernels, group: Group) -> None:
    """Grouped products with their biases, activation and stores."""
    plan, chip, parts = k.plan, k.chip, by_expert(gemms(group))
    weight, x = parts[0].op.inputs["weight"], parts[0].op.inputs["x"]
    bits, xbits = DTYPE_BITS[plan.dtype(weight)], DTYPE_BITS[plan.dtype(x)]
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    n, depth = parts[0].n, parts[0].k
    most = max(p.m for p in parts)
    t = gemm_tiles(chip, Product(most, n * len(parts), depth, bits, xbits, dtype, k.block.home(weight)))
    tokens, columns, leader = _ctas(parts, t, n)
    ctas, terms = len(tokens), shares(depth, t.split)
    part, of = np.repeat(np.arange(t.split), ctas), np.tile(np.arange(ctas), t.split)
    area = columns[of] * terms[part]
    first = leader[of] == of
    total, elements = sum(p.nbytes for p in parts), sum(p.n * p.k for p in parts)
    nbytes = np.where(first, in_proportion(total, area * first), area * total // elements)
    grain = min(t.steps, -(-len(of) * t.steps // PIECES))
    pieces = -(-t.steps // grain)
    steps = shares(t.steps, pieces)
    hold = np.stack([step_fs(chip, dtype, t.rows, t.columns, steps * -(-int(d) // t.steps), steps) for d in terms])
    operand = with_pieces(-(-tokens[of] * terms[part] * xbits // 8), pieces)
    prologue = int(chip.execution.prologue.value)
    k.begin(prologue)
    core, last = stream(k, Tiles(
        np.stack([shares(b, pieces) for b in nbytes]), hold[part], k.way(weight, "copy"), plan.address.get(weight, 0),
        k.block.step.get(weight, 0), MATRIX, operand, k.way(x, "copy"),
        max(2, t.stages // grain) if t.stages > 1 else 1, part * ctas + leader[of], None, prologue,
        unpack_pieces(chip, plan.dtype(weight), dtype, area, pieces),
    ))  # fmt: skip
    outputs, sums = Outputs.of(k, group, ctas, k.way(weight)), sum(p.m for p in parts) * n
    partial = ints(tokens[of] * columns[of] * PARTIAL)
    if t.split == 1:
        k.finish(outputs.tail(k, core, last, 0))
    elif chip.execution.reduction == "inside":
        k.finish(reduce(k, core, last, partial, t.split, lambda c, done: outputs.tail(k, c, done, sums * t.split)))
    else:
        stores = k.em.move(k.store0 + core, partial, [k.scratch(True)] * len(core))
        k.em.after(stores, last, Dep.RAW)
        k.finish(stores)
        sum_parts(k, group, sums, t.split)


def _ctas(parts: list[Gemm], t: GemmTiles, n: int) -> tuple[Ints, Ints, Ints]:
    """Of each CTA of one part of the sum: tokens, columns, and the first CTA that reads the same weights."""
    widths = cut_side(n, t.columns)
    tokens, columns, leader, at = [], [], [], 0
    for p in parts:
        rows = cut_side(p.m, t.rows)
        tokens.append(np.tile(rows, len(widths)))
        columns.append(np.repeat(widths, len(rows)))
        leader.append(at + np.arange(len(rows) * len(widths)) // len(rows) * len(rows))
        at += len(rows) * len(widths)
    return np.concatenate(tokens), np.concatenate(columns), np.concatenate(leader)
