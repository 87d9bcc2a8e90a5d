"""Hugging Face config.json -> Model, for dense llama, mistral and qwen2 decoders; all else is refused by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import StallscopeError
from .checks import SIZE_LIMIT, positive_int, problem, shown
from .jsonfile import JsonFile, read_json
from .layers import Attention, Layer, Mlp
from .model import CONTEXT_LIMIT, LAYER_LIMIT, Model
from .refusals import SIZE_KEYS, recognise

CONFIG_FILE_LIMIT = 2**20
WHAT = "Hugging Face config.json"
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads")
LENGTH_KEYS = ("max_position_embeddings", "max_sequence_length", "model_max_length", "n_positions", "n_ctx")


def size_limit(field: str) -> int:
    """Largest value that a size may have: beyond it the number is surely a slip."""
    return {"num_hidden_layers": LAYER_LIMIT}.get(field, SIZE_LIMIT)


@dataclass(frozen=True)
class Family:
    """Where a model family departs from the keys in its file, as its class in Hugging Face transformers does."""

    qkv_bias: bool | None = None
    """None: the file's attention_bias, and o_proj has one too. Else only q, k and v, always or never."""
    mlp_bias: bool | None = None
    """None: the file's mlp_bias."""
    heads_default: bool = True
    """Without num_key_value_heads every query head has its own."""
    window: str = "never"
    """When sliding_window counts: "never", "always", or "asked" (use_sliding_window)."""


FAMILIES: dict[str, Family] = {
    "llama": Family(),
    "mistral": Family(qkv_bias=False, mlp_bias=False, heads_default=False, window="always"),
    "qwen2": Family(qkv_bias=True, mlp_bias=False, heads_default=False, window="asked"),
}
LLAVA_FLAT = {"llava": "llama", "llava_llama": "llama", "llava_mistral": "mistral", "llava_qwen": "qwen2"}
"""Language model of the llava files that keep its sizes at the top."""

MISTRAL_WINDOW = 4096
"""transformers' default of sliding_window in MistralConfig, for files that leave the key out."""


