"""Measures the speed that this project promises: whole processes, the first run ever, `--help`, time per event.

    python benchmarks/run.py [--runs N] [--first-runs N] [--json FILE] [--only NAME ...]

Medians over several runs, with the fastest and slowest beside them; benchmarks/README.md says how to read them.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

RUN = ("run", "--chip", "h100-sxm", "--model", "llama-3.1-70b", "--dtype", "fp8")
MIB = 2**20


@dataclass(frozen=True)
class Result:
    """One measured quantity: its median, what it should stay under, and the spread."""

    name: str
    unit: str
    median: float
    target: float | None
    least: float
    most: float
    runs: int

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        return "yes" if self.median <= self.target else "NO"


def summary(name: str, unit: str, values: list[float], target: float | None = None) -> Result:
    return Result(name, unit, statistics.median(values), target, min(values), max(values), len(values))


@dataclass(frozen=True)
class Usage:
    """What one process took."""

    wall_s: float
    cpu_s: float
    peak_mib: float


def process(words: tuple[str, ...], environment: dict[str, str] | None = None) -> Usage:
    """Run `python -m stallscope` with these words."""
    command = [sys.executable, "-m", "stallscope", *words]
    begun = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **(environment or {})})
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - begun
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{' '.join(command)}: exit code {child.returncode}")
    scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is bytes on macOS, KiB elsewhere
    return Usage(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * scale / MIB)


def warm(runs: int) -> list[Result]:
    """The whole process with everything compiled before."""
    process(RUN)
    found = [process(RUN) for _ in range(runs)]
    return [
        summary("70B fp8 on h100-sxm, warm: wall", "s", [u.wall_s for u in found], 3),
        summary("70B fp8 on h100-sxm, warm: CPU", "s", [u.cpu_s for u in found]),
        summary("70B fp8 on h100-sxm, warm: peak memory", "MiB", [u.peak_mib for u in found], 1.5e9 / MIB),
    ]


def timings(runs: int) -> list[Result]:
    """Whole steps with both timings of DRAM: the CPU time of their processes."""
    out = []
    for timing, most in (("fixed", 3), ("dram", 10)):
        words = ("run", "--chip", "h100-sxm", "--model", "llama-3.1-8b", "--timing", timing)
        process(words)
        found = [process(words).cpu_s for _ in range(runs)]
        out.append(summary(f"8B on h100-sxm, --timing {timing}, warm: CPU", "s", found, most))
    return out


def first(runs: int) -> list[Result]:
    """The first run ever: the kernel is compiled into an empty cache."""
    found = []
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as empty:
            found.append(process(RUN, {"NUMBA_CACHE_DIR": empty}))
    return [
        summary("the same, first run ever: wall", "s", [u.wall_s for u in found], 40),
        summary("the same, first run ever: CPU", "s", [u.cpu_s for u in found]),
    ]


def help_(runs: int) -> list[Result]:
    """What people wait for most often."""
    process(("--help",))
    return [summary("stallscope --help: wall", "s", [process(("--help",)).wall_s for _ in range(runs)], 0.5)]


@njit(cache=False)
def bare_heap(time_of: Any, number: Any, depth: int, rounds: int, seed: int) -> int:
    """A heap of two arrays, keyed by (time, number), kept at `depth`: per round a pop and a push at a later time."""
    state = np.int64(seed)
    sum_ = np.int64(0)
    for i in range(depth):  # any ascending row is a heap
        time_of[i], number[i] = i, i
    n = depth
    for r in range(rounds):
        sum_ += time_of[0]
        now = time_of[0]
        n -= 1
        last_time, last_number = time_of[n], number[n]
        at, down = 0, 1
        while down < n:
            right = down + 1
            if right < n and (
                time_of[right] < time_of[down] or (time_of[right] == time_of[down] and number[right] < number[down])
            ):
                down = right
            if last_time < time_of[down] or (last_time == time_of[down] and last_number < number[down]):
                break
            time_of[at], number[at] = time_of[down], number[down]
            at = down
            down = 2 * at + 1
        time_of[at], number[at] = last_time, last_number
        state = (state * 1103515245 + 12345) & 0x7FFFFFFF
        new_time, new_number = now + 1 + state % (2 * depth), depth + r
        at = n
        n += 1
        while at > 0:
            up = (at - 1) >> 1
            if time_of[up] < new_time or (time_of[up] == new_time and number[up] < new_number):
                break
            time_of[at], number[at] = time_of[up], number[up]
            at = up
        time_of[at], number[at] = new_time, new_number
    return int(sum_)


def heap_ns(depth: int, rounds: int = 2_000_000) -> float:
    """Nanoseconds of a push and a pop."""
    arrays = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64)
    begun = time.perf_counter()
    bare_heap(*arrays, depth, rounds, 1)
    return (time.perf_counter() - begun) / rounds * 1e9


def kernel(runs: int) -> list[Result]:
    """The event loop alone, every block simulated, beside the bare heap of the same depth in the same process."""
    from stallscope import Request, compile_graph, decode_graph, load_model, load_system
    from stallscope.sim import columns as k
    from stallscope.sim import run as machine
    from stallscope.sim.layout import lay_out

    graph = decode_graph(load_model("llama-3.1-8b"), Request())
    program = compile_graph(graph, load_system("h100-sxm"))
    prog = lay_out(program)
    per_event, per_heap, ratio = [], [], []
    depth = _depth(program, prog)
    bare_heap(np.zeros(2, np.int64), np.zeros(2, np.int64), 1, 1, 1)
    events = 0
    for i in range(runs + 1):
        begun = time.perf_counter()
        state, _ = machine._advance(program, prog, None)
        seconds = time.perf_counter() - begun
        events = int(state.g[k.G_EVENTS])
        bare = heap_ns(depth)
        if i:  # the first one loads the compiled kernel
            per_event.append(seconds / events * 1e9)
            per_heap.append(bare)
            ratio.append(per_event[-1] / bare)
    return [
        summary(f"kernel per event ({events:,} events)", "ns", per_event),
        summary(f"bare heap, push + pop at depth {depth}", "ns", per_heap),
        summary("kernel per event / bare heap", "x", ratio, 4),
    ]


def _depth(program: Any, prog: Any) -> int:
    """Mean size of the event heap, sampled through the run."""
    from stallscope.sim import columns as k
    from stallscope.sim.kernel import advance, open_first
    from stallscope.sim.state import grow, new_state

    state = new_state(program, prog)
    open_first(prog, state)
    sizes, budget = [], 0
    while True:
        budget += 5000
        status = advance(prog, state, None, budget, False)
        if status == k.GROW:
            state = grow(state)
        elif status == k.BUDGET:
            sizes.append(int(state.g[k.G_HEAP]))
        else:
            return round(statistics.mean(sizes))


CHUNK = 128  # bursts of 32 bytes: what a chunk of 4 KiB is to a lane
LANES = (
    # what, DRAM, mapping, bursts, how they come, most nanoseconds a burst (a step of 470 million in 10 s)
    ("one sequence, ddr4 RoBaCoBg", "ddr4", "RoBaCoBg", 4_000_000, "sequence", 10.0),
    ("one sequence, hbm2 RoBaCoBg", "hbm2", "RoBaCoBg", 2_000_000, "sequence", 10.0),
    ("one sequence, hbm3_5200 RoBaCoBg", "hbm3_5200", "RoBaCoBg", 2_000_000, "sequence", 10.0),
    ("one sequence, hbm3_5200 RoBaCoBgC1", "hbm3_5200", "RoBaCoBgC1", 1_000_000, "sequence", None),
    ("one sequence, hbm3_5200 RoBaBgCo", "hbm3_5200", "RoBaBgCo", 1_000_000, "sequence", None),
    ("chunks of 8 streams, RoBaCoBg", "hbm3_5200", "RoBaCoBg", 2_000_000, "chunks", 21.0),
    ("the same with gaps", "hbm3_5200", "RoBaCoBg", 2_000_000, "gaps", 21.0),
    ("chunks of 8 streams, RoBaCoBgC1", "hbm3_5200", "RoBaCoBgC1", 1_000_000, "chunks", None),
    ("chunks anywhere, RoBaCoBg", "hbm3_5200", "RoBaCoBg", 1_000_000, "anywhere", None),
    ("pairs at random, hbm3_5200", "hbm3_5200", "RoBaCoBg", 250_000, "pairs", None),
    ("pairs at random, hbm3", "hbm3", "RoBaCoBg", 250_000, "pairs", 200.0),
    ("pairs at random, hbm2", "hbm2", "RoBaCoBg", 250_000, "pairs", 200.0),
)


def lanes(runs: int) -> list[Result]:
    """DRAM lanes alone, by the CPU time of their process: nanoseconds a burst."""
    from stallscope.arch.dram import choose_dram
    from stallscope.compiler.dram import Lane, lane_tables
    from stallscope.sim import dram
    from stallscope.sim.lanes import new_lane, offer

    out = []
    for what, name, mapping, bursts, how, most in LANES:
        preset = choose_dram(name).preset
        tables = lane_tables([Lane(preset, mapping)])
        sent = lane_runs(how, bursts, preset.capacity // preset.burst_bytes)
        found = []
        for i in range(runs + 1):
            lane, rows = new_lane(tables, 0), sent.copy()
            offer(lane, rows)
            begun = time.process_time()
            dram.drain(lane, rows, np.zeros((0, 2), np.int64))
            if i:  # the first one loads the compiled kernel
                found.append((time.process_time() - begun) / bursts * 1e9)
        out.append(summary(f"lane: {what}", "ns", found, most))
    return out


def lane_runs(how: str, bursts: int, capacity: int) -> Any:
    """Runs of bursts: one sequence; chunks, of which the next always waits, or which come as fast as a lane takes them
    on average; pairs."""
    from stallscope.sim import dram

    rng = np.random.default_rng(1)
    size = {"sequence": bursts, "pairs": 2}.get(how, CHUNK)
    rows = np.zeros((bursts // size, dram.RUN_COLUMNS), np.int64)
    if how == "anywhere":
        rows[:, dram.R_FIRST] = rng.integers(0, capacity - size, len(rows))
    elif how == "pairs":
        rows[:, dram.R_FIRST] = rng.integers(0, capacity // 2, len(rows)) * 2
    elif how != "sequence":
        stream = rng.integers(0, 8, len(rows))
        for k in range(8):
            mine = np.flatnonzero(stream == k)
            rows[mine, dram.R_FIRST] = (rng.integers(0, capacity // CHUNK) + np.arange(len(mine))) * CHUNK % capacity
    if how == "gaps":
        rows[:, dram.R_AVAILABLE] = np.cumsum(rng.integers(0, 2 * 590, len(rows)))
    rows[:, dram.R_COUNT] = rows[:, dram.R_LEFT] = size
    return rows


PARTS: dict[str, Callable[[argparse.Namespace], list[Result]]] = {
    "warm": lambda given: warm(given.runs),
    "first": lambda given: first(given.first_runs),
    "timings": lambda given: timings(given.runs),
    "help": lambda given: help_(given.runs),
    "kernel": lambda given: kernel(given.runs),
    "lanes": lambda given: lanes(given.runs),
}


def table(results: list[Result]) -> str:
    rows = [("what", "median", "target", "met", "least", "most", "runs")]
    for r in results:
        target = "" if r.target is None else f"{r.target:,.4g} {r.unit}"
        rows.append(
            (r.name, f"{r.median:,.4g} {r.unit}", target, r.verdict, f"{r.least:,.4g}", f"{r.most:,.4g}", str(r.runs))
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Speed of stallscope: medians beside their targets.")
    parser.add_argument("--runs", type=int, default=7, metavar="N", help="runs of each measurement (default: 7)")
    parser.add_argument("--first-runs", type=int, default=3, metavar="N", help="runs with an empty cache (default: 3)")
    parser.add_argument("--only", choices=tuple(PARTS), nargs="+", help="measure only these")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    given = parser.parse_args()
    if given.runs < 1 or given.first_runs < 1:
        parser.error("--runs and --first-runs: at least 1")
    results = [r for name, part in PARTS.items() if name in (given.only or PARTS) for r in part(given)]
    print(table(results))
    if given.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
        data = {"machine": machine, "results": [{**asdict(r), "met": r.verdict != "NO"} for r in results]}
        given.json.write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    return int(any(r.verdict == "NO" for r in results))


if __name__ == "__main__":
    sys.exit(main())
