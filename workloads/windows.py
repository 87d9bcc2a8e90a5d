"""Which layers attend to a window only, and which have no rotary positions: one entry per layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .checks import positive_int, shown
from .families import Family
from .model import CONTEXT_LIMIT
from .section import Section

Windows = tuple[int | None, ...]
FULL = ("full_attention", "attention", "global", "full", "deepseek_sparse_attention")
LOCAL = ("sliding_attention", "chunked_attention", "local", "sliding")


def read_windows(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    """The window of each layer (None: it sees everything), and warnings. Raises StallscopeError."""
    return WINDOWS[family.window](section, family, layers)


def local_layers(section: Section, layers: int, key: str = "layer_types") -> list[bool] | None:
    """Whether each layer is local, by layer_types; None without it. Raises StallscopeError for other types."""
    types = section.per_layer(key, layers)
    if types is None:
        return None
    odd = next((kind for kind in types if kind not in (*FULL, *LOCAL)), None)
    if odd is not None:
        known = f"{FULL[0]}, {LOCAL[0]} or {LOCAL[1]}"
        raise section.refuse(key, f"a layer of type {shown(odd)}", known, "Other layers are not costed.")
    return [kind in LOCAL for kind in types]


def roped_layers(section: Section, family: Family, layers: int) -> list[bool]:
    """Whether each layer has rotary positions: no_rope_layers (1: it has), or all but every n-th."""
    every = section.maybe("no_rope_layer_interval", least=0) or family.nope_every
    if not family.nope_every:
        return [True] * layers
    if section.get("no_rope_layers") not in (None, []):
        flags = section.per_layer("no_rope_layers", layers) or []
        if any(flag not in (0, 1) for flag in flags):
            raise section.refuse("no_rope_layers", shown(flags), "0 or 1 for each layer", "Correct the list.")
        return [bool(flag) for flag in flags]
    return [(layer + 1) % every != 0 for layer in range(layers)]


def _window(section: Section, family: Family, key: str = "sliding_window") -> tuple[int | None, tuple[str, ...]]:
    if key not in section.data and family.window_default is not None:
        said = f"The file has no {key}: {family.window_default}, the default of its class in transformers, is used."
        return family.window_default, (said,)
    return section.maybe(key, CONTEXT_LIMIT), ()


def _never(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    local, window = local_layers(section, layers), section.maybe("sliding_window", CONTEXT_LIMIT)
    if local and any(local):
        expected = "full_attention in every layer: this family has no windows"
        raise section.refuse("layer_types", "local layers", expected, "Give the model's own model_type.")
    warned = window is not None and local is None and section.get("use_sliding_window") is not False
    said = (f"sliding_window {window} is left out: this family has none in transformers.",) if warned else ()
    return (None,) * layers, said


def _always(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    window, warnings = _window(section, family)
    local = local_layers(section, layers) or [True] * layers
    if "use_sliding_window" in section.data and not section.flag("use_sliding_window"):
        return (None,) * layers, ()
    return tuple(window if here else None for here in local), warnings


def _asked(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    window, asked = section.maybe("sliding_window", CONTEXT_LIMIT), section.flag("use_sliding_window")
    local, first = local_layers(section, layers), section.maybe("max_window_layers", least=0)
    if window is None or not asked:
        return (None,) * layers, ()
    if local is None:
        first = section.size("max_window_layers", least=0) if first is None else first
        local = [layer >= first for layer in range(layers)]
    return tuple(window if here else None for here in local), ()


def _pattern(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    local = local_layers(section, layers)
    pattern = section.get("sliding_window_pattern")
    if pattern is None:
        pattern = section.get("_sliding_window_pattern")
    every = family.window_every
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise section.refuse("sliding_window_pattern", shown(pattern), "letters L and G", "Correct it.")
    elif pattern is not None:
        every = positive_int(pattern, section.where("sliding_window_pattern"))
    if local is None and isinstance(pattern, str):
        local = [pattern[layer % len(pattern)] == "L" for layer in range(layers)]
    elif local is None:
        if "sliding_window" in section.data and section.data["sliding_window"] is None:
            local = [False] * layers
        elif every == 0:
            raise section.refuse("layer_types", "null", "the type of each layer", "Keep all keys of the file.")
        else:
            local = [(layer + 1) % every != 0 for layer in range(layers)]
    if not any(local):
        section.used.add("sliding_window")
        return (None,) * layers, ()
    window = section.size("sliding_window", CONTEXT_LIMIT)
    return tuple(window if here else None for here in local), ()


def _nope(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    window, asked = section.maybe("sliding_window", CONTEXT_LIMIT), section.flag("use_sliding_window")
    local = local_layers(section, layers) or [not roped for roped in roped_layers(section, family, layers)]
    return tuple(window if here and asked else None for here in local), ()


def _chunk(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    window = section.maybe("attention_chunk_size", CONTEXT_LIMIT)
    local = local_layers(section, layers) or roped_layers(section, family, layers)
    return tuple(window if here else None for here in local), ()


def _hybrid(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    local = _flags(section, "hybrid_layer_pattern", layers)
    window = section.size("sliding_window", CONTEXT_LIMIT)
    return tuple(window if here else None for here in local), ()


def _flags(section: Section, key: str, layers: int) -> list[bool]:
    flags: list[Any] | None = section.per_layer(key, layers)
    if flags is None or any(flag not in (0, 1) for flag in flags):
        raise section.refuse(key, shown(flags), "0 or 1 for each layer", "Correct the list.")
    return [bool(flag) for flag in flags]


def _gpt_neo(section: Section, family: Family, layers: int) -> tuple[Windows, tuple[str, ...]]:
    window = section.size("window_size", CONTEXT_LIMIT)
    local = local_layers(section, layers, "attention_layers")
    if local is None:
        try:
            kinds = [kind for group, times in section.get("attention_types") for _ in range(times) for kind in group]
        except (TypeError, ValueError):
            kinds = []
        if len(kinds) != layers or set(kinds) - {"global", "local"}:
            found, expected = shown(section.data.get("attention_types")), f"global and local for {layers} layers"
            raise section.refuse("attention_types", found, expected, "Correct the list.")
        local = [kind == "local" for kind in kinds]
    return tuple(window if here else None for here in local), ()


WINDOWS: dict[str, Callable[[Section, Family, int], tuple[Windows, tuple[str, ...]]]] = {
    "never": _never,
    "always": _always,
    "asked": _asked,
    "pattern": _pattern,
    "nope": _nope,
    "chunk": _chunk,
    "hybrid": _hybrid,
    "gpt_neo": _gpt_neo,
}
"""How a family says which layers have a window."""
