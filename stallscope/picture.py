"""A graph as a picture: SVG that any browser shows, or DOT for Graphviz. Layers that are alike are drawn once."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from .errors import StallscopeError
from .report.json import write_whole

if TYPE_CHECKING:
    import networkx as nx

SUFFIXES = (".svg", ".dot", ".gv")
COLOURS = {"op": "#dbe9f6", "weight": "#fbe3c4", "expert": "#fbe3c4", "embedding": "#fbe3c4", "kv": "#d6efd3",
           "activation": "#f4f4f4"}  # fmt: skip
MOST = 3000
"""Nodes of a picture."""
BOX, GAP, ROW = 190, 20, 64


def draw(graph: nx.DiGraph[Any], target: str) -> str:
    """Write a picture, by suffix; returns what to say. Raises StallscopeError for another suffix or too many nodes."""
    path = Path(target)
    if path.suffix.lower() not in SUFFIXES:
        raise StallscopeError(f"--draw {target}: found another suffix; expected {', '.join(SUFFIXES)}; rename it")
    shown = once(graph)
    if len(shown) > MOST:
        found = f"{len(shown):,} nodes that do not repeat"
        raise StallscopeError(f"--draw {target}: found {found}; expected at most {MOST:,}; draw a smaller graph")
    text = svg(shown) if path.suffix.lower() == ".svg" else dot(shown)
    write_whole(target, text.encode(), "--draw")
    return f"{target}: {len(shown):,} nodes\n"


def once(graph: nx.DiGraph[Any]) -> nx.DiGraph[Any]:
    """The graph without the layers behind the first, whose label says how many there are."""
    layers = {data["layer"] for _, data in graph.nodes(data=True) if data.get("layer") is not None}
    shown = graph.copy()
    shown.graph["layers"] = len(layers)
    if len(layers) < 2:
        return shown
    last = max(layers)
    gone = [node for node, data in graph.nodes(data=True) if data.get("layer") not in (None, min(layers))]
    lasting = {node for node in gone if graph.nodes[node]["layer"] == last}
    ends = [(t, s) for t in lasting for s in graph.successors(t) if graph.nodes[s].get("layer") is None]
    shown.remove_nodes_from(gone)
    for tensor, reader in ends:  # what the last layer gives comes from the first one's same tensor
        twin = tensor.replace(f".{last}.", f".{min(layers)}.", 1)
        if twin in shown and graph.nodes[tensor]["kind"] == "tensor":
            shown.add_edge(twin, reader, role=graph.edges[tensor, reader]["role"], repeated=True)
    shown.remove_nodes_from([n for n in list(shown) if not shown.degree(n)])
    return shown


def _label(node: str, data: dict[str, Any], many: int) -> tuple[str, str]:
    repeated = f" (1 of {many} layers)" if many > 1 and data.get("layer") is not None else ""
    if data["kind"] == "op":
        return str(data["op"]) + repeated, node
    return "x".join(map(str, data["shape"])) + f" {data['dtype']}", node


def dot(graph: nx.DiGraph[Any]) -> str:
    """DOT text; `dot -Tsvg` draws it."""
    lines = ["digraph {", "  rankdir=TB; node [style=filled, fontname=Helvetica, fontsize=10];"]
    for node, data in graph.nodes(data=True):
        first, second = (_quoted(part) for part in _label(node, data, graph.graph["layers"]))
        shape, colour = ("box" if data["kind"] == "op" else "ellipse"), COLOURS[data.get("tensor", "op")]
        lines.append(f'  "{_quoted(node)}" [label="{first}\\n{second}", shape={shape}, fillcolor="{colour}"];')
    for source, target, data in graph.edges(data=True):
        style = ", style=dashed" if data.get("repeated") else ""
        lines.append(
            f'  "{_quoted(source)}" -> "{_quoted(target)}" [label="{_quoted(data["role"])}", fontsize=8{style}];'
        )
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text)


def svg(graph: nx.DiGraph[Any]) -> str:
    """A picture in rows: every node below all that it comes from, weights and caches just above their op."""
    rank = _ranks(graph)
    rows: dict[int, list[str]] = {}
    for node in graph:
        rows.setdefault(rank[node], []).append(node)
    width = max(len(row) for row in rows.values()) * (BOX + GAP) + GAP
    place = {
        node: (int((width - len(row) * (BOX + GAP) + GAP) / 2 + i * (BOX + GAP)), GAP + r * ROW)
        for r, row in rows.items()
        for i, node in enumerate(row)
    }
    lines = [_line(place[s], place[t], bool(d.get("repeated"))) for s, t, d in graph.edges(data=True)]
    boxes = [
        _box(place[node], *_label(node, data, graph.graph["layers"]), data) for node, data in graph.nodes(data=True)
    ]
    height = (max(rows) + 1) * ROW + GAP
    size = f'width="{width}" height="{height}" font-family="Helvetica" font-size="11"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, '<rect width="100%" height="100%" fill="white"/>', *lines, *boxes, "</svg>"]) + "\n"


def _ranks(graph: nx.DiGraph[Any]) -> dict[str, int]:
    import networkx as nx

    order = list(nx.topological_sort(graph))
    rank: dict[str, int] = {}
    for node in order:
        rank[node] = max((rank[p] + 1 for p in graph.predecessors(node)), default=0)
    for node in order:
        if not graph.in_degree(node):
            rank[node] = min((rank[s] for s in graph.successors(node)), default=1) - 1
    return rank


def _line(start: tuple[int, int], end: tuple[int, int], repeated: bool) -> str:
    (x1, y1), (x2, y2) = start, end
    dash = ' stroke-dasharray="5 4"' if repeated else ""
    x1, x2, y1 = x1 + BOX // 2, x2 + BOX // 2, y1 + ROW - GAP
    return f'<path d="M{x1} {y1} C{x1} {y1 + GAP} {x2} {y2 - GAP} {x2} {y2}" fill="none" stroke="#888"{dash}/>'


def _box(at: tuple[int, int], first: str, second: str, data: dict[str, Any]) -> str:
    x, y = at
    colour, radius = COLOURS[data.get("tensor", "op")], 2 if data["kind"] == "op" else 14
    cut = second if len(second) <= 30 else f"...{second[-27:]}"
    return (
        f'<g><title>{escape(second)}</title><rect x="{x}" y="{y}" width="{BOX}" height="{ROW - GAP}" rx="{radius}" '
        f'fill="{colour}" stroke="#666"/><text x="{x + 6}" y="{y + 17}">{escape(first)}</text>'
        f'<text x="{x + 6}" y="{y + 34}" fill="#555">{escape(cut)}</text></g>'
    )
