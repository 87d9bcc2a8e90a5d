"""A config file's quantization_config -> the formats of its weights.

Sources: the quantization classes of Hugging Face transformers (GPTQConfig, AwqConfig, FineGrainedFP8Config,
Mxfp4Config, BitsAndBytesConfig, CompressedTensorsConfig) and ModelOpt's hf_quant_config.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

from .checks import positive_int, shown
from .formats import Block, Format, Formats
from .layers import Experts, Layer, Mlp
from .section import Section

LINEAR_PARTS = ("attention", "mlp", "experts", "shared")
"""Parts that a method quantises unless it says otherwise; tables, norms, routers and the head stay as they are."""
MODULES = {
    "attention": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    "mlp": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
    "experts": ("mlp.experts.0.gate_proj", "mlp.experts.0.up_proj", "mlp.experts.0.down_proj"),
    "shared": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj"),
}
"""Modules by which a file's list of exclusions is tried, below "model.layers.N."."""
EXCLUSIONS = ("modules_to_not_convert", "ignore", "ignored_layers", "exclude_modules", "llm_int8_skip_modules")


def read_formats(config: Section, layers: tuple[Layer, ...]) -> tuple[Formats | None, tuple[str, ...]]:
    """The formats that a config file states, and warnings. Raises StallscopeError for contradictions."""
    key = next((k for k in ("quantization_config", "compression_config") if config.get(k) is not None), None)
    if key is None:
        return None, ()
    section = config.inner(key)
    if not section.data:
        return None, ()
    method = section.get("quant_method")
    if method is None and ("quant_algo" in section.data or "quantization" in section.data):
        method = "modelopt"
    if method is None and any(section.data.get(flag) for flag in ("load_in_4bit", "load_in_8bit")):
        method = "bitsandbytes"
    name = str(method).lower().replace("-", "_")
    if not isinstance(method, str) or name not in METHODS:
        said = f"The file's weights are quantised by {shown(method)}, which is not one of {', '.join(sorted(METHODS))}"
        return None, (f"{said}: they are costed as unquantised.",)
    formats, warnings = _without_excluded(METHODS[name](section, name), layers)
    return formats, _assumed(section, name) + warnings


def _without_excluded(formats: Formats, layers: tuple[Layer, ...]) -> tuple[Formats, tuple[str, ...]]:
    """Leave out the parts that are excluded in every layer; warn of those that are in some."""
    kept, warnings = dict(formats.parts), []
    for part in LINEAR_PARTS:
        having = [n for n, layer in enumerate(layers) if _has(layer, part)]
        modules = [f"model.layers.{n}.{module}" for n in having for module in MODULES[part]]
        out = sum(any(_matches(pattern, module) for pattern in formats.excluded) for module in modules)
        if part not in kept or not modules:
            kept.pop(part, None)
        elif out == len(modules) or (part == "shared" and out >= len(having)):
            del kept[part]
        elif out:
            said = f"The file leaves part of the {part} weights unquantised (in {len(having)} layers)"
            warnings.append(f"{said}: all of them are costed as {kept[part].name}.")
    if any(_matches(pattern, "lm_head") for pattern in formats.excluded):
        kept.pop("lm_head", None)
    return Formats(formats.method, kept, formats.excluded, formats.activation, formats.kv), tuple(warnings)


def _has(layer: Layer, part: str) -> bool:
    mlp = layer.mlp
    if part == "attention":
        return layer.attention is not None
    if part == "mlp":
        return isinstance(mlp, Mlp)
    return isinstance(mlp, Experts) and (part == "experts" or mlp.shared is not None)


def _matches(pattern: str, module: str) -> bool:
    """Whether an exclusion covers a module: a regular expression behind "re:", a glob, or a name on its path."""
    if pattern.startswith("re:"):
        try:
            return re.match(pattern[3:], module) is not None
        except re.error:
            return False
    if "*" in pattern:
        return fnmatchcase(module, pattern) or fnmatchcase(module, f"{pattern}.*")
    return f".{pattern}." in f".{module}."


