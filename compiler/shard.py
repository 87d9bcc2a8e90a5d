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
    partial: set[str] = field(default_factory=set)  # activations of which each chip has a part of the sum
    summed: dict[str, str] = field(default_factory=dict)


def shard(graph: nx.DiGraph, tp: int) -> nx.DiGraph:
    """One chip's share of a graph under tensor parallelism of `tp` ways. Raises StallscopeError if heads cannot be
    shared out."""
    if tp == 1:
        return graph
    cut = _Cut(graph, tp)
    cut.local.graph.update(graph.graph)
    for op in op_nodes(graph):
        if graph.nodes[op]["op"] == "attention" and not _has_views(graph, op):
            _share_heads(cut, op)
    for op in op_nodes(graph):
        rule = _replicate if _has_views(graph, op) else _RULES.get(graph.nodes[op]["op"], _replicate)
        rule(cut, op)
    for data in cut.local.nodes.values():  # a head that is cut another way than its table is a copy of its own
        if "tied_to" in data and cut.local.nodes[data["tied_to"]]["shape"] != data["shape"]:
            del data["tied_to"]
    return cut.local


def _has_views(graph: nx.DiGraph, op: str) -> bool:
    """Whether an op sees a tensor in another shape than its own: such an op runs on every chip alike."""
    edges = [*graph.in_edges(op, data="view"), *graph.out_edges(op, data="view")]
    return any(view is not None for _, _, view in edges)


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
        if node is None:
            continue
        while (maker := next(iter(cut.graph.predecessors(node)), None)) is not None:
            if cut.graph.nodes[maker]["op"] == "linear":
                cut.kv_ways[maker] = ways
                break
            if cut.graph.nodes[maker]["op"] not in ("rope", "head_norm", "copy", "rmsnorm", "layernorm"):
                break
            node = str(_input(cut.graph, maker, "x"))


def _input(graph: nx.DiGraph, op: str, role: str) -> str | None:
    return next((str(t) for t, _, r in graph.in_edges(op, data="role") if r == role), None)


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
    edges = [*cut.graph.in_edges(op, data=True), *cut.graph.out_edges(op, data=True)]
    views = {data["role"]: {"view": data["view"]} for _, _, data in edges if "view" in data}
    for role, t in ins.items():
        cut.local.add_edge(t, op, role=role, **views.get(role, {}))
    for role, t in outs.items():
        cut.local.add_edge(op, t, role=role, **views.get(role, {}))


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
    if tensor in cut.partial:
        if tensor not in cut.summed:
            cut.summed[tensor] = _collective(cut, "all_reduce", tensor, tensor, f"{tensor}.all_reduce")
        return cut.summed[tensor]
    if split or tensor not in cut.split:
        return tensor
    if tensor not in cut.gathered:
        cut.gathered[tensor] = _collective(cut, "all_gather", tensor, tensor, f"{tensor}.all_gather")
    return cut.gathered[tensor]


def _replicate(cut: _Cut, op: str) -> None:
    ins, outs = _parts(cut, op)
    ins = {role: _take(cut, t, False) for role, t in ins.items()}
    _op(cut, op, ins, {role: _tensor(cut, t, _shape(cut, t)) for role, t in outs.items()})


def _norm(cut: _Cut, op: str) -> None:
    """A norm over all heads of Q or K, of which each chip has a part: gathered, and then cut again."""
    ins, outs = _parts(cut, op)
    ways = cut.split.get(ins["x"])
    readers = {cut.graph.nodes[r]["op"] for r in cut.graph.successors(outs["out"])}
    if ways is None or not readers <= {"rope", "kv_append", "attention"}:
        return _replicate(cut, op)
    out, whole = outs["out"], f"{op}.whole"
    new = {role: _take(cut, t, False) for role, t in ins.items()}
    cut.local.add_node(whole, **cut.graph.nodes[out])
    _op(cut, op, new, {"out": whole})
    where = {k: v for k, v in cut.graph.nodes[op].items() if k == "layer"}
    cut.local.add_node(f"{op}.slice", kind="op", op="slice", ways=ways, **where)
    cut.local.add_edge(whole, f"{op}.slice", role="x")
    cut.local.add_edge(f"{op}.slice", _tensor(cut, out, _narrow(_shape(cut, out), ways)), role="out")
    cut.split[out] = ways
    return None


def _elementwise(cut: _Cut, op: str) -> None:
    """All activations split the same way: stay split, and what is learned per column with them. Else as the rest."""
    ins, outs = _parts(cut, op)
    moving = [t for t in ins.values() if cut.graph.nodes[t]["tensor"] == "activation"]
    ways = {cut.split.get(t) for t in moving}
    if len(ways) != 1 or None in ways:
        return _replicate(cut, op)
    (n,) = (w for w in ways if w)
    width = _shape(cut, moving[0])[-1]
    for t in set(ins.values()) - set(moving):
        shape = _shape(cut, t)
        _tensor(cut, t, _narrow(shape, n) if shape[-1] == width else shape)
    for t in outs.values():
        _tensor(cut, t, _narrow(_shape(cut, t), n))
        cut.split[t] = n
    return _op(cut, op, ins, outs)


