"""A DRAM channel tick by tick and burst by burst: the oracle of the DRAM lanes (docs/model.md, section 10).

Every tick looks at every queued burst and asks the rules anew; nothing is predicted, cached or skipped. It is compiled
only because the streams of the golden file are long.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stallscope.compiler.program import DRAM_PARAMS, Drams

Ints = NDArray[np.int64]

ACT, PRE, PREA, RD, WR, REFA, REFB = range(7)
ACT2, SYNC, NONE = 7, 8, -1
CHANNEL, RANK, SID, GROUP, BANK = range(5)
CLOSED, ACTIVATING = -1, -2  # a bank's row, when none is open
# A queued burst.
R_ID, R_BURST, R_BANK, R_ROW, R_ARRIVE, R_WRITE, R_SEEN = range(7)
(
    RANKS, SIDS, GROUPS, BANKS, ROWS, COLUMNS, BURST_BYTES, TICK_FS, BURST_TICKS, BUSES, EDGES, READ_TICKS, READ_QUEUE,
    WRITE_QUEUE, DRAIN_FROM, DRAIN_TO, REFRESH, REFRESH_TICKS, REFRESH_BUSY, SPLIT, CLOCKED, CLOCK_READ, CLOCK_WRITE,
    HASH,
) = range(len(DRAM_PARAMS))  # fmt: skip
# Numbers of the channel.
(
    NOW, WRITING, NEXT_REFRESH, REFRESH_BANK, PENDING_SETS, CLOCK_ENDS, SYNCED_ID, SYNCED_FROM, HITS, MISSES, CONFLICTS,
    DATA,
) = range(12)  # fmt: skip
# Queues: rows of (length) in `length`.
READS, WRITES, ACTIVE, HALF, MAINTENANCE = range(5)
# Of each data bus: its last RD or WR (tick, bank group, whether it was WR; -1: none), and since then: ticks without
# data in which a burst waited, and in which none did; whether a refresh waited in any tick.
LAST, LAST_GROUP, LAST_WRITE, LOST, UNUSED, REFRESHING = range(6)
# Causes of lost ticks; IDLE is none.
BY_REFRESH, BY_MISS, BY_CONFLICT, BY_TURN, BY_GROUP, BY_OTHER, IDLE = range(7)
NEW, REPLACED = 1, 2  # a bank's row had no RD or WR yet, and none, or another, was open before


class Channel(NamedTuple):
    """The whole state.

    `queue[q, i]` is a burst, `ready[level, node, command]` the first legal tick, `past` a command's last four ticks.
    `lost` are ticks by cause; `new` and `refreshed` (until when a refresh goes on) are those of banks.
    """

    p: Ints
    rules: Ints
    fields: Ints
    g: Ints
    row: Ints
    ready: Ints
    past: Ints
    queue: Ints
    length: Ints
    deadline: Ints
    allowed: Ints
    bus: Ints
    lost: Ints
    new: Ints
    refreshed: Ints


def new_channel(drams: Drams, which: int = 0) -> Channel:
    """An idle channel: all banks closed, at tick 0, the first refresh one interval away."""
    p = drams.params[which]
    banks = int(p[RANKS] * p[SIDS] * p[GROUPS] * p[BANKS])
    g = np.zeros(12, np.int64)
    g[NEXT_REFRESH], g[SYNCED_ID] = p[REFRESH_TICKS], -1
    return Channel(
        p.copy(),
        drams.rules[drams.rule_ptr[which] : drams.rule_ptr[which + 1]].copy(),
        drams.fields[drams.field_ptr[which] : drams.field_ptr[which + 1]].copy(),
        g,
        np.full(banks, CLOSED, np.int64),
        np.zeros((5, banks, 7), np.int64),
        np.full((5, banks, 7, 4), -1, np.int64),
        np.zeros((5, max(int(p[READ_QUEUE]), int(p[WRITE_QUEUE]), banks, 256) + 1, 7), np.int64),
        np.zeros(5, np.int64),
        np.zeros(banks, np.int64),
        np.zeros(int(p[SIDS]), np.int64),
        np.tile(np.array([-1, -1, -1, 0, 0, 0], np.int64), (int(p[RANKS]), 1)),
        np.zeros(7, np.int64),
        np.full(banks, NEW, np.int64),
        np.zeros(banks, np.int64),
    )


@njit(cache=True)
def locate(c: Any, burst: int) -> Any:
    """Bank (numbered over the channel) and row of a burst."""
    at = np.zeros(6, np.int64)
    for k in range(c.fields.shape[0]):
        at[c.fields[k, 0]] += burst % c.fields[k, 1] * c.fields[k, 2]
        burst //= c.fields[k, 1]
    if c.p[HASH]:
        shift = 0
        for level in range(4):
            size = c.p[level]
            at[level] ^= (at[5] >> shift) & (size - 1)
            while size > 1:
                size >>= 1
                shift += 1
        at[4] ^= at[5] >> shift
    return ((at[0] * c.p[SIDS] + at[1]) * c.p[GROUPS] + at[2]) * c.p[BANKS] + at[3], at[4]


@njit(cache=True)
def node(c: Any, level: int, bank: int) -> int:
    """The node of a level that a bank is in."""
    if level == CHANNEL:
        return 0
    if level == RANK:
        return bank // (c.p[SIDS] * c.p[GROUPS] * c.p[BANKS])
    if level == SID:
        return bank // (c.p[GROUPS] * c.p[BANKS])
    if level == GROUP:
        return bank // c.p[BANKS]
    return bank


@njit(cache=True)
def legal(c: Any, command: int, bank: int) -> bool:
    """Whether the rules allow the command now."""
    if command > REFB:
        return True
    deepest = RANK if command in (PREA, REFA) else BANK
    for level in range(deepest + 1):  # noqa: SIM110  (compiled)
        if c.g[NOW] < c.ready[level, node(c, level, bank), command]:
            return False
    return True


@njit(cache=True)
def issue(c: Any, command: int, bank: int) -> None:
    """The command is given: later ones wait as the rules say."""
    if command > REFB:
        return
    deepest = RANK if command in (PREA, REFA) else BANK
    for level in range(deepest + 1):
        n = node(c, level, bank)
        for k in range(3, 0, -1):
            c.past[level, n, command, k] = c.past[level, n, command, k - 1]
        c.past[level, n, command, 0] = c.g[NOW]
    for k in range(c.rules.shape[0]):
        before, after, level, ticks, back, sibling = c.rules[k]
        if before != command or level > deepest:
            continue
        n = node(c, level, bank)
        if sibling:
            parent = node(c, level - 1, bank)
            for other in range(c.ready.shape[1]):
                first = other * (c.row.shape[0] // nodes(c, level))
                if other < nodes(c, level) and other != n and node(c, level - 1, first) == parent:
                    c.ready[level, other, after] = max(c.ready[level, other, after], c.g[NOW] + ticks)
        elif c.past[level, n, command, back - 1] >= 0:
            c.ready[level, n, after] = max(c.ready[level, n, after], c.past[level, n, command, back - 1] + ticks)


@njit(cache=True)
def nodes(c: Any, level: int) -> int:
    """How many nodes a level has."""
    n = 1
    for k in range(level):
        n *= c.p[k]
    return n


@njit(cache=True)
def put(c: Any, q: int, burst: Any) -> None:
    c.queue[q, c.length[q]] = burst
    c.length[q] += 1


@njit(cache=True)
def take(c: Any, q: int, i: int) -> None:
    for k in range(i, c.length[q] - 1):
        c.queue[q, k] = c.queue[q, k + 1]
    c.length[q] -= 1


@njit(cache=True)
def send(c: Any, number: int, burst: int, write: int, done: Any) -> bool:
    """Offers a burst. False: its queue is full. `done[number]` is set for a burst that never gets a command."""
    for i in range(c.length[WRITES]):
        if c.queue[WRITES, i, R_BURST] == burst:
            done[number] = c.g[NOW] if write else c.g[NOW] + 1  # merged; forwarded
            return True
    q = WRITES if write else READS
    if c.length[q] == c.p[WRITE_QUEUE if write else READ_QUEUE]:
        return False
    bank, row = locate(c, burst)
    c.queue[q, c.length[q]] = np.array([number, burst, bank, row, c.g[NOW], write, 0])
    c.length[q] += 1
    return True


@njit(cache=True)
def wanted(c: Any, r: Any) -> int:
    """The next command of a burst."""
    if c.row[r[R_BANK]] == CLOSED:
        return ACT
    if c.row[r[R_BANK]] == ACTIVATING:
        return ACT2
    if c.row[r[R_BANK]] == r[R_ROW]:
        return WR if r[R_WRITE] else RD
    return PRE


@njit(cache=True)
def has_active(c: Any, bank: int) -> bool:
    for i in range(c.length[ACTIVE]):  # noqa: SIM110  (compiled)
        if c.queue[ACTIVE, i, R_BANK] == bank:
            return True
    return False


@njit(cache=True)
def allowed_now(c: Any, command: int, bank: int, column_bus: int) -> bool:
    """Buses, clock edges, and what a split activation forbids. `column_bus`: 1 column, 0 row, -1 the only bus."""
    if column_bus >= 0 and (command in (RD, WR)) != (column_bus == 1):
        return False
    if c.p[EDGES] and c.g[NOW] % 2 == 0 and command not in (PRE, PREA):
        return False
    if c.p[SPLIT] and c.length[HALF]:
        if command == ACT:
            return False
        if command in (PRE, REFB) and c.row[bank] == ACTIVATING:
            return False
        if command in (PREA, REFA):
            for i in range(c.length[HALF]):
                if node(c, RANK, c.queue[HALF, i, R_BANK]) == node(c, RANK, bank):
                    return False
    return command != ACT2


@njit(cache=True)
def oldest(c: Any, q: int, column_bus: int) -> int:
    """First ready, first come: the oldest burst whose next command may be given now (-1: none)."""
    best = -1
    for i in range(c.length[q]):
        r = c.queue[q, i]
        command = wanted(c, r)
        if not allowed_now(c, command, r[R_BANK], column_bus) or not legal(c, command, r[R_BANK]):
            continue
        if q != ACTIVE and command == PRE:
            spared = has_active(c, r[R_BANK])
            for k in range(c.length[q]):  # a hit that came no later keeps the row open
                s = c.queue[q, k]
                spared |= s[R_BANK] == r[R_BANK] and s[R_ROW] == c.row[r[R_BANK]] and s[R_ARRIVE] <= r[R_ARRIVE]
            if spared:
                continue
        if best < 0 or r[R_ARRIVE] < c.queue[q, best, R_ARRIVE]:
            best = i
    return best


@njit(cache=True)
def maintenance(c: Any, column_bus: int) -> int:
    """The command that the first refresh waiting may give now (NONE: none)."""
    if c.length[MAINTENANCE] == 0:
        return NONE
    bank, last = c.queue[MAINTENANCE, 0, R_BANK], c.queue[MAINTENANCE, 0, R_ROW]
    command = last
    if last == REFB:
        if c.row[bank] != CLOSED:
            command = PRE
    else:
        for b in range(c.row.shape[0]):
            if node(c, RANK, b) == node(c, RANK, bank) and c.row[b] != CLOSED:
                command = PREA
    if not allowed_now(c, command, bank, column_bus) or not legal(c, command, bank):
        return NONE
    if command == PRE and has_active(c, bank):
        return NONE
    if command == PREA:
        for i in range(c.length[ACTIVE]):
            if node(c, RANK, c.queue[ACTIVE, i, R_BANK]) == node(c, RANK, bank):
                return NONE
    return command


@njit(cache=True)
def refresh(c: Any) -> None:
    """Puts the refreshes that are due in the maintenance queue."""
    now, banks = c.g[NOW], c.row.shape[0]
    if c.p[REFRESH] in (1, 2) and now == c.g[NEXT_REFRESH]:
        c.g[NEXT_REFRESH] += c.p[REFRESH_TICKS]
        if c.p[REFRESH] == 1:
            for rank in range(c.p[RANKS]):
                put(c, MAINTENANCE, np.array([-1, -1, rank * (banks // c.p[RANKS]), REFA, now, 0, 1]))
        else:
            put(c, MAINTENANCE, np.array([-1, -1, c.g[REFRESH_BANK], REFB, now, 0, 1]))
            c.g[REFRESH_BANK] = (c.g[REFRESH_BANK] + 1) % banks
    if c.p[REFRESH] == 3:
        # The same bank of every rank, one a tick; a set of banks that is through waits for its last one.
        per_sid = c.p[GROUPS] * c.p[BANKS]
        at, rank = c.g[REFRESH_BANK], c.g[PENDING_SETS]
        if rank == 0:
            if now < c.g[NEXT_REFRESH]:
                return
            if now < c.allowed[at // per_sid]:
                c.g[NEXT_REFRESH] = now + 1
                return
            c.g[NEXT_REFRESH] += c.p[REFRESH_TICKS]
        put(c, MAINTENANCE, np.array([-1, -1, rank * (banks // c.p[RANKS]) + at, REFB, now, 0, 1]))
        c.g[PENDING_SETS] = (rank + 1) % c.p[RANKS]
        if c.g[PENDING_SETS] == 0:
            if at % per_sid == per_sid - 1:
                c.allowed[at // per_sid] = now + c.p[REFRESH_BUSY]
            c.g[REFRESH_BANK] = (at + 1) % (per_sid * c.p[SIDS])


@njit(cache=True)
def refresh_lasts(c: Any, command: int) -> int:
    """Ticks from a refresh of a bank to ACT there."""
    longest = 0
    for before, after, _, ticks, back, sibling in c.rules:
        if before == command and after == ACT and back == 1 and not sibling:
            longest = max(longest, ticks)
    return longest


@njit(cache=True)
def drain(c: Any) -> int:
    """The queue to serve: writes from many to few of them, or when there is no read."""
    if not c.g[WRITING]:
        if c.length[WRITES] >= c.p[DRAIN_FROM] or c.length[READS] == 0:
            c.g[WRITING] = 1
    elif c.length[WRITES] <= c.p[DRAIN_TO] and c.length[READS] > 0:
        c.g[WRITING] = 0
    return WRITES if c.g[WRITING] else READS


@njit(cache=True)
def count(c: Any, q: int, i: int, command: int) -> None:
    if c.queue[q, i, R_SEEN] == 0:
        c.queue[q, i, R_SEEN] = 1
        c.g[HITS if command in (RD, WR) else CONFLICTS if command == PRE else MISSES] += 1


@njit(cache=True)
def cause(c: Any, bank: int, write: int) -> int:
    """Why the data bus carried nothing before this RD or WR, while it could have."""
    bus = c.bus[node(c, RANK, bank)]
    if bus[REFRESHING] or c.refreshed[bank] > bus[LAST]:
        return BY_REFRESH
    if bus[LAST_WRITE] != write:
        return BY_TURN
    if c.new[bank] == REPLACED:
        return BY_CONFLICT
    if c.new[bank] == NEW:
        return BY_MISS
    return BY_GROUP if bus[LAST_GROUP] == node(c, GROUP, bank) else BY_OTHER


@njit(cache=True)
def account(c: Any, bank: int, write: int) -> None:
    """RD or WR is given: the ticks before it that were lost have their cause."""
    bus = c.bus[node(c, RANK, bank)]
    c.g[DATA] += c.p[BURST_TICKS]
    c.lost[cause(c, bank, write)] += bus[LOST]
    c.lost[IDLE] += bus[UNUSED]
    bus[:] = np.array([c.g[NOW], node(c, GROUP, bank), write, 0, 0, 0])
    c.new[bank] = 0


@njit(cache=True)
def watch(c: Any, refreshing: bool) -> None:
    """The end of a tick: what each data bus did in it, since its first RD or WR."""
    for rank in range(c.p[RANKS]):
        bus = c.bus[rank]
        if bus[LAST] < 0 or bus[LAST] == c.g[NOW]:
            continue
        bus[REFRESHING] |= refreshing
        if c.g[NOW] >= bus[LAST] + c.p[BURST_TICKS]:
            waits = False
            for q in (READS, WRITES, ACTIVE, HALF):
                for i in range(c.length[q]):
                    waits |= node(c, RANK, c.queue[q, i, R_BANK]) == rank
            bus[LOST if waits else UNUSED] += 1


@njit(cache=True)
def give(c: Any, q: int, i: int, done: Any) -> None:
    """Gives a burst's next command."""
    r = c.queue[q, i].copy()
    command, bank = wanted(c, r), r[R_BANK]
    count(c, q, i, command)
    r[R_SEEN] = 1
    issue(c, command, bank)
    if command == PRE:
        c.row[bank] = CLOSED
        c.new[bank] = REPLACED
    elif command == ACT:
        take(c, q, i)
        if c.p[SPLIT]:
            c.row[bank] = ACTIVATING
            c.deadline[bank] = c.g[NOW] + c.p[SPLIT]
            put(c, HALF, r)
        else:
            c.row[bank] = r[R_ROW]
            put(c, ACTIVE, r)
    else:
        take(c, q, i)
        account(c, bank, r[R_WRITE])
        done[r[R_ID]] = c.g[NOW] if r[R_WRITE] else c.g[NOW] + c.p[READ_TICKS]
        if c.p[CLOCKED]:
            c.g[CLOCK_ENDS] = max(c.g[CLOCK_ENDS], c.g[NOW] + c.p[CLOCK_WRITE if r[R_WRITE] else CLOCK_READ])


