"""Finds the language model in a config file, and refuses files that hold none."""

from __future__ import annotations

from typing import Any

from .checks import problem
from .jsonfile import JsonFile
from .refusals import LANGUAGE_KEYS, SIZE_KEYS, has_sizes, recognise
from .section import Section

VISION_KEYS = ("vision_config", "visual", "audio", "mm_vision_tower", "mm_hidden_size", "vision_tower", "img_processor",
               "audio_config", "audio_processor", "speech_config", "embd_layer")  # fmt: skip
ONLY_LANGUAGE = "Only the language part is costed"


def language_part(file: JsonFile) -> tuple[Section, tuple[str, ...]]:
    """The object that describes the language model, with a warning where it is only a part of the whole.

    Raises StallscopeError for files that are something else, by name.
    """
    _refuse(file, (), file.data)
    keys, data = _innermost(file.data)
    if keys:
        _refuse(file, keys, data)
    if not has_sizes(data):
        found = f"none of {', '.join(SIZE_KEYS)}"
        todo = "This is not a model's config.json: check which file it is."
        raise problem(".".join((str(file.path), *keys)), found, "a Hugging Face config.json", todo)
    section = Section(file, keys, data)
    if keys:
        section = _with_outer_type(section)
        return section, (f"{ONLY_LANGUAGE}, which stands under {'.'.join(keys)}: the file holds more than that.",)
    tower = next((key for key in VISION_KEYS if data.get(key) not in (None, False, "", {}, [])), None)
    if tower is not None:
        return section, (f"{ONLY_LANGUAGE}: the file names an encoder for other input ({tower}), which is left out.",)
    return section, ()


def _refuse(file: JsonFile, keys: tuple[str, ...], data: dict[str, Any]) -> None:
    refusal = recognise(data)
    if refusal:
        what, key, todo = refusal
        where = file.where(*keys, key.split(".")[0].split(", ")[0])
        raise problem(where, f"{what} (by {key})", "a decoder-only language model", todo)


def _innermost(data: dict[str, Any], depth: int = 0) -> tuple[tuple[str, ...], dict[str, Any]]:
    """The keys that lead to the language model, and its object."""
    for key in (*LANGUAGE_KEYS, "thinker_config"):
        inner = data.get(key)
        if isinstance(inner, dict) and inner and depth < 3:
            keys, found = _innermost(inner, depth + 1)
            if key in LANGUAGE_KEYS or keys:
                return (key, *keys), found
    return (), data


def _with_outer_type(section: Section) -> Section:
    """A language model without a type of its own has that of the file around it."""
    if section.data.get("model_type") or section.data.get("architectures"):
        return section
    keys = ("model_type", "architectures")
    outer: dict[str, Any] = {key: section.file.data[key] for key in keys if key in section.file.data}
    return Section(section.file, section.keys, {**section.data, **outer})