def _sum(cut: _Cut, op: str) -> None:
    """What is linear in parts of a sum gives a part of its own sum: a + b of two, or a sum that is weighted by rows."""
    ins, outs = _parts(cut, op)
    moving = {r: t for r, t in ins.items() if r in ("a", "b", "x")}
    if not all(t in cut.partial for t in moving.values()):
        return _elementwise(cut, op)
    new = {r: t if r in moving else _take(cut, t, False) for r, t in ins.items()}
    return _partial(cut, op, new, outs["out"])


def _partial(cut: _Cut, op: str, ins: dict[str, str], out: str) -> None:
    """An op whose result is each chip's part of a sum; they are added up here, unless the op says `later`."""
    if cut.graph.nodes[op].get("later"):
        _op(cut, op, ins, {"out": _tensor(cut, out, _shape(cut, out))})
        cut.partial.add(out)
        return
    partial = f"{op}.partial"
    cut.local.add_node(partial, **cut.graph.nodes[out])
    _op(cut, op, ins, {"out": partial})
    summed = _collective(cut, "all_reduce", partial, out, f"{op}.all_reduce")
    nx.relabel_nodes(cut.local, {summed: out}, copy=False)


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
    return _partial(cut, op, new, outs["out"])


def _experts(cut: _Cut, op: str) -> None:
    """Every expert's matrix is cut as a linear's: by outputs, or by inputs with the sum behind what follows."""
    ins, outs = _parts(cut, op)
    how = cut.graph.nodes[op].get("parallel")
    count, n, k = _shape(cut, ins["weight"])
    row = how == "row" and ins["x"] in cut.split
    if how is None or (how == "row" and not row):
        return _replicate(cut, op)
    new = {"x": _take(cut, ins["x"], row), "chosen": _take(cut, ins["chosen"], False)}
    columns = n if row else _ceil(n, cut.tp)
    depth = _ceil(k, cut.split[ins["x"]]) if row else k
    new["weight"] = _tensor(cut, ins["weight"], (count, columns, depth))
    if "bias" in ins:
        new["bias"] = _tensor(cut, ins["bias"], (count, columns))
    out = outs["out"]
    if row:
        _op(cut, op, new, {"out": _tensor(cut, out, _shape(cut, out))})
        cut.partial.add(out)
    else:
        _op(cut, op, new, {"out": _tensor(cut, out, _narrow(_shape(cut, out), cut.tp))})
        cut.split[out] = cut.tp
    return None


def _latent(cut: _Cut, op: str) -> None:
    """kv_b_proj in its forms: each chip has the rows of its own heads."""
    ins, outs = _parts(cut, op)
    heads = cut.graph.nodes[op]["heads"]
    if heads % cut.tp:
        return _replicate(cut, op)
    n, rank = _shape(cut, ins["weight"])
    new = {"x": _take(cut, ins["x"], cut.graph.nodes[op]["op"] != "latent_expand")}
    new["weight"] = _tensor(cut, ins["weight"], (n // cut.tp, rank))
    for t in outs.values():
        _tensor(cut, t, _narrow(_shape(cut, t), cut.tp))
        cut.split[t] = cut.tp
    return _op(cut, op, new, outs, heads=heads // cut.tp)


def _keep(cut: _Cut, op: str) -> None:
    """Matrices are cut evenly, vectors are on all chips."""
    ins, _ = _parts(cut, op)
    shape = _shape(cut, ins["weight"])
    if len(shape) > 1:
        shape = (*shape[:-2], _ceil(shape[-2], cut.tp), shape[-1])
    _op(cut, op, {"weight": _tensor(cut, ins["weight"], shape)}, {})


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
    if "sinks" in ins:
        _tensor(cut, ins["sinks"], _narrow(_shape(cut, ins["sinks"]), cut.tp))
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


ELEMENTWISE = (
    "rope", "mul", "silu", "gelu", "swiglu", "geglu", "swiglu_clamped", "relu", "relu_squared", "softcap", "scale",
)  # fmt: skip
_RULES: dict[str, Callable[[_Cut, str], None]] = {
    "embedding": _embedding,
    "linear": _linear,
    "attention": _heads,
    "kv_append": _heads,
    "combine": _sum,
    "sigmoid_scale": _sum,
    "expert_linear": _experts,
    "latent_expand": _latent,
    "absorb_q": _latent,
    "absorb_v": _latent,
    "keep": _keep,
    "rmsnorm": _norm,
    "layernorm": _norm,
    **dict.fromkeys((*ELEMENTWISE, "head_norm", "copy", "quantize"), _elementwise),
    "add": _sum,
    "sample": _sample,
}
