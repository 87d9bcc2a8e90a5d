"""The values of tensors that do not depend on the inputs, or do in part: constants, lengths, masks.

Arrays of integers and booleans are known whole. In arrays of floats NaN stands for an element that is not known, so
one table serves the folding of constants and the search for masks (masks.py). Semantics are ONNX's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .program import Array, Call, Shape

LIMIT = 2**22
"""Elements of an array that is still worked out."""
MASKED = -1e4
"""A score this low gets no weight in a softmax: masks are -inf, the type's lowest number, or such."""

Fold = Callable[[Sequence[Any], dict[str, Any], Shape], Any]


def evaluate(call: Call, arrays: Sequence[Array | None], shapes: Sequence[Shape]) -> list[Array] | None:
    """The outputs of a call from its inputs (None: absent), or None if it isn't in the table or does not work out."""
    fold = TABLE.get(call.op)
    if fold is None or any(int(np.prod(shape, dtype=np.int64)) > LIMIT for shape in shapes):
        return None
    try:
        with np.errstate(all="ignore"):
            result = fold(arrays, call.attrs, shapes[0])
    except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError, AttributeError, KeyError):
        return None
    outputs = [np.asarray(a) for a in (result if isinstance(result, list) else [result])]
    if [a.shape for a in outputs[: len(shapes)]] != [tuple(s) for s in shapes]:
        return None
    return outputs


def _axes(given: Any, rank: int) -> tuple[int, ...]:
    return tuple(int(a) % rank for a in np.asarray(given).reshape(-1))


def _axes_of(a: Sequence[Any], attrs: dict[str, Any], at: int = 1) -> Any:
    """Axes from an input (new opsets) or the attribute (old ones)."""
    return a[at] if len(a) > at and a[at] is not None else attrs.get("axes")


