"""Which element type each part of a model has: as asked for, else as its file says, else bf16."""

from __future__ import annotations

from .dtypes import BLOCK_FORMATS, dtype_of
from .formats import Format
from .model import Model
from .request import Request
from .weights import PARTS

ASKED = {
    "attention": ("attention",),
    "expert": ("experts",),
    "embedding": ("embedding", "position"),
    "head": ("lm_head",),
}
"""Fields of a request and the parts that they are about; `weight` is about all."""


def part_types(model: Model, request: Request) -> dict[str, str]:
    """Element type of each of PARTS' matrices, of "vector" (biases and norms), "kv" and "activation".

    "cast", where it is there, is the type that activations are cast to before they meet quantised weights.
    """
    activation = request.activation or "bf16"
    stored = request.weight is None and model.formats is not None
    weight = request.weight or "bf16"
    types = dict.fromkeys(PARTS, weight)
    types["vector"] = weight if request.weight is None or not dtype_of(weight).block_bits else activation
    types |= {"kv": request.kv or "bf16", "activation": activation}
    formats = model.formats
    if stored and formats is not None:
        types |= {part: format_name(f) for part in PARTS if (f := formats.of(part)) is not None}
        if request.kv is None and formats.kv is not None:
            types["kv"] = formats.kv
        cast = formats.activation if request.cast is None else request.cast
    else:
        cast = request.cast
    if cast not in (None, "none"):
        types["cast"] = _cast_type(str(cast), types["experts"])
    for field, parts in ASKED.items():
        if getattr(request, field) is not None:
            types |= dict.fromkeys(parts, getattr(request, field))
    if request.head is None and model.tie_word_embeddings:
        types["lm_head"] = types["embedding"]
    return types


def _cast_type(cast: str, weight: str) -> str:
    """Activations are cast in groups as long as the weights' blocks are deep (fp32 scales), else with one scale."""
    inputs = dtype_of(weight).inputs if dtype_of(weight).element == cast else None
    return cast if inputs is None else f"{cast}/1x{inputs}s32"


def format_name(f: Format) -> str:
    """The name of a stored format in words of dtypes.py."""
    if f.name in BLOCK_FORMATS or f.block is None:
        return f.name
    outputs, inputs = ("*" if side is None else str(side) for side in f.block)
    return f"{f.name}/{outputs}x{inputs}s{f.scale_bits}" + (f"z{f.zero_bits}" if f.zero_bits else "")


def graph_types(types: dict[str, str]) -> dict[str, str]:
    """Types as a graph states them: weight, kv and activation, and the parts that differ from `weight`."""
    named = {"experts": "expert", "attention": "attention", "embedding": "embedding", "lm_head": "head"}
    head = {"weight": types["mlp"], "kv": types["kv"], "activation": types["activation"]}
    return head | {name: types[part] for part, name in named.items() if types[part] != types["mlp"]}
