"""The parts of one decoder layer as numbers: attention, MLP or experts, and where its norms are."""

from __future__ import annotations

from dataclasses import dataclass

NORMS = ("pre", "post", "both", "after")
"""Where a layer's norms are: before each branch; behind it, ahead of the residual add (OLMo-2); both (Gemma-2); or
behind the residual add, as in the first Transformers (opt-350m)."""

QK_NORMS = ("head", "heads", "row", "bare")
"""Norms of Q and K: per head with one weight for all heads (Qwen3), per head with a weight of its own (Cohere), over
the whole projection (OLMo-2), or per head without a weight (Llama 4)."""

ACTIVATIONS = ("silu", "gelu", "relu", "relu2", "swiglu_clamped")
"""Functions of an MLP: gelu stands for its approximations too; relu2 is relu squared; swiglu_clamped is gpt-oss's."""


@dataclass(frozen=True)
class Cache:
    """What a layer keeps of every token of one sequence: `heads` rows of `width` elements."""

    name: str
    """Below the layer's prefix: "self_attn.k_cache"."""
    heads: int
    width: int

    @property
    def elements(self) -> int:
        """Elements per token."""
        return self.heads * self.width


@dataclass(frozen=True)
class Attention:
    """Multi-head, grouped-query or multi-query attention."""

    heads: int
    kv_heads: int
    head_dim: int
    """Width of a head of Q and K."""
    v_head_dim: int | None = None
    """Width of a head of V and of the output; None: head_dim."""
    window: int | None = None
    """Cached tokens that are attended to at most. None: all."""
    qkv_bias: bool = False
    out_bias: bool = False
    qk_norm: str | None = None
    """One of QK_NORMS, or None."""
    qk_norm_bias: bool = False
    v_norm: bool = False
    """V passes a norm without a weight (Gemma 4)."""
    v_is_k: bool = False
    """There is no v_proj: V is K as projected, before its norm and positions (Gemma 4); both are cached."""
    softcap: float | None = None
    """Scores become cap x tanh(score / cap)."""
    sinks: bool = False
    """Each head has a learned score that joins the softmax (gpt-oss)."""
    rope_dim: int | None = None
    """Elements of each head that are rotated; None: all of them; 0: none (learned positions, ALiBi, NoPE)."""
    alibi: bool = False
    """A slope per head times the distance is added to the scores."""

    @property
    def value_dim(self) -> int:
        """Width of a head of V."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    @property
    def caches(self) -> tuple[Cache, ...]:
        """What is kept per token."""
        k = Cache("self_attn.k_cache", self.kv_heads, self.head_dim)
        return k, Cache("self_attn.v_cache", self.kv_heads, self.value_dim)


@dataclass(frozen=True)
class Indexer:
    """Picks the cached tokens that latent attention reads (DeepSeek-V3.2): all of its own keys are read, then top_k
    latents."""

    heads: int
    head_dim: int
    top_k: int


@dataclass(frozen=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek): one latent and one shared rotary key per token are kept for all heads."""

    heads: int
    kv_lora_rank: int
    """Width of the latent."""
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    q_lora_rank: int | None = None
    """Rank of the query's two projections; None: one full projection."""
    bias: bool = False
    """q_a_proj, kv_a_proj_with_mqa and o_proj have biases."""
    indexer: Indexer | None = None
    window: int | None = None

    @property
    def qk_head_dim(self) -> int:
        """Width of a head of Q and K: the part without positions and the rotary part."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def caches(self) -> tuple[Cache, ...]:
        """What is kept per token."""
        latent = Cache("self_attn.latent_cache", 1, self.kv_lora_rank + self.qk_rope_head_dim)
        if self.indexer is None:
            return (latent,)
        return latent, Cache("self_attn.index_cache", 1, self.indexer.head_dim)


@dataclass(frozen=True)
class Mlp:
    """down(act(gate(x)) * up(x)) if gated, else down(act(up(x)))."""

    intermediate_size: int
    gated: bool = True
    activation: str = "silu"
    """One of ACTIVATIONS."""
    bias: bool = False


@dataclass(frozen=True)
class Experts:
    """A mixture of experts: each token is sent to the top_k of `count` MLPs that a router picks."""

    count: int
    top_k: int
    intermediate_size: int
    """Of one expert."""
    gated: bool = True
    activation: str = "silu"
    bias: bool = False
    """Every expert's projections have biases (gpt-oss)."""
    shared: Mlp | None = None
    """An MLP that every token passes beside its experts: all shared experts as one."""
    shared_gate: bool = False
    """The shared MLP's output is scaled by the sigmoid of one more column of x (Qwen2-MoE)."""
    router_bias: bool = False
    """The router's projection has a bias."""
    correction_bias: bool = False
    """A learned term per expert is added to the scores that pick, not to those that weigh (DeepSeek-V3)."""
    router_scales: bool = False
    """The router has a norm with a scale per column and a scale per expert, and the experts and the MLP beside them
    norms of their own (Gemma 4)."""


@dataclass(frozen=True)
class Layer:
    """One layer: attention and an MLP or experts, each added to the hidden state. None: a layer without (Nemotron)."""

    attention: Attention | LatentAttention | None
    mlp: Mlp | Experts | None
    norms: str = "pre"
    """One of NORMS."""
    parallel: bool = False
    """Attention and MLP read the same hidden state, and both results are added at once."""
    shared_norm: bool = False
    """In a parallel layer: one norm for both branches (GPT-J, Falcon-7B); else each has its own (GPT-NeoX)."""
    scalar: bool = False
    """The layer's result is scaled by one learned number (Gemma 4)."""

    @property
    def caches(self) -> tuple[Cache, ...]:
        """What the layer keeps of every token."""
        return () if self.attention is None else self.attention.caches

    def attention_tokens(self, context: int) -> int:
        """Cached tokens that the layer reads and keeps: min(context, window), per sequence."""
        window = None if self.attention is None else self.attention.window
        return context if window is None else min(context, window)
