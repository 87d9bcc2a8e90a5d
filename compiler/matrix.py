"""Cycles that matrix units take for a product, by the formulas of docs/units.md, in whole numbers.

A product is m x k times k x n: m rows of the activation (tokens), n columns of the output, k terms of each sum. The
formulas take Python integers of any size, and arrays of integers for n and k.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..arch import Chip
from ..errors import StallscopeError
from .program import Ints, ints

Whole = Any  # an int, or an array of them

LARGEST = 10**12  # of a size that the command takes: beyond it is a slip of the keyboard
LARGEST_SIDE = 2**20  # of an array, as in chip files


class Folding(NamedTuple):
    """What lies along the array's rows and columns, and how many steps stream past it."""

    along_rows: Whole
    along_cols: Whole
    steps: Whole


FOLDINGS: dict[str, Callable[[Whole, Whole, Whole], Folding]] = {
    "os": lambda m, n, k: Folding(m, n, k),  # sums stay; both operands stream
    "ws": lambda m, n, k: Folding(k, n, m),  # weights stay; activations stream
    "is": lambda m, n, k: Folding(k, m, n),  # activations stay; weights stream
}
DATAFLOWS = {"os": "output-stationary", "ws": "weight-stationary", "is": "input-stationary"}


@dataclass(frozen=True)
class ArrayTime:
    """Cycles of one product on one systolic array. `load`, `skew`, `stream` and `drain` add up to `cycles`."""

    row_folds: Whole
    """Tiles that the product is cut into along the array's rows."""
    col_folds: Whole
    """The same along its columns."""
    starts: Whole
    """How often the array fills from empty, and drains."""
    load: Whole
    """Loading what stays in the array, where no product hides it."""
    skew: Whole
    """From an operand's entry at the first row (os: column) to that at the last."""
    stream: Whole
    """Operands enter: one step a cycle."""
    drain: Whole
    """From the first column's (os: row's) last result to the last one's."""
    alone: Whole
    """One tile by itself."""

    @property
    def folds(self) -> Whole:
        """Tiles in all."""
        return self.row_folds * self.col_folds

    @property
    def fill(self) -> Whole:
        """Cycles before operands enter everywhere: loading and skew."""
        return self.load + self.skew

    @property
    def cycles(self) -> Whole:
        """All cycles, memory never late."""
        return self.fill + self.stream + self.drain


