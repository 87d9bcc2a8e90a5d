"""The command rules of the DRAM standards, written down a second time: what the shipped presets are checked against.

A rule uses JEDEC's names, and one whose names a lane does not give is no rule. Times are counted in ticks: one CK, or
half a CK where row commands take half clocks (HBM3, HBM4).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from stallscope.compiler.program import DRAM_COMMANDS, DRAM_FIELDS, DRAM_LEVELS, DRAM_PARAMS, Drams, ints
from stallscope.errors import StallscopeError

Rule = tuple[str, str, str, str, int]
"""Level, commands before, commands after, least distance, how many commands back (0: commands in sibling nodes)."""

_COMMON: tuple[Rule, ...] = (
    ("rank", "RD", "RD", "BL", 1),
    ("rank", "RD", "RD", "CCDS", 1),
    ("rank", "WR", "WR", "BL", 1),
    ("rank", "WR", "WR", "CCDSW", 1),
    ("rank", "RD", "WR", "RTW", 1),
    ("rank", "WR", "RD", "CWL + BL + WTRS", 1),
    ("rank", "RD", "PREA", "RTP", 1),
    ("rank", "WR", "PREA", "CWL + BL + WR", 1),
    ("rank", "ACT", "ACT", "RRDS", 1),
    ("rank", "ACT", "ACT", "FAW", 4),
    ("rank", "ACT", "PREA", "RAS", 1),
    ("rank", "PREA", "ACT", "RPab", 1),
    ("rank", "PRE PREA", "PRE PREA", "PPD", 1),
    ("rank", "ACT", "REFA", "RC", 1),
    ("rank", "PREA", "REFA", "RP", 1),
    ("rank", "REFA", "ACT PREA", "RFC", 1),
    ("group", "RD", "RD", "CCDL", 1),
    ("group", "WR", "WR", "CCDLW", 1),
    ("group", "WR", "RD", "CWL + BLmax + WTRL", 1),
    ("group", "ACT", "ACT", "RRDL", 1),
    ("bank", "ACT", "ACT", "RC", 1),
    ("bank", "ACT", "RD", "RCDRD", 1),
    ("bank", "ACT", "WR", "RCDWR", 1),
    ("bank", "ACT", "PRE", "RAS", 1),
    ("bank", "PRE", "ACT", "RP", 1),
    ("bank", "RD", "PRE", "RTP", 1),
    ("bank", "WR", "PRE", "CWL + BL + WR", 1),
    ("bank", "REFB", "ACT", "RFCpb", 1),
    ("bank", "ACT", "REFB", "RC", 1),
    ("bank", "PRE", "REFB", "RP", 1),
)
_PRE_REF: tuple[Rule, ...] = (("rank", "PRE", "REFA", "RP", 1),)
_RANKS: tuple[Rule, ...] = (
    ("channel", "RD", "RD", "BL", 1),
    ("channel", "WR", "WR", "BL", 1),
    ("rank", "RD", "RD WR", "BL + CS", 0),
)
_HBM2: tuple[Rule, ...] = (("rank", "REFB", "ACT", "RREFD", 1), ("rank", "ACT", "REFB", "RRDS", 1))
_HBM3: tuple[Rule, ...] = (
    *_HBM2,
    ("rank", "REFB", "REFB", "RREFD", 1),
    ("sid", "RD", "RD", "CCDR", 0),
)
_HBM4: tuple[Rule, ...] = (
    ("rank", "REFA", "REFB", "RFC", 1),
    ("group", "ACT", "REFB", "RRDL", 1),
    ("group", "REFB", "ACT", "RRDL", 1),
)
_LPDDR5: tuple[Rule, ...] = (
    ("rank", "WR", "RD", "CL + BL + CS - CWL", 0),
    ("rank", "REFA", "REFB REFA", "RFC", 1),
    ("rank", "REFB", "REFB", "PBR2PBR", 1),
    ("rank", "REFB", "REFA", "RFCpb", 1),
    ("rank", "REFB", "ACT", "PBR2ACT", 1),
)
_GDDR6: tuple[Rule, ...] = (
    ("rank", "ACT", "REFB", "FAW", 4),
    ("rank", "REFB", "ACT REFB", "FAW", 4),
    ("rank", "REFA", "PRE RD WR REFA REFB", "RFC", 1),
    ("rank", "ACT", "REFB", "RRDS", 1),
    ("rank", "PREA", "REFB", "RP", 1),
    ("rank", "REFB", "ACT REFB", "RREFD", 1),
    ("rank", "REFB", "REFA", "RFCpb", 1),
    ("group", "ACT", "REFB", "RRDL", 1),
    ("bank", "REFB", "REFB", "RFCpb", 1),
)


@dataclass(frozen=True)
class Standard:
    """What a JEDEC standard fixes: its extra rules, its command buses, and the clocks that a command takes on its bus.

    `ticks` per CK. `buses` 2: a row and a column command in one tick. `edges`: column commands, ACT and REF start at
    whole clocks only, PRE also at half ones. `split`: ACT-1 and ACT-2 are two commands. `clocked`: the data clock (WCK)
    is synchronised by a command of its own before a RD or WR when it has run out.
    """

    rules: tuple[Rule, ...]
    turnaround: str = "CL + BL + 2 - CWL"
    clocks: Mapping[str, float] = field(default_factory=dict)
    ticks: int = 1
    buses: int = 1
    edges: bool = False
    split: bool = False
    clocked: bool = False
    refresh_sets: bool = False


_HALF = {"ACT": 1.5, "PRE": 0.5, "PREA": 0.5, "REFA": 0.5, "REFB": 0.5}
_SIBLING_WR = (("rank", "WR", "RD", "CWL + BL + CS - CL", 0),)

STANDARDS: dict[str, Standard] = {
    "HBM1": Standard((*_PRE_REF, *_HBM2), clocks={"ACT": 2}, buses=2),
    "HBM2": Standard((*_PRE_REF, *_HBM2), clocks={"ACT": 2}, buses=2),
    "HBM2E": Standard((*_PRE_REF, *_HBM2), clocks={"ACT": 2}, buses=2),
    "HBM3": Standard((*_PRE_REF, *_HBM3), clocks=_HALF, ticks=2, buses=2, edges=True, refresh_sets=True),
    "HBM3E": Standard((*_PRE_REF, *_HBM3), clocks=_HALF, ticks=2, buses=2, edges=True, refresh_sets=True),
    "HBM4": Standard((*_PRE_REF, *_HBM3, *_HBM4), clocks=_HALF, ticks=2, buses=2, edges=True, refresh_sets=True),
    "DDR4": Standard((*_PRE_REF, *_RANKS, *_SIBLING_WR)),
    "DDR5": Standard(
        (*_PRE_REF, *_RANKS, *_SIBLING_WR), turnaround="CL + BL + 4 - CWL", clocks={"ACT": 2, "RD": 2, "WR": 2}
    ),
    "LPDDR5": Standard((*_PRE_REF, *_RANKS, *_LPDDR5), split=True, clocked=True),
    "LPDDR5X": Standard((*_PRE_REF, *_RANKS, *_LPDDR5), split=True, clocked=True),
    "GDDR6": Standard(_GDDR6, turnaround="CL + 1"),
}

# The same time under another standard's name, taken where the first is not given.
_ALIASES = (
    ("RCDRD", "RCD"), ("RCDWR", "RCD"), ("RTP", "RTPL"), ("RFC", "RFCab"), ("BL", "BL_min"), ("BLmax", "BL_max"),
    ("BLmax", "BL"), ("RPab", "RP"), ("CCDSW", "CCDS_WR"), ("CCDSW", "CCDS"), ("CCDLW", "CCDL_WR"), ("CCDLW", "CCDL"),
    ("CL", "RL"), ("CWL", "WL"),
)  # fmt: skip
_ROW = ("ACT", "PRE", "PREA", "REFA", "REFB")
_COLUMN = ("RD", "WR")


@dataclass(frozen=True)
class DramLane:
    """One controller and the DRAM behind it.

    `timings` in CK by JEDEC name (`CL` or `nCL`); `ranks` are ranks or pseudo-channels behind this one controller;
    `columns` are bursts in a row. `mapping` is a name such as `RoBaCoBg` (`map_fields`). `refresh` is `none`,
    `all-bank` or `per-bank`. `queue` holds that many reads and as many writes.
    """

    name: str
    standard: str
    tick_fs: int
    timings: Mapping[str, int]
    groups: int
    banks: int
    rows: int
    columns: int
    burst_bytes: int
    ranks: int = 1
    sids: int = 1
    mapping: str = "RoBaCoBg"
    refresh: str = "all-bank"
    queue: int = 32


def dram_table(lanes: list[DramLane]) -> Drams:
    """The tables of these lanes. Raises StallscopeError for an unknown standard, refresh, mapping or a lacking time."""
    rules = [_rules(x) for x in lanes]
    fields = [map_fields(x) for x in lanes]
    return Drams(
        name=tuple(x.name for x in lanes),
        params=ints([_params(x) for x in lanes]).reshape(len(lanes), len(DRAM_PARAMS)),
        rule_ptr=ints(np.cumsum([0, *map(len, rules)])),
        rules=ints([r for rows in rules for r in rows]).reshape(-1, 6),
        field_ptr=ints(np.cumsum([0, *map(len, fields)])),
        fields=ints([r for rows in fields for r in rows]).reshape(-1, 3),
    )


def standard_of(lane: DramLane) -> Standard:
    """The lane's standard."""
    if lane.standard not in STANDARDS:
        raise StallscopeError(f"{lane.name}: standard {lane.standard} is not one of {', '.join(STANDARDS)}")
    return STANDARDS[lane.standard]


