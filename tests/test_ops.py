"""Each operator's work and bytes, by formula, on shapes small enough to count by hand."""

import pytest

from stallscope.workloads import OPS, add_op, add_tensor, check_graph, new_graph, op_cost
from stallscope.workloads.checks import GraphError
from stallscope.workloads.ops import Op
from stallscope.workloads.signature import MismatchError, match, parse_roles

B, HEADS, KV_HEADS, D, T = 3, 6, 2, 4, 10

# op: inputs {role: (kind, shape)}, outputs, attributes, (m, n, k, gemms), vector ops, special ops
CASES = {
    "embedding": ({"weight": ("embedding", (50, 8))}, {"out": (B, 8)}, {"rows": B}, (0, 0, 0, 0), 0, 0),
    "linear": (
        {"x": ("activation", (B, 8)), "weight": ("weight", (5, 8)), "bias": ("weight", (5,))},
        {"out": (B, 5)},
        {"parallel": "column"},
        (B, 5, 8, 1),
        B * 5,
        0,
    ),
    "pointwise": (
        {"a": ("activation", (B, 8)), "b": ("weight", (B, 8))},
        {"out": (B, 8)},
        {"ops": 3 * B * 8, "special": B * 8},
        (0, 0, 0, 0),
        3 * B * 8,
        B * 8,
    ),
    "rearrange": (
        {"a": ("activation", (B, 8)), "b": ("kv", (2, 3, 5))},
        {"out": (7,), "out1": (B, 2)},
        {"ops": B * 8},
        (0, 0, 0, 0),
        B * 8,
        0,
    ),
    "matmul": (
        {"a": ("activation", (2, 7, B, 8)), "b": ("kv", (2, 7, 8, 5))},
        {"out": (2, 7, B, 5)},
        {},
        (B, 5, 8, 14),
        0,
        0,
    ),
    "attention": (
        {
            "q": ("activation", (B, HEADS * D)),
            "k": ("activation", (B, KV_HEADS * D)),
            "v": ("activation", (B, KV_HEADS * D)),
            "k_cache": ("kv", (B, KV_HEADS, T, D)),
            "v_cache": ("kv", (B, KV_HEADS, T, D)),
        },
        {"out": (B, HEADS * D)},
        {"heads": HEADS, "kv_heads": KV_HEADS, "head_dim": D},
        (HEADS // KV_HEADS, T + 1, D, 2 * B * KV_HEADS),
        B * HEADS * (4 * (T + 1) + D),
        B * HEADS * (T + 1 + 1),
    ),
    "index_scores": (
        {
            "q": ("activation", (B, 6 * 4)),
            "k": ("activation", (B, 4)),
            "gates": ("activation", (B, 6)),
            "k_cache": ("kv", (B, 1, T, 4)),
        },
        {"chosen": (B, 2)},
        {"heads": 6, "head_dim": 4},
        (0, 0, 0, 0),
        (3 * 6 + 4) * B * (T + 1),
        0,
    ),
    "kv_append": (
        {"k": ("activation", (B, KV_HEADS * D)), "v": ("activation", (B, KV_HEADS * D))},
        {"k_slot": (B, KV_HEADS, 1, D), "v_slot": (B, KV_HEADS, 1, D)},
        {},
        (0, 0, 0, 0),
        0,
        0,
    ),
    "rope": ({"x": ("activation", (B, 24))}, {"out": (B, 24)}, {"head_dim": 4}, (0, 0, 0, 0), 3 * B * 24, 0),
    "rmsnorm": (
        {"x": ("activation", (B, 8)), "weight": ("weight", (8,))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        4 * B * 8,
        B,
    ),
    "layernorm": (
        {"x": ("activation", (B, 8)), "weight": ("weight", (8,)), "bias": ("weight", (8,))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        7 * B * 8,
        B,
    ),
    "softmax": ({"x": ("activation", (B, 2, 8))}, {"out": (B, 2, 8)}, {}, (0, 0, 0, 0), 4 * B * 16, B * 2 * 9),
    "add": (
        {"a": ("activation", (B, 8)), "b": ("activation", (B, 8))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        B * 8,
        0,
    ),
    "mul": ({"a": ("activation", (B, 8)), "b": ("weight", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), B * 8, 0),
    "silu": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 2 * B * 8, 2 * B * 8),
    "gelu": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 8 * B * 8, B * 8),
    "swiglu": (
        {"gate": ("activation", (B, 8)), "up": ("activation", (B, 8))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        3 * B * 8,
        2 * B * 8,
    ),
    "head_norm": (
        {"x": ("activation", (B, 24)), "weight": ("weight", (4,))},
        {"out": (B, 24)},
        {"head_dim": 4},
        (0, 0, 0, 0),
        4 * B * 24,
        B * 6,
    ),
    "geglu": (
        {"gate": ("activation", (B, 8)), "up": ("activation", (B, 8))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        9 * B * 8,
        B * 8,
    ),
    "swiglu_clamped": (
        {"gate": ("activation", (B, 8)), "up": ("activation", (B, 8))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        7 * B * 8,
        2 * B * 8,
    ),
    "relu": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), B * 8, 0),
    "relu_squared": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 2 * B * 8, 0),
    "softcap": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 2 * B * 8, B * 8),
    "scale": (
        {"x": ("activation", (B, 8)), "weight": ("weight", (1,))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        B * 8,
        0,
    ),
    "sigmoid_scale": (
        {"x": ("activation", (B, 8)), "gate": ("activation", (B, 1))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        B * 8,
        2 * B,
    ),
    "copy": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 0, 0),
    "slice": ({"x": ("activation", (B, 8))}, {"out": (B, 2)}, {}, (0, 0, 0, 0), 0, 0),
    "select": ({"x": ("activation", (B, 8))}, {"out": (1, 8)}, {}, (0, 0, 0, 0), 0, 0),
    "keep": ({"weight": ("weight", (5, 8))}, {}, {}, (0, 0, 0, 0), 0, 0),
    "quantize": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 3 * B * 8, B),
    "topk": (
        {"scores": ("activation", (B, 10)), "bias": ("weight", (10,))},
        {"weights": (B, 2), "chosen": (B, 2)},
        {},
        (0, 0, 0, 0),
        B * ((4 + 2 + 1) * 10 + 2 * 2),
        B * 12,
    ),
    "expert_linear": (
        {
            "x": ("activation", (B, 8)),
            "chosen": ("activation", (B, 2)),
            "weight": ("expert", (10, 5, 8)),
            "bias": ("expert", (10, 5)),
        },
        {"out": (2 * B, 5)},
        {"loads": (3, 2, 1)},
        (0, 0, 0, 0),
        2 * B * 5,
        0,
    ),
    "combine": (
        {"x": ("activation", (2 * B, 8)), "weights": ("activation", (B, 2))},
        {"out": (B, 8)},
        {},
        (0, 0, 0, 0),
        2 * 2 * B * 8,
        0,
    ),
    "latent_norm": (
        {"x": ("activation", (B, 12)), "weight": ("weight", (8,))},
        {"out": (B, 12)},
        {},
        (0, 0, 0, 0),
        B * (4 * 8 + 3 * 4),
        B,
    ),
    "latent_gather": (
        {"x": ("activation", (B, 12)), "cache": ("kv", (1, 1, 7, 12))},
        {"out": (B + 7, 12)},
        {},
        (0, 0, 0, 0),
        0,
        0,
    ),
    "latent_expand": (
        {"x": ("activation", (B, 12)), "weight": ("weight", (2 * (5 + 3), 8))},
        {"k": (B, 2 * 9), "v": (B, 2 * 3)},
        {"heads": 2},
        (B, 16, 8, 1),
        0,
        0,
    ),
    "absorb_q": (
        {"x": ("activation", (B, 2 * 9)), "weight": ("weight", (2 * (5 + 3), 8))},
        {"out": (B, 2 * 12)},
        {"heads": 2, "nope": 5, "v_dim": 3},
        (B, 8, 5, 2),
        0,
        0,
    ),
    "absorb_v": (
        {"x": ("activation", (B, 2 * 8)), "weight": ("weight", (2 * (5 + 3), 8))},
        {"out": (B, 2 * 3)},
        {"heads": 2, "nope": 5, "v_dim": 3},
        (B, 3, 8, 2),
        0,
        0,
    ),
    "all_to_all": ({"x": ("activation", (B, 8))}, {"out": (5, 8)}, {"ways": 2, "leaves": 6}, (0, 0, 0, 0), 0, 0),
    "sample": ({"logits": ("activation", (B, 50))}, {"token": (B,)}, {}, (0, 0, 0, 0), B * 50, 0),
    "all_reduce": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 0, 0),
    "all_gather": ({"x": ("activation", (B, 8))}, {"out": (B, 32)}, {}, (0, 0, 0, 0), 0, 0),
    "send": ({"x": ("activation", (B, 8))}, {"out": (B, 8)}, {}, (0, 0, 0, 0), 0, 0),
}


# Bytes read where an op takes a part of a tensor.
PART = {
    "select": {"x": 4 * 8},
    "slice": {"x": 4 * B * 2},
    "keep": {"weight": 0},
    "expert_linear": {"weight": 3 * 5 * 8, "bias": 3 * 5},
    "absorb_q": {"weight": 2 * 5 * 8},
    "absorb_v": {"weight": 2 * 3 * 8},
}


def single(op, inputs, outputs, **attributes):
    """A graph of one op."""
    graph = new_graph("one op", batch=B, context=T, dtypes={"weight": "fp8", "kv": "fp16", "activation": "fp32"})
    for role, (kind, shape) in inputs.items():
        add_tensor(graph, role, kind, shape)
    add_op(graph, "op", op, {role: role for role in inputs}, outputs, **attributes)
    return graph


def test_every_operator_has_a_case():
    assert set(CASES) == set(OPS)
    assert all(op.unit in ("matrix", "vector", "link") and op.doc for op in OPS.values())


@pytest.mark.parametrize("op", CASES)
def test_work(op):
    inputs, outputs, attributes, gemm, vector, special = CASES[op]
    graph = single(op, inputs, outputs, **attributes)
    check_graph(graph)
    cost = op_cost(graph, "op")
    assert (cost.m, cost.n, cost.k, cost.batch_gemms) == gemm
    uneven = {"expert_linear": 2 * B * 5 * 8, "index_scores": 6 * B * (T + 1) * 4}
    macs = uneven[op] if op in uneven else gemm[0] * gemm[1] * gemm[2] * gemm[3]
    assert cost.macs == macs
    assert (cost.vector_ops, cost.special_ops, cost.unit) == (vector, special, OPS[op].unit)


@pytest.mark.parametrize("op", CASES)
def test_bytes(op):
    inputs, outputs, attributes, *_ = CASES[op]
    cost = op_cost(single(op, inputs, outputs, **attributes), "op")
    size = {"weight": 1, "expert": 1, "embedding": 1, "kv": 2, "activation": 4}

    def volume(shape):
        return shape[0] * volume(shape[1:]) if shape else 1

    expected = {role: size[kind] * volume(shape) for role, (kind, shape) in inputs.items()}
    if op == "embedding":
        expected["weight"] = B * 8
    expected |= PART.get(op, {})
    assert cost.reads == expected
    written = 2 if op == "kv_append" else 4
    assert cost.writes == {f"op.{role}": written * volume(shape) for role, shape in outputs.items()}


def test_attention_macs_as_the_papers_count_them():
    inputs, outputs, attributes, *_ = CASES["attention"]
    assert op_cost(single("attention", inputs, outputs, **attributes), "op").macs == 2 * B * HEADS * D * (T + 1)


def test_four_bit_tensors_round_up_to_whole_bytes():
    graph = new_graph("odd", dtypes={"weight": "int4"})
    add_tensor(graph, "x", "activation", (1, 3))
    add_tensor(graph, "w", "weight", (3, 3))
    add_op(graph, "op", "linear", {"x": "x", "weight": "w"}, {"out": (1, 3)})
    assert op_cost(graph, "op").reads == {"x": 6, "w": 5}
    assert op_cost(graph, "op").vector_ops == 0


def test_a_share_of_an_op_costs_its_share():
    inputs, _, attributes, *_ = CASES["attention"]
    half = {
        role: (kind, tuple(n // 2 if axis == 1 else n for axis, n in enumerate(shape)))
        for role, (kind, shape) in inputs.items()
    }
    whole = op_cost(single("attention", inputs, {"out": (B, HEADS * D)}, **attributes), "op")
    part = op_cost(single("attention", half, {"out": (B, HEADS * D // 2)}, heads=3, kv_heads=1, head_dim=D), "op")
    assert (part.macs * 2, part.special_ops * 2) == (whole.macs, whole.special_ops)


def test_adding_an_operator_is_adding_one_row(monkeypatch):
    row = Op(
        "The square of max(x, 0), scaled per column.",
        "vector",
        "x[... N] scale:weight[N] -> out[... N]",
        vector=lambda d: 3 * d["..."] * d["N"],
    )
    monkeypatch.setitem(OPS, "squared_relu", row)
    inputs = {"x": ("activation", (B, 8)), "scale": ("weight", (8,))}
    graph = single("squared_relu", inputs, {"out": (B, 8)})
    check_graph(graph)
    assert op_cost(graph, "op").vector_ops == 3 * B * 8
    graph.nodes["scale"]["shape"] = (7,)
    with pytest.raises(GraphError, match=r"scale has shape \(7,\), and N in \[N\] must be 8, not 7 \(N = 8 from x\)"):
        check_graph(graph)


def test_signature_names_solve_each_other():
    roles = sum(parse_roles("k[B heads*dim] flag?[1] -> slot[B heads 1 dim]"), ())
    dims = match(roles, {"k": (2, 12), "slot": (2, 3, 1, 4)}, {})
    assert (dims["B"], dims["heads"], dims["dim"], dims["flag"]) == (2, 3, 4, 0)
    for slot in ((2, 3, 1, 5), (2, 3, 2, 4), (1, 3, 1, 4), (2, 3, 4)):
        with pytest.raises(MismatchError):
            match(roles, {"k": (2, 12), "slot": slot}, {})


def test_cost_of_an_op_that_lacks_a_tensor_says_which():
    graph = single("add", CASES["add"][0], {"out": (B, 8)})
    graph.remove_node("b")
    with pytest.raises(GraphError, match="no input tensor with role 'b'"):
        op_cost(graph, "op")
