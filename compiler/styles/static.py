"""LPU style: one schedule for the whole chip. Weights stream from SRAM into the planes of the matrix unit, and what
those make passes on to the vector unit and to the next group.

static_state.py has the streams, static_ops.py the groups of ops; instructions come with edges and no starts, starts.py
fixes those.
"""

from __future__ import annotations

import numpy as np

from ..emit import Emitter
from ..machine import LINK, VECTOR, EngineRow, link_port, nearest_buffer, port_of
from ..plan import Block, Plan
from ..program import Opcode
from .starts import fix_starts
from .static_ops import GROUPS, vector
from .static_state import Lpu, planes_of

__all__ = ["emit", "engines", "fix_starts", "whole_transfers"]


def engines(plan: Plan) -> list[EngineRow]:
    """Planes, each with its stream of weights; a vector unit, a way in and a way out for activations, the links."""
    chip, planes = plan.chip, planes_of(plan)
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    rows = [EngineRow("launcher", "launcher")] if chip.execution.launch_gap.value else []
    rows += [EngineRow(f"mxm{i}", "matrix") for i in range(planes)]
    rows += [EngineRow(f"stream{i}", "load", 0, port_of(chip.load, planes), buffer) for i in range(planes)]
    rows += [EngineRow("read", "load", 0, port_of(chip.load, planes), buffer), EngineRow("vxm", "vector")]
    rows += [EngineRow("write", "store", 0, port_of(chip.store), buffer)]
    if chip.link is not None:
        rows.append(EngineRow("c2c", "network", port=link_port(chip), port_cause=LINK))
    return rows


def whole_transfers(plan: Plan) -> int:
    """A chunk size, a power of two, that no transfer of the plan exceeds: so each claims its lanes once."""
    most = 1
    for stage in plan.stages:
        for unit in stage.units:
            made = sum(plan.size(t) for g in unit.groups for t in g.produced)
            most = max(most, made * (plan.tp + 1), *(max([0, *g.reads.values()]) for g in unit.groups))
    return 1 << most.bit_length()


def emit(block: Block, em: Emitter) -> None:
    """All groups of one unit, in order; then what the next stage needs is sent; the block is over when all is done."""
    s = Lpu(block, em)
    for i, group in enumerate(block.unit.work):
        em.op, em.group, s.index, s.here = em.number_op(group), i, i, {}
        GROUPS.get(group.kind, vector)(s, group)
    if block.send_bytes:
        em.op, em.group = em.number_op("send to next stage"), len(block.unit.work)
        sent = em.send(em.machine.engine("c2c"), block.send_bytes)
        s.after(sent, s.last)
        s.leaves.append(sent)
    end = em.hold(s.vxm, 0, VECTOR, opcode=Opcode.BARRIER)
    s.after(end, np.concatenate([*s.leaves, s.last]))
    em.export(end, 0)
