"""Attention in all the forms in which it comes, as one: `Attend`, and the op that it becomes.

How many pairs of query and key count is said in the mapping list. Query i of a causal attention sees keys up to
i + offset: the offset is the length of the past, 0 without one (the top left corner), whatever the number of keys.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..graph import add_tensor
from ..spans import Band, Span
from .lower import Lowering, Ref, flat
from .masks import Shown, band_of, values_of
from .program import Call, Shape, Value


@dataclass(frozen=True)
class Attend:
    """One attention: values by name ("" for none), sizes per sequence."""

    q: str
    k: str
    v: str
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    v_dim: int
    queries: int
    fresh: int
    """New keys of each sequence: `k` has so many rows for each."""
    past_k: str = ""
    past_v: str = ""
    cached: int = 0
    """Keys of the past that are read."""
    causal: int | None = None
    """The offset, of a causal one."""
    left: int = -1
    """Keys before its own position that a query sees at most; -1: all."""
    right: int = -1
    """Keys behind it, of one that is not causal."""
    offset: int = 0
    """Key at which query 0 stands, of one that is not causal."""
    mask: str = ""
    softcap: bool = False
    sinks: str = ""
    present: tuple[str, str] = ("", "")
    in_place: bool = False
    out: str = ""
    note: str = ""

    @property
    def keys(self) -> int:
        """Keys of each sequence, past and new."""
        return self.cached + self.fresh


def masked(low: Lowering, a: Attend) -> Attend:
    """What the mask can be shown to be."""
    if not a.mask or a.queries == 1 or a.causal is not None:
        return a
    name = a.mask.removeprefix("!")
    value = low.values[name]
    known = values_of(low.program, low.every, name, {})
    if known is not None and a.mask != name:
        known = 1.0 - np.asarray(known, np.float64)
    band = None if known is None else band_of(known, a.queries, a.keys, value.dtype == "bool")
    if band is not None:
        return by_band(a, band, "the mask is shown to be causal")
    blank = known is None or bool(np.isnan(np.asarray(known, np.float64)).all())
    wide = len(value.shape) > 1 and value.shape[-2:] == (a.queries, a.keys)
    if blank and wide and low.options.causal:
        return by_band(a, Shown(a.keys - a.queries, None), "its mask is not known and taken as causal, as asked")
    why = "its values are not known" if blank else "it is not causal"
    return replace(a, note=joined(a.note, f"a mask: {why}, so the whole rectangle counts"))


def by_band(a: Attend, band: Shown, why: str) -> Attend:
    """A causal attention, with the window of the band."""
    left = a.left if band.window is None else band.window - 1
    return replace(a, causal=band.offset, left=left, note=joined(a.note, why))


def joined(*parts: str) -> str:
    """Remarks as one."""
    return "; ".join(filter(None, parts))


def attend(low: Lowering, call: Call, a: Attend) -> None:
    """Add the op, and the one that writes the caches given back."""
    written = a
    a = seen(masked(low, a))
    rows = a.batch * a.queries
    inputs: dict[str, tuple[Ref, Shape]] = {
        "q": (low.ref(a.q), (rows, a.heads * a.head_dim)),
        "k": (low.ref(a.k), (a.batch * a.fresh, a.kv_heads * a.head_dim)),
        "v": (low.ref(a.v), (a.batch * a.fresh, a.kv_heads * a.v_dim)),
    }
    if a.past_k and a.cached:
        inputs["k_cache"] = cache(low, a.past_k, "", (a.batch, a.kv_heads, written.cached, a.head_dim), a.cached)
        inputs["v_cache"] = cache(
            low,
            a.past_v,
            ".v" if a.past_v == a.past_k else "",
            (a.batch, a.kv_heads, written.cached, a.v_dim),
            a.cached,
        )
    if a.sinks:
        inputs["sinks"] = (Ref(low.stored(a.sinks, (a.heads,)), (a.heads,)), (a.heads,))
    sizes: dict[str, Any] = {"heads": a.heads, "kv_heads": a.kv_heads, "head_dim": a.head_dim}
    before = a.cached if a.past_k else a.fresh - a.queries if a.causal is not None else 0
    span = Span(a.batch, a.queries, before)
    sizes |= {"softcap": 1} if a.softcap else {}
    square = a.queries * written.keys
    if a.causal is None:
        band = Band(a.offset, *(None if side < 0 else side for side in (a.left, a.right)))
        sizes["band"] = tuple(band)
        pairs = band.pairs(a.queries, a.keys)
    else:
        sizes |= {"window": a.left} if a.left > 0 else {}
        pairs = span.pairs(a.left if a.left > 0 else None) // a.batch
    count = (
        f"{square:,} pairs per head, the full rectangle"
        if pairs == square
        else f"{pairs:,} of {square:,} pairs per head"
    )
    low.emit(
        call,
        "attention",
        inputs,
        {"out": (a.out, (rows, a.heads * a.v_dim))},
        joined(a.note, count),
        spans=(tuple(span),),
        **sizes,
    )
    if any(a.present):
        append(low, call, written)


def seen(a: Attend) -> Attend:
    """The keys that any query sees: behind the last query's, and before the first one's window, none are read.

    What is not causal with the last queries at the last keys is a band: `causal` is None then, `offset` its place.
    """
    if a.causal is None and a.queries == 1 and a.left < 0 and (not a.past_k or a.fresh == 1):
        a = replace(a, causal=a.keys - 1, right=-1)  # one query that sees all
    if a.right == 0 and a.causal is None:
        a = replace(a, causal=a.offset, right=-1)
    if a.causal is None:
        return replace(a, note=joined(a.note, "a window on both sides" if a.right > 0 else ""))
    fits = a.queries <= a.fresh and a.causal == a.cached if a.past_k else 0 <= a.causal <= a.fresh - a.queries
    if not fits or a.left == 0:
        return replace(a, causal=None, right=0, offset=a.causal)
    kept = a.causal if a.left < 0 else min(a.causal, a.left)
    unseen = a.keys - a.causal - a.queries
    note = f"the last {unseen} keys are seen by no query" if unseen else ""
    note = joined(note, f"a window of {a.left + 1}" if a.left >= 0 else "")
    cached, fresh = (kept, a.queries) if a.past_k else (0, kept + a.queries)
    return replace(a, cached=cached, fresh=fresh, note=joined(a.note, note))


def scores_too(low: Lowering, call: Call, a: Attend, scores: str) -> None:
    """An attention that gives its scores back: two products and a softmax, all scores written."""
    a = joint(low, a)
    pairs, group = a.batch * a.kv_heads, a.heads // a.kv_heads
    rows = group * a.queries
    shape = (pairs, rows, a.keys)
    low.values[f"{a.out}.weights"] = Value(f"{a.out}.weights", low.values[scores].shape, low.values[scores].dtype)
    inputs: dict[str, tuple[Ref, Shape]] = {
        "a": (low.ref(a.q), (pairs, rows, a.head_dim)),
        "b": (low.ref(a.k), (pairs, a.head_dim, a.keys)),
    }
    low.emit(
        call,
        "matmul",
        inputs,
        {"out": (scores, shape)},
        "its scores are a result: all are written",
        ".scores",
        part="attention",
    )
    made = f"{a.out}.weights"
    low.emit(call, "softmax", {"x": (low.refs[scores], shape)}, {"out": (made, shape)}, suffix=".softmax")
    inputs = {"a": (low.refs[made], shape), "b": (low.ref(a.v), (pairs, a.keys, a.v_dim))}
    low.emit(call, "matmul", inputs, {"out": (a.out, (pairs, rows, a.v_dim))}, suffix=".values", part="attention")
    if any(a.present):
        append(low, call, a)


def cache(low: Lowering, name: str, mark: str, shape: Shape, kept: int) -> tuple[Ref, Shape]:
    """The node of a cache that comes in, and the part of it that is read: the last tokens."""
    key = f"kv:{name}{mark}"
    if key not in low.origin:
        dtype = low.dtype(low.values[name])
        low.origin[key] = add_tensor(low.graph, low.fresh(name.removeprefix("kv:") + mark), "kv", shape, dtype)
    return Ref(low.origin[key], shape), (shape[0], shape[1], kept, shape[3])


def append(low: Lowering, call: Call, a: Attend) -> None:
    """Write what is given back as the present: all of it, or in place its new tokens alone."""
    in_place = a.in_place or low.options.in_place
    tokens = a.batch * (a.fresh if in_place else a.keys)
    inputs = {
        "k": (low.ref(a.k), (a.batch * a.fresh, a.kv_heads * a.head_dim)),
        "v": (low.ref(a.v), (a.batch * a.fresh, a.kv_heads * a.v_dim)),
    }
    outputs = {}
    for role, name, dim in (("k_slot", a.present[0], a.head_dim), ("v_slot", a.present[1], a.v_dim)):
        given = name or f"{a.out}.{role}"
        shape = (tokens, a.kv_heads, 1, dim)
        if given not in low.values:
            low.values[given] = Value(given, shape, low.values[a.k].dtype)
        before = low.refs.get(given)
        outputs[role] = (given, shape)
        if before is not None:
            low.origin[f"computed:{given}"] = before.tensor
    elements = tokens * a.kv_heads * (a.head_dim + a.v_dim)
    fresh = a.batch * a.fresh * a.kv_heads * (a.head_dim + a.v_dim)
    note = f"present: {elements:,} elements written" + (f", of which {fresh:,} new" if elements > fresh else "")
    saved = {name: low.refs[name] for name, _ in outputs.values() if name in low.refs}
    low.emit(call, "kv_append", inputs, outputs, note, ".append", {"k_slot": "kv", "v_slot": "kv"})
    low.refs.update(saved)


def standard(low: Lowering, call: Call) -> None:
    """ONNX's Attention (opset 23 and later), 3-D or 4-D."""
    q, k, v = call.inputs[:3]
    shapes = [low.values[n].shape for n in (q, k, v)]
    if len(shapes[0]) == 4:
        (batch, heads, queries, dim), (_, kv, fresh, _), (*_, v_dim) = shapes
    else:
        heads, kv = int(call.attr("q_num_heads", 0)), int(call.attr("kv_num_heads", 0))
        if not heads or not kv:
            todo = "Set q_num_heads and kv_num_heads."
            raise low.program.error(call, "inputs of three dimensions and no numbers of heads", "both numbers", todo)
        (batch, queries, width), fresh = shapes[0], shapes[1][1]
        dim, v_dim = width // heads, shapes[2][2] // kv
    past_k, past_v = call.input(4), call.input(5)
    cached = low.values[past_k].shape[2] if past_k else 0
    a = Attend(
        q,
        k,
        v,
        batch,
        heads,
        kv,
        dim,
        v_dim,
        queries,
        fresh,
        past_k,
        past_v,
        cached,
        mask=call.input(3),
        softcap=bool(call.attr("softcap", 0.0)),
        present=(call.output(1), call.output(2)),
        out=call.outputs[0],
        offset=cached,
        left=int(call.attr("left_window_size", -1)),
        right=int(call.attr("right_window_size", -1)),
    )
    if call.input(6):
        a = static_cache(low, call, a)
    elif call.attr("is_causal"):
        a = replace(a, causal=cached, note="causal")
    if call.output(3):
        scores_too(low, call, a, call.outputs[3])
    else:
        attend(low, call, plain_past(low, a))


