"""From DRAM presets and address mappings to the tables of DRAM lanes (docs/model.md): everything in ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from ..arch.dram import DramPreset, RefreshMode
from ..arch.mapping import Mapping, make_mapping
from ..errors import StallscopeError
from .program import DRAM_COMMANDS, DRAM_FIELDS, DRAM_LEVELS, DRAM_PARAMS, Drams, ints

COMMANDS = {
    "ACT": "ACT",
    "PREpb": "PRE",
    "PREab": "PREA",
    "RD": "RD",
    "WR": "WR",
    "REFab": "REFA",
    "REFpb": "REFB",
}
LEVELS = {"channel": "channel", "pseudochannel": "rank", "sid": "sid", "bankgroup": "group", "bank": "bank"}
WIDEST_FIRST = ("channel", "pseudochannel", "sid", "bankgroup", "bank")
FIELDS = {
    "pseudochannel": "rank",
    "sid": "sid",
    "bank_group": "group",
    "bank": "bank",
    "row": "row",
    "column": "column",
}

# Shares of the write queue (Ramulator 2.1's defaults): drained from more than the first down to fewer than the second.
DRAIN_ABOVE, DRAIN_BELOW = Fraction(8, 10), Fraction(2, 10)
MAX_QUEUE = 4096


@dataclass(frozen=True)
class Lane:
    """One controller with the DRAM behind it; `queue` reads and as many writes wait; mapping by name or by fields."""

    preset: DramPreset
    mapping: str = "RoBaCoBg"
    refresh: RefreshMode = "all-bank"
    queue: int = 32
    data_clock_stops: bool = True

    def table(self) -> Mapping:
        """The mapping of this organisation. Raises StallscopeError."""
        return make_mapping(self.mapping, self.preset)


def lane_tables(lanes: Sequence[Lane]) -> Drams:
    """The tables of these lanes, a row each. Raises StallscopeError for a mapping, refresh or queue that cannot be."""
    rules = [_rules(lane.preset) for lane in lanes]
    fields = [_fields(lane) for lane in lanes]
    return Drams(
        name=tuple(lane.preset.name for lane in lanes),
        params=ints([_params(lane) for lane in lanes]).reshape(len(lanes), len(DRAM_PARAMS)),
        rule_ptr=ints(np.cumsum([0, *map(len, rules)])),
        rules=ints([row for rows in rules for row in rows]).reshape(-1, 6),
        field_ptr=ints(np.cumsum([0, *map(len, fields)])),
        fields=ints([row for rows in fields for row in rows]).reshape(-1, 3),
    )


def unloaded_ticks(preset: DramPreset) -> int:
    """Ticks of a read to an idle lane with its bank closed: acceptance, ACT, RD, the burst."""
    return 1 + preset.gaps["bank", "ACT", "RD"] + preset.ticks(preset.rules.read_latency)


def _rules(preset: DramPreset) -> list[tuple[int, int, int, int, int, int]]:
    """Rows (before, after, level, ticks, commands back, 1: in sibling nodes)."""
    rows = []
    for (level, before, after), ticks in _needed(preset.gaps).items():
        sibling = level == "other_sid"
        scope = DRAM_LEVELS.index(LEVELS["sid" if sibling else level])
        rows.append((*_pair(before, after), scope, ticks, 1, int(sibling)))
    window = preset.rules.four_activates
    kinds = ("ACT", "REFpb") if window.refpb else ("ACT",)
    for before in kinds:
        for after in kinds:
            longer = preset.rules.command_ticks(before) - preset.rules.command_ticks(after)
            ticks = preset.ticks(window.ck) + longer
            rows.append((*_pair(before, after), DRAM_LEVELS.index("rank"), ticks, 4, 0))
    return sorted(rows)


def _needed(gaps: dict[tuple[str, str, str], int]) -> dict[tuple[str, str, str], int]:
    """Without the rules that one of a wider level includes."""
    out = {}
    for (level, before, after), ticks in gaps.items():
        wider = WIDEST_FIRST[: WIDEST_FIRST.index(level)] if level in WIDEST_FIRST else ()
        if all(gaps.get((each, before, after), -1) < ticks for each in wider):
            out[level, before, after] = ticks
    return out


def _pair(before: str, after: str) -> tuple[int, int]:
    return DRAM_COMMANDS.index(COMMANDS[before]), DRAM_COMMANDS.index(COMMANDS[after])


def _fields(lane: Lane) -> list[tuple[int, int, int]]:
    """Rows (field, size, worth), least significant first."""
    return [(DRAM_FIELDS.index(FIELDS[p.field]), p.size, p.worth) for p in lane.table().pieces]


def _params(lane: Lane) -> list[int]:
    preset, rules = lane.preset, lane.preset.rules
    if not 1 <= lane.queue <= MAX_QUEUE:
        raise StallscopeError(f"queue: found {lane.queue}; expected from 1 to {MAX_QUEUE:,}; change it")
    clocked = rules.data_clock is not None and lane.data_clock_stops
    hold = preset.ticks(rules.burst) + (preset.ticks(rules.data_clock) if rules.data_clock else 0)
    bank = rules.refresh.per_bank
    by_sets = bank is not None and bank.order == "set after set"
    refresh = {"none": 0, "all-bank": 1, "per-bank": 3 if by_sets else 2}[lane.refresh]
    values = {
        "ranks": preset.together,
        "sids": preset.sids,
        "groups": preset.bank_groups,
        "banks": preset.banks,
        "rows": preset.rows,
        "columns": preset.columns,
        "burst_bytes": preset.burst_bytes,
        "tick_fs": preset.tick_fs,
        "burst_ticks": preset.burst_ticks,
        "buses": 1 if rules.buses == "one" else 2,
        "edges": int(bool(rules.half_ck)),
        "read_ticks": preset.ticks(rules.read_latency),
        "read_queue": lane.queue,
        "write_queue": lane.queue,
        "drain_from": math.floor(DRAIN_ABOVE * lane.queue) + 1,
        "drain_to": math.ceil(DRAIN_BELOW * lane.queue) - 1,
        "refresh": refresh,
        "refresh_ticks": preset.refresh_ticks(lane.refresh),
        "refresh_busy": preset.ticks(bank.busy) if bank is not None else 0,
        "split_ticks": preset.ticks(rules.second_activate) if rules.second_activate else 0,
        "clocked": int(clocked),
        "clock_read": preset.ticks(rules.read_latency) - preset.ticks(rules.burst) + hold if clocked else 0,
        "clock_write": preset.ticks(rules.write_latency) + hold if clocked else 0,
        "hash": int(lane.table().hashed),
    }
    return [values[name] for name in DRAM_PARAMS]
