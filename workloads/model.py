"""A dense decoder as numbers: its sizes under Hugging Face names, its parameters, its KV cache."""

from __future__ import annotations

from dataclasses import dataclass

from .checks import SIZE_LIMIT, positive_int, problem
from .dtypes import VALUE_DTYPES, check_dtype, dtype_bytes

LAYER_LIMIT = 4096
CONTEXT_LIMIT = 2**31


@dataclass(frozen=True)
class Model:
    """A pre-norm decoder with rotary positions, RMSNorm, SwiGLU and grouped-query attention.

    Fields have the names of Hugging Face's config.json. Raises StallscopeError for sizes that make no model.
    """

    name: str
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    max_position_embeddings: int | None = None
    """Longest context that the model was made for; a longer request warns. None: unknown."""
    tie_word_embeddings: bool = False
    """The head is the embedding table: stored once, read whole by the head."""
    attention_bias: bool = False
    """q_proj, k_proj and v_proj have biases."""
    attention_out_bias: bool = False
    """o_proj has one too (llama's attention_bias means all four, qwen2's only the first three)."""
    mlp_bias: bool = False
    """gate_proj, up_proj and down_proj have biases."""
    sliding_window: int | None = None
    """Every layer attends to at most so many cached tokens. None: to all."""
    source: str = "given in Python"
    """Where the numbers are from: a file, or a public source."""
    warnings: tuple[str, ...] = ()
    """What a user should know before trusting results of this model."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        where = f"model {self.name!r} ({self.source})"
        for field in SIZES:
            positive_int(getattr(self, field), f"{where}: {field}", size_limit(field))
        for field in ("max_position_embeddings", "sliding_window"):
            if getattr(self, field) is not None:
                positive_int(getattr(self, field), f"{where}: {field}", CONTEXT_LIMIT)
        heads, kv_heads = self.num_attention_heads, self.num_key_value_heads
        if heads % kv_heads:
            found = f"num_attention_heads {heads} and num_key_value_heads {kv_heads}"
            expected = "query heads that share KV heads evenly (the first a multiple of the second)"
            raise problem(where, found, expected, "Correct one of them.")

    @property
    def embedding_params(self) -> int:
        """Elements of the token embedding table."""
        return self.vocab_size * self.hidden_size

    @property
    def layer_params(self) -> int:
        """Parameters of one layer: projections, biases, both norms."""
        hidden, inner = self.hidden_size, self.intermediate_size
        q, kv = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        matrices = hidden * (2 * q + 2 * kv) + 3 * hidden * inner
        biases = self.attention_bias * (q + 2 * kv) + self.attention_out_bias * hidden
        biases += self.mlp_bias * (2 * inner + hidden)
        return matrices + biases + 2 * hidden

    @property
    def params(self) -> int:
        """All parameters, a tied table counted once."""
        head = 0 if self.tie_word_embeddings else self.embedding_params
        return self.embedding_params + self.num_hidden_layers * self.layer_params + self.hidden_size + head

    @property
    def params_read_per_token(self) -> int:
        """Parameters that one decode step reads: all but the embedding table, unless that is the head too."""
        return self.params - (0 if self.tie_word_embeddings else self.embedding_params)

    def attention_tokens(self, context: int) -> int:
        """Cached tokens that a layer reads and keeps: min(context, window), per sequence."""
        return context if self.sliding_window is None else min(context, self.sliding_window)

    def kv_bytes(self, tokens: int, dtype: str = "bf16", batch: int = 1) -> int:
        """Bytes of the KV cache of `batch` sequences of `tokens` tokens, all layers, cut to the window.

        Raises StallscopeError for an unknown dtype.
        """
        check_dtype(dtype, "kv_bytes: dtype", VALUE_DTYPES)
        elements = batch * self.num_key_value_heads * self.attention_tokens(tokens) * self.head_dim
        return 2 * self.num_hidden_layers * dtype_bytes(elements, dtype)


def size_limit(field: str) -> int:
    """Largest value that a size may have: beyond it the number is surely a slip."""
    return {"num_hidden_layers": LAYER_LIMIT}.get(field, SIZE_LIMIT)


SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)
"""The sizes that every model must have."""
