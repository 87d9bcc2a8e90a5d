"""torch.export program -> Program: ATen operators in ONNX's words (aten.py), shapes as the exporter noted them."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import StallscopeError
from ..checks import problem
from . import aten
from .evaluate import LIMIT
from .lengths import Lengths
from .program import Array, Call, Program, Shape, Value
from .record import record, store

DTYPES = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "int64": "int64",
    "int32": "int32",
    "int16": "int16",
    "int8": "int8",
    "uint8": "uint8",
    "bool": "bool",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
}


def read_export(path: Path, dims: Mapping[str, int]) -> Program:
    """Read a .pt2 file. Raises StallscopeError if torch is missing, or for a file that torch.export did not write."""
    try:
        import torch
    except ImportError:
        found = "a torch.export program, and no torch to read it"
        raise problem(str(path), found, "the torch package", "pip install 'stallscope[torch]'") from None
    try:
        program = torch.export.load(str(path))
    except Exception as error:
        if isinstance(error, MemoryError):
            raise
        reason = " ".join(str(error).split())[:160]
        todo = "Save it with torch.export.save(program, path)."
        raise problem(str(path), f"a file that torch.export cannot load ({reason})", "a .pt2 program", todo) from None
    return program_of(program, path.stem, str(path), dims)


def program_of(exported: Any, name: str, source: str, dims: Mapping[str, int]) -> Program:
    """The program of a torch.export.ExportedProgram. Raises StallscopeError for anything else."""
    if not hasattr(exported, "graph_signature") or not hasattr(exported, "graph"):
        todo = "Give torch.export.export(module, args)."
        raise problem(source, f"a {type(exported).__name__}", "an ExportedProgram", todo)
    return Reader(exported, Program(name, source), Lengths(source, dims)).read()


class Reader:
    """The state of reading one program. `names`: fx node -> value, or a list of values of one that gives several."""

    def __init__(self, exported: Any, program: Program, lengths: Lengths) -> None:
        self.exported, self.program, self.lengths = exported, program, lengths
        self.names: dict[Any, Any] = {}
        self.count = 0

    def read(self) -> Program:
        """The whole program."""
        nodes = list(self.exported.graph.nodes)
        specs = {spec.arg.name: spec for spec in self.exported.graph_signature.input_specs if hasattr(spec.arg, "name")}
        for node in nodes:
            if node.op == "placeholder":
                self.placeholder(node, specs.get(node.name))
        self.lengths.check()
        for node in nodes:
            if node.op == "call_function":
                self.function(node)
            elif node.op not in ("placeholder", "output", "get_attr"):
                raise self.error(node, f"a node of kind {node.op!r}", "calls of ATen operators")
        for out in next(n for n in nodes if n.op == "output").args[0]:
            if out is not None and isinstance(self.names.get(out), str):
                self.program.outputs.append(self.names[out])
        if not self.program.calls:
            raise problem(self.program.source, "a program without operators", "at least one", "Export a module.")
        return self.program

    def error(self, node: Any, found: str, expected: str, todo: str = "Add a row (docs/graphs.md).") -> StallscopeError:
        """The one error, with the node and the module that it comes from."""
        stack = node.meta.get("nn_module_stack") or {}
        module = next(reversed([str(v[0]) for v in stack.values()]), "")
        where = f"{self.program.source}: node {node.name!r}" + (f" in {module}" if module else "")
        return problem(where, found, expected, todo)

    def placeholder(self, node: Any, spec: Any) -> None:
        """An input, a parameter, or a buffer whose numbers are known."""
        value = node.meta.get("val")
        if value is None or not hasattr(value, "shape"):
            return
        kind = spec.kind.name if spec is not None else "USER_INPUT"
        shape, dtype = self.shape(value, f"input {node.name!r}"), self.dtype(value)
        self.names[node] = node.name
        if kind == "USER_INPUT":
            self.program.values[node.name] = Value(node.name, shape, dtype)
            self.program.inputs.append(node.name)
        else:
            name = str(spec.target or node.name)
            self.names[node] = name
            if name not in self.program.values:
                store(self.program, name, shape, dtype, self.numbers(name) if kind != "PARAMETER" else None)

    def numbers(self, name: str) -> Array | None:
        """A buffer or constant as numbers, if it is there and not too large."""
        tensor = self.exported.state_dict.get(name)
        tensor = self.exported.constants.get(name) if tensor is None else tensor
        if tensor is None or not hasattr(tensor, "numel") or tensor.numel() > LIMIT or "Fake" in type(tensor).__name__:
            return None
        try:
            plain = tensor.detach().cpu()
            plain = plain.double() if plain.is_floating_point() else plain
            return np.asarray(plain.numpy())
        except (RuntimeError, TypeError, ValueError):
            return None

    def shape(self, value: Any, where: str = "") -> Shape:
        """A shape in numbers; what symbolic lengths have none is remembered."""
        return tuple(self.length(size, where) for size in value.shape)

    def length(self, size: Any, where: str = "") -> int:
        """A number, or what a symbolic length stands for."""
        if isinstance(size, int) and not hasattr(size, "node"):
            return size
        text = str(getattr(getattr(size, "node", size), "expr", size))
        return self.lengths.find(text, where) or 0

    def dtype(self, value: Any) -> str:
        """An element type in our words."""
        return DTYPES.get(str(value.dtype).removeprefix("torch."), "")

    def number(self, value: Any) -> Any:
        """An argument as a number: fx nodes and symbolic lengths by what they stand for."""
        if hasattr(value, "meta"):
            value = value.meta.get("val")
        if value is None or isinstance(value, bool | float | str):
            return value
        return self.length(value)

    def value(self, node: Any, argument: Any) -> str:
        """The name of an argument that is a tensor; a number becomes a stored scalar."""
        if argument is None:
            return ""
        if hasattr(argument, "meta") and isinstance(self.names.get(argument), str):
            return str(self.names[argument])
        number = self.number(argument)
        if number is None or isinstance(number, str | list):
            raise self.error(node, f"an argument {str(argument)[:40]!r}", "a tensor or a number")
        self.count += 1
        data = np.array(number)
        kind = "bool" if data.dtype.kind == "b" else "int64" if data.dtype.kind == "i" else "fp32"
        return store(self.program, f"{node.name}.number{self.count}", (), kind, data)

    def kind(self, argument: Any) -> str:
        """Element type of an argument that is a tensor."""
        return self.program.values[self.names[argument]].dtype

    def function(self, node: Any) -> None:
        """Add one call."""
        if node.target is operator.getitem:
            source = self.names.get(node.args[0])
            if isinstance(source, list):
                self.names[node] = source[node.args[1]]
            return
        value = node.meta.get("val")
        base = str(getattr(node.target, "_opname", getattr(node.target, "__name__", node.target)))
        from .aten_calls import SPECIAL

        base = _plain(base.partition(".")[0], SPECIAL)
        if base in aten.NOTHING or value is None or base.startswith("sym_") or not _tensors(value):
            return
        if self.scope(node) not in ("aten", "prims", ""):
            raise self.unknown(node)
        tensors = _tensors(value)
        outs = [node.name] if not isinstance(value, tuple | list) else [f"{node.name}.{i}" for i in range(len(tensors))]
        self.names[node] = outs[0] if not isinstance(value, tuple | list) else outs
        types = [(self.shape(t), self.dtype(t)) for t in tensors]
        build = SPECIAL.get(base)
        if build is not None:
            build(self, node, outs, types)
        elif base in aten.VIEWS:
            op = aten.VIEWS[base]
            attrs = {"to": types[0][1]} if op == "Cast" else {}
            self.add(node, op, [node.args[0]], outs[:1], types[:1], **attrs)
        elif base in aten.ELEMENTWISE:
            self.elementwise(node, base, outs, types)
        elif base in aten.REDUCTIONS:
            axes = self.axes(node, 1)
            keep = int(bool(node.kwargs.get("keepdim", node.args[2] if len(node.args) > 2 else False)))
            self.add(node, aten.REDUCTIONS[base], [node.args[0]], outs, types, axes=axes, keepdims=keep)
        elif base in aten.COPIES:
            inputs = [a for a in _flat(node.args) if hasattr(a, "meta") and isinstance(self.names.get(a), str)]
            self.add(node, aten.COPIES[base], inputs, outs, types)
        elif base in aten.MADE:
            number = aten.MADE[base]
            if number is None:
                number = self.number(
                    node.kwargs.get("fill_value", node.args[0 if base == "scalar_tensor" else 1 + (base == "new_full")])
                )
            data = np.full(types[0][0], number) if np.prod(types[0][0], dtype=np.int64) <= LIMIT else None
            store(self.program, outs[0], *types[0], data)
        else:
            raise self.unknown(node)

    def scope(self, node: Any) -> str:
        """The library of an operator."""
        return str(getattr(node.target, "namespace", ""))

    def unknown(self, node: Any) -> StallscopeError:
        """The error for an operator that is in no table."""
        todo = "Try program.run_decompositions(), or add a row (docs/graphs.md)."
        return self.error(node, f"the operator {str(node.target)!r}, which is not known", "one that is mapped", todo)

    def add(
        self, node: Any, op: str, inputs: Sequence[Any], outs: list[str], types: list[tuple[Shape, str]], **attrs: Any
    ) -> None:
        """Record a call of an operator in ONNX's words."""
        names = tuple(i if isinstance(i, str) else self.value(node, i) for i in inputs)
        record(self.program, Call(op, node.name, names, tuple(outs), attrs), types)

    def axes(self, node: Any, at: int) -> list[int] | None:
        """Axes of a reduction: an argument that is a number, a list, or nothing (all)."""
        given = node.kwargs.get("dim", node.args[at] if len(node.args) > at else None)
        if given is None:
            return None
        return [int(a) for a in given] if isinstance(given, list | tuple) else [int(given)]

    def elementwise(self, node: Any, base: str, outs: list[str], types: list[tuple[Shape, str]]) -> None:
        """Element by element, with torch's orders of arguments and its alpha."""
        many = {"clamp": 3, "where": 3, "masked_fill": 3}.get(base, 2)
        arguments = [a for a in node.args[:many] if not isinstance(a, str)]
        single = ("gelu", "softplus", "elu", "leaky_relu", "neg", "round")
        if base in single:
            arguments = arguments[:1]
        if base in ("softplus", "elu", "leaky_relu", "clamp"):
            arguments = arguments[:1]
        alpha = node.kwargs.get("alpha", 1)
        if alpha != 1:
            scaled = f"{node.name}.scaled"
            shape = self.program.shape(self.value(node, arguments[1])) if hasattr(arguments[1], "meta") else ()
            self.add(node, "Mul", [arguments[1], alpha], [scaled], [(shape, types[0][1])])
            arguments[1] = scaled
        op = aten.ELEMENTWISE[base]
        if base == "rsub":
            arguments = arguments[::-1]
        if base == "square":
            return self.add(node, "Mul", [arguments[0]] * 2, outs, types)
        if base == "ne":
            same = f"{node.name}.same"
            self.add(node, "Equal", arguments, [same], [(types[0][0], "bool")])
            return self.add(node, "Not", [same], outs, types)
        if base == "masked_fill":
            return self.add(node, "Where", [arguments[1], arguments[2], arguments[0]], outs, types)
        return self.add(node, op, arguments, outs, types)


def _plain(base: str, special: Mapping[str, Any]) -> str:
    """`__and__` is and, `add_` (in place) add."""
    known = (special, aten.VIEWS, aten.ELEMENTWISE, aten.REDUCTIONS, aten.COPIES, aten.MADE)
    bare = base.strip("_") if base.startswith("__") else base.rstrip("_")
    return bare if not any(base in table for table in known) and any(bare in table for table in known) else base


def _tensors(value: Any) -> list[Any]:
    """The tensors of what a node gives."""
    return [t for t in (value if isinstance(value, tuple | list) else [value]) if hasattr(t, "dtype")]


def _flat(arguments: Any) -> list[Any]:
    return [x for a in arguments for x in (_flat(a) if isinstance(a, list | tuple) else [a])]
