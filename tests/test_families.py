"""Families beyond the catalogue against the parameters that their cards state, and the traps of each family's keys."""

import contextlib
import json
from pathlib import Path

import pytest
from config_drafts import LLAMA

from stallscope.errors import StallscopeError
from stallscope.workloads.config import model_of
from stallscope.workloads.families import FAMILIES, SAME_FAMILY
from stallscope.workloads.jsonfile import JsonFile
from stallscope.workloads.layers import Attention, Experts, Indexer, LatentAttention, Layer, Mlp
from stallscope.workloads.quantization import METHODS
from stallscope.workloads.section import ALIASES
from stallscope.workloads.variants import VARIANTS
from stallscope.workloads.windows import WINDOWS

PUBLISHED = [json.loads(line) for line in (Path(__file__).parent / "families.jsonl").open(encoding="utf-8")]
"""Sizes of models, and the parameters that their cards and checkpoints state."""
CONFIGS = {row["name"]: row["config"] for row in PUBLISHED}


def read(data, **changes):
    """A config in memory, with keys changed; those changed to ... are left out."""
    data = {key: value for key, value in (data | changes).items() if value is not ...}
    return model_of(JsonFile(Path("config.json"), json.dumps(data, indent=1), data), "m", "test")


def attentions(data, **changes):
    return [layer.attention for layer in read(data, **changes).layers]


def refused(data, **changes):
    with pytest.raises(StallscopeError) as caught:
        read(data, **changes)
    return str(caught.value)


def more(data, other, layers=1):
    """By how many parameters per layer the second is larger."""
    return (read(other).params - read(data).params) / layers


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_each_family_has_the_parameters_that_its_cards_state(row):
    model = read(row["config"])
    assert model.params == row["parameters"]
    assert model.warnings == ()


def test_the_tables_of_families_have_no_dead_rows():
    assert set(SAME_FAMILY.values()) <= set(FAMILIES)
    assert not set(SAME_FAMILY) & set(FAMILIES)
    assert {family.vary for family in FAMILIES.values()} - {None} == set(VARIANTS)
    assert {family.window for family in FAMILIES.values()} == set(WINDOWS)
    for kind, family in FAMILIES.items():
        assert kind == kind.lower()
        assert family.classes, kind


def test_the_page_names_every_family_method_and_key():
    page = (Path(__file__).parents[1] / "docs" / "models.md").read_text(encoding="utf-8")
    keys = {key for names in ALIASES.values() for key in names}
    for name in {*FAMILIES, *SAME_FAMILY, *METHODS, *keys}:
        assert f"`{name}`" in page, name


ODD = (None, True, 0, -1, 3, 2.5, 10**40, "64", [1], {"a": 1}, [[["x"]]])


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
def test_odd_values_under_any_key_of_any_family_are_read_or_refused_in_one_sentence(row):
    seen = 0
    extra = ("architectures", "head_dim", "hidden_act", "layer_types", "sliding_window", "quantization_config")
    extra += ("tie_word_embeddings", "no_rope_layers", "moe_layer_freq", "text_config", "rope_parameters")
    for key in (*row["config"], *extra):
        for value in (*ODD, ...):
            with contextlib.suppress(StallscopeError):
                seen += read(row["config"], **{key: value}).params > 0
    assert seen > 10


SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
OTHERS = {"hidden_size": ("n_embd", "d_model", "n_embed"), "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
          "num_attention_heads": ("n_head", "n_heads", "num_heads"), "vocab_size": ("padded_vocab_size",)}  # fmt: skip


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: row["name"])
@pytest.mark.parametrize("size", SIZES)
def test_no_default_stands_in_for_a_missing_size(row, size):
    gone = {key: ... for key in (size, *OTHERS[size]) if key in row["config"]}
    assert size in refused(row["config"], **gone)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("gemma-7b", "head_dim"),
        ("gemma-2b", "num_key_value_heads"),
        ("gemma-2b", "intermediate_size"),
        ("starcoder2-3b", "num_key_value_heads"),
        ("command-r7b", "sliding_window"),
        ("opt-125m", "ffn_dim"),
        ("opt-125m", "max_position_embeddings"),
        ("dots.llm1", "moe_intermediate_size"),
        ("dots.llm1", "n_routed_experts"),
        ("dots.llm1", "num_experts_per_tok"),
        ("dots.llm1", "first_k_dense_replace"),
        ("dots.llm1", "intermediate_size"),
        ("llama-4-scout", "interleave_moe_layer_step"),
        ("gpt-neo-1.3b", "window_size"),
        ("gpt-neo-1.3b", "attention_types"),
    ],
)
def test_sizes_that_transformers_would_make_up_are_missed(name, key):
    assert key in refused(CONFIGS[name], **{key: ...})


