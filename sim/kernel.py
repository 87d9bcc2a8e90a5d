"""The machine of docs/model.md in Numba: the only place that computes time.

`advance`, on the int64 arrays that sim/run.py builds (columns.py), runs the machine until it ends, meets a mark or
needs a larger array. Nothing is allocated, raised or printed here: it returns a status and can be called again after
run.py has dealt with it.
"""

import numpy as np

from .basics import copy_chain, cut_chain, drop_top, push
from .columns import *
from .compiled import LINE, compiled, entry, pointer, soon
from .dram_state import D_NOW, HEADER
from .memory import enter, leave, look


@compiled
def _wake(s, e):
    if s.eng[e, E_STACKED] == 0 and s.eng[e, E_BUSY] == 0:
        s.eng[e, E_STACKED] = 1
        s.stack[s.g[G_STACK]] = e
        s.g[G_STACK] += 1


@compiled
def _met(s, row, edge, pred, done):
    """An edge of an instruction is met; the first edge in list order that is met last binds."""
    inst = s.inst
    ready = inst[row, I_READY]
    if done > ready or (done == ready and (inst[row, I_EDGE] < 0 or edge < inst[row, I_EDGE])):
        inst[row, I_READY] = done
        inst[row, I_EDGE] = edge
        inst[row, I_BIND] = pred


@compiled
def _finish(p, s, row, done):
    """An instruction is done at `done`: tell all that wait for it."""
    inst = s.inst
    inst[row, I_DONE] = done
    s.g[G_LEFT] -= 1
    b = inst[row, I_BLOCK]
    base = s.block[b, B_BASE]
    n = p.body_ptr[s.block[b, B_BODY]] + row - base
    if done > s.g[G_END] or (done == s.g[G_END] and (s.g[G_LAST] < 0 or row < s.g[G_LAST])):
        s.g[G_END] = done
        s.g[G_LAST] = row
    for x in range(p.succ_ptr[n], p.succ_ptr[n + 1]):
        to = base + p.succ[x, 0]
        _met(s, to, p.succ[x, 1], row, done)
        inst[to, I_PENDING] -= 1
        if inst[to, I_PENDING] == 0:
            _wake(s, p.instr[n - row + to, N_ENGINE])
    slot = p.instr[n, N_EXPORT]
    if slot >= 0 and b + 1 < s.g[G_BLOCKS]:
        body = s.block[b + 1, B_BODY]
        at = body * p.sizes[2] + slot
        for x in range(p.import_ptr[at], p.import_ptr[at + 1]):
            to = s.block[b + 1, B_BASE] + p.imports[x, 0]
            _met(s, to, p.imports[x, 1], row, done)
            inst[to, I_PENDING] -= 1
            if inst[to, I_PENDING] == 0:
                _wake(s, p.instr[p.body_ptr[body] + p.imports[x, 0], N_ENGINE])


@compiled
def _open_block(p, s):
    """Lay the next block's instructions out. False: the program has no more."""
    g, inst = s.g, s.inst
    if g[G_SEGMENT] == p.segments.shape[0]:
        return False
    seg = g[G_SEGMENT]
    b = g[G_BLOCKS]
    body = p.segments[seg, 0]
    base = g[G_ROWS]
    s.block[b, B_BODY] = body
    s.block[b, B_BASE] = base
    s.block[b, B_ITER] = g[G_ITER]
    s.block[b, B_START] = g[G_CLOCK]
    s.block[b, B_STATIC] = p.segments[seg, 2]
    s.block[b, B_SEGMENT] = seg
    first = p.body_ptr[body]
    count = p.body_ptr[body + 1] - first
    for i in range(count):
        row = base + i
        inst[row, I_READY] = 0
        inst[row, I_EDGE] = -1
        inst[row, I_BIND] = -1
        inst[row, I_START] = -1
        inst[row, I_DONE] = -1
        inst[row, I_BLOCK] = b
        pending = 0
        for d in range(p.dep_ptr[first + i], p.dep_ptr[first + i + 1]):
            if p.deps[d, 2] == 0:
                pending += 1
            elif b > 0:
                x = p.exporter[s.block[b - 1, B_BODY] * p.sizes[2] + p.deps[d, 0]]
                if x >= 0:
                    pred = s.block[b - 1, B_BASE] + x
                    if inst[pred, I_DONE] >= 0:
                        _met(s, row, d, pred, inst[pred, I_DONE])
                    else:
                        pending += 1
        inst[row, I_PENDING] = pending
    g[G_BLOCKS] = b + 1
    g[G_ROWS] = base + count
    g[G_CLOCK] += p.segments[seg, 3]
    g[G_ITER] += 1
    if g[G_ITER] >= p.segments[seg, 1]:
        g[G_SEGMENT] += 1
        g[G_ITER] = 0
    return True


