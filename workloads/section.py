"""The object in a config file that describes the language model, read key by key with checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import StallscopeError
from .checks import SIZE_LIMIT, positive_int, problem, shown
from .jsonfile import JsonFile

ALIASES: dict[str, tuple[str, ...]] = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "n_embed"),
    "num_hidden_layers": ("num_hidden_layers", "num_layers", "n_layer", "n_layers"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads"),
    "head_dim": ("head_dim", "kv_channels"),
    "intermediate_size": ("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"),
    "vocab_size": ("padded_vocab_size", "vocab_size"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_sequence_length", "model_max_length",
                                "seq_length", "max_seq_len", "n_ctx"),
    "num_experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "experts_per_token", "top_k_experts", "moe_topk", "moe_k",
                            "moe_top_k"),
    "hidden_act": ("hidden_act", "hidden_activation", "activation_function", "activation"),
}  # fmt: skip
"""Size -> the keys under which families write it, the one that counts first."""

PREFERRED = ("vocab_size", "max_position_embeddings", "hidden_act")
"""Where several keys may well differ: the table's padded size holds, as does the first length."""


@dataclass(frozen=True)
class Section:
    """An object in a config file, and the keys that lead to it. Remembers which of its keys were read."""

    file: JsonFile
    keys: tuple[str, ...]
    data: Mapping[str, Any]
    used: set[str] = field(default_factory=set, compare=False)

    def where(self, key: str) -> str:
        """`file:line: key` for messages."""
        return self.file.where(*self.keys, key)

    @property
    def place(self) -> str:
        """The object itself for messages."""
        return ".".join((str(self.file.path), *self.keys))

    def refuse(self, key: str, found: str, expected: str, todo: str) -> StallscopeError:
        """An error about one key."""
        return problem(self.where(key), found, expected, todo)

    def inner(self, key: str) -> Section:
        """The object under a key; an empty one where there is none. Raises StallscopeError for anything else."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(key, shown(value), "an object", "Correct this value.")
        return Section(self.file, (*self.keys, key), value or {})

    def joined(self, keys: tuple[str, ...]) -> Section:
        """This object with the keys of the objects under `keys` beside its own."""
        data = dict(self.data)
        for key in keys:
            data |= self.inner(key).data
        return Section(self.file, self.keys, data, self.used)

    def get(self, key: str) -> Any:
        """The value of one key, None where it is absent."""
        self.used.add(key)
        return self.data.get(key)

    def has(self, name: str) -> bool:
        """Whether a size is stated under any of its keys."""
        return self.key(name) is not None

    def key(self, name: str) -> str | None:
        """The key under which a size stands, or None. Raises StallscopeError where two keys contradict each other."""
        keys = [key for key in ALIASES.get(name, (name,)) if self.data.get(key) is not None]
        self.used.update(ALIASES.get(name, (name,)))
        if name not in PREFERRED:
            for other in keys[1:]:
                if self.data[other] != self.data[keys[0]]:
                    found = f"{shown(self.data[other])}, and {keys[0]} {shown(self.data[keys[0]])}"
                    raise self.refuse(other, found, "the same size under both keys", "Remove the wrong one.")
        return keys[0] if keys else None

    def size(self, name: str, limit: int = SIZE_LIMIT, least: int = 1) -> int:
        """A whole number that must be there. Raises StallscopeError."""
        key = self.key(name)
        if key is not None:
            return positive_int(self.data[key], self.where(key), limit, least)
        todo = "Take the config.json of the model itself, and keep all its keys."
        null = next((key for key in ALIASES.get(name, (name,)) if key in self.data), None)
        if null is not None:
            raise self.refuse(null, "null", "a positive whole number", todo)
        others = [key for key in ALIASES.get(name, ()) if key != name]
        found = f"no {name!r}" + (f" (nor {', '.join(others)})" if others else "")
        raise problem(self.place, found, "a positive whole number under it", todo)

    def maybe(self, name: str, limit: int = SIZE_LIMIT, least: int = 1) -> int | None:
        """A whole number, or None where it is absent or null."""
        return self.size(name, limit, least) if self.has(name) else None

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; the default where the key is absent or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, shown(value), "true or false", "Correct this value.")
        return default if value is None else value

    def number(self, key: str) -> float | None:
        """A number above 0, or None where it is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2.0**40:
            raise self.refuse(key, shown(value), "a number above 0", "Correct this value.")
        return float(value)

    def per_layer(self, key: str, layers: int) -> list[Any] | None:
        """A list with one entry per layer, or None where it is absent or null."""
        value = self.get(key)
        if value is not None and (not isinstance(value, list) or len(value) != layers):
            found = f"{len(value)} entries" if isinstance(value, list) else shown(value)
            raise self.refuse(key, found, f"a list of {layers} entries, one per layer", "Correct the list.")
        return value
