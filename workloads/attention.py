"""Attention as ops: projections, norms of heads, rotary positions, the append to the cache, attention, and the way out.

Latent attention (DeepSeek) has two forms. Absorbed: the latents are keys and values of one head that all query heads
share, and kv_b_proj is worked into queries and results; so a step reads kv_lora_rank + qk_rope_head_dim elements per
token. Plain: kv_b_proj makes keys and values of every head from the latents, cached ones included. Plain takes fewer
multiply-adds per pair, and pays for kv_b_proj over all tokens; prefill uses it, and all else the absorbed form.
"""

from __future__ import annotations

from typing import Any

from .build import Builder
from .layers import Attention, Cache, Indexer, LatentAttention
from .spans import Span, kept_tokens


def add_attention(b: Builder, attention: Attention, x: str, later: bool = False) -> str:
    """Grouped-query attention of the step's new tokens; returns o_proj's result."""
    q, k = (b.linear(f"self_attn.{p}_proj", x, "column") for p in ("q", "k"))
    v = k if attention.v_is_k else b.linear("self_attn.v_proj", x, "column")
    if attention.qk_norm is not None:
        q, k = (_qk_norm(b, attention, name, t) for name, t in (("q", q), ("k", k)))
    if attention.v_norm:
        v = b.op("self_attn.v_norm", "head_norm", {"x": v}, b.width(v), head_dim=attention.value_dim)
    if attention.rope_dim != 0:
        q, k = (_rope(b, attention, name, t) for name, t in (("q", q), ("k", k)))
    spans = tuple(span.within(attention.window) for span in b.spans)
    kept = sum(s.sequences * (s.new if attention.window is None else min(s.new, attention.window)) for s in spans)
    slots = {role: (kept, c.heads, 1, c.width) for role, c in zip(("k_slot", "v_slot"), attention.caches, strict=True)}
    v_in = {"v": v} if v != k else {"v": _copy(b, v)}
    b.many("self_attn.kv_append", "kv_append", {"k": k, **v_in}, slots)
    inputs = {"q": q, "k": k, **v_in} | _caches(
        b, spans, dict(zip(("k_cache", "v_cache"), attention.caches, strict=True))
    )
    if attention.sinks:
        inputs["sinks"] = b.weight("self_attn.sinks")
    marks = {name: 1 for name, on in (("softcap", attention.softcap), ("alibi", attention.alibi)) if on}
    sizes = {"heads": attention.heads, "kv_heads": attention.kv_heads, "head_dim": attention.head_dim}
    wide = attention.heads * attention.value_dim
    out = b.op("self_attn.attention", "attention", inputs, wide, **sizes, **marks, **_spans(spans, attention.window))
    return b.linear("self_attn.o_proj", out, "row", later)


def _copy(b: Builder, v: str) -> str:
    """V where it is K itself, as a tensor of its own: an edge carries one role."""
    return b.op("self_attn.v_copy", "copy", {"x": v}, b.width(v))


def _qk_norm(b: Builder, attention: Attention, name: str, x: str) -> str:
    if attention.qk_norm == "row":
        return b.norm(f"self_attn.{name}_norm", x)
    inputs = {"x": x}
    for role in ("weight", "bias"):
        if b.has(f"self_attn.{name}_norm.{role}"):
            inputs[role] = b.weight(f"self_attn.{name}_norm.{role}")
    centred = {"centred": 1} if b.model.norm.name == "layernorm" else {}
    return b.op(f"self_attn.{name}_norm", "head_norm", inputs, b.width(x), head_dim=attention.head_dim, **centred)


def _rope(b: Builder, attention: Attention, name: str, x: str) -> str:
    rotated = {} if attention.rope_dim in (None, attention.head_dim) else {"rotated": attention.rope_dim}
    return b.op(f"self_attn.{name}_rope", "rope", {"x": x}, b.width(x), head_dim=attention.head_dim, **rotated)


def _spans(spans: tuple[Span, ...], window: int | None) -> dict[str, Any]:
    """What the shapes of an attention op do not say: whose the tokens are, and how far each one sees."""
    plain = len(spans) == 1 and spans[0].cached and not spans[0].shared
    said: dict[str, Any] = {} if plain else {"spans": tuple(map(tuple, spans))}
    return said | ({} if window is None else {"window": window})


def _caches(b: Builder, spans: tuple[Span, ...], caches: dict[str, Cache]) -> dict[str, str]:
    """The caches of a layer: one row per sequence where all are equal, else the tokens of all behind each other."""
    kept = kept_tokens(spans)
    if not kept:
        return {}
    alike = len(spans) == 1 and not spans[0].shared
    count, tokens = (spans[0].sequences, spans[0].cached) if alike else (1, kept)
    out = {}
    for role, cache in caches.items():
        out[role] = b.prefix + cache.name
        if out[role] not in b.graph:
            shape = (count, cache.heads, tokens, cache.width)
            b.graph.add_node(out[role], kind="tensor", tensor="kv", shape=shape, dtype=b.types["kv"], **b.where)
    return out


