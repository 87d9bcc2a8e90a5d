"""ONNX file -> Program: functions inlined, branches chosen, loops unrolled, every length and constant worked out.

Weights are not read: a file without its external data is as good as with it. Shapes come from the onnx package, node by
node, with the constants known so far; operators that it does not know have theirs in contrib.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..checks import problem
from . import contrib
from .lengths import Lengths
from .onnx_types import DTYPES, NUMBERS, attributes, elements, parse_file, tensor_type
from .program import CALL_LIMIT, Array, Call, Program, Shape, Value
from .record import alias, record, store

DATA_LIMIT = 4096
"""Elements of a constant that shape inference is told."""


def read_onnx(path: Path, dims: Mapping[str, int]) -> Program:
    """Read an ONNX file. Raises StallscopeError for a file that is none, an open length or an unknown operator."""
    model = parse_file(path)
    return program_of(model, path.stem, str(path), dims)


def program_of(model: Any, name: str, source: str, dims: Mapping[str, int]) -> Program:
    """The program of a parsed model (an onnx.ModelProto)."""
    from onnx import inliner

    if not model.graph.node:
        todo = "Export the model again; give the .onnx file, not its external data."
        raise problem(source, "an ONNX graph without nodes", "at least one operator", todo)
    if model.functions:
        model = inliner.inline_local_functions(model)
    return _Reader(model, Program(name, source), Lengths(source, dims)).read()


class _Reader:
    """The state of reading one model: the program so far and the numbers of its lengths."""

    def __init__(self, model: Any, program: Program, lengths: Lengths) -> None:
        self.model, self.program, self.lengths = model, program, lengths
        self.opsets = {entry.domain.replace("ai.onnx", "", 1) if entry.domain == "ai.onnx" else entry.domain:
                       entry.version for entry in model.opset_import}  # fmt: skip
        self.hints = {info.name: info for info in (*model.graph.value_info, *model.graph.output) if _typed(info)}
        self.calls = 0

    def read(self) -> Program:
        """The whole program."""
        graph = self.model.graph
        stored = self.initializers(graph, "")
        for info in graph.input:
            if info.name not in stored:
                self.input(info)
        self.lengths.known |= {dim.dim_param for info in self.hints.values() for dim in _dims(info) if dim.dim_param}
        self.lengths.known |= set(self.lengths.given) & {info.name for info in graph.input}
        names = {out for node in graph.node for out in node.output}
        self.lengths.known |= {g for g in self.lengths.given if g.rpartition(".")[0] in names}
        self.lengths.check()
        self.nodes(graph.node, {})
        self.program.outputs = [info.name for info in graph.output if info.name in self.program.values]
        missing = [info.name for info in graph.output if info.name not in self.program.values]
        if missing:
            raise problem(self.program.source, f"output {missing[0]!r} that no node makes", "one", "Export it again.")
        return self.program

    def initializers(self, graph: Any, prefix: str) -> set[str]:
        """Stored tensors of a graph or body, by their shapes; values where they are in the file."""
        for tensor in graph.initializer:
            shape = tuple(tensor.dims)
            self.store(prefix + tensor.name, shape, DTYPES.get(tensor.data_type, ""), elements(tensor))
        for sparse in graph.sparse_initializer:
            found = f"the sparse initializer {sparse.values.name!r}"
            raise problem(self.program.source, found, "dense tensors", "Store it as a dense tensor.")
        return {tensor.name for tensor in graph.initializer}

    def store(self, name: str, shape: Shape, dtype: str, data: Array | None) -> None:
        """Add a stored tensor."""
        store(self.program, name, shape, dtype, data)

    def input(self, info: Any) -> None:
        """Add an input of the whole graph; one of integers that --dim gives a number has it in all its elements."""
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type" or not info.type.tensor_type.HasField("shape"):
            found = "a tensor of unknown rank" if kind == "tensor_type" else f"a {kind}"
            raise problem(f"{self.program.source}: input {info.name!r}", found, "a tensor", "Export it with shapes.")
        shape = []
        for axis, dim in enumerate(_dims(info)):
            where = f"input {info.name!r}"
            if dim.HasField("dim_value"):
                shape.append(dim.dim_value)
            else:
                shape.append(self.lengths.find(dim.dim_param or f"{info.name}.{axis}", where) or 0)
        dtype = DTYPES.get(info.type.tensor_type.elem_type, "")
        given = self.lengths.given.get(info.name)
        if given is not None and dtype in ("int64", "int32", "bool"):
            self.store(info.name, tuple(shape), dtype, np.full(shape, given, bool if dtype == "bool" else np.int64))
        else:
            self.program.values[info.name] = Value(info.name, tuple(shape), dtype)
            self.program.inputs.append(info.name)

    def nodes(self, nodes: Any, names: dict[str, str]) -> None:
        """Add nodes in order. `names`: what names of a body stand for here; all outputs get new ones there."""
        for node in nodes:
            self.node(node, names)

    def node(self, node: Any, names: dict[str, str], suffix: str = "") -> None:
        """Add one node, or the nodes of the body that it runs."""
        self.calls += 1
        if self.calls > CALL_LIMIT:
            found = f"more than {CALL_LIMIT:,} nodes, loops unrolled"
            raise problem(self.program.source, found, "a graph of one step", "Check the trip counts of its loops.")
        domain = "" if node.domain == "ai.onnx" else node.domain
        op = f"{domain}.{node.op_type}" if domain else node.op_type
        suffix = names.get("", "")
        inputs = tuple(names.get(i, i) for i in node.input)
        outputs = tuple(out + suffix if out else "" for out in node.output)
        names.update({o: n for o, n in zip(node.output, outputs, strict=True) if o and suffix})
        label = (node.name or next(filter(None, node.output), f"#{self.calls}")) + suffix
        call = Call(op, label, inputs, outputs, attributes(node))
        for name in filter(None, inputs):
            if name not in self.program.values:
                todo = "Sort the nodes, or export the model again."
                raise self.program.error(call, f"input {name!r} that nothing before it makes", "a tensor", todo)
        special = {"If": self.branch, "Loop": self.loop, "Constant": self.constant}.get(op)
        if special:
            special(call, node, names)
        else:
            self.call(call, node)

    def call(self, call: Call, node: Any) -> None:
        """Add a call with the shapes of its outputs; its values where they do not depend on the inputs."""
        if call.op in ("Shape", "Size"):
            shape = np.array(self.program.shape(call.inputs[0]), np.int64)
            shape = shape[call.attr("start", 0) : call.attr("end")] if call.op == "Shape" else shape.prod().reshape(())
            self.store(call.outputs[0], shape.shape, "int64", shape)
        else:
            record(self.program, call, self.types(call, node))

    def types(self, call: Call, node: Any) -> list[tuple[Shape, str]]:
        """Shape and element type of every output; absent outputs have ((), "")."""
        if call.op in contrib.SHAPES:
            found = contrib.shapes(self.program, call)
            if len(found) < len(call.outputs):
                todo = "Such an output is not read yet; leave it out."
                raise self.program.error(call, f"output {len(found)}", f"{len(found)} outputs", todo)
            return found[: len(call.outputs)]
        inferred = self.infer(call, node)
        out = []
        for i, name in enumerate(call.outputs):
            known = inferred.get(node.output[i]) if name else None
            out.append(self.type(call, name, known) if name else ((), ""))
        return out

    def infer(self, call: Call, node: Any) -> dict[str, Any]:
        """What the onnx package says of the outputs."""
        import onnx
        from onnx import shape_inference

        domain, _, op = call.op.rpartition(".")
        try:
            version = self.opsets.get(domain, self.opsets.get("", 1))
            schema = onnx.defs.get_schema(
                op, min(version, onnx.defs.onnx_opset_version()) if not domain else version, domain
            )
        except onnx.defs.SchemaError:
            raise contrib.unknown(self.program, call) from None
        types = {n: tensor_type(self.program.values[i]) for n, i in zip(node.input, call.inputs, strict=True) if n}
        data = {}
        for n, i in zip(node.input, call.inputs, strict=True):
            value = self.program.values.get(i)
            if value is not None and value.data is not None and value.data.size <= DATA_LIMIT:
                array = value.data.astype(NUMBERS.get(value.dtype, value.data.dtype))
                data[n] = onnx.numpy_helper.from_array(np.ascontiguousarray(array).reshape(value.shape), n)
        try:
            return dict(
                shape_inference.infer_node_outputs(schema, node, types, data, None, list(self.model.opset_import))
            )
        except (shape_inference.InferenceError, RuntimeError, onnx.checker.ValidationError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            found = f"inputs that do not fit ({reason})"
            raise self.program.error(call, found, "shapes that the operator takes", "Check the graph.") from None

    def type(self, call: Call, name: str, known: Any) -> tuple[Shape, str]:
        """Shape and element type of one output, from inference, or else as the file states them."""
        infos = [t for t in (known, self.hints[name].type if name in self.hints else None) if t is not None]
        shape: list[int | None] | None = None
        dtype = ""
        for info in infos:
            tensor = info.tensor_type
            if info.WhichOneof("value") != "tensor_type":
                found = f"an output of type {info.WhichOneof('value')}"
                raise self.program.error(call, found, "tensors", "Sequences and optionals are not read.")
            dtype = dtype or DTYPES.get(tensor.elem_type, "")
            if tensor.HasField("shape"):
                dims = [self.length(dim) for dim in tensor.shape.dim]
                shape = (
                    dims if shape is None else [a if a is not None else b for a, b in zip(shape, dims, strict=False)]
                )
        if shape is None:
            raise self.program.error(
                call, f"no shape of {name!r}", "one", "Run onnx.shape_inference on the file first."
            )
        for axis, size in enumerate(shape):
            given = self.lengths.given.get(f"{name}.{axis}", size)
            if given is None:
                found = f"that axis {axis} of {name!r} has a length that depends on the data"
                raise self.program.error(call, found, "known lengths", f"Bind it: --dim {name}.{axis}=NUMBER.")
            shape[axis] = given
        return tuple(s for s in shape if s is not None), dtype

    def length(self, dim: Any) -> int | None:
        """A length as a shape states it."""
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        return self.lengths.find(dim.dim_param, "") if dim.dim_param else None

    def constant(self, call: Call, node: Any, names: dict[str, str]) -> None:
        """A Constant: a stored tensor in any of its forms."""
        (key, value), *_ = call.attrs.items()
        if key in ("value_string", "value_strings", "sparse_value"):
            raise self.program.error(call, key, "numbers", "Strings and sparse tensors are not read.")
        tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        if tensor is not None:
            return self.store(call.outputs[0], tuple(tensor.dims), DTYPES.get(tensor.data_type, ""), elements(tensor))
        array = np.asarray(value)
        return self.store(call.outputs[0], array.shape, "int64" if array.dtype.kind == "i" else "fp32", array)

    def branch(self, call: Call, node: Any, names: dict[str, str]) -> None:
        """An If whose condition is known: the nodes of the branch that is taken."""
        taken = self.program.scalar(call.inputs[0])
        if taken is None:
            found = f"a condition {call.inputs[0]!r} that depends on the inputs"
            hint = "Bind it if it is an input: --dim NAME=1 (or 0); else export one branch alone."
            raise self.program.error(call, found, "a condition that is known", hint)
        body = next(a.g for a in node.attribute if a.name == ("then_branch" if taken else "else_branch"))
        made = self.body(body, call, names, {}, "")
        for out, name in zip(call.outputs, made, strict=True):
            alias(self.program, call.name, out, name)

    def loop(self, call: Call, node: Any, names: dict[str, str]) -> None:
        """A Loop of a known number of trips: its body, so many times; scan outputs are stacked at the end."""
        body = next(a.g for a in node.attribute if a.name == "body")
        trips = self.program.scalar(call.inputs[0]) if call.input(0) else None
        if trips is None or trips > CALL_LIMIT:
            found = "a number of trips that depends on the inputs"
            hint = "Bind the input that it comes from with --dim NAME=NUMBER, or unroll the loop when exporting."
            raise self.program.error(call, found, "a number that is known", hint)
        if call.input(1) and self.program.scalar(call.inputs[1]) == 0:
            trips = 0
        carried = list(call.inputs[2:])
        scans: list[list[str]] = [[] for _ in body.output[1 + len(carried) :]]
        for trip in range(int(trips)):
            count = f"{call.name}.trip{trip}"
            self.store(count, (), "int64", np.array(trip))
            cond = call.input(1) or f"{call.name}.true"
            if cond not in self.program.values:
                self.store(cond, (), "bool", np.array(True))
            given = dict(zip((info.name for info in body.input), (count, cond, *carried), strict=False))
            made = self.body(body, call, names, given, f"#{trip}")
            if self.program.scalar(made[0]) is None:
                raise self.program.error(
                    call, "an end that depends on the data", "a known number of trips", "Unroll it."
                )
            carried = made[1 : 1 + len(carried)]
            for scan, name in zip(scans, made[1 + len(carried) :], strict=True):
                scan.append(name)
            if self.program.scalar(made[0]) == 0:
                break
        for out, name in zip(call.outputs, carried, strict=False):
            if out:
                alias(self.program, call.name, out, name)
        for out, parts in zip(call.outputs[len(carried) :], scans, strict=False):
            if out:
                self.stack(call, out, parts)

    def stack(self, call: Call, out: str, parts: list[str]) -> None:
        """A scan output: the values of all trips, one behind the other."""
        first = self.program.values[parts[0]]
        self.program.values[out] = Value(out, (len(parts), *first.shape), first.dtype)
        self.program.calls.append(Call("Stack", f"{call.name}.{out}", tuple(parts), (out,)))

    def body(self, body: Any, call: Call, outer: dict[str, str], given: dict[str, str], mark: str) -> list[str]:
        """Add the nodes of a branch or of one trip; returns what its outputs are called here."""
        prefix = f"{call.name}{mark}/"
        names = {**outer, **given, "": f"@{call.name}{mark}"}
        for name in self.initializers(body, prefix):
            names[name] = prefix + name
        self.hints.update({info.name + names[""]: info for info in body.value_info if _typed(info)})
        self.nodes(body.node, names)
        return [names.get(info.name, info.name) for info in body.output]


def _typed(info: Any) -> bool:
    return info.type.WhichOneof("value") is not None


def _dims(info: Any) -> list[Any]:
    return list(info.type.tensor_type.shape.dim)
