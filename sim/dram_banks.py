"""DRAM lanes: what each bank wants, and which RD or WR and which row command come next of all."""

import numpy as np

from .compiled import compiled
from .dram_state import *


@compiled
def next_hit(m, e, row):
    """The first strand from e on, in its bank's list, in this row (-1: none)."""
    while e >= 0 and m[e + N_ROW] != row:
        e = m[e + N_NEXT]
    return e


@compiled
def want_row(m, b):
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


@compiled
def set_hit(m, b, q, e):
    """The oldest strand that hits a bank's open row; banks that have one are counted."""
    before, oldest = m[b + B_HIT + q], m[D_OLDEST + q]
    if before >= 0 and before == oldest:
        m[D_OLDEST + q] = -1
    elif e >= 0 and (m[D_HITS_OPEN + q] == 0 or (oldest >= 0 and m[e + N_SEQ] < m[oldest + N_SEQ])):
        m[D_OLDEST + q] = e
    m[D_HITS_OPEN + q] += np.int64(e >= 0) - np.int64(before >= 0)
    m[b + B_HIT + q] = e


@compiled
def row_closed(m, b):
    """The bank's row is closed: nothing hits or misses it."""
    m[b + B_ROW] = CLOSED
    set_hit(m, b, 0, -1)
    set_hit(m, b, 1, -1)
    m[b + B_MISS] = m[b + B_MISS + 1] = -1
    if m[b + B_WORK] > 0:
        want_row(m, b)


@compiled
def try_column(m, b, e, active, first):
    """A burst may give RD or WR from `first` on: is it the next of all?"""
    t = ready_at(m, b, RD + m[e + N_WRITE], first)
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


@compiled
def try_row(m, b, first):
    """A bank may give the row command that it wants: is that the next of all?"""
    command = m[b + B_WANTS]
    if command < 0 or (command == ACT and m[D_HALF] >= 0):
        return
    t = ready_at(m, b, command, first)
    if t < m[ROW_T] or (t == m[ROW_T] and m[b + B_SEQ] < m[ROW_SEQ]):
        m[ROW_T], m[ROW_B], m[ROW_C], m[ROW_SEQ] = t, b, command, m[b + B_SEQ]


@compiled
def find_column(m, first, queued):
    """The next RD or WR: the earliest, then bursts whose row was opened for them, then the oldest."""
    if m[COLUMN_OK] and m[COLUMN_T] >= first:
        return
    m[COLUMN_OK], m[COLUMN_T] = 1, NEVER
    q = m[D_MODE]
    c = RD + q
    for at in range(m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]):
        e = m[at]
        try_column(m, m[e + N_BANK], e, 1, first)
    if not queued or m[D_HITS_OPEN + q] == 0:
        return
    edge = m[P_EDGES]
    soonest = m[m[A_SID] + c]
    if not m[S_ALONE]:
        for sid in range(m[A_SID] + NODE, m[A_GROUP], NODE):
            soonest = min(soonest, m[sid + c])
    soonest = max(soonest, first) | edge
    if soonest >= m[COLUMN_T]:
        return
    e = m[D_OLDEST + q]
    if e < 0 or ready_at(m, m[e + N_BANK], c, first) > soonest:
        e = _find_hit(m, q, first)
        soonest = ready_at(m, m[e + N_BANK], c, first)
    if soonest < m[COLUMN_T]:
        m[COLUMN_T], m[COLUMN_E], m[COLUMN_ACTIVE], m[COLUMN_SEQ] = soonest, e, 0, m[e + N_SEQ]


@compiled
def _find_hit(m, q, first):
    """Of the strands that hit open rows, the one with the next RD or WR: the earliest, then the oldest."""
    # Without branches: time, age and place in one number.
    old, edge, c = m[D_SEQ] - OLD, m[P_EDGES], RD + q
    best = oldest = NEVER
    base = m[A_BUSY]
    for i in range(m[D_BUSY]):
        b = m[base + i]
        e = m[b + B_HIT + q]
        t = max(m[b + c], m[m[b + B_GROUP] + c], m[m[b + B_SID] + c], first) | edge
        age = ((m[e + N_SEQ] - old) << PLACE) + i
        key = ((t - first) << AGE_AND_PLACE) + age
        best = min(best, key if e >= 0 else NEVER)
        oldest = min(oldest, age if e >= 0 else NEVER)
    m[D_OLDEST + q] = m[m[base + (oldest & ((1 << PLACE) - 1))] + B_HIT + q]
    return m[m[base + (best & ((1 << PLACE) - 1))] + B_HIT + q]


