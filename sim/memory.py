"""DRAM lanes in the machine (docs/model.md, section 10): chunks come to a lane, its bursts are served, chunks go on.

A lane is served at *wake events*, just often enough that a chunk's next event is known before its time; a chunk that
comes is only put on the lane's list. So what a lane does never depends on when it is looked at.
"""

from .basics import copy_chain, cut_chain, push
from .columns import *
from .compiled import compiled, pointer
from .dram import busy, least_left, run_lane, send
from .dram_state import D_THROUGH, P_BURST, P_RANKS, R_DATA, R_DONE, R_NEXT, R_WRITE


@compiled
def scatter(turn):
    """By how many lanes a turn over all of them is shifted: streams that start a turn apart do not meet in one lane."""
    return turn * 40503 >> 8 & 0xFFFF


@compiled
def enter(p, s, d, c, key, now):
    """Chunk c comes to the DRAM station of its hop at `now`; `key` is that of its next event."""
    hop = s.chunk[c, C_HOP]
    k, lanes, interleave = p.hops[hop, H_DRAM], p.hops[hop, H_LANES], p.hops[hop, H_INTERLEAVE]
    tick, burst = d.stations[k, K_TICK], d.stations[k, K_BURST]
    piece, inside = s.chunk[c, C_ADDRESS] // interleave, s.chunk[c, C_ADDRESS] % interleave
    turn = piece // lanes
    x = d.stations[k, K_FIRST] + (piece + scatter(turn)) % lanes
    at = turn * interleave + inside  # the lane's own address
    first = at // burst
    count = (at + s.chunk[c, C_SIZE] - 1) // burst - first + 1
    write = p.instr[s.chunk[c, C_INSTR], N_WRITE]
    t = (now + tick - 1) // tick
    send(d.ram[x], d.runs, t, c, first, count, write)
    d.watch[x, W_WRITES] += write
    d.visit[c, V_KEY], d.visit[c, V_SINCE] = key, now
    if d.present[k, 0] == 0:
        d.present[k, 1] = now
    d.present[k, 0] += 1
    s.chunk[c, C_HOP] = hop + 1
    s.chunk[c, C_HOPS] -= 1
    # A write that joins a queued one is done in the tick in which it comes, one sooner than by any command.
    _wake(s, d, x, t + _ahead(d, x, count) - write)


@compiled
def leave(d, k, now):
    """A chunk has left a DRAM station, and the latency behind it."""
    d.present[k, 0] -= 1
    if d.present[k, 0] == 0:
        d.present[k, 2] += now - d.present[k, 1]


@compiled
def look(p, s, d, x, now):
    """A wake event of lane x: serve it, unless it is one that an earlier one has made needless."""
    watch = d.watch
    t = now // d.stations[watch[x, W_STATION], K_TICK]
    if t != watch[x, W_WAKES]:
        return
    watch[x, W_WAKES] = 0
    run_lane(pointer(d.ram[x]), pointer(d.runs), pointer(d.record), t)
    _let_go(p, s, d, x)
    if busy(d.ram[x]):
        _wake(s, d, x, t + _ahead(d, x, least_left(pointer(d.ram[x]), pointer(d.runs))))


@compiled
def _ahead(d, x, left):
    """Ticks that the lane may be left alone, with so many bursts left of each chunk that is in it."""
    if d.watch[x, W_WRITES] > 0:
        return d.stations[d.watch[x, W_STATION], K_WRITES]
    m = d.ram[x]
    return d.stations[d.watch[x, W_STATION], K_READS] + (left - 1) // m[P_RANKS] * m[P_BURST]


@compiled
def _wake(s, d, x, t):
    """See to it that lane x is served by tick t."""
    watch = d.watch
    if watch[x, W_WAKES] == 0 or t < watch[x, W_WAKES]:
        watch[x, W_WAKES] = t
        push(s.heap, s.g[G_HEAP], t * d.stations[watch[x, W_STATION], K_TICK], -1 - x, -1)
        s.g[G_HEAP] += 1


@compiled
def _let_go(p, s, d, x):
    """The chunks whose bursts are all through have a next event."""
    m = d.ram[x]
    c = m[D_THROUGH]
    while c >= 0:
        after = d.runs[c, R_NEXT]
        _pass_on(p, s, d, x, c)
        c = after
    m[D_THROUGH] = -1


@compiled
def _pass_on(p, s, d, x, c):
    """Charge a chunk's time in the lane, since it came or the last chunk left, and set its next event."""
    lane, chunk, watch, visit, runs = s.lane, s.chunk, d.watch, d.visit, d.runs
    hop = chunk[c, C_HOP] - 1
    k = p.hops[hop, H_DRAM]
    tick, cause, lost = d.stations[k, K_TICK], p.hops[hop, H_CAUSE], d.stations[k, K_LOST]
    width = lane.shape[1] - L_CHAIN
    which = watch[x, W_LANE]
    done = runs[c, R_DONE] * tick
    since = visit[c, V_SINCE]
    if since < lane[which, L_FREE] <= done:
        since = lane[which, L_FREE]
        copy_chain(chunk, c, C_CHAIN, lane, which, L_CHAIN, width)
        if chunk[c, C_CHAIN + 1] < chunk[c, C_TAG]:
            cut_chain(s.g, s.cut, chunk, c, C_CHAIN, chunk[c, C_TAG], width)
    left = done - since
    for i in range(COUNTED):
        part = min(left, (runs[c, R_DATA + i] - watch[x, W_SEEN + i]) * tick)
        left -= part
        chunk[c, C_CHAIN + 2 + (lost + i - 1 if 0 < i < COUNTED - 1 else cause)] += part
    chunk[c, C_CHAIN + 2 + p.hops[hop, H_WAIT]] += left
    if done >= lane[which, L_FREE]:
        lane[which, L_FREE] = done
        lane[which, L_ROW] = chunk[c, C_ROW]
        copy_chain(lane, which, L_CHAIN, chunk, c, C_CHAIN, width)
        for i in range(COUNTED):
            watch[x, W_SEEN + i] = runs[c, R_DATA + i]
    watch[x, W_WRITES] -= runs[c, R_WRITE]
    chunk[c, C_CHAIN + 2 + p.hops[hop, H_WAIT]] += p.hops[hop, H_LATENCY]
    push(s.heap, s.g[G_HEAP], done + p.hops[hop, H_LATENCY], visit[c, V_KEY], c)
    s.g[G_HEAP] += 1
