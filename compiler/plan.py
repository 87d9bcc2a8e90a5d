"""What the passes hand on: ops with their costs, fused groups, units (layers), stages, and where tensors live."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import networkx as nx

from ..arch import Chip
from ..workloads import Cost, op_cost, op_dims, op_nodes, tensor_bytes
from ..workloads.loads import loads_of

STAR = "*"


@dataclass(frozen=True)
class PlanOp:
    """One op of one chip's graph. `inputs`, `outputs`: role -> tensor node."""

    name: str
    op: str
    layer: int | None
    cost: Cost
    inputs: dict[str, str]
    outputs: dict[str, str]
    weight_dtype: str | None = None
    """Element type of its weight, where it has one."""
    data: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Attributes of its node."""
    dims: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Numbers behind the names of its signature."""


@dataclass(frozen=True)
class Gemm:
    """One matrix product m x n x k of a group; `count` of them, over a weight or cache of `nbytes` in all. `x`: the
    activation that streams past it."""

    op: PlanOp
    m: int
    n: int
    k: int
    count: int
    nbytes: int
    offset: int = 0
    """Where its part of the weight begins, in bytes."""


@dataclass(frozen=True)
class Group:
    """Ops that run as one: a kernel, or one stop of a dataflow section. `kind` is that of its heaviest op."""

    name: str
    kind: str
    ops: tuple[PlanOp, ...]
    layer: int | None
    part: tuple[int, int] = (0, 1)
    """(i, of): the i-th of `of` slices by output columns (rows of a table), where the whole is too large for one
    stage."""

    @cached_property
    def produced(self) -> frozenset[str]:
        """Tensors made inside."""
        return frozenset(t for op in self.ops for t in op.outputs.values())

    @cached_property
    def reads(self) -> dict[str, int]:
        """Bytes read of tensors from outside, each once."""
        out: dict[str, int] = {}
        for op in self.ops:
            for t, n in op.cost.reads.items():
                if t not in self.produced:
                    out[t] = max(out.get(t, 0), n)
        return out

    @cached_property
    def label(self) -> str:
        """The name with its layer's number left out: the same for all identical layers."""
        return starred(self.name, self.layer)

    def scaled(self, n: int) -> int:
        """The share of a number that this part has."""
        i, of = self.part
        return n * (i + 1) // of - n * i // of

    def slices(self, of: int) -> list[Group]:
        """The group cut into `of` parts."""
        return [replace(self, name=f"{self.name}[{i + 1}/{of}]", part=(i, of)) for i in range(of)]


@dataclass(frozen=True)
class Unit:
    """Consecutive groups of one layer (or of none)."""

    layer: int | None
    groups: tuple[Group, ...]

    @property
    def work(self) -> tuple[Group, ...]:
        """The groups that do something; the others only keep tensors in memory."""
        return tuple(g for g in self.groups if g.kind != "keep")


@dataclass(frozen=True)
class Stage:
    """Units that one tensor-parallel group of chips holds and runs."""

    index: int
    units: tuple[Unit, ...]


@dataclass
class Plan:
    """Everything decided before tiles: the local graph, its stages, and the tier and address of every tensor."""

    chip: Chip
    graph: nx.DiGraph
    tp: int
    stages: tuple[Stage, ...]
    tier: dict[str, str] = field(default_factory=dict)
    address: dict[str, int] = field(default_factory=dict)
    used: tuple[dict[str, dict[str, int]], ...] = ()
    """Per stage: tier -> tensor kind -> bytes on each chip."""
    fit: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def pp(self) -> int:
        """Pipeline stages."""
        return len(self.stages)

    @property
    def replicas(self) -> int:
        """Groups of chips that run this graph beside each other."""
        return int(self.graph.graph.get("replicas", 1))

    @property
    def chips(self) -> int:
        """All chips."""
        return self.tp * self.pp * self.replicas

    @property
    def hops(self) -> int:
        """Ways from stage to stage that a token takes: stages at the end may only keep tensors."""
        return max((s.index for s in self.stages if any(u.work for u in s.units)), default=0)

    def kind(self, tensor: str) -> str:
        """Tensor kind of a node: weight, expert, kv, activation, embedding."""
        return str(self.graph.nodes[tensor]["tensor"])

    def dtype(self, tensor: str) -> str:
        """Element type of a tensor."""
        return str(self.graph.nodes[tensor]["dtype"])

    @property
    def samples(self) -> bool:
        """Whether the step ends in a token."""
        return any(data.get("op") == "sample" for _, data in self.graph.nodes(data=True))

    def star(self, node: str) -> str:
        """A node's name with its layer's number left out: the same in all layers."""
        return starred(node, self.graph.nodes[node].get("layer"))

    def size(self, tensor: str) -> int:
        """Bytes of a whole tensor on one chip."""
        return tensor_bytes(self.graph.nodes[tensor])


