"""The same question asked many times, on several cores."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

FEW = 24  # questions: with no more, the start of other processes does not pay
MOST = 8  # processes: each holds a simulator


def answers(ask: Callable[[Asked], Answer], questions: Sequence[Asked]) -> list[Answer]:
    """The answers in the order of the questions, the same ones on any number of cores.

    `ask` must be picklable: an object, a function of a module, or a `partial` of one. Each process has a copy of it,
    which may remember what it has answered.
    """
    cores = min(_cores(), MOST)
    if cores < 2 or len(questions) <= FEW:
        return list(map(ask, questions))
    first = ask(questions[0])  # what it loads and compiles is there for all
    size = max(1, min(8, len(questions) // (8 * cores)))
    with ProcessPoolExecutor(cores, initializer=_hold, initargs=(ask,)) as pool:
        return [first, *pool.map(_held, questions[1:], chunksize=size)]


_asked: list[Callable[[Any], Any]] = []  # of this process, where it was started here


def _hold(ask: Callable[[Any], Any]) -> None:
    _asked.append(ask)


def _held(question: Any) -> Any:
    return _asked[-1](question)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
