"""Attention of one new token per sequence on a GPU: flash decoding over the cache, and the append before it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np

from ...arch.fact import Fact
from ...arch.parts import AttentionKernel, MaskedKernel
from ...workloads import DTYPE_BITS
from ..machine import KERNEL, MATRIX, VECTOR
from ..plan import Group, PlanOp
from ..program import Dep, Ints
from ..tile import (
    PARTIAL,
    PIECES,
    Flash,
    attention_parts,
    attention_split,
    latency_fs,
    masked_parts,
    matrix_dtype,
    shares,
    step_fs,
    vector_fs,
)
from .kernel_frame import Kernels, Tiles, epilogue, reduce, stream
from .kernel_ops import OPERAND, with_pieces

SOFTMAX_CHAIN = 8  # dependent vector operations from the scores of a tile to their weights: max, exp, sum, rescale


@dataclass(frozen=True)
class Decode:
    """Attention of one new token per sequence as a kernel runs it. Blocks are [sequence, KV head], or in a masked
    kernel [sequence, query head]; CTAs are [part of the tokens, block]."""

    op: PlanOp
    blocks: int
    readers: int
    """Blocks that read the same keys and values."""
    parts: int
    step: int
    """Tokens of a step."""
    step_fs: int
    unit: str
    stages: int
    resident: int
    helpers: Fact | None
    prologue_fs: int
    start_fs: int
    block_fs: int
    """Of the unit for a block, beside its tokens."""
    join_fs: int | None
    """Wait for all parts, where the last block of a pair adds them."""
    appends: bool

    @property
    def pairs(self) -> int:
        """Sequences x KV heads."""
        return self.blocks // self.readers

    @property
    def tokens(self) -> int:
        """Cached tokens of a sequence."""
        return int(self.op.dims["T"])

    @property
    def cached(self) -> int:
        """Bytes of the cached keys and values."""
        return sum(self.op.cost.reads[self.op.inputs[r]] for r in ("k_cache", "v_cache") if r in self.op.inputs)

    @property
    def partial(self) -> int:
        """Bytes of a part's results and of the two numbers of a softmax, for each query head of a block."""
        return int(self.op.cost.m // self.readers * (self.op.dims["v_dim"] + 2) * PARTIAL)


def _decode(k: Kernels, op: PlanOp) -> Decode:
    """The kernel that a library would take, and its parts."""
    known = k.chip.execution.attention
    pairs, dtype = op.dims["rows"] * op.dims["kv_heads"], k.plan.dtype(op.inputs["k_cache"])
    kernel = (_of(known.grouped, dtype) if "v_cache" in op.inputs else known.latent) or AttentionKernel()
    parts = pairs * max(1, op.dims["T"] // known.parts.tokens) if known.parts else k.cores
    few = kernel.least is not None and parts < float(kernel.least.value) * k.cores
    if known.masked and (op.cost.m == 1 or few):
        return _masked(k, op, pairs, dtype, known.masked)
    return _on_matrix(k, op, pairs, dtype, kernel)


T = TypeVar("T")


def _of(known: Mapping[Any, T], dtype: str) -> T | None:
    """What is known of a dtype, or of another of its size."""
    same = [found for name, found in known.items() if DTYPE_BITS[name] == DTYPE_BITS[dtype]]
    return known.get(dtype, same[0] if same else None)


def _masked(k: Kernels, op: PlanOp, pairs: int, dtype: str, kernel: MaskedKernel) -> Decode:
    blocks = pairs * op.cost.m
    parts, resident = masked_parts(k.cores, kernel, blocks, op.dims["T"])
    tokens = max(1, int(kernel.tokens.value) // resident)
    each = _of(kernel.ops, dtype) or next(iter(kernel.ops.values()))
    time = vector_fs(k.chip, tokens * (op.cost.k + op.dims["v_dim"]) * int(each.value), tokens)
    return Decode(
        op, blocks, op.cost.m, parts, tokens, int(time.max()), VECTOR, int(kernel.loads.value), resident, None,
        int(kernel.prologue.value), int(kernel.start.value), int(kernel.head.value), int(kernel.join.value), True,
    )  # fmt: skip


def _on_matrix(k: Kernels, op: PlanOp, pairs: int, dtype: str, kernel: AttentionKernel) -> Decode:
    chip, c, tokens, tile = k.chip, op.cost, op.dims["T"], int(kernel.tile.value)
    size = sum(c.reads[op.inputs[r]] for r in ("k_cache", "v_cache") if r in op.inputs) / (tokens * pairs)
    rows = min(op.cost.m, int(kernel.rows.value)) if kernel.rows else op.cost.m
    blocks = pairs * -(-op.cost.m // rows)
    unit = matrix_dtype(chip, dtype, k.plan.dtype(op.inputs["q"]))
    scores, values = step_fs(chip, unit, rows, tile, c.k), step_fs(chip, unit, rows, op.dims["v_dim"], tile)
    soft = [-(-n * tile // ((tokens + 1) * blocks)) for n in (c.vector_ops, c.special_ops)]
    time = int((scores + values + vector_fs(chip, *soft)).max()) + SOFTMAX_CHAIN * latency_fs(chip, VECTOR)
    room = int(chip.tiers[0].capacity.value) // max(1, int(tile * size))
    stages = max(1, min(int(kernel.buffers.value) if kernel.buffers else k.stages, room))
    start, block = int(kernel.start.value), rows * int(kernel.head.value)
    partial = rows * (op.dims["v_dim"] + 2) * PARTIAL
    rule = chip.execution.attention.parts
    if rule is not None and "v_cache" in op.inputs:
        parts = attention_parts(k.cores, rule, blocks, tokens)
    else:
        home = k.block.home(op.inputs["k_cache"])
        flash = Flash(home, blocks, blocks // pairs, tokens, tile, size, time, stages, start + block, partial)
        parts = attention_split(chip, flash)
    join = None if kernel.join is None else int(kernel.join.value) + parts * int(kernel.merge.value)
    prologue = int((kernel.prologue or chip.execution.prologue).value)
    return Decode(
        op, blocks, blocks // pairs, parts, tile, time, MATRIX, stages, int(kernel.resident.value), kernel.helpers,
        prologue, start, block, join, kernel.appends,
    )  # fmt: skip


def attention(k: Kernels, group: Group) -> None:
    """Flash decoding: every sequence and KV head, its tokens split over the cores; the sum of the parts behind, in the
    same kernel or in one of its own; rotary positions and the append inside, or in a kernel before."""
    plan, chip = k.plan, k.chip
    op = next(o for o in group.ops if o.op == "attention")
    d = _decode(k, op)
    ctas = d.parts * d.blocks
    part = np.repeat(shares(d.tokens, d.parts), d.blocks)
    steps = -(-int(part.max()) // d.step)
    grain = min(steps, -(-ctas * steps // PIECES))
    pieces = -(-steps // grain)
    size = Fraction(d.cached, d.tokens * d.pairs)
    edges = np.concatenate([[0], np.cumsum(part)]) * size.numerator // size.denominator
    q = sum(op.cost.reads[op.inputs[r]] for r in ("q", "k", "v") if r in op.inputs)
    if not d.appends:
        append(k, group, np.arange(min(k.cores, max(d.pairs, q // OPERAND))))
    helpers(k, d.helpers)
    hold = np.tile(shares(steps, pieces) * d.step_fs, (ctas, 1))
    hold[:, -1] += d.block_fs
    k.begin(d.prologue_fs + d.start_fs)
    cache, numbers = op.inputs["k_cache"], np.arange(ctas)
    core, last = stream(k, Tiles(
        np.stack([shares(b, pieces) for b in np.diff(edges)]), hold,
        k.way(cache, "copy"), plan.address.get(cache, 0), k.block.step.get(cache, 0), d.unit,
        with_pieces(np.full(ctas, -(-q // d.blocks)), pieces), k.way(op.inputs["q"], "copy"),
        max(2, d.stages // grain) if d.stages > 1 else 1, numbers // d.readers * d.readers if d.readers > 1 else None,
        start_fs=d.start_fs, resident=d.resident,
    ))  # fmt: skip
    if d.parts > 1 and d.join_fs is None and chip.execution.reduction == "kernel":
        stores = k.em.move(k.store0 + core, np.full(ctas, d.partial), [k.scratch(True)] * ctas)
        k.em.after(stores, last, Dep.RAW)
        k.finish(stores)
        product, k.em.op = k.em.op, k.em.number_op(f"{group.label} sum")
        cores = np.arange(min(k.cores, max(d.blocks, d.blocks * d.partial // OPERAND)))
        k.begin()
        loads = k.em.move(k.load0 + cores, shares(ctas * d.partial, len(cores)), [k.scratch(False)] * len(cores))
        k.started(loads)
        k.finish(_tail(k, group, d, cores, loads))
        k.em.op = product
    elif d.parts > 1:
        k.finish(reduce(k, core, last, np.full(ctas, d.partial), d.parts, lambda c, done: _tail(k, group, d, c, done)))
    else:
        k.finish(_tail(k, group, d, core, last))


def _tail(k: Kernels, group: Group, d: Decode, cores: Ints, done: Ints) -> Ints:
    """The results of all blocks, and the new keys and values where the kernel appends them itself."""
    out, n, width = d.op.outputs["out"], len(cores), d.op.dims["v_dim"]
    rows = d.blocks * d.op.cost.m // d.readers
    ops = shares(rows * (2 * (width + 2) * d.parts if d.parts > 1 else width), n)
    if d.parts > 1 and d.join_fs:
        joined = k.em.hold(k.vector0 + cores, 0, KERNEL, d.join_fs, n=n)
        k.em.after(joined, done, Dep.RAW)
        done = joined
    finals = epilogue(k, cores, done, ops, shares(rows, n), shares(k.plan.size(out), n), k.way(out, "store"))
    new = [t for o in group.ops for t in o.outputs.values() if k.plan.kind(t) == "kv"] if d.appends else []
    if not new:
        return finals
    stores, which = k.move(k.store0, cores, shares(sum(map(k.plan.size, new)), n), k.way(new[0], "store"))
    k.em.after(stores, done[which], Dep.RAW)
    return np.concatenate([finals, stores])


def helpers(k: Kernels, number: Fact | None) -> None:
    """Kernels that work on single numbers."""
    for _ in range(int(number.value) if number else 0):
        k.begin()
        helper = k.em.hold(k.vector0, latency_fs(k.chip, VECTOR), VECTOR)
        k.started(helper)
        k.finish(helper)


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
