"""Adding calls to a program: what does not depend on the inputs is stored, worked out where numbers are known."""

from __future__ import annotations

from collections.abc import Sequence

from .evaluate import evaluate
from .program import Array, Call, Program, Shape, Value

VIEWS = frozenset({"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Cast", "CastLike", "Expand",
                   "Dropout"})  # fmt: skip
"""Of a stored tensor these are the same stored tensor."""


def store(program: Program, name: str, shape: Shape, dtype: str, data: Array | None) -> str:
    """Add a stored tensor; returns its name."""
    program.values[name] = Value(name, shape, dtype, True, data, name)
    return name


def record(program: Program, call: Call, types: Sequence[tuple[Shape, str]]) -> None:
    """Add a call, with (shape, element type) of its outputs; of one that depends on no input only its results."""
    values = program.values
    sources = [values[i] if i else None for i in call.inputs]
    needed = sources[:1] if call.op == "CastLike" else sources  # of the other it takes the type alone
    stored = all(v is None or v.stored for v in needed) and "Random" not in call.op
    arrays: list[Array] | None = None
    if stored and all(v is None or v.data is not None for v in needed):
        live = [shape for out, (shape, _) in zip(call.outputs, types, strict=True) if out]
        arrays = evaluate(call, [v.data if v else None for v in needed], live)
    first = sources[0] if sources else None
    for i, (out, (shape, dtype)) in enumerate(zip(call.outputs, types, strict=True)):
        if out:
            data = arrays[i] if arrays and i < len(arrays) else None
            root = first.root if call.op in VIEWS and first is not None else out
            packed = first.packed if call.op in VIEWS and first is not None else ()
            values[out] = Value(out, shape, dtype, stored, data, root if stored else "", packed)
    if stored and call.op == "DequantizeLinear" and first is not None:
        packed = tuple(i for i in call.inputs[1:] if i)
        values[call.outputs[0]] = Value(call.outputs[0], first.shape, types[0][1], True, None, first.root, packed)
    if not stored:
        program.calls.append(call)


def alias(program: Program, place: str, out: str, name: str) -> None:
    """`out` is another name for a value."""
    value = program.values[name]
    program.values[out] = Value(out, value.shape, value.dtype, value.stored, value.data, value.root, value.packed)
    if not value.stored:
        program.calls.append(Call("Identity", f"{place}.{out}", (name,), (out,)))
