"""DRAM lanes in Numba: a controller and its banks, from command to command (docs/model.md, section 10).

A lane keeps, per bank and above, the first legal tick of every command, and per bank the oldest burst of each kind; so
the next command is found without a look at any tick between, or at any other burst. tests/naive_dram.py looks at them all.
State is one row per lane in int64 arrays; nothing is allocated or raised here.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

_compiled = njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload,unused-ignore]

ACT, PRE, PREA, RD, WR, REFA, REFB = range(7)
NEVER = np.int64(2**61)
CLOSED, ACTIVATING = -1, -2

(
    P_RANKS, P_SIDS, P_GROUPS, P_BANKS, P_ROWS, P_COLUMNS, P_BYTES, P_TICK, P_BUSES, P_EDGES, P_READ, P_READS, P_WRITES,
    P_FROM, P_TO, P_REFRESH, P_INTERVAL, P_BUSY, P_SPLIT, P_CLOCKED, P_CLOCK_READ, P_CLOCK_WRITE, P_HASH,
) = range(23)  # fmt: skip
# Numbers of a lane. COLUMN_* and ROW_* hold what the last look found.
(
    D_KIND, D_NOW, D_MODE, D_DUE, D_REF_BANK, D_REF_RANK, D_CLOCK, D_SYNC, D_HALF, D_DEADLINE, D_READS, D_WRITES,
    D_ACTIVE, D_SEQ, D_FREE, D_MHEAD, D_MCOUNT, D_HITS, D_MISSES, D_CONFLICTS, D_RUN, D_RUNS,
    COLUMN_T, COLUMN_E, COLUMN_ACTIVE, ROW_T, ROW_SEQ, ROW_B, ROW_C, MAINT_T, MAINT_C,
    D_PROMOTED, D_LAST,
) = range(33)  # fmt: skip
LANE_COLUMNS = 33
# Bank columns, behind the seven ready ticks. Two columns per kind: reads, writes.
B_ROW, B_ACTIVE, B_HEAD, B_TAIL, B_HIT, B_MISS = 7, 8, 9, 11, 13, 15
BANK_COLUMNS = 17
# Rank columns, behind the ready ticks: the last four ACT and REFB, newest first.
K_PAST = 7
RANK_COLUMNS = 15
G_WORK = 7  # group column: bursts at its banks
GROUP_COLUMNS = 8
# Queued bursts.
N_RUN, N_BURST, N_BANK, N_ROW, N_ARRIVE, N_WRITE, N_SEEN, N_SEQ, N_NEXT, N_BACK, N_ID = range(11)
ENTRY_COLUMNS = 11
# Runs of bursts: consecutive numbers that arrive together.
R_FIRST, R_COUNT, R_WRITE, R_AVAILABLE, R_SENT, R_LEFT, R_DONE = range(7)
RUN_COLUMNS = 7
MAINTENANCE_ROOM = 256


class Dram(NamedTuple):
    """Kinds (read only), then lanes."""

    params: np.ndarray  # [kind, P_*]
    rule_ptr: np.ndarray  # [kind, 8]: rules by the command before
    rules: np.ndarray  # rows: command after, level, ticks, commands back
    near_ptr: np.ndarray  # [kind, 8]: rules between sibling nodes
    near: np.ndarray
    field_ptr: np.ndarray
    fields: np.ndarray  # rows: field, shift (-1: no power of two), size, worth
    g: np.ndarray  # [lane, D_*]
    channel: np.ndarray  # [lane, command]: first legal tick
    rank: np.ndarray  # [lane, rank, ...]
    sid: np.ndarray
    group: np.ndarray
    bank: np.ndarray
    entry: np.ndarray  # [lane, slot, N_*]
    free: np.ndarray  # [lane, slot]
    maintenance: np.ndarray  # [lane, slot, 2]: bank, command
    allowed: np.ndarray  # [lane, sid]: first tick of the next set of bank refreshes
    runs: np.ndarray  # [lane, slot, R_*]
    accepted: np.ndarray  # [burst] of the first lane, if it has room
    done: np.ndarray


@_compiled
def _raise(d, l, command, now, kind, bank, group, sid, rank):
    """A command is given at `now`: the first legal ticks of those after it."""
    deep = command != PREA and command != REFA
    if command == ACT or command == REFB:
        at = K_PAST + (4 if command == REFB else 0)
        for k in range(3, 0, -1):
            d.rank[l, rank, at + k] = d.rank[l, rank, at + k - 1]
        d.rank[l, rank, at] = now
    for i in range(d.rule_ptr[kind, command], d.rule_ptr[kind, command + 1]):
        after, level, ready = d.rules[i, 0], d.rules[i, 1], now + d.rules[i, 2]
        if level == 4:
            if deep and d.bank[l, bank, after] < ready:
                d.bank[l, bank, after] = ready
        elif level == 3:
            if deep and d.group[l, group, after] < ready:
                d.group[l, group, after] = ready
        elif level == 1:
            if d.rules[i, 3] > 1:
                past = d.rank[l, rank, K_PAST + (4 if command == REFB else 0) + d.rules[i, 3] - 1]
                if past < 0:
                    continue
                ready = past + d.rules[i, 2]
            if d.rank[l, rank, after] < ready:
                d.rank[l, rank, after] = ready
        elif level == 0:
            if d.channel[l, after] < ready:
                d.channel[l, after] = ready
        elif deep and d.sid[l, sid, after] < ready:
            d.sid[l, sid, after] = ready
    for i in range(d.near_ptr[kind, command], d.near_ptr[kind, command + 1]):
        after, ready = d.near[i, 0], now + d.near[i, 2]
        if d.near[i, 1] == 1:
            for other in range(d.params[kind, P_RANKS]):
                if other != rank and d.rank[l, other, after] < ready:
                    d.rank[l, other, after] = ready
        else:
            sids = d.params[kind, P_SIDS]
            for other in range(rank * sids, rank * sids + sids):
                if other != sid and d.sid[l, other, after] < ready:
                    d.sid[l, other, after] = ready


@_compiled
def _command(d, l, command, bank, now):
    p = d.params[d.g[l, D_KIND]]
    group = bank // p[P_BANKS]
    sid = group // p[P_GROUPS]
    _raise(d, l, command, now, d.g[l, D_KIND], bank, group, sid, sid // p[P_SIDS])


@_compiled
def _next_hit(d, l, bank, q, e, row):
    """The first burst from e on, in its bank's list, for this row (-1: none)."""
    while e >= 0 and d.entry[l, e, N_ROW] != row:
        e = d.entry[l, e, N_NEXT]
    return e


