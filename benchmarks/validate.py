"""Compares stallscope with public measurements and with trusted peers. Nothing is fitted to any of these numbers.

    python benchmarks/validate.py [--only dram|systolic|gemm|endtoend] [--data DIR] [--sample N] [--json FILE]

The tables are Markdown; docs/validation.md shows them and says what they mean.
Exit code 2: a data file is missing or bad.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import random
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import stallscope
from stallscope import Request, compile_graph, decode_graph, load_model, load_system, simulate
from stallscope.compiler.matrix import gemm as systolic_gemm
from stallscope.errors import StallscopeError
from stallscope.memory import Request as Stream
from stallscope.memory import run_memory
from stallscope.workloads import add_op, add_tensor, new_graph

DATA = Path(__file__).resolve().parents[2] / "shared"
FS_PER_MS = 10**12
Row = dict[str, str]
Rows = list[Row]


@dataclass
class Table:
    """What is printed, and behind it every comparison: `ours` and `theirs` in the unit of `title`."""

    title: str
    columns: tuple[str, ...]
    lines: list[tuple[Any, ...]]
    notes: list[str] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        lines = (self.columns, ("---",) * len(self.columns), *self.lines)
        cells = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
        return "\n".join([f"### {self.title}", "", *cells, "", *self.notes])


def error(row: dict[str, Any]) -> float:
    return float(row["ours"] / row["theirs"] - 1)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def grouped(rows: Iterable[dict[str, Any]], *keys: str) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return groups


# One DRAM channel.

CATEGORIES = {"burst": "unloaded, bursts", "rand": "rand", "seq": "seq", "stride": "stride", "streams": "streams"}
CATEGORIES["rwseq2"] = "rwseq2"
# The other simulator's words for the same devices and timings.
DRAMSIM3 = {"d3_ddr4": "ddr4", "d3_ddr4noref": "ddr4_noref", "d3_hbm2pc": "hbm2", "d3_hbm2pcnoref": "hbm2_noref"}


def dram(files: list[Rows]) -> list[Table]:
    """Cycles of a stream, by the code of `stallscope memory`."""
    peers: dict[str, list[dict[str, Any]]] = {"Ramulator": [], "DRAMsim3": []}
    for row in files[0]:
        ramulator = row["simulator"].startswith("ramulator")
        config = row["config"] if ramulator else DRAMSIM3[row["config"].rpartition("_")[0]]
        words = (config, row["address_mapping"], row["pattern"], row["params"], int(row["requests"]))
        ours = _stream(*words, row["offered_load"], row["arrivals"] or "det")
        name = " ".join(str(w) for w in words if w)
        peers["Ramulator" if ramulator else "DRAMsim3"].append(
            {"name": name, "config": config, "kind": row["pattern"], "ours": ours, "theirs": int(row["cycles"])}
        )
    titles = {"Ramulator": "cycles against Ramulator 2.1", "DRAMsim3": "cycles against DRAMsim3 (another controller)"}
    return [_dram_table(titles[peer], rows) for peer, rows in peers.items() if rows]


@functools.cache
def _stream(dram: str, mapping: str, pattern: str, params: str, requests: int, load: str, arrivals: str) -> int:
    return run_memory(Stream(dram, mapping, pattern, params, requests, load, arrivals, None, None)).cycles


def _dram_table(title: str, rows: list[dict[str, Any]]) -> Table:
    lines = []
    by_kind = grouped(rows, "kind")
    for kind, name in CATEGORIES.items():
        group = by_kind.get((kind,), [])
        if not group:
            continue
        errors = [error(row) for row in group]
        worst = max(group, key=lambda row: abs(error(row)))
        mean = statistics.mean(abs(e) for e in errors)
        ends = f"{worst['name']} ({worst['ours']:,} / {worst['theirs']:,})" if error(worst) else ""
        exact = sum(row["ours"] == row["theirs"] for row in group)
        lines.append((name, len(group), exact, percent(mean, 3), percent(error(worst), 3), ends))
    columns = ("streams", "rows", "equal", "mean abs difference", "worst", "worst row (ours / theirs)")
    return Table(title, columns, lines, [], rows)


# Products on systolic arrays, and on GPUs.


def systolic(files: list[Rows]) -> list[Table]:
    """Cycles of one product on one systolic array, by the code of `stallscope gemm`."""
    rows: list[dict[str, Any]] = []
    for row in files[0]:
        m, n, k = (int(row[key]) for key in "mnk")
        ours = systolic_gemm(row["array"], row["dataflow"], 1, m, n, k).time.cycles
        name = f"{row['array']} {m}x{k}x{n}"
        rows.append({"name": name, "kind": row["dataflow"], "ours": ours, "theirs": int(row["cycles"])})
    lines = [
        (kind, len(group), sum(r["ours"] == r["theirs"] for r in group), percent(max(abs(error(r)) for r in group)))
        for (kind,), group in sorted(grouped(rows, "kind").items())
    ]
    title = "cycles against SCALE-Sim 3.0.0 (+1, see the data)"
    return [Table(title, ("dataflow", "rows", "equal", "worst difference"), lines, [], rows)]


SIZES = ((10, "under 10 MB"), (25, "10 to 25 MB"), (100, "25 to 100 MB"), (400, "100 to 400 MB"))


def gemm(files: list[Rows]) -> list[Table]:
    """Time of one linear layer, bf16, at most 64 rows: a graph of one operator."""
    rows: list[dict[str, Any]] = []
    for row in (row for file in files for row in file):
        m, n, k = (int(row[key]) for key in "mnk")
        size = next((name for limit, name in SIZES if 2 * n * k < limit * 1e6), "400 MB and more")
        theirs = float(row["latency_ms"])
        chip = row["gpu"].replace("_", "-")
        name = f"m {m}, n {n}, k {k}"
        rows.append({"name": name, "chip": chip, "size": size, "ours": _linear_ms(chip, m, n, k), "theirs": theirs})
    return [_gemm_table(chip, group) for (chip,), group in grouped(rows, "chip").items()]


def gemm_rows(row: Row) -> bool:
    return row["dtype"] == "bfloat16" and int(row["m"]) <= 64


def _linear_ms(chip: str, m: int, n: int, k: int) -> float:
    graph = new_graph("one linear", batch=m)
    weight = add_tensor(graph, "w", "weight", (n, k))
    x = add_tensor(graph, "x", "activation", (m, k))
    add_op(graph, "linear", "linear", {"x": x, "weight": weight}, {"out": (m, n)})
    return float(simulate(compile_graph(graph, load_system(chip, tp=1))).time_fs / FS_PER_MS)


def _gemm_table(chip: str, rows: list[dict[str, Any]]) -> Table:
    by_size = grouped(rows, "size")
    order = [name for _, name in SIZES] + ["400 MB and more"]
    lines = []
    for name, group in (*((n, by_size.get((n,), [])) for n in order), ("all", rows)):
        if group:
            errors = np.array([error(row) for row in group])
            median, p90 = np.quantile(abs(errors), (0.5, 0.9))
            lines.append((name, len(group), percent(median), percent(p90), percent(float(np.median(errors)))))
    ends = sorted(rows, key=error)
    notes = [f"{w}: {_named(row)}" for w, row in (("lowest", ends[0]), ("highest", ends[-1]))]
    columns = ("weights", "rows", "median abs error", "p90 abs error", "median error")
    return Table(f"time of bf16 products, m <= 64, {chip}", columns, lines, notes, rows)


def _named(row: dict[str, Any]) -> str:
    return f"{row['name']}: {1e3 * row['ours']:.1f} us against {1e3 * row['theirs']:.1f} us ({percent(error(row))})"


# Whole decode steps.

MODELS = {"Llama-2-7B": "llama-2-7b", "Meta-Llama-3-8B": "llama-3-8b", "Llama-3.1-70B": "llama-3.1-70b"}
MODELS |= {"Llama-3.1-8B": "llama-3.1-8b", "Llama-3.1-8B-Instruct": "llama-3.1-8b"}
CHIPS = {"A100-80GB-SXM(330W)": "a100-sxm", "Nvidia H100 GPU": "h100-sxm", "h100_sxm": "h100-sxm"}
CHIPS["SambaNova SN40L"] = "sn40l"
DTYPES = {"bf16": "bf16", "bf16/fp16": "bf16", "fp8": "fp8"}


def endtoend(files: list[Rows]) -> list[Table]:
    """Milliseconds of a decode step. Batch 1: the prompt is the context; else the mean context over the output."""
    rows: list[dict[str, Any]] = []
    left: Counter[str] = Counter()
    for row in files[0]:
        reason = _left_out(row)
        if reason:
            left[reason] += 1
            continue
        batch, prompt, out = (int(float(row[key] or 0)) for key in ("batch", "isl", "osl"))
        context = prompt if batch == 1 else prompt + out // 2
        chip, chips = CHIPS[row["hardware"]], int(float(row["n_devices"]))
        ours = _step_ms(MODELS[row["model"]], chip, chips, DTYPES[row["dtype"]], batch, context)
        kind: dict[str, Any] = {"model": f"{MODELS[row['model']]} {DTYPES[row['dtype']]}", "chips": f"{chips} x {chip}"}
        kind |= {"framework": row["framework"], "batch": batch, "context": context}
        rows.append({**kind, "metric": row["metric"], "ours": ours, "theirs": float(row["tpot_ms"])})
    lines = []
    for key, group in grouped(rows, "model", "chips", "framework", "batch").items():
        cells = ("context", "{}"), ("ours", "{:.2f}"), ("theirs", "{:.2f}")
        said = [" / ".join(form.format(row[cell]) for row in group) for cell, form in cells]
        lines.append((*key, *said, " / ".join(f"{row['ours'] / row['theirs']:.2f}" for row in group)))
    notes = ["left out: " + "; ".join(f"{n} x {reason}" for reason, n in sorted(left.items()))] if left else []
    columns = ("model", "chips", "framework", "batch", "context", "simulated ms", "measured ms", "simulated / measured")
    return [Table("decode steps", columns, lines, notes, rows)]


def _left_out(row: Row) -> str:
    if row["spec_decode"] not in ("", "0.0"):
        return "speculative decoding"
    if row["model"] not in MODELS:
        return f"{row['model']} is not a model of the catalogue"
    if not (row["n_devices"] and row["tpot_ms"] and row["isl"] and row["batch"]):
        return "chips, time, batch or prompt not stated"
    if row["dtype"] not in DTYPES:
        return f"{row['model']} in {row['dtype']}"
    return "" if row["hardware"] in CHIPS else f"no chip file for {row['hardware']}"


@functools.cache
def _step_ms(model: str, chip: str, chips: int, weight: str, batch: int, context: int) -> float:
    graph = decode_graph(load_model(model), Request(batch=batch, context=context, weight=weight))
    return float(simulate(compile_graph(graph, load_system(chip, chips=chips, tp=chips))).time_fs / FS_PER_MS)


@dataclass(frozen=True)
class Comparison:
    """Files below the data folder, which of their rows, and what makes tables of them."""

    files: tuple[str, ...]
    tables: Callable[[list[Rows]], list[Table]]
    wanted: Callable[[Row], bool] = lambda row: True


GEMM_FILES = ("measured/gemm_small_m_h100_sxm.csv", "measured/gemm_small_m_a100_sxm.csv")
COMPARISONS = {
    "dram": Comparison(("golden/dram.csv",), dram),
    "systolic": Comparison(("golden/systolic.csv",), systolic),
    "gemm": Comparison(GEMM_FILES, gemm, gemm_rows),
    "endtoend": Comparison(("measured/endtoend.csv",), endtoend),
}


def read(path: Path, wanted: Callable[[Row], bool], sample: int | None) -> Rows:
    """The wanted rows, or as many of them as asked for, the same ones each time."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if wanted(row)]
    if sample is None or sample >= len(rows):
        return rows
    return [rows[i] for i in sorted(random.Random(1).sample(range(len(rows)), sample))]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--only", choices=COMPARISONS, help="one comparison (default: all)")
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="default: ../shared beside the clone")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N rows of each file, the same ones each time")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every single comparison to FILE")
    asked = parser.parse_args()
    if asked.sample is not None and asked.sample < 1:
        parser.error(f"--sample: found {asked.sample}; expected 1 or more")
    names = [asked.only] if asked.only else list(COMPARISONS)
    missing = [f for name in names for f in COMPARISONS[name].files if not (asked.data / f).is_file()]
    if missing:
        print(f"error: {asked.data}: missing {', '.join(missing)}; give their folder with --data", file=sys.stderr)
        return 2
    tables: list[Table] = []
    for name in names:
        comparison = COMPARISONS[name]
        try:
            made = comparison.tables([read(asked.data / f, comparison.wanted, asked.sample) for f in comparison.files])
        except (StallscopeError, csv.Error, ArithmeticError, LookupError, OSError, TypeError, ValueError) as problem:
            print(f"error: {', '.join(comparison.files)}: {problem!r}", file=sys.stderr)
            return 2
        tables += made
        print("\n".join(table.markdown() + "\n" for table in made), flush=True)
    if asked.json:
        report = {"stallscope": stallscope.__version__, "tables": [asdict(table) for table in tables]}
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
