"""The examples of README.md and docs/: files that a page states, and outputs that it shows.

A comment before a fenced block says what it is: `<!-- file: NAME -->` is a file of that name,
`<!-- output: COMMAND -->` what a command prints, `<!-- output: COMMAND | head -N -->` its first N lines, with a line
`...` for the rest.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

from stallscope import cli

ROOT = Path(__file__).parents[1]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
BLOCK = re.compile(r"(?:<!-- (file|output): (.+?) -->\n)?```(\w*)\n(.*?)```\n", re.DOTALL)


@dataclass(frozen=True)
class Block:
    """`role`: "file", "output" or empty; `said`: what the comment says; the text stands at `begin:end` of the page."""

    role: str
    said: str
    language: str
    text: str
    begin: int
    end: int


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [Block(m[1] or "", m[2] or "", m[3], m[4], m.start(4), m.end(4)) for m in found]


def write_files(folder: Path) -> dict[str, Path]:
    """All files that the pages state, written into a folder; one that two pages state must be the same in both."""
    out: dict[str, Path] = {}
    for block in (b for page in PAGES for b in blocks(page) if b.role == "file"):
        path = folder / block.said
        assert block.said not in out or path.read_text(encoding="utf-8") == block.text, block.said
        path.write_text(block.text, encoding="utf-8")
        out[block.said] = path
    return out


def shown(said: str) -> str:
    """What a page should show for `COMMAND` or `COMMAND | head -N`."""
    command, _, head = said.partition(" | head -")
    name, *words = shlex.split(command)
    assert name == "stallscope", said
    out = io.StringIO()
    with contextlib.redirect_stdout(out), pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [name, *words])
        with contextlib.suppress(SystemExit):
            cli.main()
    lines = out.getvalue().splitlines()
    kept = lines if not head or int(head) >= len(lines) else [*lines[: int(head)], "..."]
    return "".join(f"{line}\n" for line in kept)
