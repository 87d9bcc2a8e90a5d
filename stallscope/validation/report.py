"""Errors as text and as plots."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from ..errors import StallscopeError
from ..report.json import check_target, write_whole
from ..report.layout import bullets, grid, render, section
from ..report.units import percent_text
from .errors import Compared, Errors, worst
from .tables import Table

WORST = 5
SHOWN = 0.005  # of a cause: less is 0%


def errors_table(tables: Sequence[Table], compared: Sequence[Compared], errors: Sequence[Errors]) -> str:
    """One section per table and chip: errors by size, the worst rows with what takes their time, what was left out."""
    out = []
    for table in tables:
        mine = [e for e in errors if e.table == table.name]
        for chip in dict.fromkeys(e.chip for e in mine):
            rows = [
                (
                    e.op,
                    e.dtype,
                    e.bucket,
                    f"{e.rows:,}",
                    percent_text(e.median_ape),
                    percent_text(e.p90_ape),
                    percent_text(e.bias, sign=True),
                )
                for e in mine
                if e.chip == chip
            ]
            columns = ("op", "dtype", "size or framework", "rows", "median error", "90% within", "bias")
            out.append(section(f"{table.name} on {chip}", grid(columns, rows, words=(0, 1, 2))))
        cases = [c for c in compared if c.case.table == table.name]
        if cases:
            out.append(section(f"{table.name}: worst rows", bullets(map(_said, worst(cases, WORST)))))
        if table.left_out:
            lines = [(f"{n:,}", reason) for reason, n in table.left_out.most_common()]
            out.append(section(f"{table.name}: rows left out", grid(("rows", "because"), lines, words=(1,))))
    return render(*out)


def _said(c: Compared) -> str:
    causes = ", ".join(f"{name} {percent_text(share, 0)}" for name, share in c.said.causes[:4] if share >= SHOWN)
    off = percent_text(c.error, sign=True)
    times = f"predicted {1e3 * c.said.ms:,.1f} us, measured {1e3 * c.case.measured_ms:,.1f} us ({off})"
    return f"{c.case.chip}, {c.case.dtype}, {c.case.name}: {times}; predicted time goes to {causes}"


def check_plot(path: Path) -> None:
    """Raise StallscopeError without matplotlib or a place to write: called before anything is predicted."""
    try:
        import matplotlib
    except ImportError:
        raise StallscopeError("--plot: matplotlib is not installed; pip install 'stallscope[plots]'") from None
    matplotlib.use("Agg")
    check_target(str(path), "--plot")
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    known = sorted(FigureCanvasAgg.filetypes)
    if path.suffix[1:].lower() not in known:
        raise StallscopeError(
            f"--plot {path}: found suffix {path.suffix!r}; expected one of {', '.join(known)}; rename it"
        )


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
    image = BytesIO()
    figure.savefig(image, format=path.suffix[1:].lower(), dpi=150, bbox_inches="tight")
    pyplot.close(figure)
    write_whole(str(path), image.getvalue(), "--plot")
