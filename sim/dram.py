"""DRAM lanes in Numba: a controller and its banks, from command to command (docs/model.md, section 10).

A lane keeps, for every bank and what lies above it, the first legal tick of each command, and for every bank the oldest
burst of each kind; so the next command is found without a look at the ticks between, or at any other burst. What was
found stays found while nothing changes it. tests/naive_dram.py looks at every burst in every tick, and must agree.

A lane is one row of int64: the parameters of its kind, its numbers, then areas at the offsets A_*. Banks and queued
bursts are known by their offset in the row. Nothing is allocated or raised here.
"""

import numpy as np
from numba import njit

_compiled = njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload,unused-ignore]

ACT, PRE, PREA, RD, WR, REFA, REFB = range(7)
NEVER = np.int64(2**61)
CLOSED, ACTIVATING = -1, -2

# Parameters: the columns of `Drams.params`.
(
    P_RANKS, P_SIDS, P_GROUPS, P_BANKS, P_ROWS, P_COLUMNS, P_BYTES, P_TICK, P_BURST, P_BUSES, P_EDGES, P_READ, P_READS,
    P_WRITES, P_FROM, P_TO, P_REFRESH, P_INTERVAL, P_BUSY, P_SPLIT, P_CLOCKED, P_CLOCK_READ, P_CLOCK_WRITE, P_HASH,
) = range(24)  # fmt: skip
# Numbers of a lane. COLUMN_*, ROW_*, MAINT_*: the next command of each kind, as last found; *_OK: still true. D_DATA:
# ticks in which data buses carried data; LOST_*, D_IDLE: in which they did not, between two bursts, by cause.
(
    D_NOW, D_MODE, D_DUE, D_REF_BANK, D_REF_RANK, D_CLOCK, D_SYNC, D_HALF, D_DEADLINE, D_READS, D_WRITES, D_ACTIVE,
    D_SEQ, D_PROMOTED, D_FREE, D_MHEAD, D_MCOUNT, D_BUSY, D_OLDEST, D_OLDEST_W, D_NEWEST, D_NEWEST_W, D_RUN, D_RUN_LAST,
    D_HITS, D_MISSES, D_CONFLICTS, D_LAST, D_QUEUED, D_STREAKS, D_BLOCKED, D_HITS_OPEN, D_HITS_OPEN_W,
    D_DATA, LOST_REFRESH, LOST_MISS, LOST_CONFLICT, LOST_TURN, LOST_OTHER, LOST_GROUP, D_IDLE, D_REF_SINCE, D_REF_LAST,
    D_THROUGH, D_THROUGH_LAST, S_REFA, S_REFB, S_ALONE, S_BLOCK, S_TURN, S_BESIDE, S_PACE, S_PACE_W,
    COLUMN_OK, COLUMN_T, COLUMN_E, COLUMN_ACTIVE, COLUMN_ARRIVE, COLUMN_SEQ,
    ROW_OK, ROW_T, ROW_B, ROW_C, ROW_SEQ, MAINT_T, MAINT_C,
    A_POINTERS, A_FIELDS, A_FIELDS_END, A_CHANNEL, A_RANK, A_SID, A_GROUP, A_BANK, A_ENTRY, A_FREE, A_BUSY, A_MAINT,
    A_ALLOWED, A_OPENED,
) = range(24, 24 + 80)  # fmt: skip
HEADER = 104
# Rules of a command: where its lists begin, and end, in this order. A rule is (command after, ticks), in the window
# list (command after, ticks, commands back).
CHANNEL_RULES, RANK_RULES, SID_RULES, GROUP_RULES, BANK_RULES, NEAR_RANK, NEAR_SID, WINDOW = range(8)
LISTS = 9
# A node's first columns are the first legal ticks of the seven commands.
NODE = 8
K_PAST = 7  # a rank's last four ACT, then its last four REFB, newest first
# Of a rank's data bus: its first and last RD or WR (-1: none), whether that was WR and in which group, how many bursts
# wait, and since when any does.
K_FIRST, K_LAST, K_WRITE, K_GROUP, K_WAITING, K_SINCE = range(15, 21)
RANK_COLUMNS = 21
B_ROW, B_ACTIVE, B_WORK, B_PLACE, B_GROUP, B_SID, B_RANK, B_NUMBER = range(7, 15)
B_HEAD, B_TAIL, B_HIT, B_MISS = 15, 17, 19, 21  # a column for reads, one for writes
B_WANTS, B_SEQ = 23, 24  # the row command for the queue that is served (-1: none), and of which burst
# Whether the open row (or the next) is new: 0 it has had RD or WR, 1 none was open before, 2 another had to be closed;
# until when a refresh of this bank goes on.
B_NEW, B_REFRESHED = 25, 26
BANK_COLUMNS = 27
USED, MISSED, REPLACED = 0, 1, 2
# Queued bursts; N_OLDER and N_NEWER run through the whole queue, N_BACK and N_NEXT through those of one bank.
N_RUN, N_BURST, N_BANK, N_ROW, N_ARRIVE, N_WRITE, N_SEEN, N_SEQ, N_ORDER, N_NEXT, N_BACK, N_NEWER, N_OLDER = range(13)
ENTRY_COLUMNS = 13
FIELD_COLUMNS = 4  # field, shift (-1: no power of two), size, worth
# Runs of consecutive bursts that come together. R_NEXT links those of a lane that are not wholly sent, from D_RUN on,
# and those that are through, from D_THROUGH on (-1: none, or no more). R_DATA to R_OTHER: what D_DATA to LOST_OTHER
# were with the last burst's RD or WR.
(
    R_FIRST, R_COUNT, R_WRITE, R_AVAILABLE, R_SENT, R_LEFT, R_DONE, R_NEXT,
    R_DATA, R_REFRESH, R_MISS, R_CONFLICT, R_TURN, R_OTHER,
) = range(14)  # fmt: skip
RUN_COLUMNS = 14
MAINTENANCE_ROOM = 256
# The next of many, found as the least number: ticks from now (below LONGEST), then age in bursts, then bank's place.
PLACE, AGE_AND_PLACE, LONGEST = 8, 40, 1 << 21


