"""ATen operators whose arguments differ from ONNX's in more than name: one function each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .evaluate import LIMIT
from .export import Reader
from .program import Shape
from .record import alias, store

Build = Callable[[Reader, Any, list[str], list[tuple[Shape, str]]], None]


def _given(node: Any, at: int, name: str, default: Any = None) -> Any:
    return node.kwargs.get(name, node.args[at] if len(node.args) > at else default)


def _product(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "MatMul", node.args[:2], outs, types)


def _linear(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    bias = _given(node, 2, "bias")
    r.add(node, "Gemm", [*node.args[:2], *([bias] if bias is not None else [])], outs, types, transB=1)


def _addmm(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "Gemm", [node.args[1], node.args[2], node.args[0]], outs, types)


def _einsum(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    equation = node.args[0]
    if "->" not in equation:
        letters = sorted({c for c in equation if equation.count(c) == 1 and c.isalpha()})
        equation = f"{equation}->{''.join(letters)}"
    r.add(node, "Einsum", node.args[1], outs, types, equation=equation)


def _permute(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    rank = len(types[0][0])
    base = str(node.target._opname)
    order = list(range(rank))
    if base == "permute":
        order = [int(a) % rank for a in node.args[1]]
    elif base in ("t", "numpy_T", "adjoint", "mT"):
        order = order[::-1] if rank <= 2 else [*order[:-2], order[-1], order[-2]]
    else:
        a, b = int(node.args[1]) % rank, int(node.args[2]) % rank
        order[a], order[b] = order[b], order[a]
    r.add(node, "Transpose", node.args[:1], outs, types, perm=order)


def _slice(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    axis, start, end, step = (r.number(_given(node, i, n, d)) for i, n, d in
                              ((1, "dim", 0), (2, "start", 0), (3, "end", None), (4, "step", 1)))  # fmt: skip
    given: list[str] = []
    for number in (start or 0, 2**62 if end is None else end, axis or 0, step or 1):
        name = f"{node.name}.{len(given)}"
        given.append(store(r.program, name, (1,), "int64", np.array([number])))
    r.add(node, "Slice", [node.args[0], *given], outs, types)


def _select(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "Gather", [node.args[0], node.args[2]], outs, types, axis=int(node.args[1]))


def _split(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    axis = int(_given(node, 2, "dim", 0))
    rank = len(types[0][0])
    sizes = [shape[axis % rank] for shape, _ in types]
    r.add(node, "Split", node.args[:1], outs, types, axis=axis, split=sizes)


def _unbind(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    for i, (out, kind) in enumerate(zip(outs, types, strict=True)):
        r.add(node, "Gather", [node.args[0], i], [out], [kind], axis=int(_given(node, 1, "dim", 0)))


def _concat(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    axis = int(_given(node, 1, "dim", 0))
    stacked = str(node.target._opname) == "stack"
    r.add(node, "Stack" if stacked else "Concat", node.args[0], outs, types, axis=axis)


def _softmax(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    op = "LogSoftmax" if "log" in str(node.target) else "Softmax"
    r.add(node, op, node.args[:1], outs, types, axis=int(_given(node, 1, "dim", -1)))


def _norm(op: str, gamma: int) -> Build:
    def build(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
        weight, bias = _given(node, gamma, "weight"), _given(node, gamma + 1, "bias") if op[0] == "L" else None
        axis = -len(node.args[1])
        if weight is None:
            size = r.program.shape(r.value(node, node.args[0]))[axis:]
            weight = store(r.program, f"{node.name}.ones", size, types[0][1], None)
        r.add(node, op, [node.args[0], weight, *([bias] if bias is not None else [])], outs[:1], types[:1], axis=axis)

    return build


def _embedding(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "Gather", node.args[:2], outs, types, axis=0)


def _index_select(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "Gather", [node.args[0], node.args[2]], outs, types, axis=int(node.args[1]))


def _index(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    """x[i]: rows of the first axis; other forms pick elements."""
    given = node.args[1]
    if len(given) == 1 and given[0] is not None and types[0][0] != () and r.kind(given[0]) != "bool":
        return r.add(node, "Gather", [node.args[0], given[0]], outs, types, axis=0)
    axes = [i for i, index in enumerate(given) if index is not None]
    return r.add(node, "Index", [node.args[0], *(i for i in given if i is not None)], outs, types, axes=axes)


def _attention(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    flash = "flash" in str(node.target)
    mask = node.kwargs.get("attn_mask") if flash else _given(node, 3, "attn_mask")
    causal = _given(node, 4, "is_causal", False) if flash else _given(node, 5, "is_causal", False)
    inputs = [*node.args[:3], *([mask] if mask is not None else [])]
    r.add(node, "Attention", inputs, outs[:1], types[:1], is_causal=int(bool(causal)))


def _tri(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    upper = int(str(node.target._opname) == "triu")
    r.add(node, "Trilu", [node.args[0], _given(node, 1, "diagonal", 0)], outs, types, upper=upper)


def _arange(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    numbers = [r.number(a) for a in node.args]
    data = np.arange(*numbers) if types[0][0][0] <= LIMIT else None
    store(r.program, outs[0], *types[0], data)


def _grouped(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    """Rows, sorted by expert, against stacked experts."""
    r.add(node, "GroupedMatMul", [*node.args[:2], _given(node, 2, "offs")], outs, types)


def _diff(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    """x[1:] - x[:-1] along one axis; of more, what is put before it joins first."""
    x, axis = node.args[0], int(_given(node, 2, "dim", -1))
    source = r.value(node, x)
    parts = [p for p in (_given(node, 3, "prepend"), x, _given(node, 4, "append")) if p is not None]
    if len(parts) > 1:
        joined = [r.value(node, p) for p in parts]
        shapes = [r.program.shape(n) for n in joined]
        at = axis % len(shapes[0])
        whole = (*shapes[0][:at], sum(s[at] for s in shapes), *shapes[0][at + 1 :])
        r.add(node, "Concat", joined, [f"{node.name}.joined"], [(whole, types[0][1])], axis=axis)
        source = f"{node.name}.joined"
    ends = []
    for name, start, stop in (("upper", 1, 2**62), ("lower", 0, -1)):
        given = [store(r.program, f"{node.name}.{name}{i}", (1,), "int64", np.array([n]))
                 for i, n in enumerate((start, stop, axis))]  # fmt: skip
        ends.append(f"{node.name}.{name}")
        r.add(node, "Slice", [source, *given], ends[-1:], types)
    r.add(node, "Sub", ends, outs, types)


def _topk(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    axis = int(_given(node, 2, "dim", -1))
    r.add(node, "TopK", node.args[:1], outs, types, axis=axis)


def _sort(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    r.add(node, "Hardmax", node.args[:1], outs[:1], types[:1])
    for out in outs[1:]:
        alias(r.program, node.name, out, outs[0])


def _conv(r: Reader, node: Any, outs: list[str], types: list[tuple[Shape, str]]) -> None:
    at = {"convolution": 8}.get(str(node.target._opname), 6)
    bias = _given(node, 2, "bias")
    r.add(node, "Conv", [*node.args[:2], *([bias] if bias is not None else [])], outs, types,
          group=int(_given(node, at, "groups", 1)))  # fmt: skip


SPECIAL: dict[str, Build] = {
    "mm": _product, "bmm": _product, "matmul": _product, "linear": _linear, "addmm": _addmm, "baddbmm": _addmm,
    "einsum": _einsum, "permute": _permute, "transpose": _permute, "t": _permute, "numpy_T": _permute, "mT": _permute,
    "slice": _slice, "select": _select, "split": _split, "split_with_sizes": _split, "chunk": _split, "unbind": _unbind,
    "cat": _concat, "concat": _concat, "stack": _concat, "softmax": _softmax, "_softmax": _softmax,
    "log_softmax": _softmax, "_log_softmax": _softmax, "layer_norm": _norm("LayerNormalization", 2),
    "native_layer_norm": _norm("LayerNormalization", 2), "rms_norm": _norm("RMSNormalization", 2),
    "_fused_rms_norm": _norm("RMSNormalization", 2), "embedding": _embedding, "index_select": _index_select,
    "index": _index, "scaled_dot_product_attention": _attention,
    "_scaled_dot_product_flash_attention_for_cpu": _attention, "triu": _tri, "tril": _tri, "arange": _arange,
    "_grouped_mm": _grouped, "grouped_mm": _grouped, "diff": _diff, "topk": _topk, "sort": _sort,
    "conv1d": _conv, "conv2d": _conv, "convolution": _conv,
}  # fmt: skip
