"""Tokens per expert, as an op of grouped products states them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .signature import Dims, MismatchError


def expert_dims(d: Dims, data: Mapping[str, Any]) -> Dims:
    """How many experts are woken. Raises MismatchError for loads that do not fit the shapes.

    Without `loads`, tokens are spread evenly over as many experts as they can reach.
    """
    loads = loads_of(d, data)
    if len(loads) > d["E"]:
        raise MismatchError(f"loads has {len(loads)} experts, and there are {d['E']}")
    if sum(loads) != d["pairs"]:
        raise MismatchError(f"loads sum to {sum(loads)}, and out has {d['pairs']} rows")
    if d["M"] not in (d["rows"], d["pairs"]):
        raise MismatchError(
            f"x has {d['M']} rows, and there must be one per token ({d['rows']}) or per pair ({d['pairs']})"
        )
    return {"woken": len(loads)}


def loads_of(d: Dims, data: Mapping[str, Any]) -> tuple[int, ...]:
    """Tokens of each woken expert. Raises MismatchError for what are no counts."""
    loads = data.get("loads")
    if loads is None:
        woken = min(d["E"], d["pairs"])
        return tuple(d["pairs"] * (i + 1) // woken - d["pairs"] * i // woken for i in range(woken))
    if not isinstance(loads, tuple) or not loads or any(type(n) is not int or n < 1 for n in loads):
        raise MismatchError(
            f"loads has {str(loads)[:60]}, and they must be positive whole numbers, one per woken expert"
        )
    return loads