@compiled
def _row_soon(table, row):
    """A row of a table will be needed soon."""
    width = table.shape[1]
    for k in range(0, width, LINE):
        soon(pointer(table), row * width + k)
    soon(pointer(table), row * width + width - 1)


@compiled
def _start_next(p, s, e):
    """Schedule the instruction at the head of an idle engine's queue, if all it waits for is known. Returns a
    status."""
    eng, inst = s.eng, s.inst
    engines = p.sizes[0]
    while True:
        b = eng[e, E_BLOCK]
        body = s.block[b, B_BODY]
        at = p.queue_ptr[body * engines + e] + eng[e, E_QUEUE]
        if at < p.queue_ptr[body * engines + e + 1]:
            break
        upcoming = s.g[G_SEGMENT] if b + 1 == s.g[G_BLOCKS] else s.block[b + 1, B_SEGMENT]
        if upcoming > p.engines[e, 5] or (b + 1 == s.g[G_BLOCKS] and not _open_block(p, s)):
            return DONE
        eng[e, E_BLOCK] = b + 1
        eng[e, E_QUEUE] = 0
    row = s.block[b, B_BASE] + p.queue[at]
    if inst[row, I_PENDING] > 0:
        return DONE
    n = p.body_ptr[body] + p.queue[at]
    hold = p.instr[n, N_FORM] == HOLD
    own = p.instr[n, N_CAUSE] if hold else p.engines[e, 4]
    free, ready, period = eng[e, E_FREE], inst[row, I_READY], p.engines[e, 0]
    base = max(free, ready)
    start = (base + period - 1) // period * period
    if s.block[b, B_STATIC]:
        start = s.block[b, B_START] + p.instr[n, N_START]
        if start < base or start % period != 0:
            s.g[G_ERROR_A] = row
            s.g[G_ERROR_B] = OFF_EDGE if start >= base else inst[row, I_BIND] if ready >= free else ENGINE_HELD
            return CONFLICT
    tag = b * p.sizes[3] + p.instr[n, N_GROUP]
    width = p.sizes[1] + 2
    if ready >= free and (inst[row, I_BIND] >= 0 or free == 0):
        eng[e, E_CHAIN] = row
        eng[e, E_CHAIN + 1] = tag
        for k in range(2, width):
            eng[e, E_CHAIN + k] = 0
    elif eng[e, E_CHAIN + 1] < tag:
        cut_chain(s.g, s.cut, eng, e, E_CHAIN, tag, width)
    eng[e, E_CHAIN + 2 + own] += start - base
    inst[row, I_START] = start
    if p.queue[at] == 0:
        s.g[G_MARK] = b
    if hold:
        eng[e, E_CHAIN + 2 + own] += p.instr[n, N_HOLD]
        eng[e, E_FREE] = start + p.instr[n, N_HOLD]
        eng[e, E_QUEUE] += 1
        inst[row, I_RELEASE] = eng[e, E_FREE]
        copy_chain(inst, row, I_CHAIN, eng, e, E_CHAIN, width)
        inst[row, I_CHAIN + 2 + own] += p.instr[n, N_LATENCY]
        _wake(s, e)
        _finish(p, s, row, eng[e, E_FREE] + p.instr[n, N_LATENCY])
    else:
        chunk = p.routes[p.instr[n, N_ROUTE], 0]
        eng[e, E_BUSY] = 1
        eng[e, E_OFFSET] = 0
        eng[e, E_ROW] = row
        eng[e, E_INSTR] = n
        eng[e, E_TOTAL] = p.instr[n, N_BYTES]
        eng[e, E_FULL] = chunk
        eng[e, E_ADDRESS] = p.instr[n, N_ADDRESS] + s.block[b, B_ITER] * p.instr[n, N_STEP]
        eng[e, E_TAG] = tag
        eng[e, E_HOP] = p.routes[p.instr[n, N_ROUTE], 1]
        eng[e, E_HOPS] = p.routes[p.instr[n, N_ROUTE], 2]
        eng[e, E_STATIC] = s.block[b, B_STATIC]
        inst[row, I_LEFT] = (p.instr[n, N_BYTES] + chunk - 1) // chunk
        push(s.heap, s.g[G_HEAP], start, (e << 44) | (eng[e, E_CHUNKS] << 4), -1)
        s.g[G_HEAP] += 1
    soon(pointer(p.succ), 2 * p.succ_ptr[n])
    if at + 1 < p.queue_ptr[body * engines + e + 1]:
        _row_soon(s.inst, s.block[b, B_BASE] + p.queue[at + 1])
        _row_soon(p.instr, p.body_ptr[body] + p.queue[at + 1])
        soon(pointer(p.succ_ptr), p.body_ptr[body] + p.queue[at + 1])
    return DONE