def ticks_of(lane: DramLane) -> dict[str, int]:
    """The lane's times in ticks, the derived ones and other standards' names included."""
    std = standard_of(lane)
    t = {k.removeprefix("n"): int(v) * std.ticks for k, v in lane.timings.items()}
    for to, other in _ALIASES:
        if to not in t and other in t:
            t[to] = t[other]
    for name in ("CL", "CWL", "BL", "RP", "RAS", "RTP", "CCDS", "CCDL", "RRDS", "RRDL", "FAW", "WR", "RFC", "REFI"):
        if name not in t:
            raise StallscopeError(f"{lane.name}: timing {name} is missing; a DRAM lane needs it")
    t.setdefault("RC", t["RAS"] + t["RP"])
    t.setdefault("RTW", _value(std.turnaround, t) or 0)
    return t


def _value(expression: str, t: Mapping[str, int]) -> int | None:
    """Value of a sum of names and numbers; None if a name is not given."""
    total = 0
    for sign, term in re.findall(r"([+-]?)\s*(\w+)", expression):
        value = int(term) if term.isdigit() else t.get(term)
        if value is None:
            return None
        total += -value if sign == "-" else value
    return total


def _rules(lane: DramLane) -> list[tuple[int, int, int, int, int, int]]:
    """Rows (before, after, level, ticks, commands back, sibling): measured from a command's first tick on its bus.

    JEDEC counts from where a command ends, so a longer command before adds its length, and one after takes it off.
    """
    std, t = standard_of(lane), ticks_of(lane)
    length = {c: int(std.clocks.get(c, 1) * std.ticks) for c in DRAM_COMMANDS}
    number = {c: i for i, c in enumerate(DRAM_COMMANDS)}
    best: dict[tuple[int, int, int, int, int], int] = {}
    for bus in (_ROW, _COLUMN) if std.buses == 2 else (_ROW + _COLUMN,):
        for a in bus:
            for b in bus:
                if length[a] > 1:
                    best[number[a], number[b], 0, 1, 0] = length[a]
    for level, before, after, expression, back in (*_COMMON, *std.rules):
        distance = _value(expression, t)
        if distance is None:
            continue
        for a in before.split():
            for b in after.split():
                key = (number[a], number[b], DRAM_LEVELS.index(level), max(back, 1), int(back == 0))
                best[key] = max(best.get(key, 0), distance + length[a] - length[b])
    return [(a, b, level, ticks, back, sibling) for (a, b, level, back, sibling), ticks in sorted(best.items())]


