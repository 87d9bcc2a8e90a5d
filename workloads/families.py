"""Model families: where each departs from its config file's keys, as its class in Hugging Face transformers does.

A row of FAMILIES is what a config file does not say. docs/models.md lists them with the classes that they follow.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .weights import RMSNORM, NormKind

Flag = bool | tuple[str, bool]
"""True or false, or (the key that says so, what holds where the key is absent)."""

LAYERNORM = NormKind("layernorm", bias=True)
BARE_LAYERNORM = NormKind("layernorm", weight=False)
SCALE_LAYERNORM = NormKind("layernorm")


@dataclass(frozen=True)
class Routing:
    """How a family mixes experts."""

    width: str = "moe_intermediate_size"
    """Key of one expert's width."""
    dense: str = "none"
    """Which layers have a plain MLP: "none", "first" (first_k_dense_replace, moe_layer_freq), "step"
    (decoder_sparse_step, mlp_only_layers), "interleave" (interleave_moe_layer_step) or "range" (ERNIE)."""
    shared: str | None = None
    """Key of the shared MLP's width, or of the number of shared experts (SHARED_COUNTS)."""
    shared_gate: bool = False
    bias: bool = False
    router_bias: bool = False
    correction: Flag = False
    optional: bool = False
    """Without a number of experts the model is dense."""


SHARED_COUNTS = ("n_shared_experts", "moe_num_shared_experts", "num_shared_experts")


@dataclass(frozen=True)
class Family:
    """Defaults are those of Llama."""

    classes: tuple[str, ...] = ()
    """Class names under `architectures`, without ForCausalLM and in lower case."""
    norm: NormKind = RMSNORM
    norms: str = "pre"
    final_norm: Flag = True
    embedding_norm: bool = False
    tie: bool = False
    """tie_word_embeddings where the file has no such key."""
    positions: str = "rope"
    """"rope", "learned", "alibi", or "falcon", "mpt" and "baichuan", which depend on keys."""
    position_rows: int = 0
    """Rows that a table of learned positions has beyond max_position_embeddings."""
    rope: float = 1.0
    """Share of a head that is rotated, or the number of elements if above 1, where no key says so."""
    nope_every: int = 0
    """Every so many layers one has no positions, where no_rope_layers is absent."""
    parallel: Flag = False
    shared_norm: bool = True
    """In a parallel layer."""
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    head_bias: Flag = False
    kv_heads: str = "all"
    """Where num_key_value_heads is absent: "all" heads have their own K and V, or it is "missing"; "falcon", "one",
    "varied" and "chatglm" go by keys of their own."""
    head_dim: int | None = None
    """head_dim of its class in transformers where the key is absent, which must then be hidden_size / heads as well.
    None: hidden_size / heads is meant, whatever comes out."""
    width: str = "given"
    """MLP width: "given"; "four" times hidden_size where absent; "half" of what is given (Qwen); "mpt"; or "varied", by
    layer."""
    gated: bool = True
    activation: str | None = "silu"
    """Where no key names one. None: a key must."""
    qk_norm: str | None = None
    qk_norm_if: Flag = True
    qk_norm_bias: bool = False
    sinks: bool = False
    window: str = "never"
    """A row of windows.WINDOWS."""
    window_every: int = 0
    """Every so many layers one is full, where neither layer_types nor a pattern is given."""
    window_default: int | None = None
    """Window of a file without the key; used with a warning."""
    latent: bool = False
    implied_value_dim: bool = False
    """Latent attention without v_head_dim: hidden_size / heads is meant."""
    moe: Routing | None = None
    nested: tuple[str, ...] = ()
    """Keys whose objects hold sizes as well."""
    vary: str | None = None
    """A row of variants.VARIANTS, which changes layers one by one."""
    harmless: tuple[str, ...] = ()
    """Keys that look like sizes and change nothing that is counted."""


_ALL_BIASED: dict[str, Any] = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
_ATTENTION_BIAS: dict[str, Any] = {"qkv_bias": ("attention_bias", False), "out_bias": ("attention_bias", False)}
_PLAIN: dict[str, Any] = {"gated": False, "norm": LAYERNORM}

