"""Tile shapes, and the cycles that a unit takes for a tile: the documented formulas (docs/units.md)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch import Chip
from ..workloads import DTYPE_BITS
from .matrix import unit_cycles
from .program import Ints, ints

MIN_TOKENS = 64  # keys of one attention tile: fewer leave the matrix unit's n granule half empty
COLUMNS = (256, 128, 64, 32, 16, 8)
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)


def matrix_dtype(chip: Chip, weight: str, activation: str) -> str:
    """What a product is computed in: the wider of its operands, or the next wider that the chip has."""
    wider = weight if DTYPE_BITS[weight] > DTYPE_BITS[activation] else activation
    return chip.compute_dtype(weight if weight == activation else wider)


def matrix_fs(chip: Chip, dtype: str, m: int, n: Any, k: Any, units: Any = 1) -> Ints:
    """Time of m x n x k multiply-adds on `units` matrix units, in whole cycles (docs/units.md).

    n, k and units may be arrays; units may be a share of one.
    """
    return unit_cycles(chip, dtype, m, n, k, units) * chip.period_fs


def vector_fs(chip: Chip, ops: Any, special: Any, units: float = 1) -> Ints:
    """Time of elementwise and special operations on `units` vector units, in whole cycles, at least one."""
    v = chip.vector
    cycles = np.ceil(ints(ops) / (float(v.ops_per_cycle.value) * units))
    cycles = cycles + np.ceil(ints(special) / (float(v.special_per_cycle.value) * units))
    return ints(np.maximum(cycles, 1)) * chip.period_fs


def latency_fs(chip: Chip, unit: str) -> int:
    """Pipeline latency of a unit."""
    return round(float(getattr(chip, unit).latency.value)) * chip.period_fs


def shares(total: Any, parts: int) -> Ints:
    """A whole number cut into parts that differ by at most one, the sum exact."""
    edges = ints(total) * np.arange(parts + 1) // parts
    return ints(np.diff(edges))


@dataclass(frozen=True)
class GemmTiles:
    """A skinny product on many cores: `columns` per tile, the sum cut into `split` parts, `steps` loads for each."""

    columns: int
    split: int
    steps: int


def gemm_tiles(chip: Chip, n: int, k: int, bits: int, m: int) -> GemmTiles:
    """The tiles that give the busiest core the fewest bytes; ties: fewer parts of the sum, then wider tiles.

    A part of the sum costs its core the partial results' way out, and one core the way back in: both count as bytes.
    """
    cores, stage = int(chip.cores.value), stage_bytes(chip)
    unit = chip.matrix.granule.k
    best: tuple[float, int, int] | None = None
    for columns in COLUMNS:
        tiles = -(-n // columns)
        if columns > n and columns != COLUMNS[-1] and columns >= 2 * n:
            continue
        for split in SPLITS:
            if split > 1 and k // split < 4 * unit:
                break
            waves = -(-tiles * split // cores)
            load = waves * columns * (k / split) * bits / 8
            extra = 4 * m * columns * (1 + split) if split > 1 else 0
            cost = (load + waves * extra + 2 * m * k / split * waves, split, -columns)
            if best is None or cost < best:
                best = cost
    assert best is not None
    columns, split = -best[2], best[1]
    steps = max(1, -(-columns * -(-k // split) * bits // 8 // stage))
    return GemmTiles(columns, split, min(steps, max(1, k // split // unit)))


def stage_bytes(chip: Chip) -> int:
    """Size of one tile buffer: the cores' memory shared out over the stages, with one share left for operands and
    results."""
    memory = int(chip.tiers[0].capacity.value)
    stages = chip.execution.stages or 2
    return 1 << max((memory // (stages + 1)).bit_length() - 1, 8)
