"""What a row of a measured table asks of the model: graphs of one operator, and how they were run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import networkx as nx

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "fp8_block": "fp8"}
COPIES = 5  # of the weights that a benchmark of products goes round, so that they are not all found in a cache
COLD = 0  # caches of attention are taken as not found again


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
    ask: tuple[Any, ...]
    """(kind, numbers ...): what `predict` builds and runs."""


def product(m: int, n: int, k: int, weight: str, activation: str, casts: int) -> nx.DiGraph[Any]:
    """One linear layer; before it so many kernels over its activation, which cast it to a narrower format."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one product", batch=m, dtypes={"weight": weight, "activation": "bf16"})
    at = add_tensor(graph, "x", "activation", (m, k))
    for i in range(casts):
        (at,) = add_op(graph, f"cast{i}", "silu", {"x": at}, {"out": (m, k)})
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


def all_reduce(nbytes: int, ways: int) -> nx.DiGraph[Any]:
    """The sum of so many bytes of bf16 over all chips."""
    from ..workloads import add_op, add_tensor, new_graph

    graph = new_graph("one all-reduce")
    x = add_tensor(graph, "x", "activation", (1, max(nbytes // 2, 1)))
    add_op(graph, "all_reduce", "all_reduce", {"x": x}, {"out": (1, max(nbytes // 2, 1))}, ways=ways)
    return graph
