"""One DRAM channel under one request stream: what the `memory` command runs."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .arch.dram import REFRESH_MODES, DramPreset, choose_dram
from .compiler.dram import Lane, lane_tables
from .errors import StallscopeError
from .workloads.streams import Geometry, Stream, arrival_ticks, make_stream

if TYPE_CHECKING:
    from .sim.lanes import StreamRun

Numbers = NDArray[np.int64]
SATURATED = "sat"


@dataclass(frozen=True)
class Request:
    """What is asked for, in the words of the command; None is what the preset's name says, else the default."""

    dram: str
    mapping: str
    pattern: str
    params: str
    requests: int
    load: str
    arrivals: str
    refresh: str | None
    queue: int | None


@dataclass(frozen=True, eq=False)
class MemoryRun:
    """A stream through a channel. Ticks count from the acceptance of the first burst; latencies are those of reads."""

    request: Request
    lane: Lane
    stream: Stream
    cycles: int
    """To the last beat of the last read, or the command of the last write."""
    first_data: int
    """To the last beat of the first read that has its data; without reads, to the first write's command."""
    latency: Numbers
    """From acceptance to last beat, sorted."""
    waited: Numbers
    """From when the burst was there to its last beat, sorted."""
    hits: int
    misses: int
    conflicts: int
    lost: dict[str, int]

    @property
    def preset(self) -> DramPreset:
        """The device."""
        return self.lane.preset

    @property
    def bytes(self) -> int:
        """Bytes of all bursts."""
        return len(self.stream.bursts) * self.preset.burst_bytes

    @property
    def efficiency(self) -> float:
        """Bytes as a share of what the data buses could have moved in these ticks."""
        return float(self.bytes / (self.cycles * self.preset.peak_bytes_per_tick)) if self.cycles else 0.0

    @property
    def tick_ns(self) -> float:
        """One tick."""
        return float(self.preset.clock_fs / self.preset.rules.ticks_per_ck / 10**6)


def run_memory(request: Request) -> MemoryRun:
    """Runs the stream. Raises StallscopeError for anything that is asked for and cannot be."""
    lane = _lane(request)
    preset = lane.preset
    geometry = Geometry(preset.burst_bytes, preset.row_bytes, preset.bank_groups, preset.capacity)
    stream = make_stream(request.pattern, request.params, request.requests, geometry)
    load = _load(request.load)
    available = arrival_ticks(stream, load, preset.peak_bytes_per_tick, preset.burst_bytes, request.arrivals)
    tables = lane_tables([lane])  # what cannot be says so before the simulator is loaded
    from .sim.lanes import run_stream

    run = run_stream(tables, stream.bursts, stream.writes.astype(np.int64), available)
    start = int(run.accepted.min())
    cycles = run.last - start
    reads = ~stream.writes
    return MemoryRun(
        request,
        lane,
        stream,
        cycles,
        int(run.done[reads].min() if reads.any() else run.done.min()) - start,
        np.sort((run.done - run.accepted)[reads]),
        np.sort((run.done - available)[reads]),
        run.hits,
        run.misses,
        run.conflicts,
        _lost(run, preset, start, cycles),
    )


def _lost(run: StreamRun, preset: DramPreset, start: int, cycles: int) -> dict[str, int]:
    """Ticks without data of each cause, averaged over the data buses of the controller (pseudo-channels).

    With the ticks of data they add up to `cycles` on each bus; the data of a write that comes last lies behind the end,
    as `cycles` end with its command.
    """
    latency, unused = 0, run.idle
    for first, last in run.columns.tolist():
        if first < 0:
            unused += cycles
        else:
            latency += first - start + max(0, start + cycles - last - preset.burst_ticks)
    lost = {**run.lost, "latency": latency, "no request": unused}
    return {cause: ticks // preset.together for cause, ticks in lost.items() if ticks >= preset.together}


def _lane(request: Request) -> Lane:
    choice = choose_dram(request.dram)
    refresh = request.refresh if request.refresh is not None else choice.refresh or "all-bank"
    if refresh not in REFRESH_MODES:
        known = ", ".join(REFRESH_MODES)
        raise StallscopeError(f"--refresh: found {refresh[:60]!r}; expected one of {known}; change it")
    queue = request.queue if request.queue is not None else choice.queue or 32
    return Lane(choice.preset, request.mapping, refresh, queue, choice.data_clock_stops)


def _load(text: str) -> Fraction | None:
    if text == SATURATED:
        return None
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise StallscopeError(
            f"--load: found {text[:60]!r}; expected {SATURATED}, or a share of the peak such as 0.5; change it"
        ) from None
