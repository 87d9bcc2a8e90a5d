"""Attention of one new token per sequence on a GPU: flash decoding over the cache, and the append before it."""

from __future__ import annotations

import numpy as np

from ..machine import MATRIX, VECTOR
from ..plan import Group, PlanOp
from ..program import Dep, Ints
from ..tile import MIN_TOKENS, PARTIAL, PIECES, attention_split, latency_fs, matrix_dtype, shares, step_fs, vector_fs
from .kernel_frame import Kernels, Tiles, epilogue, reduce, stream
from .kernel_ops import OPERAND, with_pieces

SOFTMAX_CHAIN = 8  # dependent vector operations from the scores of a tile to their weights: max, exp, sum, rescale


def attention(k: Kernels, group: Group) -> None:
    """Flash decoding: every sequence and KV head, its tokens split over the cores; rotary positions and the append
    in a kernel before, the sum of the parts behind."""
    plan, chip = k.plan, k.chip
    op = next(o for o in group.ops if o.op == "attention")
    c, cache = op.cost, op.inputs["k_cache"]
    pairs, tokens = op.dims["rows"] * op.dims["kv_heads"], op.dims["T"]
    wide = op.dims["v_dim"]
    total = sum(c.reads[op.inputs[r]] for r in ("k_cache", "v_cache") if r in op.inputs)
    dtype = matrix_dtype(chip, plan.dtype(cache), plan.dtype(op.inputs["q"]))
    products = int((step_fs(chip, dtype, c.m, MIN_TOKENS, c.k) + step_fs(chip, dtype, c.m, wide, MIN_TOKENS)).max())
    scores = [-(-n * MIN_TOKENS // ((tokens + 1) * pairs)) for n in (c.vector_ops, c.special_ops)]
    products += int(vector_fs(chip, *scores).max()) + SOFTMAX_CHAIN * latency_fs(chip, VECTOR)
    start = chip.execution.prologue
    if c.m > 1:
        start = chip.execution.attention_start.get(plan.dtype(cache), start)  # type: ignore[call-overload]
    partial = c.m * (wide + 2) * PARTIAL  # results and the two numbers of a softmax, for each query head of the pair
    stages = max(1, min(k.stages, int(chip.tiers[0].capacity.value) // max(1, MIN_TOKENS * total // (tokens * pairs))))
    split = attention_split(
        chip, k.block.home(cache), pairs, tokens, total / (tokens * pairs), products, stages, int(start.value), partial
    )
    part = np.repeat(shares(tokens, split), pairs)  # [part, pair]
    steps = -(-int(part.max()) // MIN_TOKENS)
    grain = min(steps, -(-len(part) * steps // PIECES))
    pieces = -(-steps // grain)
    edges = np.concatenate([[0], np.cumsum(part)]) * total // (tokens * pairs)
    size = np.diff(edges)
    q = sum(c.reads[op.inputs[r]] for r in ("q", "k", "v") if r in op.inputs)
    append(k, group, np.arange(min(k.cores, max(pairs, q // OPERAND))))
    for _ in range(int(chip.execution.attention_helpers.value) if chip.execution.attention_helpers else 0):
        k.begin()
        helper = k.em.hold(k.vector0, latency_fs(chip, VECTOR), VECTOR)
        k.started(helper)
        k.finish(helper)
    k.begin(int(start.value))
    core, last = stream(k, Tiles(
        np.stack([shares(b, pieces) for b in size]), np.tile(shares(steps, pieces) * products, (len(part), 1)),
        k.way(cache, "copy"), plan.address.get(cache, 0), k.block.step.get(cache, 0), MATRIX,
        with_pieces(np.full(len(part), -(-q // pairs)), pieces), k.way(op.inputs["q"], "copy"),
        max(2, stages // grain) if stages > 1 else 1, start_fs=int(start.value),
    ))  # fmt: skip
    out = op.outputs["out"]

    def tail(cores: Ints, done: Ints) -> Ints:
        n = len(cores)
        ops = shares(pairs * (2 * c.m * (wide + 2) * split if split > 1 else c.m * wide), n)
        return epilogue(k, cores, done, ops, shares(pairs * c.m, n), shares(plan.size(out), n), k.way(out, "store"))

    if split == 1:
        k.finish(tail(core, last))
    elif chip.execution.reduction == "inside":
        k.finish(reduce(k, core, last, np.full(len(core), partial), split, tail))
    else:
        stores = k.em.move(k.store0 + core, np.full(len(core), partial), [k.scratch(True)] * len(core))
        k.em.after(stores, last, Dep.RAW)
        k.finish(stores)
        product, k.em.op = k.em.op, k.em.number_op(f"{group.label} sum")
        cores = np.arange(min(k.cores, max(pairs, pairs * partial // OPERAND)))
        k.begin()
        loads = k.em.move(k.load0 + cores, shares(len(core) * partial, len(cores)), [k.scratch(False)] * len(cores))
        k.started(loads)
        k.finish(tail(cores, loads))
        k.em.op = product


def append(k: Kernels, group: Group, cores: Ints) -> None:
    """Rotary positions of the new token, and its K and V to the cache: one kernel, or one each where they run apart."""
    ops = [o for o in group.ops if o.op in ("rope", "kv_append")]
    if not any(o.op == "kv_append" for o in ops):
        return
    attention = k.em.op
    if "rope" in k.chip.execution.apart and any(o.op == "rope" for o in ops):
        parts = [[o for o in ops if o.op == word] for word in ("rope", "kv_append")]
    else:
        parts = [ops]
    for part in parts:
        k.em.op = k.em.number_op(f"{group.label} {part[-1].op.removeprefix('kv_')}")
        _row_kernel(k, part, cores)
    k.em.op = attention


def _row_kernel(k: Kernels, ops: list[PlanOp], cores: Ints) -> None:
    """Some ops' loads, work and stores, spread over the cores."""
    made = {t for o in ops for t in o.outputs.values()}
    new = list(dict.fromkeys(t for o in ops for t in o.inputs.values() if t not in made))
    left = [t for o in ops for t in o.outputs.values() if k.plan.kind(t) == "kv"] or sorted(made)
    k.begin()
    loads, which = k.move(k.load0, cores, shares(sum(map(k.plan.size, new)), len(cores)), k.way(new[0]))
    k.started(loads)
    stored = shares(sum(map(k.plan.size, left)), len(cores))
    cores, stored = cores[which], stored[which]
    work = shares(sum(o.cost.vector_ops for o in ops), len(cores))
    k.finish(epilogue(k, cores, loads, work, 0, stored, k.way(left[0], "store")))
