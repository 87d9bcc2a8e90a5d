"""The heap of events, and chains."""

import numpy as np

from .columns import G_CUTS
from .compiled import compiled, pointer


@compiled
def push(heap, n, time, key, row):
    """Add an event to a heap of n."""
    h, at = pointer(heap), 3 * n
    while at > 0:
        up = (at // 3 - 1) // 2 * 3
        if h[up] < time or (h[up] == time and h[up + 1] < key):
            break
        h[at], h[at + 1], h[at + 2] = h[up], h[up + 1], h[up + 2]
        at = up
    h[at], h[at + 1], h[at + 2] = time, key, row


@compiled
def drop_top(heap, n):
    """Remove the top of a heap of n + 1: the last one sinks from the top."""
    h, end = pointer(heap), 3 * n
    time, key, row = h[end], h[end + 1], h[end + 2]
    at, down = np.int64(0), np.int64(3)
    while down < end:
        # Without a branch: which of the two comes first is anybody's guess. Behind the last one stands it itself.
        other = down + 3
        down += 3 * np.int64((h[other] < h[down]) | ((h[other] == h[down]) & (h[other + 1] < h[down + 1])))
        if time < h[down] or (time == h[down] and key < h[down + 1]):
            break
        h[at], h[at + 1], h[at + 2] = h[down], h[down + 1], h[down + 2]
        at = down
        down = 2 * at + 3
    h[at], h[at + 1], h[at + 2] = time, key, row


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
