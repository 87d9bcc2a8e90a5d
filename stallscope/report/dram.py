"""What simulated DRAM gave, and where the rest of its buses' time went: a table, and the same for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import RenderableType

from . import units
from .layout import grid, section

if TYPE_CHECKING:
    from ..sim.run import DramAccount, Run

NAMES = {
    "refresh": "refresh",
    "row-miss": "row misses",
    "bank-conflict": "bank conflicts",
    "turnaround": "read/write turnaround",
    "bus": "bank groups and command buses",
}


def dram_table(run: Run) -> RenderableType | None:
    """Per tier: the share of its data buses' time by what they did, and the bandwidth that came of it."""
    if not run.drams:
        return None
    columns = [units.share_column(_parts(a)) for a in run.drams.values()]
    labels = ["data", *NAMES.values(), "too few bytes in flight", "nothing asked of it", "time x data buses"]
    rows = [
        (label, *(c if c != "0.0%" else "-" for c in cells)) for label, *cells in zip(labels, *columns, strict=True)
    ]
    achieved = [dram_json(run)[tier] for tier in run.drams]
    rates = [
        ("GB/s over the whole step", *(units.number_text(d["bytes_per_s"] / 1e9) for d in achieved)),
        ("GB/s while asked", *(units.number_text(d["bytes_per_s_asked"] / 1e9) for d in achieved)),
        ("GB/s at its peak", *(units.number_text(d["peak_bytes_per_s"] / 1e9) for d in achieved)),
    ]
    header = ("", *(f"{tier}: {a.buses:,} data buses" for tier, a in run.drams.items()))
    return section(
        "What the DRAM gave, command by command", grid(header, rows[:-1], rows[-1]), grid(("", *run.drams), rates)
    )


def dram_json(run: Run) -> dict[str, dict[str, Any]]:
    """Per tier with simulated DRAM: times that sum to time x buses, and rates in bytes per second."""
    out = {}
    for tier, a in run.drams.items():
        moved = sum(sum(kinds.values()) for kinds in run.bytes.get(tier, {}).values())
        whole = run.time_fs * a.buses
        asked = run.time_fs * (whole - a.unasked_fs) // whole if whole else 0
        out[tier] = {
            "buses": a.buses,
            "data_fs": a.data_fs,
            "lost_fs": dict(a.lost_fs),
            "too_few_fs": a.too_few_fs,
            "unasked_fs": a.unasked_fs,
            "bytes_per_s": moved * units.FS_PER_S / run.time_fs,
            "bytes_per_s_asked": moved * units.FS_PER_S / asked if asked else 0.0,
            "peak_bytes_per_s": a.peak_bytes_per_s,
        }
    return out


def _parts(a: DramAccount) -> list[int]:
    return [a.data_fs, *(a.lost_fs[cause] for cause in NAMES), a.too_few_fs, a.unasked_fs]
