"""DRAM lanes: what the data buses did, and when runs of bursts are through."""

from .compiled import compiled
from .dram_state import *


@compiled
def account(m, b, q, now):
    """RD or WR of a bank at tick `now`: its data, and what the ticks without data before it were lost to."""
    k = m[b + B_RANK]
    before, new = m[k + K_LAST], m[b + B_NEW]
    m[D_DATA] += m[P_BURST]
    if before < 0:
        m[k + K_FIRST] = now
    gap = now - before - m[P_BURST]
    if before >= 0 and gap > 0:
        idle = min(gap, max(0, m[k + K_SINCE] - before - m[P_BURST]))
        lost = gap - idle
        m[D_IDLE] += idle
        if m[D_REF_LAST] > before or m[b + B_REFRESHED] > before or (m[D_MCOUNT] > 0 and m[D_REF_SINCE] < now):
            m[LOST_REFRESH] += lost
        elif m[k + K_WRITE] != q:
            m[LOST_TURN] += lost
        elif new == REPLACED:
            m[LOST_CONFLICT] += lost
        elif new == MISSED:
            m[LOST_MISS] += lost
        else:
            m[LOST_OTHER] += lost
            if m[k + K_GROUP] == m[b + B_GROUP]:
                m[LOST_GROUP] += lost
    m[b + B_NEW] = USED
    m[k + K_LAST], m[k + K_WRITE], m[k + K_GROUP] = now, q, m[b + B_GROUP]


@compiled
def leave_run(m, runs, done, run, number, t):
    """A burst of a run is through at tick t; with its last one the run is."""
    if number < m[D_RECORDED]:
        done[2 * number + 1] = t
    run_through(m, runs, run, 1, t)


@compiled
def run_through(m, runs, run, count, t):
    """Bursts of a run are through, the last at tick t; with its last one the run is."""
    runs[run * RUN_COLUMNS + R_LEFT] -= count
    if runs[run * RUN_COLUMNS + R_DONE] < t:
        runs[run * RUN_COLUMNS + R_DONE] = t
    if m[D_LAST] < t:
        m[D_LAST] = t
    if runs[run * RUN_COLUMNS + R_LEFT] == 0:
        for k in range(6):
            runs[run * RUN_COLUMNS + R_DATA + k] = m[D_DATA + k]
        runs[run * RUN_COLUMNS + R_NEXT] = -1
        if m[D_THROUGH] < 0:
            m[D_THROUGH] = run
        else:
            runs[m[D_THROUGH_LAST] * RUN_COLUMNS + R_NEXT] = run
        m[D_THROUGH_LAST] = run
