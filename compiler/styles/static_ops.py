"""The groups of ops of an LPU: products, attention, elementwise, collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from ...workloads import DTYPE_BITS
from ...workloads.dtypes import dtype_of
from ..attend import plain_decode
from ..collectives import rounds
from ..machine import MATRIX
from ..plan import Gemm, Group, PlanOp, by_expert, gemms, message
from ..program import Ints
from ..tile import MIN_TOKENS, matrix_dtype, matrix_fs, shares, unpack_fs
from .static_attention import RUN, general_attention
from .static_state import NOTHING, Lpu, Made, Tiles, stream


def _linear(s: Lpu, group: Group) -> None:
    """Products of one activation: column tiles over the planes, the sum in order; what does not fill all planes is cut
    along the sum instead."""
    parts = gemms(group)
    if group.kind == "expert_linear":
        parts = by_expert(parts)
    elif len(parts) > 1 and all(p.op.op == "linear" and p.k == parts[0].k for p in parts):
        # Siblings side by side, their columns laid out in turns: so each round has what its part of an epilogue needs.
        parts = [Gemm(parts[0].op, parts[0].m, sum(p.n for p in parts), parts[0].k, 1, sum(p.nbytes for p in parts))]
    biases = [(t, o.cost.reads[t]) for o in group.ops for r, t in o.inputs.items() if r == "bias"]
    bias = [s.read(t, max(group.scaled(n), 1)) for t, n in biases]
    columns = sum(g.n * g.count for g in parts)
    work: list[Made] = []
    ends = [0]
    for g in parts:
        for drained, width, sums in _rounds(s, g):
            ops, special = (v * (ends[-1] + width) // columns - v * ends[-1] // columns for v in _elementwise(group))
            if ops + sums or special:
                drained = s.worked(ops + sums, special, np.concatenate([drained.all, *(bias if not work else [])]))
            work.append(drained)
            ends.append(ends[-1] + width)
    made = Made(tuple(w.all for w in work), tuple(w.early[0] for w in work), tuple(ends[1:]))
    out = s.results(group)
    for tensor in out:
        s.keep(group, tensor, made if len(out) == 1 and len(parts) == 1 else made.whole())


def _elementwise(group: Group) -> tuple[int, int]:
    """Elementwise and special operations of a group, biases included."""
    ops, special = (sum(getattr(o.cost, a) for o in group.ops) for a in ("vector_ops", "special_ops"))
    return group.scaled(ops), group.scaled(special)


def _rounds(s: Lpu, g: Gemm) -> Iterator[tuple[Made, int, int]]:
    """Stream one product; per round of column tiles: the sums that come out, their columns, additions still to do."""
    x = s.need(next(t for r, t in g.op.inputs.items() if r in ("x", "a")))
    tiles, column, width = _gemm_tiles(s, g)
    issued, drains = stream(s, tiles, x)
    done = column[np.flatnonzero(tiles.last)]
    for first in range(0, len(width), s.planes):
        mine = (done >= first) & (done < first + s.planes)
        columns = int(width[first : first + s.planes].sum())
        sums = g.m * (int(width[done[mine]].sum()) - columns)
        yield Made((drains[mine],), (s.soon(MATRIX, 0, issued[mine], drains[mine]),)), columns, sums


def _gemm_tiles(s: Lpu, g: Gemm) -> tuple[Tiles, Ints, Ints]:
    """Tiles in streaming order, the column tile of each, and the widths of column tiles."""
    chip, plan = s.chip, s.plan
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    rows, cols = _array(s)
    n = g.n * g.count
    width, depth = shares(n, -(-n // cols)), shares(g.k, -(-g.k // rows))
    columns, sums = len(width), len(depth)
    full = columns // s.planes * s.planes
    # Full rounds: [round, sum, plane]. The rest: [column, sum], dealt out to the planes.
    column = np.arange(full).reshape(-1, 1, s.planes).repeat(sums, axis=1).ravel()
    part = np.tile(np.repeat(np.arange(sums), s.planes), full // s.planes)
    column = np.concatenate([column, np.repeat(np.arange(full, columns), sums)])
    part = np.concatenate([part, np.tile(np.arange(sums), columns - full)])
    plane = np.where(column < full, column, np.arange(len(column)) - full * sums) % s.planes
    area = np.concatenate([[0], np.cumsum(width[column] * depth[part])])
    stored = dtype_of(plan.dtype(weight))
    # Scales are shared out evenly; where there are none, tiles have whole elements, also of a part of a weight.
    edges = area * g.nbytes // (n * g.k) if stored.block_bits else area * stored.bits // 8
    edges[-1] = g.nbytes
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    hold = matrix_fs(chip, dtype, g.m, width[column], depth[part])
    unpack = unpack_fs(chip, plan.dtype(weight), dtype, width[column] * depth[part], s.units)
    upto = np.cumsum(depth)
    _, final = np.unique((column * s.planes + plane)[::-1], return_index=True)
    last = np.zeros(len(column), np.int64)
    last[len(column) - 1 - final] = 1
    return Tiles(plane, np.diff(edges), hold, (upto - depth)[part], upto[part], g.k, last, weight, g.offset,
                 unpack_fs=unpack), column, width  # fmt: skip


def _array(s: Lpu) -> tuple[int, int]:
    """Rows and columns of a plane's weights."""
    array, g = s.chip.matrix.array, s.chip.matrix.granule
    return (array.rows, array.cols) if array is not None else (g.k, g.n)


