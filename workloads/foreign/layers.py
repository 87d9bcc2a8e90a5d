"""Blocks that repeat: their ops and tensors get the number of their layer, as a model's own graph has it.

A run of ops is a layer if the same run, of the same operators on tensors of the same shapes and types, follows at once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import networkx as nx

from ..graph import op_nodes

MOST_OPS = 500
"""Of one layer."""


def number_layers(graph: nx.DiGraph) -> nx.DiGraph:
    """The graph with `layer` on what repeats, and names that differ by that number; `origin` keeps the old ones."""
    ops = op_nodes(graph)
    start, period, times = longest_run([_print(graph, op) for op in ops])
    if times < 2:
        return graph
    turn = {op: i // period for i, op in enumerate(ops[start : start + period * times])}
    new = {op: f"layers.{turn[op]}.{ops[start + i % period]}" for i, op in enumerate(turn)}
    names = dict(new)
    for op in turn:
        for tensor, role in _tensors(graph, op):
            users = {turn.get(user) for user in graph.successors(tensor)}
            mine = op in graph.predecessors(tensor) or (not graph.in_degree(tensor) and users == {turn[op]})
            if mine and tensor not in names and graph.nodes[tensor]["tensor"] != "embedding":
                names[tensor] = f"{new[op]}.{role}"
                graph.nodes[tensor]["layer"] = turn[op]
        graph.nodes[op]["layer"] = turn[op]
    for old, name in names.items():
        graph.nodes[old]["origin"] = old
        assert name not in graph
    return nx.relabel_nodes(graph, names, copy=True)


def longest_run(prints: Sequence[Hashable]) -> tuple[int, int, int]:
    """(first op, ops of a block, blocks) of the repetition that covers the most ops; of equals the shortest block."""
    numbers: dict[Hashable, int] = {}
    ids = [numbers.setdefault(p, len(numbers)) for p in prints]
    best = (0, 0, 1)
    for period in range(2, min(MOST_OPS, len(ids) // 2) + 1):
        begin = 0
        for i in range(len(ids) - period + 1):
            if i < len(ids) - period and ids[i] == ids[i + period]:
                continue
            times = (i - begin) // period + 1
            if times > 1 and times * period > best[1] * best[2]:
                best = (begin, period, times)
            begin = i + 1
    return best


def _tensors(graph: nx.DiGraph, op: str) -> list[tuple[str, str]]:
    """(tensor, role) of an op, inputs first."""
    return [(t, r) for t, _, r in graph.in_edges(op, data="role")] + [
        (t, r) for _, t, r in graph.out_edges(op, data="role")
    ]


def _print(graph: nx.DiGraph, op: str) -> Hashable:
    """What must be equal in all layers: operator, attributes, and the shape, type and view of every tensor."""
    data = graph.nodes[op]
    edges = [(t, e) for t, _, e in graph.in_edges(op, data=True)] + [
        (t, e) for _, t, e in graph.out_edges(op, data=True)
    ]
    tensors = sorted(
        (e["role"], graph.nodes[t]["tensor"], graph.nodes[t]["shape"], graph.nodes[t]["dtype"], e.get("view") or ())
        for t, e in edges
    )
    return data["op"], tuple(sorted((k, str(v)) for k, v in data.items())), tuple(tensors)
