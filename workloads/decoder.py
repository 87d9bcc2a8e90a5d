"""Model + Request -> the graph of one decode step."""

from __future__ import annotations

import networkx as nx

from ..errors import StallscopeError
from .checks import problem
from .graph import add_op, add_tensor, new_graph
from .layers import Attention, Layer, Mlp
from .model import Model
from .request import Request
from .signature import Shape


def decode_graph(model: Model, request: Request) -> nx.DiGraph:
    """The graph in which every sequence of the batch produces one token. Nodes are added in the order of execution.

    Names follow Hugging Face modules ("model.layers.3.self_attn.q_proj"); a weight is "<op>.weight", a result
    "<op>.out". A request longer than the model was made for is a sentence in graph.graph["warnings"].
    """
    _refuse_others(model)
    graph = new_graph(model.name, request.batch, request.context, request.dtypes)
    graph.graph["phase"] = request.phase
    graph.graph["warnings"] = model.warnings + _length_warning(model, request)
    hidden = (request.batch, model.hidden_size)
    table = add_tensor(graph, "model.embed_tokens.weight", "embedding", (model.vocab_size, model.hidden_size))
    (x,) = add_op(graph, "model.embed_tokens", "embedding", {"weight": table}, {"out": hidden}, rows=request.batch)
    for number, layer in enumerate(model.layers):
        x = _Layer(graph, model, request, number, layer).add(x)
    add_tensor(graph, "model.norm.weight", "weight", (model.hidden_size,))
    (x,) = add_op(graph, "model.norm", "rmsnorm", {"x": x, "weight": "model.norm.weight"}, {"out": hidden})
    _add_head(graph, model, request, x, table)
    return graph


def _refuse_others(model: Model) -> None:
    """Raise StallscopeError for what is read and counted but not simulated yet: all but dense llama-like layers."""
    for layer in model.layer_kinds:
        attention, mlp = layer.attention, layer.mlp
        plain = isinstance(attention, Attention) and isinstance(mlp, Mlp) and layer == Layer(
            Attention(attention.heads, attention.kv_heads, attention.head_dim, window=attention.window,
                      qkv_bias=attention.qkv_bias, out_bias=attention.out_bias),
            Mlp(mlp.intermediate_size, bias=mlp.bias),
        )  # fmt: skip
        if not plain:
            kind = f"{type(attention).__name__} and {type(mlp).__name__} of layer {model.layers.index(layer)}"
            raise _unknown(model, f"{kind}: {layer}")
    outside = ("embedding_norm", "position_table", "embedding_size", "lm_head_bias", "logit_softcap")
    odd = [name for name in outside if getattr(model, name)]
    if odd or (model.norm.name, model.norm.weight, model.norm.bias, model.final_norm) != ("rmsnorm", True, False, True):
        raise _unknown(model, f"{', '.join(odd) or model.norm}")


def _unknown(model: Model, found: str) -> StallscopeError:
    where, expected = f"model {model.name!r} ({model.source})", "layers as in llama, mistral and qwen2"
    return problem(where, found, expected, "It is read and counted, but not simulated yet.")


def _length_warning(model: Model, request: Request) -> tuple[str, ...]:
    longest = model.max_position_embeddings
    if longest is None or request.context <= longest:
        return ()
    return (
        f"context {request.context} is longer than the {longest} tokens that {model.name} was made for "
        "(max_position_embeddings): the time is right, the text would not be.",
    )


def _add_head(graph: nx.DiGraph, model: Model, request: Request, x: str, table: str) -> None:
    tied = {"tied_to": table} if model.tie_word_embeddings else {}
    add_tensor(graph, "lm_head.weight", "weight", (model.vocab_size, model.hidden_size), **tied)
    inputs = {"x": x, "weight": "lm_head.weight"}
    outputs = {"out": (request.batch, model.vocab_size)}
    (logits,) = add_op(graph, "lm_head", "linear", inputs, outputs, parallel="vocab")
    add_op(graph, "sample", "sample", {"logits": logits}, {"token": (request.batch,)})


