"""A memory that holds tensors, and the DRAM behind it."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from ..errors import StallscopeError
from .fact import Fact, Quantity, Strict, problem
from .fields import Bandwidth, Count, EnergyPerBit, Size, Stated, TensorKind, Time, default, default_alias

if TYPE_CHECKING:
    from .dram import DramPreset

# Stated bandwidths are rounded, and memories run a little below the grade that they are sold in.
DRAM_TOLERANCE = 0.05


class DramTiming(Stated):
    """The DRAM behind a tier: every controller with its banks, queues and refresh (docs/dram.md)."""

    preset: str = Field(min_length=1)
    """Name or path of a DRAM preset."""
    channels: int = Field(ge=1, le=2**16)
    """Channels of all devices together; pseudo-channels are the preset's."""
    mapping: str = "RoBaCoBg"
    """Order of address fields behind one controller."""
    refresh: Literal["all-bank", "per-bank", "none"] = "all-bank"
    """How banks are refreshed."""
    queue: int = Field(default=32, ge=1, le=4096)
    """Reads, and writes, that wait at one controller at most."""

    @model_validator(mode="after")
    def _exists(self) -> DramTiming:
        from .mapping import make_mapping

        for field, check in (
            ("preset", lambda: self.device),
            ("mapping", lambda: make_mapping(self.mapping, self.device)),
            ("refresh", lambda: self.device.refresh_ticks(self.refresh)),
        ):
            try:
                check()
            except StallscopeError as e:
                raise problem(str(e), (field,)) from e
        return self

    @property
    def device(self) -> DramPreset:
        """The preset."""
        from .dram import load_dram

        return load_dram(self.preset)

    @property
    def controllers(self) -> int:
        """Controllers, each with its own queues."""
        return self.channels * self.device.pseudochannels // self.device.together


class Tier(Strict):
    """A memory that holds tensors."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=24)
    """Its name in reports: small letters, digits and _."""
    scope: Literal["core", "chip", "host"]
    """`core`: one in every core; `chip`: shared by all cores; `host`: beyond the package, shared."""
    capacity: Size
    """Bytes of one: of each core's in scope `core`, else of the whole."""
    bandwidth: Bandwidth
    """Peak read rate of the whole tier (in scope `core`: of all cores together)."""
    write_bandwidth: Bandwidth | None = None
    """Peak write rate, where it is another."""
    latency: Time
    """Load to use, as seen from the core, all in all; not what this tier adds to the one before."""
    lanes_fact: Count = default_alias("lanes")
    """Servers that share the bandwidth evenly: stacks, channels. The address picks the lane."""
    interleave: Size = default("bytes", "4 KiB")
    """Neighbouring bytes on one lane before the next lane's turn."""
    chunk: Size = default("bytes", "4 KiB")
    """The piece in which transfers claim lanes: smaller is finer and slower to simulate."""
    holds: tuple[TensorKind, ...] = ()
    """Tensor kinds that may be placed here."""
    availability: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of time in which it can serve (1 - tRFC/tREFI for refresh); slows the lanes, not the bound."""
    reuse: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the capacity in which what is read again and again is still found (`--warm`)."""
    energy: EnergyPerBit | None = None
    """Energy of reading or writing a bit."""
    timing: Literal["fixed", "dram"] = "fixed"
    """`fixed`: a rate and a latency; `dram`: banks, rows, buses and refresh of `dram`, command by command."""
    dram: DramTiming | None = None
    """The DRAM behind it, for timing `dram`. Its clock follows from `bandwidth`; its times count in that clock."""

    @model_validator(mode="after")
    def _one_dram(self) -> Tier:
        if self.dram is None:
            if self.timing == "dram":
                raise problem("is 'dram', but there is no 'dram:'; expected one with its preset; add it", ("timing",))
            return self
        if self.write_bandwidth is not None or self.scope == "core":
            raise problem("stands beside 'write_bandwidth' or 'scope: core'; expected one or none; mend it", ("dram",))
        own = self.dram.controllers * self.dram.device.peak_bytes_per_s
        if abs(own / self.bandwidth.value - 1) > DRAM_TOLERANCE:
            raise problem(
                f"{self.dram.channels} channels of {self.dram.preset} move {own / 1e9:.0f} GB/s, and the bandwidth is "
                f"{self.bandwidth}; expected them within {DRAM_TOLERANCE:.0%}; mend one of the three",
                ("dram", "channels"),
            )
        return self

    @property
    def lanes(self) -> int:
        """Servers that share the bandwidth: the controllers of timing `dram`, else `lanes`."""
        dram = self.simulated_dram
        return int(self.lanes_fact.value) if dram is None else dram.controllers

    @property
    def simulated_dram(self) -> DramTiming | None:
        """The DRAM that is simulated command by command; None with timing `fixed`."""
        return self.dram if self.timing == "dram" else None

    @property
    def dram_tick_fs(self) -> int:
        """One tick of the DRAM at which its data buses move exactly `bandwidth`, in femtoseconds, rounded."""
        if self.dram is None:
            raise StallscopeError(f"tier {self.name}: has no 'dram:'; expected one; add it")
        peak = self.dram.controllers * self.dram.device.peak_bytes_per_tick
        return round(peak * 10**15 / Fraction(self.bandwidth.value))
