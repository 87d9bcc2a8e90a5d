"""Config files that are recognised and refused by name, before any number is taken from them.

A model family that is costed wrongly without a word is worse than one that is refused. Each row of REFUSALS has the
name of what was recognised and the function that recognises it, by the keys that Hugging Face configs use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]

SIZE_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")


def _has(config: Config, *keys: str) -> str:
    """The first of these keys that holds something; "" if none does."""
    return next((key for key in keys if config.get(key) not in (None, False, 0, [], {})), "")


def _begins(config: Config, *starts: str) -> str:
    return next((key for key in config if key.startswith(starts) and _has(config, key)), "")


def _type_begins(config: Config, *starts: str) -> str:
    kind = config.get("model_type")
    return "model_type" if isinstance(kind, str) and kind.lower().replace("_", "-").startswith(starts) else ""


def _table(config: Config) -> str:
    inner = [key for key, value in config.items() if isinstance(value, dict) and "model_type" in value]
    return ", ".join(inner) if len(inner) > 1 and len(inner) == len(config) else ""


def _experts(config: Config) -> str:
    counts = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
    many = next((key for key in counts if type(config.get(key)) is int and config[key] > 1), "")
    return many or _has(config, "num_experts_per_tok", "moe_intermediate_size", "moe_layer_freq", "decoder_sparse_step")


def _onnx(config: Config) -> str:
    model = config.get("model")
    return "model.decoder" if isinstance(model, dict) and "decoder" in model else ""


def _encoder_decoder(config: Config) -> str:
    both = "encoder_layers" if _has(config, "encoder_layers") and _has(config, "decoder_layers") else ""
    kinds = ("t5", "mt5", "umt5", "bart", "mbart", "whisper", "marian", "pegasus", "m2m-100", "blenderbot", "led")
    return _has(config, "is_encoder_decoder") or both or _type_begins(config, *kinds)


def _state_space(config: Config) -> str:
    kinds = ("mamba", "falcon-mamba", "jamba", "samba", "bamba", "zamba", "rwkv", "recurrent-gemma", "nemotron-h")
    keys = ("state_size", "time_step_rank", "conv_kernel", "attn_layer_period", "hybrid_override_pattern", "attn")
    return _begins(config, "mamba_", "ssm_") or _has(config, *keys) or _type_begins(config, *kinds)


def _per_layer(config: Config) -> str:
    return _has(config, "block_configs", "hybrid_layer_pattern", "hybrid_block_pattern", "layers_block_type")


def _vision(config: Config) -> str:
    wrapped = isinstance(config.get("text_config"), dict) or isinstance(config.get("llm_config"), dict)
    parts = _has(config, "vision_config", "visual", "audio_config") or ("text_config" if wrapped else "")
    tower = "image_size" if _has(config, "image_size") and _has(config, "patch_size") else ""
    return parts or tower or _type_begins(config, "clip", "siglip", "vit", "dinov2")


def _encoder(config: Config) -> str:
    return _type_begins(config, "bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "deberta", "electra")


REFUSALS: tuple[tuple[str, Callable[[Config], str], str], ...] = (
    ("a table of several models", _table, "Save the entry of one model in a file of its own."),
    ("an ONNX Runtime GenAI configuration", _onnx, "Give the model's Hugging Face config.json."),
    ("a Hugging Face pipeline or tokenizer file", lambda c: _has(c, "tokenizer_class", "_class_name")
     if not _has(c, *SIZE_KEYS) else "", "Give the model's config.json."),
    ("an encoder-decoder model", _encoder_decoder, "Only decoder-only models are costed."),
    ("a state-space or hybrid model (Mamba and kin)", _state_space, "Only attention in every layer is costed."),
    ("a model with multi-head latent attention (MLA)", lambda c: _has(c, "kv_lora_rank", "q_lora_rank"),
     "Its cache is not K and V per head, so it can't be costed as one."),
    ("a model whose layers differ one by one", _per_layer, "Only identical layers are costed."),
    ("a mixture of experts (MoE)", _experts, "Only dense models are costed."),
    ("a vision or multimodal model", _vision, "Give the config of its language model alone, if that is dense."),
    ("an encoder", _encoder, "Only decoder-only models are costed."),
)  # fmt: skip
"""(what it is, the key by which it is recognised or "", what to do)."""


def recognise(config: Config) -> tuple[str, str, str] | None:
    """What this config is, if it is something that must be refused: (name, key, what to do)."""
    for name, test, todo in REFUSALS:
        key = test(config)
        if key:
            return name, key, todo
    return None
