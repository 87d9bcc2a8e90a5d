"""DRAM lanes: row commands of queued bursts, alone and beside a streak."""

import numpy as np

from .compiled import compiled, whole
from .dram_banks import activate, find_row, row_closed
from .dram_queue import extend, extendable, take_first
from .dram_state import *


@compiled
def give_row(m, now):
    """Gives the ACT or PRE that `find_row` found."""
    b, command, q = m[ROW_B], m[ROW_C], m[D_MODE]
    give_command(m, b, command, now)
    m[ROW_OK] = 0
    if m[COLUMN_OK] and m[COLUMN_T] < NEVER:
        x = m[m[COLUMN_E] + N_BANK]
        if x == b or ready_at(m, x, RD + m[m[COLUMN_E] + N_WRITE], now) > m[COLUMN_T]:
            m[COLUMN_OK] = 0
    if command == PRE:
        e = m[b + B_MISS + q]
        if m[e + N_SEEN] == 0:
            m[e + N_SEEN] = 1
            m[D_CONFLICTS] += 1
        m[b + B_NEW] = REPLACED
        row_closed(m, b)
        return
    e = take_first(m, m[b + B_HEAD + q])
    if m[e + N_SEEN] == 0:
        m[e + N_SEEN] = 1
        m[D_MISSES] += 1
    if m[P_SPLIT]:
        m[b + B_ROW] = ACTIVATING
        m[b + B_WANTS] = -1
        m[D_HALF] = e
        m[D_DEADLINE] = now + m[P_SPLIT]
    else:
        activate(m, e, now)


@compiled
def rows_beside(m, runs, done, to, sent, t, count):
    """Gives the row commands that come while `count` bursts are served from tick t on, before the last of them.

    Returns how many bursts come before any for which a row was opened here; how many took places in the queue, of run
    `to` (-1: none wait) and at most `sent`; and the ACT given.
    """
    q = m[D_MODE]
    pace = m[S_PACE + q]
    taken = acts = np.int64(0)
    first = t
    while True:
        find_row(m, first)
        now = m[ROW_T]
        if now >= t + (count - 1) * pace:
            return count, taken, acts
        b, opens = m[ROW_B], m[ROW_C] == ACT
        if opens and to >= 0:  # ACT makes room too
            served = whole(now - t, pace) + 1
            if served + acts >= sent:
                return served, taken, acts
            extend(m, runs, done, to, served + acts - taken, t + (taken - acts) * pace, pace)
            extend(m, runs, done, to, 1, now, 0)
            acts += 1
            taken = served + acts
        m[D_NOW] = now
        give_row(m, now)
        first = now + 1
        if opens:
            count = min(count, whole(ready_at(m, b, RD + q, first) - t + pace - 1, pace))
            if to >= 0:
                rest = runs[to * RUN_COLUMNS + R_COUNT] - runs[to * RUN_COLUMNS + R_SENT]
                more = extendable(m, runs, to, sent - taken)
                count = min(count, taken + more + np.int64(more < rest) - acts)
                sent = taken + more
