"""Reads a JSON file strictly, and remembers where its keys stand."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from .checks import problem, shown


@dataclass(frozen=True)
class JsonFile:
    """A JSON object with the text that it was read from."""

    path: Path
    text: str
    data: dict[str, Any]

    def where(self, *keys: str) -> str:
        """`file:line` of the last of these nested keys, as near as it can be found, with the keys behind it."""
        at = -1
        for key in keys:
            match = re.compile(re.escape(json.dumps(key)) + r"\s*:").search(self.text, at + 1)
            at = match.start() if match else at
        dotted = ".".join(keys)
        return f"{self.line(at)}: {dotted}" if at >= 0 else f"{self.path}: {dotted}"

    def line_of(self, value: str) -> str:
        """`file:line` where this string value first stands after a colon; the file alone if it does not."""
        match = re.search(r":\s*" + re.escape(json.dumps(value)), self.text)
        return self.line(match.end() - 1) if match else str(self.path)

    def line(self, position: int) -> str:
        """`file:line` of a position in the text."""
        return f"{self.path}:{self.text.count(chr(10), 0, position) + 1}"


def read_json(path: Path, what: str, limit_bytes: int) -> JsonFile:
    """Read one JSON object. `what` names the kind of file in messages.

    Raises StallscopeError for a path that is no readable regular file, text that is not UTF-8, anything but one
    JSON object, keys that appear twice, and NaN or infinite numbers.
    """
    text = read_text(path, what, limit_bytes)
    where = str(path)

    def refuse(found: str) -> NoReturn:
        raise problem(where, found, "finite numbers and unique keys", f"Correct the {what}.")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(pairs)
        if len(result) < len(pairs):
            keys = [key for key, _ in pairs]
            refuse(f"the key {shown(next(k for k in keys if keys.count(k) > 1))} twice in one object")
        return result

    def finite(number: str) -> float:
        return float(number) if math.isfinite(float(number)) else refuse(f"the number {number}")

    try:
        data = json.loads(
            text, object_pairs_hook=unique, parse_float=finite, parse_constant=lambda name: refuse(f"the number {name}")
        )
    except json.JSONDecodeError as error:
        if text.startswith("version https://git-lfs"):
            todo = "Fetch the file itself (git lfs pull)."
            raise problem(where, "a Git LFS pointer, not the file that it stands for", f"a {what}", todo) from None
        if text.lstrip().startswith("<"):
            todo = "Download the file itself, not the page that shows it."
            raise problem(where, "a page of HTML or XML", f"a {what}", todo) from None
        found = f"broken JSON at column {error.colno} ({error.msg})"
        if error.msg == "Extra data":
            found = f"more text behind the first JSON value, at column {error.colno}"
        todo = f"Keep one JSON object in the {what}; JSON has no comments."
        raise problem(f"{where}:{error.lineno}", found, "one JSON object", todo) from None
    except (ValueError, RecursionError):
        found = "JSON with a number of thousands of digits or nesting too deep to read"
        raise problem(where, found, f"a {what}", "Check that this is the right file.") from None
    if not isinstance(data, dict):
        todo = f"Check that this is the right file: a {what} begins with '{{'."
        raise problem(where, f"a JSON {_name(data)}", "a JSON object", todo)
    return JsonFile(path, text, data)


def read_text(path: Path, what: str, limit_bytes: int) -> str:
    """The text of a regular file. Raises StallscopeError for anything that cannot be one."""
    try:
        if not path.exists():
            raise problem(str(path), "no such file", f"a {what}", "Check the path.")
        if not path.is_file():
            found = "a directory" if path.is_dir() else "something that is not a regular file"
            raise problem(str(path), found, f"a {what}", "Give the path of the file.")
        size = path.stat().st_size
        if size > limit_bytes:
            todo = "Check that this is the right file."
            raise problem(str(path), f"{size} bytes", f"at most {limit_bytes} for a {what}", todo)
        raw = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        reason = getattr(error, "strerror", None) or str(error)
        todo = "Check the path and its permissions."
        raise problem(shown(str(path)), f"that it cannot be read ({reason})", f"a {what}", todo) from None
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        todo = "Give the text file, not the weights."
        raise problem(str(path), "binary data (not UTF-8 text)", f"a {what}", todo)
    if not text.strip():
        raise problem(str(path), "an empty file", f"a {what}", "Download or write it again.")
    return text


def tuples(value: Any) -> Any:
    """Lists of any depth as tuples."""
    return tuple(tuples(item) for item in value) if isinstance(value, list) else value


def _name(value: object) -> str:
    names = {list: "list", str: "string", bool: "true or false", int: "number", float: "number"}
    return names.get(type(value), "null")
