"""Products and lookups of quantised weights, in ONNX's and com.microsoft's forms."""

from __future__ import annotations

from collections.abc import Callable

from .contrib import MS
from .formats import BITS
from .lower import Lowering, flat
from .products import linear, lookup, product
from .program import Call, Value


def n_bits(low: Lowering, call: Call) -> None:
    """MatMulNBits: packed weights of 2, 4 or 8 bits in blocks along k."""
    bits, n, k = int(call.attr("bits", 4)), int(call.attrs["N"]), int(call.attrs["K"])
    block = int(call.attrs["block_size"])
    scale = BITS.get(low.values[call.inputs[2]].dtype, 16)
    zero = call.input(3)
    zeros = f"z{BITS.get(low.values[zero].dtype, bits) if low.values[zero].dtype != 'uint8' else bits}" if zero else ""
    rows = low.values[call.inputs[0]].elements // k
    dtype = f"int{bits}/1x{block}s{scale}{zeros}"
    weight = low.values[call.inputs[1]]
    node = f"{weight.name}.packed"
    low.values[node] = Value(node, (n, k), "int4", True, None, node)
    note = f"{bits}-bit weights, blocks of {block}"
    linear(low, call, call.inputs[0], low.values[node], (rows, n, k), call.outputs[0], call.input(5), dtype, note)


def gather_block(low: Lowering, call: Call) -> None:
    """Rows of a quantised table with its scales."""
    out, data = low.values[call.outputs[0]], low.values[call.inputs[0]]
    rows, bits = low.values[call.inputs[1]].elements, int(call.attr("bits", 4))
    width = out.elements // max(rows, 1)
    table = Value(f"{data.name}.packed", (data.shape[0], width), "int4", True, None, f"{data.name}.packed")
    low.values[table.name] = table
    scale = BITS.get(low.values[call.inputs[2]].dtype, 16)
    zero = f"z{bits}" if call.input(3) else ""
    lookup(low, call, table, rows, width, out.name, f"int{bits}/1x{call.attr('block_size', 128)}s{scale}{zero}")


def quantised_product(low: Lowering, call: Call) -> None:
    """Products of integers: scales are immediates or rows; a result of 8 bits is rounded element by element."""
    if call.op in ("QLinearMatMul",):
        a, b = call.inputs[0], call.inputs[3]
        raw = f"{call.outputs[0]}.product"
        value = low.values[call.outputs[0]]
        low.values[raw] = Value(raw, value.shape, "int32")
        product(low, call, a, b, out=raw)
        shape = flat(value.shape)
        low.emit(
            call,
            "pointwise",
            {"a": (low.refs[raw], shape)},
            {"out": (value.name, shape)},
            "rounded to 8 bits",
            suffix=".requantize",
            ops=4 * value.elements,
        )
    else:
        bias = {f"{MS}MatMulIntegerToFloat": 6, f"{MS}DynamicQuantizeMatMul": 4}.get(call.op)
        product(low, call, call.inputs[0], call.inputs[1], bias=call.input(bias) if bias else "")


LOWER: dict[str, Callable[[Lowering, Call], None]] = {
    "MatMulInteger": quantised_product,
    "QLinearMatMul": quantised_product,
    f"{MS}MatMulIntegerToFloat": quantised_product,
    f"{MS}DynamicQuantizeMatMul": quantised_product,
    f"{MS}MatMulNBits": n_bits,
    f"{MS}GatherBlockQuantized": gather_block,
}
