"""The command `graph`: a model or graph file in numbers, what was mapped to what, and a copy as a file."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import StallscopeError

if TYPE_CHECKING:
    import networkx as nx

    from .options import Workload
    from .workloads.foreign.summary import Counts

GRAPH_SUFFIXES = (".onnx", ".pt2", ".graphml")
WRITTEN = (".json", ".graphml")


def workload_of(what: str | None, work: Workload) -> Workload:
    """The workload with a model or file given by position. Raises StallscopeError for none, or more than one."""
    given = [word for word in (what, work.model, work.graph) if word is not None]
    if len(given) != 1:
        found = "no model and no file" if not given else " and ".join(given)
        example = given[0] if given else "llama-3.2-1b"
        raise StallscopeError(f"stallscope graph: found {found}; expected one; write: stallscope graph {example}")
    if what is None:
        return work
    return replace(work, graph=what) if is_graph_file(what) else replace(work, model=what)


def is_graph_file(word: str) -> bool:
    """Whether a word is a graph file rather than a model: by its suffix, or for JSON by its keys."""
    path = Path(word)
    if path.suffix.lower() in GRAPH_SUFFIXES:
        return True
    if path.suffix.lower() != ".json" or not path.is_file():
        return False
    head = path.read_bytes()[:4096].decode("utf-8", errors="replace")
    return bool(re.search(r'"(nodes|stallscope-graph/1|directed|multigraph)"', head))


def graph_table(graph: nx.DiGraph[Any]) -> str:
    """The graph in numbers, its operators, and where it is a foreign one what was mapped to what."""
    from .report.layout import grid, pairs, render, section
    from .workloads.foreign.summary import counts

    head = graph.graph
    parts = [section(work_text(graph), "", pairs(_numbers(graph, counts(graph))))]
    parts.append(
        section("Operators", grid(("operator", "ops", "multiply-adds", "elementwise", "special"), _operators(graph)))
    )
    if head.get("mapping"):
        rows = list(_mapping(head["mapping"]))
        parts.append(section("Mapping", grid(("here", "there", "became", "times", "remark"), rows, words=(0, 1, 2, 4))))
    return render(*parts)


def work_text(graph: nx.DiGraph[Any], where: str = "") -> str:
    """What a graph is, in a line: its name, `where` it is run, phase, batch, context and types."""
    head, types = graph.graph, graph.graph["dtypes"]
    alike = (
        "all " + types["weight"] if len(set(types.values())) == 1 else ", ".join(f"{k} {v}" for k, v in types.items())
    )
    return f"{head['name']}{where}: {head['phase']}, batch {head['batch']:,}, context {head['context']:,}, {alike}"


def _numbers(graph: nx.DiGraph[Any], c: Counts) -> Iterable[tuple[str, str]]:
    from .report.units import bytes_text

    tensors = [data for _, data in graph.nodes(data=True) if data["kind"] == "tensor"]
    layers = {data["layer"] for data in tensors if data.get("layer") is not None}
    yield "ops", f"{len(graph) - len(tensors):,}" + (f", in {len(layers):,} layers and around them" if layers else "")
    yield (
        "parameters",
        f"{c.parameters:,} stored elements, each once" + (f", and {c.constants:,} of constants" if c.constants else ""),
    )
    total = c.weight_macs + c.attention_macs + c.other_macs
    experts = f" ({c.expert_macs:,} of them experts)" if c.expert_macs else ""
    yield "multiply-adds", f"{total:,}"
    yield (
        "",
        f"{c.weight_macs:,} with weights{experts}, {c.attention_macs:,} attention, {c.other_macs:,} other products",
    )
    yield "weights read", f"{bytes_text(c.weight_bytes_read)}, rows of tables included"
    yield (
        "keys and values",
        f"{c.kv_read:,} elements read, {c.kv_written:,} written"
        + (f", of which {c.kv_new:,} new" if c.kv_written > c.kv_new else ""),
    )


def _operators(graph: nx.DiGraph[Any]) -> Iterable[tuple[str, ...]]:
    from .workloads import op_cost, op_nodes

    sums: dict[str, list[int]] = {}
    for node in op_nodes(graph):
        cost = op_cost(graph, node)
        row = sums.setdefault(graph.nodes[node]["op"], [0] * 4)
        for i, n in enumerate((1, cost.macs, cost.vector_ops, cost.special_ops)):
            row[i] += n
    return [(name, *(f"{n:,}" for n in row)) for name, row in sums.items()]


def _mapping(rows: Iterable[tuple[str, str, str, str]]) -> Iterable[tuple[str, ...]]:
    """Lines that differ by the number of the layer alone are one; views are one line for each foreign operator."""
    found: dict[tuple[str, ...], int] = {}
    views: dict[tuple[str, ...], int] = {}
    for name, op, became, note in rows:
        into, name = (
            (views, "") if became == "a view" and not note else (found, re.sub(r"^layers\.\d+\.", "layers.*.", name))
        )
        key = (name, op, became, note)
        into[key] = into.get(key, 0) + 1
    for (name, op, became, note), times in (*found.items(), *views.items()):
        yield name, op, became, f"{times:,}", note


def write_graph(graph: nx.DiGraph[Any], target: str) -> str:
    """Write the graph as JSON or GraphML, by suffix; returns what to say. Raises StallscopeError for another suffix."""
    from .workloads import save_graph

    if Path(target).suffix.lower() not in WRITTEN:
        raise StallscopeError(f"-o {target}: found another suffix; expected {' or '.join(WRITTEN)}; rename it")
    save_graph(graph, target)
    return f"{target}: {len(graph):,} nodes, {graph.number_of_edges():,} edges\n"
