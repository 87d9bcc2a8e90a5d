"""A number with its origin, and the strict base of everything that is read from an arch file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, model_validator
from pydantic_core import PydanticCustomError, core_schema

from .units import KINDS, UnitError, to_base

ORIGINS = ("source", "derived", "assumed")
NO_SOURCE = "no source given"

Path = tuple[str | int, ...]


def problem(text: str, at: Path = ()) -> PydanticCustomError:
    """An error for pydantic to carry out: what was found, expected and to be done; `at` is where, from the model on."""
    return PydanticCustomError("stallscope", "{text}", {"text": text, "at": list(at)})


def unknown(what: str, found: object, known: Iterable[str]) -> str:
    """The message for a name that does not exist: the nearest one that does, and all of them."""
    names = sorted(known)
    near = difflib.get_close_matches(str(found), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return f"unknown {what} {found!r}; {hint}it is one of: {', '.join(names)}"


class Strict(BaseModel):
    """Frozen, and refuses keys that it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, data: Any) -> Any:
        if isinstance(data, cls):
            return data
        known = [field.alias or name for name, field in cls.model_fields.items()]
        if not isinstance(data, dict):
            raise problem(
                f"found {_shown(data)}; expected keys and values; write 'key: value' lines, "
                f"with the keys {', '.join(known)}"
            )
        for key in data:
            if key not in known:
                raise problem(unknown("key", key, known), (str(key),))
        return data


class Fact(Strict):
    """One number of an arch file: the value in base units, the text that it was written as, and where it comes from."""

    value: int | float
    """In the base unit of its kind: bytes, bytes/s, fs, Hz, pJ/bit, or a plain count or fraction."""
    text: str
    """As written in the file."""
    source: str | None = None
    """Key of the file's `sources`."""
    derived: str | None = None
    """How it was computed, and from what."""
    assumed: str | None = None
    """Why it was chosen, where no source states it."""
    note: str | None = None
    """Anything a reader should know."""

    @property
    def origin(self) -> str:
        """`source`, `derived` or `assumed`."""
        return next(key for key in ORIGINS if getattr(self, key) is not None)

    def __str__(self) -> str:
        """As written."""
        return self.text


@dataclass(frozen=True)
class Quantity:
    """Marks a Fact field with its kind of number (a key of units.KINDS): `Annotated[Fact, Quantity("bytes")]`."""

    kind: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Read a Fact from what the file says."""
        return core_schema.no_info_plain_validator_function(self.read)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        """The YAML form: a bare value, or a mapping with one origin."""
        kind = KINDS[self.kind]
        value: dict[str, Any] = {"type": ["number", "string"] if kind.plain else "string", "examples": [kind.example]}
        texts = {key: {"type": "string", "minLength": 1} for key in (*ORIGINS, "note")}
        fact = {
            "type": "object",
            "properties": {"value": value, **texts},
            "required": ["value"],
            "oneOf": [{"required": [key]} for key in ORIGINS],
            "additionalProperties": False,
        }
        return {"anyOf": [value, fact]}

    def read(self, raw: Any) -> Fact:
        """A Fact from "3.35 TB/s", 132 or {value: ..., source: ...}. Raises PydanticCustomError."""
        if isinstance(raw, Fact):
            return raw
        if not isinstance(raw, dict):
            return Fact(value=self._number(raw, ()), text=str(raw), assumed=NO_SOURCE)
        known = ("value", *ORIGINS, "note")
        for key in raw:
            if key not in known:
                raise problem(unknown("key", key, known), (str(key),))
        if "value" not in raw:
            raise problem(f"has no 'value'; expected one like {KINDS[self.kind].example!r}; add 'value: ...'")
        read_origin(raw)
        return Fact(
            value=self._number(raw["value"], ("value",)),
            text=str(raw["value"]),
            **{key: raw[key] for key in (*ORIGINS, "note") if key in raw},
        )

    def _number(self, raw: Any, at: Path) -> int | float:
        try:
            return to_base(raw, self.kind)
        except UnitError as e:
            raise problem(str(e), at) from e


def read_origin(raw: dict[str, Any]) -> None:
    """Check that a mapping has exactly one of source, derived and assumed, as a text. Raises PydanticCustomError."""
    found = [key for key in ORIGINS if key in raw]
    if len(found) != 1:
        have = " and ".join(found) or "none of them"
        raise problem(
            f"has {have}; expected exactly one of source (a key of 'sources'), derived (how) and assumed (why); "
            "keep or add one"
        )
    for key in (*found, *(["note"] if "note" in raw else [])):
        if not isinstance(raw[key], str) or not raw[key].strip():
            raise problem(f"found {_shown(raw[key])}; expected a text; write it in quotes", (key,))


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "keys and values"
    return repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
