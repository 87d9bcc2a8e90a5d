"""Every weight tensor of a model by name and shape: the one list that counts and graphs are made from."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from .layers import Attention, Experts, LatentAttention, Layer, Mlp

PARTS = ("embedding", "position", "norm", "attention", "mlp", "router", "experts", "shared", "lm_head", "prediction")
"""What a weight belongs to; formats differ by these."""


@dataclass(frozen=True)
class Weight:
    """One weight tensor."""

    name: str
    """Below its layer: "self_attn.q_proj.weight"; outside of layers the whole name: "model.embed_tokens.weight"."""
    shape: tuple[int, ...]
    """[outputs, inputs] of a projection; experts stand in front of it: [experts, outputs, inputs]."""
    part: str
    """One of PARTS."""
    used: int | None = None
    """How many of the first dimension's slices one token reads: 1 of a table, top_k of the experts. None: all."""
    tied_to: str | None = None
    """The tensor that is stored in this one's place."""

    @property
    def elements(self) -> int:
        """Elements of the whole tensor."""
        return prod(self.shape)

    @property
    def used_elements(self) -> int:
        """Elements that one token reads."""
        return self.elements if self.used is None else self.elements // self.shape[0] * self.used


@dataclass(frozen=True)
class NormKind:
    """The norms of a model."""

    name: str = "rmsnorm"
    """"rmsnorm" or "layernorm"."""
    weight: bool = True
    """False: nothing is learned (the first OLMo)."""
    bias: bool = False

    def weights(self, name: str, *shape: int) -> Iterator[Weight]:
        """The tensors of one norm."""
        if self.weight:
            yield Weight(f"{name}.weight", shape, "norm")
        if self.bias:
            yield Weight(f"{name}.bias", shape, "norm")


RMSNORM = NormKind()


def linear(name: str, outputs: int, inputs: int, part: str, bias: bool = False) -> Iterator[Weight]:
    """A projection, and its bias if it has one."""
    yield Weight(f"{name}.weight", (outputs, inputs), part)
    if bias:
        yield Weight(f"{name}.bias", (outputs,), part)


def layer_weights(layer: Layer, hidden: int, norm: NormKind) -> Iterator[Weight]:
    """All weights of one layer, in the order of their use.

    Norms have Hugging Face's names, so the norm before the MLP is called post_attention_layernorm where there is none
    behind attention.
    """
    pre, post = layer.norms in ("pre", "both"), layer.norms in ("post", "both", "after")
    if layer.attention is not None:
        if pre:
            yield from norm.weights("input_layernorm", hidden)
        if isinstance(layer.attention, LatentAttention):
            yield from _latent(layer.attention, hidden, norm)
        else:
            yield from _attention(layer.attention, hidden, norm)
        if post:
            yield from norm.weights("post_attention_layernorm", hidden)
    if layer.mlp is not None:
        if pre and not layer.shared_norm:
            name = "post_attention_layernorm" if layer.norms == "pre" else "pre_feedforward_layernorm"
            yield from norm.weights(name, hidden)
        if isinstance(layer.mlp, Experts):
            yield from _experts(layer.mlp, hidden, norm)
        else:
            yield from _mlp("mlp", layer.mlp, hidden, "mlp")
        if post:
            yield from norm.weights("post_feedforward_layernorm", hidden)
    if layer.scalar:
        yield Weight("layer_scalar", (1,), "norm")


def _attention(attention: Attention, hidden: int, norm: NormKind) -> Iterator[Weight]:
    bias, dim = attention.qkv_bias, attention.head_dim
    q, k = attention.heads * dim, attention.kv_heads * dim
    yield from linear("self_attn.q_proj", q, hidden, "attention", bias)
    yield from linear("self_attn.k_proj", k, hidden, "attention", bias)
    if not attention.v_is_k:
        yield from linear("self_attn.v_proj", attention.kv_heads * attention.value_dim, hidden, "attention", bias)
    if attention.qk_norm not in (None, "bare"):
        kind = NormKind(norm.name, bias=attention.qk_norm_bias)
        yield from kind.weights("self_attn.q_norm", dim if attention.qk_norm == "head" else q)
        yield from kind.weights("self_attn.k_norm", dim if attention.qk_norm == "head" else k)
    if attention.sinks:
        yield Weight("self_attn.sinks", (attention.heads,), "attention")
    wide = attention.heads * attention.value_dim
    yield from linear("self_attn.o_proj", hidden, wide, "attention", attention.out_bias)


def _latent(attention: LatentAttention, hidden: int, norm: NormKind) -> Iterator[Weight]:
    heads, rank, bias = attention.heads, attention.kv_lora_rank, attention.bias
    q = heads * attention.qk_head_dim
    if attention.q_lora_rank is None:
        yield from linear("self_attn.q_proj", q, hidden, "attention")
    else:
        yield from linear("self_attn.q_a_proj", attention.q_lora_rank, hidden, "attention", bias)
        yield from norm.weights("self_attn.q_a_layernorm", attention.q_lora_rank)
        yield from linear("self_attn.q_b_proj", q, attention.q_lora_rank, "attention")
    yield from linear("self_attn.kv_a_proj_with_mqa", rank + attention.qk_rope_head_dim, hidden, "attention", bias)
    yield from norm.weights("self_attn.kv_a_layernorm", rank)
    up = heads * (attention.qk_nope_head_dim + attention.v_head_dim)
    yield from linear("self_attn.kv_b_proj", up, rank, "attention")
    indexer = attention.indexer
    if indexer is not None:
        keys = attention.q_lora_rank or hidden
        yield from linear("self_attn.indexer.wq_b", indexer.heads * indexer.head_dim, keys, "attention")
        yield from linear("self_attn.indexer.wk", indexer.head_dim, hidden, "attention")
        yield from NormKind("layernorm", bias=True).weights("self_attn.indexer.k_norm", indexer.head_dim)
        yield from linear("self_attn.indexer.weights_proj", indexer.heads, hidden, "attention")
    yield from linear("self_attn.o_proj", hidden, heads * attention.v_head_dim, "attention", bias)


def _mlp(name: str, mlp: Mlp, hidden: int, part: str) -> Iterator[Weight]:
    if mlp.gated:
        yield from linear(f"{name}.gate_proj", mlp.intermediate_size, hidden, part, mlp.bias)
    yield from linear(f"{name}.up_proj", mlp.intermediate_size, hidden, part, mlp.bias)
    yield from linear(f"{name}.down_proj", hidden, mlp.intermediate_size, part, mlp.bias)


def _experts(experts: Experts, hidden: int, norm: NormKind) -> Iterator[Weight]:
    yield from linear("mlp.router", experts.count, hidden, "router", experts.router_bias)
    if experts.correction_bias:
        yield Weight("mlp.router.e_score_correction_bias", (experts.count,), "router")
    if experts.router_scales:
        yield Weight("mlp.router.scale", (hidden,), "router")
        yield Weight("mlp.router.per_expert_scale", (experts.count,), "router")
        for name in ("pre_experts_layernorm", "post_experts_layernorm", "post_shared_layernorm"):
            yield from norm.weights(name, hidden)
    one = Mlp(experts.intermediate_size, experts.gated, experts.activation, experts.bias)
    for weight in _mlp("mlp.experts", one, hidden, "experts"):
        yield Weight(weight.name, (experts.count, *weight.shape), "experts", experts.top_k)
    if experts.shared is not None:
        yield from _mlp("mlp.shared_expert", experts.shared, hidden, "shared")
        if experts.shared_gate:
            yield from linear("mlp.shared_expert_gate", 1, hidden, "shared")
