"""DRAM lanes: the bursts that wait for a first command, as strands by bank; how they come in and leave."""

import numpy as np

from .compiled import compiled
from .dram_banks import next_hit, set_hit, try_column, try_row, want_row
from .dram_counts import leave_run
from .dram_state import *


@compiled
def _unlink(m, e):
    """Takes a strand out of its bank's list."""
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
        m[D_LONGER] = -1


@compiled
def advance_strand(m, e, count, distance):
    """The first `count` of more bursts of a strand leave it: over this distance."""
    m[e + N_COUNT] -= count
    m[e + N_BURST] += distance
    m[e + N_SEQ] += distance
    m[e + N_ARRIVE] = m[m[A_CAME] + (m[e + N_SEQ] & (m[S_RECENT] - 1))]
    m[e + N_SEEN] = 0


@compiled
def ahead_of(m, burst):
    """Bursts from this one to the next in its row."""
    return m[m[A_TURN] + (burst & (m[S_TURN] - 1)) * TURN_COLUMNS + T_AHEAD]


@compiled
def _new_strand(m):
    m[D_FREE] -= 1
    return m[m[A_FREE] + m[D_FREE]]


@compiled
def free_strand(m, e):
    """The place of a strand may be used again."""
    m[m[A_FREE] + m[D_FREE]] = e
    m[D_FREE] += 1


@compiled
def one_less(m, b):
    """One strand or opened burst of a bank is gone."""
    m[b + B_WORK] -= 1
    if m[b + B_WORK] == 0:
        m[D_BUSY] -= 1
        last = m[m[A_BUSY] + m[D_BUSY]]
        m[m[A_BUSY] + m[b + B_PLACE]] = last
        m[last + B_PLACE] = m[b + B_PLACE]


@compiled
def take_first(m, e):
    """Takes the first burst of the first strand of a bank out of its queue: it stands alone (returned)."""
    m[D_READS + m[e + N_WRITE]] -= 1
    m[D_BLOCKED] = 0
    if m[e + N_COUNT] == 1:
        _unlink(m, e)
        return e
    one = _new_strand(m)
    for k in range(ENTRY_COLUMNS):
        m[one + k] = m[e + k]
    m[one + N_COUNT] = 1
    advance_strand(m, e, 1, ahead_of(m, m[e + N_BURST]))
    m[m[e + N_BANK] + B_WORK] += 1
    return one


@compiled
def drop_strand(m, b, q, e):
    """A strand is empty."""
    if m[b + B_HIT + q] == e:
        set_hit(m, b, q, next_hit(m, m[e + N_NEXT], m[b + B_ROW]))
    _unlink(m, e)
    free_strand(m, e)
    one_less(m, b)


@compiled
def _locate(m, burst):
    """Bank and row of a burst."""
    if m[S_BITS]:
        b, row = m[A_BANK], np.int64(0)
        for at in range(m[A_FIELDS], m[A_FIELDS_END], FIELD_COLUMNS):
            value = (burst >> m[at]) & m[at + 1]
            b += value * m[at + 2]
            row += value * m[at + 3]
        return b, row
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
    return m[A_BANK] + bank * BANK_COLUMNS, row


@compiled
def _block_bank(m, burst):
    """The first bank of a burst's block, which D_BLOCK_ROW is the row of then."""
    block = burst & -m[S_BLOCK]
    if block != m[D_BLOCK]:
        m[D_BLOCK] = block
        m[D_BLOCK_BANK], m[D_BLOCK_ROW] = _locate(m, block)
    return m[D_BLOCK_BANK]


@compiled
def _place(m, burst):
    """Bank and row of a burst, as of the block that was asked for last."""
    if m[S_TURN] == 0:
        return _locate(m, burst)
    first = _block_bank(m, burst)
    return first + m[m[A_TURN] + (burst & (m[S_TURN] - 1)) * TURN_COLUMNS + T_BANK], m[D_BLOCK_ROW]


@compiled
def _follows(m, e, run, burst):
    """Whether a burst of a run, in the bank of strand e, makes that strand longer."""
    last = m[e + N_LAST]
    if m[S_TURN] == 0 or m[e + N_RUN] != run or (burst ^ last) >= m[S_BLOCK]:
        return False
    return last + ahead_of(m, last) == burst


