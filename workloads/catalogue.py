"""Models by name: the files in models/, and any config.json by path.

A file in models/ is shaped like a Hugging Face config.json, with three keys more: `_names` (other names, such as the
repository's), `_source` (where its numbers are from) and `_remembered` (keys whose values are from memory).
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from pathlib import Path

from .checks import nearest, problem, shown
from .config import CONFIG_FILE_LIMIT, WHAT, model_of, read_config
from .jsonfile import JsonFile, read_json
from .model import Model

FOLDER = Path(__file__).parent / "models"


@cache
def _files() -> dict[str, JsonFile]:
    paths = sorted(FOLDER.glob("*.json"), key=lambda path: path.stem)
    return {path.stem: read_json(path, WHAT, CONFIG_FILE_LIMIT) for path in paths}


@cache
def _aliases() -> dict[str, str]:
    """Every name that the catalogue answers to, in lower case -> its own name."""
    aliases = {}
    for name, file in _files().items():
        for other in file.data["_names"]:
            aliases[other.lower()] = name
            aliases[other.lower().rpartition("/")[2]] = name
    return aliases | {name: name for name in _files()}


def model_names() -> tuple[str, ...]:
    """Names of the models in the catalogue."""
    return tuple(_files())


def load_model(name_or_path: str | Path) -> Model:
    """A model of the catalogue by its name or Hugging Face id (in any case), or from a config.json or its folder.

    A string that the catalogue knows is a name; write ./NAME for a file of that name. Raises StallscopeError for an
    unknown name, with the nearest known one, and as `read_config` does.
    """
    if isinstance(name_or_path, str):
        name = _aliases().get(name_or_path.strip().lower())
        if name is not None:
            return _catalogued(name)
    elif not isinstance(name_or_path, Path):
        todo = f"Known: {', '.join(model_names())}."
        raise problem("model", shown(name_or_path), "a name or a path", todo)
    if _is_path(name_or_path):
        return read_config(Path(name_or_path).expanduser())
    todo = nearest(str(name_or_path).rpartition("/")[2], model_names())
    expected = "a model of the catalogue, or the path of a config.json"
    raise problem("model", shown(str(name_or_path)), expected, todo)


@cache
def _catalogued(name: str) -> Model:
    file = _files()[name]
    source, remembered = str(file.data["_source"]), ", ".join(file.data["_remembered"])
    source += f"; from memory: {remembered}" if remembered else ""
    return replace(model_of(file, name, source), names=tuple(file.data["_names"]))


def _is_path(text: str | Path) -> bool:
    """Whether this can only be meant as a path: it exists, or is written like one."""
    if isinstance(text, Path) or text.endswith(".json") or text.startswith((".", "/", "~", os.sep)):
        return True
    try:
        return bool(text) and Path(text).exists()
    except (OSError, ValueError):
        return False