class _Layer:
    """Adds one layer; every layer adds the same nodes in the same order."""

    def __init__(self, graph: nx.DiGraph, model: Model, request: Request, number: int, layer: Layer) -> None:
        assert isinstance(layer.attention, Attention)
        assert isinstance(layer.mlp, Mlp)
        self.graph, self.model, self.request, self.layer = graph, model, request, number
        self.attention, self.mlp, self.kept = layer.attention, layer.mlp, layer.attention_tokens(request.context)
        self.prefix = f"model.layers.{number}."

    def add(self, x: str) -> str:
        """Add attention and MLP with their norms and residuals; returns the new hidden state."""
        model = self.model
        normed = self.norm("input_layernorm", x)
        attended = self.attend(normed)
        x = self.op("attn_residual", "add", {"a": x, "b": attended}, model.hidden_size)
        normed = self.norm("post_attention_layernorm", x)
        inner, bias = self.mlp.intermediate_size, self.mlp.bias
        gate = self.linear("mlp.gate_proj", normed, inner, bias, "column")
        up = self.linear("mlp.up_proj", normed, inner, bias, "column")
        gated = self.op("mlp.swiglu", "swiglu", {"gate": gate, "up": up}, inner)
        down = self.linear("mlp.down_proj", gated, model.hidden_size, bias, "row")
        return self.op("mlp_residual", "add", {"a": x, "b": down}, model.hidden_size)

    def attend(self, x: str) -> str:
        """Projections, rotary positions, the append to the KV cache, attention, output projection."""
        model, batch, attention = self.model, self.request.batch, self.attention
        heads, kv_heads, head_dim = attention.heads, attention.kv_heads, attention.head_dim
        q = self.linear("self_attn.q_proj", x, heads * head_dim, attention.qkv_bias, "column")
        k = self.linear("self_attn.k_proj", x, kv_heads * head_dim, attention.qkv_bias, "column")
        v = self.linear("self_attn.v_proj", x, kv_heads * head_dim, attention.qkv_bias, "column")
        q = self.op("self_attn.q_rope", "rope", {"x": q}, heads * head_dim, head_dim=head_dim)
        k = self.op("self_attn.k_rope", "rope", {"x": k}, kv_heads * head_dim, head_dim=head_dim)
        slot = (batch, kv_heads, 1, head_dim)
        name = f"{self.prefix}self_attn.kv_append"
        outputs = {"k_slot": slot, "v_slot": slot}
        add_op(self.graph, name, "kv_append", {"k": k, "v": v}, outputs, layer=self.layer)
        cached = (batch, kv_heads, self.kept, head_dim)
        inputs = {"q": q, "k": k, "v": v}
        for role in ("k_cache", "v_cache"):
            inputs[role] = self.tensor(f"self_attn.{role}", "kv", cached)
        out = self.op(
            "self_attn.attention",
            "attention",
            inputs,
            heads * head_dim,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
        )
        return self.linear("self_attn.o_proj", out, model.hidden_size, attention.out_bias, "row")

    def norm(self, name: str, x: str) -> str:
        """Add an RMSNorm and its weight."""
        weight = self.tensor(f"{name}.weight", "weight", (self.model.hidden_size,))
        return self.op(name, "rmsnorm", {"x": x, "weight": weight}, self.model.hidden_size)

    def linear(self, name: str, x: str, width: int, bias: bool, parallel: str) -> str:
        """Add a projection to `width` columns, its weight, and its bias if it has one."""
        k = self.graph.nodes[x]["shape"][-1]
        inputs = {"x": x, "weight": self.tensor(f"{name}.weight", "weight", (width, k))}
        if bias:
            inputs["bias"] = self.tensor(f"{name}.bias", "weight", (width,))
        return self.op(name, "linear", inputs, width, parallel=parallel)

    def op(self, name: str, op: str, inputs: dict[str, str], width: int, **attributes: int | str) -> str:
        """Add an op of this layer with one output [batch, width]; returns the output."""
        outputs = {"out": (self.request.batch, width)}
        return add_op(self.graph, self.prefix + name, op, inputs, outputs, layer=self.layer, **attributes)[0]

    def tensor(self, name: str, kind: str, shape: Shape) -> str:
        """Add a weight or cache of this layer."""
        return add_tensor(self.graph, self.prefix + name, kind, shape, layer=self.layer)
