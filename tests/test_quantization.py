"""quantization_config of every method: formats, blocks, what is left out, and what is not known."""

import pytest
from config_drafts import LLAMA

from stallscope.errors import StallscopeError
from stallscope.workloads.formats import Format

MIXTRAL = {**LLAMA, "architectures": None, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
SHARED = {**LLAMA, "architectures": None, "model_type": "deepseek", "n_routed_experts": 4, "num_experts_per_tok": 2,
          "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1}  # fmt: skip

INT4 = Format("int4", 4, (1, 128), 16, 4)
FP8_BLOCK = Format("fp8", 8, (128, 128), 32)
NVFP4 = Format("nvfp4", 4, (1, 16), 8)


def scheme(**weights):
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": weights}}}


METHODS = {
    "gptq": ({"quant_method": "gptq", "bits": 4, "group_size": 128}, INT4),
    "gptq by column": ({"quant_method": "gptq", "bits": 4, "group_size": -1}, Format("int4", 4, (1, None), 16, 4)),
    "gptq 3 bits": ({"quant_method": "gptq", "bits": 3, "group_size": 64}, Format("int3", 3, (1, 64), 16, 3)),
    "gptq 8 bits": ({"quant_method": "gptq", "bits": 8, "group_size": 32}, Format("int8", 8, (1, 32), 16, 8)),
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm"}, INT4),
    "awq of old": ({"quant_method": "awq", "w_bit": 4, "q_group_size": 128}, INT4),
    "auto-round": ({"quant_method": "auto-round", "bits": 4, "group_size": 128}, INT4),
    "fp8 by block": ({"quant_method": "fp8", "weight_block_size": [128, 128]}, FP8_BLOCK),
    "fp8 by tensor": ({"quant_method": "fp8", "activation_scheme": "static"}, Format("fp8", 8, (None, None), 32)),
    "fbgemm": ({"quant_method": "fbgemm_fp8"}, Format("fp8", 8, (1, None), 32)),
    "nf4": ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
            Format("nf4", 4, (1, 64), 32)),
    "nf4 twice": ({"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_use_double_quant": True},
                  Format("nf4", 4, (1, 64), 8)),
    "int8": ({"quant_method": "bitsandbytes", "load_in_8bit": True}, Format("int8", 8, (1, None), 32)),
    "modelopt nvfp4": ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}, NVFP4),
    "modelopt in its own words": ({"quantization": {"quant_algo": "NVFP4"}}, NVFP4),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, Format("fp8", 8, (None, None), 32)),
    "compressed int4": (scheme(num_bits=4, type="int", strategy="group", group_size=128, symmetric=True),
                        Format("int4", 4, (1, 128), 16)),
    "compressed with zeros": (scheme(num_bits=4, type="int", strategy="group", group_size=128, symmetric=False), INT4),
    "compressed fp8": (scheme(num_bits=8, type="float", strategy="channel", symmetric=True),
                       Format("fp8", 8, (1, None), 16)),
    "compressed by block": (scheme(num_bits=8, type="float", strategy="block", block_structure=[128, 64]),
                            Format("fp8", 8, (128, 64), 16)),
    "compressed nvfp4": (scheme(num_bits=4, type="float", strategy="tensor_group", group_size=16), NVFP4),
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_each_method(name, config):
    quantised, wanted = METHODS[name]
    model = config({**LLAMA, "quantization_config": quantised})
    assert model.formats.parts == {"attention": wanted, "mlp": wanted}
    assert model.warnings == ()
    assert model.params == config(LLAMA).params
    assert model.formats.of("lm_head") is None
    assert hash(model.formats) is not None


def parts(config, data, **quantised):
    return set(config({**data, "quantization_config": quantised}).formats.parts)


