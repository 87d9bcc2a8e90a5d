"""Models of the catalogue against published counts and facts, models made in Python, and requests."""

import csv
import dataclasses
import json
import time
from pathlib import Path

import pytest
from config_drafts import LLAMA

from stallscope.errors import StallscopeError
from stallscope.report.models import models_json, models_table
from stallscope.workloads import DTYPE_BITS, Model, Request, decode_graph, load_model, model_names
from stallscope.workloads.layers import Attention, Experts, Layer, Mlp

# Parameters as the models' cards and checkpoints state them.
PUBLISHED = {
    "deepseek-v2": 235_741_434_880,
    "deepseek-v2-lite": 15_706_484_224,
    "deepseek-v3": 671_026_419_200,
    "gemma-2-2b": 2_614_341_888,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "gemma-3-1b": 999_885_952,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "llama-3.3-70b": 70_553_706_496,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "opt-13b": 12_853_473_280,
    "phi-2": 2_779_683_840,
    "phi-3-mini-4k": 3_821_079_552,
    "phi-4": 14_659_507_200,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-1.5b": 1_543_714_304,
    "qwen2.5-3b": 3_085_938_688,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-14b": 14_770_033_664,
    "qwen2.5-32b": 32_763_876_352,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-1.7b": 1_720_574_976,
    "qwen3-4b": 4_022_468_096,
    "qwen3-8b": 8_190_735_360,
    "qwen3-14b": 14_768_307_200,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "qwen3-235b-a22b": 235_093_634_560,
    "qwen3-coder-480b-a35b": 480_154_875_392,
}

FACTS = list(csv.DictReader((Path(__file__).parent / "model_facts.csv").open(encoding="utf-8")))
"""Numbers of hyperparameter tables, without norms and biases; docs/models.md says where from."""

