"""Config files that are recognised and refused by name, before any number is taken from them.

A model family that is costed wrongly without a word is worse than one that is refused. Each row of REFUSALS has the
name of what was recognised and the function that recognises it, by the keys that Hugging Face configs use.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from .section import ALIASES

Config = Mapping[str, Any]

SIZE_KEYS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
LANGUAGE_KEYS = ("text_config", "llm_config", "language_config", "language_model_config")
"""Keys under which multimodal files keep their language model."""
DRAFT_CLASS = re.compile(r"eagle|medusa|hydra|nextn|speculator|draft|mtp(model|forcausal|$)", re.IGNORECASE)


def has_sizes(config: Config) -> bool:
    """Whether any of the sizes of a model stands here, under any name."""
    return any(config.get(key) is not None for name in SIZE_KEYS for key in ALIASES[name])


def _has(config: Config, *keys: str) -> str:
    """The first of these keys that holds something; "" if none does."""
    return next((key for key in keys if config.get(key) not in (None, False, 0, [], {}, "")), "")


def _begins(config: Config, *starts: str) -> str:
    return next((key for key in config if key.startswith(starts) and _has(config, key)), "")


def _type_begins(config: Config, *starts: str) -> str:
    kind = config.get("model_type")
    return "model_type" if isinstance(kind, str) and kind.lower().replace("_", "-").startswith(starts) else ""


def _class(config: Config, pattern: re.Pattern[str]) -> str:
    classes = config.get("architectures")
    found = isinstance(classes, list) and any(isinstance(name, str) and pattern.search(name) for name in classes)
    return "architectures" if found else ""


def _table(config: Config) -> str:
    inner = [key for key, value in config.items() if isinstance(value, dict) and has_sizes(value)]
    if set(inner) & set(LANGUAGE_KEYS):
        return ""
    return ", ".join(inner) if len(inner) > 1 and len(inner) == len(config) else ""


def _onnx(config: Config) -> str:
    model = config.get("model")
    return "model.decoder" if isinstance(model, dict) and "decoder" in model else ""


def _no_model(config: Config) -> str:
    return "" if has_sizes(config) else _has(config, "tokenizer_class", "_class_name", "added_tokens_decoder")


def _quantisation(config: Config) -> str:
    inner = config.get("quantization")
    ours = (isinstance(inner, dict) and "quant_algo" in inner) or {"bits", "group_size"} <= set(config)
    return "" if has_sizes(config) or not ours else "quantization" if inner else "bits"


def _index(config: Config) -> str:
    return "weight_map" if isinstance(config.get("weight_map"), dict) else ""


def _params(config: Config) -> str:
    return "dim" if {"dim", "n_layers", "n_heads"} <= set(config) and "hidden_size" not in config else ""


def _adapter(config: Config) -> str:
    return _has(config, "peft_type", "lora_alpha") or ("base_model_name_or_path" if config.get("r") else "")


def _draft(config: Config) -> str:
    kinds = ("eagle", "medusa", "hydra", "mlp-speculator", "speculator", "deepseek-mtp")
    keys = ("draft_vocab_size", "medusa_num_heads", "medusa_num_layers", "speculators_model_type", "eagle_config")
    by_name = "" if "vision_config" in config else _type_begins(config, *kinds) or _class(config, DRAFT_CLASS)
    return _has(config, *keys) or by_name


def _encoder_decoder(config: Config) -> str:
    both = "encoder_layers" if _has(config, "encoder_layers") and _has(config, "decoder_layers") else ""
    kinds = ("t5", "mt5", "umt5", "bart", "mbart", "whisper", "marian", "pegasus", "m2m-100", "blenderbot", "led")
    return _has(config, "is_encoder_decoder") or both or _type_begins(config, *kinds)


LINEAR_TYPES = ("linear", "mamba", "conv", "recurrent", "ssm", "rwkv", "delta")


def _state_space(config: Config) -> str:
    kinds = ("mamba", "falcon-mamba", "jamba", "samba", "bamba", "zamba", "rwkv", "recurrent-gemma", "nemotron-h",
             "falcon-h1", "granitemoehybrid", "lfm2", "qwen3-next", "qwen3-5", "kimi-linear", "hymba", "plamo2",
             "retnet", "gla", "hgrn", "xlstm", "hyena", "stripedhyena", "griffin", "minimax-text")  # fmt: skip
    keys = ("state_size", "time_step_rank", "conv_kernel", "attn_layer_period", "hybrid_override_pattern", "attn",
            "linear_attn_config", "full_attention_interval", "conv_L_cache", "lru_width")  # fmt: skip
    found = _begins(config, "mamba_", "ssm_", "linear_num_", "linear_key_", "linear_conv_") or _has(config, *keys)
    return found or _linear_layers(config) or _type_begins(config, *kinds)


def _linear_layers(config: Config) -> str:
    """A list of layer types that names others than attention, or MiniMax's list, in which 0 is a linear layer."""
    for key in ("layer_types", "layers_block_type", "block_types", "layers_types"):
        kinds = config.get(key)
        if isinstance(kinds, list) and any(str(kind).lower().startswith(LINEAR_TYPES) for kind in kinds):
            return key
    kinds = config.get("attn_type_list")
    return "attn_type_list" if isinstance(kinds, list) and 0 in kinds else ""


