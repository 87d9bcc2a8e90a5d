"""MoE and QMoE of com.microsoft: a router's choice, products per token and picked expert, their weighted sum."""

from __future__ import annotations

import math
from collections.abc import Callable

from .attention_forms import columns_of
from .contrib import MS
from .experts import expert_rows
from .formats import block_dtype
from .lower import Lowering
from .program import Call, Value
from .rows import swiglu


def mixture(low: Lowering, call: Call) -> None:
    """MoE and QMoE: router's scores in, two or three products per token and picked expert."""
    packed = call.op.endswith("QMoE")
    at = (
        {"fc1": (2, 3, 4), "fc2": (5, 6, 7), "fc3": (8, 9, 10)}
        if packed
        else {"fc1": (2, None, 3), "fc2": (4, None, 5), "fc3": (6, None, 7)}
    )
    x, scores, out = call.inputs[0], call.inputs[1], call.outputs[0]
    top_k, many = int(call.attr("k", 1)), low.values[scores].shape[-1]
    hidden = low.values[x].shape[-1]
    tokens = low.values[x].elements // hidden
    pairs = tokens * top_k
    weights, chosen = f"{out}.weights", f"{out}.chosen"
    for name, dtype in ((weights, low.values[x].dtype), (chosen, "int32")):
        low.values[name] = Value(name, (tokens, top_k), dtype)
    low.emit(
        call,
        "topk",
        {"scores": (low.ref(scores), (tokens, many))},
        {"weights": (weights, (tokens, top_k)), "chosen": (chosen, (tokens, top_k))},
        suffix=".topk",
    )
    low.made[chosen] = Call("TopK", chosen, (scores,), (weights, chosen))
    bits = int(call.attr("expert_weight_bits", 4)) if packed else 0

    def product(part: str, source: str, k: int) -> tuple[str, int]:
        weight, scale, bias = (call.input(i) if i is not None else "" for i in at[part])
        stack = low.values[weight]
        n = math.prod(stack.shape) * (8 // bits if packed else 1) // (many * k)
        dtype = None
        if packed:
            blocks = low.values[scale].elements // many
            dtype = block_dtype(f"int{bits}", (n, k), blocks, 16, 0)
            low.values[f"{weight}.packed"] = Value(
                f"{weight}.packed", (many, n, k), "int4", True, None, f"{weight}.packed"
            )
            stack = low.values[f"{weight}.packed"]
        made = f"{out}.{part}"
        low.values[made] = Value(made, (pairs, n), low.values[x].dtype)
        expert_rows(low, call, stack, chosen, low.ref(source), (pairs, n, k), made, bias, f".{part}", dtype)
        return made, n

    inner, width = product("fc1", x, hidden)
    kind = str(call.attr("activation_type", "relu"))
    active = f"{out}.act"
    if kind == "swiglu":
        gate, up = columns_of(low, call, inner, pairs, (width // 2,) * 2)
        width //= 2
        low.values[active] = Value(active, (pairs, width), low.values[x].dtype)
        swiglu(low, Call("SwiGLU", f"{call.name}.swiglu", (gate, up), (active,)))
    else:
        low.values[active] = Value(active, (pairs, width), low.values[x].dtype)
        work = {"relu": (1, 0), "gelu": (8, 1), "silu": (2, 2), "identity": (0, 0)}.get(kind, (2, 2))
        low.pointwise(Call("Relu", f"{call.name}.{kind}", (inner,), (active,)), *work)
    if call.input(at["fc3"][0] or 0):
        other, _ = product("fc3", x, hidden)
        both = f"{out}.gated"
        low.values[both] = Value(both, (pairs, width), low.values[x].dtype)
        low.pointwise(Call("Mul", f"{call.name}.gate", (active, other), (both,)), 1, 0)
        active = both
    down, _ = product("fc2", active, width)
    shape = (tokens, hidden)
    low.emit(
        call,
        "combine",
        {"x": (low.ref(down), (pairs, hidden)), "weights": (low.ref(weights), (tokens, top_k))},
        {"out": (out, shape)},
        suffix=".combine",
    )


LOWER: dict[str, Callable[[Lowering, Call], None]] = {f"{MS}MoE": mixture, f"{MS}QMoE": mixture}