def test_what_is_left_out(config):
    fp8 = {"quant_method": "fp8"}
    assert parts(config, LLAMA, **fp8, modules_to_not_convert=["lm_head"]) == {"attention", "mlp"}
    assert parts(config, LLAMA, **fp8, modules_to_not_convert=["self_attn"]) == {"mlp"}
    assert parts(config, LLAMA, **fp8, ignored_layers=["model.layers.*.mlp"]) == {"attention"}
    assert parts(config, MIXTRAL, **fp8) == {"attention", "experts"}
    assert parts(config, SHARED, **fp8) == {"attention", "mlp", "experts", "shared"}
    ignore = ["re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|down)_proj.*"]
    assert parts(config, SHARED, **fp8, ignore=ignore) == {"experts"}
    assert parts(config, LLAMA, quant_method="gptq", bits=4, group_size=32, lm_head=True) == {
        "attention",
        "mlp",
        "lm_head",
    }


def test_mxfp4_is_of_experts_alone(config):
    oss = {**MIXTRAL, "model_type": "gpt_oss", "head_dim": 8, "sliding_window": 9}
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "lm_head"]
    model = config({**oss, "quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": names}})
    assert model.formats.parts == {"experts": Format("mxfp4", 4, (1, 32), 8)}
    assert model.formats.excluded == tuple(names)
    assert model.warnings == ()


def test_layers_that_are_left_out_one_by_one_are_said(config):
    model = config({**LLAMA, "quantization_config": {"quant_method": "fp8", "ignore": ["model.layers.0.self_attn"]}})
    assert set(model.formats.parts) == {"attention", "mlp"}
    (warning,) = model.warnings
    assert "leaves part of the attention weights unquantised (in 2 layers)" in warning
    every = [f"model.layers.{layer}.self_attn.{name}_proj" for layer in range(2) for name in "qkvo"]
    assert parts(config, LLAMA, quant_method="fp8", ignore=every) == {"mlp"}


def test_activations_and_caches(config):
    cast = scheme(num_bits=8, type="int", strategy="channel")
    cast["config_groups"]["group_0"]["input_activations"] = {"num_bits": 8, "type": "int"}
    cast["kv_cache_scheme"] = {"num_bits": 8, "type": "float"}
    formats = config({**LLAMA, "quantization_config": cast}).formats
    assert (formats.activation, formats.kv) == ("int8", "fp8")
    for kv in (
        {"kv_cache_quant_algo": "FP8"},
        {"kv_cache_scheme": "FP8"},
        {"kv_cache_scheme": cast["kv_cache_scheme"]},
    ):
        modelopt = {"quant_method": "modelopt", "quant_algo": "FP8", **kv}
        formats = config({**LLAMA, "quantization_config": modelopt}).formats
        assert (formats.activation, formats.kv) == ("fp8", "fp8")


def test_what_is_not_known_is_never_silent(config):
    model = config({**LLAMA, "quantization_config": {"quant_method": "frog"}})
    assert model.formats is None
    assert "'frog'" in model.warnings[0]
    assert "costed as unquantised" in model.warnings[0]
    assert (
        "no group_size: 128" in config({**LLAMA, "quantization_config": {"quant_method": "awq", "bits": 4}}).warnings[0]
    )
    inner = config({"text_config": LLAMA, "quantization_config": {"quant_method": "fp8"}})
    assert inner.formats.method == "fp8"


@pytest.mark.parametrize(
    ("quantised", "words"),
    [
        ({"quant_method": "gptq", "bits": 40, "group_size": 128}, "bits: found 40"),
        ({"quant_method": "gptq", "group_size": 128}, "bits: found null"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 0}, "group_size: found 0"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size: found \[128\]"),
        ({"quant_method": "fp8", "ignore": "lm_head"}, "ignore: found 'lm_head'"),
        ({"quant_method": "modelopt", "quant_algo": "W3"}, "quant_algo: found 'W3'"),
        ({"quant_method": "compressed-tensors"}, "config_groups: found none"),
        (scheme(num_bits=4, type="int", strategy="frog"), "strategy: found 'frog'"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf5"}, "found 'nf5'"),
        ("gptq", "quantization_config: found 'gptq'; expected an object"),
    ],
)
def test_contradictions_are_refused(quantised, words, config):
    with pytest.raises(StallscopeError, match=words):
        config({**LLAMA, "quantization_config": quantised})