LLAMA = Family(("llama",), **_ATTENTION_BIAS, mlp_bias=("mlp_bias", False))
MISTRAL = Family(("mistral",), kv_heads="missing", window="always", window_default=4096)
QWEN2 = Family(("qwen2",), qkv_bias=True, kv_heads="missing", window="asked")
QWEN3 = Family(("qwen3",), **_ATTENTION_BIAS, kv_heads="missing", head_dim=128, qk_norm="head", window="asked")
GEMMA = Family(("gemma",), tie=True, kv_heads="missing", head_dim=256, activation="gelu", **_ATTENTION_BIAS)
GEMMA3 = replace(GEMMA, classes=("gemma3",), norms="both", qk_norm="head", window="pattern", window_every=6)
DEEPSEEK_MOE = Routing(dense="first", shared="n_shared_experts", correction=True)
DEEPSEEK = Family(("deepseekv3",), latent=True, moe=DEEPSEEK_MOE)
OLMO = Family(("olmo",), norm=BARE_LAYERNORM, **_ATTENTION_BIAS)
GPT2 = Family(("gpt2lmhead",), **_PLAIN, **_ALL_BIASED, tie=True, positions="learned", width="four", activation="gelu")
GPTJ = Family(("gptj",), **_PLAIN, mlp_bias=True, head_bias=True, parallel=True, rope=64, width="four",
              activation="gelu")  # fmt: skip
FALCON = Family(
    ("falcon", "rw"),
    **_PLAIN,
    tie=True,
    positions="falcon",
    parallel=("parallel_attn", True),
    qkv_bias=("bias", False),
    out_bias=("bias", False),
    mlp_bias=("bias", False),
    kv_heads="falcon",
    width="four",
    activation="gelu",
    vary="falcon",
)
PHI = Family(("phi",), **_PLAIN, **_ALL_BIASED, head_bias=True, parallel=True, rope=0.5, width="four",
             activation="gelu", qk_norm="head", qk_norm_if=("qk_layernorm", False), qk_norm_bias=True)  # fmt: skip
STABLELM = Family(("stablelm", "stablelmepoch"), norm=LAYERNORM, qkv_bias=("use_qkv_bias", False), rope=0.25,
                  parallel=("use_parallel_residual", False), qk_norm="heads",
                  qk_norm_if=("qk_layernorm", False))  # fmt: skip
GRANITE = Family(("granite",), **_ATTENTION_BIAS, mlp_bias=("mlp_bias", False))
COHERE = Family(("cohere",), norm=SCALE_LAYERNORM, tie=True, parallel=True, **_ATTENTION_BIAS, qk_norm="heads",
                qk_norm_if=("use_qk_norm", False))  # fmt: skip
GLM = Family(("glm",), qkv_bias=("attention_bias", True), kv_heads="missing", head_dim=128, rope=0.5)
GLM4_MOE = Family(("glm4moe",), qkv_bias=("attention_bias", False), kv_heads="missing", rope=0.5, qk_norm="head",
                  qk_norm_if=("use_qk_norm", False), moe=DEEPSEEK_MOE)  # fmt: skip
INTERNLM = Family(("internlm",), qkv_bias=("bias", True), out_bias=("bias", True))
ERNIE = Family(("ernie4_5", "ernie4_5_"), tie=True, kv_heads="missing", head_dim=128,
               qkv_bias=("use_bias", False), out_bias=("use_bias", False), mlp_bias=("use_bias", False))  # fmt: skip

