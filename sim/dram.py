"""DRAM lanes in Numba: a controller and its banks, from command to command (docs/model.md, section 10).

A lane keeps, for every bank and what lies above it, the first legal tick of each command, and for every bank the oldest
burst of each kind; so the next command is found without a look at the ticks between, or at any other burst. What was
found stays found while nothing changes it. tests/naive_dram.py looks at every burst in every tick, and must agree.

The ways in are `send`, `run_lane`, `busy` and `least_left`; from Python `serve` and `drain`.
"""

import numpy as np

from .compiled import compiled, entry, pointer
from .dram_banks import activate, find_column, find_row, mode_now, pass_age, row_closed, set_mode, want_anew
from .dram_counts import account, leave_run
from .dram_queue import advance_strand, ahead_of, drop_strand, feed, free_strand, one_less
from .dram_rows import give_row
from .dram_state import *
from .dram_streak import serve_streak


@compiled
def _find_maintenance(m, first):
    """When the first refresh that waits may give its next command, and which."""
    b, last = m[m[A_MAINT] + 2 * m[D_MHEAD]], m[m[A_MAINT] + 2 * m[D_MHEAD] + 1]
    command, t = last, first
    if last == REFB:
        if m[b + B_ROW] != CLOSED:
            command = PRE
            if m[b + B_ACTIVE] >= 0 or m[b + B_ROW] == ACTIVATING:
                t = NEVER
        t = ready_at(m, b, command, t)
    else:
        per_rank = m[P_SIDS] * m[P_GROUPS] * m[P_BANKS]
        for x in range(b, b + per_rank * BANK_COLUMNS, BANK_COLUMNS):
            if m[x + B_ROW] != CLOSED:
                command = PREA
                if m[x + B_ACTIVE] >= 0 or m[x + B_ROW] == ACTIVATING:
                    t = NEVER
        t = max(t, m[m[b + B_SID] + command])
        if m[P_EDGES] and command == REFA:
            t |= 1
    m[MAINT_T], m[MAINT_C] = t, command


@compiled
def _maintain(m, now):
    """Gives the command that `_find_maintenance` found."""
    command = m[MAINT_C]
    b = m[m[A_MAINT] + 2 * m[D_MHEAD]]
    give_command(m, b, command, now)
    m[COLUMN_OK] = m[ROW_OK] = 0
    end = b + BANK_COLUMNS
    if command in (PREA, REFA):
        end = b + m[P_SIDS] * m[P_GROUPS] * m[P_BANKS] * BANK_COLUMNS
    for x in range(b, end, BANK_COLUMNS):
        m[x + B_NEW] = MISSED
        if command in (PRE, PREA):
            row_closed(m, x)
        else:
            m[x + B_REFRESHED] = now + m[S_REFA if command == REFA else S_REFB]
    if command in (REFA, REFB):
        m[D_REF_LAST] = now
        m[D_MHEAD] = (m[D_MHEAD] + 1) % MAINTENANCE_ROOM
        m[D_MCOUNT] -= 1


@compiled
def _column(m, runs, done, now):
    """Gives the RD or WR that `find_column` found."""
    e, active = m[COLUMN_E], m[COLUMN_ACTIVE]
    b, q = m[e + N_BANK], m[e + N_WRITE]
    run, number = m[e + N_RUN], m[e + N_SEQ]
    if active:
        m[b + B_ACTIVE] = -1
        m[D_ACTIVE] -= 1
        at, end = m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]
        while m[at] != e:
            at += 1
        while at < end:
            m[at] = m[at + 1]
            at += 1
        free_strand(m, e)
        one_less(m, b)
    else:
        m[D_HITS] += 1 - m[e + N_SEEN]
        m[D_READS + q] -= 1
        m[D_BLOCKED] = 0
        burst, oldest = m[e + N_BURST], m[D_OLDEST + q] == e
        if m[e + N_COUNT] > 1:
            advance_strand(m, e, 1, ahead_of(m, burst))
        else:
            drop_strand(m, b, q, e)
        if oldest:
            pass_age(m, q, b, burst, number, 1)
    give_command(m, b, RD + q, now)
    account(m, b, q, now)
    m[m[b + B_RANK] + K_WAITING] -= 1
    t = now
    if q == 0:
        t += m[P_READ]
    if m[P_CLOCKED]:
        m[D_CLOCK] = max(m[D_CLOCK], now + (m[P_CLOCK_WRITE] if q else m[P_CLOCK_READ]))
    leave_run(m, runs, done, run, number, t)
    m[COLUMN_OK] = 0
    want_anew(m, b, now)


