"""DRAM lanes as arrays: from a program's `Drams` to the kernel's form, and one lane alone under a stream of bursts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..compiler.program import Drams, Ints, ints
from . import dram as d


def new_lanes(drams: Drams, kinds: Ints, room: int, record: int = 0) -> d.Dram:
    """Idle lanes of these kinds at tick 0, each with room for so many runs; `record` bursts keep their ticks."""
    p = drams.params
    lanes = len(kinds)
    used = p[kinds] if lanes else np.ones((1, p.shape[1]), np.int64)
    ranks = used[:, d.P_RANKS]
    sids = ranks * used[:, d.P_SIDS]
    groups = sids * used[:, d.P_GROUPS]
    banks = groups * used[:, d.P_BANKS]
    slots = used[:, d.P_READS] + used[:, d.P_WRITES] + banks
    rules = [_by_command(drams, i, 0) for i in range(len(p))]
    near = [_by_command(drams, i, 1) for i in range(len(p))]
    rank = np.zeros((lanes, int(ranks.max()), d.RANK_COLUMNS), np.int64)
    rank[:, :, d.K_PAST :] = -1
    bank = np.zeros((lanes, int(banks.max()), d.BANK_COLUMNS), np.int64)
    bank[:, :, d.B_ROW :] = -1
    g = np.zeros((lanes, d.LANE_COLUMNS), np.int64)
    g[:, d.D_KIND] = kinds
    g[:, d.D_DUE] = used[:lanes, d.P_INTERVAL]
    g[:, d.D_SYNC] = g[:, d.D_HALF] = -1
    g[:, d.D_FREE] = slots[:lanes]
    most = int(slots.max())
    return d.Dram(
        params=p,
        rule_ptr=_pointers(rules),
        rules=_rows(rules, 4),
        near_ptr=_pointers(near),
        near=_rows(near, 4),
        field_ptr=drams.field_ptr,
        fields=ints([[f, _shift(size), size, worth] for f, size, worth in drams.fields.tolist()]).reshape(-1, 4),
        g=g,
        channel=np.zeros((lanes, 7), np.int64),
        rank=rank,
        sid=np.zeros((lanes, int(sids.max()), 7), np.int64),
        group=np.zeros((lanes, int(groups.max()), d.GROUP_COLUMNS), np.int64),
        bank=bank,
        entry=np.zeros((lanes, most, d.ENTRY_COLUMNS), np.int64),
        free=np.tile(np.arange(most, dtype=np.int64), (lanes, 1)),
        maintenance=np.zeros((lanes, d.MAINTENANCE_ROOM, 2), np.int64),
        allowed=np.zeros((lanes, int(used[:, d.P_SIDS].max())), np.int64),
        runs=np.zeros((lanes, room, d.RUN_COLUMNS), np.int64),
        accepted=np.zeros(record, np.int64),
        done=np.zeros(record, np.int64),
    )


def _shift(size: int) -> int:
    return size.bit_length() - 1 if size & (size - 1) == 0 else -1


def _by_command(drams: Drams, kind: int, sibling: int) -> list[list[list[int]]]:
    out: list[list[list[int]]] = [[] for _ in range(7)]
    for before, after, level, ticks, back, near in drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]].tolist():
        if near == sibling:
            assert back == 1 or (level == 1 and back <= 4 and before in (d.ACT, d.REFB))
            out[before].append([after, level, ticks, back])
    return out


def _pointers(rules: list[list[list[list[int]]]]) -> Ints:
    out, at = [], 0
    for kind in rules:
        row = [at]
        for command in kind:
            at += len(command)
            row.append(at)
        out.append(row)
    return ints(out).reshape(-1, 8)


def _rows(rules: list[list[list[list[int]]]], width: int) -> Ints:
    return ints([r for kind in rules for command in kind for r in command]).reshape(-1, width)


@dataclass(frozen=True)
class StreamRun:
    """A stream through one lane: per burst the tick when it was accepted and when it was done (a read's last beat, a
    write's command), and how many began with RD or WR (hit), ACT (miss) or PRE (conflict)."""

    accepted: Ints
    done: Ints
    hits: int
    misses: int
    conflicts: int


def run_stream(drams: Drams, bursts: Ints, writes: Ints, available: Ints, record: bool = True) -> StreamRun:
    """Runs bursts through the first kind of lane, each offered from the tick when it is available, in this order."""
    n = len(bursts)
    lane = new_lanes(drams, np.zeros(1, np.int64), 1, n if record else 0)
    lane = lane._replace(runs=as_runs(bursts, writes, available)[None])
    lane.g[0, d.D_RUNS] = lane.runs.shape[1]
    d.drain(lane, 0)
    g = lane.g[0]
    return StreamRun(lane.accepted, lane.done, int(g[d.D_HITS]), int(g[d.D_MISSES]), int(g[d.D_CONFLICTS]))


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
    return runs
