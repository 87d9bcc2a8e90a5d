"""A decoder as numbers: its layers one by one, its parameters, its KV cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property

from .checks import SIZE_LIMIT, positive_int, problem, shown
from .dtypes import VALUE_DTYPES, check_dtype, dtype_bytes
from .formats import Formats
from .layers import ACTIVATIONS, NORMS, QK_NORMS, Attention, Experts, Indexer, LatentAttention, Layer, Mlp
from .weights import RMSNORM, NormKind, Weight, layer_weights, linear

LAYER_LIMIT = 4096
CONTEXT_LIMIT = 2**31


@dataclass(frozen=True)
class Model:
    """A decoder-only transformer.

    Raises StallscopeError for sizes that make no model.
    """

    name: str
    hidden_size: int
    vocab_size: int
    layers: tuple[Layer, ...]
    """One per layer; equal ones are one object."""
    max_position_embeddings: int | None = None
    """Longest context that the model was made for; a longer request warns. None: unknown."""
    tie_word_embeddings: bool = False
    """The head is the embedding table: stored once, read whole by the head."""
    norm: NormKind = RMSNORM
    """Kind of all norms."""
    final_norm: bool = True
    """A norm before the head."""
    embedding_norm: bool = False
    """A norm behind the embedding (BLOOM)."""
    position_table: int | None = None
    """Rows of a learned table of positions; None: there is none."""
    embedding_size: int | None = None
    """Width of the embedding, with a projection to hidden_size and back (opt-350m); None: hidden_size."""
    lm_head_bias: bool = False
    logit_softcap: float | None = None
    """Logits become cap x tanh(logit / cap)."""
    prediction_layers: tuple[Layer, ...] = ()
    """Heads that predict further tokens (DeepSeek-V3): one layer each. Not counted in `params`."""
    formats: Formats | None = None
    """How the file's weights are stored; None: unquantised."""
    dtype: str | None = None
    """Element type of what is not quantised, where the file says so."""
    source: str = "given in Python"
    """Where the numbers are from: a file, or a public source."""
    warnings: tuple[str, ...] = ()
    """What a user should know before trusting results of this model."""
    names: tuple[str, ...] = ()
    """Other names, such as that of its repository."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense."""
        where = f"model {self.name!r} ({self.source})"
        for field in ("hidden_size", "vocab_size", "embedding_size", "position_table"):
            value = getattr(self, field)
            if value is not None or field in ("hidden_size", "vocab_size"):
                positive_int(value, f"{where}: {field}", SIZE_LIMIT)
        if self.max_position_embeddings is not None:
            positive_int(self.max_position_embeddings, f"{where}: max_position_embeddings", CONTEXT_LIMIT)
        positive_int(len(self.layers), f"{where}: layers", LAYER_LIMIT)
        for layer in self.layer_kinds:
            _check_layer(layer, f"{where}: layer {self.layers.index(layer)}")

    @cached_property
    def layer_kinds(self) -> dict[Layer, int]:
        """Each layer that differs from those before it, and how often it is there."""
        return dict(Counter(self.layers))

    @property
    def num_hidden_layers(self) -> int:
        """Number of layers."""
        return len(self.layers)

    @property
    def embedding_params(self) -> int:
        """Elements of the token embedding table."""
        return self.vocab_size * (self.embedding_size or self.hidden_size)

    def layer_weights(self, layer: Layer) -> tuple[Weight, ...]:
        """The weights of one layer, in the order of their use; names are below "model.layers.N."."""
        return tuple(layer_weights(layer, self.hidden_size, self.norm))

    @property
    def first_weights(self) -> tuple[Weight, ...]:
        """The weights before the layers: tables, and what belongs to them."""
        return tuple(self._first())

    @property
    def last_weights(self) -> tuple[Weight, ...]:
        """The weights behind the layers: final norm and head."""
        return tuple(self._last())

    def _first(self) -> Iterator[Weight]:
        width = self.embedding_size or self.hidden_size
        yield Weight("model.embed_tokens.weight", (self.vocab_size, width), "embedding", used=1)
        if self.position_table is not None:
            yield Weight("model.embed_positions.weight", (self.position_table, self.hidden_size), "position", used=1)
        if width != self.hidden_size:
            yield from linear("model.project_in", self.hidden_size, width, "embedding")
        if self.embedding_norm:
            yield from self.norm.weights("model.embed_layernorm", self.hidden_size)

    def _last(self) -> Iterator[Weight]:
        width = self.embedding_size or self.hidden_size
        if self.final_norm:
            yield from self.norm.weights("model.norm", self.hidden_size)
        if width != self.hidden_size:
            yield from linear("model.project_out", width, self.hidden_size, "lm_head")
        tied = "model.embed_tokens.weight" if self.tie_word_embeddings else None
        yield Weight("lm_head.weight", (self.vocab_size, width), "lm_head", tied_to=tied)
        if self.lm_head_bias:
            yield Weight("lm_head.bias", (self.vocab_size,), "lm_head")

    @property
    def weights(self) -> Iterator[tuple[Weight, int]]:
        """Every weight and how many of it there are, a layer's once per kind of layer."""
        for weight in (*self.first_weights, *self.last_weights):
            yield weight, 1
        for layer, count in self.layer_kinds.items():
            for weight in self.layer_weights(layer):
                yield weight, count

    @cached_property
    def params(self) -> int:
        """All parameters, a tied table counted once."""
        return sum(n * weight.elements for weight, n in self.weights if weight.tied_to is None)

    @cached_property
    def active_params(self) -> int:
        """Parameters without the experts that one token is not sent to; tables count whole."""
        idle = (n * (w.elements - w.used_elements) for w, n in self.weights if w.part == "experts")
        return self.params - sum(idle)

    @cached_property
    def params_read_per_token(self) -> int:
        """Parameters that one decode step of one sequence reads: the active ones without tables of which it takes a
        row. A tied head reads its table whole."""
        tables = ("embedding", "position")
        return sum(n * w.used_elements for w, n in self.weights if w.part not in tables or w.used is None)

    @cached_property
    def prediction_params(self) -> int:
        """Parameters of the heads that predict further tokens; embedding and head are the model's own."""
        return sum(w.elements for layer in self.prediction_layers for w in self.prediction_weights(layer))

    def prediction_weights(self, layer: Layer) -> tuple[Weight, ...]:
        """One prediction head: norms of the embedding and the hidden state, a projection of both, a layer, a norm."""
        norms = [w for name in ("enorm", "hnorm") for w in self.norm.weights(name, self.hidden_size)]
        joined = linear("eh_proj", self.hidden_size, 2 * self.hidden_size, "prediction")
        last = self.norm.weights("shared_head.norm", self.hidden_size)
        return (*norms, *joined, *self.layer_weights(layer), *last)

    def kv_bytes(self, tokens: int, dtype: str = "bf16", batch: int = 1) -> int:
        """Bytes of the KV cache of `batch` sequences of `tokens` tokens, all layers, each cut to its window.

        Raises StallscopeError for an unknown dtype.
        """
        check_dtype(dtype, "kv_bytes: dtype", VALUE_DTYPES)
        return sum(
            n * dtype_bytes(batch * layer.attention_tokens(tokens) * cache.elements, dtype)
            for layer, n in self.layer_kinds.items()
            for cache in layer.caches
        )

    def kv_bytes_past_windows(self, dtype: str = "bf16") -> int:
        """Bytes that one more token adds to the cache once every window is full."""
        check_dtype(dtype, "kv_bytes_past_windows: dtype", VALUE_DTYPES)
        return sum(
            n * dtype_bytes(cache.elements, dtype)
            for layer, n in self.layer_kinds.items()
            for cache in layer.caches
            if layer.attention is not None and layer.attention.window is None
        )


