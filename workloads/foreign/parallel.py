"""Marks of tensor parallelism for products of a decoder: what Megatron would cut, where the graph shows it."""

from __future__ import annotations

import networkx as nx

COLUMNS = ("attention", "swiglu", "gelu", "silu", "relu")


def mark_parallel(graph: nx.DiGraph) -> None:
    """Projections that lead to attention or an activation are cut by columns, those behind them by rows."""
    for node, data in graph.nodes(data=True):
        if data.get("op") != "linear" or _seen_otherwise(graph, node):
            continue
        if _leads_to(graph, node):
            data["parallel"] = "column"
        elif _comes_from(graph, node):
            data["parallel"] = "row"
        elif not _readers(graph, node):  # logits: nobody needs them whole
            data["parallel"] = "vocab"
    for node, data in graph.nodes(data=True):  # a row needs columns before it, and heads that go together
        if data.get("parallel") == "column" and not _meets_row(graph, node):
            del data["parallel"]
    for node, data in graph.nodes(data=True):
        if data.get("parallel") == "row" and not _has_columns(graph, node):
            del data["parallel"]


def _seen_otherwise(graph: nx.DiGraph, node: str) -> bool:
    """Whether an op sees any of its tensors, or another sees its result, by a view."""
    edges = [*graph.in_edges(node, data="view"), *graph.out_edges(node, data="view")]
    outputs = [e for out in graph.successors(node) for e in graph.out_edges(out, data="view")]
    return any(view is not None for _, _, view in (*edges, *outputs))


def _readers(graph: nx.DiGraph, node: str) -> list[str]:
    return [reader for out in graph.successors(node) for reader in graph.successors(out)]


def _leads_to(graph: nx.DiGraph, node: str) -> list[str]:
    """The attention or activation that takes this product's result alone, through a rotation; kv_append looks on."""
    found = []
    for reader in _readers(graph, node):
        op = graph.nodes[reader]["op"]
        if op == "rope" and not _seen_otherwise(graph, reader):
            inner = _leads_to(graph, reader)
            if not inner:
                return []
            found += inner
        elif op in COLUMNS and not _seen_otherwise(graph, reader):
            found.append(reader)
        elif op != "kv_append":
            return []
    return found


def _comes_from(graph: nx.DiGraph, node: str) -> str | None:
    """The attention or activation whose result this product takes."""
    source = next(t for t, _, role in graph.in_edges(node, data="role") if role == "x")
    maker = next(iter(graph.predecessors(source)), None)
    if maker is None or graph.nodes[maker]["op"] not in COLUMNS or graph.out_degree(source) > 1:
        return None
    return str(maker)


def _meets_row(graph: nx.DiGraph, node: str) -> bool:
    return all(
        any(graph.nodes[r].get("parallel") == "row" for r in _readers(graph, middle))
        for middle in _leads_to(graph, node)
    )


def _has_columns(graph: nx.DiGraph, node: str) -> bool:
    middle = _comes_from(graph, node)
    if middle is None:
        return False
    for tensor, _, role in graph.in_edges(middle, data="role"):
        if role in ("k_cache", "v_cache"):
            continue
        maker = next(iter(graph.predecessors(tensor)), None)
        while maker is not None and graph.nodes[maker]["op"] == "rope":
            maker = next(iter(graph.predecessors(next(iter(graph.predecessors(maker))))), None)
        if maker is None or graph.nodes[maker].get("parallel") != "column":
            return False
    return True
