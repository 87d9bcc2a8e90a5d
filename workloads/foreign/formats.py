"""Element types of quantised weights as names of block formats (dtypes.py)."""

from __future__ import annotations

from .lower import Lowering
from .program import Value


def quantised(low: Lowering, weight: Value, shape: tuple[int, int]) -> str | None:
    """The element type of a stored weight with its scales and zero points; None: it has none."""
    if not weight.packed:
        return None
    element = low.dtype(weight)
    scale = low.values[weight.packed[0]]
    zero = low.values[weight.packed[1]] if len(weight.packed) > 1 else None
    return block_dtype(element, shape, scale.elements, BITS[scale.dtype], BITS[zero.dtype] if zero else 0)


BITS = {"fp32": 32, "fp16": 16, "bf16": 16, "fp8": 8, "int8": 8, "uint8": 8, "int4": 4, "int32": 32, "fp64": 64}


def block_dtype(element: str, shape: tuple[int, int], blocks: int, scale_bits: int, zero_bits: int) -> str:
    """The name of a block format with so many blocks in all: along the inputs, one per output, or one for all."""
    n, k = shape
    if blocks % n == 0 and k % (blocks // n) == 0:
        side = "*" if blocks == n else str(k // (blocks // n))
        form = f"1x{side}"
    elif blocks == 1:
        form = "*x*"
    else:
        form = f"{n}x{max(k // blocks, 1)}"
    return f"{element}/{form}s{scale_bits}" + (f"z{zero_bits}" if zero_bits else "")
