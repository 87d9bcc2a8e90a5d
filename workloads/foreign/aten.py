"""torch's operators in ONNX's words, as data. Keys are names of ATen operators without their overload."""

from __future__ import annotations

ELEMENTWISE: dict[str, str] = {
    "add": "Add", "sub": "Sub", "rsub": "Sub", "mul": "Mul", "div": "Div", "true_divide": "Div", "neg": "Neg",
    "abs": "Abs", "pow": "Pow", "sqrt": "Sqrt", "rsqrt": "Rsqrt", "reciprocal": "Reciprocal", "exp": "Exp",
    "log": "Log", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "erf": "Erf", "sigmoid": "Sigmoid", "relu": "Relu",
    "silu": "Silu", "gelu": "Gelu", "softplus": "Softplus", "elu": "Elu", "leaky_relu": "LeakyRelu",
    "hardswish": "HardSwish", "hardsigmoid": "HardSigmoid", "mish": "Mish", "clamp": "Clip", "clamp_min": "Max",
    "clamp_max": "Min",
    "maximum": "Max", "minimum": "Min", "eq": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater",
    "ge": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or", "logical_not": "Not", "logical_xor": "Xor",
    "bitwise_and": "And", "and": "And", "or": "Or", "xor": "Xor", "bitwise_or": "Or",
    "bitwise_not": "Not", "bitwise_xor": "Xor", "where": "Where",
    "floor": "Floor", "ceil": "Ceil", "round": "Round", "sign": "Sign", "isnan": "IsNaN", "isinf": "IsInf",
    "remainder": "Mod", "fmod": "Mod", "floor_divide": "Div", "cumsum": "CumSum", "exp2": "Exp", "log1p": "Log",
    "prelu": "PRelu", "tan": "Tan", "square": "", "ne": "", "masked_fill": "",
}  # fmt: skip
"""Element by element; "" is put together from others (export.py)."""

VIEWS: dict[str, str] = {
    "view": "Reshape", "reshape": "Reshape", "_unsafe_view": "Reshape", "flatten": "Reshape", "unflatten": "Reshape",
    "unsqueeze": "Reshape", "squeeze": "Reshape", "view_as": "Reshape", "expand": "Expand", "expand_as": "Expand",
    "clone": "Identity", "contiguous": "Identity", "detach": "Identity", "alias": "Identity",
    "lift_fresh_copy": "Identity",
    "lift_fresh": "Identity", "dropout": "Identity", "native_dropout": "Identity", "to": "Cast", "_to_copy": "Cast",
    "type_as": "Cast", "detach_": "Identity", "copy": "Identity", "broadcast_to": "Expand",
}  # fmt: skip

REDUCTIONS: dict[str, str] = {
    "mean": "ReduceMean", "sum": "ReduceSum", "amax": "ReduceMax", "amin": "ReduceMin", "max": "ReduceMax",
    "min": "ReduceMin", "prod": "ReduceProd", "argmax": "ArgMax", "argmin": "ArgMin", "any": "ReduceMax",
    "all": "ReduceMin", "var": "ReduceSumSquare", "linalg_vector_norm": "ReduceL2", "norm": "ReduceL2",
    "logsumexp": "ReduceLogSumExp", "histc": "ReduceSum", "bincount": "ReduceSum", "argsort": "Hardmax",
}  # fmt: skip

COPIES: dict[str, str] = {
    "index": "GatherND", "index_put": "ScatterND", "index_put_": "ScatterND", "gather": "GatherElements",
    "scatter": "ScatterElements", "scatter_add": "ScatterElements", "index_add": "ScatterElements",
    "index_copy": "ScatterElements", "slice_scatter": "ScatterND", "select_scatter": "ScatterND", "roll": "Concat",
    "repeat": "Tile", "constant_pad_nd": "Pad", "pad": "Pad", "flip": "ReverseSequence", "one_hot": "OneHot",
    "repeat_interleave": "Expand",
}  # fmt: skip

MADE: dict[str, float | None] = {
    "full": None, "full_like": None, "zeros": 0.0, "zeros_like": 0.0, "ones": 1.0, "ones_like": 1.0, "empty": 0.0,
    "new_zeros": 0.0, "new_ones": 1.0, "new_full": None, "scalar_tensor": None, "empty_like": 0.0, "new_empty": 0.0,
}  # fmt: skip
"""Tensors of one number, and the number; None: it is an argument."""

NOTHING = frozenset({
    "_assert_async", "sym_constrain_range_for_size", "sym_constrain_range", "_assert_scalar", "_assert_tensor_metadata",
})  # fmt: skip
"""Checks, which cost nothing."""
