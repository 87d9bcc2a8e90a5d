"""Reads one YAML file into plain Python values, and keeps the line of every field for errors."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import StallscopeError
from .fact import Path as FieldPath

# An arch file has a few hundred values on half a dozen levels. Aliases can blow up far beyond that.
MAX_BYTES, MAX_VALUES, MAX_DEPTH = 1_000_000, 20_000, 40


@dataclass(frozen=True)
class Document:
    """The content of a YAML file as plain Python values, and the line of every field."""

    file: str
    data: Any
    lines: dict[FieldPath, int] = field(default_factory=dict)

    def error(self, path: FieldPath, text: str) -> StallscopeError:
        """An error at a field: file, line and field go before the text."""
        at = path
        while at and at not in self.lines:
            at = at[:-1]
        return StallscopeError(f"{self.file}:{self.lines.get(at, 1)}: {dotted(path) or 'the file'}: {text}")


def read_yaml(path: Path) -> Document:
    """Read one YAML document with the line of every field. Raises StallscopeError for anything but plain YAML."""
    file = str(path)
    try:
        if path.is_dir():
            raise StallscopeError(f"{file}:1: the file: is a directory; expected a YAML file; give the file inside it")
        if path.exists() and not path.is_file():
            raise StallscopeError(
                f"{file}:1: the file: is a pipe or a device; expected a YAML file, which can be read twice; save it"
            )
        if not path.is_file():
            raise StallscopeError(f"{file}:1: the file: no such file; expected a YAML file; check the path")
        with path.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except (OSError, ValueError) as e:
        raise StallscopeError(
            f"{file!r}:1: the file: cannot be read ({e}); expected a readable YAML file; check it"
        ) from e
    return parse_yaml(raw, file)


def _check_brackets(text: str, file: str) -> None:
    """Refuse brackets that are nested beyond reason before the parser, which is slow on them, sees them."""
    depth = 0
    for i, letter in enumerate(text):
        if letter in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                line = text.count("\n", 0, i) + 1
                raise StallscopeError(
                    f"{file}:{line}: the file: brackets are nested more than {MAX_DEPTH} deep; "
                    "expected a few levels; close them"
                )
        elif letter in "]}" and depth:
            depth -= 1


def parse_yaml(raw: bytes, file: str) -> Document:
    """The same from bytes; `file` is the name for errors."""
    if len(raw) > MAX_BYTES:
        raise StallscopeError(
            f"{file}:1: the file: is larger than {MAX_BYTES:,} bytes; expected an arch file of a few KB; check the path"
        )
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise StallscopeError(
            f"{file}:{line}: the file: is binary (holds NUL bytes); expected YAML text; check the path"
        )
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = raw[: e.start].count(b"\n") + 1
        raise StallscopeError(
            f"{file}:{line}: the file: is binary or not UTF-8 (byte {raw[e.start]:#04x}); "
            "expected YAML text in UTF-8; save it so"
        ) from e
    _check_brackets(text, file)
    node = _parsed(text, file)
    if node is None:
        raise StallscopeError(
            f"{file}:1: the file: is empty; expected keys and values; docs/chips.md shows a whole file"
        )
    if not isinstance(node, dict):
        raise StallscopeError(
            f"{file}:1: the file: holds {kind_of(node)} at the top; expected keys and values; start with 'name: ...'"
        )
    lines: dict[FieldPath, int] = {}
    document = Document(file, None, lines)
    return Document(file, _plain(node, (), lines, document), lines)


def _parsed(text: str, file: str) -> Any:
    # Imported here: `--help` must not pay for it.
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.reader import ReaderError

    yaml = YAML(typ="rt", pure=True)
    try:
        return yaml.load(io.StringIO(text))
    except MarkedYAMLError as e:
        mark = e.problem_mark or e.context_mark
        line = mark.line + 1 if mark else 1
        raise StallscopeError(f"{file}:{line}: {_yaml_problem(e.problem or e.context or str(e), text, line)}") from None
    except ReaderError as e:
        line = text[: text.find(chr(e.character))].count("\n") + 1
        raise StallscopeError(
            f"{file}:{line}: the file: holds a control character (U+{e.character:04X}); expected YAML text; remove it"
        ) from None
    except RecursionError:
        raise StallscopeError(
            f"{file}:1: the file: is nested too deeply; expected at most {MAX_DEPTH} levels; flatten it"
        ) from None
    except (
        YAMLError,
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
    ) as e:  # ruamel leaks the last four on odd scalars and tags
        first = str(e).splitlines()[0] if str(e) else type(e).__name__
        raise StallscopeError(
            f"{file}:1: the file: is not YAML that can be read ({first}); expected plain YAML 1.2; mend it"
        ) from None


def _yaml_problem(found: str, text: str, line: int) -> str:
    source = text.splitlines()[line - 1] if line <= len(text.splitlines()) else ""
    duplicate = re.match(r'found duplicate key "?([^"]+?)"? with', found)
    if duplicate:
        return f"{duplicate[1]}: a second key {duplicate[1]!r}; expected every key once; remove or rename one"
    if "\t" in source[: len(source) - len(source.lstrip())] or "'\\t'" in found:
        return "the line: is indented with a tab; expected spaces (YAML allows no tabs); replace it"
    if "single document" in found or "another document" in found:
        return "the file: a second document begins here ('---'); expected one; keep one chip or system in a file"
    return f"the line: is not YAML ({found}); expected 'key: value' lines; mend it ({source.strip()[:60]!r})"


def _plain(node: Any, path: FieldPath, lines: dict[FieldPath, int], document: Document) -> Any:
    """Plain Python values from ruamel's; fills `lines`. An alias counts as often as it is used."""
    if len(lines) > MAX_VALUES or len(path) > MAX_DEPTH:
        raise StallscopeError(
            f"{document.file}:{lines.get(path[:1], 1)}: {dotted(path[:2])}: aliases or nesting "
            f"blow up to more than {MAX_VALUES:,} values or {MAX_DEPTH} levels; expected a plain file; write values out"
        )
    if isinstance(node, dict | list):
        marks = getattr(node, "lc").data or {}  # noqa: B009  (ruamel types its own nodes too loosely for mypy)
        items = node.items() if isinstance(node, dict) else enumerate(node)
        out: dict[Any, Any] = {}
        for key, item in items:
            at = (*path, key if isinstance(key, int) and isinstance(node, list) else str(key))
            lines[at] = marks[key][0] + 1 if key in marks else lines.get(path, 1)
            out[at[-1]] = _plain(item, at, lines, document)
        return out if isinstance(node, dict) else list(out.values())
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    if node is None:
        return None
    if type(node).__name__ == "ScalarBoolean":  # ruamel's bool with an anchor cannot derive from bool
        return bool(node)
    raise document.error(path, f"found {kind_of(node)}; expected a number or a text; put it in quotes")


def dotted(path: FieldPath) -> str:
    """A path of fields as people write it: tiers[2].bandwidth."""
    return "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path).lstrip(".")


def kind_of(value: Any) -> str:
    """What a YAML value is, for errors."""
    if isinstance(value, dict):
        return "keys and values"
    if isinstance(value, list):
        return "a list"
    return "nothing" if value is None else f"{type(value).__name__} {str(value)[:40]!r}"
