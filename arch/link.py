"""The way from chip to chip, and which chips are close."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .fact import Fact, Quantity, Strict
from .fields import Bandwidth, Count, EnergyPerBit, Size, Time, default, default_alias

Topology = Literal["switch", "all-to-all", "ring", "dragonfly"]


class Link(Strict):
    """The way to other chips."""

    name: str = Field(min_length=1, max_length=24)
    """Its name in reports."""
    bandwidth: Bandwidth
    """One direction, of one chip, all its links together."""
    latency: Time
    """One hop, memory to memory, the flag that tells of its arrival included."""
    topology: Topology
    """How the chips of a node are joined."""
    peer: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """What each chip beyond the second adds to a step of a collective: its flag is set and waited for."""
    availability: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the rate that collectives reach (packets, acknowledgements); slows the lanes, not the bound."""
    lanes_fact: Count = default_alias("lanes")
    """Servers that share the bandwidth evenly."""
    chunk: Size = default("bytes", "4 KiB")
    """The piece in which transfers claim lanes."""
    energy: EnergyPerBit | None = None
    """Energy of moving a bit to the next chip."""

    @property
    def lanes(self) -> int:
        """Servers that share the bandwidth."""
        return int(self.lanes_fact.value)


class Node(Strict):
    """A group of tightly linked chips."""

    chips: Count
    """Chips in it: the largest tensor-parallel split that the compiler chooses by itself."""
