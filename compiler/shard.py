"""Tensor parallelism: from a model's graph to the graph of one chip of `tp`, with the collectives that join them.

Each activation is `full` (every chip has all of it) or `split` (each chip has a part of the last dimension). One rule
per operator says what it takes, what it gives and how its own tensors are cut; where an input is split and the rule
wants
it
full, an all-gather is put in between. So a user's graph needs no marks: what has no rule runs on every chip alike.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from ..errors import StallscopeError
from ..workloads import op_nodes

Shape = tuple[int, ...]


@dataclass
class _Cut:
    """The local graph in the making."""

    graph: nx.DiGraph
    tp: int
    local: nx.DiGraph = field(default_factory=nx.DiGraph)
    split: dict[str, int] = field(default_factory=dict)  # activation -> ways that its last dimension is cut
    gathered: dict[str, str] = field(default_factory=dict)
    kv_ways: dict[str, int] = field(default_factory=dict)  # linear -> ways, where it makes K or V


def shard(graph: nx.DiGraph, tp: int) -> nx.DiGraph:
    """One chip's share of a graph under tensor parallelism of `tp` ways. Raises StallscopeError if heads cannot be
    shared out."""
    if tp == 1:
        return graph
    cut = _Cut(graph, tp)
    cut.local.graph.update(graph.graph)
    for op in op_nodes(graph):
        if graph.nodes[op]["op"] == "attention":
            _share_heads(cut, op)
    for op in op_nodes(graph):
        _RULES.get(graph.nodes[op]["op"], _replicate)(cut, op)
    for data in cut.local.nodes.values():  # a head that is cut another way than its table is a copy of its own
        if "tied_to" in data and cut.local.nodes[data["tied_to"]]["shape"] != data["shape"]:
            del data["tied_to"]
    return cut.local


def _share_heads(cut: _Cut, op: str) -> None:
    """K and V projections are cut by whole heads, and copied where there are more chips than KV heads."""
    data = cut.graph.nodes[op]
    heads, kv = data["heads"], data["kv_heads"]
    ways = min(cut.tp, kv)
    if heads % cut.tp or kv % ways or cut.tp % ways:
        fine = [n for n in range(1, heads + 1) if heads % n == 0 and (kv % n == 0 or n % kv == 0)]
        raise StallscopeError(
            f"op node {op!r}: tp {cut.tp} does not share out {heads} heads and {kv} KV heads evenly; "
            f"expected a tp of {', '.join(map(str, fine))}; change --tp"
        )
    for role in ("k", "v"):
        node = _input(cut.graph, op, role)
        while (maker := next(iter(cut.graph.predecessors(node)), None)) is not None:
            if cut.graph.nodes[maker]["op"] == "linear":
                cut.kv_ways[maker] = ways
                break
            if cut.graph.nodes[maker]["op"] != "rope":
                break
            node = _input(cut.graph, maker, "x")


def _input(graph: nx.DiGraph, op: str, role: str) -> str:
    return next(str(t) for t, _, r in graph.in_edges(op, data="role") if r == role)


def _parts(cut: _Cut, op: str) -> tuple[dict[str, str], dict[str, str]]:
    ins = {role: t for t, _, role in cut.graph.in_edges(op, data="role")}
    outs = {role: t for _, t, role in cut.graph.out_edges(op, data="role")}
    return ins, outs


def _ceil(n: int, ways: int) -> int:
    return -(-n // ways)


def _tensor(cut: _Cut, name: str, shape: Shape) -> str:
    """Copy a tensor node with its local shape."""
    cut.local.add_node(name, **{**cut.graph.nodes[name], "shape": shape})
    return name


def _op(cut: _Cut, op: str, ins: dict[str, str], outs: dict[str, str], **changed: Any) -> None:
    cut.local.add_node(op, **{**cut.graph.nodes[op], **changed})
    for role, t in ins.items():
        cut.local.add_edge(t, op, role=role)
    for role, t in outs.items():
        cut.local.add_edge(op, t, role=role)


def _shape(cut: _Cut, name: str) -> Shape:
    return tuple(cut.graph.nodes[name]["shape"])


def _narrow(shape: Shape, ways: int) -> Shape:
    return (*shape[:-1], _ceil(shape[-1], ways))


def _collective(cut: _Cut, kind: str, source: str, like: str, name: str) -> str:
    """Insert an all-reduce or all-gather of `source`; returns its output, a tensor shaped as `like` in the whole
    model."""
    maker = next(iter(cut.local.predecessors(source)), None)
    layer = cut.local.nodes[maker].get("layer") if maker else None
    where = {} if layer is None else {"layer": layer}
    out = f"{name}.out"
    cut.local.add_node(name, kind="op", op=kind, ways=cut.tp, **where)
    cut.local.add_node(out, **{**cut.graph.nodes[like], **where})
    cut.local.add_edge(source, name, role="x")
    cut.local.add_edge(name, out, role="out")
    return out


def _take(cut: _Cut, tensor: str, split: bool) -> str:
    """An input as the rule wants it: added if it is an input of the whole graph, gathered if it is split."""
    if tensor not in cut.local:
        _tensor(cut, tensor, _shape(cut, tensor))
    if split or tensor not in cut.split:
        return tensor
    if tensor not in cut.gathered:
        cut.gathered[tensor] = _collective(cut, "all_gather", tensor, tensor, f"{tensor}.all_gather")
    return cut.gathered[tensor]


def _replicate(cut: _Cut, op: str) -> None:
    ins, outs = _parts(cut, op)
    ins = {role: _take(cut, t, False) for role, t in ins.items()}
    _op(cut, op, ins, {role: _tensor(cut, t, _shape(cut, t)) for role, t in outs.items()})


def _elementwise(cut: _Cut, op: str) -> None:
    """All activations split the same way: stay split. Else as the rest."""
    ins, outs = _parts(cut, op)
    ways = {cut.split.get(t) for t in ins.values()}
    if len(ways) != 1 or None in ways:
        return _replicate(cut, op)
    (n,) = (w for w in ways if w)
    for t in outs.values():
        _tensor(cut, t, _narrow(_shape(cut, t), n))
        cut.split[t] = n
    return _op(cut, op, ins, outs)


def _embedding(cut: _Cut, op: str) -> None:
    """The table is cut by columns, so that a row is read once in all, and gathered."""
    ins, outs = _parts(cut, op)
    _tensor(cut, ins["weight"], _narrow(_shape(cut, ins["weight"]), cut.tp))
    _tensor(cut, outs["out"], _narrow(_shape(cut, outs["out"]), cut.tp))
    cut.split[outs["out"]] = cut.tp
    _op(cut, op, ins, outs)


def _linear(cut: _Cut, op: str) -> None:
    """Megatron's cuts: by outputs (column, vocab), or by inputs (row) with an all-reduce behind."""
    ins, outs = _parts(cut, op)
    how = cut.graph.nodes[op].get("parallel")
    if how is None:
        return _replicate(cut, op)
    n, k = _shape(cut, ins["weight"])
    row = how == "row" and ins["x"] in cut.split
    if row:
        weight, out, ways = (n, _ceil(k, cut.split[ins["x"]])), _shape(cut, outs["out"]), 0
    else:
        ways = cut.kv_ways.get(op, cut.tp)
        weight, out = (_ceil(n, ways), k), _narrow(_shape(cut, outs["out"]), ways)
    new = {role: _take(cut, t, row) for role, t in ins.items() if role == "x"}
    new["weight"] = _tensor(cut, ins["weight"], weight)
    if "bias" in ins:
        new["bias"] = _tensor(cut, ins["bias"], (weight[0],))
    if not row:
        _op(cut, op, new, {"out": _tensor(cut, outs["out"], out)})
        if ways > 1:
            cut.split[outs["out"]] = ways
        return None
    partial = f"{op}.partial"
    cut.local.add_node(partial, **cut.graph.nodes[outs["out"]])
    _op(cut, op, new, {"out": partial})
    summed = _collective(cut, "all_reduce", partial, outs["out"], f"{op}.all_reduce")
    nx.relabel_nodes(cut.local, {summed: outs["out"]}, copy=False)
    return None


