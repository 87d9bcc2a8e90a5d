"""Workload graphs: their schema, its checks, and ways to build one.

A graph is a networkx.DiGraph of op and tensor nodes; names are strings.

graph.graph     schema "stallscope-graph/1", name, phase ("decode"), batch (sequences), context (cached tokens),
                dtypes {weight, kv, activation, and parts that differ: attention, expert, embedding, head};
                optional: warnings (a tuple of sentences), spans (spans.py: what the step works on; without them every
                sequence brings one token), replicas (chips that each run such a graph beside each other; 1)
op node         kind="op", op=NAME (a row of ops.py), the operator's attributes; optional: layer (a number or None)
tensor node     kind="tensor", tensor=KIND (weight, expert, kv, activation, embedding), shape (a tuple of positive
                whole numbers), dtype (dtypes.py); optional: layer, tied_to (the embedding table that this weight is)
edge            tensor -> op or op -> tensor, with role=NAME as in the operator's signature; optional: view (the shape
                in which the op sees the tensor: its elements in another arrangement, a part of them, or repeated: free;
                read are the elements of the view or of the tensor, whichever are fewer)

A tensor has at most one producer; weights and tables have none. Activations without a producer are inputs, those
without a consumer are results.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

import networkx as nx

from ..errors import StallscopeError
from .checks import GraphError, graph_problem, nearest, positive_int, problem, shown
from .cost import bound_tensors, op_dims, tensor_bytes
from .dtypes import BLOCK_FORMATS, VALUE_DTYPES, check_dtype
from .ops import OPS, find_op
from .request import BATCH_LIMIT, CONTEXT_LIMIT, PHASES
from .signature import Shape

SCHEMA = "stallscope-graph/1"
TENSOR_KINDS = ("weight", "expert", "kv", "activation", "embedding")
BYTES_LIMIT = 2**62
DIM_LIMIT = 2**40
RANK_LIMIT = 8

GRAPH_KEYS = ("schema", "name", "phase", "batch", "context", "dtypes")
DTYPE_KEYS = ("weight", "kv", "activation", "attention", "expert", "embedding", "head")
TENSOR_KEYS = ("kind", "tensor", "shape", "dtype", "layer", "tied_to")
OP_KEYS = ("kind", "op", "layer")


def new_graph(name: str, batch: int = 1, context: int = 0, dtypes: Mapping[str, str] | None = None) -> nx.DiGraph:
    """An empty graph with its graph-wide attributes. Element types that `dtypes` leaves out are bf16."""
    types = {"weight": "bf16", "kv": "bf16", "activation": "bf16"} | dict(dtypes or {})
    return nx.DiGraph(schema=SCHEMA, name=name, phase="decode", batch=batch, context=context, dtypes=types)


def add_tensor(
    graph: nx.DiGraph, name: str, tensor: str, shape: Shape, dtype: str | None = None, **attributes: Any
) -> str:
    """Add a tensor node and return its name. Its element type is the graph's for its kind, unless given."""
    of_kind = tensor if tensor in ("kv", "activation") else "weight"
    graph.add_node(
        name, kind="tensor", tensor=tensor, shape=shape, dtype=dtype or graph.graph["dtypes"][of_kind], **attributes
    )
    return name


def add_op(
    graph: nx.DiGraph, name: str, op: str, inputs: Mapping[str, str], outputs: Mapping[str, Shape], **attributes: Any
) -> tuple[str, ...]:
    """Add an op that reads the tensors `inputs` {role: name} and makes new ones `outputs` {role: shape}.

    The new tensors are called "<op's name>.<role>" and returned. Raises GraphError for an unknown operator, an input
    that is not in the graph, or one tensor in two roles (an edge carries one role).
    """
    spec = find_op(op, f"graph {graph.graph.get('name')!r}: op node {name!r}", name)
    kinds = {role.name: role.kinds[0] for role in spec.roles[1]}
    graph.add_node(name, kind="op", op=op, **attributes)
    for role, tensor in inputs.items():
        if tensor not in graph or graph.has_edge(tensor, name):
            found = f"{tensor!r}, which is {'in another role too' if tensor in graph else 'not in the graph'}"
            raise graph_problem(name, f"op node {name!r} ({op}): {role}", found, "a tensor", "Add it first.")
        graph.add_edge(tensor, name, role=role)
    layer = {"layer": attributes["layer"]} if "layer" in attributes else {}
    for role, shape in outputs.items():
        dtype = "int32" if role in ("token", "chosen") else None
        add_tensor(graph, f"{name}.{role}", kinds.get(role, "activation"), shape, dtype, **layer)
        graph.add_edge(name, f"{name}.{role}", role=role)
    return tuple(f"{name}.{role}" for role in outputs)