@njit(cache=True)
def second_half(c: Any) -> None:
    """ACT-2 for the split activation that must come first."""
    best = 0
    for i in range(1, c.length[HALF]):
        if c.deadline[c.queue[HALF, i, R_BANK]] < c.deadline[c.queue[HALF, best, R_BANK]]:
            best = i
    r = c.queue[HALF, best].copy()
    take(c, HALF, best)
    c.row[r[R_BANK]] = r[R_ROW]
    put(c, ACTIVE, r)


@njit(cache=True)
def urgent(c: Any, until: int) -> bool:
    for i in range(c.length[HALF]):  # noqa: SIM110  (compiled)
        if c.deadline[c.queue[HALF, i, R_BANK]] <= until:
            return True
    return False


@njit(cache=True)
def one_command(c: Any, column_bus: int, done: Any) -> None:
    """At most one command: bursts whose row was opened for them, then refresh, then, if none waits, the queue."""
    q, i = ACTIVE, -1
    if column_bus != 0:
        i = oldest(c, ACTIVE, column_bus)
    if i < 0:
        command = maintenance(c, column_bus)
        if command != NONE:
            bank = c.queue[MAINTENANCE, 0, R_BANK]
            issue(c, command, bank)
            for b in range(c.row.shape[0]):
                of_rank = command in (PREA, REFA) and node(c, RANK, b) == node(c, RANK, bank)
                if b == bank or of_rank:
                    c.new[b] = NEW
                    if command in (PRE, PREA):
                        c.row[b] = CLOSED
                    else:
                        c.refreshed[b] = c.g[NOW] + refresh_lasts(c, command)
            if command in (REFA, REFB):
                take(c, MAINTENANCE, 0)
            return
        if c.length[MAINTENANCE] == 0:
            q = drain(c)
            i = oldest(c, q, column_bus)
    if i < 0:
        if c.length[HALF]:
            second_half(c)
        return
    r = c.queue[q, i]
    if c.p[CLOCKED] and wanted(c, r) in (RD, WR) and c.g[NOW] >= c.g[CLOCK_ENDS]:
        if urgent(c, c.g[NOW] + 1):
            second_half(c)
        else:
            c.g[SYNCED_ID], c.g[SYNCED_FROM] = r[R_ID], q
        return
    give(c, q, i, done)


