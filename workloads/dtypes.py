"""Element types, block formats, and what a tensor of them weighs.

A type is a plain name ("bf16"), a named block format ("nvfp4"), or `ELEMENT/OUTPUTSxINPUTSsSCALEzZERO`: elements of
which a block of OUTPUTS x INPUTS (the last two dimensions; `*`: all of one) shares a scale of SCALE bits and, with z, a
zero point of ZERO bits. "fp8/128x128s32", "int4/1x128s16z4", "int8/1x*s16".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from .checks import nearest, problem, shown


class _Bits(dict[str, int]):
    """Bits per element by plain name; a block format's elements have theirs too, without the scales."""

    def __missing__(self, name: str) -> int:
        return dtype_of(name).bits


DTYPE_BITS: dict[str, int] = _Bits(
    fp64=64,
    fp32=32,
    int64=64,
    int32=32,
    int16=16,
    bf16=16,
    fp16=16,
    fp8=8,
    int8=8,
    fp4=4,
    int4=4,
)
"""Bits per element. `int32` and `int64` are for token ids and positions."""

VALUE_DTYPES = tuple(name for name in DTYPE_BITS if name not in ("fp64", "int64", "int32", "int16"))
"""The plain types that weights, KV and activations may have."""

BLOCK_FORMATS: dict[str, str] = {
    "mxfp8": "fp8/1x32s8",
    "mxfp4": "fp4/1x32s8",
    "nvfp4": "fp4/1x16s8",
}
"""Block formats with a name: OCP microscaling (MX 1.0: 32 elements, a scale of 8 bits), and NVFP4 (16 elements, an fp8
scale; its one fp32 scale per tensor is left out)."""

OTHER_BITS = {"int3": 3, "int2": 2, "nf4": 4, "fp6": 6}
"""Elements that only block formats have; a product of them is computed in a wider type."""

_FORMAT = re.compile(r"([a-z]+[0-9]+)/(\d+|\*)x(\d+|\*)s(\d+)(?:z(\d+))?")


@dataclass(frozen=True)
class Dtype:
    """An element type, and the block that shares a scale; no block: no scales."""

    element: str
    bits: int
    outputs: int | None = None
    """Of a block; None: all."""
    inputs: int | None = None
    block_bits: int = 0
    """Scale and zero point of one block."""

    @property
    def by_row(self) -> bool:
        """Whether each whole row shares a scale."""
        return self.outputs == 1 and self.inputs is None and self.block_bits > 0

    def size(self, shape: Sequence[int]) -> int:
        """Bytes of a tensor, rounded up to a whole byte."""
        bits = prod(shape) * self.bits
        if self.block_bits:
            *lead, outputs, inputs = (1, *shape) if len(shape) == 1 else shape
            blocks = -(-outputs // (self.outputs or outputs)) * -(-inputs // (self.inputs or inputs))
            bits += prod(lead) * blocks * self.block_bits
        return -(-bits // 8)


@lru_cache(maxsize=1024)
def dtype_of(name: str) -> Dtype:
    """What a name of an element type stands for. Raises KeyError for one that stands for nothing."""
    if name in DTYPE_BITS:
        return Dtype(name, DTYPE_BITS[name])
    parts = _FORMAT.fullmatch(BLOCK_FORMATS.get(name, name))
    if parts is None:
        raise KeyError(name)
    element, outputs, inputs, scale, zero = parts.groups()
    bits = {**DTYPE_BITS, **OTHER_BITS}[element]
    rows, columns = (None if side == "*" else int(side) for side in (outputs, inputs))
    if 0 in (rows, columns):
        raise KeyError(name)
    return Dtype(element, bits, rows, columns, int(scale) + int(zero or 0))


def check_dtype(dtype: object, where: str, known: tuple[str, ...] = (*DTYPE_BITS, *BLOCK_FORMATS)) -> str:
    """`dtype` if it is one of `known`, or a block format where these are. Raises StallscopeError with the nearest."""
    if isinstance(dtype, str) and dtype in known:
        return dtype
    if isinstance(dtype, str) and "/" in dtype and set(BLOCK_FORMATS) <= set(known):
        try:
            dtype_of(dtype)
        except KeyError:
            todo = "Write ELEMENT/OUTPUTSxINPUTSsBITS, such as fp8/128x128s32 or int4/1x128s16z4."
            raise problem(where, shown(dtype), "a block format", todo) from None
        return dtype
    todo = nearest(dtype, known) if isinstance(dtype, str) else f"Write one of these names, such as {known[0]!r}."
    raise problem(where, shown(dtype), f"one of {', '.join(known)}", todo)


def dtype_bytes(elements: int, dtype: str) -> int:
    """Bytes of `elements` packed elements of a row, rounded up to a whole byte."""
    return dtype_of(dtype).size((elements,))


def element_of(dtype: str) -> str:
    """The plain type in which a unit would take these elements: that of the element, or the next wider."""
    element = dtype_of(dtype).element
    return {"int3": "int4", "int2": "int4", "nf4": "int4", "fp6": "fp8"}.get(element, element)


def block_scaled(dtype: str) -> bool:
    """Whether elements along a row come in blocks, each with a scale of its own: sums over them are scaled in parts."""
    return dtype_of(dtype).inputs is not None