def static_cache(low: Lowering, call: Call, a: Attend) -> Attend:
    """Keys of which only the first so many count (nonpad_kv_seqlen); the queries are the last of these."""
    valid = low.values[call.inputs[6]].data
    length = (
        a.fresh
        if valid is None or len(set(valid.reshape(-1).tolist())) != 1
        else min(int(valid.reshape(-1)[0]), a.fresh)
    )
    note = "" if length != a.fresh else "all keys of the buffer count"
    causal = length - a.queries if call.attr("is_causal") else None
    return replace(
        a,
        fresh=length,
        causal=causal,
        offset=length - a.queries,
        note=joined(a.note, note, "causal" if causal is not None else ""),
    )


def written_out(low: Lowering, call: Call) -> None:
    """`Attend` of scores.py."""
    q, k, v, past_k, past_v = call.inputs
    sizes: dict[str, Any] = {
        name: int(call.attrs.get(name, 0))
        for name in ("batch", "heads", "kv_heads", "head_dim", "v_dim", "queries", "fresh", "cached")
    }
    present = (call.output(1), call.output(2))
    a = Attend(
        q,
        k,
        v,
        **sizes,
        past_k=past_k,
        past_v=past_v,
        softcap=bool(call.attrs.get("softcap")),
        sinks=call.attr("sinks", ""),
        present=present,
        out=call.outputs[0],
        causal=call.attr("causal"),
        left=call.attr("left", -1),
        right=call.attr("right", -1),
        note="causal" if call.attr("causal") is not None else "",
    )
    for mask in call.attrs["masks"]:
        a = masked(low, replace(a, mask=mask))
    attend(low, call, replace(a, mask=""))


def plain_past(low: Lowering, a: Attend) -> Attend:
    """A past that is computed is no cache in memory: then past and new are one activation."""
    names = [n for n in (a.past_k, a.past_v) if n]
    if not names or all(n in low.program.inputs or n.startswith("kv:") for n in names):
        return a
    return joint(low, a)


def joint(low: Lowering, a: Attend) -> Attend:
    """Past and new keys and values put together, as one activation."""
    if not a.past_k:
        return a
    together = {}
    for role, new in (("past_k", a.k), ("past_v", a.v)):
        past = getattr(a, role)
        name = f"{past}.with_new"
        value = low.values[past]
        dim = a.head_dim if role == "past_k" else a.v_dim
        low.values[name] = Value(name, (a.batch, a.kv_heads, a.keys, dim), value.dtype)
        join = Call("Concat", name, (past, new), (name,))
        low.join(join, name, flat(low.values[name].shape), [low.ref(past), low.ref(new)], [past, new])
        together[role] = name
    return replace(a, k=together["past_k"], v=together["past_v"], past_k="", past_v="", cached=0, fresh=a.keys)