@_compiled
def _opened(d, l, bank, row):
    """The bank's row is open: which bursts hit it, which miss it."""
    d.bank[l, bank, B_ROW] = row
    for q in range(2):
        e = d.bank[l, bank, B_HEAD + q]
        d.bank[l, bank, B_HIT + q] = _next_hit(d, l, bank, q, e, row)
        while e >= 0 and d.entry[l, e, N_ROW] == row:
            e = d.entry[l, e, N_NEXT]
        d.bank[l, bank, B_MISS + q] = e


@_compiled
def _closed(d, l, bank):
    d.bank[l, bank, B_ROW] = CLOSED
    d.bank[l, bank, B_HIT] = d.bank[l, bank, B_HIT + 1] = -1
    d.bank[l, bank, B_MISS] = d.bank[l, bank, B_MISS + 1] = -1


@_compiled
def _unlink(d, l, e):
    """Takes a burst out of its bank's list and its queue."""
    bank, q = d.entry[l, e, N_BANK], d.entry[l, e, N_WRITE]
    after, back = d.entry[l, e, N_NEXT], d.entry[l, e, N_BACK]
    if back >= 0:
        d.entry[l, back, N_NEXT] = after
    else:
        d.bank[l, bank, B_HEAD + q] = after
    if after >= 0:
        d.entry[l, after, N_BACK] = back
    else:
        d.bank[l, bank, B_TAIL + q] = back
    d.g[l, D_READS + q] -= 1


