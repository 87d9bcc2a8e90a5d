"""DRAM lanes as arrays: from a program's `Drams` to the kernel's form, and one lane alone under a stream of bursts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..compiler.program import DRAM_FIELDS, Drams, Ints, ints
from ..errors import StallscopeError
from . import dram as d
from .dram_pattern import Pattern, banks_of, find_pattern

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
    queued = int(p[d.P_READS] + p[d.P_WRITES])
    slots = queued + banks
    recent = max(512, 1 << (4 * queued).bit_length())
    pattern = find_pattern(drams, kind)
    bits, fields = _fields(drams, kind)
    size = [7 * d.LISTS, len(fields), 0, pattern.turn * d.TURN_COLUMNS, ranks * d.RANK_COLUMNS, sids * d.NODE]
    size += [groups * d.NODE, banks * d.BANK_COLUMNS, slots * d.ENTRY_COLUMNS, slots, banks, 2 * d.MAINTENANCE_ROOM]
    size += [sids, banks + 1, recent]
    at = d.HEADER + np.concatenate([[0], np.cumsum(size)])
    names = (
        d.A_POINTERS, d.A_FIELDS, d.A_FIELDS_END, d.A_TURN, d.A_RANK, d.A_SID, d.A_GROUP, d.A_BANK, d.A_ENTRY,
        d.A_FREE, d.A_BUSY, d.A_MAINT, d.A_ALLOWED, d.A_OPENED, d.A_CAME,
    )  # fmt: skip
    pointers, rules = _rules(drams, kind, int(at[-1]))
    m = np.zeros(int(at[-1]) + len(rules), np.int64)
    m[: len(p)] = p
    for name, place in zip(names, at, strict=False):
        m[name] = place
    m[at[0] : at[1]], m[at[1] : at[2]], m[at[-1] :] = pointers, fields, rules
    m[d.D_DUE], m[d.D_FREE] = p[d.P_INTERVAL], slots
    none = (d.D_SYNC, d.D_HALF, d.D_REF_LAST, d.D_BLOCK, d.D_LONGER, d.D_RUN, d.D_THROUGH, d.D_OLDEST, d.D_OLDEST_W)
    m[list(none)] = -1
    m[at[9] : at[10]] = at[8] + np.arange(slots) * d.ENTRY_COLUMNS
    rank = m[at[4] : at[5]].reshape(ranks, -1)
    rank[:] = -1
    rank[:, d.K_WAITING] = 0
    rank[:, d.K_SIDS] = at[5] + np.arange(ranks) * p[d.P_SIDS] * d.NODE
    bank = m[at[7] : at[8]].reshape(banks, -1)
    number = np.arange(banks)
    bank[:, d.B_ROW :] = -1
    bank[:, d.B_WORK], bank[:, d.B_NUMBER] = 0, number
    bank[:, d.B_NEW] = d.MISSED
    bank[:, d.B_GROUP] = at[6] + number // p[d.P_BANKS] * d.NODE
    bank[:, d.B_SID] = at[5] + number // (p[d.P_BANKS] * p[d.P_GROUPS]) * d.NODE
    bank[:, d.B_RANK] = at[4] + number // (banks // ranks) * d.RANK_COLUMNS
    m[d.S_REFA], m[d.S_REFB] = _closed_ticks(drams, kind, d.REFA), _closed_ticks(drams, kind, d.REFB)
    m[d.S_ALONE], m[d.S_BITS], m[d.S_RECENT] = sids == 1, bits, recent
    _set_pattern(m, pattern)
    return m


def _set_pattern(m: Ints, pattern: Pattern) -> None:
    m[d.S_BLOCK], m[d.S_TURN] = pattern.block, pattern.turn
    m[d.S_PACE], m[d.S_PACE_W] = pattern.pace
    m[d.S_STRICT], m[d.S_STRICT_W] = pattern.strict
    m[d.S_CROSS], m[d.S_CROSS_W] = pattern.cross
    if not pattern.turn:
        return
    m[d.S_SHIFT] = pattern.turn.bit_length() - 1
    m[d.S_EACH], m[d.S_BESIDE], m[d.S_ORDERED] = pattern.each, pattern.beside, pattern.ordered
    turn = m[m[d.A_TURN] : m[d.A_RANK]].reshape(pattern.turn, -1)
    place = np.arange(pattern.turn)
    turn[:, d.T_BANK] = np.array(pattern.bank) * d.BANK_COLUMNS
    turn[:, d.T_AHEAD], turn[:, d.T_BACK] = pattern.ahead, pattern.back
    turn[list(pattern.order), d.T_SLOT] = place
    turn[:, d.T_PLACE] = pattern.order
    for i in range(pattern.turn):
        same = [turn[j, d.T_SLOT] for j in range(pattern.turn) if pattern.bank[j] == pattern.bank[i]]
        turn[i, d.T_LAST_SLOT] = max(same)


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


def _fields(drams: Drams, kind: int) -> tuple[bool, list[int]]:
    """How the number of a burst is taken apart: by bits where all sizes are powers of two, else by division.

    By bits, a field is (shift, mask, worth in banks, worth in rows).
    """
    rows = drams.fields[drams.field_ptr[kind] : drams.field_ptr[kind + 1]].tolist()
    params = drams.params[kind]
    if params[d.P_HASH] or any(size & (size - 1) for _, size, _ in rows):
        return False, [x for field, size, worth in rows for x in (field, _shift(size), size, worth)]
    out, at = [], 0
    banks = banks_of(params)
    for field, size, worth in rows:
        name = DRAM_FIELDS[field]
        if name != "column" and size > 1:
            out += [at, size - 1, banks.get(name, 0) * worth * d.BANK_COLUMNS, worth if name == "row" else 0]
        at += _shift(size)
    return True, out


def _shift(size: int) -> int:
    return size.bit_length() - 1 if size & (size - 1) == 0 else -1


def _rules(drams: Drams, kind: int, start: int) -> tuple[list[int], list[int]]:
    """Pointers to each command's lists of rules, and the rules, which lie at `start`.

    Left out are rules for refreshes that never come. What holds for the channel, a rank or a stack id is brought to
    stack ids, where the longest counts.
    """
    never = {0: (d.PREA, d.REFA, d.REFB), 1: (d.REFB,), 2: (d.PREA, d.REFA), 3: (d.PREA, d.REFA)}
    unused = never[int(drams.params[kind][d.P_REFRESH])]
    mine = drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]].tolist()
    pointers: list[int] = []
    out: list[int] = []
    for command in range(7):
        lists: list[dict[int, int]] = [{} for _ in range(d.WINDOW)]
        window: list[int] = []
        for before, after, level, ticks, back, near in mine:
            if before != command or before in unused or after in unused:
                continue
            if level > 1 and (before in (d.PREA, d.REFA) or after in (d.PREA, d.REFA)):
                continue  # these are given to ranks
            if back > 1:
                assert (level, near) == (1, 0), "a window is that of a rank"
                assert back <= 4, "a window is of four commands"
                window += [after, ticks, back]
                continue
            for at in _WHERE[level, near]:
                lists[at][after] = max(lists[at].get(after, 0), ticks)
        for each in lists:
            pointers.append(start + len(out))
            out += [x for rule in each.items() for x in rule]
        pointers.append(start + len(out))
        out += window
        pointers.append(start + len(out))
    return pointers, out


_WHERE = {
    (0, 0): (d.OWN_SID, d.NEAR_SID, d.NEAR_RANK),
    (1, 0): (d.OWN_SID, d.NEAR_SID),
    (2, 0): (d.OWN_SID,),
    (3, 0): (d.GROUP_RULES,),
    (4, 0): (d.BANK_RULES,),
    (1, 1): (d.NEAR_RANK,),
    (2, 1): (d.NEAR_SID,),
}
"""Level and whether it is the siblings' rule: in which lists."""


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
        hits=int(lane[d.D_HITS]),
        misses=int(lane[d.D_MISSES]),
        conflicts=int(lane[d.D_CONFLICTS]),
        streaks=int(lane[d.D_STREAKS]),
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