def op_nodes(graph: nx.DiGraph) -> list[str]:
    """Op nodes in an order in which every op comes after those that it reads from (ties: as added)."""
    place = {node: i for i, node in enumerate(graph)}
    order = nx.lexicographical_topological_sort(graph, key=place.__getitem__)
    return [node for node in order if graph.nodes[node]["kind"] == "op"]


def check_graph(graph: nx.DiGraph) -> None:
    """Check a graph against the schema. Raises GraphError about the first fault, naming the node."""
    if type(graph) is not nx.DiGraph:
        found = f"a {type(graph).__name__}"
        raise graph_problem(None, "graph", found, "a networkx.DiGraph", "Build it with nx.DiGraph or load_graph.")
    _check_attributes(graph)
    if not graph:
        raise graph_problem(None, _where(graph), "no nodes", "at least one op", "Add ops and tensors.")
    ops = [node for node in graph if _check_node(graph, node) == "op"]
    if not ops:
        raise graph_problem(None, _where(graph), "tensors only", "at least one op", "Add an op node.")
    for source, target in graph.edges:
        if graph.nodes[source]["kind"] == graph.nodes[target]["kind"]:
            found = f"an edge between two {graph.nodes[source]['kind']} nodes"
            todo = "Put a tensor between two ops, and an op between two tensors."
            where = f"{_where(graph)}: edge {source!r} -> {target!r}"
            raise graph_problem(source, where, found, "tensor -> op or op -> tensor", todo)
        _check_view(graph, source, target)
    for node in ops:
        _check_roles(graph, node)
    for node, data in graph.nodes.items():
        if data["kind"] == "tensor":
            _check_tensor_edges(graph, node, data)
    _check_acyclic(graph)
    for node in ops:
        op_dims(graph, node)
    total = sum(tensor_bytes(data) for data in graph.nodes.values() if data["kind"] == "tensor")
    if total >= BYTES_LIMIT:
        found = f"{total} bytes of tensors"
        raise graph_problem(None, _where(graph), found, f"less than {BYTES_LIMIT}", "Correct the sizes.")


def _where(graph: nx.DiGraph) -> str:
    return f"graph {shown(graph.graph.get('name', ''))}"


def _check_attributes(graph: nx.DiGraph) -> None:
    data = graph.graph
    where = _where(graph)
    for key in GRAPH_KEYS:
        if key not in data:
            todo = f"Set graph.graph[{key!r}], or build the graph with new_graph()."
            raise graph_problem(None, where, f"no graph attribute {key!r}", ", ".join(GRAPH_KEYS), todo)
    for key, known in (("schema", (SCHEMA,)), ("phase", PHASES)):
        if data[key] not in known:
            raise graph_problem(None, f"{where}: {key}", shown(data[key]), " or ".join(known), "Correct it.")
    if not isinstance(data["name"], str):
        raise graph_problem(None, f"{where}: name", shown(data["name"]), "a string", "Give the graph a name.")
    warnings = data.get("warnings", ())
    if type(warnings) is not tuple or not all(isinstance(line, str) for line in warnings):
        raise graph_problem(None, f"{where}: warnings", shown(warnings), "a tuple of sentences", "Correct it.")
    spans = data.get("spans", ())
    numbers = type(spans) is tuple and all(type(s) is tuple and len(s) == 4 for s in spans)
    if not numbers or any(type(n) is not int or n < 0 for span in spans for n in span):
        expected = "a tuple of (sequences, new tokens, cached tokens, shared tokens)"
        raise graph_problem(None, f"{where}: spans", shown(spans), expected, "Correct it, or leave it out.")
    positive_int(data.get("replicas", 1), f"{where}: replicas", BATCH_LIMIT)
    dtypes = data["dtypes"]
    if not isinstance(dtypes, dict) or not {"weight", "kv", "activation"} <= set(dtypes) <= set(DTYPE_KEYS):
        expected = "{weight: .., kv: .., activation: ..}"
        raise graph_problem(None, f"{where}: dtypes", shown(dtypes), expected, "Name the three element types.")
    try:
        positive_int(data["batch"], f"{where}: batch", BATCH_LIMIT)
        positive_int(data["context"], f"{where}: context", CONTEXT_LIMIT, least=0)
        for key, dtype in dtypes.items():
            check_dtype(dtype, f"{where}: dtypes.{key}", (*VALUE_DTYPES, *BLOCK_FORMATS))
    except StallscopeError as error:
        raise GraphError(str(error)) from None


