"""A model that does not fit: a typed result, not only a message."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import StallscopeError


@dataclass(frozen=True)
class Misfit:
    """Which memory is too small on one chip, by how much, and for what. Sizes in bytes."""

    tier: str
    capacity: int
    needed: int
    terms: dict[str, int]

    @property
    def missing(self) -> int:
        """Bytes that find no room."""
        return self.needed - self.capacity


class DoesNotFitError(StallscopeError):
    """Raised by the compiler; `misfit` holds the numbers."""

    def __init__(self, message: str, misfit: Misfit | None = None) -> None:
        super().__init__(message)
        self.misfit = misfit


def size_text(n: int) -> str:
    """Bytes as GiB, MiB, KiB or B with two decimals: capacities are powers of two."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if n >= 1 << shift:
            return f"{n / (1 << shift):,.2f} {unit}"
    return f"{n} B"
