"""Several chips, and how a model is split over them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import Field

from .chip import Chip
from .fact import Path, Strict
from .fields import Count, Source
from .link import Topology

Fail = Callable[[Path, str], Exception]

# More than any machine that was built, and few enough for chips x layers to stay far from int64's end.
MAX_CHIPS = 1_000_000


@dataclass(frozen=True)
class System:
    """Chips, links and split. `None`: the compiler picks the smallest that fits."""

    chip: Chip
    chips: int | None
    """Chips in all."""
    tp: int | None
    """Tensor-parallel ways: chips that share each layer."""
    pp: int | None
    """Pipeline stages: groups of chips that take turns by layers."""
    topology: str
    """How the chips are joined; "none" for a chip without a link."""
    name: str = ""
    """The system's name, or the chip's."""

    def with_timing(self, timing: Literal["fixed", "dram"]) -> System:
        """The same system of chips with that timing (`Chip.with_timing`). Raises StallscopeError."""
        return replace(self, chip=self.chip.with_timing(timing))


class SystemFile(Strict):
    """A system file as it is written."""

    system: str = Field(min_length=1, max_length=64)
    """The name that commands take."""
    title: str = ""
    """The name that people use."""
    chip: str = Field(min_length=1)
    """A shipped chip's name, or the path of a chip file, from this file's folder."""
    count: Count | None = None
    """Chips in all."""
    tp: int | None = Field(default=None, ge=1, le=MAX_CHIPS)
    """Tensor-parallel ways."""
    pp: int | None = Field(default=None, ge=1, le=MAX_CHIPS)
    """Pipeline stages."""
    topology: Topology | None = None
    """How the chips are joined; the chip's own when not given."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """What `source:` refers to."""
    notes: tuple[str, ...] = ()
    """What a reader should know."""


def combine(form: SystemFile, chip: Chip, given: tuple[Any, Any, Any], fail: Fail) -> System:
    """A System from its file and the caller's own chips, tp and pp, which go first. Raises what `fail` makes."""
    if form.count is not None and form.count.source is not None and form.count.source not in form.sources:
        raise fail(
            ("count", "source"), f"unknown source {form.count.source!r}; expected a key of 'sources'; add it there"
        )
    count = None if form.count is None else int(form.count.value)
    for name, value in zip(("chips", "tp", "pp"), given, strict=True):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_CHIPS):
            raise fail((name,), f"found {value!r}; expected a whole number from 1 to {MAX_CHIPS:,}; change it")
    own_split = all(value is None for value in given)
    chips = count if given[0] is None else given[0]
    tp, pp = (form.tp, form.pp) if own_split else (given[1], given[2])
    used = (tp or 1) * (pp or 1)
    split = f"tp {tp or 1} x pp {pp or 1} = {used}"
    if chips is not None and used > chips:
        where = "tp" if tp and tp > 1 else "pp"
        raise fail(
            (where,), f"{split} chips, but there are {chips}; expected at most that; lower tp or pp, or raise the count"
        )
    if chip.link is None and max(chips or 1, used) > 1:
        many = f"{chips} chips" if (chips or 1) > 1 else f"{split} chips"
        where = "count" if own_split else "chips" if given[0] is not None else "tp"
        raise fail(
            (where,),
            f"{many} of {chip.name}, which has no link; expected one chip; add 'link:' to the chip file or use one",
        )
    topology = form.topology or (chip.link.topology if chip.link else "none")
    return System(chip, chips, tp, pp, topology, form.system)
