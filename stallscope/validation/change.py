"""A chip with one of its numbers changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, get_args

from pydantic import BaseModel

from ..arch import Chip
from ..arch.fact import Fact, Quantity, unknown
from ..arch.units import KINDS, UnitError, to_base
from ..errors import StallscopeError
from ..report.units import bytes_text, clock_text, time_text


def change(chip: Chip, path: str, value: float) -> Chip:
    """The chip with the number at a dotted path of `Chip.facts` (tiers by name) set, in base units.

    Raises StallscopeError for a path that names no number.
    """
    if path not in {p for p, _ in chip.facts()}:
        raise StallscopeError(f"{chip.name}: {unknown('number', path, [p for p, _ in chip.facts()])}")
    changed: Chip = _changed(chip, path.split("."), value)
    return changed


def _changed(part: Any, path: list[str], value: float) -> Any:
    if isinstance(part, Fact):
        return part.model_copy(update={"value": value, "text": f"{value:g}"})
    if not path:
        raise StallscopeError(f"{part}: several numbers of one origin; expected a single number")
    name, rest = path[0], path[1:]
    if isinstance(part, tuple):
        return tuple(_changed(x, rest, value) if x.name == name else x for x in part)
    if isinstance(part, dict):
        return {**part, name: _changed(part[name], rest, value)}
    field = _field(part, name)
    return part.model_copy(update={field: _changed(getattr(part, field), rest, value)})


def _field(part: BaseModel, name: str) -> str:
    """The attribute of a key."""
    return next(f for f, info in type(part).model_fields.items() if name in (f, info.alias))


def kind_of(chip: Chip, path: str) -> str:
    """The kind of quantity (units.KINDS) at a path. Raises StallscopeError for a path that names no single number."""
    part: Any = chip
    found: Quantity | None = None
    for name in path.split("."):
        if isinstance(part, tuple):
            part = next((x for x in part if x.name == name), None)
        elif isinstance(part, dict):
            part = part.get(name)
        elif isinstance(part, BaseModel):
            fields: dict[str | None, Any] = {i.alias: (f, i) for f, i in type(part).model_fields.items()}
            info = (fields | _by_name(part)).get(name)
            if info is None:
                part = None
                break
            found = next(_quantities((info[1].annotation, *info[1].metadata)), None)
            part = getattr(part, info[0])
    if not isinstance(part, Fact) or found is None:
        raise StallscopeError(f"{chip.name}: {unknown('number', path, [p for p, _ in chip.facts()])}")
    return found.kind


def _by_name(part: BaseModel) -> dict[str, Any]:
    return {f: (f, i) for f, i in type(part).model_fields.items()}


def _quantities(types: tuple[Any, ...]) -> Iterator[Quantity]:
    for t in types:
        if isinstance(t, Quantity):
            yield t
        else:
            yield from _quantities((*get_args(t), *getattr(t, "__metadata__", ())))


def read_number(text: str, kind: str, what: str) -> float:
    """A number with its unit in base units. Raises StallscopeError."""
    try:
        return float(to_base(text, kind))
    except UnitError as error:
        raise StallscopeError(f"{what}: {error}") from None


def number_text(value: float, kind: str) -> str:
    """A number in base units as a chip file would have it: '650.000 ns', '3.35 TB/s', '160 cycles'."""
    written: dict[str, Callable[[int], str]] = {
        "time": time_text, "time0": time_text, "frequency": clock_text,
        "bandwidth": lambda n: f"{bytes_text(n)}/s",
    }  # fmt: skip
    if kind in written:
        return written[kind](round(value))
    unit = KINDS[kind].unit
    plural = "s" if unit in ("cycle", "byte") and value != 1 else ""
    number = f"{round(value):,}" if value == round(value) else f"{value:,.6g}"
    return f"{number} {unit}{plural}".rstrip()
