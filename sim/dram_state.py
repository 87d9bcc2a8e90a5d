"""A DRAM lane as one row of int64: its columns, its commands, and the first legal ticks that they leave behind.

A lane is the parameters of its kind, its numbers, then areas at the offsets A_*. Banks and strands are known by their
offset in the row. Nothing is allocated or raised here.
"""

import numpy as np

from .compiled import compiled

ACT, PRE, PREA, RD, WR, REFA, REFB = range(7)
NEVER = np.int64(2**61)
CLOSED, ACTIVATING = -1, -2

# Parameters: the columns of `Drams.params`.
(
    P_RANKS, P_SIDS, P_GROUPS, P_BANKS, P_ROWS, P_COLUMNS, P_BYTES, P_TICK, P_BURST, P_BUSES, P_EDGES, P_READ, P_READS,
    P_WRITES, P_FROM, P_TO, P_REFRESH, P_INTERVAL, P_BUSY, P_SPLIT, P_CLOCKED, P_CLOCK_READ, P_CLOCK_WRITE, P_HASH,
) = range(24)  # fmt: skip
# Numbers of a lane. COLUMN_*, ROW_*, MAINT_*: the next command of each kind, as last found; *_OK: still true. D_DATA:
# ticks in which data buses carried data; LOST_*, D_IDLE: in which they did not, between two bursts, by cause. D_LONGER:
# the block whose bursts, where they are sent next, are known only to make strands longer (-1: none). S_*: what follows
# from the parameters.
(
    D_NOW, D_MODE, D_DUE, D_REF_BANK, D_REF_RANK, D_CLOCK, D_SYNC, D_HALF, D_DEADLINE, D_READS, D_WRITES, D_ACTIVE,
    D_SEQ, D_PROMOTED, D_FREE, D_MHEAD, D_MCOUNT, D_BUSY, D_RUN, D_RUN_LAST,
    D_HITS, D_MISSES, D_CONFLICTS, D_LAST, D_QUEUED, D_STREAKS, D_BLOCKED, D_HITS_OPEN, D_HITS_OPEN_W,
    D_OLDEST, D_OLDEST_W,
    D_DATA, LOST_REFRESH, LOST_MISS, LOST_CONFLICT, LOST_TURN, LOST_OTHER, LOST_GROUP, D_IDLE, D_REF_SINCE, D_REF_LAST,
    D_THROUGH, D_THROUGH_LAST, D_RECORDED, D_BLOCK, D_BLOCK_BANK, D_BLOCK_ROW, D_LONGER,
    S_REFA, S_REFB, S_ALONE, S_BITS, S_RECENT, S_BLOCK, S_TURN, S_SHIFT, S_EACH, S_BESIDE, S_ORDERED, S_PACE, S_PACE_W,
    S_STRICT, S_STRICT_W, S_CROSS, S_CROSS_W,
    COLUMN_OK, COLUMN_T, COLUMN_E, COLUMN_ACTIVE, COLUMN_ARRIVE, COLUMN_SEQ,
    ROW_OK, ROW_T, ROW_B, ROW_C, ROW_SEQ, MAINT_T, MAINT_C,
    A_POINTERS, A_FIELDS, A_FIELDS_END, A_TURN, A_RANK, A_SID, A_GROUP, A_BANK, A_ENTRY, A_FREE, A_BUSY, A_MAINT,
    A_ALLOWED, A_OPENED, A_CAME,
) = range(24, 24 + 93)  # fmt: skip
HEADER = 120
# Rules of a command: where its lists begin, and end, in this order. A rule is (command after, ticks), in the window
# list (command after, ticks, commands back). What holds for a channel, a rank or a stack id is kept by stack id.
OWN_SID, NEAR_SID, NEAR_RANK, GROUP_RULES, BANK_RULES, WINDOW = range(6)
LISTS = 7
# A node's first columns are the first legal ticks of the seven commands.
NODE = 8
# Of a rank: its last four ACT, then its last four REFB, newest first; and of its data bus: the first and last RD or WR
# (-1: none), whether that was WR and in which group, how many bursts wait, and since when any does;
# its first stack id.
K_PAST = 0
K_FIRST, K_LAST, K_WRITE, K_GROUP, K_WAITING, K_SINCE, K_SIDS = range(8, 15)
RANK_COLUMNS = 15
B_ROW, B_ACTIVE, B_WORK, B_PLACE, B_GROUP, B_SID, B_RANK, B_NUMBER = range(7, 15)
B_HEAD, B_TAIL, B_HIT, B_MISS = 15, 17, 19, 21  # strands; a column for reads, one for writes
B_WANTS, B_SEQ = 23, 24  # the row command for the queue that is served (-1: none), and of which burst
# Whether the open row (or the next) is new: 0 it has had RD or WR, 1 none was open before, 2 another had to be closed;
# until when a refresh of this bank goes on.
B_NEW, B_REFRESHED = 25, 26
BANK_COLUMNS = 27
USED, MISSED, REPLACED = 0, 1, 2
# Strands: bursts of a run that follow each other in a row of a bank. N_BURST, N_ARRIVE, N_SEEN, N_SEQ: its first burst,
# when that came, whether it had a command, its number; N_LAST: the last burst. N_BACK and N_NEXT run through a bank.
N_RUN, N_BURST, N_LAST, N_COUNT, N_BANK, N_ROW, N_ARRIVE, N_WRITE, N_SEEN, N_SEQ, N_ORDER, N_NEXT, N_BACK = range(13)
ENTRY_COLUMNS = 13
FIELD_COLUMNS = 4  # field, shift (-1: no power of two), size, worth; with S_BITS: shift, mask, worth in banks, in rows
# A turn of consecutive bursts over the banks of a block (dram_pattern.py). By place: the bank, counted from the first;
# distances to the next burst in this bank and from the last; the slots in which it, and the last of its bank, is
# served; and by slot: the place that is served then.
T_BANK, T_AHEAD, T_BACK, T_SLOT, T_LAST_SLOT, T_PLACE = range(6)
TURN_COLUMNS = 6
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
OLD = 1 << 31  # more bursts than ever come while one waits


