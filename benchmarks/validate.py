"""Compares stallscope with trusted peers, cycle by cycle, and writes docs/validation.md.

    python benchmarks/validate.py [--only dram|systolic] [--data DIR] [--sample N] [--json FILE]
    python benchmarks/validate.py --page docs/validation.md [--tables DIR] [--chip NAME] [--data DIR] [--sample N]

The tables are Markdown. With --page, measured tables, whole steps and the assumed numbers of all chips come with them
(benchmarks/page.py), in the words of benchmarks/validation.in.md. Exit code 2: a data file is missing or bad.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from page import fields, page, percent, signed, table

import stallscope
from stallscope.arch import chip_names
from stallscope.compiler.matrix import gemm as systolic_gemm
from stallscope.errors import StallscopeError
from stallscope.memory import Request as Stream
from stallscope.memory import run_memory

DATA = Path(__file__).resolve().parents[2] / "shared"
FS_PER_MS = 10**12
Row = dict[str, str]
Rows = list[Row]


@dataclass
class Table:
    """What is printed, and behind it every comparison: `ours` and `theirs` in the unit of `title`."""

    name: str
    title: str
    columns: tuple[str, ...]
    lines: list[tuple[Any, ...]]
    rows: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        return table(self.columns, self.lines)


def error(row: dict[str, Any]) -> float:
    return float(row["ours"] / row["theirs"] - 1)


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
    return [_dram_table(peer.lower(), titles[peer], rows) for peer, rows in peers.items()]


@functools.cache
def _stream(dram: str, mapping: str, pattern: str, params: str, requests: int, load: str, arrivals: str) -> int:
    return run_memory(Stream(dram, mapping, pattern, params, requests, load, arrivals, None, None)).cycles


def _dram_table(name: str, title: str, rows: list[dict[str, Any]]) -> Table:
    lines = []
    by_kind = grouped(rows, "kind")
    for kind, words in CATEGORIES.items():
        group = by_kind.get((kind,), [])
        if not group:
            continue
        errors = [error(row) for row in group]
        worst = max(group, key=lambda row: abs(error(row)))
        mean = statistics.mean(abs(e) for e in errors)
        ends = f"{worst['name']} ({worst['ours']:,} / {worst['theirs']:,})" if error(worst) else ""
        exact = sum(row["ours"] == row["theirs"] for row in group)
        lines.append((words, len(group), exact, percent(mean), signed(error(worst)), ends))
    columns = ("streams", "rows", "equal", "mean abs difference", "worst", "worst row (ours / theirs)")
    return Table(name, title, columns, lines, rows)


# Products on systolic arrays.


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
    return [Table("systolic", title, ("dataflow", "rows", "equal", "worst difference"), lines, rows)]


@dataclass(frozen=True)
class Comparison:
    """Files below the data folder, which of their rows, and what makes tables of them."""

    files: tuple[str, ...]
    tables: Callable[[list[Rows]], list[Table]]
    wanted: Callable[[Row], bool] = lambda row: True


COMPARISONS = {
    "dram": Comparison(("golden/dram.csv",), dram),
    "systolic": Comparison(("golden/systolic.csv",), systolic),
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
    parser.add_argument("--page", type=Path, metavar="FILE", help="run everything, and write docs/validation.md")
    parser.add_argument(
        "--tables", type=Path, metavar="DIR", help="measured tables of the page (default: the extracts)"
    )
    parser.add_argument("--chip", action="append", help="a chip whose assumed numbers the page shows (default: all)")
    asked = parser.parse_args()
    if asked.page and asked.only:
        parser.error("--page shows all comparisons; leave out --only")
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
        if not asked.page:
            print("\n".join(f"### {t.title}\n\n{t.markdown()}\n" for t in made), flush=True)
    if asked.json:
        report = {"stallscope": stallscope.__version__, "tables": [asdict(t) for t in tables]}
        asked.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    return write_page(asked, tables) if asked.page else 0


def write_page(asked: argparse.Namespace, peers: list[Table]) -> int:
    """Run the rest of what the page shows, and write it."""
    values = {t.name: t.markdown() for t in peers}
    for t in peers:
        values[f"{t.name}_rows"] = f"{len(t.rows):,}"
        values[f"{t.name}_equal"] = f"{sum(r['ours'] == r['theirs'] for r in t.rows):,}"
        values[f"{t.name}_mean"] = percent(statistics.mean([abs(error(r)) for r in t.rows] or [0.0]))
        values[f"{t.name}_worst"] = percent(max((abs(error(r)) for r in t.rows), default=0.0))
    try:
        text = page(fields(values, asked.tables, asked.sample, asked.chip or chip_names()))
        asked.page.write_text(text, encoding="utf-8")
    except (StallscopeError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
