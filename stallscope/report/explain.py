"""`--explain`: looks up what a word of the reports means, or prints all of them."""

from __future__ import annotations

import difflib

from ..errors import StallscopeError
from .definitions import GROUPS, Definition

INDEX: dict[str, Definition] = {
    word: definition for _, group in GROUPS for definition in group for word in (definition.word, *definition.also)
}


def define(word: str) -> Definition:
    """The definition behind a word of the tables or a key of the JSON. Raises StallscopeError with near words."""
    asked = " ".join(word.lower().split())
    for name in (asked, asked.split(":")[0], asked.replace("_", " "), asked.replace("-", " ")):
        if name in INDEX:
            return INDEX[name]
    near = difflib.get_close_matches(asked, INDEX, n=3)
    hint = (
        f"did you mean {' or '.join(repr(n) for n in near)}?" if near else "without a word, --explain prints them all"
    )
    raise StallscopeError(f"--explain {word}: no such word in the reports; {hint}")


def explain_text(word: str | None = None) -> str:
    """One definition, or all of them, as text of at most 100 columns."""
    from .layout import pairs, plain, render, section

    if word is not None:
        found = define(word)
        return render(plain(f"{found.word}: {found.text}"))
    return render(*(section(title, pairs((d.word, d.text) for d in group)) for title, group in GROUPS))