INDEXER = 61 * (1536 * 64 * 128 + 7168 * 128 + 7168 * 64)
"""Matrices of DeepSeek-V3.2's indexer, which the facts leave out, with the 128 elements of its keys per layer."""
OTHERWISE = {
    "deepseek-v3.2": (INDEXER, 61 * 128, 0),
    "gemma-4-31b": (0, 10 * 4 * 512, 0),
    "gemma-4-26b-a4b": (0, 5 * 2 * 512, 0),
    "llama-4-maverick": (0, -36 * 2 * 8 * 128, 36 * 2 * 8 * 128),
}
"""Where the facts are wrong or cut otherwise, and by how much: (matrix elements, KV elements of layers that see all, of
layers with a window). Gemma 4 projects K and V once, but norms and rotates them apart, so both are cached. Three in
four of Llama 4's layers attend within a chunk."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_equal_the_published_ones(name):
    assert load_model(name).params == PUBLISHED[name]


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts["name"])
def test_every_model_equals_the_facts(facts):
    model = load_model(facts["name"])
    more, full, local = OTHERWISE.get(model.name, (0, 0, 0))
    matrices = [(w, n) for w, n in model.weights if w.part != "norm" and w.name.endswith(".weight")]
    total = sum(n * w.elements for w, n in matrices if w.tied_to is None)
    read = sum(n * w.used_elements for w, n in matrices if w.part not in ("embedding", "position"))
    for found, wanted in ((total, "params_total_b"), (read, "params_read_per_token_b")):
        assert abs(found - more - float(facts[wanted]) * 1e9) <= 0.5e6 + 1, wanted
    assert model.kv_bytes_past_windows() == 2 * (int(facts["kv_elements_full"]) + full)
    assert model.kv_bytes(1) == 2 * (int(facts["kv_elements_full"]) + int(facts["kv_elements_local"]) + full + local)


@pytest.mark.parametrize("facts", FACTS, ids=lambda facts: facts["name"])
def test_what_is_from_memory_says_so(facts):
    assert ("from memory" in load_model(facts["name"]).source) >= (facts["remembered"] == "yes")


def test_the_catalogue_has_the_models_it_should():
    assert sorted(facts["name"] for facts in FACTS) == sorted(model_names())
    assert len(model_names()) >= 60


@pytest.mark.parametrize("name", model_names())
def test_counts_of_one_model_agree(name):
    model = load_model(name)
    assert (model.name, model.warnings) == (name, ())
    assert model.source
    assert all(load_model(other) is model for other in model.names)
    tables = model.embedding_params + (model.position_table or 0) * model.hidden_size
    untied = 0 if model.tie_word_embeddings else model.embedding_params
    head = tables - model.embedding_params + untied
    assert model.params_read_per_token == model.active_params - head
    assert model.params >= model.active_params >= model.params_read_per_token
    assert len(set(map(id, model.layers))) == len(model.layer_kinds) <= 4
    assert model.kv_bytes(7, batch=3) == 21 * model.kv_bytes(1)
    assert model.kv_bytes(10**6) - model.kv_bytes(10**6 - 1) == model.kv_bytes_past_windows()


def test_the_listing_has_every_model():
    rows = models_json([load_model(name) for name in model_names()])
    assert len(rows) >= 60
    oss = next(row for row in rows if row["name"] == "gpt-oss-120b")
    assert (oss["parameters"], oss["active_parameters"]) == (116_829_156_672, 5_711_982_912)
    assert (oss["kv_bytes_per_token"], oss["kv_bytes_per_token_past_windows"]) == (73_728, 36_864)
    assert oss["quantization"] == "mxfp4"
    assert json.loads(json.dumps(rows)) == rows
    table = models_table([load_model("mixtral-8x7b")])
    assert "46,702,792,704" in table
    assert "131,072" in table


def test_prediction_heads_stand_beside_the_model():
    """DeepSeek-V3: its files have 684.5 billion, with a second copy of embedding and head for the prediction head."""
    model = load_model("deepseek-v3")
    layer = sum(weight.elements for weight in model.layer_weights(model.layers[-1]))
    assert model.prediction_params == layer + 2 * 7168 * 7168 + 3 * 7168
    assert round((model.params + model.prediction_params + 2 * model.embedding_params) / 1e9) == 684


def test_forty_gibibytes_of_kv():
    model = load_model("llama-3.1-70b")
    assert model.kv_bytes(131_072, "bf16") == 40 * 2**30
    assert model.kv_bytes(131_072, "int4") == 10 * 2**30
    assert model.kv_bytes(1) == 2 * 80 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("META-LLAMA/llama-3.1-8b-instruct", "llama-3.1-8b"),
        ("Meta-Llama-3.1-70B", "llama-3.1-70b"),
        (" LLaMA-2-7B ", "llama-2-7b"),
        ("Qwen/Qwen2.5-72B", "qwen2.5-72b"),
        ("mistral-7b", "mistral-7b-v0.1"),
    ],
)
def test_names_in_any_case_and_hugging_face_ids(name, model):
    assert load_model(name) == load_model(model)


def test_an_unknown_name_gives_the_nearest():
    with pytest.raises(StallscopeError, match=r"found 'lama-3\.1-8b'; .*Did you mean 'llama-3\.1-8b'\?"):
        load_model("lama-3.1-8b")
    with pytest.raises(StallscopeError, match=r"Did you mean 'qwen2\.5-7b'"):
        load_model("Qwen/Qwen2.5-7B-Chat")
    with pytest.raises(StallscopeError, match="Known: deepseek-r1, "):
        load_model("")


def test_every_way_to_name_a_file(config, tmp_path, monkeypatch):
    model = config(LLAMA)
    assert model.name == "mine"
    assert dataclasses.replace(load_model(str(tmp_path / "mine")), source="") == dataclasses.replace(model, source="")
    monkeypatch.chdir(tmp_path)
    assert load_model("mine").params == load_model("./mine/config.json").params == model.params
    (tmp_path / "other.json").write_text(json.dumps(LLAMA))
    assert load_model("other.json").name == "other"


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("context", 0, "found 0; expected a whole number from 1"),
        ("context", -1, "found -1"),
        ("context", 1024.0, r"found 1024\.0"),
        ("context", 10**12, "found 1000000000000"),
        ("batch", 0, "found 0"),
        ("batch", -3, "found -3"),
        ("batch", True, "found True"),
        ("batch", 2.0, r"found 2\.0"),
        ("batch", float("nan"), "found nan"),
        ("batch", "4", "found '4'"),
        ("batch", None, "found null"),
        pytest.param("batch", 10**5000, "found a number of thousands of digits", id="batch-digits"),
        ("weight", "bf61", r"Did you mean 'bf16'\?"),
        ("weight", "int32", "expected one of fp32"),
        ("kv", 8, "found 8"),
        ("activation", 16, "found 16"),
        ("phase", "decoding", r"Did you mean 'decode'\?"),
        ("phase", ["decode"], "expected one of decode"),
    ],
)
def test_a_request_that_makes_no_sense(field, value, words):
    with pytest.raises(StallscopeError, match=f"request: {field}: {words}|request: {field}: .*{words}"):
        Request(**{field: value})


def test_a_model_in_python_is_checked_too():
    def built(attention, mlp):
        return Model("m", 64, 10, (Layer(Attention(8, 8, 8), Mlp(96)), Layer(attention, mlp)))

    assert built(Attention(8, 2, 8), Mlp(96)).params > 0
    for attention, words in (
        (Attention(8, 3, 8), "layer 1: found heads 8 and kv_heads 3"),
        (Attention(8, 2, 0), "layer 1: attention: head_dim: found 0"),
        (Attention(8, 2, 8, window=0), "attention: window: found 0"),
        (Attention(8, 2, 8, qk_norm="tail"), "qk_norm: found 'tail'; expected one of head"),
    ):
        with pytest.raises(StallscopeError, match=words):
            built(attention, Mlp(96))
    with pytest.raises(StallscopeError, match="top_k 3 of 2 experts"):
        built(Attention(8, 2, 8), Experts(2, 3, 96))
    with pytest.raises(StallscopeError, match="vocab_size: found 0"):
        dataclasses.replace(load_model("llama-3.1-8b"), vocab_size=0)
    with pytest.raises(StallscopeError, match="dtype: found 'bf8'"):
        load_model("llama-3.1-8b").kv_bytes(1, "bf8")


def test_element_types():
    asked = {"fp32": 32, "bf16": 16, "fp16": 16, "fp8": 8, "int8": 8, "int4": 4}
    assert {dtype: DTYPE_BITS[dtype] for dtype in asked} == asked
    for dtype in asked:
        request = Request(weight=dtype, kv=dtype, activation=dtype)
        assert decode_graph(load_model("llama-3.2-1b"), request).graph["dtypes"] == dict.fromkeys(
            ("weight", "kv", "activation"), dtype
        )


def test_the_largest_model_becomes_a_graph_at_once():
    start = time.perf_counter()
    decode_graph(load_model("llama-3.1-405b"), Request(context=131_072))
    assert time.perf_counter() - start < 0.5
