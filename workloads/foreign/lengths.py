"""Symbolic lengths: what the user binds with `--dim NAME=NUMBER`, and the refusal of those left open."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..checks import nearest, positive_int, problem

LENGTH_LIMIT = 2**31

OPERATORS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class Lengths:
    """The numbers behind names of lengths. `used` are those that the program asked for."""

    def __init__(self, source: str, given: Mapping[str, int]) -> None:
        """Refuses what is no whole number from 0."""
        for name, value in given.items():
            positive_int(value, f"--dim {name}", LENGTH_LIMIT, least=0)
        self.source, self.given = source, dict(given)
        self.known: set[str] = set()
        self.open: dict[str, str] = {}

    def find(self, name: str, where: str) -> int | None:
        """The number of a name, or of a sum such as `past + 1`; None, and remembered as open, if nobody gave it."""
        self.known.add(name)
        if name in self.given:
            return self.given[name]
        value = _evaluate(name, self.given, self.known)
        if value is None:
            self.open.setdefault(name, where)
        return value

    def check(self) -> None:
        """Refuse lengths that are open, and given names that the program does not have."""
        for name in self.given:
            if name not in self.known:
                todo = nearest(name, self.known) if self.known else "It has none: leave it out."
                raise problem(f"{self.source}: --dim {name}", "no such length", "a symbolic length of the graph", todo)
        if self.open:
            names = ", ".join(f"{name!r} of {where}" for name, where in self.open.items())
            hint = " ".join(f"--dim {_first_word(name)}=NUMBER" for name in self.open)
            todo = f"Bind it: {hint} (in Python: load_graph(path, dims={{...}}))."
            raise problem(self.source, f"lengths that are not known: {names}", "a number for each", todo)


def _first_word(name: str) -> str:
    return name if name.replace("_", "a").isalnum() or "." in name else f"'{name}'"


def _evaluate(text: str, numbers: Mapping[str, int], known: set[str]) -> int | None:
    """A sum or product of names and numbers, or None."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        return _value(tree, numbers, known)
    except (SyntaxError, ValueError, KeyError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.AST, numbers: Mapping[str, int], known: set[str]) -> int:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.Name):
        known.add(node.id)
        return numbers[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        left, right = _value(node.left, numbers, known), _value(node.right, numbers, known)
        return OPERATORS[type(node.op)](left, right)
    raise ValueError(text_of(node))


def text_of(node: Any) -> str:
    """A piece of an expression as text."""
    return ast.unparse(node)


def parse_dims(words: Iterable[str]) -> dict[str, int]:
    """`NAME=NUMBER` words as numbers. Raises StallscopeError for another form, or a name given twice."""
    out: dict[str, int] = {}
    for word in words:
        name, equals, number = word.rpartition("=")
        if not equals or not name.strip() or not number.strip().isdecimal() or len(number) > 12:
            raise problem(f"--dim {word}", "no NAME=NUMBER", "a length and its number", "Write for instance seq=64.")
        if out.setdefault(name.strip(), int(number)) != int(number):
            raise problem(f"--dim {name.strip()}", "two numbers for one length", "one", "Leave one out.")
    return out