@_compiled
def _raise(m, at, end, node, now):
    """The commands of a list of rules come no sooner in this node."""
    while at < end:
        ready = now + m[at + 1]
        if m[node + m[at]] < ready:
            m[node + m[at]] = ready
        at += 2


@_compiled
def _command(m, b, command, now):
    """A command is given to a bank (PREA and REFA: to the rank of that bank)."""
    p = m[A_POINTERS] + command * LISTS
    rank = m[b + B_RANK]
    _raise(m, m[p + RANK_RULES], m[p + SID_RULES], rank, now)
    _raise(m, m[p + GROUP_RULES], m[p + BANK_RULES], m[b + B_GROUP], now)
    _raise(m, m[p + BANK_RULES], m[p + NEAR_RANK], b, now)
    if not m[S_ALONE]:
        _raise(m, m[p + CHANNEL_RULES], m[p + RANK_RULES], m[A_CHANNEL], now)
        _raise(m, m[p + SID_RULES], m[p + GROUP_RULES], m[b + B_SID], now)
        for other in range(m[A_RANK], m[A_SID], RANK_COLUMNS):
            if other != rank:
                _raise(m, m[p + NEAR_RANK], m[p + NEAR_SID], other, now)
        first = m[A_SID] + (m[b + B_SID] - m[A_SID]) // (NODE * m[P_SIDS]) * NODE * m[P_SIDS]
        for other in range(first, first + NODE * m[P_SIDS], NODE):
            if other != m[b + B_SID]:
                _raise(m, m[p + NEAR_SID], m[p + WINDOW], other, now)
    if command in (ACT, REFB):
        past = rank + K_PAST + (4 if command == REFB else 0)
        m[past + 3] = m[past + 2]
        m[past + 2] = m[past + 1]
        m[past + 1] = m[past]
        m[past] = now
        for at in range(m[p + WINDOW], m[p + WINDOW + 1], 3):
            before = m[past + m[at + 2] - 1]
            if before >= 0:
                m[rank + m[at]] = max(m[rank + m[at]], before + m[at + 1])


@_compiled
def _ready(m, b, command, first):
    """The first legal tick of a command to this bank, `first` or later, on its clock edge."""
    t = max(m[b + command], m[m[b + B_GROUP] + command], m[m[b + B_RANK] + command], first)
    if not m[S_ALONE]:
        t = max(t, m[m[b + B_SID] + command], m[m[A_CHANNEL] + command])
    if m[P_EDGES] and command != PRE:
        t |= 1
    return t


@_compiled
def _next_hit(m, e, row):
    """The first burst from e on, in its bank's list, for this row (-1: none)."""
    while e >= 0 and m[e + N_ROW] != row:
        e = m[e + N_NEXT]
    return e


@_compiled
def _want(m, b):
    """Which row command the bank wants for the queue that is served: ACT, PRE, or none."""
    q = m[D_MODE]
    row = m[b + B_ROW]
    m[b + B_WANTS] = -1
    if row >= 0:
        e = m[b + B_MISS + q]
        if e < 0 or m[b + B_ACTIVE] >= 0:
            return
        h = m[b + B_HIT + q]
        if h >= 0 and m[h + N_ARRIVE] <= m[e + N_ARRIVE]:
            return  # a hit that came no later keeps the row open
        m[b + B_WANTS] = PRE
    else:
        e = m[b + B_HEAD + q]
        if e < 0 or row == ACTIVATING:
            return
        m[b + B_WANTS] = ACT
    m[b + B_SEQ] = m[e + N_SEQ]


@_compiled
def _set_hit(m, b, q, e):
    """The oldest burst that hits a bank's open row; banks that have one are counted."""
    m[D_HITS_OPEN + q] += np.int64(e >= 0) - np.int64(m[b + B_HIT + q] >= 0)
    m[b + B_HIT + q] = e


@_compiled
def _closed(m, b):
    m[b + B_ROW] = CLOSED
    _set_hit(m, b, 0, -1)
    _set_hit(m, b, 1, -1)
    m[b + B_MISS] = m[b + B_MISS + 1] = -1
    if m[b + B_WORK] > 0:
        _want(m, b)


