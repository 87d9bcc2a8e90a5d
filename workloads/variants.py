"""What families change from layer to layer, beyond windows and experts: one function per family."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .checks import positive_int, shown
from .layers import Attention, Experts, Layer, Mlp
from .section import Section

Layers = tuple[Layer, ...]


def _attention(layer: Layer, **changes: Any) -> Layer:
    assert isinstance(layer.attention, Attention)
    return replace(layer, attention=replace(layer.attention, **changes))


def _falcon(section: Section, layers: Layers) -> Layers:
    """Two norms in the newer design, one in the older; num_ln_in_parallel_attn counts where it is given."""
    kind = str(section.data.get("model_type")).lower()
    new = section.flag("new_decoder_architecture", kind == "refinedweb" and section.has("num_key_value_heads"))
    norms = section.maybe("num_ln_in_parallel_attn") or (2 if new else 1)
    return tuple(replace(layer, shared_norm=layer.parallel and norms == 1) for layer in layers)


def _opt(section: Section, layers: Layers) -> Layers:
    """opt-350m has its norms behind the residual add."""
    before = section.flag("do_layer_norm_before", True)
    return layers if before else tuple(replace(layer, norms="after") for layer in layers)


def _cohere2(section: Section, layers: Layers) -> Layers:
    """Only layers with a window have rotary positions."""
    return tuple(_attention(layer, rope_dim=0) if _open(layer) else layer for layer in layers)


def _exaone4(section: Section, layers: Layers) -> Layers:
    """As Cohere2, in models that have windows at all."""
    return _cohere2(section, layers) if any(not _open(layer) for layer in layers) else layers


def _open(layer: Layer) -> bool:
    return layer.attention is not None and layer.attention.window is None


def _llama4(section: Section, layers: Layers) -> Layers:
    """Layers without rotary positions have no norm of Q and K either."""
    return tuple(
        _attention(layer, qk_norm=None)
        if isinstance(layer.attention, Attention) and layer.attention.rope_dim == 0
        else layer
        for layer in layers
    )


def _gemma4(section: Section, layers: Layers) -> Layers:
    """Layers without a window have wider heads, fewer of K and V, and V from K; experts stand beside an MLP."""
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if section.maybe(key, least=0):
            expected = "0: embeddings per layer and shared K and V are not costed"
            raise section.refuse(key, shown(section.data[key]), expected, "Only models without them are read.")
    dim, same = section.maybe("global_head_dim"), section.flag("attention_k_eq_v")
    kv_heads = section.maybe("num_global_key_value_heads")
    if any(_open(layer) for layer in layers) and dim is None:
        dim = section.size("global_head_dim")
    if same and kv_heads is None:
        kv_heads = section.size("num_global_key_value_heads")
    beside = section.maybe("intermediate_size") if section.flag("enable_moe_block") else None
    result = []
    for layer in layers:
        layer = _attention(layer, v_norm=True)
        if _open(layer):
            assert isinstance(layer.attention, Attention)
            heads = kv_heads if same and kv_heads is not None else layer.attention.kv_heads
            layer = _attention(layer, head_dim=dim, kv_heads=heads, v_is_k=same)
        if isinstance(layer.mlp, Experts):
            dense = Mlp(beside or section.size("intermediate_size"), activation=layer.mlp.activation)
            layer = replace(layer, mlp=replace(layer.mlp, shared=dense, router_scales=True))
        result.append(replace(layer, scalar=True))
    return tuple(result)


def _mimo(section: Section, layers: Layers) -> Layers:
    """Layers with a window have KV heads, head sizes and sinks of their own."""
    full = {"v_head_dim": section.size("v_head_dim"), "sinks": section.flag("add_full_attention_sink_bias")}
    local = {
        "heads": section.size("swa_num_attention_heads"),
        "kv_heads": section.size("swa_num_key_value_heads"),
        "head_dim": section.size("swa_head_dim"),
        "v_head_dim": section.size("swa_v_head_dim"),
        "sinks": section.flag("add_swa_attention_sink_bias"),
    }
    return tuple(_attention(layer, **(full if _open(layer) else local)) for layer in layers)


def _deci(section: Section, layers: Layers) -> Layers:
    """DeciLM-7B: a number of KV heads for each layer."""
    counts = section.per_layer("num_key_value_heads_per_layer", len(layers))
    if counts is None:
        return layers
    where = section.where("num_key_value_heads_per_layer")
    return tuple(_attention(layer, kv_heads=positive_int(n, where)) for layer, n in zip(layers, counts, strict=True))


def _chatglm(section: Section, layers: Layers) -> Layers:
    """ChatGLM2 and later. Raises StallscopeError for the first ChatGLM, which is built otherwise."""
    if not section.flag("rmsnorm", True) or section.flag("apply_residual_connection_post_layernorm"):
        key = "rmsnorm" if not section.flag("rmsnorm", True) else "apply_residual_connection_post_layernorm"
        raise section.refuse(key, shown(section.data[key]), "a ChatGLM2, ChatGLM3 or GLM-4", "Others are not costed.")
    return layers


def _mpt(section: Section, layers: Layers) -> Layers:
    """MPT names its kind of attention; files with biases or learned positions are refused."""
    attention, kind = layers[0].attention, section.get("attn_type") or "multihead_attention"
    assert isinstance(attention, Attention)
    kinds = {"multihead_attention": attention.heads, "multiquery_attention": 1}
    if kind == "grouped_query_attention":
        kinds[kind] = section.size("num_key_value_heads")
    if kind not in kinds:
        expected = "multihead_attention, multiquery_attention or grouped_query_attention"
        raise section.refuse("attn_type", shown(kind), expected, "Other kinds are not costed.")
    alibi, rope = section.flag("alibi", True), section.flag("rope")
    if not section.flag("no_bias", True):
        raise section.refuse("no_bias", "false", "true", "MPT with biases is not costed.")
    if not (alibi or rope):
        todo = "Learned positions are not costed here."
        raise section.refuse("alibi", "neither alibi nor rope", "one of them", todo)
    normed = "row" if section.flag("qk_ln") else None
    changes = {"kv_heads": kinds[kind], "alibi": alibi, "qk_norm": normed, "rope_dim": None if rope else 0}
    return tuple(_attention(layer, **changes) for layer in layers)


def _blocks(section: Section, layers: Layers) -> Layers:
    """Nemotron-NAS: an object per layer says how many heads share KV, and how wide the MLP is."""
    blocks = section.per_layer("block_configs", len(layers))
    if blocks is None:
        section.size("block_configs")
    return tuple(_block(section, layer, block) for layer, block in zip(layers, blocks or (), strict=True))


def _block(section: Section, layer: Layer, block: Any) -> Layer:
    where, todo = "block_configs", "Only plain attention, plain MLPs and no_op are costed."
    both = [block.get(key) if isinstance(block, dict) else None for key in ("attention", "ffn")]
    parts = [part for part in both if isinstance(part, dict)]
    if len(parts) < 2:
        raise section.refuse(where, shown(block), "objects with attention and ffn", todo)
    attention, ffn = parts
    odd = ("replace_with_linear", "sparsify", "window_length", "num_sink_tokens", "mamba", "llama4", "moe")
    if any(part.get(key) for part in parts for key in odd):
        raise section.refuse(where, shown(block), "none of " + ", ".join(odd), todo)
    new_attention, new_mlp = None, None
    if not attention.get("no_op"):
        assert isinstance(layer.attention, Attention)
        group = positive_int(attention.get("n_heads_in_group"), section.where(where) + ": n_heads_in_group")
        if layer.attention.heads % group:
            found = f"n_heads_in_group {group} for {layer.attention.heads} heads"
            raise section.refuse(where, found, "a divisor of num_attention_heads", todo)
        new_attention = replace(layer.attention, kv_heads=layer.attention.heads // group)
    if not ffn.get("no_op"):
        assert isinstance(layer.mlp, Mlp)
        new_mlp = replace(layer.mlp, intermediate_size=_ffn_width(section, ffn))
    return replace(layer, attention=new_attention, mlp=new_mlp)


def _ffn_width(section: Section, ffn: dict[str, Any]) -> int:
    """intermediate_size, or 2/3 of ffn_mult x hidden_size, whole, rounded up to 256, as DeciLM does."""
    where = section.where("block_configs")
    if ffn.get("intermediate_size") is not None:
        return positive_int(ffn["intermediate_size"], f"{where}: intermediate_size")
    mult = ffn.get("ffn_mult")
    if isinstance(mult, bool) or not isinstance(mult, int | float) or not 0 < mult < 1000:
        raise section.refuse("block_configs", f"ffn_mult {shown(mult)}", "a number above 0", "Correct it.")
    return math.ceil(int(2 * mult * section.size("hidden_size") / 3) / 256) * 256


VARIANTS: dict[str, Callable[[Section, Layers], Layers]] = {
    "falcon": _falcon,
    "opt": _opt,
    "cohere2": _cohere2,
    "exaone4": _exaone4,
    "llama4": _llama4,
    "gemma4": _gemma4,
    "mimo": _mimo,
    "deci": _deci,
    "chatglm": _chatglm,
    "mpt": _mpt,
    "blocks": _blocks,
}
"""A family's `vary`."""
