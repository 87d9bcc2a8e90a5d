"""The engines of a core: matrix units, vector units, and those that load and store."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .fact import Fact, Quantity, Strict, problem
from .fields import BytesPerCycle, Count, Cycles, Dtype, OpsPerCycle, Size, Stated, default


class Granule(Stated):
    """The smallest product that the matrix unit works on; smaller ones are padded up to it."""

    m: int = Field(ge=1, le=2**20)
    """Rows of the activation: tokens."""
    n: int = Field(ge=1, le=2**20)
    """Columns of the output."""
    k: int = Field(ge=1, le=2**20)
    """Length of the sum."""


class Array(Stated):
    """Shape of a systolic array."""

    rows: int = Field(ge=1, le=2**20)
    """Rows: the length of the sum that the array holds."""
    cols: int = Field(ge=1, le=2**20)
    """Columns: outputs that the array holds."""


class Matrix(Strict):
    """The matrix units of a core."""

    count: Count
    """Units in one core."""
    macs_per_cycle: dict[Dtype, Annotated[Fact, Quantity("macs_per_cycle")]] = Field(min_length=1)
    """Multiply-adds per cycle of one unit, dense, for each dtype that it has."""
    granule: Granule
    """The smallest product that it works on."""
    latency: Cycles
    """From the end of a tile's issue to its result."""
    weight_buffers_fact: Count = Field(alias="weight_buffers")
    """1 or 2: with two, the next weights are loaded while the present ones are used."""
    array: Array | None = None
    """Shape of the array, where it is one."""
    dataflow: Literal["ws", "os", "is", "mxm"] | None = None
    """How an array is used (docs/units.md): what stays in a systolic one, or `mxm`. Without it: a MAC array."""
    granules: dict[Dtype, Granule] = Field(default_factory=dict)
    """Of dtypes whose smallest product is another."""
    mixed: dict[Dtype, tuple[Dtype, ...]] = Field(default_factory=dict)
    """Narrower dtypes that weights may have beside an activation of that dtype, without being unpacked."""
    availability: dict[Dtype, Annotated[Fact, Quantity("fraction")]] = Field(default_factory=dict)
    """Share of the peak rate that the unit sustains (power, issue), by dtype; slows the unit, not the bound."""

    @model_validator(mode="after")
    def _consistent(self) -> Matrix:
        if self.weight_buffers not in (1, 2):
            raise problem(f"found {self.weight_buffers}; expected 1 or 2; 2 is double buffering", ("weight_buffers",))
        if self.dataflow is not None and self.array is None:
            raise problem(f"found {self.dataflow} and no array; add 'array: {{rows: .., cols: ..}}'", ("dataflow",))
        for dtype in self.granules:
            if dtype not in self.macs_per_cycle:
                raise problem("macs_per_cycle has no such dtype; add a rate or drop this", ("granules", dtype))
        return self

    def granule_of(self, dtype: str) -> Granule:
        """The smallest product in that dtype."""
        return self.granules.get(dtype, self.granule)  # type: ignore[call-overload, no-any-return]

    @property
    def weight_buffers(self) -> int:
        """1 or 2."""
        return int(self.weight_buffers_fact.value)


class Vector(Strict):
    """The vector units of a core."""

    count: Count
    """Units in one core."""
    ops_per_cycle: OpsPerCycle
    """Elementwise operations per cycle of one unit (a fused multiply-add is one)."""
    special_per_cycle: OpsPerCycle
    """Exponentials, reciprocal square roots and their like per cycle of one unit."""
    latency: Cycles
    """From the end of issue to the result."""


class Port(Strict):
    """An engine that moves data between the tiers and a core (of a chip, in the static and dataflow styles)."""

    bytes_in_flight: Size | None = None
    """Bytes asked for and not yet there, at most; without it there is no limit."""
    port: BytesPerCycle | None = None
    """Bytes per cycle through its own port; without it only the tiers limit."""
    copy_latency: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """What copying a piece of a tile takes beyond a plain load: set-up, address generation, telling of its end."""