_REFRESH = ("none", "all-bank", "per-bank")


def _params(lane: DramLane) -> list[int]:
    std, t = standard_of(lane), ticks_of(lane)
    if lane.refresh not in _REFRESH:
        raise StallscopeError(f"{lane.name}: refresh {lane.refresh} is not one of {', '.join(_REFRESH)}")
    refresh = _REFRESH.index(lane.refresh)
    if refresh == 2 and not ("REFIpb" in t and "RFCpb" in t):
        raise StallscopeError(
            f"{lane.name}: {lane.standard} has no per-bank refresh here (REFIpb, RFCpb); use all-bank"
        )
    size = np.float32(lane.queue)
    values = {
        "ranks": lane.ranks, "sids": lane.sids, "groups": lane.groups, "banks": lane.banks,
        "rows": lane.rows, "columns": lane.columns, "burst_bytes": lane.burst_bytes, "tick_fs": lane.tick_fs,
        "burst_ticks": t["BL"],
        "buses": std.buses, "edges": int(std.edges), "read_ticks": t["CL"] + t["BL"],
        "read_queue": lane.queue, "write_queue": lane.queue,
        "drain_from": int(np.floor(np.float32(0.8) * size)) + 1, "drain_to": int(np.ceil(np.float32(0.2) * size)) - 1,
        "refresh": 3 if refresh == 2 and std.refresh_sets else refresh,
        "refresh_ticks": t["REFI"] if refresh < 2 else t["REFIpb"], "refresh_busy": t.get("RFCpb", 0),
        "split_ticks": t.get("AAD", 0) if std.split else 0, "clocked": int(std.clocked),
        "clock_read": t["CL"] + t["BL"] + t.get("WCKPST", 0), "clock_write": t["CWL"] + t["BL"] + t.get("WCKPST", 0),
        "hash": int(lane.mapping.upper() == "MOP4CLXOR"),
    }  # fmt: skip
    return [values[name] for name in DRAM_PARAMS]