def _check_node(graph: nx.DiGraph, node: Any) -> str:
    """Check one node by itself and return its kind."""
    where = f"{_where(graph)}: node {shown(node)}"
    if not isinstance(node, str):
        raise graph_problem(None, where, f"a {type(node).__name__} as a node's name", "a string", "Rename it.")
    data = graph.nodes[node]
    kind = data.get("kind")
    try:
        if kind == "op":
            spec = find_op(data.get("op"), where, node)
            _check_keys(where, data, OP_KEYS + spec.attributes + spec.optional + spec.structured)
        elif kind == "tensor":
            _check_tensor(where, data)
            _check_keys(where, data, TENSOR_KEYS)
        else:
            raise problem(where, f"kind {shown(kind)}", "'op' or 'tensor'", "Set kind on the node.")
        if data.get("layer") is not None:
            positive_int(data["layer"], f"{where}: layer", least=0)
    except StallscopeError as error:
        raise GraphError(str(error), node) from None
    return str(kind)


def _check_keys(where: str, data: Mapping[str, Any], known: tuple[str, ...]) -> None:
    """Refuse an attribute that is nearly a known one that is absent; others are the user's own and travel along."""
    absent = [key for key in known if key not in data]
    for key in data:
        close = difflib.get_close_matches(key, absent, n=1, cutoff=0.8) if key not in known else []
        if close:
            raise problem(where, f"attribute {key!r}", repr(close[0]), "Rename it.")


def _check_tensor(where: str, data: Mapping[str, Any]) -> None:
    tensor = data.get("tensor")
    if tensor not in TENSOR_KINDS:
        todo = nearest(tensor, TENSOR_KINDS) if isinstance(tensor, str) else "Set tensor=KIND on the node."
        raise problem(where, f"tensor {shown(tensor)}", f"one of {', '.join(TENSOR_KINDS)}", todo)
    _check_shape(f"{where}: shape", data.get("shape"))
    check_dtype(data.get("dtype"), f"{where}: dtype")


def _check_shape(where: str, shape: object) -> None:
    sized = isinstance(shape, tuple) and 0 < len(shape) <= RANK_LIMIT
    if not sized or any(type(size) is not int or not 0 < size <= DIM_LIMIT for size in shape):  # type: ignore[attr-defined]
        expected = f"a tuple of 1 to {RANK_LIMIT} positive whole numbers"
        raise problem(where, shown(shape), expected, "Correct the shape.")


def _check_view(graph: nx.DiGraph, source: str, target: str) -> None:
    view = graph.edges[source, target].get("view")
    if view is not None:
        try:
            _check_shape(f"{_where(graph)}: edge {source!r} -> {target!r}: view", view)
        except StallscopeError as error:
            raise GraphError(str(error), source) from None


def _check_tensor_edges(graph: nx.DiGraph, node: str, data: Mapping[str, Any]) -> None:
    where = f"{_where(graph)}: tensor {node!r}"
    producers = list(graph.predecessors(node))
    if len(producers) > 1:
        found = f"{len(producers)} producers ({', '.join(map(repr, producers[:4]))})"
        raise graph_problem(node, where, found, "one at most", "Give each its own output tensor.")
    if not producers and not graph.out_degree(node):
        raise graph_problem(node, where, "no op at either end", "a producer or a consumer", "Connect or drop it.")
    tied = data.get("tied_to")
    if tied is None:
        return
    table = graph.nodes.get(tied, {}) if isinstance(tied, str) else {}
    if table.get("tensor") != "embedding" or any(table[key] != data[key] for key in ("shape", "dtype")):
        expected = "the name of an embedding tensor of the same shape and dtype"
        raise graph_problem(node, f"{where}: tied_to", shown(tied), expected, "Correct or drop tied_to.")


def _check_roles(graph: nx.DiGraph, node: str) -> None:
    inputs, outputs = bound_tensors(graph, node)
    op = graph.nodes[node]["op"]
    for roles, tensors in zip(OPS[op].roles, (inputs, outputs), strict=True):
        for role in roles:
            kind = graph.nodes[tensors[role.name]]["tensor"] if role.name in tensors else role.kinds[0]
            if kind not in role.kinds:
                where = f"{_where(graph)}: op node {node!r} ({op}): {role.name}"
                found = f"{tensors[role.name]!r}, a tensor of kind {kind!r}"
                raise graph_problem(node, where, found, f"kind {' or '.join(role.kinds)}", "Change one.")


def _check_acyclic(graph: nx.DiGraph) -> None:
    if nx.is_directed_acyclic_graph(graph):
        return
    nodes = [source for source, _ in nx.find_cycle(graph)]
    path = " -> ".join(map(str, [*nodes[:8], "..." if len(nodes) > 8 else nodes[0]]))
    todo = "Cut one of its edges: what an op writes can't be what it waits for."
    raise graph_problem(nodes[0], _where(graph), f"a cycle: {path}", "none", todo)
