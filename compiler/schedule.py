"""From a placed plan to a TileProgram: one block per unit (layer), emitted by the chip's style, identical ones as
repeats."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ..workloads import OPS
from .bound import group_bound
from .emit import Emitter
from .machine import LAUNCH, TENSOR_KINDS, EngineRow, Machine, build_machine
from .plan import Block, Group, Plan, PlanOp, starred
from .program import Body, Dep, Info, Opcode, OpInfo, Segment, TileProgram
from .styles import dataflow, kernels, static

HANDOVER = 0  # slot by which a block tells the next that its results are there


class Style(NamedTuple):
    """One style of execution: its engines, how it emits a block, and what it makes of the finished program."""

    engines: Callable[[Plan], list[EngineRow]]
    emit: Callable[[Block, Emitter], None]
    whole_transfers: Callable[[Plan], int]
    finish: Callable[[TileProgram], TileProgram]


STYLES: dict[str, Style] = {
    "kernels": Style(kernels.engines, kernels.emit, lambda plan: 0, lambda program: program),
    "static": Style(static.engines, static.emit, static.whole_transfers, static.fix_starts),
    "dataflow": Style(dataflow.engines, dataflow.emit, lambda plan: 0, lambda program: program),
}


def schedule(plan: Plan, info: Info) -> TileProgram:
    """Emit every different block once, and string them together."""
    style = STYLES[plan.chip.style]
    machine = build_machine(plan.chip, style.engines(plan), style.whole_transfers(plan))
    ops: dict[str, OpInfo] = {}
    bodies: dict[Hashable, int] = {}
    made: list[Body] = []
    segments: list[Segment] = []
    for run in _runs(plan):
        block = replace(run[0], step=_steps(run))
        key = (_key(run[0]), tuple(sorted((plan.star(t), s) for t, s in block.step.items())))
        if key not in bodies:
            bodies[key] = len(made)
            made.append(_body(block, machine, ops, style, f"{_title(block)}.{len(made)}"))
        step = run[1].stage - run[0].stage if len(run) > 1 else 0
        segments.append(Segment(bodies[key], len(run), stage=run[0].stage, stage_step=step))
    made = _with_all_engines(made, machine)
    program = TileProgram(
        tuple(machine.causes), tuple(machine.tiers), TENSOR_KINDS, machine.engines, machine.stations, machine.routes,
        tuple(ops.values()), tuple(made), tuple(segments), info, machine.drams,
    )  # fmt: skip
    return style.finish(program)


def _blocks(plan: Plan) -> list[Block]:
    out: list[Block] = []
    for stage in plan.stages:
        working = [unit for unit in stage.units if unit.work]
        for i, unit in enumerate(working):
            last = i == len(working) - 1 and stage.index < plan.hops
            send = _handed_on(plan, stage.index) if last else 0
            out.append(Block(plan, unit, stage.index, i == 0 and stage.index > 0, send, not out))
    return out


def _handed_on(plan: Plan, stage: int) -> int:
    """Bytes of the activations that later stages read and this or an earlier one made."""
    made: set[str] = set()
    for s in plan.stages[: stage + 1]:
        made |= {t for u in s.units for g in u.groups for t in g.produced}
    wanted = {t for s in plan.stages[stage + 1 :] for u in s.units for g in u.groups for t in g.reads}
    return max(sum(plan.size(t) for t in sorted(made & wanted) if plan.kind(t) == "activation"), 1)


def _runs(plan: Plan) -> list[list[Block]]:
    """Blocks with equal keys in a row, on one stage or on one stage each."""
    runs: list[list[Block]] = []
    keys: list[Hashable] = []
    for block in _blocks(plan):
        key = _key(block)
        if runs and keys[-1] == key and block.stage - runs[-1][-1].stage == _stride(runs[-1], block):
            runs[-1].append(block)
        else:
            runs.append([block])
            keys.append(key)
    return runs


def _stride(run: list[Block], block: Block) -> int:
    """Stages between blocks of a run: that of its first two, or 0 or 1 for a new pair."""
    if len(run) > 1:
        return run[1].stage - run[0].stage
    return min(block.stage - run[0].stage, 1)


def _key(block: Block) -> Hashable:
    """Equal for blocks that do the same work from the same tiers."""
    plan = block.plan

    def tensors(parts: dict[str, str]) -> tuple[Hashable, ...]:
        return tuple(
            (r, plan.tier.get(t), tuple(plan.graph.nodes[t]["shape"]), plan.dtype(t)) for r, t in sorted(parts.items())
        )

    groups = tuple(
        (g.label, g.part, tuple(
            (starred(o.name, o.layer), o.op, _attributes(o), tensors(o.inputs), tensors(o.outputs)) for o in g.ops
        ))
        for g in block.unit.groups
    )  # fmt: skip
    return groups, block.opens_stage, block.send_bytes, block.first


def _attributes(op: PlanOp) -> tuple[Hashable, ...]:
    """What an op says of itself beside its shapes: spans, loads, windows."""
    return tuple(
        (name, str(op.data[name])) for name in (*OPS[op.op].optional, *OPS[op.op].structured) if name in op.data
    )


def _steps(run: list[Block]) -> dict[str, int]:
    """For each tensor with an address, the distance to the same tensor of the run's next block."""
    if len(run) < 2 or run[1].stage != run[0].stage:
        return {}
    plan = run[0].plan
    there = {plan.star(t): plan.address[t] for g in run[1].unit.groups for t in g.reads if t in plan.address}
    mine = [t for g in run[0].unit.groups for t in g.reads if t in plan.address]
    return {t: there[plan.star(t)] - plan.address[t] for t in mine}