@compiled
def _accept(m, runs, done, run):
    """Sends the next burst of a run. False: its queue is full."""
    q = runs[run * RUN_COLUMNS + R_WRITE]
    full = m[D_READS + q] >= m[P_READS + q]
    burst = runs[run * RUN_COLUMNS + R_FIRST] + runs[run * RUN_COLUMNS + R_SENT]
    b, row = _place(m, burst)
    number = m[D_SEQ]
    now = m[D_NOW]
    if m[D_WRITES] > 0:  # a write to the same place is queued: this read is forwarded, this write merged
        e = m[b + B_HEAD + 1]
        while e >= 0:
            if m[e + N_ROW] == row and m[e + N_BURST] <= burst and burst <= m[e + N_LAST]:
                if number < m[D_RECORDED]:
                    done[2 * number + 0] = now
                leave_run(m, runs, done, run, number, now + 1 - q)
                _count(m, runs, run, 1)
                return True
            e = m[e + N_NEXT]
        if full:
            return False
    if number < m[D_RECORDED]:
        done[2 * number + 0] = now
    m[m[A_CAME] + (number & (m[S_RECENT] - 1))] = now
    rank = m[b + B_RANK]
    if m[rank + K_WAITING] == 0:
        m[rank + K_SINCE] = now + 1
    m[rank + K_WAITING] += 1
    m[D_READS + q] += 1
    e = m[b + B_TAIL + q]
    if e >= 0 and _follows(m, e, run, burst):
        m[e + N_LAST] = burst
        m[e + N_COUNT] += 1
        _count(m, runs, run, 1)
        return True
    e = _new_strand(m)
    m[e + N_RUN] = run
    m[e + N_BURST] = m[e + N_LAST] = burst
    m[e + N_COUNT] = 1
    m[e + N_BANK] = b
    m[e + N_ROW] = row
    m[e + N_ARRIVE] = now
    m[e + N_WRITE] = q
    m[e + N_SEEN] = 0
    m[e + N_SEQ] = number
    _link(m, b, e, q)
    open_row = m[b + B_ROW]
    if open_row == row:
        if m[b + B_HIT + q] < 0:
            set_hit(m, b, q, e)
            if m[COLUMN_OK] and m[D_QUEUED] and q == m[D_MODE]:
                try_column(m, b, e, 0, now + 1)
    elif open_row >= 0 and m[b + B_MISS + q] < 0:
        m[b + B_MISS + q] = e
    if q == m[D_MODE]:
        before = m[b + B_WANTS]
        want_row(m, b)
        if m[ROW_OK] and m[b + B_WANTS] != before:
            if m[ROW_B] == b:
                m[ROW_OK] = 0
            else:
                try_row(m, b, now + 1)
    _count(m, runs, run, 1)
    return True


@compiled
def _count(m, runs, run, count):
    """Bursts of a run were sent."""
    runs[run * RUN_COLUMNS + R_SENT] += count
    m[D_SEQ] += count


@compiled
def part_old(m):
    """When a burst came is kept for the last S_RECENT of them: strands that began before half of these are parted."""
    if m[D_SEQ] & ((m[S_RECENT] >> 1) - 1) != 0:
        return
    for at in range(m[A_BUSY], m[A_BUSY] + m[D_BUSY]):
        for q in range(2):
            e = m[m[at] + B_HEAD + q]
            while e >= 0:
                if m[e + N_COUNT] > 1 and m[e + N_SEQ] < m[D_SEQ] - (m[S_RECENT] >> 1):
                    rest = _new_strand(m)
                    m[D_LONGER] = -1
                    for k in range(ENTRY_COLUMNS):
                        m[rest + k] = m[e + k]
                    m[e + N_COUNT], m[e + N_LAST] = 1, m[e + N_BURST]
                    m[rest + N_BACK], m[e + N_NEXT] = e, rest
                    after = m[rest + N_NEXT]
                    if after >= 0:
                        m[after + N_BACK] = rest
                    else:
                        m[m[at] + B_TAIL + q] = rest
                    advance_strand(m, rest, 1, ahead_of(m, m[e + N_BURST]))
                    m[m[at] + B_WORK] += 1
                e = m[e + N_NEXT]


@compiled
def _link(m, b, e, q):
    """Puts a strand at the end of its bank's list."""
    back = m[b + B_TAIL + q]
    m[e + N_NEXT] = -1
    m[e + N_BACK] = back
    if back >= 0:
        m[back + N_NEXT] = e
    else:
        m[b + B_HEAD + q] = e
    m[b + B_TAIL + q] = e
    if m[b + B_WORK] == 0:
        m[b + B_WANTS] = -1
        m[b + B_PLACE] = m[D_BUSY]
        m[m[A_BUSY] + m[D_BUSY]] = b
        m[D_BUSY] += 1
    m[b + B_WORK] += 1