def _attention(s: Lpu, group: Group) -> None:
    """Rotary positions and the append; for every sequence and KV head, run of tokens by run: scores, softmax, values;
    then the sum over its runs.

    The next run's scores stream before a run's values, so the planes have work while the vector unit is at the softmax.
    """
    if not plain_decode(group):
        return general_attention(s, group)
    op = next(o for o in group.ops if o.op == "attention")
    c = op.cost
    new = _append(s, group)
    inputs = [s.need(op.inputs[r]) for r in ("q", "k", "v") if op.inputs[r] not in group.produced]
    pairs = c.batch_gemms // 2
    runs = max(1, c.n // (RUN * s.planes * _tokens(s, c.k)))
    x = Made((np.concatenate([new.all, *(i.all for i in inputs)]),), new.early)
    ops, special = (shares(v, pairs * runs).tolist() for v in (c.vector_ops, c.special_ops))
    scores: list[Ints] = []
    values: list[Ints] = []
    work: list[Made] = []
    for i in range(pairs * runs + 1):
        if i < pairs * runs:
            scores.append(stream(s, _cache_tiles(s, op, "k_cache", i, pairs * runs), x)[1])
        if i:
            soft = s.worked(ops[i - 1], special[i - 1], scores[i - 1])
            values.append(stream(s, _cache_tiles(s, op, "v_cache", i - 1, pairs * runs), soft)[1])
            if i % runs == 0:
                summed = np.concatenate(values[-runs:])
                work.append(s.worked(c.m * c.k * len(summed), 0, summed))
    made = Made(tuple(w.all for w in work), tuple(w.early[0] for w in work), tuple(range(1, pairs + 1)))
    alone = s.plan.graph.graph["batch"] == 1  # then a pair's results are neighbouring columns
    for tensor in s.results(group):
        if tensor in op.outputs.values():
            s.keep(group, tensor, made if alone else made.whole())
    s.last = made.all
    return None


def _append(s: Lpu, group: Group) -> Made:
    """Rotary positions of the new token; its K and V to the cache. What the attention then has."""
    ops = [o for o in group.ops if o.op in ("rope", "kv_append")]
    new = [t for t in dict.fromkeys(t for o in ops for t in o.inputs.values()) if t not in group.produced]
    sources = [s.need(t) for t in new]
    have = np.concatenate([NOTHING, *(m.all for m in sources)])
    work = sum(o.cost.vector_ops for o in ops)
    made = s.worked(work, 0, have) if work else Made((have,), (have,))
    for op in ops:
        if op.op == "kv_append":
            for tensor in op.outputs.values():
                s.keep(group, tensor, made)
    return made


def _tokens(s: Lpu, size: int) -> int:
    """Tokens of a head of `size` that a plane holds, as columns of K or rows of V."""
    rows, cols = _array(s)
    return max(1, min(cols // -(-size // rows), rows // -(-size // cols)))


def _cache_tiles(s: Lpu, op: PlanOp, role: str, run: int, runs: int) -> Tiles:
    """The K or V tiles of one run of tokens of one sequence and KV head, shared out over the planes."""
    c, cache = op.cost, op.inputs[role]
    pair_runs = 2 * runs // c.batch_gemms
    tokens = -(-c.n // pair_runs)
    count = -(-tokens // _tokens(s, c.k))
    count = max(count, min(-(-count // s.planes) * s.planes, tokens // MIN_TOKENS))
    edges = np.arange(run * count, (run + 1) * count + 1) * c.reads[cache] // (runs * count)
    keys = shares(tokens, count)
    dtype = matrix_dtype(s.chip, s.plan.dtype(cache), s.plan.dtype(op.inputs["q"]))
    hold = matrix_fs(s.chip, dtype, c.m, keys, c.k) if role == "k_cache" else matrix_fs(s.chip, dtype, c.m, c.k, keys)
    at = np.arange(count)
    last = np.ones(count, np.int64) if role == "k_cache" else (at >= count - s.planes).astype(np.int64)
    plane = (at + run * count) % s.planes
    return Tiles(
        plane, np.diff(edges), hold, np.zeros(count, np.int64), np.ones(count, np.int64), 1, last, cache, int(edges[0])
    )


def vector(s: Lpu, group: Group) -> None:
    """Norms, lookups, elementwise: what comes meets what is in memory. Of a cut table, part 0 reads the row."""
    pred: list[Ints] = []
    for tensor, nbytes in group.reads.items():
        if s.plan.kind(tensor) == "activation":
            pred.append(s.need(tensor).all)
        elif nbytes and not group.part[0]:
            pred.append(s.read(tensor, nbytes))
    ops, special = _elementwise(group)
    if not pred:
        return
    have = np.concatenate(pred)
    out = s.worked(ops, special, have) if ops or special else Made((have,), (have,))
    for tensor in s.results(group):
        s.keep(group, tensor, out)


def _collective(s: Lpu, group: Group) -> None:
    """Rounds of sends, part by part: what is ready goes out while the planes work on the next columns.

    What arrives lies in memory, and is read and summed where the round says so.
    """
    op = group.ops[0]
    source, tensor = next(iter(op.inputs.values())), next(iter(op.outputs.values()))
    link, bits = s.chip.link, DTYPE_BITS.get(s.plan.dtype(tensor), 16)
    assert link is not None
    before = s.memory.get(source, NOTHING)
    made = s.fresh(source) or Made((before,), (before,))
    schedule = rounds(group.kind, *message(s.plan, group), link)
    work = [Made((who,), (who,)) for who in made.who]
    for r in schedule:  # round by round, so that no part waits behind the later rounds of the one before it
        for i, (_, _, lo, hi) in enumerate(made.parts()):
            send, came = (max(n * hi // made.ends[-1] - n * lo // made.ends[-1], 1) for n in (r.send, r.reduce))
            sent = s.em.send(s.em.machine.engine("c2c"), send)
            s.after(sent, work[i].all)
            work[i] = Made((sent,), (sent,))
            if r.reduce:
                work[i] = s.worked(came * 8 // bits, 0, s.read(tensor, came, sent))
    out = Made(tuple(w.all for w in work), tuple(w.early[0] for w in work), made.ends)
    if schedule[-1].reduce:
        s.keep(group, tensor, out)
    else:
        s.memory[tensor] = s.last = out.all
        s.leaves.append(out.all)


GROUPS: dict[str, Callable[[Lpu, Group], None]] = {
    **dict.fromkeys(("linear", "matmul", "expert_linear", "latent_expand", "absorb_q", "absorb_v"), _linear),
    "attention": _attention,
    "index_scores": _attention,
    "all_reduce": _collective,
    "all_gather": _collective,
    "all_to_all": _collective,
}
