"""GPU style: every group is a kernel, its tiles spread over the cores in waves, a launch and a barrier around it.

Within a core, loads run ahead of the units by `execution.stages` tile buffers (WAR edges). With `overlap: programmatic` the next kernel
is launched and loads its weights while the present one runs; what it reads of the present one's results waits for the barrier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ...workloads import DTYPE_BITS
from ..collectives import rounds
from ..emit import Emitter
from ..machine import LAUNCH, LINK, MATRIX, VECTOR, EngineRow, nearest_buffer, port_of, window_of
from ..plan import Gemm, Group, Plan, gemms
from ..program import Dep, Ints, Opcode, ints
from ..tile import MIN_TOKENS, gemm_tiles, latency_fs, matrix_dtype, matrix_fs, shares, stage_bytes, vector_fs

if TYPE_CHECKING:
    from ..schedule import Block

PARTIAL = 4  # bytes of a partial sum: fp32


def engines(plan: Plan) -> list[EngineRow]:
    """A launcher, a network port, and four engines per core: load, matrix, vector, store."""
    chip = plan.chip
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    rows = [EngineRow("launcher", "launcher")]
    if chip.link is not None:
        rows.append(EngineRow("network", "network", port_cause=LINK))
    cores = int(chip.cores.value)
    rows += [EngineRow(f"load{i}", "load", window_of(chip.load), port_of(chip.load), buffer) for i in range(cores)]
    rows += [EngineRow(f"matrix{i}", "matrix") for i in range(cores)]
    rows += [EngineRow(f"vector{i}", "vector") for i in range(cores)]
    rows += [EngineRow(f"store{i}", "store", window_of(chip.store), port_of(chip.store), buffer) for i in range(cores)]
    return rows


@dataclass
class _Kernels:
    """The state between the kernels of one block: what the next launch and the next reads wait for."""

    block: Block
    em: Emitter

    def __post_init__(self) -> None:
        self.plan, self.chip = self.block.plan, self.block.plan.chip
        self.cores = int(self.chip.cores.value)
        self.stages = self.chip.execution.stages or 2
        self.overlap = self.chip.execution.overlap == "programmatic"
        self.end: Ints | None = None
        self.launch: Ints | None = None
        m = self.em.machine
        self.load0, self.matrix0, self.vector0, self.store0 = (m.engine(f"{x}0") for x in ("load", "matrix", "vector", "store"))

    def begin(self) -> None:
        """Launch: after the barrier of the kernel before, or with overlap after its launch."""
        gap = self.em.machine.cycles_fs(float(self.chip.execution.launch_gap.value) / self.chip.period_fs)
        before, self.before = self.launch, self.end
        self.launch = self.em.hold(self.em.machine.engine("launcher"), gap, LAUNCH, opcode=Opcode.LAUNCH)
        if self.overlap:
            self._wait(self.launch, before, 1)
        else:
            self._wait(self.launch, self.before, 0)

    def _wait(self, to: Ints, pred: Ints | None, slot: int) -> None:
        if pred is None:
            self.em.after_slot(to, slot, Dep.ORDER)
        else:
            self.em.after(to, pred, Dep.ORDER)

    def started(self, to: Ints, reads_results: Any = True) -> None:
        """Instructions that wait for the launch, and (where they read results) for the kernel before."""
        assert self.launch is not None
        self.em.after(to, self.launch, Dep.ORDER)
        if self.overlap:
            to = to[np.broadcast_to(reads_results, to.shape)]
            if len(to):
                self._wait(to, self.before, 0)

    def finish(self, finals: Ints) -> None:
        """Barrier: the kernel is over when all of these are done."""
        assert self.launch is not None
        self.end = self.em.hold(self.em.machine.engine("launcher"), 0, LAUNCH, opcode=Opcode.BARRIER)
        self.em.after(np.broadcast_to(self.end, finals.shape), finals, Dep.ORDER)

    def way(self, tensor: str, store: bool = False) -> tuple[str, str, str]:
        """Route, tier and kind of a tensor."""
        tier = self.block.home(tensor)
        return f"{'store' if store else 'load'}:{tier}", tier, self.plan.kind(tensor)

    def scratch(self, store: bool) -> tuple[str, str, str]:
        """Route, tier and kind of partial results."""
        tier = next(t.name for t in self.chip.tiers_for("activation") if t.scope == "chip")
        return f"{'store' if store else 'load'}:{tier}", tier, "activation"


def emit(block: Block, em: Emitter) -> None:
    """All kernels of one unit, in order; then what the next stage needs is sent."""
    k = _Kernels(block, em)
    for i, group in enumerate(block.unit.groups):
        em.op, em.group = em.number_op(group), i
        KERNELS.get(group.kind, _vector)(k, group)
    if block.send_bytes:
        em.op, em.group = em.number_op("send to next stage"), len(block.unit.groups)
        k.begin()
        sent = em.send(em.machine.engine("network"), block.send_bytes)
        k.started(sent)
        k.finish(sent)
    assert k.end is not None and k.launch is not None
    em.export(k.end, 0)
    if k.overlap:
        em.export(k.launch, 1)


@dataclass(frozen=True)
class _Tiles:
    """What streams through the cores: per CTA (block of threads) and step, bytes and the unit's time. Arrays [cta, step]."""

    nbytes: Ints
    hold_fs: Ints
    way: tuple[str, str, str]
    address: int
    step: int
    cause: str
    operand_bytes: Ints  # per CTA: the activation that it reads first
    operand: tuple[str, str, str]


