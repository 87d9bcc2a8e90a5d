"""Collectives as rounds: in each, every chip sends some bytes, waits for as many, and works on what came."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..arch.parts import Link
from .program import FS_PER_S


@dataclass(frozen=True)
class Round:
    """Per chip: bytes sent over its links, and bytes then read and summed (0: only passed on)."""

    send: int
    reduce: int


def rounds(kind: str, nbytes: int, ways: int, link: Link) -> list[Round]:
    """The fastest known schedule on an idle link, at the rate that it sustains, for a message of `nbytes` (the result
    of a gather, the sum of a reduction)."""
    choices = [make(nbytes, ways) for make in SCHEDULES[kind][link.topology == "ring"]]
    share = float(link.availability.value) if link.availability else 1.0
    peers = (ways - 2) * int(link.peer.value)
    return min(choices, key=lambda c: len(c) * peers + sum(_round_fs(r, link, share) for r in c))


def time_fs(schedule: list[Round], link: Link) -> int:
    """Link time of a schedule: a latency and the bytes of each round."""
    return sum(_round_fs(r, link, 1.0) for r in schedule)


def least_fs(kind: str, nbytes: int, ways: int, link: Link) -> int:
    """Link time of the fastest schedule at the link's peak rate: what no run beats."""
    return min(time_fs(make(nbytes, ways), link) for make in SCHEDULES[kind][link.topology == "ring"])


def _round_fs(r: Round, link: Link, share: float) -> int:
    return int(link.latency.value) + round(r.send * FS_PER_S / (float(link.bandwidth.value) * share))


def _part(n: int, ways: int) -> int:
    return max(1, -(-n // ways))


def _one_shot(n: int, ways: int) -> list[Round]:
    """Everything to everyone at once: one latency, the most bytes."""
    return [Round((ways - 1) * n, ways * n)]


def _two_shot(n: int, ways: int) -> list[Round]:
    """Reduce-scatter, then all-gather: two latencies, twice the message."""
    part = _part(n, ways)
    return [Round((ways - 1) * part, ways * part), Round((ways - 1) * part, 0)]


def _ring(n: int, ways: int) -> list[Round]:
    """Round and round, summed on the way, then passed on."""
    part = _part(n, ways)
    return [Round(part, 2 * part)] * (ways - 1) + [Round(part, 0)] * (ways - 1)


def _gather(n: int, ways: int) -> list[Round]:
    """Each chip's part to all others at once."""
    return [Round((ways - 1) * _part(n, ways), 0)]


def _ring_gather(n: int, ways: int) -> list[Round]:
    """Each chip's part round the ring."""
    return [Round(_part(n, ways), 0)] * (ways - 1)


def _to_all(n: int, ways: int) -> list[Round]:
    """Each chip's rows to the chips that need them: all but what stays on it."""
    return [Round((ways - 1) * _part(n, ways), 0)]


def _ring_to_all(n: int, ways: int) -> list[Round]:
    """The same round a ring: a row takes half the way on average, so each hop carries many."""
    return [Round(max(1, (ways - 1) * _part(n, ways) // 2), 0)] * max(1, ways // 2)


Make = Callable[[int, int], list[Round]]

SCHEDULES: dict[str, tuple[tuple[Make, ...], tuple[Make, ...]]] = {
    "all_reduce": ((_one_shot, _two_shot), (_ring,)),
    "all_gather": ((_gather,), (_ring_gather,)),
    "all_to_all": ((_to_all,), (_ring_to_all,)),
}
"""Kind -> (where every chip reaches every other, on a ring)."""
