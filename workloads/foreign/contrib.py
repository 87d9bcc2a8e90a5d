"""Operators outside the ONNX standard: the shapes of what they make, for those that are read (domain com.microsoft)."""

from __future__ import annotations

import difflib
from collections.abc import Callable

from ...errors import StallscopeError
from .evaluate import TABLE
from .program import Call, Program, Shape

Types = list[tuple[Shape, str]]
MS = "com.microsoft."


def shapes(program: Program, call: Call) -> Types:
    """(shape, element type) of every output that the operator can have, in order."""
    try:
        return SHAPES[call.op](program, call)
    except (IndexError, KeyError, ZeroDivisionError, ValueError, TypeError) as error:
        if isinstance(error, StallscopeError):
            raise
        found = "inputs or attributes that do not fit it"
        raise program.error(call, found, "those of the operator's definition", "Check the graph.") from None


def unknown(program: Program, call: Call) -> StallscopeError:
    """The error for an operator that nothing here knows."""
    from .tables import OPERATORS

    names = sorted({*OPERATORS, *SHAPES, *TABLE})
    close = difflib.get_close_matches(call.op, names, n=1, cutoff=0.7)
    todo = f"Did you mean {close[0]!r}? " if close else ""
    todo += "Write it as a function of known operators in the file, or add a row (docs/graphs.md)."
    return program.error(call, f"the operator {call.op!r}, which is not known", "one that is mapped", todo)


def _like(*inputs: int) -> Callable[[Program, Call], Types]:
    """Outputs shaped as these inputs."""
    return lambda p, c: [(p.shape(c.inputs[i]), p.values[c.inputs[i]].dtype) for i in inputs]


def _skip_norm(p: Program, c: Call) -> Types:
    shape, dtype = _like(0)(p, c)[0]
    small = (*shape[:-1], 1)
    return [(shape, dtype), (small, "fp32"), (small, "fp32"), (shape, dtype)]


def _norm(p: Program, c: Call) -> Types:
    shape, dtype = _like(0)(p, c)[0]
    return [(shape, dtype), ((*shape[:-1], 1), "fp32"), ((*shape[:-1], 1), "fp32")]


def _columns(p: Program, c: Call) -> Types:
    shape, dtype = _like(0)(p, c)[0]
    return [((*shape[:-1], int(c.attrs["N"])), dtype)]


def cached_length(p: Program, c: Call, past: int, new: int) -> int:
    """Tokens in a cache behind the step: `past` (the buffer's length) and `new`, or what total_sequence_length says."""
    total = p.scalar(c.input(6)) if c.op == f"{MS}GroupQueryAttention" and c.input(6) else None
    return int(total) if total else past + new


def _gqa(p: Program, c: Call) -> Types:
    batch, new, width = p.shape(c.inputs[0])
    heads, kv = int(c.attrs["num_heads"]), int(c.attrs["kv_num_heads"])
    dim = width // heads if c.input(1) else width // (heads + 2 * kv)
    past = p.shape(c.inputs[3])[2] if c.input(3) else 0
    total = cached_length(p, c, past, new)
    dtype = p.values[c.inputs[0]].dtype
    held = p.values[c.inputs[3]].dtype if c.input(3) else dtype
    present = (batch, kv, max(total, past), dim)
    return [((batch, new, heads * dim), dtype), (present, held), (present, held)]


def _mha(p: Program, c: Call) -> Types:
    query = p.shape(c.inputs[0])
    dtype, heads = p.values[c.inputs[0]].dtype, int(c.attrs["num_heads"])
    if len(query) == 5:  # packed [batch, new, heads, 3, dim]
        dim = v_dim = query[4]
        new_kv = query[1]
    else:
        dim = query[2] // heads
        value = p.shape(c.inputs[2]) if c.input(2) else (0, 0, 0, 2, dim)
        key = p.shape(c.inputs[1])
        new_kv = key[2] if len(key) == 4 else key[1]
        v_dim = value[-1] if len(value) in (4, 5) else value[2] // heads
    past = p.shape(c.inputs[6])[2] if c.input(6) else 0
    present = (query[0], heads, past + new_kv, dim)
    return [((*query[:2], heads * v_dim), dtype), (present, dtype), ((*present[:3], v_dim), dtype)]


def _packed_attention(p: Program, c: Call) -> Types:
    batch, new, _ = p.shape(c.inputs[0])
    heads = int(c.attrs["num_heads"])
    sizes = c.attrs.get("qkv_hidden_sizes") or [p.shape(c.inputs[1])[1] // 3] * 3
    past = p.shape(c.inputs[4])[3] if c.input(4) else 0
    dtype = p.values[c.inputs[0]].dtype
    return [((batch, new, sizes[2]), dtype), ((2, batch, heads, past + new, sizes[0] // heads), dtype)]


def _fused_matmul(p: Program, c: Call) -> Types:
    a, b = p.shape(c.inputs[0]), p.shape(c.inputs[1])
    rows = a[-1] if c.attr("transA") else a[-2]
    columns = b[-2] if c.attr("transB") else b[-1]
    return [((*max(a[:-2], b[:-2], key=len), rows, columns), p.values[c.inputs[0]].dtype)]


def _matmul(p: Program, c: Call) -> Types:
    return [((*p.shape(c.inputs[0])[:-1], p.shape(c.inputs[1])[-1]), "fp32")]


def _gather_block(p: Program, c: Call) -> Types:
    data, index = p.shape(c.inputs[0]), p.shape(c.inputs[1])
    axis = int(c.attr("gather_axis", 0)) % len(data)
    packed = p.values[c.inputs[0]].dtype == "uint8"
    rest = list(data[axis + 1 :])
    if packed and rest:
        rest[-1] *= 8 // int(c.attr("bits", 4))
    return [((*data[:axis], *index, *rest), p.values[c.inputs[2]].dtype)]


def _embed_norm(p: Program, c: Call) -> Types:
    batch, new = p.shape(c.inputs[0])
    out = (batch, new, p.shape(c.inputs[2])[1])
    dtype = p.values[c.inputs[2]].dtype
    return [(out, dtype), ((batch,), "int32"), (out, dtype)]


SHAPES: dict[str, Callable[[Program, Call], Types]] = {
    "SimplifiedLayerNormalization": _norm,
    f"{MS}SimplifiedLayerNormalization": _norm,
    f"{MS}SkipSimplifiedLayerNormalization": _skip_norm,
    f"{MS}SkipLayerNormalization": _skip_norm,
    f"{MS}EmbedLayerNormalization": _embed_norm,
    f"{MS}RotaryEmbedding": _like(0),
    f"{MS}GroupQueryAttention": _gqa,
    f"{MS}MultiHeadAttention": _mha,
    f"{MS}Attention": _packed_attention,
    f"{MS}MatMulNBits": _columns,
    f"{MS}FusedMatMul": _fused_matmul,
    f"{MS}MatMulIntegerToFloat": _matmul,
    f"{MS}DynamicQuantizeMatMul": _matmul,
    f"{MS}GatherBlockQuantized": _gather_block,
    f"{MS}MoE": _like(0),
    f"{MS}QMoE": _like(0),
    f"{MS}Gelu": _like(0),
    f"{MS}FastGelu": _like(0),
    f"{MS}BiasGelu": _like(0),
    f"{MS}QuickGelu": _like(0),
}
