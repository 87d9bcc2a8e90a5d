"""The command rules of a DRAM standard as data: arch/dram/rules/*.yaml, with times as formulas of JEDEC names.

No time of any standard is in code. A rule says how long after one command another may start, and how far it reaches: on
the command bus, in a pseudo-channel, in or across stack ids (or ranks), in a bank group, in a bank.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from .document import read_yaml
from .fact import Strict, problem, unknown
from .fields import Source

RULES = Path(__file__).parent / "dram" / "rules"

LEVELS = ("channel", "pseudochannel", "sid", "other_sid", "bankgroup", "bank")
"""How far a rule reaches; `channel` is the command bus, `other_sid` from one stack id or rank to another."""
COMMANDS = ("ACT", "PREpb", "RD", "WR", "PREab", "REFab", "REFpb")
ROW_COMMANDS = ("ACT", "PREpb", "PREab", "REFab", "REFpb")

Level = Literal["pseudochannel", "sid", "other_sid", "bankgroup", "bank"]
Command = Literal["ACT", "PREpb", "RD", "WR", "PREab", "REFab", "REFpb"]
BankOrder = Literal["bank after bank", "set after set"]

_TERM = re.compile(r"\s*([+-])?\s*(n[A-Z]\w*|\d{1,6})\s*")


def terms(formula: str) -> list[tuple[int, str]]:
    """(+1 or -1, name or number) of each term of a sum such as "nCL + nBL + 2 - nCWL". Raises PydanticCustomError."""
    found, at = [], 0
    while at < len(formula):
        match = _TERM.match(formula, at)
        if match is None or (at > 0) != (match[1] is not None):
            raise problem(
                f"found {formula[:60]!r}; expected JEDEC times and numbers joined by + and -; "
                "write it like 'nCL + nBL + 2 - nCWL'"
            )
        found.append((-1 if match[1] == "-" else 1, match[2]))
        at = match.end()
    if not found:
        raise problem("found an empty formula; expected one like 'nCL + nBL'; write it or drop the rule")
    return found


def value(formula: str, times: dict[str, int]) -> int:
    """The sum, in CK. Every name must be in `times`."""
    return sum(sign * (int(name) if name.isdigit() else times[name]) for sign, name in terms(formula))


def _checked(formula: str) -> str:
    terms(formula)
    return formula


def commands(text: str) -> tuple[list[str], list[str]]:
    """The earlier and the later commands of "PREpb, PREab -> ACT". Raises PydanticCustomError."""
    before, arrow, after = text.partition("->")
    sides = [[name.strip() for name in side.split(",")] for side in (before, after)]
    if not arrow:
        raise problem(f"found {text[:60]!r}; expected commands on both sides of an arrow; write 'ACT -> RD, WR'")
    for name in (*sides[0], *sides[1]):
        if name not in COMMANDS:
            raise problem(unknown("command", name, COMMANDS))
    return sides[0], sides[1]


Formula = Annotated[str, AfterValidator(_checked)]


class FourActivates(Strict):
    """The window in which at most four rows of a pseudo-channel (or rank) are opened."""

    ck: Formula
    """Its length: the fifth ACT starts no sooner after the first."""
    refpb: bool = False
    """Whether a refresh of one bank counts as one of the four."""


class BankRefresh(Strict):
    """Refresh of one bank at a time."""

    interval: Formula
    """From one to the next, with all pseudo-channels of the channel taking turns."""
    busy: Formula
    """Time that a bank is away for it."""
    order: BankOrder
    """`bank after bank`, over all pseudo-channels; or the same bank of each pseudo-channel at once, `set after set`."""


class Refresh(Strict):
    """When the banks are refreshed."""

    all_bank: Formula
    """From one refresh of all banks to the next."""
    per_bank: BankRefresh | None = None
    """Refresh of single banks, where the standard has it."""


class Rules(Strict):
    """What a controller must keep to: buses, gaps between commands, windows, refresh."""

    rules: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Its name, which presets refer to."""
    standards: tuple[str, ...] = Field(min_length=1)
    """Standards that it is right for."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """What `source` refers to."""
    source: str
    """Where the rules come from."""
    several_sids: bool = False
    """Whether presets may have more than one stack id."""
    ticks_per_ck: Literal[1, 2]
    """2: commands may start on half clocks, so a tick is half a CK."""
    command_ck: dict[Command, float] = Field(default_factory=dict)
    """Clocks that a command takes on its bus; 1 if it is not here."""
    buses: Literal["one", "row-column"]
    """One command a tick, or one row command and one column command."""
    half_ck: tuple[Command, ...] = ()
    """What may start on half clocks; the rest starts on whole ones."""
    read_latency: Formula
    """From RD to the end of its data."""
    write_latency: Formula
    """From WR to the start of its data."""
    burst: Formula
    """Time of a burst on the data bus."""
    second_activate: Formula | None = None
    """ACT comes in two commands, the second at most so long after the first."""
    data_clock: Formula | None = None
    """The data clock stops so long after the last burst, and then a CAS goes before the next."""
    four_activates: FourActivates
    """The window of four."""
    gaps: dict[Level, dict[str, Formula | tuple[Formula, ...]]]
    """Least times from one command to another: "RD -> PREpb: nRTP"; of several, the longest holds."""
    refresh: Refresh
    """When the banks are refreshed."""

    @model_validator(mode="after")
    def _commands(self) -> Rules:
        for level, rules in self.gaps.items():
            for key in rules:
                try:
                    commands(key)
                except Exception as e:
                    raise problem(getattr(e, "context", {}).get("text", str(e)), ("gaps", level, key)) from e
        return self

    def formulas(self) -> list[str]:
        """Every formula of the file."""
        gaps = [f for rules in self.gaps.values() for each in rules.values() for f in _several(each)]
        single = [self.read_latency, self.write_latency, self.burst, self.second_activate, self.data_clock]
        refresh = [self.refresh.all_bank, *_bank_times(self.refresh)]
        return gaps + [f for f in (*single, self.four_activates.ck, *refresh) if f is not None]

    def names(self) -> set[str]:
        """The JEDEC times that a preset must state."""
        return {name for formula in self.formulas() for _, name in terms(formula) if not name.isdigit()}

    def command_ticks(self, command: str) -> int:
        """Ticks that a command takes on its bus."""
        return round(self.command_ck.get(command, 1) * self.ticks_per_ck)  # type: ignore[call-overload, no-any-return]

    def gap_ticks(self, times: dict[str, int]) -> dict[tuple[str, str, str], int]:
        """Ticks from the start of one command to the start of another, by (level, earlier, later).

        JEDEC counts from where commands end; commands of more than one tick shift the start by what they are longer.
        """
        out: dict[tuple[str, str, str], int] = {}
        for level, rules in self.gaps.items():
            for key, formulas in rules.items():
                ck = max(value(f, times) for f in _several(formulas))
                before, after = commands(key)
                for a in before:
                    for b in after:
                        ticks = ck * self.ticks_per_ck + self.command_ticks(a) - self.command_ticks(b)
                        out[level, a, b] = max(ticks, 0, out.get((level, a, b), 0))
        return out | self._bus_ticks()

    def _bus_ticks(self) -> dict[tuple[str, str, str], int]:
        """A command of more than one tick keeps others off its bus as long."""
        row = {c: c in ROW_COMMANDS or self.buses == "one" for c in COMMANDS}
        pairs = [(a, b) for a in COMMANDS for b in COMMANDS if row[a] == row[b] and self.command_ticks(a) > 1]
        return {("channel", a, b): self.command_ticks(a) for a, b in pairs}


def rule_names() -> list[str]:
    """Names of the rules that are shipped."""
    return sorted(path.stem for path in RULES.glob("*.yaml"))


@cache
def load_rules(name: str) -> Rules:
    """Shipped rules by name. Raises StallscopeError for what is wrong with the file, KeyError for an unknown name."""
    from .load import build

    if name not in rule_names():
        raise KeyError(name)
    return build(Rules, read_yaml(RULES / f"{name}.yaml"))


def _bank_times(refresh: Refresh) -> tuple[str, ...]:
    return (refresh.per_bank.interval, refresh.per_bank.busy) if refresh.per_bank else ()


def _several(formulas: str | tuple[str, ...]) -> tuple[str, ...]:
    return (formulas,) if isinstance(formulas, str) else formulas
