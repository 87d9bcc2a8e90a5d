"""Keys of a config file that look like sizes and were not read: none may change a model without a word."""

from __future__ import annotations

import re
from typing import Any

from .section import Section

LOOKS_LIKE_A_SIZE = re.compile(
    r"(^|_)(n|num|dim|dims|size|sizes|head|heads|layer|layers|rank|expert|experts|hidden|ffn|mlp|inner|channels|group"
    r"|groups|block|blocks|width|widths|depth|expand|expansion|mult|multipliers|ratio|ratios|freq|period|interval"
    r"|kernel|state|window|embd|embed|shared|sharing|mtp|nextn|pattern)(_|$)"
)
HARMLESS = re.compile(
    r"_ids?$|_index$|token|label|^id2|rope|rotary|yarn|theta|initial|init_|dropout|pdrop|_drop|eps$|epsilon|^output_"
    r"|return|beam|ngram|penalty|temperature|top_p|image|vision|visual|video|audio|speech|^mm_|projector|resampler"
    r"|version|loss|jitter|coef|alpha|multiplier$|scal|softcap|pretraining_tp|ep_size|summary|max_length|min_length"
    r"|max_window_layers|original_max|chunk_size_feed_forward|logits_to_keep|n_group$|topk_group|topk|quant|torch"
    r"|dtype|parallel_size|cache|^_|pruned_heads|mup_|flash|attn_implementation|num_hash|residual|norm_topk|device"
    r"|^num_labels$|clip_qkv|query_pre_attn|dim_model_base|hidden_states|moe_layer_recompute|z_loss|lora|mask|position"
    r"|^num_return|^n_ctx$|group_limited|layer_norm|layernorm|attention_factor|longrope|mscale|init_method"
)
"""Keys about training, tokens, sampling, positions and other parts of a model."""


def leftovers(section: Section, harmless: tuple[str, ...]) -> list[str]:
    """The keys that hold numbers, look like sizes, and were neither read nor are known to change nothing."""
    return sorted(
        key
        for key, value in section.data.items()
        if key not in section.used
        and key not in harmless
        and _counts(value)
        and LOOKS_LIKE_A_SIZE.search(key.lower())
        and not HARMLESS.search(key.lower())
    )


def _counts(value: Any) -> bool:
    """Whether a value could be a size: a number above 0, a list of numbers, or an object that has one."""
    if isinstance(value, list):
        return any(_counts(item) or isinstance(item, str) for item in value)
    if isinstance(value, dict):
        return any(_counts(item) for item in value.values())
    return not isinstance(value, bool) and isinstance(value, int | float) and value > 0
