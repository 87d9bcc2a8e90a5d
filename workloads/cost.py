"""What an op of a graph takes: work and bytes, from its row in ops.py and the shapes of its tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import networkx as nx

from .checks import graph_problem, nearest, shown
from .dtypes import dtype_of
from .ops import OPS, PARALLEL, find_op
from .signature import Dims, MismatchError, Role, Shape, match


@dataclass(frozen=True)
class Cost:
    """What one run of an op takes. GEMM numbers are 0 where there is none; bytes are per tensor node."""

    unit: str
    m: int
    n: int
    k: int
    batch_gemms: int
    vector_ops: int
    special_ops: int
    reads: dict[str, int]
    writes: dict[str, int]
    macs: int
    """Multiply-adds in all."""


def bound_tensors(graph: nx.DiGraph, node: str) -> tuple[dict[str, str], dict[str, str]]:
    """Tensor node of each input role and of each output role of an op node.

    Raises GraphError for a role that is unknown, missing or played twice.
    """
    spec = find_op(graph.nodes[node].get("op"), f"op node {node!r}", node)
    inputs = [(tensor, data) for tensor, _, data in graph.in_edges(node, data=True)]
    outputs = [(tensor, data) for _, tensor, data in graph.out_edges(node, data=True)]
    op = graph.nodes[node]["op"]
    return (
        _one_side(op, node, spec.roles[0], inputs, "input"),
        _one_side(op, node, spec.roles[1], outputs, "output"),
    )


def _one_side(
    op: str, node: str, roles: tuple[Role, ...], edges: list[tuple[str, dict[str, Any]]], side: str
) -> dict[str, str]:
    played: dict[str, str] = {}
    names = [role.name for role in roles]
    for tensor, data in edges:
        role = data.get("role")
        if role not in names:
            where = f"op node {node!r} ({op}): edge of {side} tensor {tensor!r}"
            todo = nearest(role, names) if isinstance(role, str) else "Set role=NAME on the edge."
            raise graph_problem(node, where, f"role {role!r}", f"one of {', '.join(names)}", todo)
        if role in played:
            found = f"tensors {played[role]!r} and {tensor!r} both as {side} {role!r}"
            raise graph_problem(node, f"op node {node!r} ({op})", found, "one", "Remove one edge.")
        played[role] = tensor
    for role in roles:
        if role.name not in played and not role.optional:
            found = f"no {side} tensor with role {role.name!r}"
            todo = f"Add an edge with role={role.name!r} for a tensor of shape [{role.text}]."
            raise graph_problem(node, f"op node {node!r} ({op})", found, f"{', '.join(names)}", todo)
    return played


def op_dims(graph: nx.DiGraph, node: str) -> Dims:
    """Numbers behind the names of an op's signature.

    Raises GraphError for roles, attributes or shapes that do not fit, naming the op and the tensor.
    """
    inputs, outputs = bound_tensors(graph, node)
    return _dims(graph, node, inputs | outputs)


def _dims(graph: nx.DiGraph, node: str, tensors: dict[str, str]) -> Dims:
    data = graph.nodes[node]
    spec = OPS[data["op"]]
    where = f"op node {node!r} ({data['op']})"
    attributes = {}
    for name in spec.attributes + spec.optional:
        value = data.get(name)
        if name == "parallel":
            if value not in PARALLEL:
                expected = "one of " + ", ".join(map(repr, PARALLEL))
                raise graph_problem(node, f"{where}: parallel", repr(value), expected, "Correct it.")
        elif type(value) is int and value > 0:
            attributes[name] = value
        elif value is not None or name in spec.attributes:
            todo = f"Set {name}=NUMBER on the op node."
            raise graph_problem(node, f"{where}: {name}", shown(value), "a positive whole number", todo)
    shapes = {role: seen_shape(graph, node, tensor) for role, tensor in tensors.items()}
    try:
        dims = match(spec.roles[0] + spec.roles[1], shapes, attributes)
        return dims if spec.derive is None else dims | spec.derive(dims, data)
    except MismatchError as error:
        names = ", ".join(f"{role}={tensor!r}" for role, tensor in tensors.items())
        todo = f"Correct a shape or an edge ({names})."
        raise graph_problem(node, where, str(error), spec.signature, todo) from None


def op_cost(graph: nx.DiGraph, node: str) -> Cost:
    """Work and bytes of one run of an op node, from the shapes of its tensors.

    Raises GraphError if the op's roles, attributes or shapes do not fit its operator.
    """
    inputs, outputs = bound_tensors(graph, node)
    dims = _dims(graph, node, inputs | outputs)
    spec = OPS[graph.nodes[node]["op"]]
    m, n, k, many = spec.gemm(dims) if spec.gemm else (0, 0, 0, 0)
    reads: dict[str, int] = {}
    for role, tensor in inputs.items():
        data = graph.nodes[tensor]
        part = spec.reads.get(role)
        seen, whole = prod(seen_shape(graph, node, tensor)), prod(data["shape"])
        reads[tensor] = part_bytes(data, min(seen if part is None else part(dims), whole))
    writes = {tensor: tensor_bytes(graph.nodes[tensor]) for tensor in outputs.values()}
    macs = m * n * k * many if spec.macs is None else spec.macs(dims)
    return Cost(spec.unit, m, n, k, many, spec.vector(dims), spec.special(dims), reads, writes, macs)


def seen_shape(graph: nx.DiGraph, op: str, tensor: str) -> Shape:
    """The shape in which an op sees one of its tensors: that of the tensor, or the `view` of the edge between them."""
    edge = graph.edges[(tensor, op) if graph.has_edge(tensor, op) else (op, tensor)]
    shape: Shape = edge.get("view") or graph.nodes[tensor]["shape"]
    return shape


def tensor_bytes(data: Mapping[str, Any]) -> int:
    """Bytes of a tensor node's whole tensor with its scales, rounded up to a whole byte."""
    return dtype_of(data["dtype"]).size(data["shape"])


def part_bytes(data: Mapping[str, Any], elements: int) -> int:
    """Bytes of so many elements of a tensor node, their scales in proportion, rounded up to a whole byte."""
    dtype, whole = dtype_of(data["dtype"]), int(prod(data["shape"]))
    if elements == whole:
        return tensor_bytes(data)
    if not dtype.block_bits:
        return -(-elements * dtype.bits // 8)
    return -(-tensor_bytes(data) * elements // whole)
