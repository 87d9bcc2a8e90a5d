"""The GPU kernels: skinny products, flash decoding, row and elementwise work, collectives."""

from __future__ import annotations

import numpy as np

from ...workloads import DTYPE_BITS
from ..collectives import rounds
from ..machine import MATRIX, VECTOR
from ..plan import Gemm, Group, gemms
from ..program import Dep, Ints, ints
from ..tile import MIN_TOKENS, gemm_tiles, latency_fs, matrix_dtype, matrix_fs, shares, stage_bytes, vector_fs
from .kernel_frame import Kernels, Tiles, epilogue, reduce, stream

PARTIAL = 4  # bytes of a partial sum: fp32


def gemm(k: Kernels, group: Group) -> None:
    """Skinny products that share their activation: column tiles over the cores, the sum split where columns are too
    few."""
    for gemm in _merged(gemms(group)):
        _one_gemm(k, group, gemm)


def _merged(parts: list[Gemm]) -> list[Gemm]:
    """Siblings as one product: their columns side by side."""
    if len(parts) > 1 and all(p.op.op == "linear" and p.k == parts[0].k for p in parts):
        n, size = sum(p.n for p in parts), sum(p.nbytes for p in parts)
        return [Gemm(parts[0].op, parts[0].m, n, parts[0].k, 1, size)]
    return parts


