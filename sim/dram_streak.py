"""DRAM lanes: bursts of a run that go in order without a disturbance are served in one step."""

import numpy as np

from .compiled import compiled, whole
from .dram_banks import pass_age, want_anew
from .dram_counts import account, run_through
from .dram_queue import advance_strand, drop_strand, extend, extendable, next_run, part_old
from .dram_rows import rows_beside
from .dram_state import *


@compiled
def serve_streak(m, runs, done, t, horizon, row_t):
    """Serves bursts of one run in one step, from tick t to `horizon`, where one by one they would go in the same order.

    That is: they hit open rows; no other could come before or between them; one comes each `pace`; and no refresh or
    arrival comes in between. Row commands, the next of them at `row_t`, come beside them on a bus of their own, and end
    them where there is only one bus. Those that take their places in the queue must make strands longer, no more.
    Returns whether it did: then at least two.
    """
    q, e = m[D_MODE], m[COLUMN_E]
    pace, turn = m[S_PACE + q], m[S_TURN]
    beside = m[P_BUSES] > 1 and m[S_ORDERED] == 0
    if not beside:
        horizon = min(horizon, row_t)
    if pace == 0 or horizon < t + pace or m[D_READS + 1 - q] > 0 or m[D_HALF] >= 0:
        return False
    run, burst, number = m[e + N_RUN], m[e + N_BURST], m[e + N_SEQ]
    start = burst & (turn - 1)
    if m[S_ORDERED] and start > 0:
        return False
    count = min(m[S_BLOCK] - (burst & (m[S_BLOCK] - 1)), whole(horizon - t, pace) + 1)
    count = _before_opened(m, q, m[e + N_BANK], t, count)
    if count < 2:
        return False
    # Each burst that is served makes room for one that is sent.
    sent, sends = np.int64(0), m[D_BLOCKED] > 0
    to = m[D_RUN]
    same = False
    if sends:
        sent = extendable(m, runs, to, count)
        if sent == 0:
            return False
        rest = runs[to * RUN_COLUMNS + R_COUNT] - runs[to * RUN_COLUMNS + R_SENT]
        count = min(count, sent + np.int64(sent < rest))  # after its last one the next run may find room elsewhere
        following = runs[to * RUN_COLUMNS + R_FIRST] + runs[to * RUN_COLUMNS + R_SENT]
        same = to == run and following - burst > turn and (following ^ burst) < m[S_BLOCK]
        if m[S_ORDERED] and (same and following - burst < 2 * turn):
            return False
    count, banks = _in_order(m, q, run, burst, t, count, same)
    if m[S_ORDERED]:
        count &= -turn
    if count < 2 or not _undisturbed(m, q, number, banks, m[e + N_BANK]):
        return False
    taken = acts = np.int64(0)
    if beside and row_t < t + (count - 1) * pace:
        count, taken, acts = rows_beside(m, runs, done, to if sends else np.int64(-1), sent, t, count)
        if sends:
            sent = taken + extendable(m, runs, to, count + acts - taken)
    if sends:
        extend(m, runs, done, to, min(sent, count + acts) - taken, t + (taken - acts) * pace, pace)
        if runs[to * RUN_COLUMNS + R_SENT] == runs[to * RUN_COLUMNS + R_COUNT]:
            next_run(m, runs[to * RUN_COLUMNS + R_NEXT])
    _serve_in_order(m, runs, done, e, t, count)
    part_old(m)
    return True


@compiled
def _in_order(m, q, run, burst, t, count, same):
    """How many bursts of a run, at most `count`, are ready in order from tick t on; and over how many banks they go.

    With `same`, as many follow them into the queue.
    """
    turn, pace, c = m[S_TURN], m[S_PACE + q], RD + q
    start = burst & (turn - 1)
    first = m[m[COLUMN_E] + N_BANK] - m[m[A_TURN] + start * TURN_COLUMNS + T_BANK]
    banks = np.int64(0)
    for i in range(min(count, turn)):
        place = m[A_TURN] + ((start + i) & (turn - 1)) * TURN_COLUMNS
        if m[place + T_BACK] <= i:
            continue
        b = first + m[place + T_BANK]
        e = m[b + B_HIT + q]
        if e < 0 or m[e + N_BURST] != burst + i or m[e + N_RUN] != run:
            return min(count, i), banks
        miss = m[b + B_MISS + q]
        if miss >= 0 and m[miss + N_SEQ] < m[e + N_SEQ]:
            return min(count, i), banks
        slot = m[place + T_SLOT] if m[S_ORDERED] else i
        if max(m[b + c], m[m[b + B_GROUP] + c], m[m[b + B_SID] + c]) > t + slot * pace:
            return min(count, i), banks
        banks += 1
        if not same:
            rounds = whole(m[e + N_COUNT], m[S_EACH])
            if m[b + B_HEAD + q] == e and m[b + B_TAIL + q] == e:
                count = min(count, i + turn * rounds)
            elif m[S_ORDERED]:
                count = min(count, i + turn * (rounds - 1))
            else:  # with its last burst another may want a row command
                count = min(count, i + turn * (rounds - 1) + 1)
    return count, banks


@compiled
def _undisturbed(m, q, number, banks, b):
    """Whether no other queued burst is older than this one, and hits an open row (or, where `strict`, hits at all)."""
    if m[D_HITS_OPEN + q] == banks:
        return True
    if m[S_STRICT + q]:
        return False
    for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
        e = m[m[at] + B_HIT + q]
        if e >= 0 and m[e + N_SEQ] < number:
            return False
    return True