@njit(cache=True)
def tick(c: Any, done: Any) -> None:
    """One tick. `done[number]` receives the tick of a read's last beat, or of a write's command."""
    c.g[NOW] += 1
    refresh(c)
    refreshing = c.length[MAINTENANCE] > 0
    if c.g[SYNCED_ID] >= 0:  # the command that the data clock was started for
        q = c.g[SYNCED_FROM]
        for i in range(c.length[q]):
            if c.queue[q, i, R_ID] == c.g[SYNCED_ID]:
                give(c, q, i, done)
                break
        c.g[SYNCED_ID] = -1
    elif c.length[HALF] and urgent(c, c.g[NOW]):
        second_half(c)
    elif c.p[BUSES] == 2:
        one_command(c, 1, done)
        one_command(c, 0, done)
    else:
        one_command(c, -1, done)
    watch(c, refreshing)


@njit(cache=True)
def idle(c: Any, until: int, done: Any) -> None:
    """Ticks in which nothing comes."""
    while c.g[NOW] < until:
        tick(c, done)


@njit(cache=True)
def run(c: Any, bursts: Any, writes: Any, available: Any, accepted: Any, done: Any) -> None:
    """Offers a stream in order, each burst from the tick when it is available, until all are done."""
    n, i = len(bursts), 0
    while i < n or c.length[READS] + c.length[WRITES] + c.length[ACTIVE] + c.length[HALF] > 0:
        while i < n and available[i] <= c.g[NOW] and send(c, i, bursts[i], writes[i], done):
            accepted[i] = c.g[NOW]
            i += 1
        tick(c, done)