def array_time(rows: int, cols: int, dataflow: str, weight_buffers: int, m: Whole, n: Whole, k: Whole) -> ArrayTime:
    """m x k times k x n on a systolic array of rows x cols; edge tiles take as long as whole ones.

    Two weight buffers hide the next tile's load behind the present one while sums go on in the same outputs; with os
    nothing is loaded, and their number does not matter.
    """
    along_rows, along_cols, steps = FOLDINGS[dataflow](m, n, k)
    row_folds, col_folds = -(-along_rows // rows), -(-along_cols // cols)
    folds = row_folds * col_folds
    stays = dataflow != "os"
    first, last = (rows - 1, cols - 1) if stays else (cols - 1, rows - 1)  # skew of what enters; of what leaves
    starts = col_folds if stays and weight_buffers == 2 else folds
    late = (rows - steps) * (rows > steps)  # a load is hidden by the tile before, as far as that streams
    load = (starts * rows + (folds - starts) * late) * stays
    alone = rows * stays + first + steps + last
    return ArrayTime(row_folds, col_folds, starts, load, starts * first, folds * steps, starts * last, alone)


@dataclass(frozen=True)
class Gemm:
    """One product on one systolic array, as `stallscope gemm` shows it."""

    rows: int
    cols: int
    dataflow: str
    weight_buffers: int
    m: int
    n: int
    k: int
    time: ArrayTime

    @property
    def macs(self) -> int:
        """Multiply-adds of the product."""
        return self.m * self.n * self.k

    @property
    def mapping_efficiency(self) -> float:
        """Share of the array's cells that a tile uses, averaged over the tiles: 0 to 1."""
        along_rows, along_cols, _ = FOLDINGS[self.dataflow](self.m, self.n, self.k)
        return int(along_rows * along_cols) / (int(self.time.folds) * self.rows * self.cols)

    @property
    def utilization(self) -> float:
        """Multiply-adds done over those that all cells could do in `cycles`: 0 to 1."""
        return self.macs / (self.rows * self.cols * int(self.time.cycles))

    @property
    def compute_utilization(self) -> float:
        """`utilization` as SCALE-Sim counts it: what stays is charged a skew of cols - 1 cycles at every start."""
        charged = 0 if self.dataflow == "os" else int(self.time.starts) * (self.cols - 1)
        return self.macs / (self.rows * self.cols * (int(self.time.cycles) + charged))


def gemm(array: str, dataflow: str, weight_buffers: int, m: int, n: int, k: int) -> Gemm:
    """The product on an array written as "128x128". Raises StallscopeError for what makes no sense."""
    sides = re.fullmatch(r"([0-9]{1,9})[xX]([0-9]{1,9})", array.strip())
    if sides is None:
        raise StallscopeError(f"--array {array[:40]}: expected ROWSxCOLUMNS, two whole numbers such as 128x128")
    rows, cols = map(int, sides.groups())
    if not (1 <= rows <= LARGEST_SIDE and 1 <= cols <= LARGEST_SIDE):
        raise StallscopeError(f"--array {array}: found a side outside 1 to {LARGEST_SIDE:,}; give for instance 128x128")
    if dataflow not in FOLDINGS:
        words = ", ".join(f"{word} ({meaning})" for word, meaning in DATAFLOWS.items())
        raise StallscopeError(f"--dataflow {dataflow[:40]}: expected one of {words}")
    if weight_buffers not in (1, 2):
        raise StallscopeError(f"--weight-buffers {weight_buffers}: expected 1, or 2 for double buffering")
    for name, size in (("m", m), ("n", n), ("k", k)):
        if not 1 <= size <= LARGEST:
            text = str(size) if abs(size) < 10**40 else "a number of more than 40 digits"
            raise StallscopeError(f"-{name} {text}: expected a whole number from 1 to 10^12")
    time = array_time(rows, cols, dataflow, weight_buffers, m, n, k)
    return Gemm(rows, cols, dataflow, weight_buffers, m, n, k, time)


def mac_array_cycles(granule: tuple[int, int, int], rate: Any, m: Whole, n: Whole, k: Whole) -> Ints:
    """A MAC array: each size padded to the granule (m, n, k), at `rate` multiply-adds a cycle; at least one cycle."""
    padded = [-(-size // step) * step for size, step in zip((m, ints(n), ints(k)), granule, strict=True)]
    return ints(np.maximum(np.ceil(padded[0] * padded[1] * padded[2] / rate), 1))


def plane_cycles(rows: int, cols: int, rate: Any, m: Whole, n: Whole, k: Whole) -> Ints:
    """MXM planes of rows x cols weights: vectors of `rows` stream through one after the other, padded to the plane.

    Loading the weights into a plane is an instruction of the load engine, at the rate of its port: not counted here.
    """
    return mac_array_cycles((1, cols, rows), rate, m, n, k)


def unit_cycles(chip: Chip, dtype: str, m: Whole, n: Whole, k: Whole, units: Any = 1) -> Ints:
    """Cycles of m x n x k on `units` matrix units of the chip, by the kind of unit that its file states.

    Several systolic arrays share the tiles evenly, and none takes less time than for one tile. A dtype whose rate is
    not rows x cols takes as many times more (or fewer) cycles.
    """
    unit = chip.matrix
    rate = unit.macs_per_cycle[dtype].value  # type: ignore[index]
    if unit.array is None or unit.dataflow is None:
        g = unit.granule_of(dtype)
        return mac_array_cycles((g.m, g.n, g.k), float(rate) * units, m, n, k)
    rows, cols = unit.array.rows, unit.array.cols
    if unit.dataflow == "mxm":
        return plane_cycles(rows, cols, float(rate) * units, m, n, k)
    whole = array_time(rows, cols, unit.dataflow, unit.weight_buffers, m, ints(n), ints(k))
    passes = rows * cols / float(rate)
    return ints(np.maximum(np.ceil(np.maximum(whole.cycles / units, whole.alone) * passes), 1))