@compiled
def _claim(p, s, d, c, key, now):
    """Chunk c claims the station of its hop at `now`; `key` is that of its next event. False: a static chunk found its
    lane busy."""
    g, hops, lane, chunk, heap, cut = s.g, p.hops, s.lane, s.chunk, s.heap, s.cut
    hop = chunk[c, C_HOP]
    if d is not None:  # noqa: SIM102  (without DRAM lanes, d has no type that could be passed on)
        if hops[hop, H_DRAM] >= 0:
            enter(p, s, d, c, key, now)
            return True
    lanes = hops[hop, H_LANES]
    which = hops[hop, H_LANE]
    if lanes > 1:
        which += chunk[c, C_ADDRESS] // hops[hop, H_INTERLEAVE] % lanes
    width = lane.shape[1] - L_CHAIN
    begin = now
    if lane[which, L_FREE] > now:
        if chunk[c, C_STATIC]:
            g[G_ERROR_A] = chunk[c, C_ROW]
            g[G_ERROR_B] = LANE_BUSY - hop
            g[G_ERROR_C] = lane[which, L_ROW]
            return False
        begin = lane[which, L_FREE]
        copy_chain(chunk, c, C_CHAIN, lane, which, L_CHAIN, width)
        if chunk[c, C_CHAIN + 1] < chunk[c, C_TAG]:
            cut_chain(g, cut, chunk, c, C_CHAIN, chunk[c, C_TAG], width)
    den = hops[hop, H_DEN]
    service = (chunk[c, C_SIZE] * hops[hop, H_NUM] + den - 1) // den
    chunk[c, C_CHAIN + 2 + hops[hop, H_CAUSE]] += service
    lane[which, L_FREE] = begin + service
    lane[which, L_BUSY] += service
    lane[which, L_ROW] = chunk[c, C_ROW]
    copy_chain(lane, which, L_CHAIN, chunk, c, C_CHAIN, width)
    chunk[c, C_CHAIN + 2 + hops[hop, H_WAIT]] += hops[hop, H_LATENCY]
    chunk[c, C_HOP] = hop + 1
    chunk[c, C_HOPS] -= 1
    n = g[G_HEAP]
    g[G_HEAP] = n + 1
    push(heap, n, begin + service + hops[hop, H_LATENCY], key, c)
    return True


@compiled
def _wants(eng, e):
    """Size of the chunk that a busy engine issues next."""
    return min(eng[e, E_FULL], eng[e, E_TOTAL] - eng[e, E_OFFSET])


@compiled
def _new_chunk(g, eng, chunk, free, cut, e):
    """The engine's next chunk, with the engine's chain, in a free row."""
    width = chunk.shape[1] - C_CHAIN
    size = _wants(eng, e)
    if eng[e, E_CHAIN + 1] < eng[e, E_TAG]:
        cut_chain(g, cut, eng, e, E_CHAIN, eng[e, E_TAG], width)
    g[G_FREE] -= 1
    c = free[g[G_FREE]]
    chunk[c, C_SIZE] = size
    chunk[c, C_ADDRESS] = eng[e, E_ADDRESS] + eng[e, E_OFFSET]
    chunk[c, C_ROW] = eng[e, E_ROW]
    chunk[c, C_INSTR] = eng[e, E_INSTR]
    chunk[c, C_TAG] = eng[e, E_TAG]
    chunk[c, C_HOP] = eng[e, E_HOP]
    chunk[c, C_HOPS] = eng[e, E_HOPS]
    chunk[c, C_STATIC] = eng[e, E_STATIC]
    copy_chain(chunk, c, C_CHAIN, eng, e, E_CHAIN, width)
    eng[e, E_CHUNKS] += 1
    eng[e, E_FLIGHT] += size
    eng[e, E_OFFSET] += size
    return c


@compiled
def _arrived(p, s, c, e, now):
    """Chunk c has passed its route. True: a chunk of its engine was waiting for that, and is to be issued now."""
    g, eng, chunk = s.g, s.eng, s.chunk
    row = chunk[c, C_ROW]
    eng[e, E_FLIGHT] -= chunk[c, C_SIZE]
    counter = p.instr[chunk[c, C_INSTR], N_COUNT]
    if counter >= 0:
        s.counted[counter] += chunk[c, C_SIZE]
    s.inst[row, I_LEFT] -= 1
    width = chunk.shape[1] - C_CHAIN
    if s.inst[row, I_LEFT] == 0:
        copy_chain(s.inst, row, I_CHAIN, chunk, c, C_CHAIN, width)
        _finish(p, s, row, now)
    s.free[g[G_FREE]] = c
    g[G_FREE] += 1
    if eng[e, E_WAITING] == 0 or eng[e, E_FLIGHT] + _wants(eng, e) > eng[e, E_WINDOW]:
        return False
    eng[e, E_WAITING] = 0
    copy_chain(eng, e, E_CHAIN, chunk, c, C_CHAIN, width)
    return True


