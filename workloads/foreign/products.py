"""Matrix products: with stored weights they are `linear` (tables: `embedding`), between activations `matmul`."""

from __future__ import annotations

import math
from collections.abc import Callable

from .contrib import MS
from .experts import experts
from .formats import quantised
from .lower import Lowering, Ref, flat
from .program import Call, Shape, Value


def matmul(low: Lowering, call: Call) -> None:
    """a [.., M, K] x b [.., K, N], and a stored row that is added."""
    turns = bool(call.attr("transA")), bool(call.attr("transB"))
    product(low, call, call.inputs[0], call.inputs[1], *turns, bias=call.input(2))


def gemm(low: Lowering, call: Call) -> None:
    """alpha a b + beta c, each of a and b turned or not."""
    turns = bool(call.attr("transA")), bool(call.attr("transB"))
    bias = call.input(2) if call.attr("beta", 1.0) != 0 else ""
    product(low, call, call.inputs[0], call.inputs[1], *turns, bias=bias)


def product(
    low: Lowering, call: Call, a: str, b: str, turn_a: bool = False, turn_b: bool = False, bias: str = "", out: str = ""
) -> None:
    """One product in whatever form it fits: outer, linear (weight on either side), of picked experts, or batched."""
    out = out or call.outputs[0]
    va, vb = low.values[a], low.values[b]
    sa, sb = _turned(va.shape, turn_a, 0), _turned(vb.shape, turn_b, 1)
    (m, k), n = sa[-2:], sb[-1]
    if len(va.shape) == 1:
        m = 1
    if len(vb.shape) == 1:
        n = 1
    lead = _broadcast(sa[:-2], sb[:-2])
    if low.values[out].elements == 0:
        return low.row(call, "nothing", "its result has no elements")
    if k == 1 and not _gathered(low, a) and not _gathered(low, b):
        return _outer(low, call, a, b, out, bias)
    for mine, other, size, swapped in ((vb, a, n, False), (va, b, m, True)):
        if _gathered(low, mine.name) and math.prod(lead) == low.values[low.refs[mine.name].gathered].elements:
            return experts(low, call, mine.name, other, (math.prod(lead) * (m * n // size), size, k), out)
        if mine.stored and math.prod(mine.shape) == k * size and not low.values[other].stored:
            rows = math.prod(lead) * (m if not swapped else n)
            return linear(low, call, other, mine, (rows, size, k), out, bias)
    refs = low.ref(a), low.ref(b)
    count = math.prod(lead)
    if not low.is_activation(refs[0]):  # the stored one is the second: the product is turned
        refs, m, n = refs[::-1], n, m
    inputs = {"a": (refs[0], (count, m, k)), "b": (refs[1], (count, k, n))}
    low.emit(call, "matmul", inputs, {"out": (before_bias(low, out, bias), (count, m, n))})
    if bias:
        add_bias(low, call, out, bias)
    return None


def _turned(shape: Shape, turned: bool, axis: int) -> Shape:
    """A matrix of at least two dimensions, turned if asked for."""
    if len(shape) == 1:
        return (1, shape[0]) if axis == 0 else (shape[0], 1)
    return (*shape[:-2], shape[-1], shape[-2]) if turned else shape


def _broadcast(one: Shape, two: Shape) -> Shape:
    rank = max(len(one), len(two))
    full = [(1,) * (rank - len(s)) + s for s in (one, two)]
    return tuple(max(x, y) for x, y in zip(*full, strict=True))


def _gathered(low: Lowering, name: str) -> bool:
    return name in low.refs and bool(low.refs[name].gathered)


def before_bias(low: Lowering, out: str, bias: str) -> str:
    """The value before a bias is added."""
    if not bias:
        return out
    raw = f"{out}.product"
    low.values[raw] = Value(raw, low.values[out].shape, low.values[out].dtype)
    return raw


def add_bias(low: Lowering, call: Call, out: str, bias: str) -> None:
    """Add a bias that does not go with the product."""
    shape = flat(low.values[out].shape)
    inputs = {"a": (low.refs[f"{out}.product"], shape), "b": (low.ref(bias), shape)}
    low.emit(call, "add", inputs, {"out": (out, shape)}, suffix=".bias")


def _outer(low: Lowering, call: Call, a: str, b: str, out: str, bias: str) -> None:
    shape = flat(low.values[out].shape)
    refs = sorted((low.ref(a), low.ref(b)), key=lambda ref: not low.is_activation(ref))
    inputs = {"a": (refs[0], shape), "b": (refs[1], shape)}
    low.emit(call, "mul", inputs, {"out": (before_bias(low, out, bias), shape)}, "sums of one term: an outer product")
    if bias:
        add_bias(low, call, out, bias)


def linear(
    low: Lowering,
    call: Call,
    x: str,
    weight: Value,
    size: tuple[int, int, int],
    out: str,
    bias: str = "",
    dtype: str | None = None,
    note: str = "",
    suffix: str = "",
) -> None:
    """rows x n x k against a stored weight of n*k elements; a stored bias of n goes with it, any other is an add."""
    rows, n, k = size
    node = low.stored(weight.name, (n, k), dtype=dtype or quantised(low, weight, (n, k)))
    ref = low.ref(x)
    inputs: dict[str, tuple[Ref, Shape]] = {"x": (ref, (rows, k)), "weight": (Ref(node, (n, k)), (n, k))}
    with_it = bool(bias) and low.values[bias].stored and low.values[bias].elements == n
    if with_it:
        inputs["bias"] = (Ref(low.stored(bias, (n,)), (n,)), (n,))
    made = out if with_it or not bias else before_bias(low, out, bias)
    if low.graph.nodes[node].get("tied_to"):
        note = "; ".join(filter(None, (note, f"the table {low.graph.nodes[node]['tied_to']!r} again: stored once")))
    low.emit(call, "linear", inputs, {"out": (made, (rows, n))}, note, suffix)
    if bias and not with_it:
        add_bias(low, call, out, bias)


def lookup(
    low: Lowering, call: Call, table: Value, rows: int, width: int, out: str, dtype: str | None = None, suffix: str = ""
) -> None:
    """Rows of a table."""
    shape = (table.elements // width, width)
    node = low.stored(table.name, shape, "embedding", dtype)
    kept = low.graph.nodes[node]
    if kept["tensor"] != "embedding":  # it was a weight first: rows are read of that
        ref = Ref(node, shape)
        low.emit(call, "rearrange", {"a": (ref, (rows * width,))}, {"out": (out, (rows, width))}, "rows of a weight")
        return
    low.emit(
        call,
        "embedding",
        {"weight": (Ref(node, shape), shape)},
        {"out": (out, (rows, width))},
        rows=rows,
        suffix=suffix,
    )


def einsum(low: Lowering, call: Call) -> None:
    """Two operands: their common letters that the result lacks are summed over. One: a view or a sum."""
    equation = str(call.attrs["equation"]).replace(" ", "")
    terms, arrow, result = equation.partition("->")
    operands = terms.split(",")
    if "." in equation or not arrow or len(operands) > 2 or any(len(set(t)) < len(t) for t in operands):
        found, expected = f"the equation {equation!r}", "one or two operands, each letter once in each, no ellipsis"
        raise low.program.error(call, found, expected, "Write it as MatMul, Transpose and ReduceSum.")
    out = call.outputs[0]
    if len(operands) == 1:
        if set(operands[0]) == set(result):
            return low.view(call)
        return low.passing(call, low.values[call.inputs[0]].elements, 0)
    (one, two), names = operands, call.inputs
    sizes = {
        c: s for term, i in zip(operands, names, strict=True) for c, s in zip(term, low.values[i].shape, strict=True)
    }
    summed = [c for c in sizes if c not in result]
    if any(c not in one or c not in two for c in summed) or not summed:
        if not summed:
            return low.pointwise(call, 1, 0, "no sum: a product element by element")
        found = f"the equation {equation!r}, which sums one operand by itself"
        raise low.program.error(call, found, "sums over letters of both operands", "Put a ReduceSum before it.")
    both = [c for c in one if c in two and c in result]
    k, lead = (math.prod(sizes[c] for c in cs) for cs in (summed, both))
    m = math.prod(sizes[c] for c in one if c not in two)
    n = math.prod(sizes[c] for c in two if c not in one)
    for weight, x, width, rows in ((names[1], names[0], n, m), (names[0], names[1], m, n)):
        if low.values[weight].stored and lead == 1 and not low.values[x].stored:
            return linear(low, call, x, low.values[weight], (rows, width, k), out)
    refs = low.ref(names[0]), low.ref(names[1])
    if not low.is_activation(refs[0]):
        refs, m, n = refs[::-1], n, m
    inputs = {"a": (refs[0], (lead, m, k)), "b": (refs[1], (lead, k, n))}
    low.emit(call, "matmul", inputs, {"out": (out, (lead, m, n))})
    return None


def gather(low: Lowering, call: Call) -> None:
    """Rows of a stored table, experts picked from a stored stack, or elements of an activation."""
    source, index = low.values[call.inputs[0]], low.values[call.inputs[1]]
    axis = call.attr("axis", 0) if call.op == "Gather" else 0
    whole = call.op == "Gather" or (index.shape[-1] == 1 and not call.attr("batch_dims"))
    if call.op == "Gather" and index.stored and not source.stored and index.elements == 1:
        return low.view(call)
    if not source.stored or axis % max(len(source.shape), 1) or not whole:
        return low.copy(call)
    picks, out = index.elements, call.outputs[0]
    if len(source.shape) >= 3:
        low.refs[out] = Ref("", low.values[out].shape, index.name)
        low.origin[f"picked:{out}"] = source.name
        return low.row(call, "a view", f"picks among {source.shape[0]} stored tensors: read where they are")
    width = source.elements // source.shape[0]
    return lookup(low, call, source, picks, width, out)


LOWER: dict[str, Callable[[Lowering, Call], None]] = {
    "MatMul": matmul,
    f"{MS}FusedMatMul": matmul,
    "Gemm": gemm,
    "Einsum": einsum,
    "Gather": gather,
    "GatherND": gather,
}
