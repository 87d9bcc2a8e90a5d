"""Model + Request -> the graph of one step."""

from __future__ import annotations

import networkx as nx

from .attention import add_attention, add_latent_attention
from .build import Builder
from .checks import positive_int, problem
from .graph import add_op, new_graph
from .layers import Experts, LatentAttention, Layer
from .mlp import add_experts, add_mlp
from .model import Model
from .request import Request
from .spans import Span
from .types import graph_types, part_types


def decode_graph(model: Model, request: Request, step: int = 0) -> nx.DiGraph:
    """The graph of one step of a request's plan, the first unless said otherwise. Nodes are added in the order of
    execution.

    Names follow Hugging Face modules ("model.layers.3.self_attn.q_proj"); a weight is "<op>.weight", a result
    "<op>.out". A request longer than the model was made for, or of parts that it does not
    have, is a sentence in graph.graph["warnings"].
    """
    plan = request.plan
    positive_int(step, "decode_graph: step", len(plan) - 1, least=0)
    spans = plan[step]
    types = part_types(model, request)
    graph = new_graph(model.name, request.batch // request.ep, max(span.cached for span in spans), graph_types(types))
    graph.graph["phase"] = request.phase
    if request.ep > 1:
        _check_experts(model, request)
        graph.graph["replicas"] = request.ep
    if request.phase != "decode" or len(spans) > 1 or request.prefix:
        graph.graph["spans"] = tuple(map(tuple, spans))
    graph.graph["warnings"] = model.warnings + _length_warning(model, spans) + _idle_warnings(model, request)
    b = Builder(graph, model, request, spans, types).part("", None, (*model.first_weights, *model.last_weights))
    x = _first(b)
    for number, layer in enumerate(model.layers):
        x = _layer(b.part(f"model.layers.{number}.", number, model.layer_weights(layer)), layer, x)
    _last(b, x)
    _keep_prediction(b)
    return graph


def _check_experts(model: Model, request: Request) -> None:
    counts = {layer.mlp.count for layer in model.layer_kinds if isinstance(layer.mlp, Experts)}
    if not counts or any(count % request.ep for count in counts):
        found = f"{request.ep} chips for {', '.join(map(str, sorted(counts))) or 'no'} experts of {model.name}"
        raise problem("request: ep", found, "a divisor of the number of experts", "Change ep.")


def _idle_warnings(model: Model, request: Request) -> tuple[str, ...]:
    """What is asked of parts that the model does not have."""
    experts = any(isinstance(layer.mlp, Experts) for layer in model.layer_kinds)
    latents = any(isinstance(layer.attention, LatentAttention) for layer in model.layer_kinds)
    asked = (
        ("expert", request.expert, None, experts, "experts"),
        ("routing", request.routing, "uniform", experts, "experts"),
        ("latent", request.latent, "auto", latents, "latent attention"),
    )
    return tuple(
        f"{name} {value} has no effect: {model.name} has no {part}."
        for name, value, default, there, part in asked
        if value != default and not there
    )


def _length_warning(model: Model, spans: tuple[Span, ...]) -> tuple[str, ...]:
    longest, asked = model.max_position_embeddings, max(s.cached + s.new - 1 for s in spans)
    if longest is None or asked <= longest:
        return ()
    return (
        f"context {asked} is longer than the {longest} tokens that {model.name} was made for "
        "(max_position_embeddings): the time is right, the text would not be.",
    )


def _first(b: Builder) -> str:
    """Embeddings of tokens, and of positions where they are learned."""
    table = b.weight("model.embed_tokens.weight")
    x = b.op("model.embed_tokens", "embedding", {"weight": table}, b.graph.nodes[table]["shape"][1], rows=b.rows)
    if b.has("model.project_in.weight"):
        x = b.linear("model.project_in", x, None)
    if b.has("model.embed_positions.weight"):
        table = b.weight("model.embed_positions.weight")
        at = b.op("model.embed_positions", "embedding", {"weight": table}, b.model.hidden_size, rows=b.rows)
        x = b.op("model.embed_sum", "add", {"a": x, "b": at}, b.model.hidden_size)
    return b.norm("model.embed_layernorm", x) if b.model.embedding_norm else x


def _last(b: Builder, x: str) -> None:
    """Final norm, the rows that a token is drawn from, head, and the draw."""
    if b.model.final_norm:
        x = b.norm("model.norm", x)
    rows = sum(s.rows if b.request.phase == "verify" else s.sequences for s in b.spans)
    if rows < b.rows:
        x = b.op("model.select", "select", {"x": x}, b.width(x), rows)
    if b.has("model.project_out.weight"):
        x = b.linear("model.project_out", x, None)
    logits = b.linear("lm_head", x, "vocab")
    if b.model.logit_softcap is not None:
        logits = b.op("logit_softcap", "softcap", {"x": logits}, b.width(logits), rows)
    add_op(b.graph, "sample", "sample", {"logits": logits}, {"token": (rows,)})


def _keep_prediction(b: Builder) -> None:
    """Heads that predict further tokens are stored beside the model; no step of the model itself runs them."""
    for number, layer in enumerate(b.model.prediction_layers):
        part = b.part(f"model.prediction.{number}.", None, b.model.prediction_weights(layer))
        for name in part.weights:
            part.many(f"{name}.keep", "keep", {"weight": part.weight(name)}, {})


def _layer(b: Builder, layer: Layer, x: str) -> str:
    """Attention and MLP with their norms and residuals; returns the new hidden state."""
    hidden = b.model.hidden_size
    if layer.parallel and layer.attention is not None and layer.mlp is not None:
        normed = b.norm("input_layernorm", x)
        other = normed if layer.shared_norm else b.norm("post_attention_layernorm", x)
        attended, made = _attend(b, layer, normed, True), _mlp(b, layer, other, True)
        both = b.op("branch_sum", "add", {"a": attended, "b": made}, hidden)
        return _scaled(b, layer, b.op("residual", "add", {"a": x, "b": both}, hidden))
    pre, behind = layer.norms in ("pre", "both"), layer.norms in ("post", "both")
    if layer.attention is not None:
        out = _attend(b, layer, b.norm("input_layernorm", x) if pre else x)
        out = b.norm("post_attention_layernorm", out) if behind else out
        x = b.op("attn_residual", "add", {"a": x, "b": out}, hidden)
        x = b.norm("post_attention_layernorm", x) if layer.norms == "after" else x
    if layer.mlp is not None:
        name = "post_attention_layernorm" if layer.norms == "pre" else "pre_feedforward_layernorm"
        out = _mlp(b, layer, b.norm(name, x) if pre else x)
        out = b.norm("post_feedforward_layernorm", out) if behind else out
        x = b.op("mlp_residual", "add", {"a": x, "b": out}, hidden)
        x = b.norm("post_feedforward_layernorm", x) if layer.norms == "after" else x
    return _scaled(b, layer, x)


def _scaled(b: Builder, layer: Layer, x: str) -> str:
    return b.op("layer_scale", "scale", {"x": x, "weight": b.weight("layer_scalar")}, b.width(x)) if layer.scalar else x


def _attend(b: Builder, layer: Layer, x: str, later: bool = False) -> str:
    attention = layer.attention
    assert attention is not None
    if not isinstance(attention, LatentAttention):
        return add_attention(b, attention, x, later)
    if attention.indexer is not None:
        if b.request.latent == "plain":
            raise problem("request: latent", "plain", "absorbed or auto: an indexer picks latents", "Change it.")
        return add_latent_attention(b, attention, x, True, later)
    absorbed = b.request.phase != "prefill" if b.request.latent == "auto" else b.request.latent == "absorbed"
    return add_latent_attention(b, attention, x, absorbed, later)


def _mlp(b: Builder, layer: Layer, x: str, later: bool = False) -> str:
    mlp = layer.mlp
    assert mlp is not None
    return add_experts(b, mlp, x, later) if isinstance(mlp, Experts) else add_mlp(b, "mlp", mlp, x, later)
