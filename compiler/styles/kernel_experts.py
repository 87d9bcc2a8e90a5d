"""Products of a mixture of experts on a GPU: all woken experts in one kernel, each with the tokens that are sent to it.

CTAs are [expert, column tile, row tile], and sums are not split. The row tiles of an expert share its weights: the
first reads them from where they are held, the others find them in the nearest memory that all cores share, counted
nowhere.
"""

from __future__ import annotations

import numpy as np

from ...workloads import DTYPE_BITS
from ...workloads.dtypes import block_scaled, element_of
from ..machine import MATRIX
from ..plan import Gemm, Group, PlanOp, by_expert, gemms
from ..program import Ints, ints
from ..tile import PIECES, GemmTiles, Product, gemm_tiles, matrix_dtype, promote_fs, promoted_terms, shares, step_fs
from .kernel_frame import Kernels, Tiles, stream
from .kernel_ops import OPERAND, Outputs, cut_side, rows, run_apart, unpack_pieces, with_pieces, without_apart
from .kernel_stream import in_proportion

INDEX = 4  # bytes of a token's or an expert's number


def experts_kernel(k: Kernels, group: Group) -> None:
    """Grouped products with their biases, activation and stores; what the chip runs apart is a kernel behind, and
    before the first products of a layer come the kernels that sort and gather its tokens."""
    if group is next(g for g in k.block.unit.work if g.kind == "expert_linear"):
        _sorted(k, group)
    products, rest = without_apart(k, group)
    _products(k, products)
    run_apart(k, group, rest)


def _sorted(k: Kernels, group: Group) -> None:
    """Pairs of token and expert in the order of experts, and copies of the tokens in this order."""
    e, op = k.chip.execution, next(o for o in group.ops if o.op == "expert_linear")
    x, weight, pairs = op.inputs["x"], op.inputs["weight"], op.dims["pairs"]
    helpers = e.expert_helpers.get(element_of(k.plan.dtype(weight)))  # type: ignore[call-overload]
    product = k.em.op
    k.em.op = k.em.number_op(f"{group.label} sort")
    for _ in range(int(helpers.value) if helpers else 0):
        rows(k, np.arange(1), pairs * INDEX, pairs * op.dims["E"].bit_length(), pairs * INDEX)
    if e.expert_gather == "kernel" and _as_stored(k, op):
        moved = pairs * op.dims["K"] * DTYPE_BITS[k.plan.dtype(x)] // 8
        rows(k, np.arange(max(1, min(k.cores, moved // OPERAND))), k.plan.size(x), 0, moved)
    k.em.op = product


def _products(k: Kernels, group: Group) -> None:
    plan, chip, parts = k.plan, k.chip, by_expert(gemms(group))
    weight, x = parts[0].op.inputs["weight"], parts[0].op.inputs["x"]
    bits, xbits = DTYPE_BITS[plan.dtype(weight)], DTYPE_BITS[plan.dtype(x)]
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    n, depth = parts[0].n, parts[0].k
    most = max(p.m for p in parts)
    promoted = promoted_terms(chip, plan.dtype(weight), dtype)
    t = gemm_tiles(chip, Product(most, n * len(parts), depth, bits, xbits, dtype, k.block.home(weight), promoted), (1,))
    tokens, columns, leader, expert = _ctas(parts, t, n)
    ctas = len(tokens)
    area = columns * depth
    first = leader == np.arange(ctas)
    total, elements = sum(p.nbytes for p in parts), sum(p.n * p.k for p in parts)
    nbytes = np.where(first, in_proportion(total, area * first), area * total // elements)
    grain = min(t.steps, -(-ctas * t.steps // PIECES))
    pieces = -(-t.steps // grain)
    steps = shares(t.steps, pieces)
    terms = steps * -(-depth // t.steps)
    hold = step_fs(chip, dtype, t.rows, t.columns, terms, steps, promoted)
    promote = promote_fs(chip, promoted, t.rows, t.columns, terms)
    prologue = int(chip.execution.prologue.value)
    k.begin(prologue)
    core, last = stream(k, Tiles(
        np.stack([shares(b, pieces) for b in nbytes]), np.tile(hold, (ctas, 1)), k.way(weight, "copy"),
        plan.address.get(weight, 0), k.block.step.get(weight, 0), MATRIX,
        with_pieces(-(-tokens * depth * xbits // 8), pieces), k.way(x, "copy"),
        max(2, t.stages // grain) if t.stages > 1 else 1, leader, None, prologue,
        unpack_pieces(chip, plan.dtype(weight), dtype, area, pieces), _seek(k, parts[0], expert, len(parts)),
        chip.execution.expert_loop == "persistent",
        promote_fs=None if promote is None else np.tile(promote, (ctas, 1)),
    ))  # fmt: skip
    k.finish(Outputs.of(k, group, ctas, k.way(weight)).tail(k, core, last, 0))


def _seek(k: Kernels, part: Gemm, expert: Ints, woken: int) -> Ints | None:
    """Before each CTA and after the last of each core: the time to get from one expert to another. Products with scales
    along the sum pass over all between them and to the end, the woken ones spread evenly over all; those without write
    descriptors of another expert's operands; those that unpack their weights have a list of tiles."""
    weight, held, e = k.plan.dtype(part.op.inputs["weight"]), part.op.dims["E"], k.chip.execution
    each = e.expert_walk if block_scaled(weight) else e.expert_switch
    if each is None or not _as_stored(k, part.op):
        return None
    turn = min(k.cores, len(expert))
    if block_scaled(weight):
        at = np.concatenate([np.zeros(turn, np.int64), expert * held // woken, np.full(turn, held)])
        return ints((at[turn:] - at[:-turn]) * int(each.value))
    at = np.concatenate([np.full(turn, -1), expert])
    return ints((at[turn:] != at[:-turn]) * int(each.value))


def _as_stored(k: Kernels, op: PlanOp) -> bool:
    """Whether the matrix units take the weights of a product as they are held."""
    weight, x = (k.plan.dtype(op.inputs[role]) for role in ("weight", "x"))
    return element_of(weight) == matrix_dtype(k.chip, weight, x)


def _ctas(parts: list[Gemm], t: GemmTiles, n: int) -> tuple[Ints, Ints, Ints, Ints]:
    """Of each CTA: tokens, columns, the first CTA that reads the same weights, and the number of its woken expert."""
    widths = cut_side(n, t.columns)
    tokens, columns, leader, expert, at = [], [], [], [], 0
    for number, p in enumerate(parts):
        heights = cut_side(p.m, t.rows)
        own = np.arange(len(heights) * len(widths))
        tokens.append(np.tile(heights, len(widths)))
        columns.append(np.repeat(widths, len(heights)))
        leader.append(at + own // len(heights) * len(heights))
        expert.append(np.full(len(own), number))
        at += len(own)
    return np.concatenate(tokens), np.concatenate(columns), np.concatenate(leader), np.concatenate(expert)