_TOKENS = {"Ro": "row", "Ba": "bank", "Bg": "group", "Co": "column", "Si": "sid", "Ra": "rank", "Pc": "rank"}


def map_fields(lane: DramLane) -> list[tuple[int, int, int]]:
    """The mapping as rows (field, size, worth of one step), least significant first.

    A name lists fields from the most significant: Ro, Ba, Bg, Si, Ra or Pc, Co; `C1` is that many low column bits. A
    stack id that is not named is below the bank fields, a rank or pseudo-channel right above a lowest Co, else lowest.
    """
    size = {"row": lane.rows, "bank": lane.banks, "group": lane.groups, "sid": lane.sids, "rank": lane.ranks}
    size["column"] = lane.columns
    if lane.mapping.upper() == "MOP4CLXOR":
        order = [("row", 0), ("column", 0), ("bank", 0), ("group", 0), ("sid", 0), ("rank", 0), ("column", 2)]
    else:
        order = _named_order(lane)
    rows, worth = [], {"column": 1}
    for name, bits in reversed(order):
        here = 1 << bits if bits else size[name] // worth.get(name, 1)
        if here > 1:
            rows.append((DRAM_FIELDS.index(name), here, worth.get(name, 1)))
        worth[name] = worth.get(name, 1) * here
    for name, n in size.items():
        if worth.get(name, 1) != n:
            raise StallscopeError(f"{lane.name}: mapping {lane.mapping} does not place {name} ({n}); name every field")
    return rows


def _named_order(lane: DramLane) -> list[tuple[str, int]]:
    tokens = re.findall(r"Ro|Ba|Bg|Co|Si|Ra|Pc|C\d+", lane.mapping)
    if "".join(tokens) != lane.mapping or len(set(tokens)) != len(tokens) or not tokens:
        raise StallscopeError(
            f"{lane.name}: mapping {lane.mapping} is not a list of Ro, Ba, Bg, Si, Ra or Pc, Co and C<bits>; "
            "try RoBaBgCo, RoBaCoBg or RoBaCoBgC1"
        )
    order = [(_TOKENS.get(x, "column"), int(x[1:]) if x not in _TOKENS else 0) for x in tokens]
    names = [name for name, _ in order]
    if "bank" in names and "sid" not in names:
        at = names.index("bank") + 1
        order.insert(at + int(names[at : at + 1] == ["group"]), ("sid", 0))
    if "rank" not in names:
        order.insert(len(order) - int(order[-1] == ("column", 0)), ("rank", 0))
    return order