def _squeeze(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.reshape(a[0], out)


def _slice(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    given = (
        [*a[1:], None, None, None, None][:4]
        if len(a) > 1
        else [attrs["starts"], attrs["ends"], attrs.get("axes"), None]
    )
    starts, ends = (np.asarray(x).reshape(-1).tolist() for x in given[:2])
    axes = range(len(starts)) if given[2] is None else _axes(given[2], a[0].ndim)
    steps = [1] * len(starts) if given[3] is None else np.asarray(given[3]).reshape(-1).tolist()
    index = [slice(None)] * a[0].ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step < 0 and end < -a[0].shape[axis]:
            end = None
        index[axis] = slice(start, end, step)
    return np.asarray(a[0][tuple(index)])


def _split(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> list[Array]:
    axis = attrs.get("axis", 0)
    sizes = a[1] if len(a) > 1 and a[1] is not None else attrs.get("split")
    if sizes is None:
        parts = attrs.get("num_outputs") or a[0].shape[axis] // out[axis]
        return np.split(a[0], range(out[axis], a[0].shape[axis], out[axis]), axis)[:parts]
    return np.split(a[0], np.cumsum(np.asarray(sizes).reshape(-1))[:-1], axis)


def _div(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    if a[0].dtype.kind in "iu" and a[1].dtype.kind in "iu":
        return np.asarray(np.trunc(a[0] / a[1]).astype(np.int64) if np.any((a[0] < 0) | (a[1] < 0)) else a[0] // a[1])
    return np.asarray(a[0] / a[1])


def _add(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    """A masked score stays masked, whatever unknown is added: masks only take away."""
    total = np.asarray(a[0] + a[1])
    if total.dtype.kind == "f":
        total = np.where(np.isnan(total) & ((a[0] <= MASKED) | (a[1] <= MASKED)), -np.inf, total)
    return total


def _logic(dominant: bool) -> Fold:
    def fold(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
        x, y = (np.asarray(v, np.float64) for v in a[:2])
        decided = (x == dominant) | (y == dominant)
        return _bools(np.where(decided, float(dominant), np.where(np.isnan(x) | np.isnan(y), np.nan, not dominant)))

    return fold


def _bools(x: Array) -> Array:
    return x if np.isnan(x).any() else x.astype(bool)


def _compare(test: Callable[[Any, Any], Any]) -> Fold:
    def fold(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
        result = np.asarray(test(a[0], a[1]))
        unknown = np.isnan(np.asarray(a[0], np.float64)) | np.isnan(np.asarray(a[1], np.float64))
        return np.where(unknown, np.nan, result) if unknown.any() else result

    return fold


def _where(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    c = np.asarray(a[0], np.float64)
    if not np.isnan(c).any():
        return np.asarray(np.where(c != 0, a[1], a[2]))
    x, y = (np.asarray(v, np.float64) for v in a[1:3])
    alike = (x == y) | ((x <= MASKED) & (y <= MASKED))
    return np.asarray(np.where(np.isnan(c), np.where(alike, x, np.nan), np.where(c != 0, x, y)))


def _not(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return _bools(1.0 - np.asarray(a[0], np.float64))


def _mul(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    """0 times whatever is 0, as far as finite numbers go."""
    product = np.asarray(a[0] * a[1])
    return np.where((a[0] == 0) | (a[1] == 0), 0.0, product) if product.dtype.kind == "f" else product


def _cast(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    to = attrs.get("to")
    if to == "bool":
        return _bools(np.where(np.isnan(a[0]), np.nan, a[0] != 0) if a[0].dtype.kind == "f" else a[0] != 0)
    if to in INTEGERS and not (a[0].dtype.kind == "f" and not np.isfinite(a[0]).all()):
        return np.asarray(a[0]).astype(np.int64)
    return np.asarray(a[0], np.float64)


INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "int4")


def _reduce(ufunc: Any) -> Fold:
    def fold(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
        axes = _axes_of(a, attrs)
        if axes is None and attrs.get("noop_with_empty_axes"):
            return np.asarray(a[0])
        over = None if axes is None or np.size(axes) == 0 else _axes(axes, a[0].ndim)
        return np.asarray(ufunc(a[0], axis=over, keepdims=bool(attrs.get("keepdims", 1))))

    return fold


def _trilu(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    k = int(np.asarray(a[1]).reshape(-1)[0]) if len(a) > 1 and a[1] is not None else 0
    rows, columns = a[0].shape[-2:]
    upper = bool(attrs.get("upper", 1))
    below = np.tri(rows, columns, k - 1 if upper else k, dtype=bool)
    return np.asarray(np.where(below != upper, a[0], np.zeros_like(a[0])))


def _gather(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.take(a[0], np.asarray(a[1]).astype(np.int64), axis=attrs.get("axis", 0))


def _gather_nd(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    if attrs.get("batch_dims"):
        raise ValueError
    return np.asarray(a[0][tuple(np.moveaxis(np.asarray(a[1]).astype(np.int64), -1, 0))])


def _index(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    """torch's x[i, :, j]: an index for each of `axes`."""
    where: list[Any] = [slice(None)] * a[0].ndim
    for axis, index in zip(attrs["axes"], a[1:], strict=True):
        where[axis] = index
    return np.asarray(a[0][tuple(where)])


def _constant_of_shape(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    value = np.asarray(attrs.get("value", np.zeros(1, np.float64))).reshape(-1)[0]
    return np.full(out, value)


def _range(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    start, stop, step = (np.asarray(x).reshape(-1)[0] for x in a[:3])
    return np.arange(start, stop, step)


def _eye(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.eye(out[0], out[1], attrs.get("k", 0))


def _cumsum(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    if attrs.get("exclusive") or attrs.get("reverse"):
        raise ValueError
    return np.cumsum(a[0], axis=int(np.asarray(a[1]).reshape(-1)[0]))


def _each(f: Callable[..., Any]) -> Fold:
    return lambda a, attrs, out: f(*a)


def _all(f: Callable[[Any, Any], Any]) -> Fold:
    def fold(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Any:
        result = a[0]
        for other in a[1:]:
            result = f(result, other)
        return result

    return fold


def _same(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.asarray(a[0])


def _reshape(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.reshape(a[0], out)


def _transpose(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.transpose(a[0], attrs.get("perm"))


def _expand(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.broadcast_to(a[0], out)


def _tile(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.tile(a[0], np.asarray(a[1]).tolist())


def _concat(a: Sequence[Any], attrs: dict[str, Any], out: Shape) -> Array:
    return np.concatenate(list(a), axis=attrs.get("axis", 0))


TABLE: dict[str, Fold] = {
    "Identity": _same, "Dropout": _same, "Cast": _cast, "CastLike": _same,
    "Reshape": _reshape, "Flatten": _reshape, "Squeeze": _squeeze, "Unsqueeze": _squeeze,
    "Transpose": _transpose, "Expand": _expand, "Tile": _tile, "Concat": _concat, "Slice": _slice, "Split": _split,
    "Gather": _gather, "GatherND": _gather_nd, "Index": _index, "Trilu": _trilu,
    "ConstantOfShape": _constant_of_shape, "Range": _range, "EyeLike": _eye, "CumSum": _cumsum,
    "Add": _add, "Sub": _each(np.subtract), "Mul": _mul, "Div": _div, "Neg": _each(np.negative), "Abs": _each(np.abs),
    "Mod": _each(np.mod), "Pow": _each(np.power), "Sqrt": _each(np.sqrt), "Reciprocal": _each(lambda x: 1 / x),
    "Exp": _each(np.exp), "Cos": _each(np.cos), "Sin": _each(np.sin), "Floor": _each(np.floor),
    "Ceil": _each(np.ceil), "Round": _each(np.round), "Sign": _each(np.sign),
    "Min": _all(np.minimum), "Max": _all(np.maximum),
    "Equal": _compare(np.equal), "Less": _compare(np.less), "LessOrEqual": _compare(np.less_equal),
    "Greater": _compare(np.greater), "GreaterOrEqual": _compare(np.greater_equal),
    "And": _logic(False), "Or": _logic(True), "Not": _not, "Where": _where,
    "ReduceSum": _reduce(np.sum), "ReduceProd": _reduce(np.prod), "ReduceMax": _reduce(np.max),
    "ReduceMin": _reduce(np.min), "ReduceMean": _reduce(np.mean),
}  # fmt: skip
