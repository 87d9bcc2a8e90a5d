"""Program -> workload graph: one op per call, views as marks on edges, and the list of what became what.

Rows of a 2-D activation are all leading dimensions together: [batch, tokens, hidden] is [batch*tokens, hidden]. Where
an op sees a tensor in another shape than the one it was made in, its edge carries `view` (graph.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import networkx as nx

from ..graph import add_tensor, new_graph
from .program import Call, Program, Shape, Value
from .tables import COPIES, PASSES, POINTWISE, REDUCTIONS, VIEWS

LOCAL = {"bool": "int8", "uint8": "int8"}
"""Element types that weigh what another does."""
ROLES = "abcdefgh"


class Ref(NamedTuple):
    """A value as the graph holds it: a tensor node, and the shape in which the value sees it."""

    tensor: str
    shape: Shape
    gathered: str = ""
    """For stored experts that a gather picks: the value of their numbers."""
    part: str = ""
    """The value by which a part was cut off: two parts of one shape are not the same."""


class Row(NamedTuple):
    """A line of the mapping list."""

    name: str
    op: str
    became: str
    note: str


@dataclass
class Options:
    """What a user may say of a foreign graph that it does not say itself."""

    causal: bool = False
    """Masks whose values nobody knows are causal."""
    in_place: bool = False
    """Caches that the graph gives back share the memory of those that it got: only new tokens are written."""


class Lowering:
    """The graph in the making."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program, self.options = program, options
        self.values = program.values
        self.made = program.producers()
        self.every = {**program.before, **self.made}
        """What made each value before patterns were put together, too."""
        self.graph = new_graph(program.name)
        self.refs: dict[str, Ref] = {}
        self.rows: list[Row] = []
        self.notes: list[str] = list(program.notes)
        self.origin: dict[str, str] = {}
        self.caches: dict[str, int] = {}
        """Values that attention takes as caches: inputs of the graph."""

    def fresh(self, name: str) -> str:
        """A name that no node has."""
        name = name.strip() or "op"
        taken, i = name, 2
        while taken in self.graph:
            taken, i = f"{name}.{i}", i + 1
        return taken

    def dtype(self, value: Value) -> str:
        """Element type of a value as memory holds it."""
        dtype = self.values[value.root].dtype if value.root in self.values else value.dtype
        return LOCAL.get(dtype, dtype) or "fp32"

    def ref(self, name: str) -> Ref:
        """The tensor behind a value: an input or stored tensor is added when it is first wanted."""
        value = self.values[name]
        if name not in self.refs:
            if value.stored:
                self.refs[name] = Ref(self.stored(name), value.shape)
            else:
                node = add_tensor(self.graph, self.fresh(name), "activation", flat(value.shape), self.dtype(value))
                self.refs[name] = Ref(node, value.shape)
        return self.refs[name]

    def stored(self, name: str, shape: Shape | None = None, kind: str = "weight", dtype: str | None = None) -> str:
        """The node of a stored tensor. A table that is a weight too is one tensor in memory (`tied_to`)."""
        value = self.values[name]
        root = value.root or name
        table = self.origin.get(f"embedding:{root}")
        node = self.origin.get(f"{kind}:{root}")
        if node is None:
            tied: dict[str, str] = {}
            kinds = [k for k in ("embedding", "weight", "expert") if f"{k}:{root}" in self.origin]
            if kind == "weight" and table:
                shape, dtype = self.graph.nodes[table]["shape"], self.graph.nodes[table]["dtype"]
                tied = {"tied_to": table}
            elif kinds:
                return self.origin[f"{kinds[0]}:{root}"]
            label = self.fresh(root + (".head" if tied else ""))
            whole = shape if shape and math.prod(shape) == self.elements(root) else self.values[root].shape
            node = add_tensor(
                self.graph, label, kind, flat(whole) if not shape else whole, dtype or self.dtype(value), **tied
            )
            self.origin[f"{kind}:{root}"] = node
        return node

    def elements(self, root: str) -> int:
        """Elements of a stored tensor."""
        return self.values[root].elements

    def emit(
        self,
        call: Call,
        op: str,
        inputs: Mapping[str, tuple[Ref, Shape]],
        outputs: Mapping[str, tuple[str, Shape]],
        note: str = "",
        suffix: str = "",
        kinds: Mapping[str, str] | None = None,
        **attributes: Any,
    ) -> str:
        """Add an op. Inputs: role -> (tensor, shape in which it is seen); outputs: role -> (value, shape)."""
        name = self.fresh(call.name + suffix)
        self.graph.add_node(name, kind="op", op=op, **attributes)
        for role, (ref, seen) in inputs.items():
            tensor = ref.tensor or self.picked(call, ref, f"{suffix}.{role}")
            if self.graph.has_edge(tensor, name):
                tensor = self.copy_of(call, ref, seen, f"{suffix}.{role}")
            view = {} if self.graph.nodes[tensor]["shape"] == seen else {"view": seen}
            self.graph.add_edge(tensor, name, role=role, **view)
        for role, (value, shape) in outputs.items():
            known = self.values.get(value)
            dtype = self.dtype(known) if known else "fp32"
            node = add_tensor(
                self.graph, self.fresh(f"{name}.{role}"), (kinds or {}).get(role, "activation"), shape, dtype
            )
            self.graph.add_edge(name, node, role=role)
            self.refs[value] = Ref(node, known.shape if known else shape)
        self.row(call, op, note, name)
        return name

    def copy_of(self, call: Call, ref: Ref, seen: Shape, suffix: str) -> str:
        """A copy of what an op sees of a tensor, for an op that sees two parts of one tensor."""
        size = (math.prod(seen),)
        name = self.fresh(f"{call.name}{suffix}.copy")
        self.graph.add_node(name, kind="op", op="pointwise")
        self.graph.add_edge(ref.tensor, name, role="a", view=size)
        node = add_tensor(self.graph, f"{name}.out", "activation", seen, self.graph.nodes[ref.tensor]["dtype"])
        self.graph.add_edge(name, node, role="out", view=size)
        self.row(call, "pointwise", "a second part of one tensor: a copy", name)
        return node

    def picked(self, call: Call, ref: Ref, suffix: str) -> str:
        """Stored tensors that a gather picked, put down for an op that is no product: a copy."""
        source = next(
            v
            for k, v in self.origin.items()
            if k.startswith("picked:") and self.refs[k[7:]] is not None and self.refs[k[7:]].gathered == ref.gathered
        )
        name = self.fresh(f"{call.name}{suffix}.picked")
        self.graph.add_node(name, kind="op", op="rearrange")
        size = (min(math.prod(ref.shape), self.elements(self.values[source].root)),)
        self.graph.add_edge(self.stored(source, kind="expert"), name, role="a", view=size)
        value = self.values[source]
        node = add_tensor(self.graph, f"{name}.out", "activation", flat(ref.shape), self.dtype(value))
        self.graph.add_edge(name, node, role="out")
        self.row(call, "rearrange", "picked tensors are copied", name)
        return node

    def row(self, call: Call, became: str, note: str = "", name: str = "") -> None:
        """Add a line to the mapping list."""
        parts = call.stands_for
        op = call.op if not parts else " + ".join(_counted(parts))
        self.rows.append(Row(name or call.name, op, became, "; ".join(filter(None, (call.note, note)))))

    def run(self) -> nx.DiGraph:
        """Lower all calls."""
        from .operators import LOWER as special

        for call in self.program.calls:
            live = [out for out in call.outputs if out]
            if live and all(self.values[out].elements == 0 for out in live):
                self.row(call, "nothing", "its result has no elements")
            elif call.op in special:
                special[call.op](self, call)
            elif call.op in VIEWS:
                self.view(call)
            elif call.op in POINTWISE:
                self.pointwise(call, *POINTWISE[call.op])
            elif call.op in REDUCTIONS:
                self.reduction(call, *REDUCTIONS[call.op])
            elif call.op in PASSES:
                self.passes(call, *PASSES[call.op])
            elif call.op in COPIES:
                self.copy(call)
            else:
                from .contrib import unknown

                raise unknown(self.program, call)
        for out in self.program.outputs:
            ref = self.refs.get(out)
            if ref and not ref.gathered and not self.graph.degree(ref.tensor):
                self.result(out, ref)
        self.graph.remove_nodes_from([node for node, degree in self.graph.degree() if not degree])
        return self.graph

    def result(self, out: str, ref: Ref) -> None:
        """A result that is a view of an input is a copy."""
        shape = flat(self.values[out].shape)
        size = min(math.prod(shape), math.prod(self.graph.nodes[ref.tensor]["shape"]))
        copy = Call("Identity", f"{out}.result", (out,), (out,))
        self.emit(copy, "rearrange", {"a": (ref, (size,))}, {"out": (out, shape)}, "a result that is a view: a copy")

    def view(self, call: Call) -> None:
        """The same tensor in another shape, or a part of it."""
        source = self.ref(call.inputs[0])
        for out in filter(None, call.outputs):
            if call.op == "Dropout" and out != call.outputs[0]:
                continue
            cut = out if call.op in ("Slice", "Split", "Gather") else source.part
            self.refs[out] = Ref(source.tensor, self.values[out].shape, source.gathered, cut)
        self.row(call, "a view", "")

    def operands(self, call: Call) -> list[Ref]:
        """The tensors that a call reads: no immediates, none twice in the same shape."""
        refs = [self.ref(i) for i in call.inputs if i and not self.values[i].scalar and self.values[i].elements]
        found = list(dict.fromkeys(refs))
        if len(found) > len(ROLES):
            todo = "Split it into several."
            raise self.program.error(call, f"{len(found)} tensors", f"at most {len(ROLES)}", todo)
        return found

    def pointwise(self, call: Call, ops: int, special: int, note: str = "") -> None:
        """Element by element; operands of fewer elements are read once and repeated."""
        refs, out = self.operands(call), call.outputs[0]
        shape = flat(self.values[out].shape)
        size = math.prod(shape)
        if call.op == "Pow" and self.program.scalar(call.inputs[1]) in (2, 3):
            ops, special = int(self.program.scalar(call.inputs[1]) or 0) - 1, 0
        if call.op in ("Min", "Max", "Sum", "Mean"):
            ops = max(ops * (len(refs) - 1), 1)
        if call.op == "Div" and self.values[call.inputs[1]].scalar:
            ops, special = 1, 0
        row = call.op.lower() if call.op in ("Add", "Mul") and len(refs) == 2 else "pointwise"
        if row != "pointwise" and refs[0].tensor != refs[1].tensor and self.is_activation(refs[1]) is not True:
            refs = [refs[0], refs[1]] if self.is_activation(refs[0]) else refs[::-1]
        if row != "pointwise" and self.is_activation(refs[0]):
            inputs = {"a": (refs[0], shape), "b": (refs[1], shape)}
            self.emit(call, row, inputs, {"out": (out, shape)}, note)
        else:
            inputs = {role: (ref, shape) for role, ref in zip(ROLES, refs, strict=False)}
            work: dict[str, Any] = {k: n * size for k, n in (("ops", ops), ("special", special)) if n * size}
            self.emit(call, "pointwise", inputs, {"out": (out, shape)}, note, **work)
        for extra in filter(None, call.outputs[1:]):
            self.refs[extra] = Ref(self.refs[out].tensor, self.values[extra].shape)

    def is_activation(self, ref: Ref) -> bool:
        """Whether a tensor is one."""
        return str(self.graph.nodes[ref.tensor]["tensor"]) == "activation"

    def reduction(self, call: Call, ops: int, special: int) -> None:
        """Many elements become one."""
        size = self.values[call.inputs[0]].elements
        self.passing(call, ops * size, special * self.values[call.outputs[0]].elements)

    def passes(self, call: Call, ops: int, special: int) -> None:
        """Through all elements, once or more."""
        size = self.values[call.inputs[0]].elements
        self.passing(call, ops * size, special * size)

    def passing(self, call: Call, ops: int, special: int, note: str = "") -> None:
        """An op that reads its operands whole, and makes outputs of any shapes."""
        refs = self.operands(call)
        inputs = {role: (ref, self.graph.nodes[ref.tensor]["shape"]) for role, ref in zip(ROLES, refs, strict=False)}
        named = [out for out in call.outputs if out and self.values[out].elements]
        outputs = {f"out{i or ''}": (out, flat(self.values[out].shape)) for i, out in enumerate(named)}
        work: dict[str, Any] = {k: n for k, n in (("ops", ops), ("special", special)) if n}
        self.emit(call, "rearrange", inputs, outputs, note, **work)

    def copy(self, call: Call) -> None:
        """Elements put together or picked: a concatenation reads its parts whole, a gather what it gives."""
        out = call.outputs[0]
        shape = flat(self.values[out].shape)
        parts = [i for i in call.inputs if i and self.values[i].elements]
        if call.op in ("Concat", "Stack"):
            if len(parts) == 1:
                self.refs[out] = Ref(self.ref(parts[0]).tensor, self.values[out].shape)
                return self.row(call, "a view")
            return self.join(call, out, shape, [self.ref(i) for i in parts], parts)
        source = self.ref(parts[0])
        inputs = {"a": (source, (min(math.prod(shape), self.values[parts[0]].elements),))}
        for role, name in zip("bcdefgh", parts[1:], strict=False):
            if not self.values[name].stored or self.values[name].elements > 1:
                ref = self.ref(name)
                inputs[role] = (ref, self.graph.nodes[ref.tensor]["shape"])
        self.emit(call, "rearrange", inputs, {"out": (out, shape)}, "a copy")
        return None

    def join(self, call: Call, out: str, shape: Shape, refs: list[Ref], names: list[str]) -> None:
        """A concatenation: all parts read, the whole written; more than eight go through several ops."""
        sizes = [self.values[n].elements for n in names]
        first, rest = refs[: len(ROLES)], refs[len(ROLES) :]
        inputs = {role: (ref, (n,)) for role, ref, n in zip(ROLES, first, sizes, strict=False)}
        if not rest:
            self.emit(call, "rearrange", inputs, {"out": (out, shape)}, "a copy")
            return
        part = f"{out}.part{len(rest)}"
        size = sum(sizes[: len(ROLES)])
        self.values[part] = Value(part, (size,), self.values[out].dtype)
        self.emit(call, "rearrange", inputs, {"out": (part, (size,))}, "a copy", suffix=f".part{len(rest)}")
        self.join(call, out, shape, [self.refs[part], *rest], [part, *names[len(ROLES) :]])


def flat(shape: Shape) -> Shape:
    """Rows and columns: all leading dimensions together, and the last."""
    return (math.prod(shape[:-1]), shape[-1]) if len(shape) > 1 else (shape or (1,))


def _counted(parts: tuple[str, ...]) -> list[str]:
    return [f"{n} {p}" if n > 1 else p for p, n in {p: parts.count(p) for p in parts}.items()]
