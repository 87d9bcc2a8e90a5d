"""Every operator with a function of its own, and that function."""

from __future__ import annotations

from collections.abc import Callable

from . import attention_forms, convolutions, experts, mixtures, products, quantised, rows
from .lower import Lowering
from .program import Call

ROOMS = (products, quantised, experts, convolutions, rows, attention_forms, mixtures)
LOWER: dict[str, Callable[[Lowering, Call], None]] = {op: f for room in ROOMS for op, f in room.LOWER.items()}