@dataclass(frozen=True)
class Block:
    """One unit on one stage. `opens_stage`: it is the first of a stage other than the first, on chips that wait for the
    token; `send_bytes`: what goes to the next stage behind it; `step`: how far each tensor lies from the next block's.
    """

    plan: Plan
    unit: Unit
    stage: int
    opens_stage: bool = False
    send_bytes: int = 0
    first: bool = False
    """The first of the whole program."""
    step: dict[str, int] = field(default_factory=dict)

    def home(self, tensor: str) -> str:
        """Tier of a tensor."""
        return self.plan.tier[tensor]


def starred(name: str, layer: int | None) -> str:
    """A node name with its layer's number replaced by a star."""
    return name if layer is None else re.sub(rf"\.{layer}\.", f".{STAR}.", name, count=1)


def plan_ops(graph: nx.DiGraph) -> list[PlanOp]:
    """The graph's ops in the order of execution."""
    out = []
    for node in op_nodes(graph):
        data = graph.nodes[node]
        inputs = {r: t for t, _, r in graph.in_edges(node, data="role")}
        outputs = {r: t for _, t, r in graph.out_edges(node, data="role")}
        dtype = graph.nodes[inputs["weight"]]["dtype"] if "weight" in inputs else None
        out.append(PlanOp(node, data["op"], data.get("layer"), op_cost(graph, node), inputs, outputs, dtype,
                          data, op_dims(graph, node)))  # fmt: skip
    return out


def message(plan: Plan, group: Group) -> tuple[int, int]:
    """Bytes of a collective's message, and the chips that take part in it.

    Of an all-to-all: what the chip sends or what it gets, whichever is more, its own rows included.
    """
    op = group.ops[0]
    size = plan.size(next(iter(op.outputs.values())))
    if op.op != "all_to_all":
        return size, plan.tp
    width = plan.graph.nodes[op.outputs["out"]]["shape"][-1]
    return max(size, size // (op.dims["arrived"] * width) * op.data["leaves"] * width), op.data["ways"]


def gemms(group: Group) -> list[Gemm]:
    """The matrix products of a group, cut to its part; of experts, one for each that is woken. None for attention."""
    out = []
    for op in group.ops:
        c = op.cost
        if not c.macs:
            continue
        weight = next((t for r, t in op.inputs.items() if r in ("weight", "b")), None)
        size = 0 if weight is None else c.reads[weight]
        if op.op == "expert_linear":
            rows, n, k = loads_of(dict(op.dims), op.data), group.scaled(op.dims["N"]), op.dims["K"]
            size = group.scaled(size)
            edges = [size * i // len(rows) for i in range(len(rows) + 1)]
            out += [Gemm(op, m, n, k, 1, edges[i + 1] - edges[i], edges[i]) for i, m in enumerate(rows)]
        elif c.batch_gemms and op.op != "attention":
            out.append(Gemm(op, c.m, group.scaled(c.n), c.k, c.batch_gemms, group.scaled(size)))
    return out


def by_expert(parts: list[Gemm]) -> list[Gemm]:
    """One product per woken expert: those of siblings with their columns side by side."""
    many = sum(p.op is parts[0].op for p in parts)
    out = []
    for i in range(many):
        mine = parts[i::many]
        n, size, offset = (sum(getattr(p, name) for p in mine) for name in ("n", "nbytes", "offset"))
        out.append(Gemm(mine[0].op, mine[0].m, n, mine[0].k, 1, size, offset))
    return out


def group_macs(group: Group) -> list[tuple[PlanOp, int]]:
    """Multiply-adds of each op of a group that has any, cut to its part."""
    return [(op, group.scaled(op.cost.macs)) for op in group.ops if op.cost.macs]


def operands(op: PlanOp) -> tuple[str, str]:
    """The tensor that a matrix op keeps still, a weight or cache, and the activation that meets it."""
    still = next(op.inputs[r] for r in ("weight", "k_cache", "b", "k") if r in op.inputs)
    return still, next(op.inputs[r] for r in ("x", "q", "a") if r in op.inputs)
