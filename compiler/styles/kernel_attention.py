"""Attention on a GPU where it is more than one new token per sequence against a cache: a flash kernel over blocks of
query rows, its keys split over cores where blocks are too few.

attend.py says which blocks there are and what they read. Keys and values that another block has read come from the
nearest memory that all cores share, and are counted nowhere.
"""

from __future__ import annotations

import numpy as np

from ...arch.parts import FlashKernel
from ..attend import ATTENDS, Attend, Items, attend, attend_op, latent_decode, plain_decode
from ..machine import VECTOR
from ..plan import Group, PlanOp
from ..program import Dep, Ints, ints
from ..tile import MIN_TOKENS, PARTIAL, latency_fs, matrix_dtype, shares, stage_bytes, step_fs, vector_fs
from .kernel_decode import attention, helpers
from .kernel_frame import Kernels, epilogue
from .kernel_stream import Feed, cut, flow, in_proportion, pieces

BLOCK_ROWS = 128  # query rows of a block, as flash kernels take them


def attention_kernel(k: Kernels, group: Group) -> None:
    """Plain decode attention, or the general form."""
    op = attend_op(group)
    if op is None:
        _around(k, group)
    elif plain_decode(group) or latent_decode(group):
        attention(k, group)
    else:
        _flash(k, group, attend(op))


