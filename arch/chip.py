"""One accelerator package, as its YAML file describes it (docs/chips.md explains every key).

Every number is a `Fact`: the value in base units (bytes, bytes/s, fs, Hz, pJ/bit, cycles, counts) with its origin.
The classes are pydantic models: frozen, and their validators refuse files that contradict themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from ..errors import StallscopeError
from .engines import Matrix, Port, Vector
from .execution import Execution
from .fact import ORIGINS, Fact, Path, Quantity, Strict, problem, unknown
from .fields import Count, Dtype, Source, Stated
from .link import Link, Node
from .tier import Tier

# What must find a memory on every chip. Experts are placed where the file lets them be; a dense model has none.
MUST_HOLD = ("weight", "kv", "activation", "embedding")

# A unit without a rate for a dtype computes in the next one of this row that it has: never fewer bits of mantissa or
# range than asked for, but for bf16 in fp16 units, which costs range and no time.
WIDER: dict[str, tuple[str, ...]] = {
    "int4": ("int8", "fp8", "bf16", "fp16", "tf32", "fp32"),
    "fp4": ("fp8", "bf16", "fp16", "tf32", "fp32"),
    "int8": ("bf16", "fp16", "tf32", "fp32"),
    "fp8": ("bf16", "fp16", "tf32", "fp32"),
    "bf16": ("fp16", "tf32", "fp32"),
    "fp16": ("bf16", "tf32", "fp32"),
    "tf32": ("fp32",),
    "fp32": (),
}

# Stated peaks are rounded, and clocks are quoted at more than one boost; beyond this a file contradicts itself.
PEAK_TOLERANCE = 0.05


class Chip(Strict):
    """One accelerator package: units, memories, links and style of execution, each number with its origin."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)
    """The name that commands take."""
    title: str = Field(min_length=1)
    """The name that people use."""
    also: tuple[str, ...] = ()
    """Other names of it, as measured tables write them."""
    style: Literal["kernels", "static", "dataflow"]
    """`kernels` (GPU), `static` (every start fixed by the compiler) or `dataflow` (sections laid out in space)."""
    sources: dict[str, Source] = Field(default_factory=dict)
    """What `source:` refers to."""
    notes: tuple[str, ...] = ()
    """What a reader should know of the chip as a whole."""
    clock: Annotated[Fact, Quantity("frequency")]
    """Core clock."""
    cores: Count
    """Cores of the chip."""
    core_name: str = Field(min_length=1, max_length=24)
    """What its makers call a core: SM, PCU, chip."""
    matrix: Matrix
    """Matrix units."""
    vector: Vector
    """Vector units."""
    load: Port
    """Load engines."""
    store: Port
    """Store engines."""
    tiers: tuple[Tier, ...] = Field(min_length=1, max_length=16)
    """Memories, nearest first."""
    link: Link | None = None
    """Links to other chips; without it the chip works alone."""
    node: Node
    """The group of chips that it comes in."""
    execution: Execution
    """How work is started."""
    energy: dict[Literal["mac", "vector_op"], Annotated[Fact, Quantity("energy")]] = Field(default_factory=dict)
    """Energy of an operation."""
    tdp: Annotated[Fact, Quantity("power")] | None = None
    """Rated power of the package."""
    peaks: dict[Dtype, Annotated[Fact, Quantity("flops")]] = Field(default_factory=dict)
    """Dense peaks as its makers state them: the file's own cross-check, never used in a run."""

    @model_validator(mode="after")
    def _consistent(self) -> Chip:
        for check in (_check_sources, _check_tiers, _check_drams, _check_holds, _check_peaks):
            check(self)
        return self

    @property
    def clock_hz(self) -> float:
        """Core clock in Hz."""
        return float(self.clock.value)

    @property
    def period_fs(self) -> int:
        """One core clock period in whole femtoseconds."""
        return round(10**15 / self.clock_hz)

    def tier(self, name: str) -> Tier:
        """The tier of that name. Raises StallscopeError when the chip has none."""
        for tier in self.tiers:
            if tier.name == name:
                return tier
        raise StallscopeError(f"{self.name}: {unknown('tier', name, [t.name for t in self.tiers])}")

    def with_timing(self, timing: Literal["fixed", "dram"]) -> Chip:
        """The same chip with that timing where there is `dram:`. Raises StallscopeError for `dram` if it is nowhere."""
        if timing == "dram" and all(tier.dram is None for tier in self.tiers):
            raise StallscopeError(
                f"{self.name}: --timing dram: no tier of this chip has 'dram:'; expected one with its preset; add it "
                "to the chip file (docs/chips.md), or use --timing fixed"
            )
        tiers = [t.model_copy(update={"timing": timing if t.dram is not None else "fixed"}) for t in self.tiers]
        return self.model_copy(update={"tiers": tuple(tiers)})

    def tiers_for(self, kind: str) -> tuple[Tier, ...]:
        """Tiers that may hold a tensor kind, nearest first."""
        return tuple(tier for tier in self.tiers if kind in tier.holds)

    def compute_dtype(self, dtype: str) -> str:
        """The dtype that the matrix unit computes in when asked for `dtype`: itself, or the next wider that it has."""
        if dtype not in WIDER:
            raise StallscopeError(f"{self.name}: {unknown('dtype', dtype, WIDER)}")
        for candidate in (dtype, *WIDER[dtype]):
            if candidate in self.matrix.macs_per_cycle:
                return candidate
        have = ", ".join(self.matrix.macs_per_cycle)
        raise StallscopeError(
            f"{self.name}: matrix.macs_per_cycle has no {dtype} nor anything wider (it has {have}); add a rate for it"
        )

    def peak_flops(self, dtype: str) -> float:
        """Dense peak in FLOP/s: cores x units x multiply-adds x 2 x clock, in the dtype that it computes in."""
        rate = self.matrix.macs_per_cycle[self.compute_dtype(dtype)]  # type: ignore[index]
        return float(self.cores.value * self.matrix.count.value * rate.value * 2 * self.clock.value)

    def facts(self) -> Iterator[tuple[str, Fact]]:
        """Every number with its dotted path, tiers by name: ("tiers.hbm.bandwidth", Fact)."""
        for path, fact in _walk(self, ()):
            parts = [self.tiers[p].name if isinstance(p, int) else p for p in path]
            yield ".".join(parts), fact