FAMILIES: dict[str, Family] = {
    "llama": LLAMA,
    "yi": replace(LLAMA, classes=("yi",)),
    "aquila": replace(LLAMA, classes=("aquila",)),
    "xverse": replace(LLAMA, classes=("xverse",)),
    "skywork": replace(LLAMA, classes=("skywork",)),
    "orion": replace(LLAMA, classes=("orion",), norm=LAYERNORM),
    "arcee": replace(LLAMA, classes=("arcee",), gated=False, activation=None),
    "smollm3": replace(LLAMA, classes=("smollm3",), tie=True, kv_heads="missing", nope_every=4, window="nope"),
    "minicpm": replace(LLAMA, classes=("minicpm",), tie=True),
    "deci": replace(LLAMA, classes=("deci",), kv_heads="missing", vary="deci"),
    "nemotron-nas": replace(LLAMA, classes=("decilm",), kv_heads="varied", width="varied", vary="blocks"),
    "hunyuan_v1_dense": replace(LLAMA, classes=("hunyuandensev1",), mlp_bias=False, qk_norm="head"),
    "seed_oss": Family(("seedoss",), qkv_bias=("attention_bias", True), out_bias=("attention_out_bias", False),
                       mlp_bias=("mlp_bias", False), kv_heads="missing", head_dim=128),
    "helium": Family(("helium",), **_ATTENTION_BIAS, mlp_bias=("mlp_bias", False), kv_heads="missing",
                     head_dim=128),
    "internlm": INTERNLM,
    "internlm2": replace(INTERNLM, classes=("internlm2",)),
    "internlm3": Family(("internlm3",), qkv_bias=("qkv_bias", False), out_bias=("bias", False),
                        mlp_bias=("bias", False), kv_heads="missing"),
    "baichuan": Family(("baichuan",), positions="baichuan"),
    "mistral": MISTRAL,
    "ministral": replace(MISTRAL, classes=("ministral",), window="pattern", window_default=None),
    "ministral3": replace(MISTRAL, classes=("ministral3",), window_default=None, head_dim=128),
    "mixtral": replace(MISTRAL, classes=("mixtral",), window_default=None, moe=Routing("intermediate_size")),
    "qwen": Family(("qwenlmhead",), qkv_bias=True, out_bias=("not no_bias", False), mlp_bias=("not no_bias", False),
                   width="half", harmless=("ffn_inter_padding_size",)),
    "qwen2": QWEN2,
    "qwen2_moe": replace(QWEN2, classes=("qwen2moe",), qkv_bias=("qkv_bias", True), moe=Routing(
        dense="step", shared="shared_expert_intermediate_size", shared_gate=True)),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, classes=("qwen3moe",), head_dim=None, moe=Routing(dense="step")),
    "mimo": replace(QWEN2, classes=("mimo",)),
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, classes=("gemma2",), norms="both", window="pattern", window_every=2),
    "gemma3_text": GEMMA3,
    "gemma4_text": replace(GEMMA3, classes=("gemma4",), vary="gemma4", moe=Routing(optional=True),
                           harmless=("vocab_size_per_layer_input",)),
    "deepseek": Family(("deepseek",), **_ATTENTION_BIAS, moe=replace(DEEPSEEK_MOE, correction=False, optional=True)),
    "deepseek_v2": replace(DEEPSEEK, classes=("deepseekv2",),
                           moe=replace(DEEPSEEK_MOE, correction=False, optional=True)),
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": replace(DEEPSEEK, classes=("deepseekv32",)),
    "glm4_moe_lite": replace(DEEPSEEK, classes=("glm4moelite",)),
    "glm_moe_dsa": replace(DEEPSEEK, classes=("glmmoedsa",)),
    "minicpm3": Family(("minicpm3",), latent=True, implied_value_dim=True, tie=True, mlp_bias=("mlp_bias", False)),
    "glm": GLM,
    "glm4": replace(GLM, classes=("glm4",), norms="both"),
    "glm4_moe": GLM4_MOE,
    "dots1": Family(("dots1",), **_ATTENTION_BIAS, kv_heads="missing", qk_norm="head", moe=DEEPSEEK_MOE,
                    window="asked"),
    "chatglm": Family(("chatglm", "chatglmmodel", "chatglmforconditionalgeneration"), rope=0.5, kv_heads="chatglm",
                      qkv_bias=("add_qkv_bias", False), out_bias=("add_bias_linear", False),
                      mlp_bias=("add_bias_linear", False), final_norm=("post_layer_norm", True), vary="chatglm"),
    "gpt_oss": Family(("gptoss",), qkv_bias=("attention_bias", True), out_bias=("attention_bias", True), sinks=True,
                      kv_heads="missing", head_dim=64, activation="swiglu_clamped", window="pattern",
                      window_every=2, moe=Routing("intermediate_size", bias=True, router_bias=True)),
    "llama4_text": Family(("llama4",), **_ATTENTION_BIAS, kv_heads="missing", head_dim=128, qk_norm="bare",
                          qk_norm_if=("use_qk_norm", True), nope_every=4, window="chunk", vary="llama4",
                          moe=Routing("intermediate_size", dense="interleave", shared="intermediate_size")),
    "minimax_m2": Family(("minimaxm2",), kv_heads="missing", head_dim=128, qk_norm="row",
                         qk_norm_if=("use_qk_norm", True), window="always",
                         moe=Routing("intermediate_size", correction=("use_routing_bias", True)),
                         harmless=("mtp_transformer_layers",)),
    "mimo_v2_flash": Family(("mimov2flash",), qkv_bias=("attention_bias", False), kv_heads="missing",
                            head_dim=192, window="hybrid", vary="mimo",
                            harmless=("sliding_window_size", "attention_chunk_size"),
                            moe=replace(DEEPSEEK_MOE, correction=True)),
    "ernie4_5": ERNIE,
    "ernie4_5_moe": replace(ERNIE, classes=("ernie4_5_moe", "ernie4_5_moe_"), head_dim=None,
                            head_bias=("use_bias", False), moe=Routing(
                                dense="range", shared="moe_num_shared_experts", correction=True)),
    "bailing_moe": Family(("bailingmoe",), kv_heads="missing", qkv_bias=("use_qkv_bias", False),
                          out_bias=("use_bias", False),
                          moe=Routing(dense="first", shared="num_shared_experts")),
    "granite": GRANITE,
    "granitemoe": replace(GRANITE, classes=("granitemoe",), moe=Routing("intermediate_size")),
    "granitemoeshared": replace(GRANITE, classes=("granitemoeshared",),
                                moe=Routing("intermediate_size", shared="shared_intermediate_size")),
    "exaone": Family(("exaone",)),
    "exaone4": Family(("exaone4",), norms="post", qk_norm="head", kv_heads="missing", window="pattern",
                      window_every=4, vary="exaone4"),
    "olmo": OLMO,
    "olmo2": replace(OLMO, classes=("olmo2",), norm=RMSNORM, norms="post", qk_norm="row"),
    "olmo3": replace(OLMO, classes=("olmo3",), norm=RMSNORM, norms="post", qk_norm="row", window="pattern",
                     window_every=4),
    "olmoe": replace(OLMO, classes=("olmoe",), norm=RMSNORM, qk_norm="row", moe=Routing("intermediate_size")),
    "cohere": COHERE,
    "cohere2": replace(COHERE, classes=("cohere2",), window="pattern", window_every=4, vary="cohere2"),
    "phi": PHI,
    "phi-msft": replace(PHI, classes=("phimsft",)),
    "mixformer-sequential": replace(PHI, classes=("mixformersequential",), harmless=("architecture",)),
    "phi3": Family(("phi3",), **_ATTENTION_BIAS, mlp_bias=("mlp_bias", False), head_bias=("lm_head_bias", False),
                   window="always", harmless=("full_attn_mod", "interpolate_factor")),
    "phimoe": Family(("phimoe",), norm=LAYERNORM, **_ATTENTION_BIAS, head_bias=("lm_head_bias", False),
                     kv_heads="missing", window="always", moe=Routing("intermediate_size")),
    "stablelm": STABLELM,
    "stablelm_epoch": STABLELM,
    "gpt2": GPT2,
    "openai-gpt": replace(GPT2, classes=("openaigptlmhead",), norms="after", final_norm=False),
    "gpt_bigcode": replace(GPT2, classes=("gptbigcode",), kv_heads="one"),
    "gpt_neo": replace(GPT2, classes=("gptneo",), qkv_bias=False, window="gpt_neo"),
    "gptj": GPTJ,
    "codegen": replace(GPTJ, classes=("codegen",)),
    "gpt_neox": Family(("gptneox",), **_PLAIN, qkv_bias=("attention_bias", True), out_bias=("attention_bias", True),
                       mlp_bias=True, rope=0.25, parallel=("use_parallel_residual", True), shared_norm=False,
                       activation="gelu"),
    "opt": Family(("opt",), **_PLAIN, qkv_bias=("enable_bias", True), out_bias=("enable_bias", True),
                  mlp_bias=("enable_bias", True), tie=True, positions="learned", position_rows=2, activation="relu",
                  final_norm=("not _remove_final_layer_norm", True), vary="opt"),
    "bloom": replace(GPT2, classes=("bloom",), positions="alibi", embedding_norm=True),
    "mpt": Family(("mpt",), gated=False, norm=SCALE_LAYERNORM, tie=True, positions="mpt", width="mpt",
                  activation="gelu", nested=("attn_config",), vary="mpt"),
    "dbrx": Family(("dbrx",), norm=SCALE_LAYERNORM, kv_heads="missing", nested=("attn_config", "ffn_config"),
                   moe=Routing("intermediate_size")),
    "falcon": FALCON,
    "refinedweb": FALCON,
    "refinedwebmodel": FALCON,
    "starcoder2": Family(("starcoder2",), **_PLAIN, qkv_bias=("use_bias", True), out_bias=("use_bias", True),
                         mlp_bias=("use_bias", True), tie=True, kv_heads="missing", activation="gelu",
                         window="always"),
    "nemotron": Family(("nemotron",), **_PLAIN, **_ATTENTION_BIAS, mlp_bias=("mlp_bias", False), rope=0.5,
                       activation="relu2"),
    "persimmon": Family(("persimmon",), **_PLAIN, **_ALL_BIASED, rope=0.5, activation="relu2", qk_norm="head",
                        qk_norm_if=("qk_layernorm", True), qk_norm_bias=True),
}  # fmt: skip
"""model_type, in lower case -> its family."""

SAME_FAMILY = {
    "baichuan2": "baichuan", "gemma3": "gemma3_text", "gemma4": "gemma4_text", "kimi_k2": "deepseek_v3",
    "llama4": "llama4_text", "phi4": "phi3", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2",
    "qwen2_5_vl_text": "qwen2", "qwen2_5_omni_text": "qwen2", "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe", "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe", "llava": "llama",
    "llava_llama": "llama", "llava_mistral": "mistral", "llava_qwen": "qwen2", "phi3_v": "phi3", "phi4mm": "phi3",
    "phi4_multimodal": "phi3",
}  # fmt: skip
"""Other names of the same layers."""