@_compiled
def _try_column(m, b, e, active, first):
    """A burst may give RD or WR from `first` on: is it the next of all?"""
    t = _ready(m, b, RD + m[e + N_WRITE], first)
    if t > m[COLUMN_T]:
        return
    if t == m[COLUMN_T]:
        if active != m[COLUMN_ACTIVE]:
            if not active:
                return
        elif active:
            if m[e + N_ARRIVE] > m[COLUMN_ARRIVE]:
                return
            if m[e + N_ARRIVE] == m[COLUMN_ARRIVE] and m[e + N_ORDER] > m[COLUMN_SEQ]:
                return
        elif m[e + N_SEQ] > m[COLUMN_SEQ]:
            return
    m[COLUMN_T], m[COLUMN_E], m[COLUMN_ACTIVE], m[COLUMN_ARRIVE] = t, e, active, m[e + N_ARRIVE]
    m[COLUMN_SEQ] = m[e + N_ORDER] if active else m[e + N_SEQ]


@_compiled
def _try_row(m, b, first):
    """A bank may give the row command that it wants: is that the next of all?"""
    command = m[b + B_WANTS]
    if command < 0 or (command == ACT and m[D_HALF] >= 0):
        return
    t = _ready(m, b, command, first)
    if t < m[ROW_T] or (t == m[ROW_T] and m[b + B_SEQ] < m[ROW_SEQ]):
        m[ROW_T], m[ROW_B], m[ROW_C], m[ROW_SEQ] = t, b, command, m[b + B_SEQ]


@_compiled
def _find_column(m, first, queued):
    """The next RD or WR: the earliest, then bursts whose row was opened for them, then the oldest."""
    if m[COLUMN_OK] and m[COLUMN_T] >= first:
        return
    m[COLUMN_OK], m[COLUMN_T] = 1, NEVER
    q = m[D_MODE]
    c = RD + q
    queued = queued and m[D_HITS_OPEN + q] > 0
    if m[D_ACTIVE] == 0:
        if not queued:
            return
        e = m[D_OLDEST + q]
        b = m[e + N_BANK]
        if m[S_ALONE] and m[b + B_ROW] == m[e + N_ROW]:
            t = max(m[m[A_RANK] + c], first)  # the oldest of all, at the first tick that any could have
            if m[P_EDGES]:
                t |= 1
            if _ready(m, b, c, first) == t:
                m[COLUMN_T], m[COLUMN_E], m[COLUMN_ACTIVE], m[COLUMN_SEQ] = t, e, 0, m[e + N_SEQ]
                return
    for at in range(m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]):
        e = m[at]
        _try_column(m, m[e + N_BANK], e, 1, first)
    if not queued:
        return
    if not m[S_ALONE]:
        for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
            b = m[at]
            if m[b + B_HIT + q] >= 0:
                _try_column(m, b, m[b + B_HIT + q], 0, first)
        return
    # Without branches: time, age and place in one number.
    oldest, floor, edge = m[m[D_OLDEST + q] + N_SEQ], max(m[m[A_RANK] + c], first), m[P_EDGES]
    best, base = NEVER, m[A_BUSY]
    for i in range(m[D_BUSY]):
        b = m[base + i]
        e = m[b + B_HIT + q]
        t = max(m[b + c], m[m[b + B_GROUP] + c], floor) | edge
        key = ((t - first) << AGE_AND_PLACE) + ((m[e + N_SEQ] - oldest) << PLACE) + i
        best = min(best, key if e >= 0 else NEVER)
    if best < NEVER:
        b = m[base + (best & ((1 << PLACE) - 1))]
        _try_column(m, b, m[b + B_HIT + q], 0, first)


@_compiled
def _find_row(m, first):
    """The next ACT or PRE for queued bursts: the earliest, then the oldest burst's."""
    if m[ROW_OK] and m[ROW_T] >= first:
        return
    q = m[D_MODE]
    m[ROW_OK], m[ROW_T] = 1, NEVER
    if m[D_READS + q] == 0:
        return
    base = m[A_BUSY]
    if not m[S_ALONE]:
        for at in range(base, base + m[D_BUSY]):
            _try_row(m, m[at], first)
        return
    edge = m[P_EDGES]
    act, pre = max(m[m[A_RANK] + ACT], first), max(m[m[A_RANK] + PRE], first)
    if m[D_HALF] >= 0:
        act = first + LONGEST
    oldest = m[m[D_OLDEST + q] + N_SEQ]
    best = NEVER
    for i in range(m[D_BUSY]):
        b = m[base + i]
        c = m[b + B_WANTS]
        t = max(m[b + c], m[m[b + B_GROUP] + c], act if c == ACT else pre)
        t |= edge if c == ACT else 0
        key = ((t - first) << AGE_AND_PLACE) + ((m[b + B_SEQ] - oldest) << PLACE) + i
        best = min(best, key if c >= 0 else NEVER)
    if best < LONGEST << AGE_AND_PLACE:
        b = m[base + (best & ((1 << PLACE) - 1))]
        t = first + (best >> AGE_AND_PLACE)
        m[ROW_T], m[ROW_B], m[ROW_C], m[ROW_SEQ] = t, b, m[b + B_WANTS], m[b + B_SEQ]


@_compiled
def _opened(m, b, row, first):
    """The bank's row is open: which bursts hit it, which miss it."""
    m[b + B_ROW] = row
    for q in range(2):
        e = m[b + B_HEAD + q]
        _set_hit(m, b, q, _next_hit(m, e, row))
        while e >= 0 and m[e + N_ROW] == row:
            e = m[e + N_NEXT]
        m[b + B_MISS + q] = e
    if m[COLUMN_OK]:
        if m[b + B_ACTIVE] >= 0:
            _try_column(m, b, m[b + B_ACTIVE], 1, first)
        if m[D_QUEUED] and m[b + B_HIT + m[D_MODE]] >= 0:
            _try_column(m, b, m[b + B_HIT + m[D_MODE]], 0, first)