FREE = ("rope_dim",)
"""Fields of a layer's parts that may be 0."""
CHOICES = {"norms": NORMS, "qk_norm": QK_NORMS, "activation": ACTIVATIONS}


def _check_layer(layer: Layer, where: str) -> None:
    """Refuse a layer, or a part of one, with sizes that make no sense."""
    _check_fields(layer, where)
    attention, mlp = layer.attention, layer.mlp
    if isinstance(attention, Attention) and attention.heads % attention.kv_heads:
        found = f"heads {attention.heads} and kv_heads {attention.kv_heads}"
        expected = "query heads that share KV heads evenly (the first a multiple of the second)"
        raise problem(where, found, expected, "Correct one of them.")
    if isinstance(mlp, Experts) and mlp.top_k > mlp.count:
        found = f"top_k {mlp.top_k} of {mlp.count} experts"
        raise problem(where, found, "at most as many as there are", "Correct one of them.")


def _check_fields(part: Layer | Attention | LatentAttention | Indexer | Mlp | Experts, where: str) -> None:
    for field in fields(part):
        value, at = getattr(part, field.name), f"{where}: {field.name}"
        if is_dataclass(value):
            _check_fields(value, at)  # type: ignore[arg-type]
        elif field.name in CHOICES:
            if value is not None and value not in CHOICES[field.name]:
                known = ", ".join(CHOICES[field.name])
                raise problem(at, shown(value), f"one of {known}", "Write one of these.")
        elif str(field.type).startswith("int") and value is not None:
            limit = CONTEXT_LIMIT if field.name == "window" else SIZE_LIMIT
            positive_int(value, at, limit, least=0 if field.name in FREE else 1)
