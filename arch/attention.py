"""The kernels of attention of a chip's library: how they cut their work, and what each step takes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .fact import Fact, Quantity, Strict
from .fields import Count, Dtype, Stated, default


class AttentionParts(Stated):
    """How a library cuts the cached tokens of a sequence and KV head into parts, each a block of its own."""

    tokens: int = Field(ge=1, le=2**20)
    """Of a part at least."""
    spread: int = Field(ge=1, le=2**20)
    """With n parts of so many tokens, at most the root of `spread` x n are made: what is summed behind stays small."""
    waves: int = Field(ge=1, le=2**10)
    """Blocks of all sequences at most, in multiples of the cores."""


class AttentionKernel(Strict):
    """A kernel of decode attention on the matrix units."""

    helpers: Count | None = None
    """Small kernels that run before it in every step: offsets of the sequences, plans of the parts."""
    prologue: Annotated[Fact, Quantity("time0")] | None = None
    """From its launch to its first blocks; as of products where it is left out."""
    start: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """From there, or from the end of the block before on its core, to a block's first loads."""
    head: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """Of a block, for each of its query heads, on the unit: its positions, its conversion, its results."""
    resident: Count = default("count", "1")
    """Blocks that a core works on at once."""
    rows: Count | None = None
    """Query heads of a block, where not all of a KV head: the other blocks find its keys and values nearer."""
    tile: Count = default("count", "64")
    """Tokens of a step."""
    buffers: Count | None = None
    """Tiles of a block that are on their way or waiting; as `stages` where it is left out."""
    join: Annotated[Fact, Quantity("time0")] | None = None
    """The last block of a sequence and KV head adds the parts; this is its wait for them all. Without it `reduction`
    says who adds."""
    merge: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """What each part adds to that."""
    appends: bool = False
    """Whether rotary positions and the append to the cache are its own work, and no kernel before it."""
    least: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the cores that its parts must fill; for fewer the `masked` kernel runs."""


class MaskedKernel(Strict):
    """A kernel of decode attention on the vector units: a block for each query head of a sequence. It makes positions
    and appends itself. It runs where each query head has a KV head of its own."""

    prologue: Annotated[Fact, Quantity("time0")]
    """From its launch to its first blocks."""
    start: Annotated[Fact, Quantity("time0")]
    """From there, or from the end of the block before on its core, to a block's first loads."""
    head: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """Of a block on the unit, beside its tokens: positions, sums over all threads, results."""
    join: Annotated[Fact, Quantity("time0")]
    """The wait of the last block for the parts of a head."""
    tokens: Count
    """Tokens that all threads of a core take at once."""
    loads: Count
    """Such tokens that are on their way: the loop is unrolled so often."""
    resident: Count
    """Blocks that share a core at most; fewer, larger ones where they are few."""
    ops: dict[Dtype, Count] = Field(min_length=1)
    """Vector operations for each element of keys and values, by dtype of the cache: conversion, product, sum."""


class FlashKernel(Strict):
    """The kernel of attention of prompts: where a sequence's new tokens fill a block of query rows."""

    helpers: Count | None = None
    """Small kernels that run before it: offsets of the sequences, a counter of blocks."""
    prologue: Annotated[Fact, Quantity("time0")] | None = None
    """From its launch to its first loads; as of products where it is left out."""
    softmax: Literal["under", "beside"] = "under"
    """The vector units' work on scores goes on `under` the products, or adds to them, `beside`."""
    split: bool = True
    """Whether the keys of a block of several tokens are split over cores where blocks are too few."""


class Attention(Strict):
    """How attention is run."""

    parts: AttentionParts | None = None
    """How tokens of `grouped` are cut into parts; without it, and of latents, by least estimated time."""
    grouped: dict[Dtype, AttentionKernel] = Field(default_factory=dict)
    """Of query heads that share KV heads, by dtype of the cache; as products where it is left out."""
    latent: AttentionKernel | None = None
    """Of latents; as products where it is left out."""
    flash: FlashKernel = Field(default_factory=FlashKernel)
    """Of prompts."""
    masked: MaskedKernel | None = None
    """Of query heads with their own KV heads, and of what is too small for `grouped`."""
