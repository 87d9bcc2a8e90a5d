"""DRAM lanes as arrays: from a program's `Drams` to the kernel's form, and one lane alone under a stream of bursts."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ..compiler.program import DRAM_FIELDS, Drams, Ints, ints
from ..errors import StallscopeError
from . import dram as d

CAUSES = {
    "refresh": d.LOST_REFRESH,
    "row miss": d.LOST_MISS,
    "bank conflict": d.LOST_CONFLICT,
    "turnaround": d.LOST_TURN,
    "bank group": d.LOST_GROUP,
    "other": d.LOST_OTHER,
}


def new_lane(drams: Drams, kind: int) -> Ints:
    """An idle lane of a kind at tick 0: all banks closed, the first refresh one interval away.

    Raises StallscopeError for times or numbers of banks beyond what the kernel compares.
    """
    p = drams.params[kind]
    _check(drams, kind)
    ranks = int(p[d.P_RANKS])
    sids = ranks * int(p[d.P_SIDS])
    groups = sids * int(p[d.P_GROUPS])
    banks = groups * int(p[d.P_BANKS])
    slots = int(p[d.P_READS] + p[d.P_WRITES]) + banks
    fields = _fields(drams, kind)
    size = [7 * d.LISTS, len(fields), 0, d.NODE, ranks * d.RANK_COLUMNS, sids * d.NODE, groups * d.NODE]
    size += [banks * d.BANK_COLUMNS, slots * d.ENTRY_COLUMNS, slots, banks, 2 * d.MAINTENANCE_ROOM, sids, banks + 1]
    at = d.HEADER + np.concatenate([[0], np.cumsum(size)])
    names = (
        d.A_POINTERS, d.A_FIELDS, d.A_FIELDS_END, d.A_CHANNEL, d.A_RANK, d.A_SID, d.A_GROUP, d.A_BANK, d.A_ENTRY,
        d.A_FREE, d.A_BUSY, d.A_MAINT, d.A_ALLOWED, d.A_OPENED,
    )  # fmt: skip
    pointers, rules = _rules(drams, kind, int(at[-1]))
    m = np.zeros(int(at[-1]) + len(rules), np.int64)
    m[: len(p)] = p
    for name, place in zip(names, at, strict=False):
        m[name] = place
    m[at[0] : at[1]], m[at[1] : at[2]], m[at[-1] :] = pointers, fields, rules
    m[d.D_DUE], m[d.D_FREE] = p[d.P_INTERVAL], slots
    for name in (d.D_SYNC, d.D_HALF, d.D_OLDEST, d.D_OLDEST_W, d.D_NEWEST, d.D_NEWEST_W, d.D_REF_LAST, d.D_RUN,
                 d.D_THROUGH):  # fmt: skip
        m[name] = -1
    m[at[9] : at[10]] = at[8] + np.arange(slots) * d.ENTRY_COLUMNS
    rank = m[at[4] : at[5]].reshape(ranks, -1)
    rank[:, d.K_PAST :] = -1
    rank[:, d.K_WAITING] = 0
    bank = m[at[7] : at[8]].reshape(banks, -1)
    number = np.arange(banks)
    bank[:, d.B_ROW :] = -1
    bank[:, d.B_WORK], bank[:, d.B_NUMBER] = 0, number
    bank[:, d.B_NEW] = d.MISSED
    bank[:, d.B_GROUP] = at[6] + number // p[d.P_BANKS] * d.NODE
    bank[:, d.B_SID] = at[5] + number // (p[d.P_BANKS] * p[d.P_GROUPS]) * d.NODE
    bank[:, d.B_RANK] = at[4] + number // (banks // ranks) * d.RANK_COLUMNS
    m[d.S_ALONE] = _alone(drams, kind)
    m[d.S_REFA], m[d.S_REFB] = _closed_ticks(drams, kind, d.REFA), _closed_ticks(drams, kind, d.REFB)
    m[d.S_BLOCK], m[d.S_TURN], m[d.S_BESIDE], m[d.S_PACE], m[d.S_PACE_W] = _streaks(drams, kind)
    return m


def _closed_ticks(drams: Drams, kind: int, refresh: int) -> int:
    """From a refresh of a bank to its next ACT."""
    mine = drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]].tolist()
    return max((t for b, a, _, t, back, near in mine if (b, a, back, near) == (refresh, d.ACT, 1, 0)), default=0)


def _check(drams: Drams, kind: int) -> None:
    p, name = drams.params[kind], drams.name[kind]
    banks = int(p[d.P_RANKS] * p[d.P_SIDS] * p[d.P_GROUPS] * p[d.P_BANKS])
    if not 1 <= banks <= 1 << d.PLACE:
        raise StallscopeError(f"{name}: found {banks} banks behind one controller; expected from 1 to {1 << d.PLACE}")
    longest = int(drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1], 3].max(initial=0))
    if longest >= d.LONGEST:
        raise StallscopeError(f"{name}: found a time of {longest} ticks; expected less than {d.LONGEST}; mend it")


def _streaks(drams: Drams, kind: int) -> tuple[int, int, int, int, int]:
    """How consecutive bursts lie: bursts of a block (one row of each of its banks), and of one turn over these banks,
    and how many of a turn follow one of their own bank group.

    Then the ticks from one RD, and from one WR, to the next when they go in order (0: they do not, or not always).
    """
    p = drams.params[kind]
    fields = drams.fields[drams.field_ptr[kind] : drams.field_ptr[kind + 1]].tolist()
    names = [DRAM_FIELDS[f] for f, _, _ in fields]
    if "column" not in names or p[d.P_HASH] or p[d.P_RANKS] > 1:
        return 1, 1, 0, 0, 0
    top = len(names) - 1 - names[::-1].index("column")
    below = names[:top]
    if "row" in below or "sid" in below:
        return 1, 1, 0, 0, 0
    block = math.prod(size for _, size, _ in fields[: top + 1])
    upper = max((i for i, name in enumerate(below) if name != "column"), default=-1)
    turn = math.prod(size for _, size, _ in fields[: upper + 1])
    mine = drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]].tolist()
    group, rest = [], 1
    for i in range(turn):
        n, rest = 0, i
        for f, size, worth in fields:
            n += rest % size * worth if DRAM_FIELDS[f] == "group" else 0
            rest //= size
        group.append(n)
    apart = min(next(k for k in range(1, turn + 1) if group[(i + k) % turn] == x) for i, x in enumerate(group))
    paces = []
    for command in (d.RD, d.WR):
        gaps = [[t for b, a, at, t, _, near in mine if (b, a) == (command, command) and at in levels and not near]
                for levels in ((0, 1, 2), (3, 4))]  # fmt: skip
        common, same = (max(x, default=1) for x in gaps)
        pace = common if apart * common >= same else max(common, same) if turn == 1 else 0
        paces.append(0 if p[d.P_EDGES] and pace % 2 else pace)
    return block, turn, sum(group[i - 1] == x for i, x in enumerate(group)), paces[0], paces[1]


def _fields(drams: Drams, kind: int) -> list[int]:
    rows = drams.fields[drams.field_ptr[kind] : drams.field_ptr[kind + 1]].tolist()
    return [x for field, size, worth in rows for x in (field, _shift(size), size, worth)]


def _shift(size: int) -> int:
    return size.bit_length() - 1 if size & (size - 1) == 0 else -1


def _alone(drams: Drams, kind: int) -> bool:
    """Whether there is one rank and one stack id: their rules and those of the channel are then one node's."""
    return bool(drams.params[kind][d.P_RANKS] * drams.params[kind][d.P_SIDS] == 1)


