"""A chip as the engines, stations and routes of a TileProgram: bandwidths become femtoseconds per byte, latencies
hops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache

import numpy as np

from ..arch import Chip
from ..arch.parts import Port, Tier
from .dram import Lane, lane_tables, unloaded_ticks
from .program import DRAM_PARAMS, FS_PER_S, LOST, NO_DRAMS, Drams, Engines, Routes, Stations, ints

TENSOR_KINDS = ("weight", "expert", "kv", "activation", "embedding")
LAUNCH, LINK, MATRIX, VECTOR = "launch", "link", "matrix", "vector"
HOST = "host"  # between steps, before the first launch
KERNEL = "kernel"  # what a kernel itself takes: prologue, loop, epilogue


@dataclass(frozen=True)
class EngineRow:
    """One engine before it is numbered. `port` in bytes per cycle of the core clock, `window` in bytes.

    `clocked`: it starts on edges of the core clock, else at any femtosecond.
    """

    name: str
    kind: str
    window: int = 0
    port: Fraction = Fraction(0)
    port_cause: str = LAUNCH
    clocked: bool = True


@dataclass
class Machine:
    """Names and numbers of a chip's causes, tiers and routes, for the passes that emit instructions."""

    chip: Chip
    causes: list[str]
    tiers: list[str]
    engines: Engines
    stations: Stations
    routes: Routes
    drams: Drams = NO_DRAMS
    route_of: dict[str, int] = field(default_factory=dict)

    def engine(self, name: str) -> int:
        """Number of an engine."""
        return self._numbers[name]

    def __post_init__(self) -> None:
        self._numbers = {name: i for i, name in enumerate(self.engines.name)}

    def cause(self, name: str) -> int:
        """Number of a cause."""
        return self.causes.index(name)

    def tier(self, name: str) -> int:
        """Number of a tier."""
        return self.tiers.index(name)

    def cycles_fs(self, cycles: float | Fraction) -> int:
        """Whole cycles, rounded up, in fs."""
        return -int(-Fraction(cycles) // 1) * self.chip.period_fs


def build_machine(chip: Chip, rows: Sequence[EngineRow], whole_transfers: int = 0) -> Machine:
    """Number a chip's parts. `whole_transfers`: chunk size that keeps every transfer in one piece (static style), else
    0."""
    shared = [t for t in chip.tiers if t.scope != "core"]
    causes = (
        [MATRIX, VECTOR, LAUNCH, LINK]
        + [KERNEL] * (chip.style == "kernels")
        + [HOST] * (chip.execution.step_gap.value > 0)
    )
    for tier in chip.tiers:
        causes += [f"bandwidth:{tier.name}", f"latency:{tier.name}"]
        if tier.simulated_dram is not None:
            causes += [f"{why}:{tier.name}" for why in LOST]
    period = chip.period_fs
    # A port of p bytes a cycle takes period / p femtoseconds per byte.
    per_byte = {port: Fraction(period) / port if port else Fraction(0) for port in {r.port for r in rows}}
    ports = [per_byte[r.port] for r in rows]
    engines = Engines(
        tuple(r.name for r in rows), tuple(r.kind for r in rows), ints([period if r.clocked else 1 for r in rows]),
        ints([r.window for r in rows]), ints([p.numerator for p in ports]), ints([p.denominator for p in ports]),
        ints([causes.index(r.port_cause) for r in rows]),
    )  # fmt: skip
    drams, kinds = _drams(shared)
    stations, names = _stations(chip, shared, causes, kinds)
    routes, route_of = _routes(chip, shared, names, causes, whole_transfers)
    return Machine(chip, causes, [t.name for t in chip.tiers], engines, stations, routes, drams, route_of)


def port_of(port: Port, share: int = 1) -> Fraction:
    """Bytes per cycle of an engine that has the `share`-th part of a port; 0: only the tiers limit."""
    return Fraction(0) if port.port is None else _part(port.port.value, share)


@lru_cache(maxsize=1024)  # asked for every engine of every program
def _part(value: float, share: int) -> Fraction:
    return Fraction(str(value)) / share


def link_port(chip: Chip) -> Fraction:
    """Bytes per cycle of a chip's way out to its links; 0 without links."""
    return Fraction(str(chip.link.bandwidth.value)) / Fraction(str(chip.clock.value)) if chip.link else Fraction(0)


def window_of(port: Port) -> int:
    """Bytes in flight of an engine, 0: no limit."""
    return 0 if port.bytes_in_flight is None else int(port.bytes_in_flight.value)


def nearest_buffer(chip: Chip) -> str:
    """The tier whose port loads pass: the cores' own memory, or the nearest of the chip."""
    return chip.tiers[0].name


def _rate(bytes_per_s: float, lanes: int, availability: float = 1.0) -> Fraction:
    """Femtoseconds per byte of one lane, as a fraction small enough for int64 and never too fast."""
    exact = Fraction(FS_PER_S * lanes) / (Fraction(str(bytes_per_s)) * Fraction(str(availability)))
    near = exact.limit_denominator(10**6)
    return near if near >= exact else Fraction(-int(-exact * 10**6 // 1), 10**6)


def _drams(shared: list[Tier]) -> tuple[Drams, dict[str, int]]:
    """The kinds of DRAM lanes, and the row of each tier that has one. A tick moves exactly the tier's bandwidth."""
    tiers = [t for t in shared if t.simulated_dram is not None]
    lanes = [Lane(d.device, d.mapping, d.refresh, d.queue) for t in tiers if (d := t.simulated_dram) is not None]
    if not lanes:
        return NO_DRAMS, {}
    drams = lane_tables(lanes)
    drams.params[:, DRAM_PARAMS.index("tick_fs")] = [t.dram_tick_fs for t in tiers]
    return drams, {t.name: i for i, t in enumerate(tiers)}


def _stations(
    chip: Chip, shared: list[Tier], causes: list[str], drams: dict[str, int]
) -> tuple[Stations, dict[str, int]]:
    rows: list[tuple[str, int, int, Fraction, int, int, int]] = []
    for tier in shared:
        dram = drams.get(tier.name, -1)
        available = float(tier.availability.value) if tier.availability and dram < 0 else 1.0
        for way, rate in (("", tier.bandwidth), (":write", tier.write_bandwidth)):
            if rate is not None:
                fs = _rate(float(rate.value), tier.lanes, available)
                rows.append(
                    (
                        tier.name + way,
                        tier.lanes,
                        int(tier.interleave.value),
                        fs,
                        causes.index(f"bandwidth:{tier.name}"),
                        dram,
                        causes.index(f"{LOST[0]}:{tier.name}") if dram >= 0 else 0,
                    )
                )
    if chip.link is not None:
        share = float(chip.link.availability.value) if chip.link.availability else 1.0
        fs = _rate(float(chip.link.bandwidth.value), chip.link.lanes, share)
        rows.append((chip.link.name, chip.link.lanes, int(chip.link.chunk.value), fs, causes.index(LINK), -1, 0))
    stations = Stations(
        tuple(r[0] for r in rows), ints([r[1] for r in rows]), ints([r[2] for r in rows]),
        ints([r[3].numerator for r in rows]), ints([r[3].denominator for r in rows]), ints([r[4] for r in rows]),
        ints([r[5] for r in rows]), ints([r[6] for r in rows]),
    )  # fmt: skip
    return stations, {r[0]: i for i, r in enumerate(rows)}


def _routes(
    chip: Chip, shared: list[Tier], station: dict[str, int], causes: list[str], whole: int
) -> tuple[Routes, dict[str, int]]:
    """`load:TIER` from a tier to a core, `copy:TIER` the same for pieces of tiles (kernels style), `store:TIER` back,
    and `link`: through every shared tier that stands between.

    A tier's latency is load-to-use in all, so each hop has what its tier adds to the nearer ones; less, where its DRAM
    is simulated, what one burst to a closed bank takes there.
    """
    names: list[str] = []
    chunks: list[int] = []
    hops: list[list[tuple[int, int, int]]] = []
    for i, tier in enumerate(shared):
        between = [t for t in shared[:i] if t.scope == tier.scope or t.scope == "chip"]
        way = [tier, *reversed(between)]
        inward = []
        for far, near in zip(way, [*way[1:], None], strict=True):
            added = int(far.latency.value) - (int(near.latency.value) if near else 0)
            if far.simulated_dram is not None:
                added = max(added - unloaded_ticks(far.simulated_dram.device) * far.dram_tick_fs, far.dram_tick_fs)
            inward.append((far.name, added, f"latency:{far.name}"))
        outward = [
            (t.name + ":write" if t.write_bandwidth else t.name, a, c) for t, (_, a, c) in zip(way, inward, strict=True)
        ]
        copied = [*inward[:-1], (inward[-1][0], inward[-1][1] + int(chip.load.copy_latency.value), inward[-1][2])]
        for name, path in (("load", inward), ("copy", copied), ("store", outward[::-1])):
            if name == "copy" and chip.style != "kernels":
                continue
            names.append(f"{name}:{tier.name}")
            chunks.append(whole or int(tier.chunk.value))
            hops.append([(station[s], max(fs, 0), causes.index(c)) for s, fs, c in path])
    if chip.link is not None:
        names.append("link")
        chunks.append(whole or int(chip.link.chunk.value))
        hops.append([(station[chip.link.name], int(chip.link.latency.value), causes.index(LINK))])
    flat = [h for way in hops for h in way]
    routes = Routes(
        tuple(names), ints(chunks), ints(np.cumsum([0, *(len(h) for h in hops)])),
        ints([h[0] for h in flat]), ints([h[1] for h in flat]), ints([h[2] for h in flat]),
    )  # fmt: skip
    return routes, {name: i for i, name in enumerate(names)}
