"""Hugging Face config.json -> Model. docs/models.md says what is read from which key."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from .attentions import read_attention
from .checks import problem, shown
from .families import FAMILIES, SAME_FAMILY, Family
from .jsonfile import JsonFile, read_json
from .language import VISION_KEYS, language_part
from .layers import Attention, Layer
from .leftovers import leftovers
from .mixtures import read_flag, read_mlps
from .model import CONTEXT_LIMIT, LAYER_LIMIT, Model
from .quantization import read_formats
from .section import Section
from .variants import VARIANTS
from .windows import read_windows, roped_layers

CONFIG_FILE_LIMIT = 2**20
WHAT = "Hugging Face config.json"
PREDICTION_KEYS = ("num_nextn_predict_layers", "num_mtp_modules", "num_mtp_layers", "mtp_num_layers")
DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


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
    section, warnings = language_part(file)
    kind, known = find_family(section)
    family = FAMILIES[kind]
    section = section.joined(family.nested)
    _refuse_foreign(section, family)
    hidden = section.size("hidden_size")
    layers, more = _layers(section, family, hidden)
    warnings += more
    whole = Section(file, (), file.data)
    formats, more = read_formats(section if "quantization_config" in section.data else whole, layers)
    warnings += more
    tie, more = _tied(section, whole, family)
    warnings += more
    vocab, positions = section.size("vocab_size"), section.maybe("max_position_embeddings", CONTEXT_LIMIT)
    table = section.size("max_position_embeddings") + family.position_rows if family.positions == "learned" else None
    width = section.maybe("word_embed_proj_dim")
    norms_before = section.flag("do_layer_norm_before", True)
    model = Model(
        name=name,
        hidden_size=hidden,
        vocab_size=vocab,
        layers=layers,
        max_position_embeddings=positions,
        tie_word_embeddings=tie,
        norm=family.norm,
        final_norm=read_flag(section, family.final_norm) and norms_before,
        embedding_norm=family.embedding_norm,
        position_table=table,
        embedding_size=None if width == hidden else width,
        lm_head_bias=read_flag(section, family.head_bias),
        logit_softcap=section.number("final_logit_softcapping"),
        prediction_layers=(layers[-1],) * _predictions(section),
        formats=formats,
        dtype=_dtype(section, whole),
        source=source,
        warnings=warnings,
    )
    left = leftovers(section, family.harmless)
    return replace(model, warnings=warnings + _unread(section, left, kind, known))


def find_family(section: Section) -> tuple[str, bool]:
    """The row of FAMILIES, from model_type or else the class under architectures, and whether it is the file's own.

    Raises StallscopeError where both are known and differ, for other heads than a language model's, and for a family
    that is not known unless its keys are exactly those of Llama.
    """
    data = section.data
    classes = None if data.get("architectures") == [] else data.get("architectures")
    if classes is not None and (not isinstance(classes, list) or not classes or not isinstance(classes[0], str)):
        raise section.refuse("architectures", shown(classes), "a list with one class name", "Correct it.")
    kind, by_class = data.get("model_type"), None
    if kind is not None and not isinstance(kind, str):
        raise section.refuse("model_type", shown(kind), "a name", "Correct it.")
    row = SAME_FAMILY.get(str(kind).lower(), str(kind).lower())
    stem = None if classes is None else classes[0].lower()
    if stem is not None:
        plain = stem.removesuffix("forcausallm").removesuffix("forconditionalgeneration").removesuffix("model")
        by_class = next((k for k, f in FAMILIES.items() if plain in f.classes or stem in f.classes), None)
        head = stem.endswith(("forcausallm", "lmheadmodel", "forconditionalgeneration"))
        if not head and not (by_class is not None and stem in FAMILIES[by_class].classes):
            todo = "Only models with a language-model head are costed."
            raise section.refuse("architectures", shown(classes), "the class of a causal language model", todo)
    if row in FAMILIES and by_class is not None and FAMILIES[by_class] is not FAMILIES[row] and not _kin(row, by_class):
        todo = "Only models under their own type are costed: correct one of the two."
        raise section.refuse("architectures", shown(classes), f"the causal model of {kind}", todo)
    if row in FAMILIES:
        return row, by_class is not None or classes is None or row != str(kind).lower() or bool(section.keys)
    if by_class is not None:
        return by_class, True
    if kind is None and classes is None:
        todo = "Add the model's model_type to the file."
        raise section.refuse("model_type", shown(kind), f"one of {', '.join(FAMILIES)}", todo)
    return _as_llama(section), False


def _kin(row: str, by_class: str) -> bool:
    """Whether a class may stand under another type: files of fine-tuned and converted models do that."""
    families = (FAMILIES[row], FAMILIES[by_class])
    return replace(families[0], classes=(), harmless=()) == replace(families[1], classes=(), harmless=())


PART_OF_ANOTHER = re.compile(r"encoder|vision|audio|speech|text_model")
"""In the name of a type that is not known: no language model by itself."""


def _as_llama(section: Section) -> str:
    """ "llama" for a family that is not known, if all sizes of a Llama are there and nothing else looks like one."""
    key = "model_type" if "model_type" in section.data else "architectures"
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
    missing = [name for name in needed if section.data.get(name) is None]
    odd = [name for name in ("layer_types", "sliding_window") if section.data.get(name)]
    odd += [name for name in VISION_KEYS if section.data.get(name)]
    part = PART_OF_ANOTHER.search(f"{section.data.get('model_type')} {section.data.get('architectures')}".lower())
    silu = section.data.get("hidden_act") in ("silu", "swish")
    todo = "A family that is built exactly like one of these can be given under its name."
    expected = "a known model_type (docs/models.md lists them)"
    if missing or not silu or odd or part:
        found = f"{shown(section.data[key])}"
        found += f", without {', '.join(missing) or 'hidden_act silu'}" if missing or not silu else ""
        raise section.refuse(key, found + (f", with {', '.join(odd)}" if odd else ""), expected, todo)
    probe = Section(section.file, section.keys, section.data)
    for name in (*needed, "num_key_value_heads", "head_dim", "max_position_embeddings", "hidden_act"):
        probe.key(name)
    probe.used.update({"attention_bias", "mlp_bias", "architectures"})
    left = leftovers(probe, ())
    if left:
        found = f"{shown(section.data[key])}, with {', '.join(left[:8])}"
        raise section.refuse(key, found, expected, todo)
    return "llama"


FOREIGN = {
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    "latent": ("kv_lora_rank",),
    "varied": ("block_configs",),
    "hybrid": ("hybrid_layer_pattern", "hybrid_block_pattern"),
}
"""What only some families have, and the keys that say that a model has it."""


def _refuse_foreign(section: Section, family: Family) -> None:
    """Raise StallscopeError for experts, latent attention and the like in a family that has none in transformers."""
    has = {"experts": family.moe is not None, "latent": family.latent, "varied": family.vary == "blocks",
           "hybrid": family.window == "hybrid"}  # fmt: skip
    names = {"experts": "a mixture of experts (MoE)", "latent": "multi-head latent attention (MLA)",
             "varied": "layers that differ one by one", "hybrid": "layers that differ one by one"}  # fmt: skip
    for what, keys in FOREIGN.items():
        for key in keys:
            value = section.data.get(key)
            if not has[what] and value not in (None, 0, 1, []):
                todo = "Its own model_type says how they are built: give it."
                raise section.refuse(key, names[what], f"a {section.data.get('model_type')} without", todo)


def _layers(section: Section, family: Family, hidden: int) -> tuple[tuple[Layer, ...], tuple[str, ...]]:
    count = section.size("num_hidden_layers", LAYER_LIMIT)
    attention = read_attention(section, family, hidden)
    windows, warnings = read_windows(section, family, count)
    roped = roped_layers(section, family, count)
    mlps = read_mlps(section, family, hidden, count)
    parallel = read_flag(section, family.parallel)
    layers = []
    for window, rope, mlp in zip(windows, roped, mlps, strict=True):
        here = replace(attention, window=window)
        if isinstance(here, Attention) and not rope:
            here = replace(here, rope_dim=0)
        layers.append(Layer(here, mlp, family.norms, parallel, shared_norm=parallel and family.shared_norm))
    varied = tuple(layers) if family.vary is None else VARIANTS[family.vary](section, tuple(layers))
    kinds: dict[Layer, Layer] = {}
    return tuple(kinds.setdefault(layer, layer) for layer in varied), warnings


def _tied(section: Section, whole: Section, family: Family) -> tuple[bool, tuple[str, ...]]:
    """tie_word_embeddings of the language model, else of the whole file (with a warning), else the family's."""
    key = "tie_word_embeddings"
    if section.get(key) is None and section.keys and whole.get(key) is not None:
        outer = whole.flag(key)
        said = f"{key} {str(outer).lower()} is taken from the file around {section.keys[0]}."
        return outer, () if outer == family.tie else (said,)
    return section.flag(key, family.tie), ()


def _predictions(section: Section) -> int:
    found = [section.maybe(key, least=0) or 0 for key in PREDICTION_KEYS]
    return max(found)


def _dtype(section: Section, whole: Section) -> str | None:
    for part in (section, whole):
        for key in ("torch_dtype", "dtype"):
            value = part.get(key)
            if isinstance(value, str) and value.removeprefix("torch.") in DTYPES:
                return DTYPES[value.removeprefix("torch.")]
    return None


def _unread(section: Section, left: list[str], kind: str, known: bool) -> tuple[str, ...]:
    said = []
    if not known:
        names = (section.data.get("model_type"), *(section.data.get("architectures") or ()))
        said.append(f"{' and '.join(shown(n) for n in names if n)}: not a family that is known, but read as {kind}.")
    if left:
        said.append(f"Keys that look like sizes and were not understood, so left aside: {', '.join(left)}.")
    return tuple(said)
