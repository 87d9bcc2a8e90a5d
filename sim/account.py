"""Who waited for what, after a run: `account` charges every engine's time, `walk` follows the critical path."""

import numpy as np

from .columns import *
from .compiled import compiled, entry


@compiled
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


@compiled
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


@compiled
def _account(p, s, weights, last, last_row, busy, out):
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


@compiled
def _walk(p, s, parts, cuts, out, nodes):
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


@entry
def account(stamp):
    """Charge every engine's time: `_account`."""

    def account(p, s, weights, last, last_row, busy, out):
        if stamp:
            _account(p, s, weights, last, last_row, busy, out)

    return account


@entry
def walk(stamp):
    """Follow the critical path: `_walk`."""

    def walk(p, s, parts, cuts, out, nodes):
        if stamp:
            _walk(p, s, parts, cuts, out, nodes)

    return walk