@_compiled
def _activate(m, e, now):
    """The burst's row is open, and the burst is no longer in the window of its queue."""
    b = m[e + N_BANK]
    m[e + N_ORDER] = m[D_PROMOTED]
    m[D_PROMOTED] += 1
    m[b + B_ACTIVE] = e
    m[b + B_WANTS] = -1
    m[m[A_OPENED] + m[D_ACTIVE]] = e
    m[D_ACTIVE] += 1
    _opened(m, b, m[e + N_ROW], now + 1)


@_compiled
def _unlink(m, e):
    """Takes a burst out of its bank's list and its queue."""
    b, q = m[e + N_BANK], m[e + N_WRITE]
    after, back = m[e + N_NEXT], m[e + N_BACK]
    if back >= 0:
        m[back + N_NEXT] = after
    else:
        m[b + B_HEAD + q] = after
    if after >= 0:
        m[after + N_BACK] = back
    else:
        m[b + B_TAIL + q] = back
    newer, older = m[e + N_NEWER], m[e + N_OLDER]
    if older >= 0:
        m[older + N_NEWER] = newer
    else:
        m[D_OLDEST + q] = newer
    if newer >= 0:
        m[newer + N_OLDER] = older
    else:
        m[D_NEWEST + q] = older
    m[D_READS + q] -= 1
    m[D_BLOCKED] = 0


@_compiled
def _leave(m, runs, done, run, number, t):
    """A burst of a run is through at tick t; with its last one the run is."""
    runs[run, R_LEFT] -= 1
    if runs[run, R_DONE] < t:
        runs[run, R_DONE] = t
    if runs[run, R_LEFT] == 0:
        for k in range(6):
            runs[run, R_DATA + k] = m[D_DATA + k]
        runs[run, R_NEXT] = -1
        if m[D_THROUGH] < 0:
            m[D_THROUGH] = run
        else:
            runs[m[D_THROUGH_LAST], R_NEXT] = run
        m[D_THROUGH_LAST] = run
    if m[D_LAST] < t:
        m[D_LAST] = t
    if number < done.shape[0]:
        done[number, 1] = t


@_compiled
def _accept(m, runs, done, run):
    """Sends the next burst of a run. False: its queue is full."""
    q = runs[run, R_WRITE]
    full = m[D_READS + q] >= m[P_READS + q]
    if full and m[D_WRITES] == 0:
        return False
    burst = runs[run, R_FIRST] + runs[run, R_SENT]
    rank = sid = group = inner = row = column = np.int64(0)
    rest = burst
    for at in range(m[A_FIELDS], m[A_FIELDS_END], FIELD_COLUMNS):
        field, shift = m[at], m[at + 1]
        if shift >= 0:
            value = (rest & (m[at + 2] - 1)) * m[at + 3]
            rest >>= shift
        else:
            value = rest % m[at + 2] * m[at + 3]
            rest //= m[at + 2]
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
    if m[P_HASH]:
        for level in range(4):
            size = m[level]
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
        row ^= column
    bank = ((rank * m[P_SIDS] + sid) * m[P_GROUPS] + group) * m[P_BANKS] + inner
    b = m[A_BANK] + bank * BANK_COLUMNS
    number = m[D_SEQ]
    now = m[D_NOW]
    if m[D_WRITES] > 0:  # a write to the same place is queued: this read is forwarded, this write merged
        e = m[b + B_HEAD + 1]
        while e >= 0:
            if m[e + N_BURST] == burst:
                if number < done.shape[0]:
                    done[number, 0] = now
                _leave(m, runs, done, run, number, now + 1 - q)
                m[D_SEQ] += 1
                runs[run, R_SENT] += 1
                return True
            e = m[e + N_NEXT]
        if full:
            return False
    if number < done.shape[0]:
        done[number, 0] = now
    m[D_FREE] -= 1
    e = m[m[A_FREE] + m[D_FREE]]
    m[e + N_RUN] = run
    m[e + N_BURST] = burst
    m[e + N_BANK] = b
    m[e + N_ROW] = row
    m[e + N_ARRIVE] = now
    m[e + N_WRITE] = q
    m[e + N_SEEN] = 0
    m[e + N_SEQ] = number
    _link(m, b, e, q)
    m[D_SEQ] += 1
    m[D_READS + q] += 1
    rank_node = m[b + B_RANK]
    if m[rank_node + K_WAITING] == 0:
        m[rank_node + K_SINCE] = now + 1
    m[rank_node + K_WAITING] += 1
    runs[run, R_SENT] += 1
    open_row = m[b + B_ROW]
    if open_row == row:
        if m[b + B_HIT + q] < 0:
            _set_hit(m, b, q, e)
            if m[COLUMN_OK] and m[D_QUEUED] and q == m[D_MODE]:
                _try_column(m, b, e, 0, now + 1)
    elif open_row >= 0 and m[b + B_MISS + q] < 0:
        m[b + B_MISS + q] = e
    if q == m[D_MODE]:
        before = m[b + B_WANTS]
        _want(m, b)
        if m[ROW_OK] and m[b + B_WANTS] != before:
            if m[ROW_B] == b:
                m[ROW_OK] = 0
            else:
                _try_row(m, b, now + 1)
    return True


