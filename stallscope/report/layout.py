"""How reports are laid out: plain text of at most 100 columns, the same on a terminal and in a pipe."""

from __future__ import annotations

import io
import re
from collections.abc import Collection, Iterable, Sequence

from rich.box import SIMPLE
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

WIDTH = 100


def plain(text: str, style: str = "") -> Text:
    """Text taken literally: no markup, and no control character of a user's name reaches the terminal."""
    return Text("".join(c if c.isprintable() or c == "\n" else "?" for c in text), style=style)


def render(*parts: RenderableType) -> str:
    """The parts as text, one after the other; lines carry no trailing blanks."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)
    for part in parts:
        console.print(part)
    text = "\n".join(line.rstrip() for line in out.getvalue().split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n") + "\n"


def grid(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    total: Sequence[str] | None = None,
    words: Collection[int] = (0,),
    fold: bool = False,
) -> Table:
    """A table: the columns numbered in `words` are folded when long; the others are numbers, folded only if `fold`."""
    table = Table(box=SIMPLE, pad_edge=False, show_footer=total is not None, padding=(0, 1))
    for i, name in enumerate(header):
        foot = plain(total[i]) if total is not None else ""
        if i in words:
            table.add_column(plain(name), footer=foot, overflow="fold")
        else:
            table.add_column(plain(name), footer=foot, justify="right", overflow="fold", no_wrap=not fold)
    for row in rows:
        table.add_row(*map(plain, row))
    return table


def pairs(rows: Iterable[tuple[str, str]], width: int = 18) -> Table:
    """Two columns without borders: a label, and what is to be said of it (wrapped)."""
    table = Table.grid(padding=(0, 2))
    table.add_column(min_width=width, no_wrap=True)
    table.add_column(overflow="fold")
    for label, text in rows:
        table.add_row(plain(label), plain(text))
    return table


def section(title: str, *body: RenderableType) -> Group:
    """A title with what belongs under it, and a blank line before."""
    return Group(plain(f"\n{title}"), *(Padding(part, (0, 0, 0, 2)) for part in body))


def bullets(lines: Iterable[str]) -> Table:
    """A list; long lines are wrapped under their own first word."""
    table = Table.grid(padding=(0, 1))
    table.add_column(width=1)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row("-", plain(line))
    return table
