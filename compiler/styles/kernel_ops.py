"""The GPU kernels: skinny products, row and elementwise work, collectives."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ...arch import Chip
from ...workloads import DTYPE_BITS
from ...workloads.dtypes import dtype_of
from ..collectives import rounds
from ..machine import LINK, MATRIX, VECTOR
from ..plan import Gemm, Group, PlanOp, gemms, message
from ..program import Dep, Ints, ints
from ..tile import (
    PARTIAL,
    PIECES,
    Product,
    gemm_tiles,
    latency_fs,
    matrix_dtype,
    operand_bytes,
    promote_fs,
    promoted_terms,
    shares,
    step_fs,
    unpack_fs,
    vector_fs,
)
from .kernel_frame import Kernels, Tiles, epilogue, reduce, stream

OPERAND = 8192  # bytes: activations come in transfers no smaller than this, or all at once


def gemm(k: Kernels, group: Group) -> None:
    """Products that share their activation; what the chip runs apart from them is a kernel behind."""
    whole, rest = without_apart(k, group)
    for gemm in _merged(gemms(whole)):
        _one_gemm(k, whole, gemm)
    run_apart(k, group, rest)


def without_apart(k: Kernels, group: Group) -> tuple[Group, tuple[PlanOp, ...]]:
    """A group without the ops that the chip runs apart, and these."""
    rest = tuple(op for op in group.ops if op.op in k.chip.execution.apart)
    return (replace(group, ops=tuple(op for op in group.ops if op not in rest)) if rest else group), rest


def run_apart(k: Kernels, group: Group, ops: tuple[PlanOp, ...]) -> None:
    """Ops of a group as a kernel of their own, where there are any."""
    if ops:
        product, k.em.op = k.em.op, k.em.number_op(replace(group, name=ops[0].name, kind=ops[0].op, ops=ops))
        vector(k, replace(group, kind=ops[0].op, ops=ops))
        k.em.op = product


def rows(k: Kernels, cores: Ints, read: int, ops: int, written: int) -> None:
    """A kernel that reads and writes so many bytes of results, spread over the cores."""
    n = len(cores)
    k.begin()
    loads = k.em.move(k.load0 + cores, shares(read, n), [k.scratch(False)] * n)
    k.started(loads)
    k.finish(epilogue(k, cores, loads, shares(ops, n), 0, shares(written, n), k.scratch(True)))


def _merged(parts: list[Gemm]) -> list[Gemm]:
    """Siblings as one product: their columns side by side."""
    if len(parts) > 1 and all(p.op.op == "linear" and p.k == parts[0].k for p in parts):
        n, size = sum(p.n for p in parts), sum(p.nbytes for p in parts)
        return [Gemm(parts[0].op, parts[0].m, n, parts[0].k, 1, size)]
    return parts


def _one_gemm(k: Kernels, group: Group, g: Gemm) -> None:
    """CTAs are [part of the sum, column tile, row tile]; all row tiles of a column read its weights, the first from
    where they are held."""
    plan, chip = k.plan, k.chip
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    bits, xbits, n = DTYPE_BITS[plan.dtype(weight)], DTYPE_BITS[plan.dtype(x)], g.n * g.count
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    promoted = promoted_terms(chip, plan.dtype(weight), dtype)
    t = gemm_tiles(chip, Product(g.m, n, g.k, bits, xbits, dtype, k.block.home(weight), promoted))
    cols, rows = cut_side(n, t.columns), cut_side(g.m, t.rows)
    ks = shares(g.k, t.split)
    ctas = t.split * len(cols) * len(rows)
    grain = min(t.steps, -(-ctas * t.steps // PIECES))
    pieces = -(-t.steps // grain)
    edges = np.concatenate([[0], np.cumsum(np.outer(ks, cols))]) * g.nbytes // (n * g.k)  # [part, column tile]
    nbytes = np.repeat(np.stack([shares(b, pieces) for b in np.diff(edges)]), len(rows), axis=0)
    part = np.repeat(np.arange(t.split), len(cols) * len(rows))
    steps = shares(t.steps, pieces)
    terms = [steps * -(-int(k_) // t.steps) for k_ in ks]
    hold = np.stack([step_fs(chip, dtype, t.rows, t.columns, depth, steps, promoted) for depth in terms])[part]
    promote = promote_fs(chip, promoted, t.rows, t.columns, terms[0])
    tokens = np.tile(rows, t.split * len(cols))
    shared = min(chip.execution.cluster, len(cols)) if g.count == 1 else 1
    upto = np.cumsum(cols)
    met = (upto - 1) // g.n - (upto - cols) // g.n + 1  # products that a tile has columns of: each has its own operand
    operands = tokens * np.tile(np.repeat(met, len(rows)), t.split)
    operand = with_pieces(-(-operand_bytes(plan.dtype(x), operands * ks[part]) // shared), pieces)
    numbers = np.arange(ctas)
    # Each core of a cluster loads its share of a row tile's activation: the first `shared` column tiles read all of it.
    column = numbers // len(rows) % len(cols)
    reader = part * (len(cols) * len(rows)) + column % shared * len(rows) + numbers % len(rows)
    k.begin(int(chip.execution.prologue.value))
    core, last = stream(k, Tiles(
        nbytes, hold, k.way(weight, "copy"), plan.address.get(weight, 0), k.block.step.get(weight, 0), MATRIX, operand,
        k.way(x, "copy"), max(2, t.stages // grain) if t.stages > 1 else 1, numbers // len(rows) * len(rows),
        None if k.block.home(x) == k.near else reader, int(chip.execution.prologue.value),
        unpack_pieces(chip, plan.dtype(weight), dtype, np.tile(np.repeat(cols, len(rows)), t.split) * ks[part], pieces),
        promote_fs=None if promote is None else np.tile(promote, (ctas, 1)),
    ))  # fmt: skip
    outputs = Outputs.of(k, group, len(cols) * len(rows), k.way(weight))
    if t.split == 1:
        k.finish(outputs.tail(k, core, last, 0))
    elif chip.execution.reduction == "inside":
        partial = ints(np.repeat(np.tile(cols, t.split), len(rows)) * tokens * PARTIAL)
        k.finish(reduce(k, core, last, partial, t.split, lambda c, done: outputs.tail(k, c, done, g.m * n * t.split)))
    else:
        partial = ints(np.repeat(np.tile(cols, t.split), len(rows)) * tokens * PARTIAL)
        stores = k.em.move(k.store0 + core, partial, [k.scratch(True)] * len(core))
        k.em.after(stores, last, Dep.RAW)
        k.finish(stores)
        sum_parts(k, group, g.m * n, t.split)


def unpack_pieces(chip: Chip, stored: str, computed: str, elements: Ints, pieces: int) -> Ints | None:
    """[cta, piece]: time of the vector unit to unpack each CTA's weights; None where they are taken as they are."""
    time = unpack_fs(chip, stored, computed, -(-elements // pieces))
    return None if time is None else np.repeat(time[:, None], pieces, axis=1)


def cut_side(size: int, tile: int) -> Ints:
    """Tiles along one side, the last one smaller."""
    edges = np.minimum(np.arange(-(-size // tile) + 1) * tile, size)
    return ints(np.diff(edges))


def with_pieces(total: Ints, pieces: int) -> Ints:
    """[cta, piece]: each CTA's bytes in as few even transfers as are no smaller than OPERAND, each with the piece that
    first needs it."""
    parts = int(min(pieces, max(1, total.max() // OPERAND)))
    out = np.zeros((len(total), pieces), np.int64)
    out[:, np.arange(parts) * pieces // parts] = np.stack([shares(n, parts) for n in total])
    return out


@dataclass(frozen=True)
class Outputs:
    """What is left to do with the sums of a group's product: biases, elementwise work, stores. Shared by all CTAs."""

    ctas: int
    vector: int
    special: int
    bias: int
    way: tuple[str, str, str]
    size: int
    out: tuple[str, str, str]

    @classmethod
    def of(cls, k: Kernels, group: Group, ctas: int, way: tuple[str, str, str]) -> Outputs:
        """Of a group, over that many CTAs; `way`: of its biases."""
        vector, special = elementwise(group)
        bias = sum(op.cost.reads[op.inputs["bias"]] for op in group.ops if "bias" in op.inputs)
        outs = results(k, group)
        size = sum(k.plan.size(out) for out in outs)
        return cls(ctas, vector, special, bias, way, size, k.way(outs[0], "store"))

    def tail(self, k: Kernels, cores: Ints, done: Ints, sums: int) -> Ints:
        """The end of each CTA, after `done`, with so many additions before it; returns what completes it."""
        loads, which = k.move(k.load0, cores, shares(self.bias, self.ctas), self.way)
        ops, special = shares(self.vector + sums, self.ctas), shares(self.special, self.ctas)
        finals = epilogue(k, cores, done, ops, special, shares(self.size, self.ctas), self.out)
        k.started(loads, False)
        k.em.after(finals[which], loads, Dep.RAW)
        return finals


def sum_parts(k: Kernels, group: Group, results: int, split: int) -> None:
    """A kernel that adds the parts of a split sum, its results spread over the cores."""
    product = k.em.op
    k.em.op = k.em.number_op(f"{group.label} sum")
    cores = np.arange(max(1, min(k.cores, results // GRAIN)))
    k.begin()
    loads = k.em.move(k.load0 + cores, shares(results * split * PARTIAL, len(cores)), [k.scratch(False)] * len(cores))
    k.started(loads)
    weight = next(t for op in group.ops for r, t in op.inputs.items() if r in ("weight", "b"))
    k.finish(Outputs.of(k, group, len(cores), k.way(weight)).tail(k, cores, loads, results * split))
    k.em.op = product


def elementwise(group: Group) -> tuple[int, int]:
    """Elementwise and special operations of a group's vector ops, biases included."""
    return (
        group.scaled(sum(op.cost.vector_ops for op in group.ops)),
        group.scaled(sum(op.cost.special_ops for op in group.ops)),
    )


def results(k: Kernels, group: Group) -> list[str]:
    """Tensors that leave a group: read outside, or by nobody at all."""
    mine = {o.name for o in group.ops}
    out = []
    for tensor in (t for op in group.ops for t in op.outputs.values()):
        readers = list(k.plan.graph.successors(tensor))
        if not readers or any(r not in mine for r in readers):
            out.append(tensor)
    return out


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
    vector, special = elementwise(group)
    loads = [(k.move(k.load0, core, shares(n, ctas), k.way(t)), plan.kind(t)) for t, n in ins.items()]
    for (load, _), kind in loads:
        k.started(load, kind == "activation")
    hold = vector_fs(k.chip, shares(vector, ctas), shares(special, ctas))
    work = k.em.hold(k.vector0 + core, hold, VECTOR, latency_fs(k.chip, VECTOR), n=ctas)
    for (load, which), _ in loads:
        k.em.after(work[which], load, Dep.RAW)
    idle = np.setdiff1d(np.arange(ctas), np.concatenate([which for (_, which), _ in loads]))
    k.started(work[idle])
    if k.chip.execution.row_scale.value and group.kind == "quantize" and dtype_of(plan.dtype(outs[0])).by_row:
        work = _again(k, core, work, shares(sum(ins.values()), ctas))
    finals = [work]
    for t in results(k, group):
        stores, which = k.move(k.store0, core, shares(plan.size(t), ctas), k.way(t, "store"))
        k.em.after(stores, work[which], Dep.RAW)
        finals.append(stores)
    k.finish(np.concatenate(finals))


def _again(k: Kernels, core: Ints, work: Ints, nbytes: Ints) -> Ints:
    """What needs the scale of a whole row: that is found behind its last element, then the row is read again."""
    latency, scale = latency_fs(k.chip, VECTOR), int(k.chip.execution.row_scale.value) * k.chip.period_fs
    largest = k.em.hold(k.vector0 + core, scale, VECTOR, n=len(core))
    k.em.after(largest, work, Dep.RAW)
    loads = k.em.move(k.load0 + core, nbytes, [(f"load:{k.near}", "", "activation")] * len(core))
    k.em.after(loads, largest, Dep.ORDER)
    done = k.em.hold(k.vector0 + core, vector_fs(k.chip, 0, 0), VECTOR, latency, n=len(core))
    k.em.after(done, loads, Dep.RAW)
    return done


def collective(k: Kernels, group: Group) -> None:
    """All-reduce or all-gather: rounds of sends; what came is summed by as many cores as it keeps busy."""
    op = group.ops[0]
    nbytes, ways = message(k.plan, group)
    link = k.chip.link
    assert link is not None
    k.begin()
    before: Ints | None = None
    bits = DTYPE_BITS.get(k.plan.dtype(next(iter(op.outputs.values()))), 16)
    for r in rounds(group.kind, nbytes, ways, link):
        network = k.em.machine.engine("network")
        peers = (ways - 2) * int(link.peer.value)
        if peers > 0:
            flags = k.em.hold(network, peers, LINK)
            if before is None:
                k.started(flags)
            else:
                k.em.after(np.broadcast_to(flags, before.shape), before, Dep.RAW)
        sent = k.em.send(network, r.send)
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