def _stream(k: _Kernels, tiles: _Tiles) -> tuple[Ints, Ints]:
    """Emit loads and computes of all CTAs. Returns each CTA's core and its last compute."""
    ctas, steps = tiles.nbytes.shape
    core = np.arange(ctas) % k.cores
    ahead = min(k.stages, steps) if k.overlap else 0
    start = k.em.count
    has = np.flatnonzero(tiles.operand_bytes)
    cta, step = np.repeat(np.arange(ctas), steps), np.tile(np.arange(steps), ctas)
    operand = k.em.move(k.load0 + core[has], tiles.operand_bytes[has], [tiles.operand] * len(has))
    address = tiles.address + np.concatenate([[0], np.cumsum(tiles.nbytes.ravel())[:-1]])
    loads = k.em.move(k.load0 + core[cta], tiles.nbytes.ravel(), [tiles.way] * (ctas * steps), address, tiles.step)
    k.started(operand)
    k.started(loads, False)
    loads = loads.reshape(ctas, steps)
    unit = k.matrix0 if tiles.cause == MATRIX else k.vector0
    latency = latency_fs(k.chip, tiles.cause)
    compute = k.em.hold(
        unit + np.repeat(core, steps), tiles.hold_fs.ravel(), tiles.cause, latency, n=ctas * steps
    ).reshape(ctas, steps)
    k.em.after(compute.ravel(), loads.ravel(), Dep.RAW)
    k.em.after(compute[has, 0], operand, Dep.RAW)
    # Buffers: the j-th load of a core waits until the (j - stages)-th tile has been used.
    j = (np.arange(ctas) // k.cores)[:, None] * steps + np.arange(steps) - k.stages
    late = j >= 0
    user = compute[(j // steps * k.cores + core[:, None])[late], (j % steps)[late]]
    k.em.after(loads[late], user, Dep.WAR)
    # Queue order: a CTA's operand first (with overlap: behind the weights that may already come), then tile by tile.
    wide = 4 * (steps + 1)
    k.em.sort(start, np.concatenate([
        has * wide + 4 * ahead - 2, cta * wide + 4 * step, cta * wide + 4 * np.maximum(step, ahead - 1) + 3,
    ]))  # fmt: skip
    return core, compute[:, -1]


def _epilogue(k: _Kernels, core: Ints, after: Ints, ops: Any, special: Any, nbytes: Any, way: tuple[str, str, str]) -> Ints:
    """A vector tail and the store of the results; returns the stores."""
    n = len(core)
    tail = k.em.hold(k.vector0 + core, vector_fs(k.chip, ops, special), VECTOR, latency_fs(k.chip, VECTOR), n=n)
    k.em.after(tail, after, Dep.RAW)
    stores = k.em.move(k.store0 + core, nbytes, [way] * n)
    k.em.after(stores, tail, Dep.RAW)
    return stores


def _reduce(k: _Kernels, core: Ints, last: Ints, partial: Ints, parts: int, tail: Callable[[Ints, Ints], Ints]) -> Ints:
    """Each CTA stores a partial result; the first of every `parts` loads them all, and its tail sums and stores. CTAs are [part, tile]."""
    stores = k.em.move(k.store0 + core, partial, [k.scratch(True)] * len(core))
    k.em.after(stores, last, Dep.RAW)
    tiles = len(core) // parts
    loads = k.em.move(k.load0 + core[:tiles], partial.reshape(parts, tiles).sum(axis=0), [k.scratch(False)] * tiles)
    k.em.after(np.tile(loads, parts), stores, Dep.RAW)
    return tail(core[:tiles], loads)


def _gemm(k: _Kernels, group: Group) -> None:
    """Skinny products that share their activation: column tiles over the cores, the sum split where columns are too few."""
    for gemm in _merged(gemms(group)):
        _one_gemm(k, group, gemm)


def _merged(parts: list[Gemm]) -> list[Gemm]:
    """Siblings as one product: their columns side by side."""
    if len(parts) > 1 and all(p.op.op == "linear" and p.k == parts[0].k for p in parts):
        n, size = sum(p.n for p in parts), sum(p.nbytes for p in parts)
        return [Gemm(parts[0].op, parts[0].m, n, parts[0].k, 1, size)]
    return parts


def _one_gemm(k: _Kernels, group: Group, g: Gemm) -> None:
    plan, chip = k.plan, k.chip
    weight = next(t for r, t in g.op.inputs.items() if r in ("weight", "b"))
    x = next(t for r, t in g.op.inputs.items() if r in ("x", "a"))
    n = g.n * g.count
    t = gemm_tiles(chip, n, g.k, DTYPE_BITS[plan.dtype(weight)], g.m)
    tiles = -(-n // t.columns)
    cols = np.full(tiles, t.columns)
    cols[-1] = n - t.columns * (tiles - 1)
    ks = shares(g.k, t.split)
    bias = sum(op.cost.reads[op.inputs["bias"]] for op in group.ops if "bias" in op.inputs)
    size = g.nbytes
    area = np.outer(ks, cols).ravel()  # [part, tile]
    edges = np.concatenate([[0], np.cumsum(area)]) * DTYPE_BITS[plan.dtype(weight)] // 8
    edges[-1] = size
    nbytes = np.stack([shares(b, t.steps) for b in np.diff(edges)])
    dtype = matrix_dtype(chip, plan.dtype(weight), plan.dtype(x))
    hold = matrix_fs(chip, dtype, g.m, np.tile(cols, t.split), np.repeat(ks, tiles) / t.steps)
    operand = np.repeat(g.m * ks * DTYPE_BITS[plan.dtype(x)] // 8, tiles)
    k.begin()
    core, last = _stream(
        k,
        _Tiles(np.maximum(nbytes, 1), np.repeat(hold[:, None], t.steps, axis=1), k.way(weight), plan.address.get(weight, 0),
               k.block.step.get(weight, 0), MATRIX, np.maximum(operand, 1), k.way(x)),
    )  # fmt: skip
    vector, special = _elementwise(group)
    out = _output(group)

    def tail(cores: Ints, done: Ints) -> Ints:
        ops = shares(vector, tiles) + (g.m * cols * t.split if t.split > 1 else 0)
        result = shares(plan.size(out), tiles)
        stores = _epilogue(k, cores, done, ops, shares(special, tiles), np.maximum(result, 1), k.way(out, True))
        if bias:
            loads = k.em.move(k.load0 + cores, np.maximum(shares(bias, tiles), 1), [k.way(weight)] * tiles)
            k.started(loads, False)
            k.em.after(stores, loads, Dep.RAW)
        return stores

    if t.split > 1:
        partial = ints(np.tile(cols, t.split) * g.m * PARTIAL)
        k.finish(_reduce(k, core, last, partial, t.split, tail))
    else:
        k.finish(tail(core, last))


def _elementwise(group: Group) -> tuple[int, int]:
    """Elementwise and special operations of a group's vector ops, biases included."""
    return (
        group.scaled(sum(op.cost.vector_ops for op in group.ops)),
        group.scaled(sum(op.cost.special_ops for op in group.ops)),
    )


def _output(group: Group) -> str:
    """The activation that leaves a group: the last made."""
    return next(reversed(group.ops[-1].outputs.values()))


def _attention(k: _Kernels, group: Group) -> None:
    """Flash decoding: every sequence and KV head, its tokens split over the cores; rotary positions and the append before, the sum of the parts behind."""
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
    softmax = vector_fs(chip, -(-c.vector_ops * part // (c.n * pairs * steps)), -(-c.special_ops * part // (c.n * pairs * steps)))
    products = matrix_fs(chip, dtype, c.m, keys, c.k) + matrix_fs(chip, dtype, c.m, c.k, keys)
    q = sum(c.reads[op.inputs[r]] for r in ("q", "k", "v"))
    k.begin()
    core, last = _stream(
        k,
        _Tiles(np.maximum(np.stack([shares(b, steps) for b in size]), 1), np.repeat(products[:, None], steps, axis=1), k.way(cache),
               plan.address.get(cache, 0), k.block.step.get(cache, 0), MATRIX, np.full(len(part), -(-q // pairs)), k.way(op.inputs["q"])),
    )  # fmt: skip
    soft = k.em.hold(k.vector0 + core, softmax * steps, VECTOR, latency_fs(chip, VECTOR), n=len(core))
    k.em.after(soft, last, Dep.RAW)
    out = op.outputs["out"]
    heads = c.m * (c.k + 2)  # results and the two numbers of a softmax, for each query head of the pair

    def tail(cores: Ints, done: Ints) -> Ints:
        ops = 2 * heads * split if split > 1 else c.m * c.k
        return _epilogue(k, cores, done, np.full(pairs, ops), np.full(pairs, c.m), shares(plan.size(out), pairs), k.way(out, True))

    if split > 1:
        finals = _reduce(k, core, soft, np.full(len(core), heads * PARTIAL), split, tail)
    else:
        finals = tail(core, soft)
    k.finish(np.concatenate([finals, _append(k, group, core[:pairs])]))


def _append(k: _Kernels, group: Group, cores: Ints) -> Ints:
    """Rotary positions of the new token, and its K and V to the cache; returns the stores."""
    ops = [o for o in group.ops if o.op in ("rope", "kv_append")]
    slots = [t for o in ops if o.op == "kv_append" for t in o.outputs.values()]
    if not slots:
        return ints([])
    made = group.produced
    new = [t for o in ops for t in o.inputs.values() if t not in made]
    nbytes = sum(k.plan.size(t) for t in dict.fromkeys(new))
    loads = k.em.move(k.load0 + cores, shares(nbytes, len(cores)), [k.way(new[0])] * len(cores))
    k.started(loads)
    ops_n = sum(o.cost.vector_ops for o in ops)
    stored = shares(sum(k.plan.size(t) for t in slots), len(cores))
    return _epilogue(k, cores, loads, shares(ops_n, len(cores)), 0, stored, k.way(slots[0], True))


ROWS_WHOLE = frozenset({"rmsnorm", "layernorm", "softmax", "embedding"})
GRAIN = 4096  # elements of an elementwise tile: enough for a core's lanes to be busy for some tens of cycles


def _vector(k: _Kernels, group: Group) -> None:
    """Norms, lookups, elementwise: rows over the cores, and the columns too where a row may be cut."""
    plan = k.plan
    outs = [t for t in group.produced if plan.kind(t) == "activation"]
    ins = group.reads
    largest = max([*ins, *outs], key=lambda t: int(np.prod(plan.graph.nodes[t]["shape"])) if plan.kind(t) == "activation" else 0)
    shape = plan.graph.nodes[largest]["shape"]
    rows, width = int(np.prod(shape[:-1])), int(shape[-1])
    cut = 1 if group.kind in ROWS_WHOLE else max(1, -(-width // GRAIN))
    ctas = max(1, min(rows * cut, k.cores))
    core = np.arange(ctas) % k.cores
    k.begin()
    vector, special = _elementwise(group)
    pieces = [np.maximum(shares(n, ctas), 1) for n in ins.values() if n]
    ways = [k.way(t) for t, n in ins.items() if n]
    loads = [k.em.move(k.load0 + core, size, [way] * ctas) for size, way in zip(pieces, ways, strict=True)]
    for load, way in zip(loads, ways, strict=True):
        k.started(load, way[2] == "activation")
    work = k.em.hold(k.vector0 + core, vector_fs(k.chip, shares(vector, ctas), shares(special, ctas)), VECTOR, latency_fs(k.chip, VECTOR), n=ctas)
    for load in loads:
        k.em.after(work, load, Dep.RAW)
    finals = []
    kept = [t for o in group.ops for t in o.outputs.values() if _leaves(k, group, t)]
    for t in kept:
        size = plan.size(t)
        n = min(ctas, size)
        stores = k.em.move(k.store0 + core[:n], shares(size, n), [k.way(t, True)] * n)
        k.em.after(stores, work[:n], Dep.RAW)
        finals.append(stores)
    k.finish(np.concatenate(finals) if finals else work)


def _leaves(k: _Kernels, group: Group, tensor: str) -> bool:
    """True if anything outside the group reads the tensor, or nothing reads it at all (a result)."""
    readers = list(k.plan.graph.successors(tensor))
    mine = {o.name for o in group.ops}
    return not readers or any(r not in mine for r in readers)


def _collective(k: _Kernels, group: Group) -> None:
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
            out = np.maximum(shares(nbytes, len(cores)), 1)
            before = _epilogue(k, cores, loads, shares(r.reduce * 8 // bits, len(cores)), 0, out, k.scratch(True))
    assert before is not None
    k.finish(before)


KERNELS: dict[str, Callable[[_Kernels, Group], None]] = {
    "linear": _gemm,
    "matmul": _gemm,
    "attention": _attention,
    "all_reduce": _collective,
    "all_gather": _collective,
}
