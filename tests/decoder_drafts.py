"""Small decoders, one for each thing in which decoders differ."""

from __future__ import annotations

from dataclasses import replace

from stallscope.workloads import Model
from stallscope.workloads.layers import Attention, Experts, Indexer, LatentAttention, Layer, Mlp
from stallscope.workloads.weights import NormKind

GQA, MLP = Attention(8, 4, 64), Mlp(1024)
GELU = Mlp(1024, gated=False, activation="gelu")
LAYERNORM = NormKind("layernorm", bias=True)
OSS = Experts(16, 4, 256, activation="swiglu_clamped", bias=True, router_bias=True)
SINKS = {"sinks": True, "qkv_bias": True, "out_bias": True}
GEMMA = {"softcap": 50.0, "qk_norm": "head"}
LATENT = LatentAttention(8, 128, 64, 32, 64, q_lora_rank=96)


def draft(name: str, *layers: Layer, **more: object) -> Model:
    return Model(name, 512, 1000, layers, **more)  # type: ignore[arg-type]


DRAFTS = {
    model.name: model
    for model in (
        draft("experts", Layer(GQA, MLP), *[Layer(GQA, Experts(16, 4, 256))] * 3),
        draft(
            "shared",
            *[Layer(GQA, Experts(16, 4, 256, shared=Mlp(256), shared_gate=True, correction_bias=True))] * 3,
        ),
        draft("oss", *[Layer(Attention(8, 4, 64, window=w, **SINKS), OSS) for w in (64, None)] * 2),
        draft("latent", Layer(LATENT, MLP), *[Layer(LATENT, Experts(16, 4, 256, shared=Mlp(256)))] * 2),
        draft("indexed", *[Layer(replace(LATENT, indexer=Indexer(4, 32, 48)), MLP)] * 2),
        draft("latent_full", *[Layer(LatentAttention(8, 128, 64, 32, 64), MLP)] * 2),
        draft(
            "local",
            *[Layer(Attention(8, 4, 64, window=64, **GEMMA), Mlp(1024, activation="gelu"), norms="both")] * 2,
            Layer(Attention(8, 4, 64, **GEMMA), Mlp(1024, activation="gelu"), norms="both"),
            tie_word_embeddings=True,
            logit_softcap=30.0,
        ),
        draft(
            "parallel",
            *[Layer(Attention(8, 1, 64), GELU, parallel=True, shared_norm=True)] * 3,
            norm=LAYERNORM,
        ),
        draft(
            "two_norms",
            *[Layer(Attention(8, 8, 64, rope_dim=16, qkv_bias=True, out_bias=True),
                    Mlp(1024, gated=False, activation="gelu", bias=True), parallel=True)] * 3,
            norm=LAYERNORM,
            lm_head_bias=True,
        ),
        draft(
            "learned_positions",
            *[Layer(Attention(8, 8, 64, rope_dim=0, qkv_bias=True, out_bias=True),
                    Mlp(1024, gated=False, activation="relu", bias=True), norms="after")] * 3,
            norm=LAYERNORM,
            position_table=2050,
            embedding_size=256,
            final_norm=False,
        ),
        draft("post_norms", *[Layer(Attention(8, 4, 64, qk_norm="row"), MLP, norms="post")] * 3),
        draft("predicts", *[Layer(GQA, MLP)] * 3, prediction_layers=(Layer(GQA, MLP),)),
        draft(
            "scaled",
            *[Layer(Attention(8, 4, 64, v_is_k=True, v_norm=True, qk_norm="head"),
                    Experts(16, 4, 256, shared=Mlp(512), router_scales=True), norms="both", scalar=True)] * 3,
        ),
        draft(
            "slopes",
            *[Layer(Attention(8, 8, 64, rope_dim=0, alibi=True), Mlp(1024, gated=False, activation="relu2"))] * 3,
            embedding_norm=True,
            norm=NormKind("layernorm", weight=False),
        ),
        draft("halves", Layer(None, MLP), Layer(GQA, None), Layer(GQA, MLP)),
    )
}  # fmt: skip
