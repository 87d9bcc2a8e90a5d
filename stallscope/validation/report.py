"""Errors as text and as plots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..errors import StallscopeError
from ..report.json import check_target
from ..report.layout import bullets, grid, render, section
from .errors import Compared, Errors, worst
from .tables import Table

WORST = 5


def errors_table(tables: Sequence[Table], compared: Sequence[Compared], errors: Sequence[Errors]) -> str:
    """One section per table and chip: errors by size, the worst rows with what takes their time, what was left out."""
    out = []
    for table in tables:
        mine = [e for e in errors if e.table == table.name]
        for chip in dict.fromkeys(e.chip for e in mine):
            rows = [
                (e.op, e.dtype, e.bucket, f"{e.rows:,}", _percent(e.median_ape), _percent(e.p90_ape), _signed(e.bias))
                for e in mine
                if e.chip == chip
            ]
            columns = ("op", "dtype", "size or framework", "rows", "median error", "90 % within", "bias")
            out.append(section(f"{table.name} on {chip}", grid(columns, rows)))
        cases = [c for c in compared if c.case.table == table.name]
        if cases:
            out.append(section(f"{table.name}: worst rows", bullets(map(_said, worst(cases, WORST)))))
        if table.left_out:
            lines2 = [(f"{n:,}", reason) for reason, n in table.left_out.most_common()]
            out.append(section(f"{table.name}: rows left out", grid(("rows", "because"), lines2)))
    return render(*out)


def _said(c: Compared) -> str:
    causes = ", ".join(f"{name} {100 * share:.0f} %" for name, share in c.said.causes[:4])
    times = f"predicted {1e3 * c.said.ms:,.1f} us, measured {1e3 * c.case.measured_ms:,.1f} us ({_signed(c.error)})"
    return f"{c.case.chip}, {c.case.dtype}, {c.case.name}: {times}; predicted time goes to {causes}"


def check_plot(path: Path) -> None:
    """Raise StallscopeError without matplotlib or a place to write: called before anything is predicted."""
    try:
        import matplotlib
    except ImportError:
        raise StallscopeError("--plot: matplotlib is not installed; pip install 'stallscope[plots]'") from None
    matplotlib.use("Agg")
    check_target(str(path), "--plot")


def plot(compared: Sequence[Compared], path: Path) -> None:
    """Predicted against measured, one colour a table. Raises StallscopeError without a place to write."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 7))
    for name in dict.fromkeys((c.case.table, c.case.chip) for c in compared):
        mine = [c for c in compared if (c.case.table, c.case.chip) == name]
        axes.loglog([c.case.measured_ms for c in mine], [c.said.ms for c in mine], ".", ms=3, label=" ".join(name))
    ends = [f(v) for f in (min, max) for v in [[x for c in compared for x in (c.case.measured_ms, c.said.ms)]]]
    axes.plot(ends, ends, "k-", lw=0.8)
    axes.set_xlabel("measured, ms")
    axes.set_ylabel("predicted, ms")
    axes.legend(fontsize=7)
    try:
        figure.savefig(path, dpi=150, bbox_inches="tight")
    except (OSError, ValueError) as problem:
        raise StallscopeError(f"--plot {path}: cannot be written: {problem}") from None


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f} %"