MLA = {
    **LLAMA, "architectures": None, "model_type": "deepseek_v3", "kv_lora_rank": 24, "q_lora_rank": 32,
    "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6, "first_k_dense_replace": 1, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1,
}  # fmt: skip


def test_latent_attention_by_hand():
    model = read(MLA)
    attention = LatentAttention(8, 24, 8, 4, 6, q_lora_rank=32)
    assert model.layers[0] == Layer(attention, Mlp(96))
    assert model.layers[1] == Layer(attention, Experts(4, 2, 16, shared=Mlp(16), correction_bias=True))
    one = 64 * 32 + 32 + 32 * 8 * 12 + 64 * 28 + 24 + 24 * 8 * 14 + 8 * 6 * 64 + 2 * 64
    mixed = 64 * 4 + 4 + 5 * 3 * 64 * 16
    assert model.params == 2 * 128 * 64 + 2 * one + 3 * 64 * 96 + mixed + 64
    assert model.active_params == model.params - 2 * 3 * 64 * 16
    assert model.kv_bytes(10) == 2 * 10 * (24 + 4) * 2
    full = read(MLA, q_lora_rank=None)
    assert full.params == model.params + 2 * (64 * 96 - 64 * 32 - 32 - 32 * 96)
    assert read(MLA, attention_bias=True).params == model.params + 2 * (32 + 28 + 64)
    for key in ("kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):
        assert key in refused(MLA, **{key: ...})


def test_deepseeks_switches():
    assert read(MLA, topk_method="greedy").params == read(MLA).params - 4
    assert read(MLA, n_shared_experts=None).layers[1].mlp.shared is None
    assert read(MLA, n_shared_experts=2).layers[1].mlp.shared == Mlp(32)
    assert read(MLA, first_k_dense_replace=0, moe_layer_freq=2).layers[1].mlp == Mlp(96)
    assert isinstance(read(MLA, first_k_dense_replace=0, moe_layer_freq=2).layers[0].mlp, Experts)
    assert isinstance(read(MLA, first_k_dense_replace=..., moe_layer_freq=[1, 0]).layers[0].mlp, Experts)
    assert read(MLA, num_nextn_predict_layers=2).prediction_layers == (read(MLA).layers[1],) * 2
    assert read(MLA, num_nextn_predict_layers=1).params == read(MLA).params
    sparse = read(MLA, model_type="deepseek_v32", index_n_heads=3, index_head_dim=5, index_topk=7)
    assert sparse.layers[0].attention.indexer == Indexer(3, 5, 7)
    assert sparse.params - read(MLA).params == 2 * (32 * 15 + 64 * 5 + 2 * 5 + 64 * 3)
    assert sparse.kv_bytes(1) - read(MLA).kv_bytes(1) == 2 * 5 * 2
    plain = read(MLA, model_type="deepseek_v2", kv_lora_rank=None, use_mla=False)
    assert plain.layers[0].attention == Attention(8, 2, 8)
    assert "index_topk" in refused(MLA, index_n_heads=3, index_head_dim=5)
    assert "3 of 2 experts" in refused(MLA, n_routed_experts=2, num_experts_per_tok=3)
    assert read(MLA, model_type="kimi_k2", architectures=["DeepseekV3ForCausalLM"]).params == read(MLA).params


QWEN = {**LLAMA, "architectures": None, "model_type": "qwen3_moe", "num_hidden_layers": 4, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 16}  # fmt: skip


def dense(data, **changes):
    return [number for number, layer in enumerate(read(data, **changes).layers) if isinstance(layer.mlp, Mlp)]


def test_which_layers_are_dense():
    assert dense(QWEN) == []
    assert dense(QWEN, decoder_sparse_step=2) == [0, 2]
    assert dense(QWEN, mlp_only_layers=[1, 3]) == [1, 3]
    llama4 = CONFIGS["llama-4-scout"] | {"num_hidden_layers": 4}
    assert dense(llama4) == []
    assert dense(llama4, interleave_moe_layer_step=2) == [0, 2]
    assert dense(llama4, moe_layers=[1]) == [0, 2, 3]
    ernie = {**QWEN, "model_type": "ernie4_5_moe", "moe_num_experts": 4, "num_experts": ..., "moe_k": 2,
             "num_experts_per_tok": ..., "moe_layer_start_index": 1, "moe_layer_end_index": -1}  # fmt: skip
    assert dense(ernie) == [0]
    assert dense(ernie, moe_layer_interval=2) == [0, 2]
    assert dense(ernie, moe_layer_end_index=2) == [0, 3]


def test_expert_biases_and_gates():
    oss = {**LLAMA, "architectures": None, "model_type": "gpt_oss", "head_dim": 8, "num_local_experts": 4,
           "num_experts_per_tok": 2, "sliding_window": 9}  # fmt: skip
    first, second = read(oss).layers[:2]
    assert (first.attention.window, second.attention.window) == (9, None)
    experts = Experts(4, 2, 96, activation="swiglu_clamped", bias=True, router_bias=True)
    assert first == Layer(Attention(8, 2, 8, window=9, qkv_bias=True, out_bias=True, sinks=True), experts)
    assert read(oss).params - read(oss, attention_bias=False).params == 2 * (64 + 16 + 16 + 64)
    weights = {w.name: w for w in read(oss).layer_weights(first)}
    assert weights["mlp.experts.gate_proj.bias"].shape == (4, 96)
    assert weights["mlp.experts.down_proj.bias"].used_elements == 2 * 64
    shared = {**QWEN, "model_type": "qwen2_moe", "shared_expert_intermediate_size": 24}
    weights = {w.name: w for w in read(shared).layer_weights(read(shared).layers[0])}
    assert weights["mlp.shared_expert_gate.weight"].shape == (1, 64)
    assert weights["mlp.shared_expert.up_proj.weight"].shape == (24, 64)


def windows(data, **changes):
    return [attention.window for attention in attentions(data, **changes)]


def test_which_layers_have_a_window():
    gemma = {**LLAMA, "architectures": None, "model_type": "gemma3_text", "head_dim": 8, "sliding_window": 9}
    six = {"num_hidden_layers": 7}
    assert windows(gemma, **six) == [9, 9, 9, 9, 9, None, 9]
    assert windows(gemma, **six, sliding_window_pattern=2) == [9, None, 9, None, 9, None, 9]
    types = ["full_attention", "sliding_attention"]
    assert windows(gemma, layer_types=types) == [None, 9]
    assert "2 entries" in refused(gemma, **six, layer_types=types)
    assert "a layer of type 'frog'" in refused(gemma, layer_types=["full_attention", "frog"])
    assert windows(gemma, model_type="gemma2") == [9, None]
    exaone = {**gemma, "model_type": "exaone4", "num_hidden_layers": 4}
    assert windows(exaone, sliding_window_pattern="LLLG") == [9, 9, 9, None]
    assert [a.rope_dim for a in attentions(exaone, sliding_window_pattern="LLLG")] == [None, None, None, 0]
    assert windows(exaone, sliding_window=None, sliding_window_pattern=None) == [None] * 4
    assert [a.rope_dim for a in attentions(exaone, sliding_window=None)] == [None] * 4
    qwen = {**QWEN, "sliding_window": 9, "use_sliding_window": True, "max_window_layers": 3}
    assert windows(qwen) == [None, None, None, 9]
    assert windows(qwen, use_sliding_window=False) == [None] * 4
    assert windows(CONFIGS["llama-4-scout"])[:5] == [8192, 8192, 8192, None, 8192]
    assert [a.rope_dim for a in attentions(CONFIGS["llama-4-scout"])][:5] == [None, None, None, 0, None]
    assert [a.rope_dim for a in attentions(CONFIGS["smollm3-3b"])][:5] == [None, None, None, 0, None]
    assert windows(CONFIGS["gpt-neo-1.3b"])[:3] == [None, 256, None]
    assert windows(CONFIGS["command-r7b"])[:5] == [4096, 4096, 4096, None, 4096]


def test_ties_by_family_where_the_key_is_absent():
    tied = {kind for kind, family in FAMILIES.items() if family.tie}
    assert tied == {
        "bloom", "cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "falcon", "gemma", "gemma2", "gemma3_text",
        "gemma4_text", "gpt2", "gpt_bigcode", "gpt_neo", "minicpm", "minicpm3", "mpt", "openai-gpt", "opt",
        "refinedweb", "refinedwebmodel", "smollm3", "starcoder2",
    }  # fmt: skip
    for name in ("gemma-2b", "falcon-7b", "pythia-70m"):
        data, model = CONFIGS[name], read(CONFIGS[name])
        assert read(data, tie_word_embeddings=None).params == model.params
        apart = read(data, tie_word_embeddings=False).params - read(data, tie_word_embeddings=True).params
        assert apart == model.embedding_params


def test_falcons_kv_heads():
    old = {"model_type": "falcon", "hidden_size": 64, "n_layer": 1, "n_head": 8, "vocab_size": 10}
    assert attentions(old)[0].kv_heads == 1
    assert attentions(old, multi_query=False)[0].kv_heads == 8
    assert attentions(old, num_kv_heads=2, multi_query=True)[0].kv_heads == 1
    assert attentions(old, num_kv_heads=2, multi_query=True, new_decoder_architecture=True)[0].kv_heads == 2
    assert attentions(old, n_head_kv=2)[0].kv_heads == 2
    assert attentions(old, model_type="RefinedWebModel", multi_query=True)[0].kv_heads == 1
    assert more(old, {**old, "new_decoder_architecture": True, "num_kv_heads": 1}) == 2 * 64
    assert more(old, {**old, "parallel_attn": False}) == 2 * 64
    assert more(old, {**old, "bias": True}) == 64 + 8 + 8 + 64 + 256 + 64


def test_values_of_minicpm3_are_as_wide_as_its_sizes_imply():
    three = {**MLA, "model_type": "minicpm3", "v_head_dim": ..., "n_routed_experts": ...}
    assert attentions(three)[0].v_head_dim == 64 // 8
    assert "v_head_dim" in refused(MLA, v_head_dim=...)


def test_nemotron_nas_layers_differ():
    block = {"attention": {"n_heads_in_group": 4, "no_op": False}, "ffn": {"ffn_mult": 1.0, "no_op": False}}
    none = {"attention": {"no_op": True, "n_heads_in_group": None}, "ffn": {"no_op": True, "ffn_mult": None}}
    nas = {**LLAMA, "architectures": ["DeciLMForCausalLM"], "model_type": "nemotron-nas", "num_key_value_heads": None,
           "intermediate_size": None, "block_configs": [block, none]}  # fmt: skip
    model = read(nas)
    assert model.layers == (Layer(Attention(8, 2, 8), Mlp(256)), Layer(None, None))
    assert model.kv_bytes(1) == 2 * 16 * 2
    assert "1 entries" in refused(nas, block_configs=[block])
    assert "replace_with_linear" in refused(nas, block_configs=[block, {**block, "ffn": {"replace_with_linear": True}}])
    assert "block_configs" in refused(nas, block_configs=...)


GEMMA4 = {**LLAMA, "architectures": None, "model_type": "gemma4_text", "head_dim": 8, "sliding_window": 9,
          "layer_types": ["sliding_attention", "full_attention"], "num_global_key_value_heads": 1,
          "global_head_dim": 16, "attention_k_eq_v": True}  # fmt: skip


def test_gemma_4_by_hand():
    local, full = read(GEMMA4).layers
    assert local.attention == Attention(8, 2, 8, window=9, qk_norm="head", v_norm=True)
    assert full.attention == Attention(8, 1, 16, qk_norm="head", v_norm=True, v_is_k=True)
    assert read(GEMMA4).kv_bytes(1) == (2 * 2 * 8 + 2 * 16) * 2
    parts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    experts = read(GEMMA4, **parts).layers[0].mlp
    assert experts == Experts(4, 2, 16, activation="gelu", shared=Mlp(96, activation="gelu"), router_scales=True)
    extra = 4 * 3 * 64 * 16 + 64 * 4 + 64 + 4 + 3 * 64
    assert read(GEMMA4, **parts).params == read(GEMMA4).params + 2 * extra
    assert "hidden_size_per_layer_input" in refused(GEMMA4, hidden_size_per_layer_input=8)
    assert "share one KV cache" in refused(GEMMA4, num_kv_shared_layers=1)
    assert "global_head_dim" in refused(GEMMA4, global_head_dim=...)


def test_the_same_size_under_two_keys_must_agree():
    assert read(LLAMA, n_head=8).params == read(LLAMA).params
    assert "num_attention_heads 8" in refused(LLAMA, n_head=4)
    assert read(LLAMA, padded_vocab_size=256).vocab_size == 256
    assert read(LLAMA, model_max_length=9).max_position_embeddings == 512


def test_the_class_default_of_head_dim_is_taken_only_where_it_is_what_sizes_imply():
    assert attentions(CONFIGS["gemma-2b"], head_dim=...)[0].head_dim == 2048 // 8 == 256
    assert "no 'head_dim'" in refused(CONFIGS["gemma-7b"], head_dim=...)
    assert attentions(CONFIGS["olmo-1b"])[0].head_dim == 2048 // 16


def test_rotary_shares():
    assert attentions(CONFIGS["phi-1.5"])[0].rope_dim == 32
    assert attentions(CONFIGS["phi-1.5"], partial_rotary_factor=0.25)[0].rope_dim == 16
    assert attentions(CONFIGS["gpt-j"])[0].rope_dim == 64
    assert attentions(CONFIGS["pythia-70m"], rotary_pct=1.0)[0].rope_dim is None
    assert attentions(CONFIGS["opt-125m"])[0].rope_dim == 0
    assert attentions(CONFIGS["bloom-560m"])[0].alibi
    assert "rotary_dim" in refused(CONFIGS["gpt-j"], rotary_dim=512)


def test_an_unknown_family_is_read_as_llama_only_if_nothing_else_is_in_it():
    frog = {**LLAMA, "architectures": ["FrogForCausalLM"], "model_type": "frog", "hidden_act": "silu"}
    model = read(frog)
    assert model.params == read(LLAMA).params
    assert "'frog' and 'FrogForCausalLM': not a family that is known, but read as llama" in model.warnings[0]
    assert "known model_type" in refused(frog, hidden_act="gelu")
    more = {"vision_config": {"layers": 2}, "sliding_window": 9, "layer_types": ["full_attention"] * 2}
    for key, value in more.items():
        assert f"'frog', with {key}" in refused(frog, **{key: value})
    assert "'frog_encoder'" in refused(frog, model_type="frog_encoder")
    assert "frog_head_size" in refused(frog, frog_head_size=64)
    assert "num_global_layers" in refused(frog, num_global_layers=[1, 2])
    assert "FrogModel" in refused(frog, architectures=["FrogModel"])
    assert "intermediate_size" in refused(frog, intermediate_size=...)


def test_keys_that_look_like_sizes_are_listed():
    (warning,) = read(LLAMA, adapter_hidden_size=7, frog_layers=[1, 2]).warnings
    assert warning.endswith("left aside: adapter_hidden_size, frog_layers.")
    harmless = {"initializer_range": 0.02, "eos_token_id": 5, "rope_theta": 1e4, "use_cache": True, "num_beams": 3,
                "pretraining_tp": 1, "top_k": 50, "max_length": 20, "num_return_sequences": 1, "id2label": {"0": "a"},
                "rope_scaling": {"factor": 8.0}, "chunk_size_feed_forward": 0, "torch_dtype": "bfloat16",
                "attention_dropout": 0.1, "residual_multiplier": 0.2, "logits_scaling": 8.0, "hidden_ratio": None,
                "original_max_position_embeddings": 99, "max_window_layers": 21}  # fmt: skip
    assert read(LLAMA, **harmless).warnings == ()