def _excluded(section: Section) -> tuple[str, ...]:
    found: list[str] = []
    for key in EXCLUSIONS:
        value = section.get(key)
        if value is None:
            continue
        if not isinstance(value, list) or any(not isinstance(name, str) for name in value):
            raise section.refuse(key, shown(value), "a list of module names", "Correct the list.")
        found += value
    return tuple(found)


def _formats(section: Section, method: str, weight: Format, **more: Any) -> Formats:
    """One format for all projections inside of layers, and for the head where the file says so."""
    parts = (*LINEAR_PARTS, "lm_head") if section.flag("lm_head") else LINEAR_PARTS
    return Formats(method, dict.fromkeys(parts, weight), _excluded(section), **more)


def _group(section: Section, key: str = "group_size") -> Block:
    value = section.get(key)
    if value in (-1, None):
        return 1, None
    return 1, positive_int(value, section.where(key))


def _integers(section: Section, method: str) -> Formats:
    """GPTQ, AWQ and kin: integers with an fp16 scale and a zero point per group along the inputs."""
    key = next((k for k in ("bits", "w_bit", "wbits") if k in section.data), "bits")
    bits = positive_int(section.get(key), section.where(key), limit=8, least=2)
    group: Block = (1, DEFAULT_GROUP)
    for name in ("group_size", "q_group_size"):
        group = _group(section, name) if name in section.data else group
    return _formats(section, method, Format(f"int{bits}", bits, group, 16, zero_bits=bits))


DEFAULT_GROUP = 128
"""group_size of GPTQConfig and AwqConfig in transformers, for files that leave it out."""


def _assumed(section: Section, method: str) -> tuple[str, ...]:
    if METHODS[method] is not _integers or {"group_size", "q_group_size"} & set(section.data):
        return ()
    said = f"The quantization_config has no group_size: {DEFAULT_GROUP}, the default of its class in transformers"
    return (f"{said}, is used.",)


def _fp8(section: Section, method: str) -> Formats:
    """8-bit floats: one fp32 scale per block, or one per tensor."""
    block: Block = (None, None)
    value = section.get("weight_block_size")
    if value is not None:
        if not isinstance(value, list) or len(value) != 2:
            raise section.refuse("weight_block_size", shown(value), "two whole numbers", "Correct the list.")
        rows, columns = (positive_int(size, section.where("weight_block_size")) for size in value)
        block = rows, columns
    elif method == "fbgemm_fp8":
        block = 1, None
    return _formats(section, method, Format("fp8", 8, block, 32), activation="fp8")


def _mxfp4(section: Section, method: str) -> Formats:
    """gpt-oss: experts in 4-bit floats with an 8-bit exponent per 32 inputs; all else stays as it is."""
    return Formats(method, {"experts": Format("mxfp4", 4, (1, 32), 8)}, _excluded(section))


def _bitsandbytes(section: Section, method: str) -> Formats:
    """NF4 or FP4 with a scale per 64 elements (fp32, or 8 bits when quantised twice), or int8 with one per output."""
    if section.flag("load_in_8bit") or not section.flag("load_in_4bit", not section.flag("load_in_8bit")):
        return _formats(section, method, Format("int8", 8, (1, None), 32), activation="int8")
    name = section.get("bnb_4bit_quant_type") or "fp4"
    if name not in ("nf4", "fp4"):
        raise section.refuse("bnb_4bit_quant_type", shown(name), "nf4 or fp4", "Correct it.")
    scale = 8 if section.flag("bnb_4bit_use_double_quant") else 32
    return _formats(section, method, Format(name, 4, (1, 64), scale))


MODELOPT = {
    "FP8": Format("fp8", 8, (None, None), 32),
    "NVFP4": Format("nvfp4", 4, (1, 16), 8),
    "NVFP4_AWQ": Format("nvfp4", 4, (1, 16), 8),
    "W4A16_AWQ": Format("int4", 4, (1, 128), 16),
    "W4A8_AWQ": Format("int4", 4, (1, 128), 16),
    "W8A8_SQ_PER_CHANNEL": Format("int8", 8, (1, None), 32),
}
"""quant_algo of ModelOpt -> format."""