@_compiled
def _link(m, b, e, q):
    """Puts a burst at the end of its bank's list and of its queue."""
    back = m[b + B_TAIL + q]
    m[e + N_NEXT] = -1
    m[e + N_BACK] = back
    if back >= 0:
        m[back + N_NEXT] = e
    else:
        m[b + B_HEAD + q] = e
    m[b + B_TAIL + q] = e
    older = m[D_NEWEST + q]
    m[e + N_NEWER] = -1
    m[e + N_OLDER] = older
    if older >= 0:
        m[older + N_NEWER] = e
    else:
        m[D_OLDEST + q] = e
    m[D_NEWEST + q] = e
    if m[b + B_WORK] == 0:
        m[b + B_WANTS] = -1
        m[b + B_PLACE] = m[D_BUSY]
        m[m[A_BUSY] + m[D_BUSY]] = b
        m[D_BUSY] += 1
    m[b + B_WORK] += 1


@_compiled
def _feed(m, runs, done):
    """Sends what is there and has room, in order. Returns the tick of the next one (NEVER: none, or no room)."""
    if m[D_BLOCKED]:
        return NEVER
    while m[D_RUN] >= 0:
        run = m[D_RUN]
        if runs[run, R_AVAILABLE] > m[D_NOW]:
            return runs[run, R_AVAILABLE]
        after = runs[run, R_NEXT]  # a run of merged bursts is through when it is sent, and in the other list
        while runs[run, R_SENT] < runs[run, R_COUNT]:
            if not _accept(m, runs, done, run):
                m[D_BLOCKED] = 1
                return NEVER
        m[D_RUN] = after
    return NEVER


@_compiled
def _mode(m):
    """The queue that is served if the queues are looked at now: 0 reads, 1 writes."""
    if m[D_MODE] == 0:
        return np.int64(m[D_WRITES] >= m[P_FROM] or m[D_READS] == 0)
    return np.int64(m[D_WRITES] > m[P_TO] or m[D_READS] == 0)


@_compiled
def _set_mode(m, mode):
    if m[D_MODE] != mode:
        m[D_MODE] = mode
        m[COLUMN_OK] = m[ROW_OK] = 0
        for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
            _want(m, m[at])


@_compiled
def _find_maintenance(m, first):
    """When the first refresh that waits may give its next command, and which."""
    b, last = m[m[A_MAINT] + 2 * m[D_MHEAD]], m[m[A_MAINT] + 2 * m[D_MHEAD] + 1]
    command, t = last, first
    if last == REFB:
        if m[b + B_ROW] != CLOSED:
            command = PRE
            if m[b + B_ACTIVE] >= 0 or m[b + B_ROW] == ACTIVATING:
                t = NEVER
        t = _ready(m, b, command, t)
    else:
        per_rank = m[P_SIDS] * m[P_GROUPS] * m[P_BANKS]
        for x in range(b, b + per_rank * BANK_COLUMNS, BANK_COLUMNS):
            if m[x + B_ROW] != CLOSED:
                command = PREA
                if m[x + B_ACTIVE] >= 0 or m[x + B_ROW] == ACTIVATING:
                    t = NEVER
        t = max(t, m[m[b + B_RANK] + command], m[m[A_CHANNEL] + command])
        if m[P_EDGES] and command == REFA:
            t |= 1
    m[MAINT_T], m[MAINT_C] = t, command


@_compiled
def _maintain(m, now):
    """Gives the command that `_find_maintenance` found."""
    command = m[MAINT_C]
    b = m[m[A_MAINT] + 2 * m[D_MHEAD]]
    _command(m, b, command, now)
    m[COLUMN_OK] = m[ROW_OK] = 0
    end = b + BANK_COLUMNS
    if command in (PREA, REFA):
        end = b + m[P_SIDS] * m[P_GROUPS] * m[P_BANKS] * BANK_COLUMNS
    for x in range(b, end, BANK_COLUMNS):
        m[x + B_NEW] = MISSED
        if command in (PRE, PREA):
            _closed(m, x)
        else:
            m[x + B_REFRESHED] = now + m[S_REFA if command == REFA else S_REFB]
    if command in (REFA, REFB):
        m[D_REF_LAST] = now
        m[D_MHEAD] = (m[D_MHEAD] + 1) % MAINTENANCE_ROOM
        m[D_MCOUNT] -= 1


@_compiled
def _account(m, b, q, now):
    """RD or WR of a bank at tick `now`: its data, and what the ticks without data before it were lost to."""
    k = m[b + B_RANK]
    before, new = m[k + K_LAST], m[b + B_NEW]
    m[D_DATA] += m[P_BURST]
    if before < 0:
        m[k + K_FIRST] = now
    gap = now - before - m[P_BURST]
    if before >= 0 and gap > 0:
        idle = min(gap, max(0, m[k + K_SINCE] - before - m[P_BURST]))
        lost = gap - idle
        m[D_IDLE] += idle
        if m[D_REF_LAST] > before or m[b + B_REFRESHED] > before or (m[D_MCOUNT] > 0 and m[D_REF_SINCE] < now):
            m[LOST_REFRESH] += lost
        elif m[k + K_WRITE] != q:
            m[LOST_TURN] += lost
        elif new == REPLACED:
            m[LOST_CONFLICT] += lost
        elif new == MISSED:
            m[LOST_MISS] += lost
        else:
            m[LOST_OTHER] += lost
            if m[k + K_GROUP] == m[b + B_GROUP]:
                m[LOST_GROUP] += lost
    m[b + B_NEW] = USED
    m[k + K_LAST], m[k + K_WRITE], m[k + K_GROUP] = now, q, m[b + B_GROUP]


