"""MLPs and experts of each layer from a config file."""

from __future__ import annotations

from collections.abc import Callable

from .checks import shown
from .families import SHARED_COUNTS, Family, Routing
from .layers import ACTIVATIONS, Experts, Mlp
from .section import Section

NAMES = {
    **dict.fromkeys(("gelu", "gelu_new", "gelu_fast", "gelu_python", "gelu_pytorch_tanh", "quick_gelu"), "gelu"),
    "silu": "silu",
    "swish": "silu",
    "swiglu": "silu",
    "silu_and_mul": "silu",
    "relu": "relu",
    "relu2": "relu2",
    "relu_squared": "relu2",
    "relu^2": "relu2",
    "squared_relu": "relu2",
    "geglu": "gelu",
}
"""Name of an activation in config files -> one of ACTIVATIONS."""
assert set(NAMES.values()) <= set(ACTIVATIONS)


def read_activation(section: Section, family: Family) -> str:
    """The MLP's activation. Raises StallscopeError for one that is not known."""
    key = section.key("hidden_act")
    if family.activation == "swiglu_clamped":
        return family.activation
    if key is None and family.activation is not None:
        return family.activation
    value = section.data[key] if key else None
    if not isinstance(value, str) or value.lower() not in NAMES:
        known = f"one of {', '.join(sorted(NAMES))}"
        raise section.refuse(key or "hidden_act", shown(value), known, "Other activations are not costed.")
    return NAMES[value.lower()]


def read_flag(section: Section, flag: bool | tuple[str, bool]) -> bool:
    """A Flag of a family; a key "not X" is the opposite of X."""
    if isinstance(flag, bool):
        return flag
    key, default = flag
    if key.startswith("not "):
        return not section.flag(key.removeprefix("not "), not default)
    return section.flag(key, default)


def read_width(section: Section, family: Family, hidden: int) -> int:
    """Width of a dense MLP."""
    if family.width == "mpt":
        ratio = section.number("expansion_ratio")
        return round(hidden * (4 if ratio is None else ratio))
    if family.width == "four" and not section.has("intermediate_size"):
        return 4 * hidden
    if family.width == "varied" and not section.has("intermediate_size"):
        return hidden
    width = section.size("intermediate_size")
    if family.width != "half":
        return width
    if width % 2:
        todo = "This family writes twice the width of its MLP."
        raise section.refuse(section.key("intermediate_size") or "", f"{width}", "an even number", todo)
    return width // 2


def read_mlps(section: Section, family: Family, hidden: int, layers: int) -> tuple[Mlp | Experts, ...]:
    """The MLP or the experts of each layer. Raises StallscopeError."""
    activation, bias = read_activation(section, family), read_flag(section, family.mlp_bias)
    moe = family.moe
    count = section.maybe("num_experts", least=0) if moe is not None else None
    if moe is None or (moe.optional and not count):
        return (Mlp(read_width(section, family, hidden), family.gated, activation, bias),) * layers
    experts = _experts(section, moe, activation, family.gated)
    mixed = DENSE[moe.dense](section, layers)
    if all(mixed):
        section.used.update(("intermediate_size", "intermediate_size_mlp"))
        return (experts,) * layers
    key = "intermediate_size_mlp" if "intermediate_size_mlp" in section.data else "intermediate_size"
    width = section.size(key) if key != "intermediate_size" else read_width(section, family, hidden)
    dense = Mlp(width, family.gated, activation, bias)
    return tuple(experts if here else dense for here in mixed)


def _experts(section: Section, moe: Routing, activation: str, gated: bool) -> Experts:
    count, top_k = section.size("num_experts"), section.size("num_experts_per_tok")
    key = section.key("num_experts_per_tok")
    if top_k > count:
        raise section.refuse(key or "", f"{top_k} of {count} experts", "at most as many as there are", "Correct it.")
    width = section.size(moe.width)
    correction = read_flag(section, moe.correction)
    if section.get("topk_method") is not None and moe.correction is True:
        correction = section.data["topk_method"] == "noaux_tc"
    return Experts(
        count,
        top_k,
        width,
        gated,
        activation,
        moe.bias,
        shared=_shared(section, moe, width, activation, gated),
        shared_gate=moe.shared_gate,
        router_bias=moe.router_bias,
        correction_bias=correction,
    )


def _shared(section: Section, moe: Routing, width: int, activation: str, gated: bool) -> Mlp | None:
    if moe.shared is None:
        return None
    size = section.maybe(moe.shared, least=0)
    if moe.shared in SHARED_COUNTS:
        whole = section.maybe("moe_shared_expert_intermediate_size", least=0)
        size = (size or 0) * (whole or width)
    return Mlp(size, gated, activation, moe.bias) if size else None


def _none(section: Section, layers: int) -> list[bool]:
    return [True] * layers


def _first(section: Section, layers: int) -> list[bool]:
    """DeepSeek: MoE from layer first_k_dense_replace on, every moe_layer_freq-th; or lists with one entry per layer."""
    types = section.per_layer("mlp_layer_types", layers)
    if types is not None:
        if set(types) - {"dense", "sparse"}:
            raise section.refuse("mlp_layer_types", shown(types), "dense or sparse for each layer", "Correct it.")
        section.used.update(("first_k_dense_replace", "moe_layer_freq"))
        return [kind == "sparse" for kind in types]
    if isinstance(section.get("moe_layer_freq"), list):
        flags = section.per_layer("moe_layer_freq", layers) or []
        if any(flag not in (0, 1) for flag in flags):
            raise section.refuse("moe_layer_freq", shown(flags), "0 or 1 for each layer", "Correct the list.")
        return [bool(flag) for flag in flags]
    first, every = section.size("first_k_dense_replace", least=0), section.maybe("moe_layer_freq") or 1
    return [layer >= first and layer % every == 0 for layer in range(layers)]


def _step(section: Section, layers: int) -> list[bool]:
    """Qwen: every decoder_sparse_step-th layer that mlp_only_layers does not name."""
    dense, step = section.get("mlp_only_layers") or [], section.maybe("decoder_sparse_step") or 1
    if not isinstance(dense, list) or any(type(layer) is not int for layer in dense):
        raise section.refuse("mlp_only_layers", shown(dense), "a list of layer numbers", "Correct it.")
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]


def _interleave(section: Section, layers: int) -> list[bool]:
    """Llama 4: the layers that moe_layers names, or every interleave_moe_layer_step-th."""
    named = section.get("moe_layers")
    if named is not None:
        if not isinstance(named, list) or any(type(layer) is not int for layer in named):
            raise section.refuse("moe_layers", shown(named), "a list of layer numbers", "Correct it.")
        section.get("interleave_moe_layer_step")
        return [layer in named for layer in range(layers)]
    step = section.size("interleave_moe_layer_step")
    return [(layer + 1) % step == 0 for layer in range(layers)]


def _range(section: Section, layers: int) -> list[bool]:
    """ERNIE: every moe_layer_interval-th layer from moe_layer_start_index to moe_layer_end_index (-1: the last)."""
    first, every = section.size("moe_layer_start_index", least=0), section.maybe("moe_layer_interval") or 1
    last = section.get("moe_layer_end_index")
    if last in (None, -1):
        last = layers - 1
    last = last if type(last) is int else section.size("moe_layer_end_index", least=0)
    return [first <= layer <= last and (layer + 1) % every == 0 for layer in range(layers)]


DENSE: dict[str, Callable[[Section, int], list[bool]]] = {
    "none": _none,
    "first": _first,
    "step": _step,
    "interleave": _interleave,
    "range": _range,
}
"""Which layers have experts: a family's `dense`."""
