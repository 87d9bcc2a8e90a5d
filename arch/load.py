"""Chips and systems by name or path, with file, line and field in every error."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ..errors import StallscopeError
from .chip import Chip
from .document import MAX_BYTES, Document, dotted, kind_of, read_yaml
from .fact import Path as FieldPath
from .fact import unknown
from .system import System, SystemFile, combine

HERE = Path(__file__).parent
CHIPS, SYSTEMS = HERE / "chips", HERE / "systems"

M = TypeVar("M", bound=BaseModel)


def chip_names() -> list[str]:
    """Names of the chips that are shipped."""
    return sorted(p.stem for p in CHIPS.glob("*.yaml"))


def system_names() -> list[str]:
    """Names of the systems that are shipped."""
    return sorted(p.stem for p in SYSTEMS.glob("*.yaml"))


def load_chip(name_or_path: str | Path) -> Chip:
    """A shipped chip by name, or any chip file by path. Raises StallscopeError on anything wrong with it."""
    document = read_yaml(find(name_or_path, "chip", {n: CHIPS / f"{n}.yaml" for n in chip_names()}))
    if isinstance(document.data, dict) and "system" in document.data:
        raise document.error(
            ("system",), "this is a system file; expected a chip file; use it where a system is asked for"
        )
    return build(Chip, document)


def load_system(
    name_or_path: str | Path, chips: int | None = None, tp: int | None = None, pp: int | None = None
) -> System:
    """A system by name or path, or a chip by name or path as a system of that chip.

    `chips`, `tp` and `pp` go before what the file says; if any is given, the file's own split is dropped, since the
    three belong together. What stays None is chosen by the compiler. Raises StallscopeError.
    """
    known = {n: CHIPS / f"{n}.yaml" for n in chip_names()} | {n: SYSTEMS / f"{n}.yaml" for n in system_names()}
    document = read_yaml(find(name_or_path, "chip or system", known))
    if not (isinstance(document.data, dict) and "system" in document.data):
        chip = build(Chip, document)
        form = SystemFile(system=chip.name, chip=chip.name)
        return combine(form, chip, (chips, tp, pp), lambda path, text: _option_error(document, path, text))
    form = build(SystemFile, document)
    chip = load_chip(_chip_of(form, document))
    given = any(x is not None for x in (chips, tp, pp))
    return combine(
        form,
        chip,
        (chips, tp, pp),
        lambda path, text: (_option_error if given else Document.error)(document, path, text),
    )


def build(model: type[M], document: Document) -> M:
    """Check a document against a model. Raises StallscopeError for the first problem, in the order of the file."""
    try:
        return model.model_validate(document.data)
    except ValidationError as e:
        found = [_explained(error) for error in e.errors(include_url=False)]
        # What stands in the file comes first: a missing key is often the same slip seen from the other side.
        found.sort(key=lambda item: document.lines.get(item[0], MAX_BYTES))
        path, text = found[0]
        more = f" ({len(found) - 1} more problem{'s' if len(found) > 2 else ''} in this file)" if len(found) > 1 else ""
        raise document.error(path, text + more) from None


def _explained(error: Any) -> tuple[FieldPath, str]:
    """Where a pydantic error is and what to say of it."""
    path, kind, ctx = tuple(p for p in error["loc"] if p != "[key]"), error["type"], error.get("ctx", {})
    found = error.get("input")
    if kind == "stallscope":
        return (*path, *ctx["at"]), ctx["text"]
    if kind == "missing":
        return path, f"is missing; expected it here; add '{path[-1]}: ...' (docs/chips.md tells what it means)"
    if kind == "literal_error":
        return path, unknown("value", found, re.findall(r"'([^']+)'", ctx["expected"]))
    shown = kind_of(found) if isinstance(found, dict | list) or found is None else repr(found)[:60]
    wanted = error["msg"].removeprefix("Input should be ").replace("valid tuple", "list")
    return path, f"found {shown}; expected {wanted[0].lower()}{wanted[1:]}; change it"


def find(name_or_path: str | Path, what: str, known: dict[str, Path]) -> Path:
    """The file of a shipped name, or a path as it is. Raises StallscopeError for a name that does not exist."""
    text = str(name_or_path)
    if text in known:
        return known[text]
    path = Path(text)
    looks_like_path = "/" in text or "\\" in text or path.suffix in (".yaml", ".yml")
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if text and (looks_like_path or exists):
        return path
    raise StallscopeError(f"{unknown(what, text[:80], known)}; or give the path of a YAML file")


def _chip_of(form: SystemFile, document: Document) -> Path:
    # A path in a system file is meant from that file's own folder, wherever the command runs.
    if form.chip in chip_names():
        return CHIPS / f"{form.chip}.yaml"
    path = Path(document.file).parent / form.chip
    if "/" in form.chip or path.suffix in (".yaml", ".yml"):
        if not path.is_file():
            raise document.error(
                ("chip",),
                f"no such file {str(path)!r}; expected a chip file; check the path, or use a name: "
                f"{', '.join(chip_names())}",
            )
        return path
    raise document.error(("chip",), f"{unknown('chip', form.chip, chip_names())}; or the path of a chip file")


def _option_error(document: Document, path: FieldPath, text: str) -> StallscopeError:
    return StallscopeError(f"{document.file}:1: option {dotted(path)}: {text}")
