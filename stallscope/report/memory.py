"""One DRAM channel under one request stream, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import units
from .layout import grid, pairs, render, section

if TYPE_CHECKING:
    from ..memory import MemoryRun

SCHEMA = "stallscope-memory/1"

MEANING = {
    "refresh": "a refresh was due or under way",
    "row miss": "the burst's row had to be opened in a bank without an open row",
    "bank conflict": "another row of the bank had to be closed first",
    "turnaround": "the data bus turned from reads to writes or back",
    "bank group": "two bursts of one bank group, which must keep a distance (CCD_L)",
    "other": "command buses, stack ids, data clock",
    "latency": "before the first command and behind the last",
    "no request": "nothing waited",
}


def memory_json(run: MemoryRun) -> dict[str, Any]:
    """The run as plain data; cycles are ticks of `tick_ns`."""
    return {
        "schema": SCHEMA,
        "dram": run.request.dram,
        "standard": run.preset.standard,
        "mapping": run.lane.mapping,
        "pattern": run.request.pattern,
        "params": run.request.params,
        "offered_load": run.request.load,
        "arrivals": run.request.arrivals,
        "refresh": run.lane.refresh,
        "queue": run.lane.queue,
        "requests": len(run.stream.bursts),
        "reads": run.stream.reads,
        "bytes": run.bytes,
        "cycles": run.cycles,
        "tick_ns": run.tick_ns,
        "peak_bytes_per_cycle": float(run.preset.peak_bytes_per_tick),
        "peak_gb_per_s": run.preset.peak_bytes_per_s / 1e9,
        "efficiency": run.efficiency,
        "mean_latency_cycles": _mean(run.latency),
        "p50_latency_cycles": _element(run.latency, 50),
        "p99_latency_cycles": _element(run.latency, 99),
        "gen_mean_latency_cycles": _mean(run.waited),
        "gen_p99_latency_cycles": _element(run.waited, 99),
        "first_data_cycle": run.first_data,
        "row_hits": run.hits,
        "row_misses": run.misses,
        "row_conflicts": run.conflicts,
        "lost": dict(run.lost),
    }


def memory_table(run: MemoryRun) -> str:
    """The result, and where the cycles went: text of at most 100 columns."""
    data = memory_json(run)
    tick = run.tick_ns
    request, preset = run.request, run.preset
    stream = " ".join(part for part in (request.pattern, request.params) if part)
    load = "as fast as the queue takes them" if request.load == "sat" else f"{request.load} x the peak"
    answer = [
        ("cycles", f"{run.cycles:,} of {tick:.6g} ns: {units.time_text(round(run.cycles * tick * 10**6))}"),
        ("efficiency", f"{run.efficiency:.2%} of {data['peak_gb_per_s']:.4g} GB/s"),
        ("requests", f"{data['requests']:,} bursts of {preset.burst_bytes} bytes, {data['reads']:,} of them reads"),
        ("offered", f"{load}, {stream}"),
        ("read latency", _latency_text(data, tick)),
        ("rows", f"{run.hits:,} hits, {run.misses:,} misses, {run.conflicts:,} conflicts"),
        ("channel", _channel_text(run)),
    ]
    title = f"{request.dram} ({preset.standard}, {preset.rate_mbps:,} Mb/s), {run.lane.mapping}"
    return render(section(title, "", pairs(answer)), section("Where the cycles of the data bus went", _losses(run)))


def _losses(run: MemoryRun) -> Any:
    ranked = sorted(run.lost.items(), key=lambda item: (-item[1], item[0]))
    data = run.cycles - sum(run.lost.values())
    parts = [data, *(ticks for _, ticks in ranked)]
    shares = units.share_column(parts)
    names = [("data", "bursts on the bus"), *((name, MEANING[name]) for name, _ in ranked)]
    rows = [(name, f"{n:,}", share, why) for (name, why), n, share in zip(names, parts, shares[:-1], strict=True)]
    return grid(("", "cycles", "share", ""), rows, ("all", f"{run.cycles:,}", shares[-1], ""), words=(0, 3))


def _latency_text(data: dict[str, Any], tick: float) -> str:
    if data["mean_latency_cycles"] is None:
        return "no reads"
    names = (("mean", "mean_latency_cycles"), ("p50", "p50_latency_cycles"), ("p99", "p99_latency_cycles"))
    return ", ".join(f"{name} {data[key]:,.6g} cycles ({data[key] * tick:,.4g} ns)" for name, key in names)


def _channel_text(run: MemoryRun) -> str:
    preset = run.preset
    buses = f"{preset.together} pseudo-channels of " if preset.together > 1 else ""
    sids = f"{preset.sids} stack ids x " if preset.sids > 1 else ""
    return (
        f"{buses}{preset.bus_bits} bits, {sids}{preset.bank_groups} bank groups x {preset.banks} banks, rows of "
        f"{preset.row_bytes:,} bytes; queues of {run.lane.queue} reads and {run.lane.queue} writes; "
        f"refresh {run.lane.refresh}"
    )


def _mean(latency: Any) -> float | None:
    return float(latency.mean()) if len(latency) else None


def _element(latency: Any, percent: int) -> int | None:
    """The element ceil(percent % of n) of the sorted latencies, counted from 1."""
    return int(latency[-(-percent * len(latency) // 100) - 1]) if len(latency) else None
