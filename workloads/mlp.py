"""MLPs and mixtures of experts as ops."""

from __future__ import annotations

from .build import Builder
from .layers import Experts, Mlp
from .routing import expert_loads

GLU = {"silu": "swiglu", "gelu": "geglu", "swiglu_clamped": "swiglu_clamped"}
"""Activations whose product with `up` is one op."""
ACTS = {"relu2": "relu_squared", "swiglu_clamped": "silu"}
"""Ops of activations, where they are not called like them."""


def add_mlp(b: Builder, name: str, mlp: Mlp, x: str, later: bool = False) -> str:
    """An MLP, gated or not; returns down_proj's result."""
    gate = b.linear(f"{name}.gate_proj", x, "column") if mlp.gated else None
    up = b.linear(f"{name}.up_proj", x, "column")
    return b.linear(f"{name}.down_proj", _activated(b, name, mlp.activation, gate, up), "row", later)


def _activated(b: Builder, name: str, activation: str, gate: str | None, up: str) -> str:
    width, rows = b.width(up), int(b.graph.nodes[up]["shape"][0])
    if gate is None:
        return b.op(f"{name}.act", ACTS.get(activation, activation), {"x": up}, width, rows)
    if activation in GLU:
        op = GLU[activation]
        return b.op(f"{name}.{op}", op, {"gate": gate, "up": up}, width, rows)
    act = b.op(f"{name}.act", ACTS.get(activation, activation), {"x": gate}, width, rows)
    return b.op(f"{name}.gated", "mul", {"a": act, "b": up}, width, rows)


def add_experts(b: Builder, experts: Experts, x: str, later: bool = False) -> str:
    """Router, the experts that the tokens are sent to, their weighted sum, and the MLP beside them."""
    hidden, ep, name = b.width(x), b.request.ep, "mlp.experts"
    chosen, weights = _route(b, experts, x)
    loads = expert_loads(b.request.routing, experts.count, experts.top_k, b.rows, b.request.seed, b.layer or 0, ep)
    pairs, leaves = sum(loads), b.rows * experts.top_k
    source = b.norm("pre_experts_layernorm", x) if b.has("pre_experts_layernorm.weight") else x
    if ep > 1:
        source = b.op(f"{name}.dispatch", "all_to_all", {"x": source}, hidden, pairs, ways=ep, leaves=leaves)
    gate = _expert_linear(b, f"{name}.gate_proj", source, chosen, pairs, loads, "column") if experts.gated else None
    up = _expert_linear(b, f"{name}.up_proj", source, chosen, pairs, loads, "column")
    inner = _activated(b, name, experts.activation, gate, up)
    down = _expert_linear(b, f"{name}.down_proj", inner, chosen, pairs, loads, "row")
    if ep > 1:
        down = b.op(f"{name}.collect", "all_to_all", {"x": down}, hidden, leaves, ways=ep, leaves=pairs)
    keep = later or experts.shared is not None
    later = later and not experts.router_scales
    keep = keep and not experts.router_scales
    out = b.op(f"{name}.combine", "combine", {"x": down, "weights": weights}, hidden, **({"later": 1} if keep else {}))
    if b.has("post_experts_layernorm.weight"):
        out = b.norm("post_experts_layernorm", out)
    if experts.shared is None:
        return out
    beside = add_mlp(b, "mlp.shared_expert", experts.shared, x, later=keep)
    if experts.shared_gate:
        gate_of = b.linear("mlp.shared_expert_gate", x, None)
        beside = b.op("mlp.shared_expert_scaled", "sigmoid_scale", {"x": beside, "gate": gate_of}, hidden)
    if b.has("post_shared_layernorm.weight"):
        beside = b.norm("post_shared_layernorm", beside)
    return b.op("mlp.sum", "add", {"a": out, "b": beside}, hidden, **({"later": 1} if later else {}))


def _route(b: Builder, experts: Experts, x: str) -> tuple[str, str]:
    """Scores of all experts, and the top_k of each token: (which, their weights)."""
    if b.has("mlp.router.scale"):
        x = b.op("mlp.router.norm", "rmsnorm", {"x": x, "weight": b.weight("mlp.router.scale")}, b.width(x))
    scores = b.linear("mlp.router", x, None)
    inputs = {"scores": scores}
    for role, name in (("bias", "e_score_correction_bias"), ("scale", "per_expert_scale")):
        if b.has(f"mlp.router.{name}"):
            inputs[role] = b.weight(f"mlp.router.{name}")
    shape = (b.rows, experts.top_k)
    weights, chosen = b.many("mlp.topk", "topk", inputs, {"weights": shape, "chosen": shape})
    return chosen, weights


def _expert_linear(
    b: Builder, name: str, x: str, chosen: str, pairs: int, loads: tuple[int, ...], parallel: str
) -> str:
    weight = b.weight(f"{name}.weight")
    data = b.graph.nodes[weight]
    inputs = {"x": b.quantised(x, data["dtype"]), "chosen": chosen, "weight": weight}
    if b.has(f"{name}.bias"):
        inputs["bias"] = b.weight(f"{name}.bias")
    return b.op(name, "expert_linear", inputs, data["shape"][1], pairs, parallel=parallel, loads=loads)
