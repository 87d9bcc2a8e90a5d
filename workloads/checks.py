"""The form of this folder's error messages, and the checks that several of its files share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from ..errors import StallscopeError

SIZE_LIMIT = 2**26


class GraphError(StallscopeError):
    """A workload graph breaks its schema. `node` is the node at fault, or None."""

    def __init__(self, message: str, node: str | None = None) -> None:
        """Keep the node beside the message."""
        super().__init__(message)
        self.node = node


def problem(where: str, found: str, expected: str, todo: str) -> StallscopeError:
    """The one error of bad input: where, what was found, what was expected, what to do."""
    return StallscopeError(f"{where}: found {found}; expected {expected}. {todo}")


def graph_problem(node: str | None, where: str, found: str, expected: str, todo: str) -> GraphError:
    """The same about a node of a graph."""
    return GraphError(str(problem(where, found, expected, todo)), node)


def shown(value: object) -> str:
    """A value as it stands in a message: its repr, cut at 60 characters."""
    try:
        text = "null" if value is None else repr(value)
    except ValueError:  # CPython prints no number of more than 4300 digits
        text = "a number of thousands of digits"
    return text if len(text) <= 60 else text[:57] + "..."


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence for a name that does not exist: the nearest known one, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Known: {', '.join(names)}."


def positive_int(value: object, where: str, limit: int = SIZE_LIMIT, least: int = 1) -> int:
    """`value` if it is a whole number in [least, limit]; bools, floats and strings are not numbers here.

    Raises StallscopeError that begins with `where`.
    """
    if type(value) is not int or not least <= value <= limit:
        raise problem(where, shown(value), f"a whole number from {least} to {limit}", "Correct this value.")
    return value
