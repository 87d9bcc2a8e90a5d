"""What the fields of chip files are made of: words and quantities, defaults, and where numbers come from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from .fact import NO_SOURCE, ORIGINS, Fact, Quantity, Strict, read_origin

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]
TensorKind = Literal["weight", "expert", "kv", "activation", "embedding"]

Count = Annotated[Fact, Quantity("count")]
Size = Annotated[Fact, Quantity("bytes")]
Bandwidth = Annotated[Fact, Quantity("bandwidth")]
Time = Annotated[Fact, Quantity("time")]
Cycles = Annotated[Fact, Quantity("cycles")]
BytesPerCycle = Annotated[Fact, Quantity("bytes_per_cycle")]
OpsPerCycle = Annotated[Fact, Quantity("ops_per_cycle")]
EnergyPerBit = Annotated[Fact, Quantity("energy_per_bit")]


def default(kind: str, text: str) -> Any:
    """A field that is that quantity where the file leaves it out."""
    return Field(default_factory=lambda: Quantity(kind).read({"value": text, "assumed": "the default"}))


def default_alias(alias: str) -> Any:
    """A count that is 1 where the file leaves it out, of another name there."""
    return Field(alias=alias, default_factory=lambda: Quantity("count").read({"value": 1, "assumed": "the default"}))


class Source(Strict):
    """Where numbers come from."""

    title: str = Field(min_length=1)
    """What it is, as a reader would look for it."""
    url: str = ""
    """Where to find it; empty for what is not on the web."""


class Stated(Strict):
    """Whole numbers that share one origin."""

    source: str | None = None
    derived: str | None = None
    assumed: str | None = None
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_origin(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if not any(key in data for key in ORIGINS):
                data = {**data, "assumed": NO_SOURCE}
            read_origin(data)
        return data
