"""Model + Request -> the graph of one decode step."""

from __future__ import annotations

import networkx as nx

from .graph import add_op, add_tensor, new_graph
from .model import Model
from .request import Request
from .signature import Shape


def decode_graph(model: Model, request: Request) -> nx.DiGraph:
    """The graph in which every sequence of the batch produces one token. Nodes are added in the order of execution.

    Names follow Hugging Face modules ("model.layers.3.self_attn.q_proj"); a weight is "<op>.weight", a result
    "<op>.out". A request longer than the model was made for is a sentence in graph.graph["warnings"].
    """
    graph = new_graph(model.name, request.batch, request.context, request.dtypes)
    graph.graph["phase"] = request.phase
    graph.graph["warnings"] = model.warnings + _length_warning(model, request)
    hidden = (request.batch, model.hidden_size)
    table = add_tensor(graph, "model.embed_tokens.weight", "embedding", (model.vocab_size, model.hidden_size))
    (x,) = add_op(graph, "model.embed_tokens", "embedding", {"weight": table}, {"out": hidden}, rows=request.batch)
    for layer in range(model.num_hidden_layers):
        x = _Layer(graph, model, request, layer).add(x)
    add_tensor(graph, "model.norm.weight", "weight", (model.hidden_size,))
    (x,) = add_op(graph, "model.norm", "rmsnorm", {"x": x, "weight": "model.norm.weight"}, {"out": hidden})
    _add_head(graph, model, request, x, table)
    return graph


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

    def __init__(self, graph: nx.DiGraph, model: Model, request: Request, layer: int) -> None:
        self.graph, self.model, self.request, self.layer = graph, model, request, layer
        self.prefix = f"model.layers.{layer}."

    def add(self, x: str) -> str:
        """Add attention and MLP with their norms and residuals; returns the new hidden state."""
        model = self.model
        normed = self.norm("input_layernorm", x)
        attended = self.attention(normed)
        x = self.op("attn_residual", "add", {"a": x, "b": attended}, model.hidden_size)
        normed = self.norm("post_attention_layernorm", x)
        inner, bias = model.intermediate_size, model.mlp_bias
        gate = self.linear("mlp.gate_proj", normed, inner, bias, "column")
        up = self.linear("mlp.up_proj", normed, inner, bias, "column")
        gated = self.op("mlp.swiglu", "swiglu", {"gate": gate, "up": up}, inner)
        down = self.linear("mlp.down_proj", gated, model.hidden_size, bias, "row")
        return self.op("mlp_residual", "add", {"a": x, "b": down}, model.hidden_size)

    def attention(self, x: str) -> str:
        """Projections, rotary positions, the append to the KV cache, attention, output projection."""
        model, batch = self.model, self.request.batch
        heads, kv_heads, head_dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        q = self.linear("self_attn.q_proj", x, heads * head_dim, model.attention_bias, "column")
        k = self.linear("self_attn.k_proj", x, kv_heads * head_dim, model.attention_bias, "column")
        v = self.linear("self_attn.v_proj", x, kv_heads * head_dim, model.attention_bias, "column")
        q = self.op("self_attn.q_rope", "rope", {"x": q}, heads * head_dim, head_dim=head_dim)
        k = self.op("self_attn.k_rope", "rope", {"x": k}, kv_heads * head_dim, head_dim=head_dim)
        slot = (batch, kv_heads, 1, head_dim)
        name = f"{self.prefix}self_attn.kv_append"
        outputs = {"k_slot": slot, "v_slot": slot}
        add_op(self.graph, name, "kv_append", {"k": k, "v": v}, outputs, layer=self.layer)
        cached = (batch, kv_heads, model.attention_tokens(self.request.context), head_dim)
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
        return self.linear("self_attn.o_proj", out, model.hidden_size, model.attention_out_bias, "row")

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
