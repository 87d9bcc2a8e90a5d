"""The attention of a model from a config file, before windows and what else differs from layer to layer."""

from __future__ import annotations

from .checks import shown
from .families import Family
from .layers import Attention, Indexer, LatentAttention
from .mixtures import read_flag
from .section import Section


def read_attention(section: Section, family: Family, hidden: int) -> Attention | LatentAttention:
    """One layer's attention. Raises StallscopeError."""
    heads = section.size("num_attention_heads")
    if family.latent and (section.has("kv_lora_rank") or section.get("use_mla") is not False):
        return _latent(section, family, hidden, heads)
    kv_heads = _kv_heads(section, family, heads)
    if heads % kv_heads:
        key = section.key("num_key_value_heads") or "num_attention_heads"
        todo = "Query heads share KV heads evenly: correct one of the two."
        raise section.refuse(key, f"{kv_heads} for {heads} attention heads", "a divisor of num_attention_heads", todo)
    head_dim = _head_dim(section, family, hidden, heads)
    alibi = _alibi(section, family, hidden)
    normed = family.qk_norm is not None and read_flag(section, family.qk_norm_if)
    return Attention(
        heads,
        kv_heads,
        head_dim,
        qkv_bias=read_flag(section, family.qkv_bias),
        out_bias=read_flag(section, family.out_bias),
        qk_norm=family.qk_norm if normed else None,
        qk_norm_bias=normed and family.qk_norm_bias,
        softcap=section.number("attn_logit_softcapping"),
        sinks=family.sinks,
        rope_dim=0 if alibi or family.positions in ("learned", "mpt") else _rope_dim(section, family, head_dim),
        alibi=alibi,
    )


def _latent(section: Section, family: Family, hidden: int, heads: int) -> LatentAttention:
    """DeepSeek's attention; num_key_value_heads and head_dim say nothing there."""
    for key in ("num_key_value_heads", "head_dim", "qk_head_dim"):
        section.get(key)
    if "q_lora_rank" not in section.data:
        section.size("q_lora_rank")
    implied = family.implied_value_dim and not section.has("v_head_dim") and hidden % heads == 0
    index = section.maybe("index_n_heads")
    indexer = None
    if index is not None:
        indexer = Indexer(index, section.size("index_head_dim"), section.size("index_topk"))
    return LatentAttention(
        heads,
        section.size("kv_lora_rank"),
        section.size("qk_nope_head_dim"),
        section.size("qk_rope_head_dim"),
        hidden // heads if implied else section.size("v_head_dim"),
        section.maybe("q_lora_rank"),
        bias=section.flag("attention_bias"),
        indexer=indexer,
    )


def _kv_heads(section: Section, family: Family, heads: int) -> int:
    rule, key = family.kv_heads, "num_key_value_heads"
    if rule == "varied":
        section.key(key)
        return heads
    if rule == "chatglm":
        return section.size("multi_query_group_num") if section.flag("multi_query_attention") else heads
    if rule == "one":
        return 1 if section.flag("multi_query", True) else heads
    if rule == "falcon":
        return _falcon_kv_heads(section, heads)
    stated = section.has(key)
    if not stated and (rule == "all" or any(name in section.data for name in (key, "n_head_kv"))):
        return heads
    return section.size(key)


def _falcon_kv_heads(section: Section, heads: int) -> int:
    """num_kv_heads in the newer of Falcon's two designs and without multi_query, else one."""
    stated = section.maybe("num_key_value_heads")
    new, multi = section.flag("new_decoder_architecture"), section.flag("multi_query", stated is None)
    if new or not multi:
        return heads if stated is None else stated
    return 1


def _head_dim(section: Section, family: Family, hidden: int, heads: int) -> int:
    if section.has("head_dim") or family.head_dim not in (None, hidden / heads):
        return section.size("head_dim")
    if hidden % heads:
        key = section.key("hidden_size") or "hidden_size"
        found = f"{key} {hidden} for {heads} heads, and no head_dim"
        raise section.refuse(key, found, "a multiple of num_attention_heads", "Correct it or add head_dim.")
    return hidden // heads


def _alibi(section: Section, family: Family, hidden: int) -> bool:
    if family.positions == "falcon":
        return section.flag("alibi")
    if family.positions == "baichuan":  # its 13B files have no max_position_embeddings, and no rotary positions
        return section.get("max_position_embeddings") is None
    return family.positions == "alibi"


def _rope_dim(section: Section, family: Family, head_dim: int) -> int | None:
    """Elements of a head that are rotated; None: all."""
    dim = section.maybe("rotary_dim")
    share: float | None = None
    for key in ("partial_rotary_factor", "rotary_pct", "rope_pct"):
        found = section.number(key)
        share = share if found is None else found
    parameters = section.get("rope_parameters")
    if share is None and isinstance(parameters, dict) and isinstance(parameters.get("partial_rotary_factor"), float):
        share = parameters["partial_rotary_factor"]
    if dim is None and share is None:
        if family.rope > 1:
            return min(round(family.rope), head_dim) if "rotary_dim" not in section.data else None
        share = family.rope
    dim = round(head_dim * (share or 0)) if dim is None else dim
    if dim > head_dim:
        raise section.refuse("rotary_dim", shown(dim), f"at most the {head_dim} of a head", "Correct it.")
    return None if dim == head_dim else dim