def _flash(k: Kernels, group: Group, a: Attend) -> None:
    items = a.items(BLOCK_ROWS)
    prompts = any(span.new * a.group >= BLOCK_ROWS for span in a.spans)
    known = k.chip.execution.attention.flash if prompts else FlashKernel()
    parts = _parts(k, items)
    if not known.split:
        parts = np.where(items.rows > a.group, 1, parts)
    # CTAs are [part of the keys, item], as many parts as each item has.
    part = np.concatenate([np.full(int((parts > p).sum()), p) for p in range(int(parts.max()))])
    item = np.concatenate([np.flatnonzero(parts > p) for p in range(int(parts.max()))])
    keys, of = items.keys[item], parts[item]
    low, high = keys * part // of, keys * (part + 1) // of
    cached = np.minimum(high, items.cached[item]) - np.minimum(low, items.cached[item])
    _before(k, group)
    helpers(k, known.helpers)
    k.begin(int((known.prologue or k.chip.execution.prologue).value))
    feeds, operand = _feeds(k, a, items, item, cached, low, high)
    most = int((sum(f.sum(axis=1) for f in feeds.values())).max()) if feeds else 1
    steps = pieces(k, len(item), most, stage_bytes(k.chip))
    still = a.op.inputs["k_cache" if a.cached else "k"]
    dtype = matrix_dtype(k.chip, k.plan.dtype(still), k.plan.dtype(a.op.inputs["q"]))
    rows, tile = items.rows[item], -(-np.maximum(high - low, 1) // steps)
    hold = step_fs(k.chip, dtype, rows, tile, a.k_dim) + step_fs(k.chip, dtype, rows, a.v_dim, tile)
    pairs = rows * np.maximum(high - low, 1)
    ops, special = (n * pairs for n in a.per_pair)
    work = vector_fs(k.chip, ops, special)
    if known.softmax == "beside":
        hold, work = hold + -(-work // steps), np.zeros_like(work)
    streams = [_feed(k, a, name, cut(nbytes[:, 0], steps)) for name, nbytes in feeds.items()]
    q = Feed(operand, k.way(a.op.inputs["q"], "copy"), True)
    core, last = flow(k, streams, q, np.repeat(hold[:, None], steps, axis=1))
    soft = k.em.hold(k.vector0 + core, work, VECTOR, latency_fs(k.chip, VECTOR), n=len(core))
    k.em.after(soft, last, Dep.RAW)
    finals = _sums(k, a, items, parts, item, core, soft)
    k.finish(np.concatenate([finals, *_sinks(k, a.op, core[:1])]))


def _parts(k: Kernels, items: Items) -> Ints:
    """Parts that each item's keys are split into: so many that all cores work, each of MIN_TOKENS keys at least."""
    keys = np.maximum(items.keys, 1)
    work = items.rows * keys
    return ints(np.maximum(1, np.minimum(-(-keys // MIN_TOKENS), k.cores * work // int(work.sum()))))


def _feeds(
    k: Kernels, a: Attend, items: Items, item: Ints, cached: Ints, low: Ints, high: Ints
) -> tuple[dict[str, Ints], Ints]:
    """Bytes of each CTA from each source (one column), and of what it reads before: its queries, its last new token."""
    plan, op = k.plan, a.op
    fresh = high - low - cached
    own = items.keys[item] - items.own[item]
    mine = np.minimum(np.maximum(high - own, 0) - np.maximum(low - own, 0), fresh)
    first = items.first[item] == 1
    out: dict[str, Ints] = {}
    if a.cached:
        for role in ("k_cache", "v_cache"):
            if role in op.inputs:
                out[role] = in_proportion(op.cost.reads[op.inputs[role]], np.where(first, cached, 0))
        size = sum(op.cost.reads[op.inputs[r]] for r in ("k_cache", "v_cache") if r in op.inputs)
        tokens = max(op.dims["cached"] * a.kv_heads, 1)
        out["again"] = np.where(first, 0, cached * size // tokens)
    width = sum(plan.size(op.inputs[r]) for r in ("k", "v") if r in op.inputs) // (op.dims["fresh"] * a.kv_heads)
    out["fresh"] = mine * width
    out["again"] = out.get("again", 0) + (fresh - mine) * width
    q = plan.size(op.inputs["q"]) // (op.dims["rows"] * a.kv_heads * a.group)
    operand = items.rows[item] * q + np.where(items.prefix[item] == 1, 0, width)
    return {name: ints(n).reshape(-1, 1) for name, n in out.items() if np.any(n)}, ints(operand)


def _feed(k: Kernels, a: Attend, name: str, nbytes: Ints) -> Feed:
    """A source of tiles by its name: a cache, new keys and values, or what is read again."""
    if name == "again":
        return Feed(nbytes, k.again(), not a.cached)
    tensor = a.op.inputs["k" if name == "fresh" else name]
    address, step = k.plan.address.get(tensor, 0), k.block.step.get(tensor, 0)
    return Feed(nbytes, k.way(tensor, "copy"), name == "fresh", address, step)


def _sums(k: Kernels, a: Attend, items: Items, parts: Ints, item: Ints, core: Ints, soft: Ints) -> Ints:
    """Parts of an item are stored, loaded by the core of its first part and summed; then results are stored."""
    out = next(iter(a.op.outputs.values()))
    own = np.flatnonzero(items.prefix == 0)
    size = in_proportion(k.plan.size(out), items.rows[own])
    numbers = items.rows * (a.v_dim + 2)  # results and the two numbers of a softmax, for each query row
    has_prefix = len(own) < len(items.rows)
    joined = (parts > 1) | has_prefix
    lone = own[~joined[own]]
    place = np.zeros(len(items.rows), np.int64)
    place[own] = size
    finals = [epilogue(
        k, core[lone], soft[lone], items.rows[lone] * a.v_dim, items.rows[lone], place[lone], k.way(out, "store")
    )]  # fmt: skip
    if joined.any():
        many = np.flatnonzero(joined[item])
        stores = k.em.move(k.store0 + core[many], numbers[item[many]] * PARTIAL, [k.scratch(True)] * len(many))
        k.em.after(stores, soft[many], Dep.RAW)
        target = own[joined[own]]
        came = parts[target] + has_prefix
        loads = k.em.move(k.load0 + core[target], came * numbers[target] * PARTIAL, [k.scratch(False)] * len(target))
        row = np.full(len(items.rows), -1)
        row[target] = np.arange(len(target))
        mine = items.prefix[item[many]] == 0
        k.em.after(loads[row[item[many[mine]]]], stores[mine], Dep.RAW)
        for store in stores[~mine]:
            k.em.after(loads, store, Dep.RAW)
        finals.append(epilogue(
            k, core[target], loads, 2 * numbers[target] * came, items.rows[target], place[target], k.way(out, "store")
        ))  # fmt: skip
    return np.concatenate(finals)


def _sinks(k: Kernels, op: PlanOp, core: Ints) -> list[Ints]:
    """The learned scores of heads, where there are any."""
    if "sinks" not in op.inputs:
        return []
    load, _ = k.move(k.load0, core, ints([op.cost.reads[op.inputs["sinks"]]]), k.way(op.inputs["sinks"]))
    k.started(load, False)
    return [load]


def _before(k: Kernels, group: Group) -> None:
    """A kernel for norms of heads, rotary positions and the append to the cache."""
    ops = tuple(o for o in group.ops if o.op not in ATTENDS)
    if ops:
        attention, k.em.op = k.em.op, k.em.number_op(f"{group.label} append")
        k.begin()
        k.finish(np.concatenate(_rows(k, ops, np.arange(k.cores))))
        k.em.op = attention


def _rows(k: Kernels, ops: tuple[PlanOp, ...], cores: Ints) -> list[Ints]:
    """Row work of some ops, shared evenly by the cores, what leaves the group stored; returns what completes it."""
    inside = {o.name for o in ops}
    made = dict.fromkeys(t for o in ops for t in o.outputs.values())
    reads = {t: n for o in ops for t, n in o.cost.reads.items() if t not in made}
    leaves = [t for t in made if any(r not in inside for r in k.plan.graph.successors(t)) or k.plan.kind(t) == "kv"]
    loads = []
    for t, n in reads.items():
        load, which = k.move(k.load0, cores, shares(n, len(cores)), k.way(t))
        k.started(load, k.plan.kind(t) == "activation")
        loads.append((load, which))
    vector, special = (sum(getattr(o.cost, a) for o in ops) for a in ("vector_ops", "special_ops"))
    hold = vector_fs(k.chip, shares(vector, len(cores)), shares(special, len(cores)))
    work = k.em.hold(k.vector0 + cores, hold, VECTOR, latency_fs(k.chip, VECTOR), n=len(cores))
    for load, which in loads:
        k.em.after(work[which], load, Dep.RAW)
    idle = np.setdiff1d(np.arange(len(cores)), np.concatenate([which for _, which in loads]))
    k.started(work[idle])
    out = [work]
    for t in leaves:
        store, which = k.move(k.store0, cores, shares(k.plan.size(t), len(cores)), k.way(t, "store"))
        k.em.after(store, work[which], Dep.RAW)
        out.append(store)
    return out


def _around(k: Kernels, group: Group) -> None:
    """Head norms, positions and appends without attention behind them in the same group."""
    k.begin()
    k.finish(np.concatenate(_rows(k, group.ops, np.arange(k.cores))))
