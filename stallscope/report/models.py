"""Models side by side: parameters, and what one token reads and leaves behind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .layout import bullets, grid, pairs, render, section

if TYPE_CHECKING:
    from ..workloads import Model

COLUMNS = (
    ("parameters", "all weights once; a head that is the embedding table is not counted again"),
    ("active", "without the experts that one token is not sent to"),
    ("KV/token", "bytes of the KV cache per token in bf16, every layer inside its window"),
    ("context", "tokens that the model was made for"),
)


def models_table(models: Sequence[Model]) -> str:
    """One row per model."""
    rows = [
        (
            model.name,
            f"{model.params:,}",
            f"{model.active_params:,}",
            f"{model.kv_bytes(1):,}",
            f"{len(model.layers):,}",
            f"{model.max_position_embeddings or 0:,}",
        )
        for model in models
    ]
    header = ("name", "parameters", "active", "KV/token", "layers", "context")
    parts = [section("Models", grid(header, rows)), section("Columns", pairs(COLUMNS, width=10))]
    said = [f"{model.name}: {line}" for model in models for line in model.warnings]
    return render(*parts, *([section("Warnings", bullets(said))] if said else []))


def models_json(models: Sequence[Model]) -> list[dict[str, Any]]:
    """The same as plain data, and more of each."""
    return [
        {
            "name": model.name,
            "names": list(model.names),
            "parameters": model.params,
            "active_parameters": model.active_params,
            "parameters_read_per_token": model.params_read_per_token,
            "prediction_parameters": model.prediction_params,
            "kv_bytes_per_token": model.kv_bytes(1),
            "kv_bytes_per_token_past_windows": model.kv_bytes_past_windows(),
            "layers": len(model.layers),
            "hidden_size": model.hidden_size,
            "vocab_size": model.vocab_size,
            "max_position_embeddings": model.max_position_embeddings,
            "tie_word_embeddings": model.tie_word_embeddings,
            "quantization": None if model.formats is None else model.formats.method,
            "source": model.source,
            "warnings": list(model.warnings),
        }
        for model in models
    ]