@_compiled
def _column(m, runs, done, now):
    """Gives the RD or WR that `_find_column` found."""
    e, active = m[COLUMN_E], m[COLUMN_ACTIVE]
    b, q = m[e + N_BANK], m[e + N_WRITE]
    if active:
        m[b + B_ACTIVE] = -1
        m[D_ACTIVE] -= 1
        at, end = m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]
        while m[at] != e:
            at += 1
        while at < end:
            m[at] = m[at + 1]
            at += 1
    else:
        if m[e + N_SEEN] == 0:
            m[D_HITS] += 1
        if m[b + B_HIT + q] == e:
            _set_hit(m, b, q, _next_hit(m, m[e + N_NEXT], m[b + B_ROW]))
        _unlink(m, e)
    _command(m, b, RD + q, now)
    _account(m, b, q, now)
    m[m[b + B_RANK] + K_WAITING] -= 1
    t = now
    if q == 0:
        t += m[P_READ]
    if m[P_CLOCKED]:
        m[D_CLOCK] = max(m[D_CLOCK], now + (m[P_CLOCK_WRITE] if q else m[P_CLOCK_READ]))
    _leave(m, runs, done, m[e + N_RUN], m[e + N_SEQ], t)
    m[m[A_FREE] + m[D_FREE]] = e
    m[D_FREE] += 1
    m[b + B_WORK] -= 1
    if m[b + B_WORK] == 0:
        m[D_BUSY] -= 1
        last = m[m[A_BUSY] + m[D_BUSY]]
        m[m[A_BUSY] + m[b + B_PLACE]] = last
        m[last + B_PLACE] = m[b + B_PLACE]
    m[COLUMN_OK] = 0
    _want(m, b)
    if m[ROW_OK]:
        late = m[ROW_T] < NEVER and _ready(m, m[ROW_B], m[ROW_C], now) > m[ROW_T]
        if late or m[ROW_B] == b:
            m[ROW_OK] = 0
        else:
            _try_row(m, b, now)


