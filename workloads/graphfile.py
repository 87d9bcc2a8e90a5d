"""Graphs as files: node-link JSON and GraphML of our schema, as networkx writes them; others by workloads/foreign.

    {"directed": true, "multigraph": false, "graph": {...}, "nodes": [{"id": NAME, ...}], "edges": [{"source": NAME,
     "target": NAME, "role": ROLE}]}

Shapes are lists in the file and tuples in the graph. `links` is accepted for `edges`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx

from .checks import GraphError, nearest, problem, shown
from .graph import check_graph
from .jsonfile import JsonFile, read_json, read_text, tuples

GRAPH_FILE_LIMIT = 256 * 2**20
KEYS = ("directed", "multigraph", "graph", "nodes", "edges", "links")
SUFFIXES = {".json": "json", ".graphml": "graphml", ".xml": "graphml", ".onnx": "onnx", ".pt2": "pt2"}
DIALECTS = {
    "adjacency": "networkx's adjacency format",
    "elements": "Cytoscape JSON",
    "children": "a tree as networkx writes one",
    "irVersion": "an ONNX model as JSON: give the .onnx file",
    "graph_module": "a torch.export program as JSON: give the .pt2 file",
    "model_type": "a model's config.json: give it to --model",
    "traceEvents": "a trace",
}
"""Keys by which the JSON of other tools is known."""


def load_graph(
    path: str | Path, dims: Mapping[str, int] | None = None, causal: bool = False, in_place: bool = False
) -> nx.DiGraph:
    """A graph from a file: node-link JSON or GraphML of our own schema, ONNX (.onnx), or torch.export (.pt2).

    For ONNX and torch.export: `dims` binds symbolic lengths; `causal` takes masks whose values nobody knows as causal;
    with `in_place` caches that are given back share the memory of those that came in. What was mapped to what is in
    graph.graph["mapping"]. Raises StallscopeError that names the file, the place and the fault.
    """
    path = Path(path)
    kind = kind_of(path)
    if kind in ("onnx", "pt2"):
        from .foreign.load import load_foreign

        return load_foreign(path, kind, dims or {}, causal, in_place)
    for said, flag in ((dims, "--dim"), (causal, "--causal"), (in_place, "--in-place")):
        if said:
            raise problem(
                str(path), f"{flag} for a graph of our own", "lengths as the file states them", "Leave it out."
            )
    return _load_graphml(path) if kind == "graphml" else _load_json(path)


def kind_of(path: Path) -> str:
    """What a graph file is, by its suffix or else by how it begins: "json", "graphml", "onnx" or "pt2".

    Raises StallscopeError for a git-LFS pointer.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(64)
    except (OSError, ValueError):
        head = b""  # the reader says what is wrong
    if head.startswith(b"version https://git-lfs"):
        todo = "Fetch the file itself: git lfs pull."
        raise problem(str(path), "a git-LFS pointer, three lines of text in place of the file", "a graph file", todo)
    suffix = path.suffix.lower()
    if suffix in SUFFIXES:
        return SUFFIXES[suffix]
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    return "graphml" if start == b"<" else "pt2" if head.startswith(b"PK") else "onnx" if b"\0" in head else "json"


def _load_graphml(path: Path) -> nx.DiGraph:
    from .graphml import read_graphml

    graph = read_graphml(path, read_text(path, "GraphML graph", GRAPH_FILE_LIMIT))
    try:
        check_graph(graph)
    except GraphError as error:
        raise GraphError(f"{path}: {error}", error.node) from None
    return graph


def _load_json(path: Path) -> nx.DiGraph:
    """Node-link JSON, as networkx writes it."""
    file = read_json(path, "node-link JSON graph", GRAPH_FILE_LIMIT)
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
        graph.add_edges_from(
            [(*ends, {key: value for key, value in _tuples(edge).items() if key not in ("source", "target")})]
        )
    try:
        check_graph(graph)
    except GraphError as error:
        place = str(path) if error.node is None else file.line_of(error.node)
        raise GraphError(f"{place}: {error}", error.node) from None
    return graph


def save_graph(graph: nx.DiGraph, path: str | Path) -> None:
    """Check a graph and write it, to .graphml as GraphML, else as node-link JSON; it appears whole or not at all.

    Raises GraphError if the graph breaks the schema, StallscopeError if it cannot be written.
    """
    check_graph(graph)
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        part.write_text(_text(graph, target), encoding="utf-8")
        part.replace(target)
    except (OSError, TypeError, ValueError) as error:
        part.unlink(missing_ok=True)
        todo = "Check the path, and that every attribute is a number, string, list or None."
        raise problem(
            str(path), f"that it cannot be written ({getattr(error, 'strerror', None) or error})", "a graph file", todo
        ) from None


def _text(graph: nx.DiGraph, target: Path) -> str:
    """A graph as the text of a file."""
    if target.suffix.lower() == ".graphml":
        from .graphml import graphml_text

        return graphml_text(graph)
    data = {
        "directed": True,
        "multigraph": False,
        "graph": graph.graph,
        "nodes": [{"id": name} | values for name, values in graph.nodes.items()],
        "edges": [{"source": s, "target": t} | values for s, t, values in graph.edges(data=True)],
    }
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _check_head(file: JsonFile) -> None:
    for key, what in DIALECTS.items():
        if key in file.data:
            todo = "Write it with save_graph() or `stallscope graph MODEL -o file.json`."
            raise problem(str(file.path), what, "node-link JSON with graph, nodes, edges", todo)
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
    return {key: tuples(value) for key, value in data.items()}