@_compiled
def _finish(d, l, e, now):
    """The burst's RD or WR is given."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    write = d.entry[l, e, N_WRITE]
    done = now if write else now + p[P_READ]
    if p[P_CLOCKED]:
        g[l, D_CLOCK] = max(g[l, D_CLOCK], now + (p[P_CLOCK_WRITE] if write else p[P_CLOCK_READ]))
    _leave(d, l, d.entry[l, e, N_RUN], d.entry[l, e, N_ID], done)
    d.group[l, d.entry[l, e, N_BANK] // p[P_BANKS], G_WORK] -= 1
    d.free[l, g[l, D_FREE]] = e
    g[l, D_FREE] += 1


@_compiled
def _leave(d, l, run, number, done):
    """A burst of a run is through at tick `done`."""
    d.runs[l, run, R_LEFT] -= 1
    d.runs[l, run, R_DONE] = max(d.runs[l, run, R_DONE], done)
    d.g[l, D_LAST] = max(d.g[l, D_LAST], done)
    if number < d.done.shape[0]:
        d.done[number] = done


@_compiled
def _accept(d, l, run):
    """Sends the next burst of a run. False: its queue is full."""
    g = d.g
    kind = g[l, D_KIND]
    p = d.params[kind]
    q = d.runs[l, run, R_WRITE]
    full = g[l, D_READS + q] >= p[P_READS + q]
    if full and g[l, D_WRITES] == 0:
        return False
    burst = d.runs[l, run, R_FIRST] + d.runs[l, run, R_SENT]
    rank = sid = group = inner = row = column = np.int64(0)
    rest = burst
    for i in range(d.field_ptr[kind], d.field_ptr[kind + 1]):
        field, shift, size, worth = d.fields[i, 0], d.fields[i, 1], d.fields[i, 2], d.fields[i, 3]
        if shift >= 0:
            value = (rest & (size - 1)) * worth
            rest >>= shift
        else:
            value = rest % size * worth
            rest //= size
        if field == 5:
            column += value
        elif field == 4:
            row += value
        elif field == 3:
            inner += value
        elif field == 2:
            group += value
        elif field == 1:
            sid += value
        else:
            rank += value
    if p[P_HASH]:
        for level in range(4):
            size = p[level]
            low = column & (size - 1)
            if level == 0:
                rank ^= low
            elif level == 1:
                sid ^= low
            elif level == 2:
                group ^= low
            else:
                inner ^= low
            while size > 1:
                size >>= 1
                column >>= 1
    group += (rank * p[P_SIDS] + sid) * p[P_GROUPS]
    bank = group * p[P_BANKS] + inner
    number = g[l, D_SEQ]
    if g[l, D_WRITES] > 0:  # a write to the same place is queued: forwarded, or merged
        e = d.bank[l, bank, B_HEAD + 1]
        while e >= 0:
            if d.entry[l, e, N_BURST] == burst:
                if number < d.accepted.shape[0]:
                    d.accepted[number] = g[l, D_NOW]
                _leave(d, l, run, number, g[l, D_NOW] + 1 - q)
                g[l, D_SEQ] += 1
                d.runs[l, run, R_SENT] += 1
                return True
            e = d.entry[l, e, N_NEXT]
        if full:
            return False
    if number < d.accepted.shape[0]:
        d.accepted[number] = g[l, D_NOW]
    g[l, D_FREE] -= 1
    e = d.free[l, g[l, D_FREE]]
    d.entry[l, e, N_RUN] = run
    d.entry[l, e, N_BURST] = burst
    d.entry[l, e, N_BANK] = bank
    d.entry[l, e, N_ROW] = row
    d.entry[l, e, N_ARRIVE] = g[l, D_NOW]
    d.entry[l, e, N_WRITE] = q
    d.entry[l, e, N_SEEN] = 0
    d.entry[l, e, N_SEQ] = number
    d.entry[l, e, N_ID] = number
    d.entry[l, e, N_NEXT] = -1
    back = d.bank[l, bank, B_TAIL + q]
    d.entry[l, e, N_BACK] = back
    if back >= 0:
        d.entry[l, back, N_NEXT] = e
    else:
        d.bank[l, bank, B_HEAD + q] = e
    d.bank[l, bank, B_TAIL + q] = e
    open_row = d.bank[l, bank, B_ROW]
    if open_row >= 0:
        side = (B_HIT if open_row == row else B_MISS) + q
        if d.bank[l, bank, side] < 0:
            d.bank[l, bank, side] = e
    d.group[l, group, G_WORK] += 1
    g[l, D_SEQ] += 1
    g[l, D_READS + q] += 1
    d.runs[l, run, R_SENT] += 1
    return True


@_compiled
def _feed(d, l):
    """Sends what is there and has room, in order."""
    g = d.g
    while g[l, D_RUN] < g[l, D_RUNS]:
        run = g[l, D_RUN] % d.runs.shape[1]
        if d.runs[l, run, R_AVAILABLE] > g[l, D_NOW]:
            return
        while d.runs[l, run, R_SENT] < d.runs[l, run, R_COUNT]:
            if not _accept(d, l, run):
                return
        g[l, D_RUN] += 1


@_compiled
def _mode(d, l):
    """The queue that is served when the queues are looked at now: 0 reads, 1 writes."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    if g[l, D_MODE] == 0:
        return np.int64(g[l, D_WRITES] >= p[P_FROM] or g[l, D_READS] == 0)
    return np.int64(g[l, D_WRITES] > p[P_TO] or g[l, D_READS] == 0)


