"""Small ONNX models for tests: nodes as tuples, shapes as lists. Needs onnx."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from stallscope import load_graph
from stallscope.workloads.foreign.summary import Counts, counts

Shape = list[Any]
TYPES = {
    "f": TensorProto.FLOAT,
    "h": TensorProto.FLOAT16,
    "i": TensorProto.INT64,
    "b": TensorProto.BOOL,
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "i32": TensorProto.INT32,
}
MS = "com.microsoft"


def node(op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    """`inputs` and `outputs` are names apart by spaces; `-` stands for an absent one."""
    names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
    return helper.make_node(op, *names, name=f"n_{outputs.split()[0]}", domain=domain, **attributes)


def weight(name: str, shape: Shape, kind: str = "f") -> onnx.TensorProto:
    """A stored tensor whose data lies in a file that is not there."""
    tensor = TensorProto(name=name, data_type=TYPES[kind], dims=shape, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value="weights.bin")
    return tensor


def numbers(name: str, array: Any) -> onnx.TensorProto:
    """A stored tensor with its data."""
    return numpy_helper.from_array(np.asarray(array), name)


def model(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, Shape | tuple[str, Shape]],
    outputs: list[str],
    stored: list[onnx.TensorProto] | None = None,
    opset: int = 23,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    infos = []
    for name, shape in inputs.items():
        kind, sizes = shape if isinstance(shape, tuple) else ("f", shape)
        infos.append(helper.make_tensor_value_info(name, TYPES[kind], sizes))
    results = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", infos, results, stored or [])
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1), helper.make_opsetid("local", 1)]
    return helper.make_model(graph, opset_imports=domains, functions=functions or [])


def load(tmp_path: Path, made: onnx.ModelProto, **options: Any) -> nx.DiGraph:
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return load_graph(path, **options)


def count(tmp_path: Path, made: onnx.ModelProto, **options: Any) -> Counts:
    return counts(load(tmp_path, made, **options))


def became(graph: nx.DiGraph) -> list[str]:
    """What the calls became, views left out."""
    return [row[2] for row in graph.graph["mapping"] if row[2] != "a view"]


def remark(graph: nx.DiGraph, op: str) -> str:
    """The remark of the first call that became this."""
    return next(row[3] for row in graph.graph["mapping"] if row[2] == op)