@compiled
def raise_ticks(m, at, end, node, now):
    """The commands of a list of rules come no sooner in this node."""
    while at < end:
        ready = now + m[at + 1]
        if m[node + m[at]] < ready:
            m[node + m[at]] = ready
        at += 2


@compiled
def give_command_above(m, p, b, now):
    """A command is given to this bank: what that means for stack ids."""
    sid = m[b + B_SID]
    raise_ticks(m, m[p + OWN_SID], m[p + NEAR_SID], sid, now)
    if m[S_ALONE]:
        return
    first = m[m[b + B_RANK] + K_SIDS]
    end = first + m[P_SIDS] * NODE
    for other in range(first, end, NODE):
        if other != sid:
            raise_ticks(m, m[p + NEAR_SID], m[p + NEAR_RANK], other, now)
    if m[P_RANKS] > 1:
        for other in range(m[A_SID], m[A_GROUP], NODE):
            if other < first or other >= end:
                raise_ticks(m, m[p + NEAR_RANK], m[p + GROUP_RULES], other, now)


@compiled
def give_command(m, b, command, now):
    """A command is given to a bank (PREA and REFA: to the rank of that bank)."""
    p = m[A_POINTERS] + command * LISTS
    raise_ticks(m, m[p + GROUP_RULES], m[p + BANK_RULES], m[b + B_GROUP], now)
    raise_ticks(m, m[p + BANK_RULES], m[p + WINDOW], b, now)
    give_command_above(m, p, b, now)
    if command in (ACT, REFB):
        rank = m[b + B_RANK]
        past = rank + K_PAST + (4 if command == REFB else 0)
        m[past + 3] = m[past + 2]
        m[past + 2] = m[past + 1]
        m[past + 1] = m[past]
        m[past] = now
        for at in range(m[p + WINDOW], m[p + WINDOW + 1], 3):
            before = m[past + m[at + 2] - 1]
            if before >= 0:
                first = m[rank + K_SIDS]
                for sid in range(first, first + NODE * m[P_SIDS], NODE):
                    m[sid + m[at]] = max(m[sid + m[at]], before + m[at + 1])


@compiled
def ready_at(m, b, command, first):
    """The first legal tick of a command to this bank, `first` or later, on its clock edge."""
    t = max(m[b + command], m[m[b + B_GROUP] + command], m[m[b + B_SID] + command], first)
    if m[P_EDGES] and command != PRE:
        t |= 1
    return t
