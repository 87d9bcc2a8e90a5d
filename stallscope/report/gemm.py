"""One product on one systolic array, term by term, as text and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .layout import grid, pairs, render, section

if TYPE_CHECKING:
    from ..compiler.matrix import Gemm

SCHEMA = "stallscope-gemm/1"
STAYS = {"os": "outputs", "ws": "weights", "is": "activations"}
SIZES = {"os": ("m", "n", "k"), "ws": ("k", "n", "m"), "is": ("k", "m", "n")}  # along rows, along columns, streamed


def gemm_table(gemm: Gemm) -> str:
    """Cycles, efficiencies in percent, and the terms that add up to the cycles: at most 100 columns."""
    time, stays = gemm.time, STAYS[gemm.dataflow]
    rows, cols, _ = SIZES[gemm.dataflow]
    buffers = (
        "" if gemm.dataflow == "os" else f", {gemm.weight_buffers} buffer{'s' * (gemm.weight_buffers - 1)} for them"
    )
    answer = [
        ("cycles", f"{time.cycles:,}"),
        ("product", f"m {gemm.m:,} x k {gemm.k:,} times k {gemm.k:,} x n {gemm.n:,} = {gemm.macs:,} multiply-adds"),
        ("array", f"{gemm.rows} rows x {gemm.cols} columns; {stays} stay in it ({gemm.dataflow}){buffers}"),
        (
            "tiles",
            f"{time.folds:,} = ceil({rows} / {gemm.rows}) x ceil({cols} / {gemm.cols})"
            f" = {time.row_folds:,} x {time.col_folds:,}",
        ),
        ("mapping efficiency", f"{_percent(gemm.mapping_efficiency)} of the cells used, averaged over tiles"),
        ("utilization", f"{_percent(gemm.utilization)} = multiply-adds / (cells x cycles)"),
        ("SCALE-Sim's util.", f"{_percent(gemm.compute_utilization)}: compute_utilization of docs/units.md"),
    ]
    terms = [(name, how, f"{cycles:,}", _percent(cycles / time.cycles)) for name, how, cycles in _terms(gemm)]
    table = grid(("term", "formula", "cycles", "share"), terms, ("all", "", f"{time.cycles:,}", ""), words=(0, 1))
    return render(section("One product on one array", "", pairs(answer)), section("Terms", table))


def _terms(gemm: Gemm) -> list[tuple[str, str, int]]:
    """Each term: its name, its formula with the numbers in it, its cycles."""
    time = gemm.time
    steps = SIZES[gemm.dataflow][2]
    stream = ("stream", f"{time.folds:,} tiles x {steps} = {getattr(gemm, steps):,} steps", time.stream)
    starts = f"{time.starts:,} starts x"
    if gemm.dataflow == "os":
        skew = ("fill: skew", f"{starts} (columns - 1) = {gemm.cols - 1:,}", time.skew)
        return [skew, stream, ("drain", f"{starts} (rows - 1) = {gemm.rows - 1:,}", time.drain)]
    load = f"{starts} {gemm.rows:,} rows"
    if time.folds > time.starts:
        late = max(gemm.rows - getattr(gemm, steps), 0)
        load += f" + {time.folds - time.starts:,} tiles x max(rows - {steps}, 0) = {late:,}"
    skew = ("fill: skew", f"{starts} (rows - 1) = {gemm.rows - 1:,}", time.skew)
    drain = ("drain", f"{starts} (columns - 1) = {gemm.cols - 1:,}", time.drain)
    return [("fill: load", load, time.load), skew, stream, drain]


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def gemm_json(gemm: Gemm) -> dict[str, Any]:
    """The same as plain data: efficiencies are fractions from 0 to 1; fill, stream and drain add up to the cycles."""
    time = gemm.time
    return {
        "schema": SCHEMA,
        "array": f"{gemm.rows}x{gemm.cols}",
        "dataflow": gemm.dataflow,
        "weight_buffers": gemm.weight_buffers,
        "m": gemm.m,
        "n": gemm.n,
        "k": gemm.k,
        "macs": gemm.macs,
        "cycles": time.cycles,
        "fill_cycles": time.fill,
        "load_cycles": time.load,
        "skew_cycles": time.skew,
        "stream_cycles": time.stream,
        "drain_cycles": time.drain,
        "folds": time.folds,
        "row_folds": time.row_folds,
        "col_folds": time.col_folds,
        "starts": time.starts,
        "mapping_efficiency": gemm.mapping_efficiency,
        "utilization": gemm.utilization,
        "compute_utilization": gemm.compute_utilization,
    }
