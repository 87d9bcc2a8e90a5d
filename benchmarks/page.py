"""What docs/validation.md is made of: the tables of one run of everything, put into the words of validation.in.md.

Whoever changes a word edits validation.in.md; every number of the page comes from here.
"""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import stallscope
from stallscope.arch import System, load_chip
from stallscope.cli import DEFAULT_MODEL
from stallscope.compiler.pipeline import compile_graph
from stallscope.errors import StallscopeError
from stallscope.options import Split, Workload
from stallscope.sim.run import OpAccount, Run, simulate
from stallscope.validation.cases import COPIES
from stallscope.validation.command import OURS, Validation, run_sensitivity, run_validation
from stallscope.validation.errors import Compared, numbers_of, worst
from stallscope.validation.predict import CHUNK, step_graph
from stallscope.validation.tables import CASTS, FORMATS

HERE = Path(__file__).parent
TEMPLATE = HERE / "validation.in.md"
PUBLISHED = HERE / "published.csv"
FIELD = re.compile(r"\{\{ (\w+) \}\}")
TOP = 10  # numbers that a chip's table of assumed numbers shows
WORST = 3  # rows of each table

STEP = ("h100-sxm", "llama-3.1-70b", 8, "fp8", 4, 1536)
"""The step whose time is shown in parts: chip, model, chips, dtype, batch, context."""

MECHANISMS = {
    "bytes": (("bandwidth:",), ("tiers.*.bandwidth", "tiers.hbm.availability", "tiers.*.lanes", "load.port")),
    "latency": (("latency:",), ("tiers.*.latency", "load.copy_latency", "store.copy_latency")),
    "launch": (("launch",), ("execution.launch_gap",)),
    "kernel": (("kernel",), ("execution.prologue", "execution.epilogue", "execution.attention.*")),
    "compute": (
        ("matrix", "vector"),
        ("matrix.*", "vector.*", "execution.step", "execution.tiles", "execution.promotion.*"),
    ),
    "links": (("link",), ("link.bandwidth", "link.latency", "link.peer", "link.availability")),
    "host": (("host",), ("execution.step_gap",)),
}
"""Causes of the critical path, taken together, and the numbers of the chip file that they come from."""

PARTS = {
    "linear": "products",
    "attention": "attention",
    " sum": "sums of the parts of split products and attention",
    "quantize": "casts of activations",
    "rmsnorm": "norms and residuals",
    "swiglu": "activation function",
    " append": "append to the KV cache",
    "all_reduce": "all-reduce",
}
"""Kinds of operators (or ends of their names), and how the page calls them."""


def fields(peers: dict[str, str], tables: Path | None, sample: int | None, chips: Sequence[str]) -> dict[str, str]:
    """Every field of the template: `peers` as they were compared, measured tables (ours without a folder), and the
    assumed numbers of these chips."""
    paths = sorted((tables or OURS).glob("*.csv"))
    if not paths:
        raise StallscopeError(f"{tables}: found no tables (*.csv) in this folder; give another with --tables")
    result = run_validation(paths, [], sample, None)
    steps = [c for c in result.compared if c.case.op == "step"]
    kernels = [c for c in result.compared if c.case.op != "step"]
    run = _step()
    rows = "all rows of" if sample is None else f"at most {sample:,} rows, drawn with a fixed seed, of each of"
    return peers | {
        "version": stallscope.__version__,
        "rows": f"{rows} {'the extracts in `tests/measured`' if tables is None else f'the {len(paths)} full tables'}",
        "kernels": _kernels(kernels),
        "worst": _worst(kernels),
        **_short("kernels", kernels),
        **_short("steps", steps),
        "steps": _steps(steps),
        "left_out": _left_out(result),
        "copies": str(COPIES),
        "chunk": str(CHUNK),
        "reference": DEFAULT_MODEL,
        "casts": str(max(CASTS.values())),
        "beside": str(max(beside for _, _, beside in FORMATS.values())),
        "step": _step_text(run),
        "parts": _parts(run),
        "keys": _keys(run),
        "published": _published(),
        "assumed": "\n\n".join(map(_assumed, chips)),
    }


