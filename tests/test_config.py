"""Config files of every kind: what is read from which key, and what is refused."""

import contextlib
import csv
import json
from pathlib import Path

import pytest
from config_drafts import LLAMA, MISTRAL, QWEN2

from stallscope.errors import StallscopeError
from stallscope.workloads import Request, decode_graph, load_model
from stallscope.workloads.layers import Attention, Layer, Mlp


def test_llama_by_hand(config):
    model = config(LLAMA)
    assert model.layers == (Layer(Attention(8, 2, 8), Mlp(96)),) * 2
    layer = 64 * 64 * 2 + 64 * 16 * 2 + 3 * 64 * 96 + 2 * 64
    assert model.params == 2 * 128 * 64 + 2 * layer + 64
    assert config({**LLAMA, "tie_word_embeddings": True}).params == model.params - 128 * 64
    assert config({**LLAMA, "attention_bias": True}).params == model.params + 2 * (64 + 16 + 16 + 64)
    assert config({**LLAMA, "mlp_bias": True}).params == model.params + 2 * (96 + 96 + 64)
    wide = config({**LLAMA, "head_dim": 16})
    assert wide.params == model.params + 2 * (64 * 64 * 2 + 64 * 16 * 2)


def test_keys_that_may_be_left_out(config):
    old = {key: value for key, value in LLAMA.items() if key not in ("num_key_value_heads", "max_position_embeddings")}
    model = config({**old, "max_sequence_length": 99})
    assert (model.layers[0].attention.kv_heads, model.max_position_embeddings) == (8, 99)
    assert config(old).max_position_embeddings is None
    assert config({**LLAMA, "num_key_value_heads": None, "head_dim": None}).layers[0].attention.kv_heads == 8
    for left_out in ("model_type", "architectures"):
        assert config({key: value for key, value in LLAMA.items() if key != left_out}).params > 0


def test_qwen2_has_three_biases(config):
    model = config(QWEN2)
    assert model.params == config(LLAMA).params + 2 * (64 + 16 + 16)


def test_windows(config):
    assert config(MISTRAL).layers[1].attention_tokens(1000) == 100
    assert config(MISTRAL).layers[1].attention_tokens(99) == 99
    assert config(MISTRAL).kv_bytes(1000, "fp8") == 2 * 2 * 2 * 8 * 100
    assert config({**MISTRAL, "sliding_window": None}).layers[0].attention.window is None
    assert config({k: v for k, v in MISTRAL.items() if k != "sliding_window"}).warnings[0].count("4096") == 1
    assert config(QWEN2).layers[0].attention.window is None
    assert config({**QWEN2, "use_sliding_window": True, "max_window_layers": 0}).layers[0].attention.window == 100
    assert config({**QWEN2, "use_sliding_window": True, "max_window_layers": 2}).layers[0].attention.window is None
    assert (
        config({**QWEN2, "layer_types": ["full_attention"] * 2, "use_sliding_window": True}).layers[0].attention.window
        is None
    )
    assert "left out" in config({**LLAMA, "sliding_window": 7}).warnings[0]


def test_warnings(config):
    quantised = config({**LLAMA, "quantization_config": {"quant_method": "frog", "bits": 4}})
    assert "'frog', which is not one of" in quantised.warnings[0]
    assert decode_graph(quantised, Request()).graph["warnings"][0] == quantised.warnings[0]
    flat = config({**LLAMA, "model_type": "llava", "architectures": ["LlavaLlamaForCausalLM"], "mm_vision_tower": "x"})
    inner = config({"model_type": "llava", "text_config": MISTRAL, "vision_config": {"image_size": 336}})
    assert "Only the language part" in flat.warnings[0]
    assert "Only the language part" in inner.warnings[0]
    assert (flat.params, inner.layers[0].attention.window) == (config(LLAMA).params, 100)


