"""How far a run has come: one line on stderr where that is a terminal, erased at its end. Elsewhere nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic

Done = Callable[[], None]

PERIOD_S = 0.1  # between two updates of the line: thousands of rows shall not wait for a terminal


@contextmanager
def shown(what: str, total: int) -> Iterator[Done]:
    """The line `what` with how many of `total` are done; call what it gives once for each that is.

    It is drawn here and in that call and by no thread, so that processes may be forked in between.
    """
    if not (sys.stderr is not None and sys.stderr.isatty()):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    several = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    columns = (TextColumn("{task.description}", markup=False), *(several if total > 1 else ()))
    line = Progress(
        *columns,
        console=Console(stderr=True),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    drawn = monotonic()

    def done() -> None:
        nonlocal drawn
        line.advance(task)
        if monotonic() - drawn >= PERIOD_S:
            line.refresh()
            drawn = monotonic()

    with line:
        task = line.add_task("".join(c if c.isprintable() else "?" for c in what), total=total)
        line.refresh()
        yield done
