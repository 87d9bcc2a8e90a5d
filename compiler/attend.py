"""Attention as work: blocks of query rows, each against the keys that it sees, as a flash kernel goes through them.

A block has the tokens of one sequence and KV head, with all query heads that share it: as many tokens as make at most
`block_rows` rows. It reads the keys and values from the first that its first token sees up to its last token, in
tiles; a tile is computed whole, so what the causal mask hides of a diagonal tile is time without use. The first block
of a sequence reads the cached ones from where they are held, later ones find them nearer. A shared prefix is its own
block: the rows of all sequences against it, once, and their sums are added to those of the rest (cascade attention).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..workloads import spans_of
from ..workloads.spans import Band, Span
from .plan import Group, PlanOp
from .program import Ints, ints


@dataclass(frozen=True)
class Items:
    """Blocks of query rows: one entry each, of one KV head. Keys are counted without the block's own last token."""

    rows: Ints
    cached: Ints
    """Keys that lie in the cache."""
    fresh: Ints
    """Keys of new tokens."""
    own: Ints
    """Of the fresh ones, those that no earlier block has read."""
    first: Ints
    """1: reads the cached keys first."""
    prefix: Ints
    """1: a shared prefix, whose sums belong to all others."""

    @property
    def keys(self) -> Ints:
        """Keys of each block."""
        return self.cached + self.fresh


@dataclass(frozen=True)
class Attend:
    """An attention op's numbers."""

    op: PlanOp
    spans: tuple[Span, ...]
    window: int | None
    group: int
    """Query heads that share a KV head."""
    kv_heads: int
    k_dim: int
    v_dim: int

    @property
    def cached(self) -> bool:
        """Whether cached tokens come from a cache; else their keys and values are activations as the new ones'."""
        return "k_cache" in self.op.inputs

    @property
    def per_pair(self) -> tuple[int, int]:
        """Elementwise and special operations for each pair of query row and key."""
        d = self.op.dims
        if not self.v_dim:  # an indexer's scores
            return -(-self.op.cost.vector_ops // max(d["heads"] * d["pairs"], 1)), 0
        return 4 + 2 * d["softcap"] + 2 * d["alibi"], 1 + d["softcap"]

    def items(self, block_rows: int) -> Items:
        """All blocks of the op, sequence by sequence and head by head, the last tokens first."""
        table = ints(list(self._rows(max(1, block_rows // self.group)))).reshape(-1, 7)
        many = table[:, 0] * self.kv_heads
        return Items(*(np.repeat(table[:, i], many) for i in range(1, 7)))

    def _rows(self, tokens: int) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        """(how often, rows, cached, fresh, own, first, prefix) of each kind of block."""
        shared = max(s.shared for s in self.spans)
        if shared:
            rows = self.group * sum(s.rows for s in self.spans if s.shared)
            for i, at in enumerate(range(0, rows, tokens * self.group)):
                yield 1, min(tokens * self.group, rows - at), shared, 0, 0, int(i == 0), 1
        if self.op.data.get("band") is not None:
            yield from self._banded_rows(tokens)
            return
        for span in self.spans:
            blocks = [(at, min(at + tokens, span.new) - 1) for at in range(0, span.new, tokens)]
            for first, last in reversed(blocks):
                begin = 0 if self.window is None else max(0, span.cached + first - self.window)
                cached = min(max(span.cached - begin, 0), span.cached - span.shared)
                fresh = span.cached + last - max(begin, span.cached)
                if not self.cached:
                    cached, fresh = 0, cached + fresh
                own = min(fresh, last - first + (0 if self.cached or first else span.cached))
                yield span.sequences, self.group * (last - first + 1), cached, fresh, own, int(first == 0), 0

    def _banded_rows(self, tokens: int) -> Iterator[tuple[int, int, int, int, int, int, int]]:
        """Blocks of an attention that is not causal: what their band shows them of all keys. The first reads all that
        is cached."""
        (span,), band = self.spans, Band(*self.op.data["band"])
        keys = span.cached + int(self.op.dims["fresh"]) // span.sequences
        read = 0
        for at in range(0, span.new, tokens):
            last = min(at + tokens, span.new) - 1
            low, high = band.seen(at, last, keys)
            cached = max(min(high, span.cached) - low, 0) if at else span.cached
            fresh = max(high - max(low, span.cached) - 1, 0)
            own = min(fresh, max(high - max(read, low, span.cached), 0))
            read = max(read, high)
            yield span.sequences, self.group * (last - at + 1), cached, fresh, own, int(at == 0), 0


ATTENDS = ("attention", "index_scores")
"""Ops that go through the keys of a cache."""


def attend_op(group: Group) -> PlanOp | None:
    """The op of a group that goes through a cache."""
    return next((o for o in group.ops if o.op in ATTENDS), None)


def attend(op: PlanOp) -> Attend:
    """The numbers of an attention op."""
    d = op.dims
    return Attend(
        op, spans_of(dict(d), op.data), op.data.get("window"), d["group"], d["kv_heads"], d["head_dim"], d["v_dim"]
    )


PLAIN = frozenset({"rope", "kv_append", "attention"})


def plain_decode(group: Group) -> bool:
    """Whether a group is attention of one new token per sequence, all contexts equal, as most decode steps are."""
    op = next((o for o in group.ops if o.op == "attention"), None)
    if op is None or not {o.op for o in group.ops} <= PLAIN or not {"v", "v_cache"} <= set(op.inputs):
        return False
    return bool(op.cost.batch_gemms) and "sinks" not in op.inputs


def latent_decode(group: Group) -> bool:
    """The same over latents, which are keys and values in one."""
    op = next((o for o in group.ops if o.op == "attention"), None)
    if op is None or not {o.op for o in group.ops} <= PLAIN or "k_cache" not in op.inputs or "v" in op.inputs:
        return False
    alone = op.dims["rows"] == op.dims["seqs"] and "spans" not in op.data and "window" not in op.data
    return alone and op.dims["kv_heads"] == 1 and "sinks" not in op.inputs