def _title(block: Block) -> str:
    return "ops" if block.unit.layer is None else "layer"


def _body(block: Block, machine: Machine, ops: dict[str, OpInfo], style: Style, name: str) -> Body:
    emitter = Emitter(machine, name)
    emitter.number_op = _numbering(block.plan, ops)
    style.emit(block, emitter)
    return emitter.body()


def _numbering(plan: Plan, ops: dict[str, OpInfo]) -> Callable[[Group | str], int]:
    """Number of a group's row in the table of ops, added when it is first met."""

    def number(group: Group | str) -> int:
        label = group if isinstance(group, str) else group.label
        if label not in ops:
            must, bound = (0, 0) if isinstance(group, str) else group_bound(plan, group)
            kind = "send" if isinstance(group, str) else group.kind
            ops[label] = OpInfo(label, kind, must, bound)
        return list(ops).index(label)

    return number


def _with_all_engines(bodies: list[Body], machine: Machine) -> list[Body]:
    """An engine that works anywhere takes part in every body: where it has nothing to do it waits for the body's first
    instruction.

    So no engine runs ahead through blocks in which it has no work, and repeats can be recognised.
    """
    used = np.unique(np.concatenate([b.engine for b in bodies]))
    out = []
    for body in bodies:
        missing = np.setdiff1d(used, body.engine)
        if not len(missing):
            out.append(body)
            continue
        extra = Emitter(machine, body.name)
        extra.op, extra.group = int(body.op[0]), int(body.group.max())
        extra.hold(missing, 0, LAUNCH, opcode=Opcode.BARRIER, n=len(missing))
        extra.after(np.arange(len(missing)), 0, Dep.ORDER)
        out.append(_joined(body, extra.body()))
    return out


def _joined(one: Body, two: Body) -> Body:
    """Two bodies as one; edges of the second name instructions of the first."""
    columns = {}
    for name, values in vars(one).items():
        if name == "name":
            continue
        other = getattr(two, name)
        columns[name] = np.concatenate([values, other[1:] + values[-1] if name == "dep_ptr" else other])
    return Body(one.name, **columns)