def _walk(value: Any, path: Path) -> Iterator[tuple[Path, Fact]]:
    """Every Fact below a value. Numbers that share one origin (a granule) are one Fact, their text all of them."""
    if isinstance(value, Fact):
        yield path, value
    elif isinstance(value, Stated):
        numbers = {k: v for k, v in value if isinstance(v, int)}
        text = " ".join(f"{k}={v}" for k, v in numbers.items())
        origin = {k: getattr(value, k) for k in (*ORIGINS, "note")}
        yield path, Fact(value=next(iter(numbers.values())), text=text, **origin)
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            yield from _walk(getattr(value, name), (*path, field.alias or name))
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _walk(item, (*path, key))
    elif isinstance(value, tuple):
        for i, item in enumerate(value):
            yield from _walk(item, (*path, i))


def _check_sources(chip: Chip) -> None:
    for path, fact in _walk(chip, ()):
        if fact.source is not None and fact.source not in chip.sources:
            known = chip.sources or ["(none: add a 'sources:' map)"]
            raise problem(unknown("source", fact.source, known), (*path, "source"))


def _check_tiers(chip: Chip) -> None:
    seen: dict[str, int] = {}
    for i, tier in enumerate(chip.tiers):
        if tier.name in seen:
            raise problem(f"a second tier {tier.name!r}; expected every name once; rename one", ("tiers", i, "name"))
        seen[tier.name] = i
        before = chip.tiers[i - 1] if i else None
        if before and tier.latency.value < before.latency.value:
            raise problem(
                f"{tier.name} ({tier.latency}) is nearer than {before.name} ({before.latency}), which stands before "
                "it; expected tiers nearest first, with load-to-use latencies in all; reorder them or mend a latency",
                ("tiers", i, "latency"),
            )


def _check_drams(chip: Chip) -> None:
    for i, tier in enumerate(chip.tiers):
        if tier.dram is not None and chip.style == "static":
            raise problem(
                "found on a chip of style 'static', whose schedule must know every memory's time beforehand; expected "
                "none; leave it out, and let 'bandwidth' and 'availability' say what the memory gives",
                ("tiers", i, "dram"),
            )


def _check_holds(chip: Chip) -> None:
    held = {kind for tier in chip.tiers for kind in tier.holds}
    for kind in MUST_HOLD:
        if kind not in held:
            raise problem(
                f"no tier holds {kind!r}; expected a home for each of {', '.join(MUST_HOLD)}; "
                "add it to a tier's 'holds'",
                ("tiers",),
            )
    if not any(tier.scope == "chip" and "weight" in tier.holds for tier in chip.tiers):
        raise problem(
            "no tier of scope 'chip' holds 'weight'; expected one; add a tier or add weight to its 'holds'", ("tiers",)
        )


def _check_peaks(chip: Chip) -> None:
    for dtype, stated in chip.peaks.items():
        if dtype not in chip.matrix.macs_per_cycle:
            raise problem(
                f"a {dtype} peak, but matrix.macs_per_cycle has no {dtype}; expected a rate; add it or drop this",
                ("peaks", dtype),
            )
        peak = chip.peak_flops(dtype)
        if abs(peak / stated.value - 1) > PEAK_TOLERANCE:
            raise problem(
                f"stated {stated} but cores x matrix.count x macs_per_cycle x 2 x clock is {peak / 1e12:.1f} TFLOPS; "
                f"expected them within {PEAK_TOLERANCE:.0%}; mend one of the five",
                ("peaks", dtype),
            )


def chip_schema() -> dict[str, Any]:
    """JSON Schema of a chip file's YAML form, with a description of every key, for editors."""
    schema = Chip.model_json_schema(by_alias=True, mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
