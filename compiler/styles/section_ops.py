"""The groups of a section: products, attention, row and elementwise work, collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...workloads import DTYPE_BITS
from ..attend import plain_decode
from ..collectives import rounds
from ..fuse import ELEMENTWISE
from ..machine import MATRIX, VECTOR
from ..plan import Group, PlanOp, by_expert, gemms, message
from ..program import Dep, Ints, ints
from ..tile import matrix_dtype, matrix_fs, shares, unpack_fs, vector_fs
from .section_attention import general_attention
from .section_frame import Pieces, Section, portions


def cuts(whole: int, parts: int, granule: int) -> Ints:
    """A length in at most that many parts, all but the last of whole granules."""
    blocks = -(-whole // granule)
    parts = max(1, min(parts, blocks))
    return ints(np.diff(np.minimum(granule * (blocks * np.arange(parts + 1) // parts), whole)))


def _operations(ops: tuple[PlanOp, ...]) -> tuple[int, int]:
    """Elementwise and special operations, biases included."""
    return sum(o.cost.vector_ops for o in ops), sum(o.cost.special_ops for o in ops)


def gemm(s: Section, group: Group) -> None:
    """Products of one activation, side by side: by columns, or along the sum where the activation comes in pieces."""
    parts, granule = gemms(group), s.chip.matrix.granule
    g, n, size = parts[0], sum(p.n for p in parts), s.streamed(group)
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    pieces = s.made.get(x)
    along = pieces is not None and len(pieces.made) > 1 and g.count == 1
    whole, step, across = (g.k, granule.k, n) if along else (n, granule.n, g.k)
    width = cuts(whole, -(-size // s.tile), step)
    # A granule's breadth of a long matrix may be more than a tile: then each is cut the other way too.
    split = max(1, -(-int(width.max()) * size // (whole * s.tile)))
    width, across = np.repeat(width, split), -(-across // split)
    dtype = matrix_dtype(s.chip, s.plan.dtype(weight), s.plan.dtype(x))
    columns, depth = (across, width) if along else (width, across)
    hold = matrix_fs(s.chip, dtype, g.m, columns, depth, s.matrix_units / g.count)
    piecewise = not along and split == 1 and g.count == 1
    operations = _operations(group.ops)
    elements = columns * depth * g.count
    unpack = unpack_fs(s.chip, s.plan.dtype(weight), dtype, elements, s.vector_units)
    work, out = s.tiled(group, width, hold, MATRIX, operations if piecewise else (0, 0), unpack=unpack)
    s.inputs(work[:1], group, x if along else "")
    if along and pieces is not None:
        s.em.after(work, pieces.covering(-(-np.cumsum(width) // split)), Dep.RAW)
    if not piecewise and any(operations):
        out = s.vector(*operations)
        s.em.after(out, work[-1:], Dep.RAW)
    s.result(group.ops, out, np.cumsum(width) if piecewise else None)


def experts(s: Section, group: Group) -> None:
    """Products of the woken experts, one after the other, each with the tokens that are sent to it."""
    parts = by_expert(gemms(group))
    weight, x = parts[0].op.inputs["weight"], parts[0].op.inputs["x"]
    dtype = matrix_dtype(s.chip, s.plan.dtype(weight), s.plan.dtype(x))
    tiles = -(-sum(p.nbytes for p in parts) // (s.tile * len(parts)))
    width = cuts(parts[0].n, tiles, s.chip.matrix.granule.n)
    split = max(1, -(-int(width.max()) * parts[0].nbytes // (parts[0].n * s.tile)))
    width = np.tile(np.repeat(width, split), len(parts))
    rows = np.repeat(ints([p.m for p in parts]), len(width) // len(parts))
    hold = matrix_fs(s.chip, dtype, rows, width, -(-parts[0].k // split), s.matrix_units)
    elements = width * -(-parts[0].k // split)
    unpack = unpack_fs(s.chip, s.plan.dtype(weight), dtype, elements, s.vector_units)
    work, out = s.tiled(group, width, hold, MATRIX, _operations(group.ops), rows * width, unpack)
    s.inputs(work[:1], group)
    s.result(group.ops, out)


def attention(s: Section, group: Group) -> None:
    """Rotary positions and the append; then head by head through the cache, its tokens in tiles.

    The cache is known beforehand, so it streams as weights do. A tile has at least one token of one head.
    """
    if not plain_decode(group):
        return general_attention(s, group)
    op = next(o for o in group.ops if o.op == "attention")
    around = tuple(o for o in group.ops if o is not op)
    c, cache = op.cost, op.inputs["k_cache"]
    batch, heads, tokens = (int(n) for n in s.plan.graph.nodes[cache]["shape"][:3])
    start = s.vector(*_operations(around))
    s.inputs(start, group)
    s.result(around, start)
    size = s.streamed(group)
    heads_per_piece = shares(heads, max(1, min(-(-size // s.tile), heads)))
    fit = max(1, tokens * heads * s.tile // (size * int(heads_per_piece.max())))  # tokens of a tile
    split = -(-tokens // fit)
    head = np.repeat(heads_per_piece, split)
    keys = np.tile(shares(tokens, split), len(heads_per_piece))
    weights = head * keys
    keys = keys + (np.arange(len(keys)) % split == split - 1)  # with the new token, which comes from the chip
    dtype = matrix_dtype(s.chip, s.plan.dtype(cache), s.plan.dtype(op.inputs["q"]))
    units: Any = s.matrix_units / (batch * head)
    hold = matrix_fs(s.chip, dtype, c.m, keys, c.k, units) + matrix_fs(s.chip, dtype, c.m, c.k, keys, units)
    work, out = s.tiled(group, weights, hold, MATRIX, _operations((op,)))
    s.em.after(work[:1], start, Dep.RAW)
    return s.result((op,), out[split - 1 :: split], np.cumsum(heads_per_piece))


def vector(s: Section, group: Group) -> None:
    """Norms, lookups, sampling wait for all of their input; elementwise ops follow the pieces of theirs."""
    size = s.streamed(group)
    ops, special = _operations(group.ops)
    follow = None
    if not size and all(o.op in ELEMENTWISE for o in group.ops):
        follow = max((t for t in group.reads if t in s.made), key=lambda t: len(s.made[t].made), default=None)
    lead = s.made[follow] if follow else Pieces(ints([]), np.arange(1, max(1, -(-size // s.tile)) + 1))
    weights = np.diff(lead.upto, prepend=0)
    hold = vector_fs(s.chip, portions(ops, weights), portions(special, weights), s.vector_units)
    work, _ = s.tiled(group, weights, hold, VECTOR)
    s.inputs(work[:1], group, follow or "")
    if follow:
        s.em.after(work, lead.made, Dep.RAW)
    s.result(group.ops, work, lead.upto if follow else None)


def collective(s: Section, group: Group) -> None:
    """All-reduce or all-gather: rounds of sends; what came is summed on the group's cores."""
    link = s.chip.link
    assert link is not None
    result = next(iter(group.ops[0].outputs.values()))
    bits = DTYPE_BITS.get(s.plan.dtype(result), 16)
    before = ints([])
    for r in rounds(group.kind, *message(s.plan, group), link):
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


EMITTERS: dict[str, Callable[[Section, Group], None]] = {
    **dict.fromkeys(("linear", "matmul", "latent_expand", "absorb_q", "absorb_v"), gemm),
    "expert_linear": experts,
    "attention": attention,
    "index_scores": attention,
    "all_reduce": collective,
    "all_gather": collective,
    "all_to_all": collective,
}