def test_the_language_model_in_other_files(config):
    inner = {key: value for key, value in LLAMA.items() if key != "architectures"}
    for outer in (
        {"model_type": "x_vl", "text_config": inner, "vision_config": {"hidden_size": 7}},
        {"model_type": "x_chat", "llm_config": inner},
        {"text_config": inner, "vision_config": {"hidden_size": 7}},
        {"architectures": ["Eagle2VLForConditionalGeneration"], "text_config": inner, "vision_config": {"layers": 7}},
        {"model_type": "x_omni", "thinker_config": {"text_config": inner, "audio_config": {"layers": 2}}},
        {"model_type": "llama", "text_config": without("model_type") | {"architectures": None}},
        {**LLAMA, "visual": {"layers": 48}},
        {**LLAMA, "vision_config": {"layers": 2}},
        {**LLAMA, "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"]}
        | {"visual": {"a": 1}},
    ):
        model = config(outer)
        assert "Only the language part" in model.warnings[0], outer
        assert model.hidden_size == 64
    with pytest.raises(StallscopeError, match=r"text_config: found no 'vocab_size'"):
        config({"model_type": "x_vl", "text_config": without("vocab_size"), "vocab_size": 128})


def test_ties_around_a_language_model(config):
    outer = {"model_type": "x_vl", "text_config": LLAMA}
    assert not config(outer).tie_word_embeddings
    assert not config({**outer, "tie_word_embeddings": False}).tie_word_embeddings
    tied = config({**outer, "tie_word_embeddings": True})
    assert tied.tie_word_embeddings
    assert "tie_word_embeddings true is taken from the file around text_config" in tied.warnings[1]
    inside = {"text_config": {**LLAMA, "tie_word_embeddings": False}, "tie_word_embeddings": True}
    assert not config(inside).tie_word_embeddings


def test_classes_under_another_type(config):
    assert config({**LLAMA, "architectures": ["LLaMAForCausalLM"]}).params > 0
    own = config({**LLAMA, "architectures": ["MyOwnForCausalLM"]})
    assert own.params == config(LLAMA).params
    assert "'llama' and 'MyOwnForCausalLM': not a family that is known" in own.warnings[0]
    assert config({**LLAMA, "architectures": ["YiForCausalLM"]}).params > 0
    assert config({**LLAMA, "model_type": "Phi4", "architectures": ["Phi3ForCausalLM"]}).params > 0


def test_element_types_of_what_is_not_quantised(config):
    assert config({**LLAMA, "torch_dtype": "float16"}).dtype == "fp16"
    assert config({**LLAMA, "dtype": "torch.bfloat16"}).dtype == "bf16"
    assert config(LLAMA).dtype is None


def without(key):
    return {name: value for name, value in LLAMA.items() if name != key}