def add_latent_attention(b: Builder, attention: LatentAttention, x: str, absorbed: bool, later: bool = False) -> str:
    """Multi-head latent attention; returns o_proj's result."""
    heads, rank, wide = attention.heads, attention.kv_lora_rank, attention.kv_lora_rank + attention.qk_rope_head_dim
    low = x
    if attention.q_lora_rank is None:
        q = b.linear("self_attn.q_proj", x, "column")
    else:
        low = b.norm("self_attn.q_a_layernorm", b.linear("self_attn.q_a_proj", x, None))
        q = b.linear("self_attn.q_b_proj", low, "column")
    rotated = {"rotated": attention.qk_rope_head_dim}
    q = b.op("self_attn.q_rope", "rope", {"x": q}, b.width(q), head_dim=attention.qk_head_dim, **rotated)
    latent = b.linear("self_attn.kv_a_proj_with_mqa", x, None)
    learned = {"weight": b.weight("self_attn.kv_a_layernorm.weight")}
    latent = b.op("self_attn.kv_a_layernorm", "latent_norm", {"x": latent, **learned}, wide)
    spans = tuple(span.within(attention.window) for span in b.spans)
    b.many("self_attn.kv_append", "kv_append", {"k": latent}, {"k_slot": (b.rows, 1, 1, wide)})
    caches = _caches(b, spans, {"k_cache": attention.caches[0]})
    chosen: dict[str, str] = {}
    if attention.indexer is not None:
        chosen = {"chosen": _index(b, attention, attention.indexer, x, low, spans)}
        spans = tuple(span.within(attention.indexer.top_k) for span in spans)
    up = b.weight("self_attn.kv_b_proj.weight")
    sizes = {"heads": heads, "nope": attention.qk_nope_head_dim, "v_dim": attention.v_head_dim}
    said: dict[str, Any] = {"spans": tuple(map(tuple, spans))} | (
        {} if attention.window is None else {"window": attention.window}
    )
    if absorbed:
        q = b.op("self_attn.absorb_q", "absorb_q", {"x": q, "weight": up}, heads * wide, **sizes)
        said = _spans(spans, attention.window)
        if attention.indexer is not None:
            window = min(attention.indexer.top_k, attention.window or attention.indexer.top_k)
            said |= {"window": window, "spans": tuple(map(tuple, spans))} | ({"picked": 1} if caches else {})
        inputs = {"q": q, "k": latent, **caches, **chosen}
        out = b.op(
            "self_attn.attention", "attention", inputs, heads * rank, heads=heads, kv_heads=1, head_dim=wide, **said
        )
        out = b.op("self_attn.absorb_v", "absorb_v", {"x": out, "weight": up}, heads * attention.v_head_dim, **sizes)
    else:
        keys = (
            b.rows + kept_tokens(spans)
            if any(s.shared for s in spans)
            else sum(s.sequences * (s.new + s.cached) for s in spans)
        )
        made = {"k": (keys, heads * attention.qk_head_dim), "v": (keys, heads * attention.v_head_dim)}
        if caches:
            inputs = {"x": latent, "cache": caches["k_cache"]}
            latent = b.op("self_attn.latent_gather", "latent_gather", inputs, wide, keys)
        inputs = {"x": latent, "weight": up}
        k, v = b.many("self_attn.kv_b_proj", "latent_expand", inputs, made, heads=heads)
        sizes = {"heads": heads, "kv_heads": heads, "head_dim": attention.qk_head_dim}
        out = b.op(
            "self_attn.attention", "attention", {"q": q, "k": k, "v": v}, heads * attention.v_head_dim, **sizes, **said
        )
    return b.linear("self_attn.o_proj", out, "row", later)


def _index(b: Builder, attention: LatentAttention, indexer: Indexer, x: str, low: str, spans: tuple[Span, ...]) -> str:
    """The indexer's queries, its own key of each token, and its choice of cached tokens."""
    name, wide = "self_attn.indexer", indexer.heads * indexer.head_dim
    sizes = {"head_dim": indexer.head_dim, "rotated": attention.qk_rope_head_dim}
    q = b.op(f"{name}.q_rope", "rope", {"x": b.linear(f"{name}.wq_b", low, None)}, wide, **sizes)
    key = b.linear(f"{name}.wk", x, None)
    learned = {role: b.weight(f"{name}.k_norm.{role}") for role in ("weight", "bias")}
    key = b.op(f"{name}.k_norm", "layernorm", {"x": key, **learned}, indexer.head_dim)
    key = b.op(f"{name}.k_rope", "rope", {"x": key}, indexer.head_dim, **sizes)
    b.many(f"{name}.kv_append", "kv_append", {"k": key}, {"k_slot": (b.rows, 1, 1, indexer.head_dim)})
    inputs = {"q": q, "k": key, "gates": b.linear(f"{name}.weights_proj", x, None)}
    inputs |= _caches(b, spans, {"k_cache": attention.caches[1]})
    sizes = {"heads": indexer.heads, "head_dim": indexer.head_dim}
    shape = {"chosen": (b.rows, indexer.top_k)}
    return b.many(f"{name}.scores", "index_scores", inputs, shape, **sizes, **_spans(spans, None))[0]
