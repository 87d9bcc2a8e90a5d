"""Convolutions are products of patches; pooling is a pass over windows."""

from __future__ import annotations

import math
from collections.abc import Callable

from .lower import Lowering, flat
from .products import add_bias, before_bias, linear
from .program import Call, Value


def conv(low: Lowering, call: Call) -> None:
    """A convolution is a product of patches: k are the inputs of one output. One group of one channel: elementwise."""
    at = 3 if call.op == "QLinearConv" else 1
    x, weight, out = low.values[call.inputs[0]], low.values[call.inputs[at]], low.values[call.outputs[0]]
    n, taps, groups = weight.shape[0], math.prod(weight.shape[1:]), int(call.attr("group", 1))
    rows = out.elements // n
    bias = call.input({"QLinearConv": 8, "ConvInteger": 9}.get(call.op, 2))
    if groups == 1:
        return linear(low, call, x.name, weight, (rows, n, taps), out.name, bias, note="patches of the input")
    shape = flat(out.shape)
    if weight.shape[1] == 1:
        inputs = {"a": (low.ref(x.name), low.graph.nodes[low.ref(x.name).tensor]["shape"])}
        for role, name in (("b", weight.name), ("c", bias)):
            if name:
                ref = low.ref(name)
                inputs[role] = (ref, low.graph.nodes[ref.tensor]["shape"])
        low.emit(
            call,
            "rearrange",
            inputs,
            {"out": (out.name, shape)},
            "depthwise: a product and a sum per tap",
            ops=2 * taps * out.elements,
        )
        return None
    ref, other = low.ref(x.name), low.ref(weight.name)
    inputs = {"a": (ref, (groups, rows, taps)), "b": (other, (groups, taps, n // groups))}
    low.emit(
        call, "matmul", inputs, {"out": (before_bias(low, out.name, bias), (groups, rows, n // groups))}, "patches"
    )
    if bias:
        add_bias(low, call, out.name, bias)
    return None


def conv_transpose(low: Lowering, call: Call) -> None:
    """Each input element times the taps of all outputs; the overlaps are summed."""
    x, weight, out = (low.values[n] for n in (*call.inputs[:2], call.outputs[0]))
    if int(call.attr("group", 1)) != 1:
        found = f"{call.attr('group')} groups"
        raise low.program.error(call, found, "a transposed convolution of one group", "Split it into one per group.")
    k, n = weight.shape[0], math.prod(weight.shape[1:])
    raw = f"{out.name}.patches"
    low.values[raw] = Value(raw, (x.elements // k, n), out.dtype)
    linear(low, call, x.name, weight, (x.elements // k, n, k), raw, note="patches of the output", suffix=".patches")
    inputs = {"a": (low.refs[raw], low.graph.nodes[low.refs[raw].tensor]["shape"])}
    low.emit(
        call,
        "rearrange",
        inputs,
        {"out": (out.name, flat(out.shape))},
        "overlaps are summed",
        ops=low.values[raw].elements,
    )


def pool(low: Lowering, call: Call) -> None:
    """A comparison or sum per element of each window."""
    window = math.prod(call.attrs["kernel_shape"])
    low.passing(call, window * low.values[call.outputs[0]].elements, 0)


LOWER: dict[str, Callable[[Lowering, Call], None]] = {
    "Conv": conv,
    "QLinearConv": conv,
    "ConvInteger": conv,
    "ConvTranspose": conv_transpose,
    "AveragePool": pool,
    "MaxPool": pool,
    "LpPool": pool,
}