@compiled
def _before_opened(m, q, b, t, count):
    """How many of these come before any burst that a row was opened for can: it would go first."""
    pace = m[S_PACE + q]
    for at in range(m[A_OPENED], m[A_OPENED] + m[D_ACTIVE]):
        x = m[m[at] + N_BANK]
        if m[x + B_SID] != m[b + B_SID] and m[m[at] + N_WRITE] == q and m[S_CROSS + q] > pace:
            continue
        ready = ready_at(m, x, RD + m[m[at] + N_WRITE], t)
        if ready <= t + (count - 1) * pace:
            count = whole(ready - t + pace - 1, pace)
    return count


@compiled
def _serve_in_order(m, runs, done, e, t, count):
    """Serves that many bursts of a run in order, from the first of strand e on."""
    q, turn, shift = m[D_MODE], m[S_TURN], m[S_SHIFT]
    pace, run, burst, number = m[S_PACE + q], m[e + N_RUN], m[e + N_BURST], m[e + N_SEQ]
    last = t + (count - 1) * pace
    lag = np.int64(0) if q else m[P_READ]
    start = burst & (turn - 1)
    first = m[e + N_BANK] - m[m[A_TURN] + start * TURN_COLUMNS + T_BANK]
    if number < m[D_RECORDED]:
        for i in range(count):
            at = i
            if m[S_ORDERED]:
                at = (i & -turn) + m[m[A_TURN] + (i & (turn - 1)) * TURN_COLUMNS + T_PLACE]
            done[2 * (number + at) + 1] = t + i * pace + lag
    _account_in_order(m, q, first, start, t, count)
    oldest = m[D_OLDEST + q] == e
    p = m[A_POINTERS] + (RD + q) * LISTS
    dropped = np.int64(-1)
    for i in range(min(count, turn)):
        place = m[A_TURN] + ((start + i) & (turn - 1)) * TURN_COLUMNS
        if m[place + T_BACK] <= i:
            continue
        b = first + m[place + T_BANK]
        x = m[b + B_HIT + q]
        rounds = (count - i + turn - 1) >> shift
        n = rounds * m[S_EACH]
        m[D_HITS] += n - m[x + N_SEEN]
        if n == m[x + N_COUNT]:
            drop_strand(m, b, q, x)
            if m[b + B_HEAD + q] >= 0:  # with the last burst of all
                dropped = b
        else:
            advance_strand(m, x, n, rounds * turn)
        slot = (rounds - 1) * turn + (m[place + T_LAST_SLOT] if m[S_ORDERED] else i)
        raise_ticks(m, m[p + GROUP_RULES], m[p + BANK_RULES], m[b + B_GROUP], t + slot * pace)
        raise_ticks(m, m[p + BANK_RULES], m[p + WINDOW], b, t + slot * pace)
    if oldest:
        pass_age(m, q, first + m[m[A_TURN] + start * TURN_COLUMNS + T_BANK], burst, number, count)
    give_command_above(m, p, first, last)
    m[D_READS + q] -= count
    m[m[A_RANK] + K_WAITING] -= count
    m[D_BLOCKED] = 0
    m[D_STREAKS] += 1
    if m[P_CLOCKED]:
        m[D_CLOCK] = max(m[D_CLOCK], last + (m[P_CLOCK_WRITE] if q else m[P_CLOCK_READ]))
    run_through(m, runs, run, count, last + lag)
    m[D_NOW] = max(m[D_NOW], last)
    m[COLUMN_OK] = 0
    if dropped >= 0:
        want_anew(m, dropped, last)
    elif m[ROW_OK] and m[ROW_T] < NEVER and ready_at(m, m[ROW_B], m[ROW_C], m[D_NOW]) > m[ROW_T]:
        m[ROW_OK] = 0


@compiled
def _account_in_order(m, q, first, start, t, count):
    """`account` for that many bursts: after the first turn, which may take new rows, all turns are alike."""
    turn, pace, rank = m[S_TURN], m[S_PACE + q], m[A_RANK]
    gap = pace - m[P_BURST]
    b = first
    for i in range(min(count, turn)):
        at = m[A_TURN] + ((start + i) & (turn - 1)) * TURN_COLUMNS
        if m[S_ORDERED]:
            at = m[A_TURN] + m[at + T_PLACE] * TURN_COLUMNS
        b = first + m[at + T_BANK]
        if i == 0 or gap > 0:
            account(m, b, q, t + i * pace)
        else:
            m[D_DATA] += m[P_BURST]
            m[b + B_NEW] = USED
    rest = max(0, count - turn)
    m[D_DATA] += rest * m[P_BURST]
    if gap > 0 and rest > 0:
        m[LOST_OTHER] += rest * gap
        beside = (rest >> m[S_SHIFT]) * m[S_BESIDE]
        last = m[rank + K_GROUP]
        for i in range(rest & (turn - 1)):
            at = m[A_TURN] + ((start + i) & (turn - 1)) * TURN_COLUMNS
            b = first + m[at + T_BANK]
            beside += np.int64(m[b + B_GROUP] == last)
            last = m[b + B_GROUP]
        m[LOST_GROUP] += beside * gap
    if m[S_ORDERED]:
        at = m[A_TURN] + m[m[A_TURN] + (turn - 1) * TURN_COLUMNS + T_PLACE] * TURN_COLUMNS
    else:
        at = m[A_TURN] + ((start + count - 1) & (turn - 1)) * TURN_COLUMNS
    m[rank + K_GROUP] = m[first + m[at + T_BANK] + B_GROUP]
    m[rank + K_LAST] = t + (count - 1) * pace