@compiled
def pass_age(m, q, b, burst, number, count):
    """`count` hits, from the oldest on, in bank b, are served: the next of their run may be the oldest now."""
    after, turn = burst + count, m[S_TURN]
    m[D_OLDEST + q] = -1
    if turn > 0 and after ^ burst < m[S_BLOCK]:
        at = m[A_TURN] + T_BANK
        x = b - m[at + (burst & (turn - 1)) * TURN_COLUMNS] + m[at + (after & (turn - 1)) * TURN_COLUMNS]
        e = m[x + B_HIT + q]
        if e >= 0 and m[e + N_SEQ] == number + count:
            m[D_OLDEST + q] = e


@compiled
def find_row(m, first):
    """The next ACT or PRE for queued bursts: the earliest, then the oldest burst's."""
    if m[ROW_OK] and m[ROW_T] >= first:
        return
    q = m[D_MODE]
    m[ROW_OK], m[ROW_T] = 1, NEVER
    if m[D_READS + q] == 0:
        return
    base, edge = m[A_BUSY], m[P_EDGES]
    act = first if m[D_HALF] < 0 else first + LONGEST
    oldest = m[D_SEQ] - OLD
    best = NEVER
    for i in range(m[D_BUSY]):
        b = m[base + i]
        c = m[b + B_WANTS]
        t = max(m[b + c], m[m[b + B_GROUP] + c], m[m[b + B_SID] + c], act if c == ACT else first)
        t |= edge if c == ACT else 0
        key = ((t - first) << AGE_AND_PLACE) + ((m[b + B_SEQ] - oldest) << PLACE) + i
        best = min(best, key if c >= 0 else NEVER)
    if best < LONGEST << AGE_AND_PLACE:
        b = m[base + (best & ((1 << PLACE) - 1))]
        t = first + (best >> AGE_AND_PLACE)
        m[ROW_T], m[ROW_B], m[ROW_C], m[ROW_SEQ] = t, b, m[b + B_WANTS], m[b + B_SEQ]


@compiled
def _opened(m, b, row, first):
    """The bank's row is open: which strands hit it, which miss it."""
    m[b + B_ROW] = row
    for q in range(2):
        e = m[b + B_HEAD + q]
        set_hit(m, b, q, next_hit(m, e, row))
        while e >= 0 and m[e + N_ROW] == row:
            e = m[e + N_NEXT]
        m[b + B_MISS + q] = e
    if m[COLUMN_OK]:
        if m[b + B_ACTIVE] >= 0:
            try_column(m, b, m[b + B_ACTIVE], 1, first)
        if m[D_QUEUED] and m[b + B_HIT + m[D_MODE]] >= 0:
            try_column(m, b, m[b + B_HIT + m[D_MODE]], 0, first)


@compiled
def activate(m, e, now):
    """The burst's row is open, and the burst is no longer in the window of its queue."""
    b = m[e + N_BANK]
    m[e + N_ORDER] = m[D_PROMOTED]
    m[D_PROMOTED] += 1
    m[b + B_ACTIVE] = e
    m[b + B_WANTS] = -1
    m[m[A_OPENED] + m[D_ACTIVE]] = e
    m[D_ACTIVE] += 1
    _opened(m, b, m[e + N_ROW], now + 1)


@compiled
def want_anew(m, b, now):
    """After RD or WR to a bank: which row command comes next."""
    want_row(m, b)
    if m[ROW_OK]:
        late = m[ROW_T] < NEVER and ready_at(m, m[ROW_B], m[ROW_C], now) > m[ROW_T]
        if late or m[ROW_B] == b:
            m[ROW_OK] = 0
        else:
            try_row(m, b, now)


@compiled
def mode_now(m):
    """The queue that is served if the queues are looked at now: 0 reads, 1 writes."""
    if m[D_MODE] == 0:
        return np.int64(m[D_WRITES] >= m[P_FROM] or m[D_READS] == 0)
    return np.int64(m[D_WRITES] > m[P_TO] or m[D_READS] == 0)


@compiled
def set_mode(m, mode):
    """Another queue is served: banks want other row commands."""
    if m[D_MODE] != mode:
        m[D_MODE] = mode
        m[COLUMN_OK] = m[ROW_OK] = 0
        for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
            want_row(m, m[at])
