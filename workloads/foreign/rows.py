"""Norms, activations and rotations in the forms that ONNX and com.microsoft give them."""

from __future__ import annotations

import math
from collections.abc import Callable

from .contrib import MS
from .lower import Lowering, Ref, flat
from .products import lookup
from .program import Call, Shape, Value

Inputs = dict[str, tuple[Ref, Shape]]


def norm(row: str, weight: int = 1, bias: int = 2) -> Callable[[Lowering, Call], None]:
    """A norm over the last axes: rmsnorm or layernorm."""

    def lower(low: Lowering, call: Call) -> None:
        shape = low.values[call.inputs[0]].shape
        axis = int(call.attr("axis", -1)) % len(shape)
        width = math.prod(shape[axis:])
        add_norm(low, call, row, call.inputs[0], width, call.input(weight), call.input(bias), call.outputs[0])

    return lower


def add_norm(
    low: Lowering, call: Call, row: str, x: str, width: int, weight: str, bias: str, out: str, suffix: str = ""
) -> None:
    """One norm of rows of `width`. A weight or bias that is not stored is an op behind it."""
    seen = (low.values[x].elements // width, width)
    inputs: Inputs = {"x": (low.ref(x), seen)}
    if low.values[weight].stored:
        inputs["weight"] = (Ref(low.stored(weight, (width,)), (width,)), (width,))
        if bias and row == "layernorm":
            inputs["bias"] = (Ref(low.stored(bias, (width,)), (width,)), (width,))
        low.emit(call, row, inputs, {"out": (out, seen)}, suffix=suffix)
        return
    other = low.ref(weight)
    inputs = {"a": (low.ref(x), seen), "b": (other, seen)}
    size = low.values[x].elements
    low.emit(
        call, "pointwise", inputs, {"out": (out, seen)}, "its weight is computed", suffix, ops=4 * size, special=seen[0]
    )


def skip_norm(row: str) -> Callable[[Lowering, Call], None]:
    """A residual sum and the norm behind it; the sum is an output too."""

    def lower(low: Lowering, call: Call) -> None:
        x, skip, gamma = call.inputs[:3]
        rms = row == "rmsnorm"
        beta, bias = ("", call.input(3)) if rms else (call.input(3), call.input(4))
        value = low.values[x]
        total = call.output(3) or f"{call.outputs[0]}.sum"
        if total not in low.values:
            low.values[total] = Value(total, value.shape, value.dtype)
        shape = flat(value.shape)
        first = f"{total}.first" if bias else total
        if bias:
            low.values[first] = Value(first, value.shape, value.dtype)
        inputs: Inputs = {"a": (low.ref(x), shape), "b": (low.ref(skip), shape)}
        low.emit(call, "add", inputs, {"out": (first, shape)}, suffix=".skip")
        if bias:
            inputs = {"a": (low.ref(first), shape), "b": (low.ref(bias), shape)}
            low.emit(call, "add", inputs, {"out": (total, shape)}, suffix=".bias")
        add_norm(low, call, row, total, shape[1], gamma, beta, call.outputs[0])

    return lower


def embed_norm(low: Lowering, call: Call) -> None:
    """Tables of words, positions and segments, their sum and its norm."""
    ids, segments, words, positions = call.inputs[:4]
    rows, out = low.values[ids].elements, call.outputs[0]
    shape = flat(low.values[out].shape)
    parts: list[str] = []
    for name in (words, positions, call.input(4) if segments else ""):
        if name:
            part = f"{out}.{low.values[name].root}"
            low.values[part] = Value(part, low.values[out].shape, low.values[out].dtype)
            lookup(low, call, low.values[name], rows, shape[1], part, suffix=f".{len(parts)}")
            parts.append(part)
    total = parts[0]
    for i, part in enumerate(parts[1:]):
        name = call.output(2) if i == len(parts) - 2 and call.output(2) else f"{out}.sum{i}"
        low.values.setdefault(name, Value(name, low.values[out].shape, low.values[out].dtype))
        inputs: Inputs = {"a": (low.ref(total), shape), "b": (low.ref(part), shape)}
        low.emit(call, "add", inputs, {"out": (name, shape)}, suffix=f".sum{i}")
        total = name
    add_norm(low, call, "layernorm", total, shape[1], call.inputs[5], call.input(6), out)


def softmax(low: Lowering, call: Call) -> None:
    """Over one axis (old opsets: over all from it on)."""
    shape = low.values[call.inputs[0]].shape
    width = shape[int(call.attr("axis", -1)) % len(shape)]
    seen = (math.prod(shape) // width, width)
    low.emit(call, "softmax", {"x": (low.ref(call.inputs[0]), seen)}, {"out": (call.outputs[0], seen)})


def unary(row: str) -> Callable[[Lowering, Call], None]:
    """An activation with a row of its own."""

    def lower(low: Lowering, call: Call) -> None:
        x = low.ref(call.inputs[0])
        shape = flat(low.values[call.outputs[0]].shape)
        if call.input(1):
            return low.pointwise(call, 9, 1)
        low.emit(call, row, {"x": (x, shape)}, {"out": (call.outputs[0], shape)})
        return None

    return lower


def swiglu(low: Lowering, call: Call) -> None:
    """silu(gate) * up."""
    shape = flat(low.values[call.outputs[0]].shape)
    gate, up = (low.ref(i) for i in call.inputs[:2])
    low.emit(call, "swiglu", {"gate": (gate, shape), "up": (up, shape)}, {"out": (call.outputs[0], shape)})


def rope(low: Lowering, call: Call) -> None:
    """Rotary positions; of a part of each head, three operations for each element of that part."""
    x, out = low.ref(call.inputs[0]), call.outputs[0]
    shape = low.values[call.inputs[0]].shape
    dim = call.attr("head_dim") or (shape[-1] if len(shape) == 4 else 0)
    heads = int(call.attr("num_heads", 0) or 0)
    part = int(call.attr("rotary_dim") or call.attr("rotary_embedding_dim", 0) or 0)
    if not dim:
        tables = [
            low.values[n].shape[-1]
            for n in call.inputs[1:]
            if n and len(low.values[n].shape) > 1 and low.values[n].dtype not in ("int64", "int32")
        ]
        dim = shape[-1] // heads if heads else 2 * tables[0] if tables else shape[-1]
    made = low.graph.nodes[x.tensor]["shape"]
    seen = made if math.prod(made) == math.prod(shape) and made[-1] % dim == 0 else flat(shape)
    if part and part < dim:
        low.emit(
            call,
            "pointwise",
            {"a": (x, seen)},
            {"out": (out, seen)},
            f"{part} of {dim} elements of each head turn",
            ops=3 * math.prod(shape) * part // dim,
        )
    else:
        low.emit(call, "rope", {"x": (x, seen)}, {"out": (out, seen)}, head_dim=dim)


def topk(low: Lowering, call: Call) -> None:
    """The largest k of each row, in k passes."""
    k = low.values[next(filter(None, call.outputs))].shape[int(call.attr("axis", -1))]
    low.passing(call, k * low.values[call.inputs[0]].elements, 0, f"{k} passes of maximum")


LOWER: dict[str, Callable[[Lowering, Call], None]] = {
    "RMSNormalization": norm("rmsnorm"),
    "SimplifiedLayerNormalization": norm("rmsnorm"),
    f"{MS}SimplifiedLayerNormalization": norm("rmsnorm"),
    "LayerNormalization": norm("layernorm"),
    f"{MS}SkipSimplifiedLayerNormalization": skip_norm("rmsnorm"),
    f"{MS}SkipLayerNormalization": skip_norm("layernorm"),
    f"{MS}EmbedLayerNormalization": embed_norm,
    "Softmax": softmax,
    "Gelu": unary("gelu"),
    f"{MS}Gelu": unary("gelu"),
    f"{MS}FastGelu": unary("gelu"),
    "Silu": unary("silu"),
    "SwiGLU": swiglu,
    "Rope": rope,
    "RotaryEmbedding": rope,
    f"{MS}RotaryEmbedding": rope,
    "TopK": topk,
}
