"""What a row of a measured table asks of the model: graphs of one operator, and how they were run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .routed import routed

if TYPE_CHECKING:
    import networkx as nx

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8"}
DTYPES |= {"fp8_e4m3": "fp8", "float8_e4m3fn": "fp8"}
OPERANDS = {
    "bfloat16": ("bf16", "bf16"), "float16": ("fp16", "fp16"),
    "fp8": ("fp8", "fp8"), "fp8_ootb": ("fp8", "fp8"), "fp8_static": ("fp8", "fp8"),
    "fp8_block": ("fp8/128x128s32", "fp8/1x128s32"), "mxfp8": ("mxfp8", "mxfp8"),
    "nvfp4": ("nvfp4", "nvfp4"), "mxfp4": ("mxfp4", "mxfp8"), "w4a16_mxfp4": ("mxfp4", "bf16"),
    "int4_wo": ("int4/1x128s16", "bf16"), "int8_wo": ("int8/1x*s16", "bf16"), "sq": ("int8/1x*s32", "int8/1x*s32"),
}  # fmt: skip
"""Weight and activation of a product, by the words of tables."""
BY_ROW = "fp8/1x*s32"
"""Activation in fp8 with a scale per token, as vLLM and SGLang cast it."""
COPIES = 5  # of the weights that a benchmark of products goes round, so that they are not all found in a cache
LATENT = 576  # elements of a latent row: 512, and 64 with the position
ROUTINGS = 5.0  # that a benchmark of experts draws by a power law, one after the other
SAME = 1  # cache of attention, read again and again

Ask = tuple[Any, ...]
"""(kind, numbers ...): what `predict` builds and runs."""


@dataclass(frozen=True)
class Case:
    """One measured row. Equal `ask`s are predicted once."""

    table: str
    chip: str
    op: str
    dtype: str
    bucket: str
    name: str
    measured_ms: float
    ask: Ask


def product(m: int, n: int, k: int, weight: str, activation: str, casts: int) -> nx.DiGraph[Any]:
    """One linear layer; before it so many kernels that cast its activation to a narrower format: the last does, the
    first of several finds the maximum, those between work on single numbers."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one product", batch=m, dtypes={"weight": weight, "activation": "bf16"})
    at = add_tensor(graph, "x", "activation", (m, k))
    if casts > 1:
        add_op(graph, "maximum", "rearrange", {"a": at}, {"out": (1, 1)}, ops=2 * m * k)
    for i in range(2, casts):
        scale = add_tensor(graph, f"scale{i}", "activation", (1, 1))
        add_op(graph, f"number{i}", "pointwise", {"a": scale}, {"out": (1, 1)}, ops=1)
    if casts:
        (at,) = add_op(graph, "cast", "quantize", {"x": at}, {"out": (m, k)})
    graph.nodes[at]["dtype"] = activation
    inputs = {"x": at, "weight": add_tensor(graph, "w", "weight", (n, k))}
    add_op(graph, "linear", "linear", inputs, {"out": (m, n)})
    return graph


