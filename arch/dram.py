"""DRAM devices: organisation and JEDEC timings by name (arch/dram/*.yaml; docs/dram.md explains every key).

A channel here is what one controller drives: one pseudo-channel where the standard has them, unless the preset says
`together`. Times are in CK; a tick is a CK, or half a CK where the standard's rules start commands on half clocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from ..errors import StallscopeError
from .dram_rules import Rules, load_rules, rule_names, value
from .fact import Strict, problem, read_origin, unknown
from .fields import Source

PRESETS = Path(__file__).parent / "dram"

RefreshMode = Literal["all-bank", "per-bank", "none"]
REFRESH_MODES: tuple[RefreshMode, ...] = ("all-bank", "per-bank", "none")


def _rules(name: Any) -> Rules:
    if isinstance(name, Rules):
        return name
    if not isinstance(name, str) or name not in rule_names():
        raise problem(unknown("rules", name, rule_names()))
    return load_rules(name)


Whole = Annotated[int, Field(ge=1, le=2**20)]
Power = Annotated[int, Field(ge=1, le=2**24)]


class DramPreset(Strict):
    """A DRAM device at one speed: how it is organised, its times, and the rules of its standard."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
    """The name that commands and chip files take."""
    standard: str = Field(min_length=1)
    """JEDEC's name of the standard: HBM3, DDR5, ..."""
    rules: Annotated[Rules, BeforeValidator(_rules)]
    """Name of the standard's command rules (arch/dram/rules)."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """What `source` refers to."""
    source: str | None = None
    """Where the times come from: a key of `sources`."""
    derived: str | None = None
    """How they were computed, and from what."""
    assumed: str | None = None
    """Why they were chosen, where no source states them."""
    confidence: Literal["seen", "derived", "assumed"]
    """`seen`: read in the source; `derived`: computed from what was; `assumed`: neither."""
    note: str | None = None
    """What a reader should know."""
    rate_mbps: Annotated[int, Field(ge=1, le=10**6)]
    """Megabits per second of a pin."""
    tCK_ps: Annotated[int, Field(ge=1, le=10**6)]
    """One clock CK in picoseconds, as the source rounds it."""
    bus_bits: Whole
    """Data pins of one pseudo-channel (of the channel, where there are none)."""
    burst_bytes: Power
    """Bytes of one RD or WR."""
    channels: Whole
    """Channels of a device (of a stack)."""
    pseudochannels: Whole
    """Pseudo-channels of a channel: 1 or 2."""
    together: Whole = 1
    """Pseudo-channels that one controller drives, with one pair of command buses and one set of queues."""
    sids: Whole = 1
    """Stack ids behind the same pins."""
    bank_groups: Whole
    """Bank groups of a pseudo-channel and stack id."""
    banks: Whole
    """Banks of a group."""
    rows: Power
    """Rows of a bank."""
    row_bytes: Power
    """Bytes of an open row, over all devices of the channel."""
    timing_ck: dict[Annotated[str, Field(pattern=r"^n[A-Z]\w*$")], Annotated[int, Field(ge=0, le=2**20)]]
    """Times in CK by JEDEC name: nCL, nRCDRD, nRP, ..."""

    @model_validator(mode="before")
    @classmethod
    def _one_origin(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if not any(key in data for key in ("source", "derived", "assumed")):
                data = {**data, "assumed": "no source given", "confidence": "assumed"}
            read_origin({key: data[key] for key in ("source", "derived", "assumed", "note") if key in data})
        return data

    @model_validator(mode="after")
    def _consistent(self) -> DramPreset:
        for check in (_check_origin, _check_rules, _check_organisation, _check_rate):
            check(self)
        return self

    @property
    def columns(self) -> int:
        """Bursts of a row."""
        return self.row_bytes // self.burst_bytes

    @property
    def all_banks(self) -> int:
        """Banks behind one controller."""
        return self.together * self.sids * self.bank_groups * self.banks

    @property
    def capacity(self) -> int:
        """Bytes behind one controller."""
        return self.all_banks * self.rows * self.row_bytes

    @property
    def controllers(self) -> int:
        """Controllers of a device (of a stack)."""
        return self.channels * self.pseudochannels // self.together

    @property
    def burst_ticks(self) -> int:
        """Ticks of a burst on the data bus."""
        return self.ticks(self.rules.burst)

    @property
    def peak_bytes_per_tick(self) -> Fraction:
        """Bytes in a tick of the data buses behind one controller."""
        return Fraction(self.burst_bytes * self.together, self.burst_ticks)

    @property
    def clock_fs(self) -> Fraction:
        """One CK: bits of a burst over pins, clocks and rate; tCK_ps where it was not rounded from that."""
        bits = Fraction(self.burst_bytes * 8, self.bus_bits * value(self.rules.burst, self.timing_ck))
        exact = bits * 10**9 / self.rate_mbps
        return exact if abs(exact - self.tCK_ps * 1000) < 1000 else Fraction(self.tCK_ps * 1000)

    @property
    def tick_fs(self) -> int:
        """One tick in whole femtoseconds, as simulated."""
        return round(self.clock_fs / self.rules.ticks_per_ck)

    @property
    def peak_bytes_per_s(self) -> float:
        """Peak rate of one controller's data buses."""
        return float(self.peak_bytes_per_tick * 10**15 * self.rules.ticks_per_ck / self.clock_fs)

    @cached_property
    def gaps(self) -> dict[tuple[str, str, str], int]:
        """Ticks from the start of a command to the start of a later one, by (level, earlier, later)."""
        return self.rules.gap_ticks(self.timing_ck)

    def ticks(self, formula: str) -> int:
        """A sum of JEDEC times, in ticks."""
        return value(formula, self.timing_ck) * self.rules.ticks_per_ck

    def refresh_ticks(self, mode: RefreshMode) -> int:
        """Ticks from one refresh to the next; 0 for `none`. Raises StallscopeError for what the standard has not."""
        if mode == "none":
            return 0
        if mode == "all-bank":
            return self.ticks(self.rules.refresh.all_bank)
        bank = self.rules.refresh.per_bank
        if bank is None:
            raise StallscopeError(
                f"{self.name}: refresh per-bank: {self.standard} has no refresh of single banks; use all-bank or none"
            )
        if bank.order == "bank after bank" and self.together < self.pseudochannels:
            # The interval is a share of REFI, rounded up for the banks of all pseudo-channels; here are fewer of them.
            whole = value(self.rules.refresh.all_bank, self.timing_ck)
            return -(-whole // self.all_banks) * self.rules.ticks_per_ck
        return self.ticks(bank.interval)


def _check_origin(preset: DramPreset) -> None:
    if preset.source is not None and preset.source not in preset.sources:
        raise problem(unknown("source", preset.source, preset.sources or ["(none: add a 'sources:' map)"]), ("source",))


def _check_rules(preset: DramPreset) -> None:
    rules = preset.rules
    if preset.standard not in rules.standards:
        raise problem(
            f"{unknown('standard', preset.standard, rules.standards)} (those of rules {rules.rules!r})", ("standard",)
        )
    lacking = sorted(rules.names() - set(preset.timing_ck))
    if lacking:
        raise problem(
            f"has no {', '.join(lacking)}; expected every time that the rules {rules.rules!r} use; add it in CK",
            ("timing_ck",),
        )
    if preset.sids > 1 and not rules.several_sids:
        raise problem(f"found {preset.sids}; expected 1; rules {rules.rules!r} know one rank only", ("sids",))


def _check_organisation(preset: DramPreset) -> None:
    if preset.row_bytes % preset.burst_bytes:
        raise problem(
            f"found {preset.row_bytes}; expected whole bursts of {preset.burst_bytes} bytes; mend one", ("row_bytes",)
        )
    if preset.pseudochannels % preset.together:
        raise problem(
            f"found {preset.together}; expected a divisor of pseudochannels ({preset.pseudochannels}); mend one",
            ("together",),
        )
    for formula in (preset.rules.burst, preset.rules.refresh.all_bank):
        ck = value(formula, preset.timing_ck)
        if ck < 1:
            raise problem(f"{formula} is {ck}; expected 1 or more; mend it", ("timing_ck",))


def _check_rate(preset: DramPreset) -> None:
    bits = Fraction(preset.burst_bytes * 8, preset.bus_bits * value(preset.rules.burst, preset.timing_ck))
    exact = float(bits * 10**6 / preset.rate_mbps)
    if abs(exact / preset.tCK_ps - 1) > 0.01:
        raise problem(
            f"found {preset.tCK_ps}; expected about {exact:.0f}: burst_bytes x 8 over bus_bits, {preset.rules.burst} "
            "and rate_mbps; mend one of the five",
            ("tCK_ps",),
        )


@dataclass(frozen=True)
class DramChoice:
    """A preset with what a name's suffixes say of its controller; None where they say nothing."""

    preset: DramPreset
    refresh: RefreshMode | None = None
    queue: int | None = None
    data_clock_stops: bool = True


def dram_names() -> list[str]:
    """Names of the presets that are shipped."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


@cache
def load_dram(name_or_path: str | Path) -> DramPreset:
    """A shipped preset by name, or any preset file by path. Raises StallscopeError on anything wrong with it."""
    from .document import read_yaml
    from .load import build, find

    document = read_yaml(find(name_or_path, "DRAM preset", {n: PRESETS / f"{n}.yaml" for n in dram_names()}))
    return build(DramPreset, document)


_SUFFIX = re.compile(r"(?P<base>.+)_(?P<word>noref|refpb|wckon|q(?P<queue>\d{1,4})|pc(?P<together>\d))")


def choose_dram(name: str) -> DramChoice:
    """A preset by name or path, where a name may carry suffixes for its controller, as in hbm3_q64_noref.

    `_noref`, `_refpb`: refresh; `_qN`: queues of N reads and N writes; `_pcN`: N pseudo-channels behind one controller;
    `_wckon`: the data clock never stops. Raises StallscopeError.
    """
    base, refresh, queue, together, stops = name, None, None, None, True
    while base not in dram_names() and (match := _SUFFIX.fullmatch(base)) and not Path(base).exists():
        base, word = match["base"], match["word"]
        refresh = {"noref": "none", "refpb": "per-bank"}.get(word, refresh)
        queue = int(match["queue"]) if match["queue"] else queue
        together = int(match["together"]) if match["together"] else together
        stops = stops and word != "wckon"
    try:
        preset = load_dram(base)
    except StallscopeError as e:
        hint = " (known suffixes: _noref, _refpb, _qN, _pcN, _wckon)" if "_" in name and base == name else ""
        raise StallscopeError(f"{e}{hint}") from None
    if together is not None:
        if not together or preset.pseudochannels % together:
            raise StallscopeError(f"{name}: found _pc{together}; expected 1 or {preset.pseudochannels}; change it")
        preset = preset.model_copy(update={"together": together})
    return DramChoice(preset, refresh, queue, stops)  # type: ignore[arg-type]