# fault: (config, words that the message must have)
REFUSED = {
    "encoder-decoder": ({**LLAMA, "is_encoder_decoder": True}, ["config.json:13", "encoder-decoder"]),
    "t5": ({**LLAMA, "model_type": "t5"}, ["encoder-decoder"]),
    "speech": ({"model_type": "x", "encoder_layers": 1, "decoder_layers": 1}, ["encoder-decoder"]),
    "experts": ({**LLAMA, "num_local_experts": 8}, ["config.json:13: num_local_experts", "mixture of experts", "MoE"]),
    "experts by another name": ({**LLAMA, "n_routed_experts": 64}, ["mixture of experts", "n_routed_experts"]),
    "mla": ({**LLAMA, "kv_lora_rank": 512}, ["multi-head latent attention", "MLA"]),
    "mamba": ({"model_type": "mamba2", "state_size": 128, "vocab_size": 9}, ["state-space"]),
    "hybrid": ({**LLAMA, "model_type": "jamba", "mamba_d_state": 4}, ["hybrid", "mamba_d_state"]),
    "attention as an object": ({**LLAMA, "attn": {"layers": [1]}}, ["hybrid", "attn"]),
    "per layer": ({**LLAMA, "block_configs": [{}]}, ["layers that differ one by one", "block_configs"]),
    "vision encoder": ({"image_size": 224, "patch_size": 14, "hidden_size": 64}, ["vision encoder"]),
    "encoder": ({**LLAMA, "model_type": "roberta"}, ["an encoder"]),
    "family": (
        {**without("architectures"), "model_type": "frogbrain"},
        ["config.json:2: model_type", "'frogbrain'", "known model_type"],
    ),
    "family by class": ({**without("model_type"), "architectures": ["FrogForCausalLM"]}, ["FrogForCausalLM"]),
    "family and class": ({**LLAMA, "model_type": "gpt_neox"}, ["LlamaForCausalLM", "the causal model of gpt_neox"]),
    "no family": ({k: v for k, v in without("model_type").items() if k != "architectures"}, ["model_type"]),
    "classifier": ({**LLAMA, "architectures": ["LlamaForSequenceClassification"]}, ["LlamaForSequenceClassification"]),
    "another class": ({**LLAMA, "architectures": ["MistralForCausalLM"]}, ["the causal model of llama"]),
    "no class": ({**LLAMA, "architectures": "LlamaForCausalLM"}, ["architectures", "a list"]),
    "activation": ({**LLAMA, "hidden_act": "mish"}, ["hidden_act", "'mish'", "silu"]),
    "adapter": ({"peft_type": "LORA", "r": 8, "base_model_name_or_path": "x"}, ["an adapter", "peft_type"]),
    "draft head by class": ({**LLAMA, "architectures": ["LlamaForCausalLMEagle3"]}, ["a draft head"]),
    "draft head by size": ({**LLAMA, "draft_vocab_size": 32}, ["a draft head", "draft_vocab_size"]),
    "medusa": ({"medusa_num_heads": 3, "base_model_name_or_path": "x"}, ["a draft head"]),
    "weights index": ({"metadata": {}, "weight_map": {"a": "b"}}, ["an index of weight files"]),
    "quantisation settings": ({"producer": {}, "quantization": {"quant_algo": "NVFP4"}}, ["settings of a quant"]),
    "gptq settings": ({"bits": 4, "group_size": 128}, ["settings of a quantisation"]),
    "params.json": ({"dim": 64, "n_layers": 2, "n_heads": 8, "vocab_size": -1}, ["params.json"]),
    "generation settings": ({"eos_token_id": 2, "temperature": 0.6}, ["none of hidden_size"]),
    "masked": ({**LLAMA, "model_type": "frogbert", "architectures": ["FrogForMaskedLM"]}, ["an encoder"]),
    "token types": ({**LLAMA, "model_type": "frog", "type_vocab_size": 2}, ["an encoder", "type_vocab_size"]),
    "linear layers": ({**LLAMA, "layer_types": ["linear_attention", "full_attention"]}, ["hybrid", "layer_types"]),
    "lightning": ({**LLAMA, "attn_type_list": [0, 1]}, ["hybrid", "attn_type_list"]),
    "convolutions": ({**LLAMA, "model_type": "lfm2", "conv_L_cache": 3}, ["hybrid"]),
    "shared cache": ({**LLAMA, "num_kv_shared_layers": 1}, ["share one KV cache"]),
    "cross-attention": ({"text_config": {**LLAMA, "cross_attention_layers": [1]}}, ["cross-attention"]),
    "diffusion": ({**LLAMA, "model_type": "llada"}, ["a diffusion language model"]),
    "encoder inside": ({"text_config": {"model_type": "t5", "d_model": 8}}, ["encoder-decoder"]),
    "git-lfs": ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", ["a Git LFS pointer"]),
    "a web page": ("<!DOCTYPE html>\n<html></html>", ["a page of HTML or XML"]),
    "comments": ('{\n  // sizes\n  "hidden_size": 64}', ["config.json:2", "broken JSON"]),
    "infinite": ('{"hidden_size": 1e999}', ["1e999"]),
    "a table": ({"a": LLAMA, "b": MISTRAL}, ["a table of several models", "a, b", "one model"]),
    "onnx": ({"model": {"decoder": {"hidden_size": 3}}}, ["ONNX Runtime GenAI"]),
    "serving": ({"model_type": "ChatGLM_v4", "engine_config": {}}, ["none of hidden_size"]),
    "empty object": ("{}", ["none of hidden_size"]),
    "heads not shared evenly": ({**LLAMA, "num_key_value_heads": 3}, ["num_key_value_heads", "3 for 8", "divisor"]),
    "more KV heads than heads": ({**LLAMA, "num_key_value_heads": 16}, ["16 for 8"]),
    "head_dim that is no whole number": ({**LLAMA, "hidden_size": 65}, ["hidden_size 65 for 8 heads", "head_dim"]),
    "missing hidden_size": (without("hidden_size"), ["no 'hidden_size'"]),
    "missing layers": (without("num_hidden_layers"), ["no 'num_hidden_layers'"]),
    "missing heads": (without("num_attention_heads"), ["no 'num_attention_heads'"]),
    "missing ffn": (without("intermediate_size"), ["no 'intermediate_size'"]),
    "missing vocabulary": (without("vocab_size"), ["no 'vocab_size'"]),
    "missing KV heads": ({k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}, ["num_key_value_heads"]),
    "null size": ({**LLAMA, "hidden_size": None}, ["config.json:6: hidden_size", "found null", "whole number"]),
    "negative size": ({**LLAMA, "vocab_size": -5}, ["vocab_size", "found -5"]),
    "zero": ({**LLAMA, "num_hidden_layers": 0}, ["num_hidden_layers", "found 0"]),
    "float": ({**LLAMA, "hidden_size": 64.0}, ["hidden_size", "found 64.0"]),
    "bool": ({**LLAMA, "num_attention_heads": True}, ["num_attention_heads", "found True"]),
    "string": ({**LLAMA, "hidden_size": "64"}, ["hidden_size", "found '64'"]),
    "list": ({**LLAMA, "intermediate_size": [96, 96]}, ["intermediate_size", "[96, 96]"]),
    "huge size": ({**LLAMA, "hidden_size": 10**30}, ["hidden_size", "67108864"]),
    "huge count of layers": ({**LLAMA, "num_hidden_layers": 10**9}, ["num_hidden_layers", "4096"]),
    "head_dim 0": ({**LLAMA, "head_dim": 0}, ["head_dim", "found 0"]),
    "length": ({**LLAMA, "max_position_embeddings": "long"}, ["max_position_embeddings", "'long'"]),
    "flag": ({**LLAMA, "tie_word_embeddings": "yes"}, ["tie_word_embeddings", "'yes'", "true or false"]),
    "window": ({**MISTRAL, "sliding_window": 0}, ["sliding_window", "found 0"]),
    "windows from no layer on": ({**QWEN2, "use_sliding_window": True}, ["no 'max_window_layers'"]),
    "local layers": ({**LLAMA, "layer_types": ["full_attention", "sliding_attention"]}, ["layer_types", "no windows"]),
    "inner key": ({"model_type": "llava", "text_config": {**LLAMA, "hidden_size": -1}}, ["text_config.hidden_size"]),
    "inner key missing": ({"model_type": "llava", "text_config": without("vocab_size")}, ["text_config", "vocab_size"]),
    "empty": ("", ["an empty file"]),
    "binary": ("\0GGUF", ["binary"]),
    "list of configs": ("[{}]", ["a JSON list"]),
    "concatenated": ('{"a": 1}\n{"b": 2}', ["config.json:2", "one JSON object"]),
    "broken": ('{"hidden_size": 64,}', ["config.json:1", "broken JSON"]),
    "not a number": ('{"hidden_size": NaN}', ["NaN"]),
    "key twice": ('{"hidden_size": 1, "hidden_size": 2}', ["'hidden_size' twice"]),
    "too large": ('{"a": "' + "x" * 2**20 + '"}', ["at most 1048576"]),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_each_refusal_is_one_clear_message(fault, config):
    data, words = REFUSED[fault]
    with pytest.raises(StallscopeError) as caught:
        config(data)
    message = str(caught.value)
    assert "config.json" in message.split("found")[0]
    assert [word for word in words if word not in message] == [], message
    assert "expected" in message
    assert "\n" not in message


ODD = (None, True, False, 0, -1, 3, 2.5, 1e300, 10**40, "", "64", [], [1], [None], {}, {"a": 1}, [[["x"]]])


def test_odd_values_under_any_key_are_refused_or_read(config):
    read = 0
    for base in (LLAMA, MISTRAL, {**QWEN2, "use_sliding_window": True, "max_window_layers": 0, "layer_types": None}):
        for key in (
            *base,
            "head_dim",
            "hidden_act",
            "text_config",
            "quantization_config",
            "attention_bias",
            "mlp_bias",
        ):
            for value in ODD:
                with contextlib.suppress(StallscopeError):
                    read += config({**base, key: value}).params > 0
    assert read > 10


def test_folders_and_paths(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(StallscopeError, match=r"no config\.json in it \(JSON files: tokenizer\.json\)"):
        load_model(tmp_path)
    (tmp_path / "config.json").mkdir()
    with pytest.raises(StallscopeError, match="a directory"):
        load_model(tmp_path)
    for path, words in (("no/such.json", "no such file"), ("./llama-3.1-8b", "no such file"), ("a\0b", "a model of")):
        with pytest.raises(StallscopeError, match=words):
            load_model(path)
    with pytest.raises(StallscopeError, match="found"):
        load_model("x" * 5000 + ".json")
    with pytest.raises(StallscopeError, match="found 8; expected a name or a path"):
        load_model(8)
    latin = tmp_path / "latin.json"
    latin.write_bytes(json.dumps({**LLAMA, "note": "é"}, ensure_ascii=False).encode("latin-1"))
    with pytest.raises(StallscopeError, match="UTF-8"):
        load_model(latin)
    latin.write_bytes(b"\xef\xbb\xbf" + json.dumps(LLAMA).encode())
    assert load_model(latin).params > 0


SHARED = Path(__file__).parents[2] / "shared" / "configs"
INDEX = list(csv.DictReader((SHARED / "INDEX.csv").open())) if SHARED.exists() else []
STATE_SPACE = ("jamba-tiny.json", "samba-1b.json")
"""Refused, where a part of the answer would do as well."""
SINKS = {"mimo-v2-flash.json": 39 * 64}
"""Attention sinks of its 39 layers with a window: INDEX.csv's note on transformers has them, its counts have not."""


@pytest.mark.skipif(not SHARED.exists(), reason="other people's config files are not here")
@pytest.mark.parametrize("row", INDEX, ids=lambda row: row["file"])
def test_config_files_as_people_have_them(row):
    """Each ends as INDEX.csv says: its numbers, a warning beside them, or a refusal that names the file."""
    outcome = row["expected_outcome"]
    if outcome == "refuse" or row["file"] in STATE_SPACE:
        with pytest.raises(StallscopeError, match=row["file"]):
            load_model(SHARED / row["file"])
        return
    model = load_model(SHARED / row["file"])
    more = SINKS.get(row["file"], 0)
    assert model.params == int(row["computed_total_params"]) + more
    assert model.active_params == int(row["computed_active_params"] or row["computed_total_params"]) + more
    assert model.kv_bytes(1) == int(row["kv_bytes_per_token_bf16"])
    assert bool(model.warnings) == (outcome == "supported with warning")