@compiled
def extendable(m, runs, run, most):
    """How many of the next bursts of a run, at most `most`, only make strands longer that are queued."""
    q, turn = runs[run * RUN_COLUMNS + R_WRITE], m[S_TURN]
    if turn == 0 or m[D_READS + 1 - q] > 0:
        return np.int64(0)
    burst = runs[run * RUN_COLUMNS + R_FIRST] + runs[run * RUN_COLUMNS + R_SENT]
    into = burst & (m[S_BLOCK] - 1)
    known = m[D_LONGER] == burst - into
    back = m[m[A_TURN] + (burst & (turn - 1)) * TURN_COLUMNS + T_BACK]
    if not known and back > min(into, runs[run * RUN_COLUMNS + R_SENT]):
        return np.int64(0)
    most = min(most, m[S_BLOCK] - into, runs[run * RUN_COLUMNS + R_COUNT] - runs[run * RUN_COLUMNS + R_SENT])
    half = m[S_RECENT] >> 1
    most = min(most, half - (m[D_SEQ] & (half - 1)))  # not past the point where old strands are parted
    if known:
        return most
    first = _block_bank(m, burst)
    for i in range(min(most, turn)):
        place = m[A_TURN] + ((burst + i) & (turn - 1)) * TURN_COLUMNS
        back = m[place + T_BACK]
        if back <= i:
            continue
        if back > into + i:
            return np.int64(i)
        b = first + m[place + T_BANK]
        e = m[b + B_TAIL + q]
        if e < 0 or m[e + N_RUN] != run or m[e + N_LAST] != burst + i - back or (q == 1 and m[b + B_HEAD + 1] != e):
            return np.int64(i)
    if most >= turn:
        m[D_LONGER] = burst - into
    return most


@compiled
def extend(m, runs, done, run, count, t, step):
    """Sends that many, which are extendable: from tick t on, one every `step` ticks."""
    q, turn = runs[run * RUN_COLUMNS + R_WRITE], m[S_TURN]
    burst, number = runs[run * RUN_COLUMNS + R_FIRST] + runs[run * RUN_COLUMNS + R_SENT], m[D_SEQ]
    first = _block_bank(m, burst)
    for i in range(min(count, turn)):
        b = first + m[m[A_TURN] + ((burst + i) & (turn - 1)) * TURN_COLUMNS + T_BANK]
        e = m[b + B_TAIL + q]
        n = (count - i + turn - 1) >> m[S_SHIFT]
        m[e + N_COUNT] += n
        m[m[b + B_RANK] + K_WAITING] += n
        m[e + N_LAST] = max(m[e + N_LAST], burst + i + (n - 1) * turn)
    # When they came, in a ring; of many, only the last can be in the queue still.
    i, recent = max(0, count - m[P_READS + q]), m[S_RECENT]
    while i < count:
        at = (number + i) & (recent - 1)
        end = min(count, i + recent - at)
        at += m[A_CAME] - i
        for k in range(i, end):
            m[at + k] = t + k * step
        i = end
    for i in range(min(count, m[D_RECORDED])):
        done[2 * (number + i) + 0] = t + i * step
    m[D_READS + q] += count
    _count(m, runs, run, count)


@compiled
def next_run(m, run):
    """The run that is sent is sent wholly: this one is next (-1: none is there)."""
    m[D_RUN] = run
    m[D_LONGER] = -1


@compiled
def feed(m, runs, done):
    """Sends what is there and has room, in order. Returns the tick of the next one (NEVER: none, or no room)."""
    if m[D_BLOCKED]:
        return NEVER
    while m[D_RUN] >= 0:
        run = m[D_RUN]
        if runs[run * RUN_COLUMNS + R_AVAILABLE] > m[D_NOW]:
            return runs[run * RUN_COLUMNS + R_AVAILABLE]
        q = runs[run * RUN_COLUMNS + R_WRITE]
        after = runs[run * RUN_COLUMNS + R_NEXT]  # one of merged bursts is through when it is sent: in the other list
        while runs[run * RUN_COLUMNS + R_SENT] < runs[run * RUN_COLUMNS + R_COUNT]:
            free = m[P_READS + q] - m[D_READS + q]
            if (free <= 0 and m[D_WRITES] == 0) or not _accept(m, runs, done, run):
                m[D_BLOCKED] = 1
                return NEVER
            part_old(m)
            free = min(free - 1, runs[run * RUN_COLUMNS + R_COUNT] - runs[run * RUN_COLUMNS + R_SENT])
            if free > 4:
                count = extendable(m, runs, run, free)
                if count > 0:
                    extend(m, runs, done, run, count, m[D_NOW], 0)
                    part_old(m)
        next_run(m, after)
    return NEVER
