"""Foreign file or program -> checked workload graph: the passes in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx

from ..graph import check_graph
from .layers import number_layers
from .lower import Lowering, Options
from .parallel import mark_parallel
from .patterns import recognise
from .program import Program
from .scores import recognise_attention
from .summary import describe


def load_foreign(path: Path, kind: str, dims: Mapping[str, int], causal: bool, in_place: bool) -> nx.DiGraph:
    """The graph of an ONNX ("onnx") or torch.export ("pt2") file. Raises StallscopeError as the readers do."""
    if kind == "onnx":
        from .onnx import read_onnx

        return graph_of(read_onnx(path, dims), Options(causal, in_place))
    from .export import read_export

    return graph_of(read_export(path, dims), Options(causal, in_place))


def graph_from_export(
    program: Any,
    name: str = "exported",
    dims: Mapping[str, int] | None = None,
    causal: bool = False,
    in_place: bool = False,
) -> nx.DiGraph:
    """The graph of a torch.export.ExportedProgram; options as in load_graph. Raises StallscopeError."""
    from .export import program_of

    return graph_of(program_of(program, name, f"program {name!r}", dims or {}), Options(causal, in_place))


def graph_of(program: Program, options: Options) -> nx.DiGraph:
    """Lower a program: patterns, ops, layers, marks for tensor parallelism."""
    program.before = program.producers()
    recognise(program)  # norms, activations, rotations
    recognise_attention(program)  # scores, masks, softmax
    low = Lowering(program, options)
    graph = low.run()
    if not any(kind == "op" for _, kind in graph.nodes(data="kind")):
        raise program.error(None, "nothing that works on inputs: constants and views alone", "an op", "Check the file.")
    mark_parallel(graph)
    graph = number_layers(graph)
    describe(graph, low)
    check_graph(graph)
    return graph
