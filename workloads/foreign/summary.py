"""What a graph holds, in numbers: multiply-adds by kind, parameters, caches; and what its head says of the step."""

from __future__ import annotations

import math
from dataclasses import dataclass

import networkx as nx

from ..cost import op_cost, seen_shape
from ..dtypes import VALUE_DTYPES, dtype_of
from ..graph import op_nodes
from .lower import Lowering

PRODUCTS = ("linear", "expert_linear")


@dataclass(frozen=True)
class Counts:
    """Sums over a graph. MACs are multiply-adds; elements are of tensors, not bytes."""

    weight_macs: int
    """Of products with stored weights, experts included."""
    expert_macs: int
    attention_macs: int
    other_macs: int
    """Of products of two activations outside attention."""
    vector_ops: int
    special_ops: int
    parameters: int
    """Elements of stored weights and tables that products, norms and lookups take, each once."""
    constants: int
    """Elements of other stored tensors: masks, sines, scales."""
    weight_bytes_read: int
    """Of weights, experts and table rows in one run."""
    kv_read: int
    """Elements of keys and values that attention reads, cached and new."""
    kv_written: int
    kv_new: int
    """Of those, the new tokens'."""


def counts(graph: nx.DiGraph) -> Counts:
    """Sum up a checked graph."""
    macs = dict.fromkeys(("weight", "expert", "attention", "other"), 0)
    vector = special = weight_bytes = kv_read = kv_written = kv_new = 0
    model: set[str] = set()
    stored: set[str] = set()
    for node in op_nodes(graph):
        op, cost = graph.nodes[node]["op"], op_cost(graph, node)
        ins = {role: tensor for tensor, _, role in graph.in_edges(node, data="role")}
        kinds = {tensor: graph.nodes[tensor]["tensor"] for tensor in ins.values()}
        weights = {t for t, kind in kinds.items() if kind in ("weight", "expert", "embedding")}
        stored |= weights
        if op not in ("pointwise", "rearrange", "add", "mul") or (
            op == "add" and any(len(graph.nodes[t]["shape"]) == 1 for t in weights)
        ):
            model |= weights
        inside = op == "attention" or graph.nodes[node].get("part") == "attention"
        part = "attention" if inside else "weight" if op in PRODUCTS or (op == "matmul" and weights) else "other"
        macs[part] += cost.macs
        macs["expert"] += cost.macs if op == "expert_linear" else 0
        vector, special = vector + cost.vector_ops, special + cost.special_ops
        weight_bytes += sum(cost.reads[t] for t in weights)
        if inside:
            held = [ins[r] for r in ("b", "k", "v", "k_cache", "v_cache") if r in ins]
            kv_read += sum(_elements(graph, node, t) for t in held)
        if op == "kv_append":
            kv_written += sum(math.prod(graph.nodes[t]["shape"]) for t in graph.successors(node))
            kv_new += sum(_elements(graph, node, t) for t in ins.values())
    tied = {t for t in stored if "tied_to" in graph.nodes[t]}
    return Counts(
        macs["weight"],
        macs["expert"],
        macs["attention"],
        macs["other"],
        vector,
        special,
        sum(math.prod(graph.nodes[t]["shape"]) for t in model - tied),
        sum(math.prod(graph.nodes[t]["shape"]) for t in stored - model - tied),
        weight_bytes,
        kv_read,
        kv_written,
        kv_new,
    )


def _elements(graph: nx.DiGraph, op: str, tensor: str) -> int:
    """Elements of a tensor that an op sees."""
    whole = int(math.prod(graph.nodes[tensor]["shape"]))
    return min(int(math.prod(seen_shape(graph, op, tensor))), whole)


def describe(graph: nx.DiGraph, low: Lowering) -> None:
    """Fill in the head: element types, batch and context as its attention has them, and the mapping list."""
    spans = [data["spans"][0] for _, data in graph.nodes(data=True) if data.get("op") == "attention"]
    if spans:
        head = max(spans, key=lambda span: span[1] * span[0])
        graph.graph |= {"batch": head[0], "context": head[2], "phase": "decode" if head[1] == 1 else "prefill"}
    types = graph.graph["dtypes"]
    for name, kinds in (("weight", ("weight", "expert")), ("kv", ("kv",)), ("activation", ("activation",))):
        sizes: dict[str, int] = {}
        for _, data in graph.nodes(data=True):
            if data.get("tensor") in kinds and dtype_of(data["dtype"]).element in VALUE_DTYPES:
                element = dtype_of(data["dtype"]).element
                sizes[element] = sizes.get(element, 0) + math.prod(data["shape"])
        types[name] = max(sizes, key=lambda t: sizes[t]) if sizes else types["activation" if name == "kv" else name]
    if not any(data.get("tensor") == "kv" for _, data in graph.nodes(data=True)):
        types["kv"] = types["activation"]
    renamed = {data["origin"]: node for node, data in graph.nodes(data=True) if "origin" in data}
    graph.graph["mapping"] = tuple((renamed.get(r.name, r.name), r.op, r.became, r.note) for r in low.rows)
    if low.notes:
        graph.graph["warnings"] = tuple(low.notes)
