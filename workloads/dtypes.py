"""Element types and what a tensor of them weighs."""

from __future__ import annotations

from .checks import nearest, problem, shown

DTYPE_BITS: dict[str, int] = {
    "fp32": 32,
    "int32": 32,
    "bf16": 16,
    "fp16": 16,
    "fp8": 8,
    "int8": 8,
    "fp4": 4,
    "int4": 4,
}
"""Bits per element. `int32` is for token ids; scales of block formats are not counted."""

VALUE_DTYPES = tuple(name for name in DTYPE_BITS if name != "int32")
"""The types that weights, KV and activations may have."""


def check_dtype(dtype: object, where: str, known: tuple[str, ...] = tuple(DTYPE_BITS)) -> str:
    """`dtype` if it is one of `known`. Raises StallscopeError with the nearest one."""
    if not isinstance(dtype, str) or dtype not in known:
        todo = nearest(dtype, known) if isinstance(dtype, str) else f"Write one of these names, such as {known[0]!r}."
        raise problem(where, shown(dtype), f"one of {', '.join(known)}", todo)
    return dtype


def dtype_bytes(elements: int, dtype: str) -> int:
    """Bytes of `elements` packed elements, rounded up to a whole byte."""
    return -(-elements * DTYPE_BITS[dtype] // 8)