def _needed(drams: Drams, kind: int) -> list[list[int]]:
    """The rules that can ever bind: not those for refreshes that never come, nor the shorter of two for one node."""
    refresh = int(drams.params[kind][d.P_REFRESH])
    never = {0: (d.PREA, d.REFA, d.REFB), 1: (d.REFB,), 2: (d.PREA, d.REFA), 3: (d.PREA, d.REFA)}[refresh]
    best: dict[tuple[int, int, int, int, int], int] = {}
    for before, after, level, ticks, back, near in drams.rules[
        drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]
    ].tolist():
        if before in never or after in never or (near and _alone(drams, kind)):
            continue
        key = (before, after, 1 if level in (0, 2) and _alone(drams, kind) else level, back, near)
        best[key] = max(best.get(key, 0), ticks)
    return [[before, after, level, ticks, back, near] for (before, after, level, back, near), ticks in best.items()]


def _rules(drams: Drams, kind: int, start: int) -> tuple[list[int], list[int]]:
    """Pointers to each command's lists of rules, and the rules, which lie at `start`."""
    pointers: list[int] = []
    out: list[int] = []
    mine = _needed(drams, kind)
    order = [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (1, 1), (2, 1)]  # level, sibling
    for command in range(7):
        for level, sibling in order:
            pointers.append(start + len(out))
            for before, after, at, ticks, back, near in mine:
                if (before, at, near, back) == (command, level, sibling, 1):
                    out += [after, ticks]
        pointers.append(start + len(out))
        for before, after, at, ticks, back, near in mine:
            if before == command and back > 1:
                assert (at, near) == (1, 0), "a window is that of a rank"
                assert back <= 4, "a window is of four commands"
                out += [after, ticks, back]
        pointers.append(start + len(out))
    return pointers, out


