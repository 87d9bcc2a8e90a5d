"""Experts: stored stacks of matrices of which a gather, or a router, picks one for each row."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..routing import expert_loads
from .lower import Lowering, Ref
from .program import Call, Shape, Value
from .tables import VIEWS


def experts(low: Lowering, call: Call, picked: str, x: str, size: tuple[int, int, int], out: str) -> None:
    """Each row against the expert that was picked for it: stored experts are read once, however many rows pick them."""
    rows, n, k = size
    stack = low.values[low.origin[f"picked:{_source(low, picked)}"]]
    expert_rows(low, call, stack, low.refs[picked].gathered, low.ref(x), (rows, n, k), out)


def grouped(low: Lowering, call: Call) -> None:
    """Rows that are sorted by expert, each group against its expert's stored matrix [k, n]."""
    x, stack, ends = call.inputs
    _, k, n = low.values[stack].shape
    rows = low.values[x].elements // k
    if not low.values[stack].stored:
        todo = "Give the experts as parameters."
        raise low.program.error(call, "experts that are computed", "stored ones", todo)
    expert_rows(low, call, low.values[low.values[stack].root], ends, low.ref(x), (rows, n, k), call.outputs[0])


def expert_rows(
    low: Lowering,
    call: Call,
    stack: Value,
    index: str,
    x: Ref,
    size: tuple[int, int, int],
    out: str,
    bias: str = "",
    suffix: str = "",
    dtype: str | None = None,
) -> None:
    """`expert_linear` of so many pairs of token and expert, the experts drawn as a model's own graph draws them."""
    rows, n, k = size
    many = stack.shape[0]
    shape = (many, n, k)
    node = low.stored(stack.name, shape, "expert", dtype)
    top_k = _choices(low, index)
    loads = expert_loads("uniform", many, top_k, max(rows // top_k, 1), 0, 0)
    inputs: dict[str, tuple[Ref, Shape]] = {
        "x": (x, (math.prod(x.shape) // k, k)),
        "chosen": (low.ref(index), (max(rows // top_k, 1), top_k)),
        "weight": (Ref(node, shape), shape),
    }
    if bias:
        inputs["bias"] = (Ref(low.stored(bias, (many, n), "expert"), (many, n)), (many, n))
    note = f"{rows} rows, each with one of {many} stored experts; {len(loads)} of them are read (drawn at random)"
    low.emit(call, "expert_linear", inputs, {"out": (out, (rows, n))}, note, suffix, loads=loads)


def _choices(low: Lowering, index: str) -> int:
    """Experts per token: what a TopK behind views gives; else 1."""
    while (maker := low.made.get(index)) is not None and maker.op in (*VIEWS, "TopK"):
        if maker.op == "TopK":
            return low.values[index].shape[-1]
        index = maker.inputs[0]
    return 1


def _source(low: Lowering, name: str) -> str:
    """The gather behind views of its result."""
    while f"picked:{name}" not in low.origin:
        name = low.made[name].inputs[0]
    return name


LOWER: dict[str, Callable[[Lowering, Call], None]] = {"GroupedMatMul": grouped}
