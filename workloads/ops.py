"""The operators: one row each. To add an operator, add a row to OPS (docs/extending.md).

A row states a signature (signature.py), and from the numbers behind its names the GEMM, the elementwise and the special
operations (exp, reciprocal, rsqrt, tanh) of one run. Everything is worked out from the shapes in the graph, so a
graph that holds one chip's share is costed by the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from .checks import graph_problem, nearest
from .signature import Dims, Role, parse_roles

Count = Callable[[Dims], int]
Gemm = Callable[[Dims], tuple[int, int, int, int]]


def _none(dims: Dims) -> int:
    return 0


@dataclass(frozen=True)
class Op:
    """One operator. `signature` gives roles and shapes; the functions take the numbers behind its names."""

    doc: str
    unit: str
    """What works on it: "matrix", "vector" or "link"."""
    signature: str
    gemm: Gemm | None = None
    """(m, n, k, how many such GEMMs); m are rows of the activation, n output columns, k is summed over."""
    vector: Count = _none
    """Elementwise operations: add, multiply, compare, maximum."""
    special: Count = _none
    """Exponentials, reciprocals, inverse roots, tanh."""
    attributes: tuple[str, ...] = ()
    """Whole numbers that the op node must carry."""
    optional: tuple[str, ...] = ()
    """Attributes that it may carry."""
    reads: Mapping[str, Count] = field(default_factory=dict)
    """Elements read of a role, where that is less than the whole tensor."""

    @cached_property
    def roles(self) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
        """Input and output roles."""
        return parse_roles(self.signature)


OPS: dict[str, Op] = {
    "embedding": Op(
        "One row of the table per token.",
        "vector",
        "weight:embedding[V H] -> out[rows H]",
        optional=("rows",),
        reads={"weight": lambda d: d["rows"] * d["H"]},
    ),
    "linear": Op(
        "x times the transposed weight, plus a bias. `parallel` says how tensor parallelism may cut the weight.",
        "matrix",
        "x[M K] weight:weight[N K] bias?:weight[N] -> out[M N]",
        gemm=lambda d: (d["M"], d["N"], d["K"], 1),
        vector=lambda d: d["bias"] * d["M"] * d["N"],
        optional=("parallel",),
    ),
    "matmul": Op(
        "Batched product of two tensors.",
        "matrix",
        "a:any[... M K] b:any[... K N] -> out[... M N]",
        gemm=lambda d: (d["M"], d["N"], d["K"], d["..."]),
    ),
    "attention": Op(
        "Softmax attention of one new token per sequence over its cached tokens and itself. One GEMM for the scores "
        "and one for the values, per sequence and KV head; softmax as in the row `softmax`, plus the scaling.",
        "matrix",
        "q[B kv_heads*group*head_dim] k[B kv_heads*head_dim] v[B kv_heads*head_dim]"
        " k_cache:kv[B kv_heads T head_dim] v_cache:kv[B kv_heads T head_dim] -> out[B heads*head_dim]",
        gemm=lambda d: (d["group"], d["T"] + 1, d["head_dim"], 2 * d["B"] * d["kv_heads"]),
        vector=lambda d: d["B"] * d["heads"] * (4 * (d["T"] + 1) + d["head_dim"]),
        special=lambda d: d["B"] * d["heads"] * (d["T"] + 2),
        attributes=("heads", "kv_heads", "head_dim"),
    ),
    "kv_append": Op(
        "Writes the new token's K and V behind the cached ones.",
        "vector",
        "k[B kv_heads*head_dim] v[B kv_heads*head_dim]"
        " -> k_slot:kv[B kv_heads 1 head_dim] v_slot:kv[B kv_heads 1 head_dim]",
    ),
    "rope": Op(
        "Rotates each head by its position: two products and a sum per element. Sines come from a table on the chip.",
        "vector",
        "x[B heads*head_dim] -> out[B heads*head_dim]",
        vector=lambda d: 3 * d["B"] * d["heads"] * d["head_dim"],
        attributes=("head_dim",),
    ),
    "rmsnorm": Op(
        "Square, sum, scale, weight; one inverse root per row.",
        "vector",
        "x[... H] weight:weight[H] -> out[... H]",
        vector=lambda d: 4 * d["..."] * d["H"],
        special=lambda d: d["..."],
    ),
    "layernorm": Op(
        "Sum, subtract, square, sum, scale, weight, bias; one inverse root per row.",
        "vector",
        "x[... H] weight:weight[H] bias?:weight[H] -> out[... H]",
        vector=lambda d: (6 + d["bias"]) * d["..."] * d["H"],
        special=lambda d: d["..."],
    ),
    "softmax": Op(
        "Maximum, subtract, exp, sum, scale; one reciprocal per row.",
        "vector",
        "x[... N] -> out[... N]",
        vector=lambda d: 4 * d["..."] * d["N"],
        special=lambda d: d["..."] * (d["N"] + 1),
    ),
    "add": Op("a + b.", "vector", "a[...] b:any[...] -> out[...]", vector=lambda d: d["..."]),
    "mul": Op("a * b.", "vector", "a[...] b:any[...] -> out[...]", vector=lambda d: d["..."]),
    "silu": Op(
        "x / (1 + exp(-x)): an exp and a reciprocal.",
        "vector",
        "x[...] -> out[...]",
        vector=lambda d: 2 * d["..."],
        special=lambda d: 2 * d["..."],
    ),
    "gelu": Op(
        "The tanh form: a cubic polynomial, a tanh, a sum and two products.",
        "vector",
        "x[...] -> out[...]",
        vector=lambda d: 8 * d["..."],
        special=lambda d: d["..."],
    ),
    "swiglu": Op(
        "silu(gate) * up.",
        "vector",
        "gate[...] up[...] -> out[...]",
        vector=lambda d: 3 * d["..."],
        special=lambda d: 2 * d["..."],
    ),
    "sample": Op(
        "The largest logit of each row (greedy).",
        "vector",
        "logits[B V] -> token[B]",
        vector=lambda d: d["B"] * d["V"],
    ),
    "all_reduce": Op(
        "Sum over the chips of a tensor-parallel group, known to all (inserted by the compiler).",
        "link",
        "x[...] -> out[...]",
    ),
    "all_gather": Op(
        "Parts of the last dimension, put together on all chips of a group (inserted by the compiler).",
        "link",
        "x[... N] -> out[... N*ways]",
    ),
    "send": Op("To the next pipeline stage (inserted by the compiler).", "link", "x[...] -> out[...]"),
}

PARALLEL = ("column", "row", "vocab", None)
"""How tensor parallelism may cut a linear's weight: its outputs, its inputs, its vocabulary, or not at all."""


def find_op(name: object, where: str, node: str | None = None) -> Op:
    """The row of this operator. Raises GraphError with the nearest known name."""
    if not isinstance(name, str) or name not in OPS:
        todo = nearest(name, OPS) if isinstance(name, str) else "Set op=NAME on the node."
        raise graph_problem(node, where, f"op {name!r}", "an operator of workloads/ops.py", todo)
    return OPS[name]