def _heads(cut: _Cut, op: str) -> None:
    """Attention and the append to the KV cache, on each chip's own heads."""
    ins, outs = _parts(cut, op)
    if ins.get("q", ins["k"]) not in cut.split and ins["k"] not in cut.split:
        return _replicate(cut, op)
    data = cut.graph.nodes[op]
    for role in ("k_cache", "v_cache"):
        if role in ins:
            batch, kv, tokens, width = _shape(cut, ins[role])
            _tensor(cut, ins[role], (batch, max(kv // cut.tp, 1), tokens, width))
    for role, t in outs.items():
        shape = _shape(cut, t)
        if role == "out":
            _tensor(cut, t, _narrow(shape, cut.tp))
            cut.split[t] = cut.tp
        else:
            _tensor(cut, t, (shape[0], max(shape[1] // cut.tp, 1), *shape[2:]))
    changed = {}
    if data["op"] == "attention":
        changed = {"heads": data["heads"] // cut.tp, "kv_heads": max(data["kv_heads"] // cut.tp, 1)}
    return _op(cut, op, ins, outs, **changed)


def _sample(cut: _Cut, op: str) -> None:
    """Each chip finds the largest of its own logits; one small all-reduce finds the largest of these."""
    ins, outs = _parts(cut, op)
    if ins["logits"] not in cut.split:
        return _replicate(cut, op)
    partial = f"{op}.partial"
    cut.local.add_node(partial, **cut.graph.nodes[outs["token"]])
    _op(cut, op, ins, {"token": partial})
    best = _collective(cut, "all_reduce", partial, outs["token"], f"{op}.all_reduce")
    nx.relabel_nodes(cut.local, {best: outs["token"]}, copy=False)
    return None


_RULES: dict[str, Callable[[_Cut, str], None]] = {
    "embedding": _embedding,
    "linear": _linear,
    "attention": _heads,
    "kv_append": _heads,
    "rope": _elementwise,
    "add": _elementwise,
    "mul": _elementwise,
    "silu": _elementwise,
    "gelu": _elementwise,
    "swiglu": _elementwise,
    "sample": _sample,
}
