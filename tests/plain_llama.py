"""llama in a few plain torch modules, under the names that Hugging Face gives them; needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Sizes:
    """Those of llama-9m, unless said otherwise."""

    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 352
    vocab_size: int = 32000


class RMSNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Layer(nn.Module):
    """`written`: attention as products, scale, mask and softmax; else torch's own operator."""

    def __init__(self, model: Sizes, written: bool) -> None:
        super().__init__()
        self.heads, self.kv, self.dim = model.num_attention_heads, model.num_key_value_heads, model.head_dim
        hidden, inner = model.hidden_size, model.intermediate_size
        self.written = written
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden), RMSNorm(hidden)
        self.q_proj = nn.Linear(hidden, self.heads * self.dim, bias=False)
        self.k_proj = nn.Linear(hidden, self.kv * self.dim, bias=False)
        self.v_proj = nn.Linear(hidden, self.kv * self.dim, bias=False)
        self.o_proj = nn.Linear(self.heads * self.dim, hidden, bias=False)
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, past: Any) -> tuple[torch.Tensor, Any]:
        batch, tokens, _ = x.shape
        y = self.input_layernorm(x)
        q = rotate(self.q_proj(y).view(batch, tokens, self.heads, self.dim).transpose(1, 2), cos, sin)
        k = rotate(self.k_proj(y).view(batch, tokens, self.kv, self.dim).transpose(1, 2), cos, sin)
        v = self.v_proj(y).view(batch, tokens, self.kv, self.dim).transpose(1, 2)
        if past is not None:
            k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
        present = (k, v)
        if self.kv != self.heads:
            k, v = (t.repeat_interleave(self.heads // self.kv, dim=1) for t in (k, v))
        if self.written:
            scores = q @ k.transpose(2, 3) / self.dim**0.5
            if past is None:
                mask = torch.full((tokens, tokens), float("-inf")).triu(1)
                scores = scores + mask
            out = F.softmax(scores, dim=-1) @ v
        else:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=past is None)
        x = x + self.o_proj(out.transpose(1, 2).reshape(batch, tokens, -1))
        y = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(y)) * self.up_proj(y)), present


class Llama(nn.Module):
    """ids [batch, tokens] (and past keys and values) -> logits (and the present)."""

    def __init__(self, model: Sizes, written: bool = False) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(model.vocab_size, model.hidden_size)
        self.layers = nn.ModuleList(Layer(model, written) for _ in range(model.num_hidden_layers))
        self.norm = RMSNorm(model.hidden_size)
        self.lm_head = nn.Linear(model.hidden_size, model.vocab_size, bias=False)
        frequencies = 1e4 ** (-torch.arange(0, model.head_dim, 2) / model.head_dim)
        self.register_buffer("frequencies", torch.cat((frequencies, frequencies)), persistent=False)

    def forward(self, ids: torch.Tensor, past: Any = None) -> Any:
        begin = 0 if past is None else past[0][0].shape[2]
        angles = torch.arange(begin, begin + ids.shape[1])[:, None] * self.frequencies
        cos, sin, x, present = angles.cos(), angles.sin(), self.embed_tokens(ids), []
        for i, layer in enumerate(self.layers):
            x, made = layer(x, cos, sin, None if past is None else past[i])
            present.append(made)
        logits = self.lm_head(self.norm(x))
        return logits if past is None else (logits, present)