@dataclass(frozen=True)
class Section:
    """The object in a config file that holds the language model's sizes, and the keys that lead to it."""

    file: JsonFile
    keys: tuple[str, ...]
    data: Mapping[str, Any]

    def where(self, key: str) -> str:
        """`file:line: key` for messages."""
        return self.file.where(*self.keys, key)

    def refuse(self, key: str, found: str, expected: str, todo: str) -> StallscopeError:
        """An error about one key."""
        return problem(self.where(key), found, expected, todo)

    def size(self, key: str, limit: int) -> int:
        """A positive whole number that must be there."""
        if key not in self.data:
            todo = "Take the config.json of the model itself, and keep all its keys."
            where = ".".join((str(self.file.path), *self.keys)) if self.keys else str(self.file.path)
            raise problem(where, f"no {key!r}", "a positive whole number under it", todo)
        return positive_int(self.data[key], self.where(key), limit)

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; the default where the key is absent or null."""
        value = self.data.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, shown(value), "true or false", "Correct this value.")
        return default if value is None else value


def read_config(path: str | Path) -> Model:
    """Read a config.json, or the one in a folder.

    Raises StallscopeError for a file that can't be read as one, and for a model that is not costed, by name.
    """
    path = Path(path)
    name = path.stem
    if os.path.isdir(path):
        name = path.resolve().name
        others = sorted(child.name for child in path.glob("*.json"))[:5]
        path = path / "config.json"
        if not path.exists():
            found = f"no config.json in it (JSON files: {', '.join(others) or 'none'})"
            todo = "Give the folder of a Hugging Face model, or its config.json."
            raise problem(str(path.parent), found, f"a {WHAT}", todo)
    elif path.name == "config.json":
        name = path.resolve().parent.name
    file = read_json(path, WHAT, CONFIG_FILE_LIMIT)
    return model_of(file, name, str(path))


def model_of(file: JsonFile, name: str, source: str) -> Model:
    """The model that a config file describes. Raises StallscopeError as `read_config` does."""
    section, warnings = _language_part(file)
    kind = _family(section)
    family, data = FAMILIES[kind], section.data
    hidden, layers, heads = (section.size(key, size_limit(key)) for key in SIZES)
    kv_heads = _kv_heads(section, kind, heads)
    bias = section.flag("attention_bias") if family.qkv_bias is None else family.qkv_bias
    window, window_warnings = _window(section, kind, layers)
    attention = Attention(
        heads,
        kv_heads,
        _head_dim(section, hidden, heads),
        window=window,
        qkv_bias=bias,
        out_bias=bias and family.qkv_bias is None,
    )
    mlp_bias = section.flag("mlp_bias") if family.mlp_bias is None else family.mlp_bias
    mlp = Mlp(section.size("intermediate_size", size_limit("intermediate_size")), bias=mlp_bias)
    return Model(
        name=name,
        hidden_size=hidden,
        vocab_size=section.size("vocab_size", size_limit("vocab_size")),
        layers=(Layer(attention, mlp),) * layers,
        max_position_embeddings=_longest(section),
        tie_word_embeddings=section.flag("tie_word_embeddings"),
        source=source,
        warnings=warnings + window_warnings + _quantised(data) + _quantised(file.data if section.keys else {}),
    )


def _language_part(file: JsonFile) -> tuple[Section, tuple[str, ...]]:
    """The whole file, or the language model in a llava file, with a warning."""
    data = file.data
    section = Section(file, (), data)
    warnings: tuple[str, ...] = ()
    kind = data.get("model_type")
    if isinstance(kind, str) and (kind in LLAVA_FLAT or (kind.startswith("llava") and "text_config" in data)):
        warnings = ("Only the language part is costed: the file names a vision tower, which is left out.",)
        text = data.get("text_config")
        if isinstance(text, dict):
            section = Section(file, ("text_config",), text)
        else:
            section = Section(file, (), {**data, "model_type": LLAVA_FLAT.get(kind), "architectures": None})
    refusal = recognise(section.data)
    if refusal:
        what, key, todo = refusal
        where = file.where(*section.keys, key.split(".")[0].split(", ")[0])
        raise problem(where, f"{what} (by {key})", "a dense llama, mistral or qwen2 decoder", todo)
    if not any(key in section.data for key in SIZE_KEYS):
        found = f"none of {', '.join(SIZE_KEYS)}"
        todo = "This is not a model's config.json: check which file it is."
        raise problem(str(file.path), found, f"a {WHAT}", todo)
    return section, warnings


def _family(section: Section) -> str:
    """The row of FAMILIES, from model_type, or from architectures where there is none. Raises StallscopeError."""
    data = section.data
    architectures = data.get("architectures")
    if architectures is not None and (not isinstance(architectures, list) or not architectures):
        raise section.refuse("architectures", shown(architectures), "a list with one class name", "Correct it.")
    kind = data.get("model_type")
    by_class = str(architectures[0]).lower() if architectures else None
    if kind is None and by_class is not None:
        kind = by_class.removesuffix("forcausallm")
    if not isinstance(kind, str) or kind not in FAMILIES:
        key = "model_type" if "model_type" in data else "architectures"
        todo = "Other families are not costed yet; one that is built exactly like these can be given under their name."
        if kind is None:
            todo = "Add the model's model_type to the file."
        raise section.refuse(key, shown(data.get(key)), f"model_type {', '.join(FAMILIES)}", todo)
    if by_class not in (None, f"{kind}forcausallm"):
        todo = "Only models with a language-model head are costed, and only under their own type."
        raise section.refuse("architectures", shown(architectures), f"the causal model of {kind}", todo)
    act = data.get("hidden_act", "silu")
    if act not in ("silu", "swish"):
        raise section.refuse("hidden_act", shown(act), "silu (the MLP is a SwiGLU)", "Other MLPs are not costed.")
    return kind


def _kv_heads(section: Section, kind: str, heads: int) -> int:
    key = "num_key_value_heads"
    value = section.data.get(key)
    if value is None and (key in section.data or FAMILIES[kind].heads_default):
        return heads
    kv_heads = section.size(key, size_limit(key))
    if heads % kv_heads:
        todo = "Query heads share KV heads evenly: correct one of the two."
        raise section.refuse(key, f"{kv_heads} for {heads} attention heads", "a divisor of num_attention_heads", todo)
    return kv_heads


def _head_dim(section: Section, hidden: int, heads: int) -> int:
    if section.data.get("head_dim") is not None:
        return section.size("head_dim", size_limit("head_dim"))
    if hidden % heads:
        found = f"hidden_size {hidden} for {heads} heads, and no head_dim"
        raise section.refuse("hidden_size", found, "a multiple of num_attention_heads", "Correct it or add head_dim.")
    return hidden // heads


def _longest(section: Section) -> int | None:
    key = next((key for key in LENGTH_KEYS if section.data.get(key) is not None), None)
    return None if key is None else section.size(key, CONTEXT_LIMIT)


def _window(section: Section, kind: str, layers: int) -> tuple[int | None, tuple[str, ...]]:
    """The window of all layers, and warnings. Raises StallscopeError where layers would differ."""
    data, rule = section.data, FAMILIES[kind].window
    types = data.get("layer_types")
    if types is not None and (not isinstance(types, list) or len(set(map(str, types))) != 1):
        todo = "Layers that differ are not costed yet."
        raise section.refuse("layer_types", shown(types), "the same type for every layer", todo)
    if rule == "always" and "sliding_window" not in data:
        said = f"The file has no sliding_window: {MISTRAL_WINDOW}, transformers' default for {kind}, is used."
        return MISTRAL_WINDOW, (said,)
    window = None if data.get("sliding_window") is None else section.size("sliding_window", CONTEXT_LIMIT)
    if window is None or types == ["full_attention"] * layers:
        return None, ()
    if rule == "never":
        return None, (f"sliding_window {window} is left out: {kind} models in transformers have none.",)
    if rule == "asked":
        if not section.flag("use_sliding_window"):
            return None, ()
        first = data.get("max_window_layers", 28)
        first = positive_int(first, section.where("max_window_layers"), least=0)
        if first >= layers:
            return None, ()
        if first > 0 and types is None:
            found = f"{first} of {layers} layers with full attention, the others with a window"
            todo = "Layers that differ are not costed yet."
            raise section.refuse("max_window_layers", found, "0, or at least num_hidden_layers", todo)
    return window, ()


def _quantised(data: Mapping[str, Any]) -> tuple[str, ...]:
    quant = data.get("quantization_config")
    if not isinstance(quant, dict):
        return ()
    method, bits = quant.get("quant_method", "unknown method"), quant.get("bits")
    said = f"{method}, {bits} bits" if type(bits) is int else str(method)
    return (
        f"The file is of quantised weights ({said}): the request's element types are used instead, without scales.",
    )
