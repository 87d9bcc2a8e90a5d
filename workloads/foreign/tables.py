"""What foreign operators are here, as data (docs/graphs.md prints it).

VIEWS       the same elements in another arrangement, a part of them, or repeated: free, no op and no bytes
COPIES      elements gathered or put together anew: as many bytes read and written as the result has
POINTWISE   (elementwise, special) operations per element of the result
REDUCTIONS  (elementwise per element of the input, special per result)
SHAPED      operators with a function of their own in lower.py and its neighbours
"""

from __future__ import annotations

VIEWS = frozenset({
    "Identity", "Dropout", "Cast", "CastLike", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Expand",
    "Slice", "Split", "DepthToSpace", "SpaceToDepth", "BitCast",
})  # fmt: skip

COPIES = frozenset({
    "Concat", "Stack", "Pad", "Tile", "Gather", "GatherND", "GatherElements", "Index", "Trilu", "Compress",
    "ReverseSequence", "ScatterElements", "ScatterND", "Scatter", "TensorScatter", "Resize", "CenterCropPad",
    "OneHot", "Upsample", "Col2Im", "Shape", "Size",
})  # fmt: skip

POINTWISE: dict[str, tuple[int, int]] = {
    "Add": (1, 0), "Sub": (1, 0), "Mul": (1, 0), "Neg": (1, 0), "Abs": (1, 0), "Sign": (1, 0), "Min": (1, 0),
    "Max": (1, 0), "Sum": (1, 0), "Mean": (2, 0), "Clip": (2, 0), "Relu": (1, 0), "LeakyRelu": (2, 0),
    "PRelu": (2, 0), "ThresholdedRelu": (1, 0), "Shrink": (3, 0), "HardSigmoid": (4, 0), "HardSwish": (5, 0),
    "Floor": (1, 0), "Ceil": (1, 0), "Round": (1, 0), "IsNaN": (1, 0), "IsInf": (1, 0), "Not": (1, 0), "And": (1, 0),
    "Or": (1, 0), "Xor": (1, 0), "Equal": (1, 0), "Less": (1, 0), "LessOrEqual": (1, 0), "Greater": (1, 0),
    "GreaterOrEqual": (1, 0), "Where": (1, 0), "BitShift": (1, 0), "BitwiseAnd": (1, 0), "BitwiseOr": (1, 0),
    "BitwiseXor": (1, 0), "BitwiseNot": (1, 0), "Mod": (2, 1), "Div": (1, 1), "Reciprocal": (0, 1), "Sqrt": (0, 1),
    "Rsqrt": (0, 1), "Exp": (0, 1), "Log": (0, 1), "Erf": (0, 1), "Tanh": (0, 1), "Sin": (0, 1), "Cos": (0, 1),
    "Tan": (0, 1), "Sinh": (0, 1), "Cosh": (0, 1), "Asin": (0, 1), "Acos": (0, 1), "Atan": (0, 1), "Asinh": (0, 1),
    "Acosh": (0, 1), "Atanh": (0, 1), "Sigmoid": (1, 2), "Softplus": (1, 2), "Softsign": (2, 1), "Elu": (3, 1),
    "Celu": (4, 1), "Selu": (4, 1), "Mish": (2, 3), "Swish": (2, 2), "Pow": (1, 2), "CumSum": (1, 0),
    "CumProd": (1, 0), "QuantizeLinear": (4, 1), "DequantizeLinear": (2, 0),
    "com.microsoft.QuickGelu": (3, 2), "com.microsoft.BiasGelu": (9, 1),
    "ConstantOfShape": (0, 0), "Range": (1, 0), "EyeLike": (1, 0), "RandomNormalLike": (4, 2),
    "RandomUniformLike": (4, 0), "Bernoulli": (5, 0),
}  # fmt: skip

REDUCTIONS: dict[str, tuple[int, int]] = {
    "ReduceSum": (1, 0), "ReduceMean": (1, 1), "ReduceMax": (1, 0), "ReduceMin": (1, 0), "ReduceProd": (1, 0),
    "ReduceL1": (2, 0), "ReduceL2": (2, 1), "ReduceSumSquare": (2, 0), "ReduceLogSum": (1, 1),
    "ReduceLogSumExp": (3, 1), "ArgMax": (1, 0), "ArgMin": (1, 0), "GlobalAveragePool": (1, 1),
    "GlobalMaxPool": (1, 0),
}  # fmt: skip

PASSES: dict[str, tuple[int, int]] = {
    "LogSoftmax": (5, 1), "Hardmax": (3, 0), "LpNormalization": (3, 0), "GroupNormalization": (7, 0),
    "InstanceNormalization": (7, 0), "BatchNormalization": (2, 0), "MeanVarianceNormalization": (5, 0), "LRN": (3, 2),
    "DynamicQuantizeLinear": (6, 0), "NonZero": (1, 0),
}  # fmt: skip
"""Operations per element of the input, of operators that go through it once or more and give something of its size."""

SHAPED = frozenset({
    "MatMul", "Gemm", "Einsum", "Conv", "MatMulInteger", "GroupedMatMul", "QLinearMatMul", "QLinearConv",
    "ConvInteger", "Attention", "Softmax", "LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization",
    "RotaryEmbedding", "Gelu", "SwiGLU", "Silu", "Rope", "TopK", "AveragePool", "MaxPool", "LpPool", "ConvTranspose",
    "com.microsoft.SimplifiedLayerNormalization", "com.microsoft.SkipSimplifiedLayerNormalization",
    "com.microsoft.SkipLayerNormalization", "com.microsoft.EmbedLayerNormalization", "com.microsoft.RotaryEmbedding",
    "com.microsoft.GroupQueryAttention", "com.microsoft.MultiHeadAttention", "com.microsoft.Attention",
    "com.microsoft.MatMulNBits", "com.microsoft.FusedMatMul", "com.microsoft.MatMulIntegerToFloat",
    "com.microsoft.DynamicQuantizeMatMul", "com.microsoft.GatherBlockQuantized", "com.microsoft.MoE",
    "com.microsoft.QMoE", "com.microsoft.Gelu", "com.microsoft.FastGelu",
})  # fmt: skip

OPERATORS = frozenset({*VIEWS, *COPIES, *POINTWISE, *REDUCTIONS, *PASSES, *SHAPED, "If", "Loop", "Constant"})
"""Every operator that is read."""