@_compiled
def _streak(m, runs, done, t, horizon):
    """Serves bursts of one run in one step, from tick t to `horizon`, where one by one they would go in order.

    That is: the queue is full of them; they hit open rows, as do those that take their places, one each `pace`; and no
    other command comes in between. Returns whether it did.
    """
    q = m[D_MODE]
    pace, n, e = m[S_PACE + q], m[D_READS + q], m[COLUMN_E]
    if pace == 0 or n < m[P_READS + q] or m[COLUMN_ACTIVE] or m[D_ACTIVE] > 0 or m[D_READS + 1 - q] > 0:
        return False
    if m[D_RUN] < 0 or e != m[D_OLDEST + q] or m[D_HALF] >= 0:
        return False
    run = m[D_RUN]
    if m[e + N_RUN] != run or runs[run, R_WRITE] != q:
        return False
    following, block, turn = runs[run, R_FIRST] + runs[run, R_SENT], m[S_BLOCK], m[S_TURN]
    into = following % block
    if m[e + N_BURST] != following - n or into < n:
        return False
    count = min(block - into, runs[run, R_COUNT] - runs[run, R_SENT], (horizon - t) // pace + 1)
    count -= count % turn
    if count < n:
        return False
    x = e
    for _ in range(turn):
        if m[m[x + N_BANK] + B_ROW] != m[x + N_ROW]:
            return False
        x = m[x + N_NEWER]
    last = t + (count - 1) * pace
    lag = np.int64(0) if q else m[P_READ]
    number = m[D_SEQ]
    for i in range(min(count, done.shape[0])):
        done[number + i, 0] = t + i * pace
        done[number - n + i, 1] = t + i * pace + lag
    place, at = count - n, t + (count - n) * pace
    x = e
    while x >= 0:  # each place of the queue holds what comes there in the end
        m[D_HITS] += 1 - m[x + N_SEEN]
        m[x + N_SEEN] = 0
        m[x + N_BURST] += count
        m[x + N_ARRIVE] = at
        m[x + N_SEQ] = number + place
        place += 1
        at += pace
        x = m[x + N_NEWER]
    m[D_HITS] += count - n
    m[D_SEQ] += count
    m[D_STREAKS] += 1
    runs[run, R_SENT] += count
    runs[run, R_LEFT] -= count
    runs[run, R_DONE] = max(runs[run, R_DONE], last + lag)
    m[D_LAST] = max(m[D_LAST], last + lag)
    if m[P_CLOCKED]:
        m[D_CLOCK] = max(m[D_CLOCK], last + (m[P_CLOCK_WRITE] if q else m[P_CLOCK_READ]))
    x = e
    for i in range(turn):  # the first turn takes rows that may be new; from then on all turns are alike
        _account(m, m[x + N_BANK], q, t + i * pace)
        x = m[x + N_NEWER]
    m[D_DATA] += (count - turn) * m[P_BURST]
    m[LOST_OTHER] += (count - turn) * (pace - m[P_BURST])
    m[LOST_GROUP] += (count - turn) // turn * m[S_BESIDE] * (pace - m[P_BURST])
    m[m[A_RANK] + K_LAST] = last
    x = e
    for i in range(turn):
        _command(m, m[x + N_BANK], RD + q, last + (i + 1 - turn) * pace)
        x = m[x + N_NEWER]
    m[D_NOW] = last
    m[COLUMN_OK] = m[D_BLOCKED] = 0
    if runs[run, R_SENT] == runs[run, R_COUNT]:
        m[D_RUN] = runs[run, R_NEXT]
    return True


@_compiled
def _row(m, now):
    """Gives the ACT or PRE that `_find_row` found."""
    b, command, q = m[ROW_B], m[ROW_C], m[D_MODE]
    _command(m, b, command, now)
    m[ROW_OK] = 0
    if m[COLUMN_OK] and m[COLUMN_T] < NEVER:
        x = m[m[COLUMN_E] + N_BANK]
        if x == b or _ready(m, x, RD + m[m[COLUMN_E] + N_WRITE], now) > m[COLUMN_T]:
            m[COLUMN_OK] = 0
    if command == PRE:
        e = m[b + B_MISS + q]
        if m[e + N_SEEN] == 0:
            m[e + N_SEEN] = 1
            m[D_CONFLICTS] += 1
        m[b + B_NEW] = REPLACED
        _closed(m, b)
        return
    e = m[b + B_HEAD + q]
    if m[e + N_SEEN] == 0:
        m[e + N_SEEN] = 1
        m[D_MISSES] += 1
    _unlink(m, e)
    if m[P_SPLIT]:
        m[b + B_ROW] = ACTIVATING
        m[b + B_WANTS] = -1
        m[D_HALF] = e
        m[D_DEADLINE] = now + m[P_SPLIT]
    else:
        _activate(m, e, now)


@_compiled
def _due(m):
    """Tick of the next refresh to be queued."""
    if m[P_REFRESH] == 0:
        return NEVER
    if m[P_REFRESH] == 3 and m[D_REF_RANK] == 0:
        return max(m[D_DUE], m[m[A_ALLOWED] + m[D_REF_BANK] // (m[P_GROUPS] * m[P_BANKS])], m[D_NOW] + 1)
    return m[D_DUE]


@_compiled
def _put_maintenance(m, bank, command):
    at = m[A_MAINT] + 2 * ((m[D_MHEAD] + m[D_MCOUNT]) % MAINTENANCE_ROOM)
    m[at], m[at + 1] = m[A_BANK] + bank * BANK_COLUMNS, command
    m[D_MCOUNT] += 1


@_compiled
def _refresh(m, now):
    """Queues the refresh that is due at `now`."""
    per_sid = m[P_GROUPS] * m[P_BANKS]
    per_rank = m[P_SIDS] * per_sid
    m[COLUMN_OK] = m[ROW_OK] = 0
    if m[D_MCOUNT] == 0:
        m[D_REF_SINCE] = now
    if m[P_REFRESH] == 1:
        for rank in range(m[P_RANKS]):
            _put_maintenance(m, rank * per_rank, REFA)
        m[D_DUE] += m[P_INTERVAL]
    elif m[P_REFRESH] == 2:
        _put_maintenance(m, m[D_REF_BANK], REFB)
        m[D_REF_BANK] = (m[D_REF_BANK] + 1) % (m[P_RANKS] * per_rank)
        m[D_DUE] += m[P_INTERVAL]
    else:  # the same bank of every rank, one a tick; D_DUE stands one tick on while ranks are left
        at, rank = m[D_REF_BANK], m[D_REF_RANK]
        _put_maintenance(m, rank * per_rank + at, REFB)
        m[D_REF_RANK] = (rank + 1) % m[P_RANKS]
        m[D_DUE] = now + 1
        if m[D_REF_RANK] == 0:
            m[D_DUE] = now - rank + m[P_INTERVAL]
            if at % per_sid == per_sid - 1:
                m[m[A_ALLOWED] + at // per_sid] = now + m[P_BUSY]
            m[D_REF_BANK] = (at + 1) % per_rank


@_compiled
def _come_due(m, due, queued, mode):
    """A refresh is queued before any other command: the lane stands at the tick before."""
    if due > m[D_NOW] + 1 and queued:
        _set_mode(m, mode)
    _refresh(m, due)
    m[D_NOW] = due - 1


@_compiled
def _step(m, runs, done, until):
    """The next command or refresh, if it comes by tick `until`. False: it does not."""
    if m[P_BUSES] == 1:
        return _step_one_bus(m, runs, done, until)
    first = m[D_NOW] + 1
    queued = m[D_MCOUNT] == 0
    due = _due(m)
    m[D_QUEUED] = queued
    before = m[D_MODE]
    if queued:
        _set_mode(m, _mode(m))
        _find_column(m, first, True)
        _find_row(m, first)
        row_t = m[ROW_T]
    else:
        _find_column(m, first, False)
        _find_maintenance(m, first)
        row_t = m[MAINT_T]
    t = min(m[COLUMN_T], row_t)
    if min(due, t) > until:
        _set_mode(m, before)  # no tick has passed in which the queues were looked at
        return False
    if due <= t:
        if due == first:
            _set_mode(m, before)
        _come_due(m, due, queued, m[D_MODE])
        return True
    if queued and row_t == NEVER and _streak(m, runs, done, t, min(until, due - 1)):
        return True
    m[D_NOW] = t
    if m[COLUMN_T] == t:
        _column(m, runs, done, t)
        if queued:
            _set_mode(m, _mode(m))
            _find_row(m, t)
            row_t = m[ROW_T]
        else:
            _find_maintenance(m, t)
            row_t = m[MAINT_T]
    if row_t == t:
        if queued:
            _row(m, t)
        else:
            _maintain(m, t)
    return True


@_compiled
def _step_one_bus(m, runs, done, until):
    """`_step` where a tick has one command of any kind."""
    first = m[D_NOW] + 1
    due = _due(m)
    if m[D_SYNC] >= 0:  # the RD or WR that the data clock was started for
        if first > until:
            return False
        if due == first:
            _refresh(m, due)
        e = m[D_SYNC]
        m[D_SYNC] = -1
        m[D_NOW] = first
        m[COLUMN_E], m[COLUMN_ACTIVE] = e, np.int64(m[m[e + N_BANK] + B_ACTIVE] == e)
        _column(m, runs, done, first)
        return True
    queued = m[D_MCOUNT] == 0
    m[D_QUEUED] = queued
    before = m[D_MODE]
    m[MAINT_T] = NEVER
    if queued:
        _set_mode(m, _mode(m))
        _find_column(m, first, True)
        _find_row(m, first)
    else:
        _find_column(m, first, False)
        m[ROW_T], m[ROW_OK] = NEVER, 0
        _find_maintenance(m, first)
    t = min(m[COLUMN_T], m[ROW_T], m[MAINT_T])
    half = m[D_HALF]
    urgent = half >= 0 and m[D_DEADLINE] <= first
    second = urgent or (half >= 0 and t > first)
    if second:
        t = first
    if min(due, t) > until:
        _set_mode(m, before)
        return False
    if due <= t:
        mode = m[D_MODE]
        _set_mode(m, before)
        _come_due(m, due, queued, mode)
        return True
    column = m[COLUMN_T] == t and not second
    active = column and m[COLUMN_ACTIVE] == 1
    if urgent or (active and t == first):
        _set_mode(m, before)  # the queues were not looked at
    alone = queued and column and m[ROW_T] == NEVER and (not m[P_CLOCKED] or t < m[D_CLOCK])
    if alone and _streak(m, runs, done, t, min(until, due - 1)):
        return True
    m[D_NOW] = t
    if column and not active and m[ROW_T] == t:
        column = m[COLUMN_SEQ] < m[ROW_SEQ]
    if column and m[P_CLOCKED] and t >= m[D_CLOCK]:
        if half >= 0 and m[D_DEADLINE] <= t + 1:
            second = True
        else:
            m[D_SYNC] = m[COLUMN_E]
            return True
    if second:
        m[D_HALF] = -1
        m[COLUMN_OK] = m[ROW_OK] = 0
        _activate(m, half, t)
    elif column:
        _column(m, runs, done, t)
    elif queued:
        _row(m, t)
    else:
        _maintain(m, t)
    return True


@_compiled
def _idle(m, until):
    """No command until tick `until`: the lane stands there."""
    if until > m[D_NOW]:
        if m[D_MCOUNT] == 0:
            _set_mode(m, _mode(m))
        m[D_NOW] = until


@_compiled
def serve(m, runs, done, until):
    """Runs a lane until tick `until`, that tick included; runs are sent as they come and as there is room."""
    while True:
        arrival = _feed(m, runs, done)
        if _step(m, runs, done, min(until, arrival)):
            continue
        if arrival > until:
            return
        _idle(m, arrival)


@_compiled
def send(m, runs, done, t, run, first, count, write):
    """A run of `count` bursts (at least 1) from number `first` comes at tick t, behind those that wait.

    It takes the row `run` of `runs`, which the caller keeps until the run is through. The runs that are through stand,
    in this order, from D_THROUGH on, linked by R_NEXT; who has looked sets D_THROUGH to -1. A run stands there from its
    last RD or WR on, and its last read is done later: R_DONE says when.
    """
    serve(m, runs, done, t)
    _idle(m, t)
    runs[run, R_FIRST], runs[run, R_COUNT], runs[run, R_WRITE], runs[run, R_AVAILABLE] = first, count, write, t
    runs[run, R_SENT], runs[run, R_LEFT], runs[run, R_DONE], runs[run, R_NEXT] = 0, count, 0, -1
    if m[D_RUN] < 0:
        m[D_RUN] = run
    else:
        runs[m[D_RUN_LAST], R_NEXT] = run
    m[D_RUN_LAST] = run
    _feed(m, runs, done)


@_compiled
def busy(m):
    """Whether a lane has bursts that are not through."""
    return m[D_RUN] >= 0 or m[D_READS] + m[D_WRITES] + m[D_ACTIVE] > 0 or m[D_HALF] >= 0


@_compiled
def drain(m, runs, done):
    """Runs a lane until all its bursts are through."""
    while busy(m):
        arrival = _feed(m, runs, done)
        if not _step(m, runs, done, arrival) and arrival < NEVER:
            _idle(m, arrival)