def _modelopt(section: Section, method: str) -> Formats:
    """ModelOpt; its own files put the same keys under `quantization`."""
    inner = section.inner("quantization") if "quantization" in section.data else section
    algo = inner.get("quant_algo")
    if algo is None and method == "modelopt_fp4":
        algo = "NVFP4"
    if algo not in MODELOPT:
        todo = "Other algorithms are not costed."
        raise inner.refuse("quant_algo", shown(algo), f"one of {', '.join(MODELOPT)}", todo)
    kv = str(inner.get("kv_cache_quant_algo") or "").lower() or _cache_type(inner)
    activation = {"FP8": "fp8", "W4A8_AWQ": "fp8", "NVFP4": "nvfp4", "W8A8_SQ_PER_CHANNEL": "int8"}.get(algo)
    return _formats(inner, "modelopt", MODELOPT[algo], activation=activation, kv=kv)


def _compressed(section: Section, method: str) -> Formats:
    """compressed-tensors: groups of modules with one scheme each."""
    groups = section.inner("config_groups")
    found = [_scheme(groups.inner(name)) for name in groups.data]
    if not found or any(other != found[0] for other in found[1:]):
        what = shown(list(groups.data)) if len(found) > 1 else "none"
        todo = "Files with several schemes are not costed."
        raise section.refuse("config_groups", what, "one scheme for all groups", todo)
    weight, activation = found[0]
    return _formats(section, method, weight, activation=activation, kv=_cache_type(section))


def _cache_type(section: Section) -> str | None:
    """Element type of the KV cache: ModelOpt's name, or compressed-tensors' object."""
    if isinstance(section.get("kv_cache_scheme"), str):
        return str(section.data["kv_cache_scheme"]).lower()
    kv = section.inner("kv_cache_scheme")
    return f"{'fp' if kv.get('type') == 'float' else 'int'}{kv.get('num_bits')}" if kv.data else None


def _scheme(group: Section) -> tuple[Format, str | None]:
    weights, inputs = group.inner("weights"), group.inner("input_activations")
    bits = positive_int(weights.get("num_bits"), weights.where("num_bits"), limit=16)
    floats, strategy = weights.get("type") == "float", weights.get("strategy")
    blocks: dict[Any, Block] = {"tensor": (None, None), "channel": (1, None), None: (None, None)}
    if strategy in ("group", "tensor_group"):
        blocks[strategy] = _group(weights)
    elif strategy == "block":
        value = weights.get("block_structure")
        if not isinstance(value, list) or len(value) != 2:
            raise weights.refuse("block_structure", shown(value), "two whole numbers", "Correct the list.")
        blocks[strategy] = (value[0], value[1])
    if strategy not in blocks:
        raise weights.refuse("strategy", shown(strategy), "tensor, channel, group or block", "Others are not costed.")
    four: dict[Block, str] = {(1, 16): "nvfp4", (1, 32): "mxfp4"}
    micro = four.get(blocks[strategy]) if floats and bits == 4 else None
    name, scale = micro or f"{'fp' if floats else 'int'}{bits}", 8 if micro else 16
    zero = bits if weights.get("symmetric") is False else 0
    cast = f"{'fp' if inputs.get('type') == 'float' else 'int'}{inputs.get('num_bits')}" if inputs.data else None
    return Format(name, bits, blocks[strategy], scale, zero), "nvfp4" if cast == "fp4" else cast


METHODS: dict[str, Callable[[Section, str], Formats]] = {
    "gptq": _integers,
    "awq": _integers,
    "auto_round": _integers,
    "fp8": _fp8,
    "fbgemm_fp8": _fp8,
    "mxfp4": _mxfp4,
    "bitsandbytes": _bitsandbytes,
    "modelopt": _modelopt,
    "modelopt_fp4": _modelopt,
    "compressed_tensors": _compressed,
}
"""quant_method -> its reader."""
