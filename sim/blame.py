"""Who waited for what: the kernel's accounts and critical path as sums over the whole run, skipped periods included."""

from dataclasses import dataclass

import numpy as np

from ..compiler.program import Ints, TileProgram
from . import columns as k
from .account import account, walk
from .repeat import Jump

EXTRA = ("buffer", "imbalance", "idle")  # causes of engines only, behind the program's own


class PathDoesNotRepeat(Exception):
    """The critical path through skipped blocks is not the simulated period's: run in full."""


@dataclass(frozen=True)
class Blame:
    """Times in fs: `path` [op, cause]; `busy` [engine]; `stalls` [engine, cause + EXTRA]."""

    path: Ints
    busy: Ints
    stalls: Ints


def blame(program: TileProgram, prog: k.Prog, s: k.State, jumps: list[Jump], time_fs: int) -> Blame:
    """Charge every femtosecond; raises PathDoesNotRepeat, and AssertionError should a sum not be exact."""
    engines, causes = len(program.engines.name), len(program.causes)
    weights, part_of = _membership(int(s.g[k.G_ROWS]), jumps)
    busy, last, last_row = (np.zeros(engines, np.int64) for _ in range(3))
    stalls = np.zeros((engines, causes + len(EXTRA)), np.int64)
    account(prog, s, weights, last, last_row, busy, stalls)
    for jump in jumps:  # who ends in the period, or later, ends later by what was skipped
        early = (last_row >= 0) & (last_row < len(jump.before))
        early[early] = jump.before[last_row[early]]
        last[(last_row >= 0) & ~early] += jump.times * jump.length_fs
    for kind in set(program.engines.kind):
        mine = np.flatnonzero(np.array(program.engines.kind) == kind)
        stalls[mine, causes + EXTRA.index("imbalance")] += last[mine].max() - last[mine]
        stalls[mine, causes + EXTRA.index("idle")] += time_fs - last[mine].max()
    assert np.all(busy + stalls.sum(axis=1) == time_fs), (
        "an engine's busy and stalled time does not sum to the makespan"
    )

    parts = np.zeros((2 * len(jumps) + 1, max(len(program.ops), 1), causes), np.int64)
    nodes = np.full(len(parts), -1, np.int64)
    cuts = np.array([j.cuts for j in jumps], np.int64).reshape(-1, 2)
    walk(prog, s, part_of, cuts, parts, nodes)
    for i, jump in enumerate(reversed(jumps)):
        _check_period(s, jump, nodes[2 * i + 1 :])
        if parts[2 * i + 1].sum() != jump.length_fs:
            raise PathDoesNotRepeat
        parts[2 * i + 1] *= 1 + jump.times
    path = parts.sum(axis=0)
    assert path.sum() == time_fs, "the critical path does not tile the makespan"
    return Blame(path, busy, stalls)


def _membership(rows: int, jumps: list[Jump]) -> tuple[Ints, Ints]:
    """Per instruction: how often it counts, and the part of the run, counted from the end, in which it was done.

    An instruction belongs to a period if it was done there: only then is all that it is charged for known there, and
    the same in every copy of the period.
    """
    weights, part_of = np.ones(rows, np.int64), np.zeros(rows, np.int64)
    for i, jump in enumerate(reversed(jumps)):
        inside = jump.within.copy()
        inside[: len(jump.before)] &= ~jump.before
        weights[: len(inside)][inside] += jump.times
        part_of[: len(inside)][inside] = 2 * i + 1
        part_of[: len(jump.before)][jump.before] = 2 * i + 2
    return weights, part_of


def _check_period(s: k.State, jump: Jump, nodes: Ints) -> None:
    """The path leaves the period at the instruction or cut where it came in, one period earlier."""
    first, second = int(nodes[0]), int(nodes[1])
    if first < -1 and second < -1:
        # Equal states make equal cuts in equal order: a cut's number, counted from the period's first, tells which
        # it is.
        if second - first != jump.cuts[1] - jump.cuts[0]:
            raise PathDoesNotRepeat
        return
    if first < 0 or second < 0:
        raise PathDoesNotRepeat
    one, two = s.inst[first], s.inst[second]
    apart = one[k.I_BLOCK] - two[k.I_BLOCK]
    local = s.block[[one[k.I_BLOCK], two[k.I_BLOCK]], k.B_BASE]
    same = first - local[0] == second - local[1] and one[k.I_DONE] - two[k.I_DONE] == jump.length_fs
    if not same or apart != jump.period:
        raise PathDoesNotRepeat
