"""The analytic bound of one step as text and as JSON. Nothing is simulated for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import units
from .layout import bullets, grid, pairs, render, section

if TYPE_CHECKING:
    from ..compiler.bound import BoundReport

SCHEMA = "stallscope-bound/1"


def bound_table(bound: BoundReport, work: str) -> str:
    """The limit and the arithmetic of each of its terms, what must be held, and remarks: at most 100 columns.

    `work`: what it is the bound of, in a line.
    """
    rate = units.number_text(units.FS_PER_S / bound.time_fs) if bound.time_fs else "-"
    answer = [
        ("time per token", f"at least {units.time_text(bound.time_fs)}, limited by {bound.limiter}"),
        ("tokens/s per user", f"at most {rate}"),
        ("chips", f"{bound.chips:,}"),
        ("weights", units.capacity_text(bound.weight_bytes)),
        ("KV cache", units.capacity_text(bound.kv_bytes)),
        *((f"{tier} of a chip", units.capacity_text(size)) for tier, size in bound.capacity.items()),
    ]
    terms = sorted(bound.terms, key=lambda term: -term.time_fs)
    rows = [(t.name, t.amount_text, t.rate_text, units.time_text(t.time_fs)) for t in terms]
    parts = [
        section(f"Bound of one step of {work}", "", pairs(answer)),
        section("Terms: each resource alone, the largest is the bound", grid(("term", "amount", "rate", "time"), rows)),
    ]
    if bound.remarks:
        parts.append(section("Remarks", bullets(bound.remarks)))
    return render(*parts)


def bound_json(bound: BoundReport) -> dict[str, Any]:
    """The same as plain data."""
    return {
        "schema": SCHEMA,
        "chips": bound.chips,
        "time_s": bound.time_fs / units.FS_PER_S,
        "time_fs": bound.time_fs,
        "limiter": bound.limiter,
        "terms": [
            {"name": t.name, "amount": t.amount_text, "rate": t.rate_text, "time_fs": t.time_fs} for t in bound.terms
        ],
        "weight_bytes": bound.weight_bytes,
        "kv_bytes": bound.kv_bytes,
        "capacity": dict(bound.capacity),
        "remarks": list(bound.remarks),
    }
