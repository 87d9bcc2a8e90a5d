"""Attention of a section in its general form: many new tokens, sequences that differ, shared prefixes, latents.

The keys of one KV head, sequence by sequence, pass in tiles; all query rows that see them meet each tile. Cached ones
stream from memory as weights do, those of new tokens come from the cores that made them. Of a latent, values are the
keys that have just passed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..attend import Attend, attend, attend_op
from ..machine import MATRIX
from ..plan import Group
from ..program import Dep, Ints, ints
from ..tile import matrix_dtype, matrix_fs, shares
from .section_frame import Section

FRESH_TILE = 256  # keys of new tokens that pass together: finer than that, a mask hides little


def general_attention(s: Section, group: Group) -> None:
    """Work beside it first, then head by head through all keys."""
    op = attend_op(group)
    assert op is not None
    a = attend(op)
    around = tuple(o for o in group.ops if o is not op)
    start = s.vector(sum(o.cost.vector_ops for o in around), sum(o.cost.special_ops for o in around))
    s.inputs(start, group)
    s.result(around, start)
    table = ints(list(_tiles(s, a))).reshape(-1, 3)
    pieces = _head_pieces(s, a)
    heads = np.repeat(pieces, len(table))
    rows, keys, cached = (np.tile(table[:, i], len(pieces)) for i in range(3))
    still = op.inputs["k_cache" if a.cached else "k"]
    dtype = matrix_dtype(s.chip, s.plan.dtype(still), s.plan.dtype(op.inputs["q"]))
    units = s.matrix_units / heads
    hold = matrix_fs(s.chip, dtype, rows, keys, a.k_dim, units) + matrix_fs(s.chip, dtype, rows, a.v_dim, keys, units)
    tail = op.cost.vector_ops, op.cost.special_ops
    work, out = s.tiled(group, heads * cached, hold, MATRIX, tail, heads * rows * keys)
    s.em.after(work[:1], start, Dep.RAW)
    s.result((op,), out[len(table) - 1 :: len(table)], np.cumsum(pieces))


def _head_pieces(s: Section, a: Attend) -> Ints:
    """KV heads that pass side by side: one after the other where their cache is more than a tile."""
    size = sum(a.op.cost.reads[a.op.inputs[r]] for r in ("k_cache", "v_cache") if r in a.op.inputs)
    return shares(a.kv_heads, max(1, min(-(-size // s.tile), a.kv_heads)))


def _tiles(s: Section, a: Attend) -> Iterator[tuple[int, int, int]]:
    """(query rows, keys, cached keys) of each tile of one head."""
    size = sum(a.op.cost.reads[a.op.inputs[r]] for r in ("k_cache", "v_cache") if r in a.op.inputs)
    fit = max(1, a.op.dims["cached"] * s.tile // max(size, 1)) if a.cached else FRESH_TILE
    shared = max(span.shared for span in a.spans)
    if shared:
        rows = a.group * sum(span.rows for span in a.spans if span.shared)
        yield from ((rows, int(n), int(n)) for n in shares(shared, -(-shared // fit)))
    for span in a.spans:
        for _ in range(span.sequences):
            own = span.cached - span.shared
            for n in shares(own, -(-own // fit)) if own else ():
                yield a.group * span.new, int(n), int(n) if a.cached else 0
            for at in range(0, span.new, FRESH_TILE):
                keys = min(FRESH_TILE, span.new - at)
                seen = span.new - at if a.window is None else min(span.new - at, keys + a.window)
                yield a.group * seen, keys, 0