def _shared_cache(config: Config) -> str:
    return _has(config, "num_kv_shared_layers", "use_cla", "cla_share_factor", "kv_share_layers", "use_kv_sharing")


def _cross(config: Config) -> str:
    return _has(config, "cross_attention_layers", "add_cross_attention", "is_cross_attention")


def _tower(config: Config) -> str:
    size = _has(config, "image_size") and _has(config, "patch_size") and "vocab_size" not in config
    return ("image_size" if size else "") or _type_begins(config, "clip", "siglip", "vit", "dinov2", "intern-vit")


def _encoder(config: Config) -> str:
    kinds = ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert", "deberta", "electra", "albert", "nomic-bert",
             "camembert", "mpnet", "longformer", "big-bird", "esm", "xlnet", "eurobert")  # fmt: skip
    masked = _class(config, re.compile(r"ForMaskedLM|ForPreTraining$"))
    decoder = config.get("is_decoder") is True
    return "" if decoder else _type_begins(config, *kinds) or masked or _has(config, "type_vocab_size")


def _diffusion(config: Config) -> str:
    return _type_begins(config, "llada", "dream", "sdar", "diffusion") or _has(config, "mask_schedule")


REFUSALS: tuple[tuple[str, Callable[[Config], str], str], ...] = (
    ("a table of several models", _table, "Save the entry of one model in a file of its own."),
    ("an ONNX Runtime GenAI configuration", _onnx, "Give the model's Hugging Face config.json."),
    ("a Hugging Face pipeline or tokenizer file", _no_model, "Give the model's config.json."),
    ("settings of a quantisation", _quantisation, "Give the model's config.json."),
    ("an index of weight files", _index, "Give the model's config.json."),
    ("a params.json of original weights", _params, "Give the model's Hugging Face config.json."),
    ("an adapter (LoRA and kin)", _adapter, "Give the config.json of the model that it adapts."),
    ("a draft head for speculative decoding", _draft, "Give the config.json of the model that it drafts for."),
    ("an encoder-decoder model", _encoder_decoder, "Only decoder-only models are costed."),
    ("a state-space or hybrid model (Mamba and kin)", _state_space, "Only attention in every layer is costed."),
    ("a model whose layers share one KV cache", _shared_cache, "Only a cache of its own in every layer is costed."),
    ("a model with cross-attention", _cross, "Only decoder-only models are costed."),
    ("a vision encoder", _tower, "Give the config.json of a language model."),
    ("a diffusion language model", _diffusion, "Only models that produce token after token are costed."),
    ("an encoder", _encoder, "Only decoder-only models are costed."),
)
"""(what it is, the key by which it is recognised or "", what to do)."""


def recognise(config: Config) -> tuple[str, str, str] | None:
    """What this config is, if it is something that must be refused: (name, key, what to do)."""
    for name, test, todo in REFUSALS:
        key = test(config)
        if key:
            return name, key, todo
    return None