@_compiled
def _find_column(d, l, first, q, queued):
    """The first RD or WR at tick `first` or later, of those as early the one to choose."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    edges = p[P_EDGES]
    t_active = t_hit = NEVER
    active = hit = np.int64(-1)
    arrive = np.int64(0)
    seq = order = np.int64(0)
    command = RD + q
    sids, groups, banks = p[P_SIDS], p[P_GROUPS], p[P_BANKS]
    group = np.int64(0)
    for rank in range(p[P_RANKS]):
        for s in range(sids):
            sid = rank * sids + s
            for _ in range(groups):
                if d.group[l, group, G_WORK] > 0:
                    for bank in range(group * banks, group * banks + banks):
                        a = d.bank[l, bank, B_ACTIVE]
                        h = d.bank[l, bank, B_HIT + q] if queued else np.int64(-1)
                        if a >= 0:
                            c = RD + d.entry[l, a, N_WRITE]
                            t = max(d.bank[l, bank, c], d.group[l, group, c], d.sid[l, sid, c], d.rank[l, rank, c])
                            t = max(t, d.channel[l, c], first)
                            if edges:
                                t |= 1
                            when, place = d.entry[l, a, N_ARRIVE], d.entry[l, a, N_SEQ]
                            if t < t_active or (
                                t == t_active and (when < arrive or (when == arrive and place < order))
                            ):
                                t_active, active, arrive, order = t, a, when, place
                        if h >= 0:
                            t = max(d.bank[l, bank, command], d.group[l, group, command], d.sid[l, sid, command])
                            t = max(t, d.rank[l, rank, command], d.channel[l, command], first)
                            if edges:
                                t |= 1
                            if t < t_hit or (t == t_hit and d.entry[l, h, N_SEQ] < seq):
                                t_hit, hit, seq = t, h, d.entry[l, h, N_SEQ]
                group += 1
    if t_active <= t_hit:
        g[l, COLUMN_T], g[l, COLUMN_E], g[l, COLUMN_ACTIVE] = t_active, active, 1
    else:
        g[l, COLUMN_T], g[l, COLUMN_E], g[l, COLUMN_ACTIVE] = t_hit, hit, 0


@_compiled
def _find_row(d, l, first, q):
    """The first ACT or PRE at tick `first` or later for a queued burst, of those as early the one to choose."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    edges = p[P_EDGES]
    best = NEVER
    chosen = command = np.int64(-1)
    seq = np.int64(0)
    sids, groups, banks = p[P_SIDS], p[P_GROUPS], p[P_BANKS]
    no_act = g[l, D_HALF] >= 0
    group = np.int64(0)
    for rank in range(p[P_RANKS]):
        for s in range(sids):
            sid = rank * sids + s
            for _ in range(groups):
                if d.group[l, group, G_WORK] > 0:
                    for bank in range(group * banks, group * banks + banks):
                        row = d.bank[l, bank, B_ROW]
                        if row >= 0:
                            e = d.bank[l, bank, B_MISS + q]
                            if e < 0 or d.bank[l, bank, B_ACTIVE] >= 0:
                                continue
                            h = d.bank[l, bank, B_HIT + q]
                            if h >= 0 and d.entry[l, h, N_ARRIVE] <= d.entry[l, e, N_ARRIVE]:
                                continue
                            c = PRE
                        else:
                            e = d.bank[l, bank, B_HEAD + q]
                            if e < 0 or row != CLOSED or no_act:
                                continue
                            c = ACT
                        t = max(d.bank[l, bank, c], d.group[l, group, c], d.sid[l, sid, c], d.rank[l, rank, c])
                        t = max(t, d.channel[l, c], first)
                        if edges and c == ACT:
                            t |= 1
                        if t < best or (t == best and d.entry[l, e, N_SEQ] < seq):
                            best, chosen, command, seq = t, bank, c, d.entry[l, e, N_SEQ]
                group += 1
    g[l, ROW_T], g[l, ROW_B], g[l, ROW_C], g[l, ROW_SEQ] = best, chosen, command, seq


