"""The arrays of the machine: what each column of each table means, for the kernel and for those who read its state.

Tables are two-dimensional int64 arrays, one row per engine, lane, chunk, instruction or cut. A chain is three columns
wide or more: origin, tag, then one value per cause. An origin >= 0 is an instruction's row, an origin < 0 is the cut in
row `-2 - origin`; -1 is no origin.
"""

from typing import NamedTuple

import numpy as np

# Status of `advance`.
DONE, MARK, GROW, DEADLOCK, BUDGET, CONFLICT = 0, 1, 2, 3, 4, 5

# Why a static instruction is in CONFLICT, in G_ERROR_B: the row that it waits for (>= 0), or one of these (LANE_BUSY -
# hop).
ENGINE_HELD, OFF_EDGE, LANE_BUSY = -1, -2, -3

# Engine rows.
E_FREE, E_BLOCK, E_QUEUE, E_BUSY, E_OFFSET, E_WAITING, E_FLIGHT, E_CHUNKS, E_STACKED, E_WINDOW = range(10)
E_ROW, E_INSTR, E_TOTAL, E_FULL, E_ADDRESS, E_TAG, E_HOP, E_HOPS, E_STATIC, E_CHAIN = range(10, 20)  # its transfer
# Lane rows.
L_FREE, L_BUSY, L_ROW, L_CHAIN = range(4)  # a DRAM lane is free from when a chunk last left it
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
    hops: np.ndarray  # rows: the columns H_* below
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
    N_ENGINE, N_FORM, N_GROUP, N_HOLD, N_LATENCY, N_CAUSE, N_BYTES, N_ROUTE, N_ADDRESS, N_STEP, N_COUNT, N_START,
    N_EXPORT, N_OP, N_WRITE,
) = range(15)  # fmt: skip
# A hop: its station's first lane, lanes, interleave, rate and cause; the latency behind it, its cause; its row of
# `Memory.stations` (-1: no DRAM).
H_LANE, H_LANES, H_INTERLEAVE, H_NUM, H_DEN, H_CAUSE, H_LATENCY, H_WAIT, H_DRAM = range(9)


class State(NamedTuple):
    """The machine, written by `advance`; one row per thing."""

    g: np.ndarray
    eng: np.ndarray
    lane: np.ndarray
    chunk: np.ndarray
    free: np.ndarray  # stack of free chunk rows
    heap: np.ndarray  # rows: time, key, chunk (-1: the engine issues); a key < 0 is that of a DRAM lane
    inst: np.ndarray
    block: np.ndarray
    cut: np.ndarray  # rows: a chain, then the tag of the cut
    stack: np.ndarray  # engines that may start something
    counted: np.ndarray  # bytes by counter


class Memory(NamedTuple):
    """The DRAM lanes of a program that has any (docs/model.md, section 10): `advance` takes None if it has none."""

    stations: np.ndarray  # rows: the columns K_* below
    ram: np.ndarray  # one row per lane: the controller (sim/dram.py)
    watch: np.ndarray  # one row per lane: the columns W_* below
    runs: np.ndarray  # one row per chunk: its bursts in a lane (sim/dram.py)
    visit: np.ndarray  # one row per chunk: the columns V_* below
    present: np.ndarray  # rows: chunks that are there now, since when there are any, for how long there were
    record: np.ndarray  # empty: no burst keeps its ticks


# A station with DRAM: its first row of `ram`; fs of a tick; bytes of a burst; cause of the first of LOST; ticks within
# which a lane with one read left, and one with writes, must be served again.
K_FIRST, K_TICK, K_BURST, K_LOST, K_READS, K_WRITES = range(6)
# A DRAM lane: its station, its row among all lanes, the tick of its next wake event (0: none), writes in it, and what
# it had counted when a chunk last left.
W_STATION, W_LANE, W_WAKES, W_WRITES, W_SEEN = range(5)
# A chunk in a DRAM lane: the key of its next event, and when it came.
V_KEY, V_SINCE = range(2)
VISIT_COLUMNS = 2
COUNTED = 6  # numbers that a lane counts: ticks of data, ticks lost to each of LOST, and to the rest