@dataclass(frozen=True)
class StreamRun:
    """A stream through one lane: per burst the tick when it was accepted and when it was done (a read's last beat, a
    write's command), and how many began with RD or WR (hit), ACT (miss) or PRE (conflict)."""

    accepted: Ints
    done: Ints
    last: int
    hits: int
    misses: int
    conflicts: int
    streaks: int
    """Runs of row hits that were served in one step each."""
    data: int
    """Ticks in which data buses carried data, all buses together; so are the following."""
    idle: int
    """Ticks between two bursts without data, while nothing waited."""
    lost: dict[str, int]
    """Ticks between two bursts without data, while some burst waited, by cause."""
    columns: Ints
    """First and last RD or WR of each data bus (-1: none), shape (buses, 2)."""


def run_stream(
    drams: Drams, bursts: Ints, writes: Ints, available: Ints, record: bool = True, streaks: bool = True
) -> StreamRun:
    """Runs bursts through the first kind of lane, each offered from the tick when it is available, in this order.

    Without `record` no burst keeps its ticks; without `streaks` every burst is served by itself: to the same ticks.
    """
    lane = new_lane(drams, 0)
    if not streaks:
        lane[d.S_PACE] = lane[d.S_PACE_W] = 0
    runs = as_runs(bursts, writes, available)
    done = np.zeros((len(bursts) if record else 0, 2), np.int64)
    offer(lane, runs)
    d.drain(lane, runs, done)
    rank = lane[lane[d.A_RANK] : lane[d.A_SID]].reshape(-1, d.RANK_COLUMNS)
    return StreamRun(
        done[:, 0],
        done[:, 1],
        int(lane[d.D_LAST]),
        int(lane[d.D_HITS]),
        int(lane[d.D_MISSES]),
        int(lane[d.D_CONFLICTS]),
        int(lane[d.D_STREAKS]),
        data=int(lane[d.D_DATA]),
        idle=int(lane[d.D_IDLE]),
        lost=lost_ticks(lane),
        columns=rank[:, [d.K_FIRST, d.K_LAST]],
    )


def offer(lane: Ints, runs: Ints) -> None:
    """All these runs wait for the lane, in order of their rows."""
    runs[:, d.R_NEXT] = np.arange(1, len(runs) + 1)
    runs[-1:, d.R_NEXT] = -1
    lane[d.D_RUN], lane[d.D_RUN_LAST] = (0 if len(runs) else -1), len(runs) - 1


def lost_ticks(lane: Ints) -> dict[str, int]:
    """Ticks between two bursts of a lane in which a burst waited and the data bus carried nothing, by cause."""
    lost = {name: int(lane[k]) for name, k in CAUSES.items()}
    lost["other"] -= lost["bank group"]
    return lost


def as_runs(bursts: Ints, writes: Ints, available: Ints) -> Ints:
    """Consecutive bursts of one kind and time, joined."""
    if not len(bursts):
        return np.zeros((0, d.RUN_COLUMNS), np.int64)
    same = (np.diff(bursts) == 1) & (np.diff(writes) == 0) & (np.diff(available) == 0)
    starts = np.flatnonzero(np.concatenate([[True], ~same]))
    counts = np.diff(np.append(starts, len(bursts)))
    runs = np.zeros((len(starts), d.RUN_COLUMNS), np.int64)
    runs[:, d.R_FIRST], runs[:, d.R_COUNT], runs[:, d.R_LEFT] = bursts[starts], counts, counts
    runs[:, d.R_WRITE], runs[:, d.R_AVAILABLE] = writes[starts], available[starts]
    return ints(runs)
