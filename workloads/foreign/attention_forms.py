"""Attention as com.microsoft's operators have it: with rotation, past and present, or projections inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from .attention import Attend, attend, plain_past, standard, written_out
from .contrib import MS, cached_length
from .lower import Lowering, Ref
from .products import linear
from .program import Call, Value


def group_query(low: Lowering, call: Call) -> None:
    """GroupQueryAttention: causal, with rotation, past and present inside."""
    heads, kv = int(call.attrs["num_heads"]), int(call.attrs["kv_num_heads"])
    batch, new, width = low.values[call.inputs[0]].shape
    q, k, v = call.inputs[0], call.input(1), call.input(2)
    dim = width // heads if k else width // (heads + 2 * kv)
    if not k:
        q, k, v = columns_of(low, call, q, batch * new, (heads * dim, kv * dim, kv * dim))
    past = low.values[call.inputs[3]].shape[2] if call.input(3) else 0
    total = cached_length(low.program, call, past, new)
    if call.attr("do_rotary", 0):
        turned = []
        for role, name, many in (("q", q, heads), ("k", k, kv)):
            out = f"{name}.{call.name}.{role}_rope"
            low.values[out] = Value(out, (batch * new, many * dim), low.values[name].dtype)
            seen = (batch * new, many * dim)
            low.emit(
                call, "rope", {"x": (low.ref(name), seen)}, {"out": (out, seen)}, "", f".{role}_rope", head_dim=dim
            )
            turned.append(out)
        q, k = turned
    shared = bool(call.output(1)) and past > 0 and low.values[call.outputs[1]].shape[2] == past
    cached = total - new
    window = int(call.attr("local_window_size", -1))
    note = f"causal, {cached} tokens cached" + (" in a buffer of past and present together" if shared else "")
    a = Attend(
        q,
        k,
        v,
        batch,
        heads,
        kv,
        dim,
        dim,
        new,
        new,
        call.input(3),
        call.input(4),
        cached,
        cached,
        window - 1 if window > 0 else -1,
        softcap=bool(call.attr("softcap", 0.0)),
        present=(call.output(1), call.output(2)),
        in_place=shared,
        out=call.outputs[0],
        note=note,
    )
    attend(low, call, plain_past(low, a))


def columns_of(low: Lowering, call: Call, packed: str, rows: int, widths: tuple[int, ...]) -> list[str]:
    """Values that are columns of one packed value."""
    out = []
    for i, width in enumerate(widths):
        name = f"{packed}.{call.name}.part{i}"
        low.values[name] = Value(name, (rows, width), low.values[packed].dtype)
        low.refs[name] = Ref(low.ref(packed).tensor, (rows, width), part=name)
        out.append(name)
    return out


def multi_head(low: Lowering, call: Call) -> None:
    """MultiHeadAttention: query, key and value apart or packed, self or cross."""
    heads = int(call.attrs["num_heads"])
    shape = low.values[call.inputs[0]].shape
    batch, queries = shape[:2]
    q, k, v = call.inputs[0], call.input(1), call.input(2)
    dim = v_dim = shape[4] if len(shape) == 5 else shape[2] // heads
    fresh = queries
    if len(shape) == 5:
        q, k, v = columns_of(low, call, q, batch * queries, (heads * dim,) * 3)
    else:
        key = low.values[k].shape
        fresh = key[2] if len(key) == 4 else key[1]
        if not v:
            k, v = columns_of(low, call, k, batch * fresh, (heads * dim,) * 2)
        v_dim = low.values[v].elements // (batch * fresh * heads)
    past = low.values[call.inputs[6]].shape[2] if call.input(6) else 0
    a = Attend(
        q,
        k,
        v,
        batch,
        heads,
        heads,
        dim,
        v_dim,
        queries,
        fresh,
        call.input(6),
        call.input(7),
        past,
        past if call.attr("unidirectional", 0) else None,
        mask=call.input(5),
        present=(call.output(1), call.output(2)),
        out=call.outputs[0],
    )
    attend(low, call, plain_past(low, a))


def packed_attention(low: Lowering, call: Call) -> None:
    """com.microsoft.Attention: its projection of q, k and v is inside."""
    x, weight = call.inputs[:2]
    batch, new, hidden = low.values[x].shape
    heads = int(call.attrs["num_heads"])
    sizes = [int(n) for n in call.attr("qkv_hidden_sizes") or [low.values[weight].shape[1] // 3] * 3]
    packed = f"{call.outputs[0]}.qkv"
    low.values[packed] = Value(packed, (batch * new, sum(sizes)), low.values[x].dtype)
    linear(low, call, x, low.values[weight], (batch * new, sum(sizes), hidden), packed, call.input(2), suffix=".qkv")
    q, k, v = columns_of(low, call, packed, batch * new, tuple(sizes))
    past, cached = call.input(4), 0
    if past:
        cached = low.values[past].shape[3]
    causal = cached if call.attr("unidirectional", 0) else None
    a = Attend(
        q,
        k,
        v,
        batch,
        heads,
        heads,
        sizes[0] // heads,
        sizes[2] // heads,
        new,
        new,
        past,
        past,
        cached,
        causal,
        mask=call.input(5),
        present=(call.output(1), ""),
        out=call.outputs[0],
    )
    if past:
        for part in ("k", "v"):
            name = f"kv:{past}.{part}"
            low.values[name] = Value(name, low.values[past].shape[1:], low.values[past].dtype)
        a = replace(a, past_k=f"kv:{past}.k", past_v=f"kv:{past}.v")
    attend(low, call, a)


LOWER: dict[str, Callable[[Lowering, Call], None]] = {
    "Attend": written_out,
    "Attention": standard,
    f"{MS}GroupQueryAttention": group_query,
    f"{MS}MultiHeadAttention": multi_head,
    f"{MS}Attention": packed_attention,
}
