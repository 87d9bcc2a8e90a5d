"""GraphML of our own schema, as networkx writes it: shapes and other lists are JSON text in it.

<node id="q_proj"> <data key="kind">op</data> <data key="op">linear</data>
"""

from __future__ import annotations

import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import networkx as nx

from .checks import problem, shown
from .graph import SCHEMA
from .jsonfile import tuples

TEXTS = frozenset({"kind", "op", "tensor", "dtype", "role", "tied_to", "parallel", "origin", "schema", "name", "phase"})
"""Attributes that are plain text; all others are JSON where they are text at all."""
HINT = "Write it with save_graph() or `stallscope graph MODEL -o file.graphml`."


def read_graphml(path: Path, text: str) -> nx.DiGraph:
    """The graph in a GraphML text, not yet checked. Raises StallscopeError for other XML, other dialects, lists."""
    where = str(path)
    if "<!ENTITY" in text or "<!DOCTYPE" in text:
        raise problem(where, "a document type or entities", "plain GraphML", "Remove them; nothing here needs them.")
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise problem(where, f"broken XML ({error})", "GraphML", HINT) from None
    if root.tag.rpartition("}")[2] != "graphml":
        found = f"XML whose root is <{root.tag.rpartition('}')[2]}>"
        raise problem(where, found, "<graphml>", "Other graph formats (GEXF, SVG, ...) are not read. " + HINT)
    if "yworks" in text[:4000]:
        raise problem(where, "a yEd diagram", "a workload graph: op and tensor nodes", HINT)
    try:
        graph = nx.read_graphml(io.BytesIO(text.encode()))
    except (nx.NetworkXException, KeyError, ValueError, TypeError, AttributeError) as error:
        raise problem(where, f"GraphML that networkx cannot read ({error})", "one directed graph", HINT) from None
    if graph.is_multigraph() or not graph.is_directed():
        found = "a multigraph" if graph.is_multigraph() else "an undirected graph"
        raise problem(where, found, 'edgedefault="directed" and no edge twice', HINT)
    if graph.graph.get("schema") != SCHEMA:
        found = f"GraphML of another tool: no graph attribute schema={SCHEMA!r}"
        raise problem(where, found, "a workload graph: op and tensor nodes with kind, op, role, shape", HINT)
    result = nx.DiGraph()
    result.graph.update(_values(graph.graph, where))
    for key in ("node_default", "edge_default"):
        result.graph.pop(key, None)
    result.add_nodes_from((str(n), _values(data, where)) for n, data in graph.nodes(data=True))
    edges = ((str(s), str(t), _values(data, where)) for s, t, data in graph.edges(data=True))
    result.add_edges_from((s, t, {k: v for k, v in data.items() if k != "id"}) for s, t, data in edges)
    return result


def graphml_text(graph: nx.DiGraph) -> str:
    """A checked graph as GraphML."""
    plain = nx.DiGraph()
    plain.graph.update(_texts(graph.graph))
    plain.add_nodes_from((n, _texts(data)) for n, data in graph.nodes(data=True))
    plain.add_edges_from((s, t, _texts(data)) for s, t, data in graph.edges(data=True))
    return "\n".join(nx.generate_graphml(plain)) + "\n"


def _texts(data: dict[str, Any]) -> dict[str, Any]:
    """Attributes that GraphML can hold; None is left out."""
    out = {}
    for key, value in data.items():
        if value is not None:
            out[str(key)] = value if isinstance(value, str | int | float) else json.dumps(value)
    return out


def _values(data: dict[str, Any], where: str) -> dict[str, Any]:
    out = {}
    for key, value in data.items():
        if isinstance(value, str) and key not in TEXTS and value[:1] in ("[", "{"):
            try:
                value = tuples(json.loads(value))
            except (json.JSONDecodeError, RecursionError):
                raise problem(f"{where}: {key}", shown(value), "a list or object as JSON", HINT) from None
        out[key] = value
    return out
