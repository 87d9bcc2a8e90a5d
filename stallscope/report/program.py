"""A compiled program in short: what it holds where, its engines, and how many instructions it takes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from . import units
from .layout import bullets, grid, pairs, render, section

if TYPE_CHECKING:
    from ..compiler.program import TileProgram


def program_table(program: TileProgram) -> str:
    """A summary of at most 100 columns; `TileProgram.text` prints the whole."""
    info = program.info
    head = [
        ("chips", f"{info.chips:,} (tp {info.tp} x pp {info.pp})"),
        *(("", line) for line in info.fit),
        ("blocks", f"{program.blocks:,}"),
        ("instructions", f"{program.instructions:,}, blocks that repeat counted each time"),
        ("engines", ", ".join(f"{n:,} {kind}" for kind, n in Counter(program.engines.kind).items())),
        ("stations", ", ".join(f"{s} ({n:,})" for s, n in zip(program.stations.name, _lanes(program), strict=True))),
    ]
    parts = [section(f"{info.model} compiled for {info.chip}", "", pairs(head))]
    if info.placement:
        parts.append(
            section("Placement, bytes on one chip", grid(("tier", "kind", "bytes"), _placed(program), words=(0, 1)))
        )
    runs = [
        (program.bodies[s.body].name, f"{s.repeat:,}", f"{len(program.bodies[s.body]):,}", f"{s.stage:,}")
        for s in program.segments
    ]
    parts.append(section("Segments, in order", grid(("body", "repeat", "instructions", "stage"), runs)))
    if info.notes:
        parts.append(section("Notes", bullets(info.notes)))
    return render(*parts, section("The whole program: stallscope compile ... --print"))


def _lanes(program: TileProgram) -> list[int]:
    return [int(n) for n in program.stations.lanes]


def _placed(program: TileProgram) -> list[tuple[str, str, str]]:
    return [
        (tier, kind, units.bytes_text(n)) for tier, kinds in program.info.placement.items() for kind, n in kinds.items()
    ]