@compiled
def _expect(p, s, d, key, c):
    """What the next event deals with, in a machine with DRAM lanes, is fetched while this one is dealt with."""
    if c >= 0:
        _row_soon(s.inst, s.chunk[c, C_ROW])
        soon(pointer(p.instr), s.chunk[c, C_INSTR] * p.instr.shape[1] + N_COUNT)
    elif key < 0:
        for at in range(D_NOW, HEADER, LINE):
            soon(pointer(d.ram[-1 - key]), at)


@compiled
def _run(p, s, d, budget, marks):
    g, eng, chunk, free, heap, inst, cut = s.g, s.eng, s.chunk, s.free, s.heap, s.inst, s.cut
    ports = p.engines
    most, engines = p.sizes[4], p.sizes[0]
    within = np.int64(0)  # chunks that a DRAM lane may let go in one event
    while True:
        if d is not None:
            within = chunk.shape[0] - g[G_FREE]
        room = g[G_FREE] > most and g[G_HEAP] + 2 * most + engines + 2 + within < heap.shape[0]
        if not room or g[G_CUTS] + 2 * most + 4 + within >= cut.shape[0]:
            return GROW
        if g[G_STACK] > 0:
            g[G_STACK] -= 1
            e = s.stack[g[G_STACK]]
            eng[e, E_STACKED] = 0
            if eng[e, E_BUSY] == 0 and _start_next(p, s, e) != DONE:
                return CONFLICT
            continue
        if marks and g[G_MARK] >= 0:
            return MARK
        if g[G_HEAP] == 0:
            return DONE if g[G_LEFT] == 0 else DEADLOCK
        if g[G_EVENTS] >= budget:
            return BUDGET
        g[G_EVENTS] += 1
        now, key, c = heap[0, 0], heap[0, 1], heap[0, 2]
        g[G_NOW] = now
        g[G_HEAP] -= 1
        drop_top(heap, g[G_HEAP])
        if d is not None:
            if g[G_HEAP] > 0:
                _expect(p, s, d, heap[0, 1], heap[0, 2])
            if key < 0:
                look(p, s, d, -1 - key, now)
                continue
            if c >= 0 and p.hops[chunk[c, C_HOP] - 1, H_DRAM] >= 0:
                leave(d, p.hops[chunk[c, C_HOP] - 1, H_DRAM], now)
        e = key >> 44
        if c >= 0 and chunk[c, C_HOPS] > 0:
            if not _claim(p, s, d, c, key + 1, now):
                return CONFLICT
            continue
        issue = _arrived(p, s, c, e, now) if c >= 0 else True
        while issue:  # the engine's chunks that are wanted now, until its window is full
            if eng[e, E_WINDOW] > 0 and eng[e, E_FLIGHT] + _wants(eng, e) > eng[e, E_WINDOW]:
                eng[e, E_WAITING] = 1
                break
            key = (e << 44) | (eng[e, E_CHUNKS] << 4)
            c = _new_chunk(g, eng, chunk, free, cut, e)
            if not _claim(p, s, d, c, key + 1, now):
                return CONFLICT
            wanted = now
            if ports[e, 2] > 0:
                port = (chunk[c, C_SIZE] * ports[e, 2] + ports[e, 3] - 1) // ports[e, 3]
                eng[e, E_CHAIN + 2 + ports[e, 4]] += port
                wanted += port
            if eng[e, E_OFFSET] == eng[e, E_TOTAL]:
                eng[e, E_FREE] = wanted
                eng[e, E_BUSY] = 0
                eng[e, E_QUEUE] += 1
                inst[eng[e, E_ROW], I_RELEASE] = wanted
                _wake(s, e)
                issue = False
            elif wanted > now:
                push(heap, g[G_HEAP], wanted, (e << 44) | (eng[e, E_CHUNKS] << 4), -1)
                g[G_HEAP] += 1
                issue = False


@entry
def advance(stamp):
    """Run until the program ends (DONE), a block of a repeating segment begins (MARK, if `marks`), an array must GROW,
    or nothing more can happen. `d`: the DRAM lanes, or None."""

    def advance(p, s, d, budget, marks):
        return _run(p, s, d, budget, marks) if stamp else BUDGET

    return advance


@entry
def open_first(stamp):
    """Lay the first block's instructions out."""

    def open_first(p, s):
        return _open_block(p, s) if stamp else False

    return open_first