@compiled
def _due(m):
    """Tick of the next refresh to be queued."""
    if m[P_REFRESH] == 0:
        return NEVER
    if m[P_REFRESH] == 3 and m[D_REF_RANK] == 0:
        return max(m[D_DUE], m[m[A_ALLOWED] + m[D_REF_BANK] // (m[P_GROUPS] * m[P_BANKS])], m[D_NOW] + 1)
    return m[D_DUE]


@compiled
def _put_maintenance(m, bank, command):
    at = m[A_MAINT] + 2 * ((m[D_MHEAD] + m[D_MCOUNT]) % MAINTENANCE_ROOM)
    m[at], m[at + 1] = m[A_BANK] + bank * BANK_COLUMNS, command
    m[D_MCOUNT] += 1


@compiled
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


@compiled
def _come_due(m, due, queued, mode):
    """A refresh is queued before any other command: the lane stands at the tick before."""
    if due > m[D_NOW] + 1 and queued:
        set_mode(m, mode)
    _refresh(m, due)
    m[D_NOW] = due - 1


@compiled
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
        set_mode(m, mode_now(m))
        find_column(m, first, True)
        find_row(m, first)
        row_t = m[ROW_T]
    else:
        find_column(m, first, False)
        _find_maintenance(m, first)
        row_t = m[MAINT_T]
    t = min(m[COLUMN_T], row_t)
    if min(due, t) > until:
        set_mode(m, before)  # no tick has passed in which the queues were looked at
        return False
    if due <= t:
        if due == first:
            set_mode(m, before)
        _come_due(m, due, queued, m[D_MODE])
        return True
    m[D_NOW] = t
    if m[COLUMN_T] == t:
        if not queued or m[COLUMN_ACTIVE] or not serve_streak(m, runs, done, t, min(until, due - 1), row_t):
            _column(m, runs, done, t)
        t = m[D_NOW]
        if queued:
            set_mode(m, mode_now(m))
            find_row(m, t)
            row_t = m[ROW_T]
        else:
            _find_maintenance(m, t)
            row_t = m[MAINT_T]
    if row_t == t:
        if queued:
            give_row(m, t)
        else:
            _maintain(m, t)
    return True


@compiled
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
        set_mode(m, mode_now(m))
        find_column(m, first, True)
        find_row(m, first)
    else:
        find_column(m, first, False)
        m[ROW_T], m[ROW_OK] = NEVER, 0
        _find_maintenance(m, first)
    t = min(m[COLUMN_T], m[ROW_T], m[MAINT_T])
    half = m[D_HALF]
    urgent = half >= 0 and m[D_DEADLINE] <= first
    second = urgent or (half >= 0 and t > first)
    if second:
        t = first
    if min(due, t) > until:
        set_mode(m, before)
        return False
    if due <= t:
        mode = m[D_MODE]
        set_mode(m, before)
        _come_due(m, due, queued, mode)
        return True
    column = m[COLUMN_T] == t and not second
    active = column and m[COLUMN_ACTIVE] == 1
    if urgent or (active and t == first):
        set_mode(m, before)  # the queues were not looked at
    alone = column and queued and not active and (not m[P_CLOCKED] or t < m[D_CLOCK])
    if alone and serve_streak(m, runs, done, t, min(until, due - 1), m[ROW_T] - 1):
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
        activate(m, half, t)
    elif column:
        _column(m, runs, done, t)
    elif queued:
        give_row(m, t)
    else:
        _maintain(m, t)
    return True


@compiled
def _idle(m, until):
    """No command until tick `until`: the lane stands there."""
    if until > m[D_NOW]:
        if m[D_MCOUNT] == 0:
            set_mode(m, mode_now(m))
        m[D_NOW] = until


@compiled
def run_lane(m, runs, done, until):
    """Runs a lane until tick `until`, that tick included; runs are sent as they come and as there is room."""
    while True:
        arrival = feed(m, runs, done)
        if _step(m, runs, done, min(until, arrival)):
            continue
        if arrival > until:
            return
        _idle(m, arrival)


@entry
def serve(stamp):
    """`run_lane` for Python; `done` takes down when bursts were accepted and done, as far as it has rows."""

    def serve(lane, runs, done, until):
        lane[D_RECORDED] = done.shape[0] if stamp else 0
        run_lane(pointer(lane), pointer(runs), pointer(done), until)

    return serve


@entry
def send(stamp):
    """A run of `count` bursts (at least 1) from number `first` comes at tick t, behind those that came before.

    The lane must not have been served beyond t. The run takes the row `run` of `runs`, which the caller keeps until it
    is through. The runs that are through stand, in this order, from D_THROUGH on, linked by R_NEXT; who has looked sets
    D_THROUGH to -1. A run stands there from its last RD or WR on, and its last read is done later: R_DONE says when.
    """

    def send(m, runs, t, run, first, count, write):
        runs[run, R_FIRST], runs[run, R_COUNT], runs[run, R_WRITE], runs[run, R_AVAILABLE] = first, count, write, t
        runs[run, R_SENT], runs[run, R_LEFT], runs[run, R_DONE], runs[run, R_NEXT] = 0, count, 0, -1 if stamp else 0
        if m[D_RUN] < 0:
            m[D_RUN] = run
        else:
            runs[m[D_RUN_LAST], R_NEXT] = run
        m[D_RUN_LAST] = run

    return send


@compiled
def busy(m):
    """Whether a lane has bursts that are not through."""
    return m[D_RUN] >= 0 or m[D_READS] + m[D_WRITES] + m[D_ACTIVE] > 0 or m[D_HALF] >= 0


@compiled
def least_left(m, runs):
    """The least of the bursts that the runs in a busy lane still have, at least 1."""
    if m[D_HALF] >= 0:
        return np.int64(1)
    least, run = NEVER, m[D_RUN]
    while run >= 0:
        least = min(least, runs[run * RUN_COLUMNS + R_LEFT])
        run = runs[run * RUN_COLUMNS + R_NEXT]
    for at in range(m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]):
        least = min(least, runs[m[m[at] + N_RUN] * RUN_COLUMNS + R_LEFT])
    for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
        e = m[m[at] + B_HEAD]
        while e >= 0:
            least = min(least, runs[m[e + N_RUN] * RUN_COLUMNS + R_LEFT])
            e = m[e + N_NEXT]
    return least


@compiled
def _drain(m, runs, done):
    while busy(m):
        arrival = feed(m, runs, done)
        if not _step(m, runs, done, arrival) and arrival < NEVER:
            _idle(m, arrival)


@entry
def drain(stamp):
    """Runs a lane until all its bursts are through."""

    def drain(lane, runs, done):
        lane[D_RECORDED] = done.shape[0] if stamp else 0
        _drain(pointer(lane), pointer(runs), pointer(done))

    return drain
