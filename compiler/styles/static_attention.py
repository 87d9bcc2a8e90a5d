"""Attention on an LPU in its general form: many new tokens, sequences that differ, shared prefixes, latents.

Keys stand in the planes and all query rows of a sequence and KV head that see them stream past, so keys are read once
however many rows there are. Keys of new tokens come from the units that made them and are in no memory's account. Where
values are part of the keys (latents), they stream from memory a second time, which is counted nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..attend import Attend, attend, attend_op
from ..plan import Group, PlanOp
from ..program import Ints, ints
from ..tile import MIN_TOKENS, matrix_dtype, matrix_fs
from .static_state import NOTHING, Lpu, Made, Tiles, stream

SOURCES = ("q", "k", "v", "gates", "chosen")
RUN = 4  # tiles of K on each plane before a softmax: a longer context is worked in runs of tokens


@dataclass(frozen=True)
class _Job:
    """Query rows of one sequence and KV head (of all, for a shared prefix), and the keys that they see."""

    new: int
    cached: int
    fresh: int
    offset: int
    """Cached tokens of the jobs before, in the same head's order."""
    prefix: bool = False


def general_attention(s: Lpu, group: Group) -> None:
    """Work beside it first; then, job by job and run by run: scores, softmax, values; sums of a job's runs behind."""
    op = attend_op(group)
    assert op is not None
    a = attend(op)
    new = beside(s, group, tuple(o for o in group.ops if o is not op))
    inputs = [s.need(op.inputs[r]) for r in SOURCES if r in op.inputs and op.inputs[r] not in group.produced]
    learned = [s.read(op.inputs["sinks"], op.cost.reads[op.inputs["sinks"]])] if "sinks" in op.inputs else []
    x = Made((np.concatenate([new.all, *(i.all for i in inputs), *learned]),), new.early)
    per_tile = _tokens(s, a.k_dim)
    work: list[Made] = []
    pending: list[tuple[Made, Tiles]] = []
    values: list[Ints] = []
    jobs = list(_jobs(a))
    for job in jobs:
        runs = list(_runs(s, a, job, per_tile))
        for tiles_k, tiles_v, pairs in runs:
            scores = stream(s, tiles_k, x)[1]
            if pending:
                soft, before = pending.pop()
                values.append(stream(s, before, soft)[1] if a.v_dim else soft.all)
            ops, special = (n * pairs for n in a.per_pair)
            pending.append((s.worked(ops, special, scores), tiles_v))
        soft, before = pending.pop()
        values.append(stream(s, before, soft)[1] if a.v_dim else soft.all)
        summed = np.concatenate(values)
        values = []
        work.append(s.worked(a.group * job.new * a.v_dim * max(len(summed), 1), a.group * job.new, summed))
    made = Made((np.concatenate([w.all for w in work]),), (work[-1].early[0],))
    for tensor in s.results(group):
        if tensor in op.outputs.values():
            s.keep(group, tensor, made)
    s.last = made.all


def _jobs(a: Attend) -> Iterator[_Job]:
    shared = max(span.shared for span in a.spans)
    for _ in range(a.kv_heads):
        at = 0
        if shared:
            yield _Job(sum(s.rows for s in a.spans if s.shared), shared, 0, 0, True)
            at = shared
        for span in a.spans:
            own = span.cached - span.shared if a.cached else 0
            for _ in range(span.sequences):
                yield _Job(span.new, own, span.new + (0 if a.cached else span.cached), at)
                at += own


def _runs(s: Lpu, a: Attend, job: _Job, per_tile: int) -> Iterator[tuple[Tiles, Tiles, int]]:
    """Tiles of keys and of values of each run of a job, and the pairs that they make."""
    op, plan = a.op, s.plan
    keys = job.cached + job.fresh
    runs = max(1, keys // (RUN * s.planes * per_tile))
    still = op.inputs["k_cache" if a.cached else "k"]
    dtype = matrix_dtype(s.chip, plan.dtype(still), plan.dtype(op.inputs["q"]))
    for run in range(runs):
        low, high = keys * run // runs, keys * (run + 1) // runs
        count = -(-(high - low) // per_tile)
        count = max(count, min(-(-count // s.planes) * s.planes, (high - low) // MIN_TOKENS))
        edges = low + (high - low) * np.arange(count + 1) // count
        wide = np.diff(edges)
        rows = a.group * _seeing(a, job, edges)
        cached = np.diff(np.minimum(edges, job.cached))
        hold_k, hold_v = matrix_fs(s.chip, dtype, rows, wide, a.k_dim), matrix_fs(s.chip, dtype, rows, a.v_dim, wide)
        at, plane = np.arange(count), np.arange(count) % s.planes
        zero, one = np.zeros(count, np.int64), np.ones(count, np.int64)
        last = (at >= count - s.planes).astype(np.int64)
        out = []
        for role, hold, ends in (("k_cache", hold_k, one), ("v_cache", hold_v, last)):
            again = role not in op.inputs and a.cached
            tensor = op.inputs.get(role, still)
            size, offset = _cache_bytes(a, job, tensor, low, cached) if a.cached else (zero, 0)
            out.append(Tiles(plane, size, hold, zero, one, 1, ends, tensor, offset, not again))
        yield out[0], out[1], int((rows * wide).sum())


def _seeing(a: Attend, job: _Job, edges: Ints) -> Ints:
    """Tokens of a job that see the keys from one edge to the next: at least one."""
    before = job.cached + job.fresh - job.new  # keys that all new tokens have behind them
    if job.prefix:
        return np.full(len(edges) - 1, job.new)
    first = np.maximum(edges[:-1] - before, 0)
    last = np.full(len(first), job.new) if a.window is None else np.minimum(job.new, edges[1:] - before + a.window)
    return ints(np.maximum(last - first, 1))


def _cache_bytes(a: Attend, job: _Job, tensor: str, low: int, cached: Ints) -> tuple[Ints, int]:
    """Bytes of the cached tokens of each tile, and where they begin in one head's part of the cache."""
    size, tokens = a.op.cost.reads[tensor], a.op.dims["cached"] * a.kv_heads
    begin = job.offset + min(low, job.cached)
    edges = (begin + np.concatenate([[0], np.cumsum(cached)])) * size // tokens
    return ints(np.diff(edges)), int(edges[0])


def _tokens(s: Lpu, size: int) -> int:
    """Tokens of a head of `size` that a plane holds, as columns of K."""
    array, g = s.chip.matrix.array, s.chip.matrix.granule
    rows, cols = (array.rows, array.cols) if array is not None else (g.k, g.n)
    return max(1, min(cols // -(-size // rows), rows // -(-size // cols)) if size <= max(rows, cols) else cols // 2)


def beside(s: Lpu, group: Group, ops: tuple[PlanOp, ...]) -> Made:
    """Row work in front of attention: norms of heads, positions, the append to the cache. What attention then has."""
    made = {t for o in ops for t in o.outputs.values()}
    new = [t for t in dict.fromkeys(t for o in ops for t in o.inputs.values()) if t not in made]
    have = [NOTHING]
    for tensor in new:
        if s.plan.kind(tensor) == "activation":
            have.append(s.need(tensor).all)
        else:
            have.append(s.read(tensor, s.plan.size(tensor)))
    all_of = np.concatenate(have)
    vector, special = (sum(getattr(o.cost, n) for o in ops) for n in ("vector_ops", "special_ops"))
    out = s.worked(vector, special, all_of) if vector or special else Made((all_of,), (all_of,))
    for op in ops:
        if op.op == "kv_append":
            for tensor in op.outputs.values():
                s.keep(group, tensor, out)
    return out
