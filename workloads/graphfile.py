"""Graphs as files: node-link JSON, as networkx writes it.

    {"directed": true, "multigraph": false, "graph": {...}, "nodes": [{"id": NAME, ...}], "edges": [{"source": NAME,
     "target": NAME, "role": ROLE}]}

Shapes are lists in the file and tuples in the graph. `links` is accepted for `edges`.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import networkx as nx

from .checks import GraphError, nearest, problem, shown
from .graph import check_graph
from .jsonfile import JsonFile, read_json

GRAPH_FILE_LIMIT = 256 * 2**20
KEYS = ("directed", "multigraph", "graph", "nodes", "edges", "links")


def load_graph(path: str | Path) -> nx.DiGraph:
    """Read and check a node-link JSON file.

    Raises StallscopeError that names the file, the line of the node at fault where there is one, and the fault.
    """
    file = read_json(Path(path), "node-link JSON graph", GRAPH_FILE_LIMIT)
    _check_head(file)
    graph = nx.DiGraph()
    graph.graph.update(_tuples(file.data["graph"]))
    for i, node in enumerate(_objects(file, "nodes")):
        name = node.get("id")
        if not isinstance(name, str) or name in graph:
            found = f"id {shown(name)}" + (" a second time" if isinstance(name, str) else "")
            raise problem(f"{path}: nodes[{i}]", found, "a string of its own", "Rename the node.")
        graph.add_nodes_from([(name, {key: value for key, value in _tuples(node).items() if key != "id"})])
    edges_key = "edges" if "edges" in file.data else "links"
    for i, edge in enumerate(_objects(file, edges_key)):
        where = f"{path}: {edges_key}[{i}]"
        ends = edge.get("source"), edge.get("target")
        for end, name in zip(("source", "target"), ends, strict=True):
            if not isinstance(name, str) or name not in graph:
                todo = nearest(name, graph) if isinstance(name, str) and len(graph) else "Name a node."
                raise problem(f"{where}: {end}", shown(name), "the id of a node", todo)
        if graph.has_edge(*ends):
            found = f"the edge {ends[0]!r} -> {ends[1]!r} a second time"
            raise problem(where, found, "one edge per pair of nodes", "Remove one.")
        graph.add_edges_from([(*ends, {key: value for key, value in edge.items() if key not in ("source", "target")})])
    try:
        check_graph(graph)
    except GraphError as error:
        place = str(path) if error.node is None else file.line_of(error.node)
        raise GraphError(f"{place}: {error}", error.node) from None
    return graph


def save_graph(graph: nx.DiGraph, path: str | Path) -> None:
    """Check a graph and write it as node-link JSON; the file appears whole or not at all.

    Raises GraphError if the graph breaks the schema, StallscopeError if it cannot be written.
    """
    check_graph(graph)
    data = {
        "directed": True,
        "multigraph": False,
        "graph": graph.graph,
        "nodes": [{"id": name} | values for name, values in graph.nodes.items()],
        "edges": [{"source": s, "target": t} | values for s, t, values in graph.edges(data=True)],
    }
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        text = json.dumps(data, indent=1, allow_nan=False)
        part.write_text(text + "\n", encoding="utf-8")
        part.replace(target)
    except (OSError, TypeError, ValueError) as error:
        part.unlink(missing_ok=True)
        todo = "Check the path, and that every attribute is a number, string, list or None."
        raise problem(str(path), f"that it cannot be written ({error})", "a graph file", todo) from None


def _check_head(file: JsonFile) -> None:
    for key in ("graph", "nodes"):
        if key not in file.data:
            todo = "Write it with save_graph(); a model's config.json goes to load_model()."
            raise problem(str(file.path), f"no {key!r}", "node-link JSON with graph, nodes, edges", todo)
    if "edges" not in file.data and "links" not in file.data:
        raise problem(str(file.path), "no 'edges'", "node-link JSON with graph, nodes, edges", "Add it.")
    for key in file.data:
        if key not in KEYS:
            raise problem(file.where(key), "an unknown key", ", ".join(KEYS), nearest(key, KEYS))
    for key, right in (("directed", True), ("multigraph", False)):
        if file.data.get(key, right) is not right:
            expected = json.dumps(right)
            raise problem(file.where(key), shown(file.data[key]), expected, "Export a DiGraph.")
    if not isinstance(file.data["graph"], dict):
        todo = "Put schema, name, phase, batch, context and dtypes there."
        raise problem(file.where("graph"), shown(file.data["graph"]), "an object", todo)


def _objects(file: JsonFile, key: str) -> list[dict[str, Any]]:
    value = file.data[key]
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise problem(file.where(key), shown(value), "a list of objects", "Write it with save_graph().")
    return value


def _tuples(data: dict[str, Any]) -> dict[str, Any]:
    """Lists become tuples, those inside of them too: shapes, spans and warnings are tuples in a graph."""
    return {key: _tuple(value) for key, value in data.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