def page(values: dict[str, str]) -> str:
    """The template with its fields filled. Raises StallscopeError for a field that nothing fills."""
    template = TEMPLATE.read_text(encoding="utf-8")
    unknown = sorted(set(FIELD.findall(template)) - set(values))
    if unknown:
        raise StallscopeError(
            f"{TEMPLATE.name}: unknown fields {', '.join(unknown)}; known: {', '.join(sorted(values))}"
        )
    return FIELD.sub(lambda field: values[field[1]], template)


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown."""
    lines = (columns, ["---"] * len(columns), *rows)
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def percent(share: float, digits: int = 1) -> str:
    return f"{100 * share:.{digits}f} %"


def signed(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f} %"


def _grouped(compared: Iterable[Compared], key: Callable[[Compared], Any]) -> dict[Any, list[Compared]]:
    groups: dict[Any, list[Compared]] = {}
    for c in compared:
        groups.setdefault(key(c), []).append(c)
    return groups


def _errors(rows: Sequence[Compared]) -> dict[str, str]:
    """What tables say of some rows, column by column."""
    if not rows:
        return {"rows": "0", **dict.fromkeys(("median", "p90", "bias", "range"), "-")}
    errors = [c.error for c in rows]
    median, p90, bias = numbers_of(errors)
    ends = f"{signed(min(errors), 0)} to {signed(max(errors), 0)}"
    return {
        "rows": f"{len(rows):,}", "median": percent(median), "p90": percent(p90), "bias": signed(bias), "range": ends
    }  # fmt: skip


def _short(name: str, rows: Sequence[Compared]) -> dict[str, str]:
    return {f"{name}_{key}": text for key, text in _errors(rows).items()}


def _kernels(compared: list[Compared]) -> str:
    groups = _grouped(compared, lambda c: (f"`{c.case.table}`", c.case.op, c.case.chip, c.case.dtype))
    rows = [(*key, *_errors(mine).values()) for key, mine in sorted(groups.items())]
    return table(("table", "op", "chip", "dtype", "rows", "median", "90 % within", "bias", "all rows"), rows)


def _worst(compared: list[Compared]) -> str:
    rows = []
    for name, mine in sorted(_grouped(compared, lambda c: c.case.table).items()):
        for c in worst(mine, WORST):
            causes = ", ".join(f"{cause} {percent(share, 0)}" for cause, share in c.said.causes[:3])
            times = (f"{1e3 * ms:,.1f}" for ms in (c.said.ms, c.case.measured_ms))
            rows.append((f"`{name}`", f"{c.case.chip}, {c.case.dtype}, {c.case.name}", *times, signed(c.error), causes))
    return table(("table", "row", "predicted, us", "measured, us", "error", "where the predicted time goes"), rows)


def _steps(compared: list[Compared]) -> str:
    def key(c: Compared) -> tuple[str, str, str, str]:
        _, model, _, dtype, _, _, _, how = c.case.ask
        return c.case.chip, model, dtype, f"{c.case.bucket}; {HOW[how]}"

    rows = []
    for (chip, model, dtype, how), mine in sorted(_grouped(compared, key).items()):
        ways = ", ".join(map(str, sorted({c.case.ask[2] for c in mine})))
        rows.append((f"{ways} x {chip}", f"{model} {dtype}", how, *_errors(mine).values()))
    return table(("chips", "model", "measured with", "rows", "median", "90 % within", "bias", "all rows"), rows)


HOW = {"": "a step alone", "served": "mean at a concurrency", "request": "request / tokens"}


def _left_out(result: Validation) -> str:
    reasons: Counter[tuple[str, str]] = Counter()
    for t in result.tables:
        reasons.update({(t.name, reason): n for reason, n in t.left_out.items()})
    rows = [(f"`{name}`", f"{n:,}", reason) for (name, reason), n in sorted(reasons.items())]
    return table(("table", "rows", "because"), rows)


def _step() -> Run:
    name, model, ways, dtype, batch, context = STEP
    chip = load_chip(name)
    topology = chip.link.topology if chip.link else "none"
    graph = step_graph(model, dtype, batch=batch, context=context)
    return simulate(compile_graph(graph, System(chip, ways, ways, 1, topology, name)))


def _step_text(run: Run) -> str:
    name, model, ways, dtype, batch, context = STEP
    return f"{model} {dtype} on {ways} {name}, batch {batch}, context {context:,}: {run.time_s * 1e3:.2f} ms"


def _mechanism(cause: str) -> str:
    return next(name for name, (starts, _) in MECHANISMS.items() if cause.startswith(starts))


def _part(op: OpAccount) -> str:
    return next((name for word, name in PARTS.items() if word == op.kind or op.name.endswith(word)), "all else")


def _parts(run: Run) -> str:
    """The critical path by what is computed and by mechanism, in shares of the step."""
    sums: dict[str, Counter[str]] = {name: Counter() for name in (*PARTS.values(), "all else")}
    kernels: Counter[str] = Counter()
    for op in run.ops:
        part = _part(op)
        kernels[part] += op.count
        for cause, fs in op.causes_fs.items():
            sums[part][_mechanism(cause)] += fs
    total: Counter[str] = sum(sums.values(), Counter())

    def line(name: str, count: int, parts: Counter[str]) -> tuple[str, ...]:
        cells = (percent(fs / run.time_fs) if (fs := parts[m]) else "" for m in MECHANISMS)
        return (name, f"{count:,}", *cells, percent(parts.total() / run.time_fs))

    rows = [line(name, kernels[name], parts) for name, parts in sorted(sums.items(), key=lambda s: -s[1].total())]
    return table(("of the step", "ops", *MECHANISMS, "sum"), [*rows, line("sum", kernels.total(), total)])


def _keys(run: Run) -> str:
    seen: dict[str, Counter[str]] = {name: Counter() for name in MECHANISMS}
    for cause, fs in run.critical_path_fs.items():
        seen[_mechanism(cause)][cause] += fs
    rows = [
        (name, ", ".join(f"{cause} {percent(fs / run.time_fs)}" for cause, fs in seen[name].most_common() if fs), keys)
        for name, keys in ((name, ", ".join(f"`{key}`" for key in keys)) for name, (_, keys) in MECHANISMS.items())
    ]
    return table(("mechanism", "causes", "numbers of the chip file"), rows)


def _published() -> str:
    rows = []
    with PUBLISHED.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            work = Workload(model=row["model"], context=int(row["context"]))
            run = simulate(compile_graph(work.load(), Split().system(row["chip"])))
            said, rate = run.tokens_per_s_per_user, float(row["tokens_per_s_per_user"])
            where = f"{run.program.info.chips} x {row['chip']}"
            source = f"[{row['note']}]({row['source_url']})"
            rows.append(
                (where, row["model"], row["context"], f"{rate:,.0f}", f"{said:,.0f}", f"{said / rate:.1f}", source)
            )
    columns = ("chips", "model", "context", "published", "predicted", "predicted / published", "source")
    return table(columns, rows)


def _assumed(name: str) -> str:
    """What a step does when the assumed numbers of a chip move."""
    result = run_sensitivity(Workload(model=DEFAULT_MODEL).load(), Split().system(name))
    shown, rest = result.moved[:TOP], result.moved[TOP:]
    rows = [(f"`{m.path}`", m.text, *("-" if x is None else signed(x, 2) for x in (m.less, m.more))) for m in shown]
    alone = sum(m.less is None and m.more is None for m in rest)
    most = max((m.most for m in rest), default=0.0)
    note = f"{len(rest)} more: {percent(most, 2)} at most" + (
        f"; {alone} of them cannot be moved alone." if alone else "."
    )
    title = f"### {name}: {len(result.moved)} assumed numbers, a step of {result.time_ms:.3f} ms"
    return "\n\n".join((title, table(("number", "stands at", "10 % less", "10 % more"), rows), *([note] * bool(rest))))
