"""Where the ticks of a DRAM channel went in which its data bus was idle: each has one cause, and the sums are exact.

Column commands are laid out in order, bus by bus; the distance between two beyond a burst is a gap. A gap is charged,
in this order: to `no request` while nothing waited; to `refresh` if one was due in it; to `turnaround` if the bus
turned from reads to writes or back; to `bank conflict` or `row miss` if the burst after it was the first of a newly
opened row, which took the place of another or of none; to `bank group` if it went to the group of the burst before;
else to `other` (command buses, stack ids, the data clock). What stands before the first command and behind the last is
`latency`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arch.mapping import Location, Mapping

if TYPE_CHECKING:
    from .arch.dram import DramPreset, RefreshMode

Numbers = NDArray[np.int64]
Flags = NDArray[np.bool_]

CAUSES = (
    "refresh",
    "row miss",
    "bank conflict",
    "turnaround",
    "bank group",
    "other",
    "latency",
    "no request",
)


@dataclass(frozen=True, eq=False)
class Served:
    """Bursts that went to the DRAM, in order of the stream, with the ticks of their acceptance and their RD or WR."""

    bursts: Numbers
    writes: Flags
    accepted: Numbers
    command: Numbers


def lost_ticks(
    served: Served, preset: DramPreset, mapping: Mapping, refresh: RefreshMode, cycles: int
) -> dict[str, int]:
    """Ticks without data of each cause, averaged over the data buses of the controller (pseudo-channels).

    `cycles` run from the first acceptance. With the ticks of data they add up to `cycles` on each bus; the data of a
    write that comes last lies behind the end, as `cycles` end with its command.
    """
    lost = dict.fromkeys(CAUSES, 0)
    at = mapping.decode(served.bursts)
    for bus in range(preset.together):
        mine = np.flatnonzero(at.pseudochannel == bus)
        command = served.command[mine]
        order = mine if np.all(command[1:] >= command[:-1]) else mine[np.argsort(command, kind="stable")]
        if not len(order):
            lost["no request"] += cycles
            continue
        start = int(served.accepted.min())
        for cause, ticks in _one_bus(served, Location(*(part[order] for part in at)), preset, refresh, order).items():
            lost[cause] += ticks
        command = served.command[order]
        behind = cycles - int(command[-1] - start) - preset.burst_ticks
        lost["latency"] += int(command[0]) - start + max(0, behind)
    return {cause: ticks // preset.together for cause, ticks in lost.items() if ticks >= preset.together}


def _one_bus(served: Served, at: Location, preset: DramPreset, refresh: RefreshMode, order: Numbers) -> dict[str, int]:
    command, writes = served.command[order], served.writes[order]
    ends = command[:-1] + preset.burst_ticks
    gap = np.maximum(command[1:] - ends, 0)
    accepted = np.sort(served.accepted[order])[1:]
    # All that had come by the last command was served: until the next came, nothing waited.
    nothing = np.where(accepted > command[:-1], np.clip(accepted + 1 - ends, 0, gap), 0)
    rest = gap - nothing
    bank = ((at.sid * preset.bank_groups + at.bank_group) * preset.banks) + at.bank
    period = refresh_period(preset, refresh, command)
    opened, replaced = _opened(bank, at.row, period if refresh == "all-bank" else None)
    group = at.sid * preset.bank_groups + at.bank_group
    tests = (
        ("refresh", _refreshing(preset, refresh, command)),
        ("turnaround", writes[1:] != writes[:-1]),
        ("bank conflict", opened[1:] & replaced[1:]),
        ("row miss", opened[1:]),
        ("bank group", group[1:] == group[:-1]),
        ("other", np.ones(len(gap), np.bool_)),
    )
    lost = {"no request": int(nothing.sum())}
    for cause, holds in tests:
        lost[cause] = int(rest[holds].sum())
        rest = np.where(holds, 0, rest)
    return lost


def refresh_period(preset: DramPreset, refresh: RefreshMode, ticks: Numbers) -> Numbers:
    """How many refreshes were due by each tick."""
    interval = preset.refresh_ticks(refresh)
    return ticks // interval if interval else np.zeros_like(ticks)


def _refreshing(preset: DramPreset, refresh: RefreshMode, command: Numbers) -> Flags:
    """Whether a refresh came due, or was under way, between a command and the one before."""
    interval = preset.refresh_ticks(refresh)
    if not interval:
        return np.zeros(len(command) - 1, np.bool_)
    gaps = preset.gaps
    if refresh == "all-bank":
        busy = gaps["pseudochannel", "REFab", "ACT"]
    else:
        busy = gaps["bank", "RD", "PREpb"] + gaps["bank", "PREpb", "REFpb"]
    last_due = (command[1:] - 1) // interval * interval
    found: Flags = (last_due >= interval) & (last_due + busy > command[:-1])
    return found


def _opened(bank: Numbers, row: Numbers, period: Numbers | None) -> tuple[Flags, Flags]:
    """Whether each burst was the first of a newly opened row, and whether another row of its bank was open before."""
    order = np.argsort(bank, kind="stable")
    b, r = bank[order], row[order]
    same_bank = np.concatenate([[False], b[1:] == b[:-1]])
    same_row = same_bank & np.concatenate([[False], r[1:] == r[:-1]])
    if period is not None:
        p = period[order]
        kept = np.concatenate([[False], p[1:] == p[:-1]])
        same_bank, same_row = same_bank & kept, same_row & kept
    opened, replaced = np.empty(len(b), np.bool_), np.empty(len(b), np.bool_)
    opened[order], replaced[order] = ~same_row, same_bank & ~same_row
    return opened, replaced
