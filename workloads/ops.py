"""The operators: one row each. To add an operator, add a row to OPS (docs/extending.md).

A row states a signature (signature.py), and from the numbers behind its names the GEMM, the elementwise and the special
operations (exp, reciprocal, rsqrt, tanh) of one run. Everything is worked out from the shapes in the graph, so a
graph that holds one chip's share is costed by the same rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .checks import graph_problem, nearest
from .loads import expert_dims
from .signature import Dims, Role, parse_roles
from .spans import attention_dims, index_dims

Count = Callable[[Dims], int]
Derive = Callable[[Dims, Mapping[str, Any]], Dims]
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
    macs: Count | None = None
    """Multiply-adds, where they are not always those of equal GEMMs."""
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
    structured: tuple[str, ...] = ()
    """Attributes that it may carry and that are no numbers: `derive` checks them."""
    derive: Derive | None = None
    """Further numbers, from those of the shapes and the op's attributes. Raises MismatchError where they disagree."""

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
        "x times the transposed weight, plus a bias. `parallel` says how tensor parallelism may cut the weight; "
        "`later`, that chips' parts of the sum are added up behind what follows.",
        "matrix",
        "x[M K] weight:weight[N K] bias?:weight[N] -> out[M N]",
        gemm=lambda d: (d["M"], d["N"], d["K"], 1),
        vector=lambda d: d["bias"] * d["M"] * d["N"],
        optional=("parallel", "later"),
    ),
    "matmul": Op(
        "Batched product of two tensors.",
        "matrix",
        "a:any[... M K] b:any[... K N] -> out[... M N]",
        gemm=lambda d: (d["M"], d["N"], d["K"], d["..."]),
    ),
    "attention": Op(
        "Softmax attention of new tokens over the cached tokens of their sequences and over the new ones up to "
        "themselves. `spans` says whose tokens they are (spans.py), `window` how many tokens each sees at most before "
        "itself; where it is not causal, `band` says what each sees. A pair of query and key takes a product of "
        "head_dim for its score and of v_dim for its value; softmax as in the row `softmax`, plus the scaling; "
        "`softcap` adds a tanh and a product, `alibi` a product and a sum, a sink an exp per row. Without v, values "
        "are the first v_dim columns of the keys (a latent). Without a cache, k "
        "has the cached tokens too, sequence by sequence. `picked`: the cache has more tokens than are read, those "
        "that `chosen` names.",
        "matrix",
        "q[rows kv_heads*group*head_dim] k[fresh kv_heads*head_dim] v?[fresh kv_heads*v_dim]"
        " k_cache?:kv[seqs kv_heads T head_dim] v_cache?:kv[seqs kv_heads T v_dim] sinks?:weight[heads]"
        " chosen?[rows top_k] -> out[rows heads*v_dim]",
        gemm=lambda d: (d["group"], d["keys"], d["head_dim"], 2 * d["sequences"] * d["kv_heads"] if d["keys"] else 0),
        macs=lambda d: d["heads"] * d["pairs"] * (d["head_dim"] + d["v_dim"]),
        vector=lambda d: d["heads"] * ((4 + 2 * d["softcap"] + 2 * d["alibi"]) * d["pairs"] + d["rows"] * d["v_dim"]),
        special=lambda d: d["heads"] * ((1 + d["softcap"]) * d["pairs"] + (1 + d["sinks"]) * d["rows"]),
        attributes=("heads", "kv_heads", "head_dim"),
        optional=("window", "softcap", "alibi", "picked"),
        reads={
            "k_cache": lambda d: d["cached"] * d["kv_heads"] * d["head_dim"],
            "v_cache": lambda d: d["cached"] * d["kv_heads"] * d["v_dim"],
        },
        structured=("spans", "band"),
        derive=attention_dims,
    ),
    "index_scores": Op(
        "An indexer's choice of the top_k cached tokens that latent attention reads: a product of head_dim "
        "for each pair "
        "and head, its positive part weighed and summed over the heads, and four passes of a radix select "
        "over the sums.",
        "matrix",
        "q[rows heads*head_dim] k[fresh head_dim] gates[rows heads] k_cache?:kv[seqs one T head_dim]"
        " -> chosen[rows top_k]",
        macs=lambda d: d["heads"] * d["pairs"] * d["head_dim"],
        vector=lambda d: (3 * d["heads"] + 4) * d["pairs"],
        attributes=("heads", "head_dim"),
        structured=("spans",),
        derive=index_dims,
    ),
    "kv_append": Op(
        "Writes the new tokens' K and V behind the cached ones; of more tokens than a window holds, the last.",
        "vector",
        "k[B kv_heads*head_dim] v?[B kv_heads*v_dim]"
        " -> k_slot:kv[kept kv_heads 1 head_dim] v_slot?:kv[kept kv_heads 1 v_dim]",
    ),
    "rope": Op(
        "Rotates each head by its position, or the `rotated` elements of it: two products and a sum per element. Sines "
        "come from a table on the chip.",
        "vector",
        "x[B heads*head_dim] -> out[B heads*head_dim]",
        vector=lambda d: 3 * d["B"] * d["heads"] * d.get("rotated", d["head_dim"]),
        attributes=("head_dim",),
        optional=("rotated",),
    ),
    "rmsnorm": Op(
        "Square, sum, scale, weight; one inverse root per row.",
        "vector",
        "x[... H] weight?:weight[H] -> out[... H]",
        vector=lambda d: (3 + d["weight"]) * d["..."] * d["H"],
        special=lambda d: d["..."],
    ),
    "layernorm": Op(
        "Sum, subtract, square, sum, scale, weight, bias; one inverse root per row.",
        "vector",
        "x[... H] weight?:weight[H] bias?:weight[H] -> out[... H]",
        vector=lambda d: (5 + d["weight"] + d["bias"]) * d["..."] * d["H"],
        special=lambda d: d["..."],
    ),
    "head_norm": Op(
        "An RMSNorm of each head by itself, `centred` as a LayerNorm; the weight is of one head or of all "
        "side by side.",
        "vector",
        "x[... heads*head_dim] weight?:weight[W] bias?:weight[W] -> out[... heads*head_dim]",
        vector=lambda d: (
            (3 + 2 * d.get("centred", 0) + d["weight"] + d["bias"]) * d["..."] * d["heads"] * d["head_dim"]
        ),
        special=lambda d: d["..."] * d["heads"],
        attributes=("head_dim",),
        optional=("centred",),
    ),
    "softmax": Op(
        "Maximum, subtract, exp, sum, scale; one reciprocal per row.",
        "vector",
        "x[... N] -> out[... N]",
        vector=lambda d: 4 * d["..."] * d["N"],
        special=lambda d: d["..."] * (d["N"] + 1),
    ),
    "add": Op(
        "a + b. `later` as in linear: parts of a sum are added as parts.",
        "vector",
        "a[...] b:any[...] -> out[...]",
        vector=lambda d: d["..."],
        optional=("later",),
    ),
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
    "geglu": Op(
        "gelu(gate) * up.",
        "vector",
        "gate[...] up[...] -> out[...]",
        vector=lambda d: 9 * d["..."],
        special=lambda d: d["..."],
    ),
    "swiglu_clamped": Op(
        "gate * sigmoid(a gate) * (up + 1), gate cut above and up on both sides (gpt-oss).",
        "vector",
        "gate[...] up[...] -> out[...]",
        vector=lambda d: 7 * d["..."],
        special=lambda d: 2 * d["..."],
    ),
    "relu": Op("max(x, 0).", "vector", "x[...] -> out[...]", vector=lambda d: d["..."]),
    "relu_squared": Op("max(x, 0) squared.", "vector", "x[...] -> out[...]", vector=lambda d: 2 * d["..."]),
    "softcap": Op(
        "cap * tanh(x / cap).",
        "vector",
        "x[...] -> out[...]",
        vector=lambda d: 2 * d["..."],
        special=lambda d: d["..."],
    ),
    "scale": Op(
        "x times one learned number.", "vector", "x[...] weight:weight[S] -> out[...]", vector=lambda d: d["..."]
    ),
    "sigmoid_scale": Op(
        "x times the sigmoid of a number per row.",
        "vector",
        "x[rows H] gate[rows one] -> out[rows H]",
        vector=lambda d: d["rows"] * d["H"],
        special=lambda d: 2 * d["rows"],
    ),
    "copy": Op("The same under another name.", "vector", "x[...] -> out[...]"),
    "select": Op(
        "Some of the rows: the last token of each sequence.",
        "vector",
        "x[rows H] -> out[picked H]",
        reads={"x": lambda d: d["picked"] * d["H"]},
    ),
    "keep": Op(
        "Keeps weights in memory that this step does not use, such as heads that predict further tokens.",
        "vector",
        "weight:any[...] ->",
        reads={"weight": lambda d: 0},
    ),
    "quantize": Op(
        "Casts to the output's type, block by block: largest magnitude, product with the scale, rounding; "
        "one reciprocal "
        "per row.",
        "vector",
        "x[... K] -> out[... K]",
        vector=lambda d: 3 * d["..."] * d["K"],
        special=lambda d: d["..."],
    ),
    "topk": Op(
        "Softmax (or sigmoid and sum) of the scores, then the top_k of each row by top_k passes of maximum; "
        "the weights "
        "of those are scaled to sum to one. `bias` joins the scores that pick, `scale` is a factor per expert.",
        "vector",
        "scores[rows E] bias?:weight[E] scale?:weight[E] -> weights[rows top_k] chosen[rows top_k]",
        vector=lambda d: d["rows"] * ((4 + d["top_k"] + d["bias"]) * d["E"] + (2 + d["scale"]) * d["top_k"]),
        special=lambda d: d["rows"] * (d["E"] + 2),
    ),
    "expert_linear": Op(
        "For each expert, the tokens that are sent to it times its transposed matrix. `loads`: tokens of each expert "
        "that any is sent to; only these experts are read. x has a row per token, or per token and expert.",
        "matrix",
        "x[M K] chosen[rows top_k] weight:expert[E N K] bias?:expert[E N] -> out[pairs N]",
        macs=lambda d: d["pairs"] * d["N"] * d["K"],
        vector=lambda d: d["bias"] * d["pairs"] * d["N"],
        optional=("parallel",),
        structured=("loads",),
        reads={"weight": lambda d: d["woken"] * d["N"] * d["K"], "bias": lambda d: d["woken"] * d["N"]},
        derive=expert_dims,
    ),
    "combine": Op(
        "Each token's weighted sum of what its experts gave.",
        "vector",
        "x[pairs H] weights[rows top_k] -> out[rows H]",
        vector=lambda d: 2 * d["pairs"] * d["H"],
        optional=("later",),
    ),
    "latent_norm": Op(
        "Latent attention's one row per token: RMSNorm of the latent, rotation of the key part behind it.",
        "vector",
        "x[rows W] weight:weight[rank] -> out[rows W]",
        vector=lambda d: d["rows"] * (4 * d["rank"] + 3 * (d["W"] - d["rank"])),
        special=lambda d: d["rows"],
    ),
    "latent_gather": Op(
        "Cached latents and the new ones side by side, sequence by sequence.",
        "vector",
        "x[fresh W] cache:kv[seqs one T W] -> out[keys W]",
    ),
    "latent_expand": Op(
        "Keys and values of all heads from latents; a key's rotary part is the latent row's own.",
        "matrix",
        "x[keys W] weight:weight[N rank] -> k[keys heads*qk_dim] v[keys heads*v_dim]",
        gemm=lambda d: (d["keys"], d["N"], d["rank"], 1),
        attributes=("heads",),
    ),
    "absorb_q": Op(
        "The part of kv_b_proj that makes keys, worked into the query: each head's part without positions becomes a "
        "latent; its rotary part stays.",
        "matrix",
        "x[rows heads*qk_dim] weight:weight[N rank] -> out[rows heads*W]",
        gemm=lambda d: (d["rows"], d["rank"], d["nope"], d["heads"]),
        attributes=("heads", "nope", "v_dim"),
        reads={"weight": lambda d: d["heads"] * d["nope"] * d["rank"]},
    ),
    "absorb_v": Op(
        "The part of kv_b_proj that makes values, applied to each head's sum of latents.",
        "matrix",
        "x[rows heads*rank] weight:weight[N rank] -> out[rows heads*v_dim]",
        gemm=lambda d: (d["rows"], d["v_dim"], d["rank"], d["heads"]),
        attributes=("heads", "nope", "v_dim"),
        reads={"weight": lambda d: d["heads"] * d["v_dim"] * d["rank"]},
    ),
    "pointwise": Op(
        "Any element by element operation, or several: `ops` elementwise and `special` ones in all. Operands that "
        "repeat are seen by a view.",
        "vector",
        "a:any[...] b?:any[...] c?:any[...] d?:any[...] e?:any[...] f?:any[...] g?:any[...] h?:any[...] -> out[...]",
        vector=lambda d: d.get("ops", 0),
        special=lambda d: d.get("special", 0),
        optional=("ops", "special"),
    ),
    "rearrange": Op(
        "Any operation that reads tensors of one shape and writes others of another: reductions, gathers, "
        "concatenations. `ops` elementwise and `special` operations in all; a mere copy has none.",
        "vector",
        "a:any[*] b?:any[*] c?:any[*] d?:any[*] e?:any[*] f?:any[*] g?:any[*] h?:any[*] -> out[*] out1?[*] out2?[*]",
        vector=lambda d: d.get("ops", 0),
        special=lambda d: d.get("special", 0),
        optional=("ops", "special"),
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
    "slice": Op(
        "A chip's own columns of what all chips have (inserted by the compiler).",
        "vector",
        "x[... N*ways] -> out[... N]",
        reads={"x": lambda d: d["..."] * d["N"]},
    ),
    "all_to_all": Op(
        "Rows go to the `ways` chips that have their experts, or back: `leaves` rows leave a chip (those for itself "
        "included), `arrived` come.",
        "link",
        "x[rows H] -> out[arrived H]",
        attributes=("ways", "leaves"),
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
