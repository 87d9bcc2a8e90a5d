"""The same question asked many times, on several cores."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

from ..progress import Done, shown

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")

FEW = 24  # questions: with no more, the start of other processes does not pay
MOST = 8  # processes: each holds a simulator


def answers(ask: Callable[[Asked], Answer], questions: Sequence[Asked], what: str) -> list[Answer]:
    """The answers in the order of the questions, the same ones on any number of cores.

    `ask` must be picklable: an object, a function of a module, or a `partial` of one. Each process has a copy of it,
    which may remember what it has answered. `what` stands on the terminal while it lasts.
    """
    cores = min(_cores(), MOST)
    with shown(what, len(questions)) as done:
        if cores < 2 or len(questions) <= FEW:
            return list(_counted(map(ask, questions), done))
        first = ask(questions[0])  # what it loads and compiles is there for all
        done()
        size = max(1, min(8, len(questions) // (8 * cores)))
        with ProcessPoolExecutor(cores, initializer=_hold, initargs=(ask,)) as pool:
            try:
                asked = [pool.submit(_held, questions[i : i + size]) for i in range(1, len(questions), size)]
                return [first, *_counted((answer for some in asked for answer in some.result()), done)]
            except BaseException:  # Ctrl-C, mostly: nobody waits for what the processes have begun
                for process in multiprocessing.active_children():
                    process.terminate()
                raise


def _counted(items: Iterable[Answer], done: Done) -> Iterator[Answer]:
    for item in items:
        done()
        yield item


_asked: list[Callable[[Any], Any]] = []  # of this process, where it was started here


def _hold(ask: Callable[[Any], Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the one that was started first answers
    _asked.append(ask)


def _held(questions: Sequence[Any]) -> list[Any]:
    return [_asked[-1](question) for question in questions]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
