"""Products of a mixture of experts on a GPU: all woken experts in one kernel, each with the tokens that are sent to it.

CTAs are [part of the sum, expert, column tile, row tile]. The row tiles of an expert share its weights: the first reads
them from where they are held, the others find them in the nearest memory that all cores share, counted nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...workloads import DTYPE_BITS
from ..plan import Gemm, Group, by_expert, gemms
from ..program import Dep, Ints, ints
from ..tile import matrix_dtype, matrix_fs, shares, stage_bytes, unpack_fs
from .kernel_frame import Kernels, epilogue, reduce
from .kernel_ops import PARTIAL, elementwise, results
from .kernel_stream import Feed, cut, flow, in_proportion, pieces

ROWS = 128  # tokens of a tile at most
COLUMNS = (256, 128, 64, 32, 16, 8)
SPLITS = (1, 2, 3, 4, 6, 8)


@dataclass(frozen=True)
class _Ctas:
    """Arrays over all CTAs: expert, tokens, columns, terms of the sum, and whether it is the first of its weights."""

    expert: Ints
    rows: Ints
    columns: Ints
    terms: Ints
    leader: Ints
    split: int


def experts_kernel(k: Kernels, group: Group) -> None:
    """Grouped products with their biases, activation and stores."""
    plan, parts = k.plan, by_expert(gemms(group))
    weight, x = parts[0].op.inputs["weight"], parts[0].op.inputs["x"]
    dtype = matrix_dtype(k.chip, plan.dtype(weight), plan.dtype(x))
    c = _choose(k, parts, DTYPE_BITS[plan.dtype(weight)], DTYPE_BITS[plan.dtype(x)])
    area = c.columns * c.terms
    nbytes = in_proportion(sum(p.nbytes for p in parts), area * c.leader)
    again = np.where(c.leader == 1, 0, area * sum(p.nbytes for p in parts) // sum(p.n * p.k for p in parts))
    steps = pieces(k, len(area), int(max(nbytes.max(), again.max())), stage_bytes(k.chip))
    hold = matrix_fs(k.chip, dtype, c.rows, c.columns, c.terms / steps)
    near = next(t.name for t in k.chip.tiers if t.scope == "chip")
    operand = Feed(-(-c.rows * c.terms * DTYPE_BITS[plan.dtype(x)] // 8), k.way(x), True)
    feeds = [
        Feed(cut(nbytes, steps), k.way(weight), False, plan.address.get(weight, 0), k.block.step.get(weight, 0)),
        Feed(cut(again, steps), (f"load:{near}", "", "expert")),
    ]
    k.begin()
    unpack = unpack_fs(k.chip, plan.dtype(weight), dtype, area // steps)
    wide = np.repeat(hold[:, None], steps, axis=1)
    core, last = flow(k, feeds, operand, wide, None if unpack is None else np.repeat(unpack[:, None], steps, axis=1))
    tiles = len(area) // c.split
    weights = (c.rows * c.columns)[:tiles]
    vector, special = elementwise(group)
    biases = [(op.inputs["bias"], op.cost.reads[op.inputs["bias"]]) for op in group.ops if "bias" in op.inputs]
    outs = results(k, group)
    size = sum(plan.size(out) for out in outs)

    def tail(cores: Ints, done: Ints) -> Ints:
        ops = in_proportion(vector, weights) + (weights * c.split if c.split > 1 else 0)
        learned = [k.move(k.load0, cores, shares(n, tiles), k.way(tensor)) for tensor, n in biases]
        finals = epilogue(
            k, cores, done, ops, in_proportion(special, weights), in_proportion(size, weights), k.way(outs[0], True)
        )
        for loads, which in learned:
            k.started(loads, False)
            k.em.after(finals[which], loads, Dep.RAW)
        return finals

    if c.split > 1:
        k.finish(reduce(k, core, last, ints(c.rows * c.columns * PARTIAL), c.split, tail))
    else:
        k.finish(tail(core, last))


def _choose(k: Kernels, parts: list[Gemm], bits: int, xbits: int) -> _Ctas:
    """The column tile and split that give the busiest core the fewest bytes; ties: fewer parts, then wider tiles."""
    n, depth = parts[0].n, parts[0].k
    m = ints([p.m for p in parts])
    row_tiles = -(-m // ROWS)
    rows = int(np.minimum(m, ROWS).max())
    best: tuple[float, int, int] | None = None
    for columns in COLUMNS:
        for split in SPLITS:
            if (columns > n and columns > COLUMNS[-1]) or (split > 1 and depth // split < 4 * k.chip.matrix.granule.k):
                continue
            tiles = int(row_tiles.sum()) * -(-n // columns) * split
            load = depth / split * (columns * bits + rows * xbits) / 8
            extra = PARTIAL * rows * columns * (1 + split) if split > 1 else 0
            cost = (-(-tiles // k.cores) * (load + extra), split, -columns)
            best = cost if best is None or cost < best else best
    assert best is not None
    return _ctas(m, n, depth, -best[2], best[1])


def _ctas(m: Ints, n: int, depth: int, columns: int, split: int) -> _Ctas:
    widths = np.diff(np.minimum(np.arange(-(-n // columns) + 1) * columns, n))
    row_tiles = -(-m // ROWS)
    expert = np.repeat(np.arange(len(m)), row_tiles)
    tile = np.concatenate([np.arange(t) for t in row_tiles])
    tokens = np.minimum(m[expert] - tile * ROWS, ROWS)
    # Per expert [column tile, row tile].
    order = np.concatenate([np.tile(np.flatnonzero(expert == e), len(widths)) for e in range(len(m))])
    column = np.concatenate([np.repeat(np.arange(len(widths)), t) for t in row_tiles])
    count = len(order)
    return _Ctas(
        np.tile(expert[order], split), np.tile(tokens[order], split), np.tile(widths[column], split),
        np.repeat(shares(depth, split), count), np.tile(ints(tile[order] == 0), split), split,
    )  # fmt: skip
