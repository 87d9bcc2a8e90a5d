"""The heap of events, and chains."""

from .columns import G_CUTS
from .compiled import compiled


@compiled
def push(heap, n, time, key, row):
    """Add an event to a heap of n."""
    while n > 0:
        up = (n - 1) >> 1
        if heap[up, 0] < time or (heap[up, 0] == time and heap[up, 1] < key):
            break
        heap[n, 0], heap[n, 1], heap[n, 2] = heap[up, 0], heap[up, 1], heap[up, 2]
        n = up
    heap[n, 0], heap[n, 1], heap[n, 2] = time, key, row


@compiled
def drop_top(heap, n):
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


@compiled
def copy_chain(to, i, at, src, j, from_, width):
    """A chain from one table to another."""
    for k in range(width):
        to[i, at + k] = src[j, from_ + k]


@compiled
def cut_chain(g, cut, rows, i, at, tag, width):
    """Cut the chain at rows[i, at:]: a cut remembers it, and it starts anew (docs/model.md, section 5)."""
    c = g[G_CUTS]
    g[G_CUTS] = c + 1
    copy_chain(cut, c, 0, rows, i, at, width)
    cut[c, width] = tag
    rows[i, at] = -2 - c
    rows[i, at + 1] = tag
    for k in range(2, width):
        rows[i, at + k] = 0