@_compiled
def _find_maintenance(d, l, first):
    """When the first refresh that waits may give its next command, and which."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    bank, last = d.maintenance[l, g[l, D_MHEAD], 0], d.maintenance[l, g[l, D_MHEAD], 1]
    per_rank = p[P_SIDS] * p[P_GROUPS] * p[P_BANKS]
    rank = bank // per_rank
    command, t = last, first
    if last == REFB:
        group = bank // p[P_BANKS]
        if d.bank[l, bank, B_ROW] != CLOSED:
            command = PRE
            if d.bank[l, bank, B_ACTIVE] >= 0 or d.bank[l, bank, B_ROW] == ACTIVATING:
                t = NEVER
        t = max(t, d.bank[l, bank, command], d.group[l, group, command], d.sid[l, group // p[P_GROUPS], command])
    else:
        for b in range(rank * per_rank, rank * per_rank + per_rank):
            if d.bank[l, b, B_ROW] != CLOSED:
                command = PREA
                if d.bank[l, b, B_ACTIVE] >= 0 or d.bank[l, b, B_ROW] == ACTIVATING:
                    t = NEVER
    t = max(t, d.rank[l, rank, command], d.channel[l, command])
    if p[P_EDGES] and command != PRE and command != PREA:
        t |= 1
    g[l, MAINT_T], g[l, MAINT_C] = t, command


@_compiled
def _maintain(d, l, now):
    """Gives the command that `_find_maintenance` found."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    command = g[l, MAINT_C]
    bank = d.maintenance[l, g[l, D_MHEAD], 0]
    _command(d, l, command, bank, now)
    if command == PRE:
        _closed(d, l, bank)
    elif command == PREA:
        per_rank = p[P_SIDS] * p[P_GROUPS] * p[P_BANKS]
        start = bank // per_rank * per_rank
        for b in range(start, start + per_rank):
            _closed(d, l, b)
    else:
        g[l, D_MHEAD] = (g[l, D_MHEAD] + 1) % MAINTENANCE_ROOM
        g[l, D_MCOUNT] -= 1


@_compiled
def _column(d, l, e, active, now):
    """Gives a burst's RD or WR."""
    g = d.g
    bank, q = d.entry[l, e, N_BANK], d.entry[l, e, N_WRITE]
    if active:
        d.bank[l, bank, B_ACTIVE] = -1
        g[l, D_ACTIVE] -= 1
    else:
        if d.entry[l, e, N_SEEN] == 0:
            g[l, D_HITS] += 1
        if d.bank[l, bank, B_HIT + q] == e:
            d.bank[l, bank, B_HIT + q] = _next_hit(
                d, l, bank, q, d.entry[l, e, N_NEXT], d.bank[l, bank, B_ROW]
            )
        _unlink(d, l, e)
    _command(d, l, RD + q, bank, now)
    _finish(d, l, e, now)


@_compiled
def _row(d, l, now, q):
    """Gives the ACT or PRE that `_find_row` found."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    bank, command = g[l, ROW_B], g[l, ROW_C]
    _command(d, l, command, bank, now)
    if command == PRE:
        e = d.bank[l, bank, B_MISS + q]
        if d.entry[l, e, N_SEEN] == 0:
            d.entry[l, e, N_SEEN] = 1
            g[l, D_CONFLICTS] += 1
        _closed(d, l, bank)
        return
    e = d.bank[l, bank, B_HEAD + q]
    if d.entry[l, e, N_SEEN] == 0:
        d.entry[l, e, N_SEEN] = 1
        g[l, D_MISSES] += 1
    _unlink(d, l, e)
    if p[P_SPLIT]:
        d.bank[l, bank, B_ROW] = ACTIVATING
        g[l, D_HALF] = e
        g[l, D_DEADLINE] = now + p[P_SPLIT]
    else:
        _activate(d, l, e)


@_compiled
def _activate(d, l, e):
    """The burst's row is open, and it leaves the window of the queue."""
    bank = d.entry[l, e, N_BANK]
    d.entry[l, e, N_SEQ] = d.g[l, D_PROMOTED]
    d.g[l, D_PROMOTED] += 1
    d.bank[l, bank, B_ACTIVE] = e
    d.g[l, D_ACTIVE] += 1
    _opened(d, l, bank, d.entry[l, e, N_ROW])