def decode_attention(batch: int, context: int, heads: int, kv_heads: int, head_dim: int, kv: str) -> nx.DiGraph[Any]:
    """Attention of one new token per sequence, with rotary positions and the append to the cache before it."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one attention", batch, context, {"kv": kv})
    wide, narrow, cached = heads * head_dim, kv_heads * head_dim, (batch, kv_heads, context, head_dim)
    for role, width in (("q", wide), ("k", narrow), ("v", narrow)):
        add_tensor(graph, role, "activation", (batch, width))
    (q,) = add_op(graph, "q_rope", "rope", {"x": "q"}, {"out": (batch, wide)}, head_dim=head_dim)
    (k,) = add_op(graph, "k_rope", "rope", {"x": "k"}, {"out": (batch, narrow)}, head_dim=head_dim)
    slot = (batch, kv_heads, 1, head_dim)
    add_op(graph, "append", "kv_append", {"k": k, "v": "v"}, {"k_slot": slot, "v_slot": slot})
    inputs = {"q": q, "k": k, "v": "v"}
    inputs |= {role: add_tensor(graph, role, "kv", cached) for role in ("k_cache", "v_cache")}
    numbers = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    add_op(graph, "attend", "attention", inputs, {"out": (batch, wide)}, **numbers)
    return graph


def prefill_attention(batch: int, prompt: int, heads: int, kv_heads: int, dim: int, q: str, kv: str) -> nx.DiGraph[Any]:
    """Attention of whole prompts, causal, with rotary positions and the append to the cache. Where queries or the cache
    are in fp8 it is computed so, and a kernel casts the queries."""
    from ..workloads import add_op, add_tensor, new_graph

    rows = batch * prompt
    graph = new_graph("one prefill attention", batch, prompt, {"kv": kv})
    wide, narrow = heads * dim, kv_heads * dim
    for role, width in (("q", wide), ("k", narrow), ("v", narrow)):
        add_tensor(graph, role, "activation", (rows, width))
    (qr,) = add_op(graph, "q_rope", "rope", {"x": "q"}, {"out": (rows, wide)}, head_dim=dim)
    (kr,) = add_op(graph, "k_rope", "rope", {"x": "k"}, {"out": (rows, narrow)}, head_dim=dim)
    if "fp8" in (q, kv):
        (qr,) = add_op(graph, "cast", "quantize", {"x": qr}, {"out": (rows, wide)})
        graph.nodes[qr]["dtype"] = graph.nodes[kr]["dtype"] = "fp8"
    slot = (rows, kv_heads, 1, dim)
    add_op(graph, "append", "kv_append", {"k": kr, "v": "v"}, {"k_slot": slot, "v_slot": slot})
    numbers = {"heads": heads, "kv_heads": kv_heads, "head_dim": dim, "spans": ((batch, prompt, 0, 0),)}
    add_op(graph, "attend", "attention", {"q": qr, "k": kr, "v": "v"}, {"out": (rows, wide)}, **numbers)
    return graph


def latent_attention(batch: int, context: int, heads: int, kv: str) -> nx.DiGraph[Any]:
    """Latent attention of one new token per sequence over latents of 512 + 64 elements, with the append before it."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one latent attention", batch, context, {"kv": kv})
    q = add_tensor(graph, "q", "activation", (batch, heads * LATENT))
    k = add_tensor(graph, "k", "activation", (batch, LATENT))
    (q,) = add_op(graph, "q_rope", "rope", {"x": q}, {"out": (batch, heads * LATENT)}, head_dim=LATENT, rotated=64)
    add_op(graph, "append", "kv_append", {"k": k}, {"k_slot": (batch, 1, 1, LATENT)})
    cache = add_tensor(graph, "k_cache", "kv", (batch, 1, context, LATENT))
    numbers = {"heads": heads, "kv_heads": 1, "head_dim": LATENT}
    add_op(graph, "attend", "attention", {"q": q, "k": k, "k_cache": cache}, {"out": (batch, heads * 512)}, **numbers)
    return graph


def experts(
    tokens: int,
    hidden: int,
    inner: int,
    top_k: int,
    count: int,
    ways: int,
    routing: str,
    weight: str,
    cast: bool,
    beside: int = 0,
) -> nx.DiGraph[Any]:
    """The experts of one rank of `ways` that share them whole: routing, both products, the weighted sum. `beside`: more
    kernels, on single numbers."""
    from ..workloads import add_op, add_tensor, new_graph

    mine = routed(routing, count, top_k, tokens, ways) or (1,)
    pairs = sum(mine)
    graph = new_graph("one mixture", batch=tokens, dtypes={"weight": weight})
    x = add_tensor(graph, "x", "activation", (tokens, hidden))
    scores = add_tensor(graph, "scores", "activation", (tokens, count))
    for i in range(beside):
        add_op(
            graph, f"beside{i}", "quantize", {"x": add_tensor(graph, f"one{i}", "activation", (1, 1))}, {"out": (1, 1)}
        )
    shape = (tokens, top_k)
    weights, chosen = add_op(graph, "topk", "topk", {"scores": scores}, {"weights": shape, "chosen": shape})
    held = max(count // ways, len(mine))

    def product(name: str, x: str, rows: int, n: int, k: int) -> str:
        if cast and f"{x}.cast" not in graph:
            (x,) = add_op(graph, f"{x}.cast", "quantize", {"x": x}, {"out": (rows, k)})
            graph.nodes[x]["dtype"] = "fp8"
        elif cast:
            x = f"{x}.cast.out"
        inputs = {"x": x, "chosen": chosen, "weight": add_tensor(graph, f"{name}.w", "expert", (held, n, k))}
        return add_op(graph, name, "expert_linear", inputs, {"out": (pairs, n)}, loads=mine)[0]

    gate, up = (product(name, x, tokens, inner, hidden) for name in ("gate", "up"))
    (half,) = add_op(graph, "act", "swiglu", {"gate": gate, "up": up}, {"out": (pairs, inner)})
    down = product("down", half, pairs, hidden, inner)
    add_op(graph, "combine", "combine", {"x": down, "weights": weights}, {"out": (tokens, hidden)})
    return graph


def experts_in_turn(
    tokens: int, hidden: int, inner: int, top_k: int, count: int, ways: int, routing: str, *_: Any
) -> float:
    """Sets of experts that take turns, in the size of one: draws of a benchmark have experts in common."""
    woken = len(routed(routing, count, top_k, tokens, ways)) or 1
    return 1.0 if routing == "balanced" else min(ROUTINGS, count / ways / woken)


def all_reduce(nbytes: int, ways: int) -> nx.DiGraph[Any]:
    """The sum of so many bytes of bf16 over all chips."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one all-reduce")
    x = add_tensor(graph, "x", "activation", (1, max(nbytes // 2, 1)))
    add_op(graph, "all_reduce", "all_reduce", {"x": x}, {"out": (1, max(nbytes // 2, 1))}, ways=ways)
    return graph