def _one_gemm(k: Kernels, group: Group, g: Gemm) -> None:
    plan, chip = k.plan, k.chip
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    bits, n = DTYPE_BITS[plan.dtype(weight)], g.n * g.count
    t = gemm_tiles(chip, n, g.k, bits, g.m)
    tiles = -(-n // t.columns)
    cols = np.full(tiles, t.columns)
    cols[-1] = n - t.columns * (tiles - 1)
    ks = shares(g.k, t.split)
    edges = np.concatenate([[0], np.cumsum(np.outer(ks, cols))]) * bits // 8  # CTAs are [part of the sum, tile]
    edges[-1] = g.nbytes
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    hold = matrix_fs(chip, dtype, g.m, np.tile(cols, t.split), np.repeat(ks, tiles) / t.steps)
    operand = np.repeat(-(-g.m * ks * DTYPE_BITS[plan.dtype(x)] // 8), tiles)
    nbytes = np.stack([shares(b, t.steps) for b in np.diff(edges)])
    k.begin()
    core, last = stream(k, Tiles(
        nbytes, np.repeat(hold[:, None], t.steps, axis=1), k.way(weight),
        plan.address.get(weight, 0), k.block.step.get(weight, 0), MATRIX, operand, k.way(x),
    ))  # fmt: skip
    vector, special = _elementwise(group)
    bias = sum(op.cost.reads[op.inputs["bias"]] for op in group.ops if "bias" in op.inputs)
    outs = _results(k, group)
    size = sum(plan.size(out) for out in outs)

    def tail(cores: Ints, done: Ints) -> Ints:
        ops = shares(vector, tiles) + (g.m * cols * t.split if t.split > 1 else 0)
        loads, which = k.move(k.load0, cores, shares(bias, tiles), k.way(weight))
        finals = epilogue(k, cores, done, ops, shares(special, tiles), shares(size, tiles), k.way(outs[0], True))
        k.started(loads, False)
        k.em.after(finals[which], loads, Dep.RAW)
        return finals

    if t.split > 1:
        partial = ints(np.tile(cols, t.split) * g.m * PARTIAL)
        k.finish(reduce(k, core, last, partial, t.split, tail))
    else:
        k.finish(tail(core, last))


def _elementwise(group: Group) -> tuple[int, int]:
    """Elementwise and special operations of a group's vector ops, biases included."""
    return (
        group.scaled(sum(op.cost.vector_ops for op in group.ops)),
        group.scaled(sum(op.cost.special_ops for op in group.ops)),
    )


def _results(k: Kernels, group: Group) -> list[str]:
    """Tensors that leave a group: read outside, or by nobody at all."""
    mine = {o.name for o in group.ops}
    out = []
    for tensor in (t for op in group.ops for t in op.outputs.values()):
        readers = list(k.plan.graph.successors(tensor))
        if not readers or any(r not in mine for r in readers):
            out.append(tensor)
    return out


def attention(k: Kernels, group: Group) -> None:
    """Flash decoding: every sequence and KV head, its tokens split over the cores; rotary positions and the append
    before, the sum of the parts behind."""
    plan, chip = k.plan, k.chip
    op = next(o for o in group.ops if o.op == "attention")
    c, cache = op.cost, op.inputs["k_cache"]
    pairs, tokens = c.batch_gemms // 2, c.n - 1
    split = max(1, min(-(-tokens // MIN_TOKENS), k.cores // pairs))
    part = np.repeat(shares(tokens, split), pairs)  # [part, pair]
    total = c.reads[cache] + c.reads[op.inputs["v_cache"]]
    edges = np.concatenate([[0], np.cumsum(part)]) * total // (tokens * pairs)
    size = np.diff(edges)
    steps = max(1, min(-(-int(size.max()) // stage_bytes(chip)), int(part.max()) // MIN_TOKENS or 1))
    dtype = matrix_dtype(chip, plan.dtype(cache), plan.dtype(op.inputs["q"]))
    keys = -(-part // steps)
    softmax = vector_fs(
        chip, -(-c.vector_ops * part // (c.n * pairs * steps)), -(-c.special_ops * part // (c.n * pairs * steps))
    )
    products = matrix_fs(chip, dtype, c.m, keys, c.k) + matrix_fs(chip, dtype, c.m, c.k, keys)
    q = sum(c.reads[op.inputs[r]] for r in ("q", "k", "v"))
    k.begin()
    core, last = stream(k, Tiles(
        np.stack([shares(b, steps) for b in size]), np.repeat(products[:, None], steps, axis=1), k.way(cache),
        plan.address.get(cache, 0), k.block.step.get(cache, 0), MATRIX, np.full(len(part), -(-q // pairs)),
        k.way(op.inputs["q"]),
    ))  # fmt: skip
    soft = k.em.hold(k.vector0 + core, softmax * steps, VECTOR, latency_fs(chip, VECTOR), n=len(core))
    k.em.after(soft, last, Dep.RAW)
    out = op.outputs["out"]
    heads = c.m * (c.k + 2)  # results and the two numbers of a softmax, for each query head of the pair

    def tail(cores: Ints, done: Ints) -> Ints:
        ops = 2 * heads * split if split > 1 else c.m * c.k
        return epilogue(
            k, cores, done, np.full(pairs, ops), np.full(pairs, c.m), shares(plan.size(out), pairs), k.way(out, True)
        )

    if split > 1:
        finals = reduce(k, core, soft, np.full(len(core), heads * PARTIAL), split, tail)
    else:
        finals = tail(core, soft)
    k.finish(np.concatenate([finals, _append(k, group, core[:pairs])]))


def _append(k: Kernels, group: Group, cores: Ints) -> Ints:
    """Rotary positions of the new token, and its K and V to the cache; returns the stores."""
    ops = [o for o in group.ops if o.op in ("rope", "kv_append")]
    slots = [t for o in ops if o.op == "kv_append" for t in o.outputs.values()]
    if not slots:
        return ints([])
    made = group.produced
    new = [t for o in ops for t in o.inputs.values() if t not in made]
    nbytes = sum(k.plan.size(t) for t in dict.fromkeys(new))
    loads, which = k.move(k.load0, cores, shares(nbytes, len(cores)), k.way(new[0]))
    k.started(loads)
    ops_n = sum(o.cost.vector_ops for o in ops)
    stored = shares(sum(k.plan.size(t) for t in slots), len(cores))
    cores, stored = cores[which], stored[which]
    return epilogue(k, cores, loads, shares(ops_n, len(cores)), 0, stored, k.way(slots[0], True))


ROWS_WHOLE = frozenset({"rmsnorm", "layernorm", "softmax", "embedding"})
GRAIN = 4096  # elements of an elementwise tile: enough for a core's lanes to be busy for some tens of cycles


def vector(k: Kernels, group: Group) -> None:
    """Norms, lookups, elementwise: rows over the cores, and the columns too where a row may be cut."""
    plan = k.plan
    outs = [t for t in group.produced if plan.kind(t) == "activation"]
    ins = group.reads
    largest = max(
        [*ins, *outs], key=lambda t: int(np.prod(plan.graph.nodes[t]["shape"])) if plan.kind(t) == "activation" else 0
    )
    shape = plan.graph.nodes[largest]["shape"]
    rows, width = int(np.prod(shape[:-1])), int(shape[-1])
    cut = 1 if group.kind in ROWS_WHOLE else max(1, -(-width // GRAIN))
    ctas = max(1, min(rows * cut, k.cores))
    core = np.arange(ctas) % k.cores
    k.begin()
    vector, special = _elementwise(group)
    loads = [(k.move(k.load0, core, shares(n, ctas), k.way(t)), plan.kind(t)) for t, n in ins.items()]
    for (load, _), kind in loads:
        k.started(load, kind == "activation")
    hold = vector_fs(k.chip, shares(vector, ctas), shares(special, ctas))
    work = k.em.hold(k.vector0 + core, hold, VECTOR, latency_fs(k.chip, VECTOR), n=ctas)
    for (load, which), _ in loads:
        k.em.after(work[which], load, Dep.RAW)
    idle = np.setdiff1d(np.arange(ctas), np.concatenate([which for (_, which), _ in loads]))
    k.started(work[idle])
    finals = [work]
    for t in _results(k, group):
        stores, which = k.move(k.store0, core, shares(plan.size(t), ctas), k.way(t, True))
        k.em.after(stores, work[which], Dep.RAW)
        finals.append(stores)
    k.finish(np.concatenate(finals))


def collective(k: Kernels, group: Group) -> None:
    """All-reduce or all-gather: rounds of sends; what came is summed by as many cores as it keeps busy."""
    op = group.ops[0]
    nbytes = k.plan.size(next(iter(op.outputs.values())))
    link = k.chip.link
    assert link is not None
    k.begin()
    before: Ints | None = None
    bits = DTYPE_BITS.get(k.plan.dtype(next(iter(op.outputs.values()))), 16)
    for r in rounds(group.kind, nbytes, k.plan.tp, link):
        sent = k.em.send(k.em.machine.engine("network"), r.send)
        if before is None:
            k.started(sent)
        else:
            k.em.after(np.broadcast_to(sent, before.shape), before, Dep.RAW)
        before = sent
        if r.reduce:
            cores = np.arange(max(1, min(k.cores, r.reduce // GRAIN)))
            loads = k.em.move(k.load0 + cores, shares(r.reduce, len(cores)), [k.scratch(False)] * len(cores))
            k.em.after(loads, sent, Dep.RAW)
            ops, out = shares(r.reduce * 8 // bits, len(cores)), shares(nbytes, len(cores))
            before = epilogue(k, cores, loads, ops, 0, out, k.scratch(True))
    assert before is not None
    k.finish(before)