@_compiled
def _due(d, l):
    """Tick of the next refresh to be queued."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    if p[P_REFRESH] == 0:
        return NEVER
    if p[P_REFRESH] == 3 and g[l, D_REF_RANK] == 0:
        return max(g[l, D_DUE], d.allowed[l, g[l, D_REF_BANK] // (p[P_GROUPS] * p[P_BANKS])], g[l, D_NOW] + 1)
    return g[l, D_DUE]


@_compiled
def _put_maintenance(d, l, bank, command):
    g = d.g
    at = (g[l, D_MHEAD] + g[l, D_MCOUNT]) % MAINTENANCE_ROOM
    d.maintenance[l, at, 0], d.maintenance[l, at, 1] = bank, command
    g[l, D_MCOUNT] += 1


@_compiled
def _refresh(d, l, now):
    """Queues the refresh that is due at `now`."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    per_sid = p[P_GROUPS] * p[P_BANKS]
    per_rank = p[P_SIDS] * per_sid
    if p[P_REFRESH] == 1:
        for rank in range(p[P_RANKS]):
            _put_maintenance(d, l, rank * per_rank, REFA)
        g[l, D_DUE] += p[P_INTERVAL]
    elif p[P_REFRESH] == 2:
        _put_maintenance(d, l, g[l, D_REF_BANK], REFB)
        g[l, D_REF_BANK] = (g[l, D_REF_BANK] + 1) % (p[P_RANKS] * per_rank)
        g[l, D_DUE] += p[P_INTERVAL]
    else:
        at, rank = g[l, D_REF_BANK], g[l, D_REF_RANK]
        _put_maintenance(d, l, rank * per_rank + at, REFB)
        # D_DUE stands one tick on while ranks are left, and their first tick plus the interval after.
        first = now - rank
        g[l, D_REF_RANK] = (rank + 1) % p[P_RANKS]
        g[l, D_DUE] = now + 1
        if g[l, D_REF_RANK] == 0:
            g[l, D_DUE] = first + p[P_INTERVAL]
            if at % per_sid == per_sid - 1:
                d.allowed[l, at // per_sid] = now + p[P_BUSY]
            g[l, D_REF_BANK] = (at + 1) % per_rank


@_compiled
def _step(d, l, until):
    """The next command or refresh, if it comes by tick `until`. False: it does not."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    now, first = g[l, D_NOW], g[l, D_NOW] + 1
    due = _due(d, l)
    if g[l, D_SYNC] >= 0:
        if first > until:
            return False
        if due == first:
            _refresh(d, l, due)
        e = g[l, D_SYNC]
        g[l, D_SYNC] = -1
        g[l, D_NOW] = first
        _column(d, l, e, d.bank[l, d.entry[l, e, N_BANK], B_ACTIVE] == e, first)
        return True
    queued = g[l, D_MCOUNT] == 0
    mode = _mode(d, l) if queued else g[l, D_MODE]
    if p[P_BUSES] == 2:
        g[l, COLUMN_T] = g[l, ROW_T] = NEVER
        if queued:
            if g[l, D_ACTIVE] + g[l, D_READS + mode] > 0:
                _find_column(d, l, first, mode, True)
                _find_row(d, l, first, mode)
            row_t = g[l, ROW_T]
        else:
            if g[l, D_ACTIVE] > 0:
                _find_column(d, l, first, mode, False)
            _find_maintenance(d, l, first)
            row_t = g[l, MAINT_T]
        t = min(g[l, COLUMN_T], row_t)
        if due <= t:
            if due > until:
                return False
            if due > first and queued:
                g[l, D_MODE] = mode
            _refresh(d, l, due)
            g[l, D_NOW] = due - 1
            return True
        if t > until:
            return False
        g[l, D_NOW] = t
        g[l, D_MODE] = mode
        if g[l, COLUMN_T] == t:
            again = row_t == t
            _column(d, l, g[l, COLUMN_E], g[l, COLUMN_ACTIVE], t)
            if queued:
                mode = _mode(d, l)
                if again or mode != g[l, D_MODE]:
                    g[l, D_MODE] = mode
                    g[l, ROW_T] = NEVER
                    if g[l, D_READS + mode] > 0:
                        _find_row(d, l, t, mode)
                    row_t = g[l, ROW_T]
            elif again:
                _find_maintenance(d, l, t)
                row_t = g[l, MAINT_T]
        if row_t == t:
            if queued:
                _row(d, l, t, mode)
            else:
                _maintain(d, l, t)
        return True
    return _step_one_bus(d, l, until, now, due, queued, mode)


@_compiled
def _step_one_bus(d, l, until, now, due, queued, mode):
    """`_step` where a tick has one command of any kind."""
    g = d.g
    p = d.params[g[l, D_KIND]]
    first = now + 1
    g[l, COLUMN_T] = g[l, ROW_T] = g[l, MAINT_T] = NEVER
    if queued:
        if g[l, D_ACTIVE] + g[l, D_READS + mode] > 0:
            _find_column(d, l, first, mode, True)
            _find_row(d, l, first, mode)
    else:
        if g[l, D_ACTIVE] > 0:
            _find_column(d, l, first, mode, False)
        _find_maintenance(d, l, first)
    t = min(g[l, COLUMN_T], g[l, ROW_T], g[l, MAINT_T])
    half = g[l, D_HALF]
    urgent = half >= 0 and g[l, D_DEADLINE] <= first
    second = urgent or (half >= 0 and t > first)
    if second:
        t = first
    if due <= t:
        if due > until:
            return False
        if due > first and queued:
            g[l, D_MODE] = mode
        _refresh(d, l, due)
        g[l, D_NOW] = due - 1
        return True
    if t > until:
        return False
    column = g[l, COLUMN_T] == t and not second
    active = column and g[l, COLUMN_ACTIVE] == 1
    if queued and not urgent and not (active and t == first):
        g[l, D_MODE] = mode
    g[l, D_NOW] = t
    if column and not active and g[l, ROW_T] == t:
        column = d.entry[l, g[l, COLUMN_E], N_SEQ] < g[l, ROW_SEQ]
    if column and p[P_CLOCKED] and t >= g[l, D_CLOCK]:
        if half >= 0 and g[l, D_DEADLINE] <= t + 1:
            second = True
        else:
            g[l, D_SYNC] = g[l, COLUMN_E]
            return True
    if second:
        g[l, D_HALF] = -1
        _activate(d, l, half)
    elif column:
        _column(d, l, g[l, COLUMN_E], g[l, COLUMN_ACTIVE], t)
    elif queued:
        _row(d, l, t, mode)
    else:
        _maintain(d, l, t)
    return True


@_compiled
def serve(d, l, until):
    """Runs a lane until tick `until`, that tick included, its waiting runs sent as they have room."""
    g = d.g
    while True:
        arrival = NEVER
        if g[l, D_RUN] < g[l, D_RUNS]:
            arrival = d.runs[l, g[l, D_RUN] % d.runs.shape[1], R_AVAILABLE]
            if arrival <= g[l, D_NOW]:
                _feed(d, l)
                if g[l, D_RUN] < g[l, D_RUNS]:
                    arrival = d.runs[l, g[l, D_RUN] % d.runs.shape[1], R_AVAILABLE]
        if arrival <= g[l, D_NOW]:
            arrival = NEVER  # it waits for room
        if _step(d, l, min(until, arrival)):
            continue
        if arrival > until:
            return
        _idle(d, l, arrival)


@_compiled
def _idle(d, l, until):
    """No command until tick `until`: the lane stands there."""
    if until > d.g[l, D_NOW]:
        if d.g[l, D_MCOUNT] == 0:
            d.g[l, D_MODE] = _mode(d, l)
        d.g[l, D_NOW] = until


@_compiled
def drain(d, l):
    """Runs a lane until all its runs are through."""
    g = d.g
    while g[l, D_RUN] < g[l, D_RUNS] or g[l, D_READS] + g[l, D_WRITES] + g[l, D_ACTIVE] > 0 or g[l, D_HALF] >= 0:
        arrival = NEVER
        if g[l, D_RUN] < g[l, D_RUNS]:
            arrival = d.runs[l, g[l, D_RUN] % d.runs.shape[1], R_AVAILABLE]
            if arrival <= g[l, D_NOW]:
                _feed(d, l)
                arrival = NEVER
                if g[l, D_RUN] < g[l, D_RUNS]:
                    arrival = d.runs[l, g[l, D_RUN] % d.runs.shape[1], R_AVAILABLE]
                    if arrival <= g[l, D_NOW]:
                        arrival = NEVER
        if not _step(d, l, arrival) and arrival < NEVER:
            _idle(d, l, arrival)
