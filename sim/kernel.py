"""The machine of docs/model.md in Numba: the only place that computes time.

Three entry points, all on int64 arrays that sim/run.py builds: `advance` runs the machine until it ends, meets a mark
or needs
a larger array; `account` charges every engine's time to causes; `walk` follows the critical path. Nothing is
allocated, raised or printed here: `advance` returns a status and can be called again after run.py has dealt with it.

State lives in two-dimensional arrays, one row per engine, lane, chunk, instruction or cut; the columns are named below.
A chain is three columns wide or more: origin, tag, then one value per cause. An origin >= 0 is an instruction's row, an
origin < 0 is the cut in row `-2 - origin`; -1 is no origin.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

# No reference counts (_nrt): nothing here allocates, and counting them costs two thirds of the time. C rules for
# division by zero: rates are checked before.
_compiled = njit(cache=True, error_model="numpy", _nrt=False)  # type: ignore[call-overload,unused-ignore]

# Status of `advance`.
DONE, MARK, GROW, DEADLOCK, BUDGET, CONFLICT = 0, 1, 2, 3, 4, 5

# Why a static instruction is in CONFLICT, in G_ERROR_B: the row that it waits for (>= 0), or one of these (LANE_BUSY -
# hop).
ENGINE_HELD, OFF_EDGE, LANE_BUSY = -1, -2, -3

# Engine rows.
E_FREE, E_BLOCK, E_QUEUE, E_BUSY, E_OFFSET, E_WAITING, E_FLIGHT, E_CHUNKS, E_STACKED, E_WINDOW = range(10)
E_ROW, E_INSTR, E_TOTAL, E_FULL, E_ADDRESS, E_TAG, E_HOP, E_HOPS, E_STATIC, E_CHAIN = range(10, 20)  # its transfer
# Lane rows.
L_FREE, L_BUSY, L_ROW, L_CHAIN = range(4)
# Chunk rows.
C_SIZE, C_ADDRESS, C_ROW, C_INSTR, C_TAG, C_HOP, C_HOPS, C_STATIC, C_CHAIN = range(9)
# Instruction rows.
I_PENDING, I_READY, I_EDGE, I_BIND, I_START, I_RELEASE, I_DONE, I_LEFT, I_BLOCK, I_CHAIN = range(10)
# Block rows.
B_BODY, B_BASE, B_ITER, B_START, B_STATIC, B_SEGMENT = range(6)
BLOCK_COLUMNS = 6
# Scalars.
(
    G_HEAP, G_FREE, G_BLOCKS, G_ROWS, G_CUTS, G_STACK, G_SEGMENT, G_ITER, G_CLOCK, G_EVENTS, G_LEFT, G_MARK,
    G_ERROR_A, G_ERROR_B, G_ERROR_C, G_END, G_LAST, G_NOW,
) = range(18)  # fmt: skip
SCALARS = 18

HOLD, WAR, ORDER = 0, 1, 2
NEVER = np.int64(2**62)


class Prog(NamedTuple):
    """The program, read only: bodies laid end to end, edges and successors in CSR form."""

    engines: np.ndarray  # rows: period, window, port_num, port_den, port_cause, last segment with an instruction
    hops: (
        np.ndarray
    )  # rows: first lane, lanes, interleave, num, den, cause of the station; latency behind it, its cause
    routes: np.ndarray  # rows: chunk bytes, first hop, hops
    instr: np.ndarray  # rows: the columns N_* below
    body_ptr: np.ndarray
    queue_ptr: np.ndarray  # [body * engines + engine]
    queue: np.ndarray
    dep_ptr: np.ndarray
    deps: np.ndarray  # rows: pred, type, slot
    succ_ptr: np.ndarray
    succ: np.ndarray  # rows: instruction of the body, edge
    import_ptr: np.ndarray  # [body * slots + slot]
    imports: np.ndarray  # rows: instruction of the body, edge
    exporter: np.ndarray  # [body * slots + slot]
    segments: np.ndarray  # rows: body, repeat, static, length
    group_op: np.ndarray  # [body * groups + group]: op of the group's first instruction
    sizes: np.ndarray  # engines, causes, slots, groups, most chunks of a transfer


(
    N_ENGINE,
    N_FORM,
    N_GROUP,
    N_HOLD,
    N_LATENCY,
    N_CAUSE,
    N_BYTES,
    N_ROUTE,
    N_ADDRESS,
    N_STEP,
    N_COUNT,
    N_START,
    N_EXPORT,
) = range(13)
N_OP = 13


class State(NamedTuple):
    """The machine, written by `advance`; one row per thing."""

    g: np.ndarray
    eng: np.ndarray
    lane: np.ndarray
    chunk: np.ndarray
    free: np.ndarray  # stack of free chunk rows
    heap: np.ndarray  # rows: time, key, chunk (-1: the engine issues)
    inst: np.ndarray
    block: np.ndarray
    cut: np.ndarray  # rows: a chain, then the tag of the cut
    stack: np.ndarray  # engines that may start something
    counted: np.ndarray  # bytes by counter


@_compiled
def _push(heap, n, time, key, row):
    """Add an event to a heap of n."""
    while n > 0:
        up = (n - 1) >> 1
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] < key):
            break
        heap[n, 0], heap[n, 1], heap[n, 2] = heap[up, 0], heap[up, 1], heap[up, 2]
        n = up
    heap[n, 0], heap[n, 1], heap[n, 2] = time, key, row


@_compiled
def _drop_top(heap, n):
    """Remove the top of a heap of n + 1: the last one sinks from the top."""
    time, key, row = heap[n, 0], heap[n, 1], heap[n, 2]
    at = 0
    down = 1
    while down < n:
        if down + 1 < n and (
            heap[down + 1, 0] < heap[down, 0]
            or (heap[down + 1, 0] == heap[down, 0] and heap[down + 1, 1] < heap[down, 1])
        ):
            down += 1
        if time < heap[down, 0] or (time == heap[down, 0] and key < heap[down, 1]):
            break
        heap[at, 0], heap[at, 1], heap[at, 2] = heap[down, 0], heap[down, 1], heap[down, 2]
        at = down
        down = 2 * at + 1
    heap[at, 0], heap[at, 1], heap[at, 2] = time, key, row


@_compiled
def _copy_chain(to, i, at, src, j, from_, width):
    for k in range(width):
        to[i, at + k] = src[j, from_ + k]


@_compiled
def _cut(g, cut, rows, i, at, tag, width):
    """Cut the chain at rows[i, at:]: a cut remembers it, and it starts anew (docs/model.md, section 5)."""
    c = g[G_CUTS]
    g[G_CUTS] = c + 1
    _copy_chain(cut, c, 0, rows, i, at, width)
    cut[c, width] = tag
    rows[i, at] = -2 - c
    rows[i, at + 1] = tag
    for k in range(2, width):
        rows[i, at + k] = 0


@_compiled
def _wake(s, e):
    if s.eng[e, E_STACKED] == 0 and s.eng[e, E_BUSY] == 0:
        s.eng[e, E_STACKED] = 1
        s.stack[s.g[G_STACK]] = e
        s.g[G_STACK] += 1


@_compiled
def _met(s, row, edge, pred, done):
    """An edge of an instruction is met; the first edge in list order that is met last binds."""
    inst = s.inst
    ready = inst[row, I_READY]
    if done > ready or (done == ready and (inst[row, I_EDGE] < 0 or edge < inst[row, I_EDGE])):
        inst[row, I_READY] = done
        inst[row, I_EDGE] = edge
        inst[row, I_BIND] = pred


@_compiled
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


@_compiled
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


@_compiled
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
        _cut(s.g, s.cut, eng, e, E_CHAIN, tag, width)
    eng[e, E_CHAIN + 2 + own] += start - base
    inst[row, I_START] = start
    if p.queue[at] == 0:
        s.g[G_MARK] = b
    if hold:
        eng[e, E_CHAIN + 2 + own] += p.instr[n, N_HOLD]
        eng[e, E_FREE] = start + p.instr[n, N_HOLD]
        eng[e, E_QUEUE] += 1
        inst[row, I_RELEASE] = eng[e, E_FREE]
        _copy_chain(inst, row, I_CHAIN, eng, e, E_CHAIN, width)
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
        _push(s.heap, s.g[G_HEAP], start, (e << 44) | (eng[e, E_CHUNKS] << 4), -1)
        s.g[G_HEAP] += 1
    return DONE


@_compiled
def _claim(g, hops, lane, chunk, heap, cut, c, key, now):
    """Chunk c claims the station of its hop at `now`; `key` is that of its next event. False: a static chunk found its
    lane busy."""
    hop = chunk[c, C_HOP]
    lanes = hops[hop, 1]
    which = hops[hop, 0]
    if lanes > 1:
        which += chunk[c, C_ADDRESS] // hops[hop, 2] % lanes
    width = lane.shape[1] - L_CHAIN
    begin = now
    if lane[which, L_FREE] > now:
        if chunk[c, C_STATIC]:
            g[G_ERROR_A] = chunk[c, C_ROW]
            g[G_ERROR_B] = LANE_BUSY - hop
            g[G_ERROR_C] = lane[which, L_ROW]
            return False
        begin = lane[which, L_FREE]
        _copy_chain(chunk, c, C_CHAIN, lane, which, L_CHAIN, width)
        if chunk[c, C_CHAIN + 1] < chunk[c, C_TAG]:
            _cut(g, cut, chunk, c, C_CHAIN, chunk[c, C_TAG], width)
    den = hops[hop, 4]
    service = (chunk[c, C_SIZE] * hops[hop, 3] + den - 1) // den
    chunk[c, C_CHAIN + 2 + hops[hop, 5]] += service
    lane[which, L_FREE] = begin + service
    lane[which, L_BUSY] += service
    lane[which, L_ROW] = chunk[c, C_ROW]
    _copy_chain(lane, which, L_CHAIN, chunk, c, C_CHAIN, width)
    chunk[c, C_CHAIN + 2 + hops[hop, 7]] += hops[hop, 6]
    chunk[c, C_HOP] = hop + 1
    chunk[c, C_HOPS] -= 1
    n = g[G_HEAP]
    g[G_HEAP] = n + 1
    _push(heap, n, begin + service + hops[hop, 6], key, c)
    return True


@_compiled
def _wants(eng, e):
    """Size of the chunk that a busy engine issues next."""
    return min(eng[e, E_FULL], eng[e, E_TOTAL] - eng[e, E_OFFSET])


@_compiled
def _new_chunk(g, eng, chunk, free, cut, e):
    """The engine's next chunk, with the engine's chain, in a free row."""
    width = chunk.shape[1] - C_CHAIN
    size = _wants(eng, e)
    if eng[e, E_CHAIN + 1] < eng[e, E_TAG]:
        _cut(g, cut, eng, e, E_CHAIN, eng[e, E_TAG], width)
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
    _copy_chain(chunk, c, C_CHAIN, eng, e, E_CHAIN, width)
    eng[e, E_CHUNKS] += 1
    eng[e, E_FLIGHT] += size
    eng[e, E_OFFSET] += size
    return c


@_compiled
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
        _copy_chain(s.inst, row, I_CHAIN, chunk, c, C_CHAIN, width)
        _finish(p, s, row, now)
    s.free[g[G_FREE]] = c
    g[G_FREE] += 1
    if eng[e, E_WAITING] == 0 or eng[e, E_FLIGHT] + _wants(eng, e) > eng[e, E_WINDOW]:
        return False
    eng[e, E_WAITING] = 0
    _copy_chain(eng, e, E_CHAIN, chunk, c, C_CHAIN, width)
    return True


@_compiled
def advance(p, s, budget, marks):
    """Run until the program ends (DONE), a block of a repeating segment begins (MARK, if `marks`), an array must GROW,
    or nothing more can happen."""
    g, eng, lane, chunk, free, heap, inst, cut = s.g, s.eng, s.lane, s.chunk, s.free, s.heap, s.inst, s.cut
    hops, ports = p.hops, p.engines
    most, engines = p.sizes[4], p.sizes[0]
    while True:
        room = g[G_FREE] > most and g[G_HEAP] + most + engines + 2 < heap.shape[0]
        if not room or g[G_CUTS] + 2 * most + 4 >= cut.shape[0]:
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
        _drop_top(heap, g[G_HEAP])
        e = key >> 44
        if c >= 0 and chunk[c, C_HOPS] > 0:
            if not _claim(g, hops, lane, chunk, heap, cut, c, key + 1, now):
                return CONFLICT
            continue
        issue = _arrived(p, s, c, e, now) if c >= 0 else True
        while issue:  # the engine's chunks that are wanted now, until its window is full
            if eng[e, E_WINDOW] > 0 and eng[e, E_FLIGHT] + _wants(eng, e) > eng[e, E_WINDOW]:
                eng[e, E_WAITING] = 1
                break
            key = (e << 44) | (eng[e, E_CHUNKS] << 4)
            c = _new_chunk(g, eng, chunk, free, cut, e)
            if not _claim(g, hops, lane, chunk, heap, cut, c, key + 1, now):
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
                _push(heap, g[G_HEAP], wanted, (e << 44) | (eng[e, E_CHUNKS] << 4), -1)
                g[G_HEAP] += 1
                issue = False


@_compiled
def _share(rows, i, at, causes, amount, weight, out, e):
    """Share `amount` over the causes in proportion to a chain (docs/model.md, section 6), times a weight."""
    total = np.int64(0)
    for k in range(causes):
        total += rows[i, at + k]
    shift = 0
    while total >> shift >= 2**31:
        shift += 1
    total >>= shift
    run = np.int64(0)
    before = np.int64(0)
    for k in range(causes):
        run += rows[i, at + k]
        c = run >> shift
        upto = amount // total * c + amount % total * c // total
        out[e, k] += weight * (upto - before)
        before = upto


@_compiled
def _charge_gap(p, s, e, row, since, before, weight, out):
    """Charge the engine's gap from `since` to the `ready` of an instruction; `before`: the engine's instruction that
    ended it."""
    causes = p.sizes[1]
    at = s.inst[row, I_READY]
    while at > since:
        pred = s.inst[row, I_BIND]
        kind = p.deps[s.inst[row, I_EDGE], 1]
        if kind == WAR:
            out[e, causes] += weight * (at - since)
            return
        if kind == ORDER and before >= 0 and s.inst[pred, I_BLOCK] == s.inst[before, I_BLOCK]:
            b = s.inst[pred, I_BLOCK]
            shift = p.body_ptr[s.block[b, B_BODY]] - s.block[b, B_BASE]
            same = p.instr[shift + pred, N_GROUP] == p.instr[shift + before, N_GROUP]
            if same and p.instr[shift + pred, N_ENGINE] != e:
                out[e, causes + 1] += weight * (at - since)
                return
        rows, i, c = s.inst, pred, I_CHAIN
        while True:
            total = np.int64(0)
            for k in range(causes):
                total += rows[i, c + 2 + k]
            if at - total <= since:
                if at > since:
                    _share(rows, i, c + 2, causes, at - since, weight, out, e)
                return
            for k in range(causes):
                out[e, k] += weight * rows[i, c + 2 + k]
            at -= total
            origin = rows[i, c]
            if origin >= 0:
                row = origin
                break
            rows, i, c = s.cut, -2 - origin, 0


@_compiled
def account(p, s, weights, last, last_row, busy, out):
    """Charge all engines' time up to their last releases: `busy` [engine], `out` [engine, causes + buffer, imbalance].

    `weights` [row]: how often an instruction counts (skipped periods). `last` and `last_row` [engine] receive the last
    releases and instructions (0 and -1: none).
    """
    engines, causes = p.sizes[0], p.sizes[1]
    blocks = s.g[G_BLOCKS]
    for e in range(engines):
        since = np.int64(0)
        before = np.int64(-1)
        for b in range(blocks):
            at = s.block[b, B_BODY] * engines + e
            for q in range(p.queue_ptr[at], p.queue_ptr[at + 1]):
                row = s.block[b, B_BASE] + p.queue[q]
                n = p.body_ptr[s.block[b, B_BODY]] + p.queue[q]
                weight = weights[row]
                start, release = s.inst[row, I_START], s.inst[row, I_RELEASE]
                if start > since:
                    base = max(since, s.inst[row, I_READY])
                    own = p.instr[n, N_CAUSE] if p.instr[n, N_FORM] == HOLD else p.engines[e, 4]
                    out[e, own] += weight * (start - base)
                    if base > since:
                        _charge_gap(p, s, e, row, since, before, weight, out)
                work = release - start
                if p.instr[n, N_FORM] != HOLD:
                    work = np.int64(0)
                    num, den = p.engines[e, 2], p.engines[e, 3]
                    if num > 0:
                        full = p.routes[p.instr[n, N_ROUTE], 0]
                        whole = p.instr[n, N_BYTES] // full
                        work = whole * ((full * num + den - 1) // den)
                        work += ((p.instr[n, N_BYTES] - whole * full) * num + den - 1) // den
                    if release - start > work:
                        _share(s.inst, row, I_CHAIN + 2, causes, release - start - work, weight, out, e)
                busy[e] += weight * work
                since = release
                before = row
        last_row[e] = before
        last[e] = min(since, s.g[G_END])
        busy[e] -= since - last[e]  # a port may outlast the run by its last chunk


@_compiled
def walk(p, s, parts, cuts, out, nodes):
    """Follow the critical path back: out[part, op, cause], parts counted from the end of the run.

    The last jump's skipped period is part 1, the one before it part 3, and so on; `parts` [row] says in which part an
    instruction was done. `cuts` [jump] are the cuts made before the period and before its end.
    `nodes` [part] receives the first instruction on the path of each part, or cut (as an origin; -1: none).
    """
    causes, groups = p.sizes[1], p.sizes[3]
    row = s.g[G_LAST]
    part = 0
    while row >= 0:
        b = s.inst[row, I_BLOCK]
        n = p.body_ptr[s.block[b, B_BODY]] + row - s.block[b, B_BASE]
        part = max(part, parts[row])
        if nodes[part] == -1:
            nodes[part] = row
        op = p.instr[n, N_OP]
        rows, i, c = s.inst, row, I_CHAIN
        while True:
            for k in range(causes):
                out[part, op, k] += rows[i, c + 2 + k]
            origin = rows[i, c]
            if origin >= 0:
                break
            rows, i, c = s.cut, -2 - origin, 0
            while part + 1 < nodes.shape[0]:
                if i >= cuts[cuts.shape[0] - 1 - part // 2, 1 - part % 2]:
                    break
                part += 1
            if nodes[part] == -1:
                nodes[part] = origin
            body = s.block[rows[i, 1] // groups, B_BODY]
            op = p.group_op[body * groups + rows[i, 1] % groups]
        row = s.inst[origin, I_BIND]
