"""What the parts of a decoder's graph are made of: ops with rows of tokens, projections, norms, weights by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from .graph import add_op, add_tensor
from .model import Model
from .request import Request
from .signature import Shape
from .spans import Span
from .weights import Weight


@dataclass
class Builder:
    """Adds the ops of one layer (or of none) to a graph. Names are below `prefix`; weights come from `weights`."""

    graph: nx.DiGraph
    model: Model
    request: Request
    spans: tuple[Span, ...]
    types: dict[str, str]
    """Part of the model (weights.PARTS) -> element type of its matrices; "vector": of biases and norms."""
    prefix: str = ""
    layer: int | None = None
    weights: dict[str, Weight] = field(default_factory=dict)
    cast: dict[str, str] = field(default_factory=dict)
    """Activation -> the same in the type that products of quantised weights take."""

    def __post_init__(self) -> None:
        self.rows = sum(span.rows for span in self.spans)

    def part(self, prefix: str, layer: int | None, weights: Iterable[Weight]) -> Builder:
        """A builder of another part of the same graph."""
        named = {weight.name: weight for weight in weights}
        return Builder(self.graph, self.model, self.request, self.spans, self.types, prefix, layer, named)

    def has(self, name: str) -> bool:
        """Whether there is a weight of that name."""
        return name in self.weights

    def width(self, x: str) -> int:
        """Columns of an activation."""
        return int(self.graph.nodes[x]["shape"][-1])

    def weight(self, name: str) -> str:
        """Add a weight, as the model lists it."""
        weight = self.weights[name]
        table = weight.part in ("embedding", "position") and weight.used == 1
        kind = "embedding" if table else "expert" if weight.part == "experts" else "weight"
        full = self.prefix + name
        if full not in self.graph:
            tied = {} if weight.tied_to is None else {"tied_to": weight.tied_to}
            dtype = self.types[weight.part if len(weight.shape) > 1 and weight.part != "norm" else "vector"]
            if weight.name.endswith(".bias") and weight.part == "experts":
                dtype = self.types["vector"]
            if weight.tied_to is not None:
                dtype = self.types["embedding"]
            shape = weight.shape
            if weight.part == "experts":  # those of one of the chips that share them
                shape = (shape[0] // self.request.ep, *shape[1:])
            add_tensor(self.graph, full, kind, shape, dtype, **self.where, **tied)
        return full

    @property
    def where(self) -> dict[str, int]:
        """The layer of all that is added."""
        return {} if self.layer is None else {"layer": self.layer}

    def op(
        self, name: str, op: str, inputs: dict[str, str], width: int, rows: int | None = None, **attributes: Any
    ) -> str:
        """Add an op with one output [rows, width]; returns the output."""
        return self.many(name, op, inputs, {"out": (self.rows if rows is None else rows, width)}, **attributes)[0]

    def many(
        self, name: str, op: str, inputs: dict[str, str], outputs: Mapping[str, Shape], **attributes: Any
    ) -> tuple[str, ...]:
        """Add an op with several outputs; returns them."""
        return add_op(self.graph, self.prefix + name, op, inputs, outputs, **self.where, **attributes)

    def linear(self, name: str, x: str, parallel: str | None, later: bool = False) -> str:
        """Add a projection with its weight, and its bias if it has one.

        `later`: chips that each have a part of the sum add it up behind what follows, not here.
        """
        weight = self.weight(f"{name}.weight")
        data = self.graph.nodes[weight]
        inputs = {"x": self.quantised(x, data["dtype"]), "weight": weight}
        if self.has(f"{name}.bias"):
            inputs["bias"] = self.weight(f"{name}.bias")
        rows = int(self.graph.nodes[x]["shape"][0])
        attributes = ({"parallel": parallel} if parallel else {}) | ({"later": 1} if later else {})
        return self.op(name, "linear", inputs, data["shape"][0], rows, **attributes)

    def quantised(self, x: str, weight_dtype: str) -> str:
        """The activation as a product takes it: cast where the request casts for weights of this type."""
        to = self.types.get("cast")
        if to is None or weight_dtype in ("bf16", "fp16", "fp32") or self.graph.nodes[x]["dtype"] == to:
            return x
        if x not in self.cast:
            shape = self.graph.nodes[x]["shape"]
            name = f"{x.removeprefix(self.prefix)}.quantize"
            self.cast[x] = self.many(name, "quantize", {"x": x}, {"out": shape})[0]
            self.graph.nodes[self.cast[x]]["dtype"] = to
        return self.cast[x]

    def norm(self, name: str, x: str) -> str:
        """Add one of the model's norms with what it has learned."""
        inputs = {"x": x}
        for role in ("weight", "bias"):
            if self.has(f"{name}.{role}"):
                inputs[role] = self.weight(f"{name}.{role}")
        rows = int(self.graph.nodes[x]["shape"][0])
        return self.op(name, self.model.norm.name, inputs, self.width(x), rows)
