"""RDU style: a block is a section laid out in space. Its groups run at once, each on its share of the cores, by tiles.

Tiles of weights, caches and tables stream from the memories ahead of use, across the borders of ops and sections, as
far as the on-chip buffers go. What passes from group to group is a stream between cores: it is no memory traffic, and
only what is loaded, stored and sent counts as bytes.

**Buffers.** Every tile takes one of `slots` buffers from its load until its compute is done. Tiles are numbered in the
order of use, over all blocks. The load of a tile waits (WAR) for

* the compute of the tile `slots` before it, where that is in the same block or in the block before. A block exports its
  tiles' computes, counted from its end: the last under slot ENTRY + 1, the one before it under ENTRY + 2, and so on. A
  slot that the block before does not export is no edge;
* the entry of the block before, which waits for all results of the block before that one. So where the tile `slots`
  before lies more than one block back, it has been used.

The first block of a pipeline stage runs on other chips than the block before: its loads wait for its own entry.
Either way, no more than `slots` tiles are loaded, or on their way, and not yet used, whatever blocks follow each other.

**Pieces.** A product that is cut by columns gives its result in pieces; attention gives its heads. A product that reads
such a result is cut along its sum, and each tile waits for the piece that covers it. All else waits for the last piece.

**Time.** A launch waits for the results of the block before, and the first computes for the launch; loads do not
(lookups in a table do: the token tells which rows). The engines are not clocked: a tile starts when its data is there,
and then takes whole cycles. A stream that never pauses would drift against clock edges, and no two layers would be
equal to the femtosecond. Launches are never overlapped: `execution.overlap` is for the kernels style.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ..emit import Emitter
from ..machine import LINK, EngineRow, link_port, nearest_buffer, port_of, window_of
from ..plan import Block, Plan
from ..program import Dep
from .section_frame import Section, streaming_tiers
from .section_ops import EMITTERS, vector


def engines(plan: Plan) -> list[EngineRow]:
    """A launcher, a load engine per memory, one for lookups, a store engine, one per group, a network port.

    A lookup in a table waits for the token; it has its own engine so that it does not hold up the streams.
    """
    chip = plan.chip
    buffer = f"bandwidth:{nearest_buffer(chip)}"
    most = max(len(unit.work) for stage in plan.stages for unit in stage.units)
    loads = [(f"load.{t.name}", "load") for t in streaming_tiers(chip)] + [("gather", "gather")]
    rows = [EngineRow("launcher", "launcher")]
    rows += [EngineRow(name, kind, window_of(chip.load), port_of(chip.load), buffer) for name, kind in loads]
    rows += [EngineRow("store", "store", window_of(chip.store), port_of(chip.store), buffer)]
    rows += [EngineRow(f"pcu{i}", "pcu") for i in range(most)]
    if chip.link is not None:
        rows.append(EngineRow("network", "network", port=link_port(chip), port_cause=LINK))
    return [replace(row, clocked=False) for row in rows]


def emit(block: Block, em: Emitter) -> None:
    """One section: launch, all groups, the way to the next stage, and the handover to the next block."""
    section = Section(block, em)
    groups = block.unit.work
    em.op, em.group = em.number_op(groups[0]), 0
    section.enter()
    for i, group in enumerate(groups):
        em.op, em.group, section.index = em.number_op(group), i, i
        EMITTERS.get(group.kind, vector)(section, group)
    if block.send_bytes:
        em.op, em.group = em.number_op("send to next stage"), len(groups)
        sent = em.send(em.machine.engine("network"), block.send_bytes)
        em.after(np.repeat(sent, len(section.finals)), np.concatenate(section.finals), Dep.RAW)
        section.finals.append(sent)
    section.leave()
