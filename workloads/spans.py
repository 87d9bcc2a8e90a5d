"""Which tokens of which sequences a step works on: the spans behind every attention, and how many pairs they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from .signature import Dims, MismatchError


class Span(NamedTuple):
    """`sequences` equal sequences of one step: each brings `new` tokens and has `cached` before them.

    `shared` of the cached tokens are a prefix that all sequences of the step have in common.
    """

    sequences: int
    new: int
    cached: int
    shared: int = 0

    @property
    def rows(self) -> int:
        """New tokens of all its sequences."""
        return self.sequences * self.new

    def within(self, window: int | None) -> Span:
        """The span as a layer sees it that keeps at most `window` tokens behind each one: the last ones."""
        kept = self.cached if window is None else min(self.cached, window)
        return Span(self.sequences, self.new, kept, max(self.shared - (self.cached - kept), 0))

    def pairs(self, window: int | None) -> int:
        """Query-key pairs of one head: token i sees the min(cached + i, window) tokens before it, and itself."""
        first, last = self.cached, self.cached + self.new - 1
        if window is None or window >= last:
            behind = (first + last) * self.new // 2
        elif window <= first:
            behind = window * self.new
        else:
            behind = (first + window) * (window - first + 1) // 2 + window * (last - window)
        return self.sequences * (behind + self.new)


def kept_tokens(spans: Iterable[Span]) -> int:
    """Cached tokens that are stored, and read, for these spans: a shared prefix once."""
    spans = list(spans)
    return max((s.shared for s in spans), default=0) + sum(s.sequences * (s.cached - s.shared) for s in spans)


def spans_of(d: Dims, data: Mapping[str, Any]) -> tuple[Span, ...]:
    """The spans of an attention op: as stated, or from its shapes.

    Without `spans`, every sequence of the cache brings an equal number of the rows; without a cache all rows are one
    sequence. Raises MismatchError for spans that do not fit the shapes.
    """
    stated, rows, fresh = data.get("spans"), d["rows"], d["fresh"]
    stored = d["seqs"] * d["T"] if d.get("k_cache") else 0
    if stated is None:
        many = d["seqs"] if stored else 1
        if rows % many:
            raise MismatchError(f"q has {rows} rows, and they must be a multiple of the cache's {many} sequences")
        stated = ((many, rows // many, d["T"] if stored else fresh - rows, 0),)
    spans = tuple(Span(*_whole(span)) for span in stated)
    if sum(s.rows for s in spans) != rows:
        raise MismatchError(f"q has {rows} rows, and its spans bring {sum(s.rows for s in spans)} new tokens")
    kept = kept_tokens(spans)
    if data.get("band") is not None:
        return _banded(d, data, spans, stored)
    if data.get("picked") and stored >= kept:
        return spans
    if stored != kept and (stored or fresh != sum(s.sequences * (s.new + s.cached) for s in spans)):
        raise MismatchError(f"the cache holds {stored} tokens, and its spans need {kept}")
    if fresh != rows and stored:
        raise MismatchError(f"k has {fresh} rows, and beside a cache it must have one for each of the {rows} of q")
    return spans


class Band(NamedTuple):
    """Keys that a query sees where that is not causal: query i those from i + offset - left to i + offset + right.

    None in the place of left or right: all on that side. Keys are counted from 0, cached ones first.
    """

    offset: int = 0
    left: int | None = None
    right: int | None = None

    def seen(self, first: int, last: int, keys: int) -> tuple[int, int]:
        """(lowest, highest + 1) of the `keys` keys that any of the queries first..last sees."""
        low = 0 if self.left is None else max(0, first + self.offset - self.left)
        high = keys if self.right is None else max(0, min(keys, last + self.offset + self.right + 1))
        return min(low, high), high

    def pairs(self, queries: int, keys: int) -> int:
        """Query-key pairs of one head of one sequence."""
        return sum(high - low for low, high in (self.seen(i, i, keys) for i in range(queries)))


def _banded(d: Dims, data: Mapping[str, Any], spans: tuple[Span, ...], stored: int) -> tuple[Span, ...]:
    """Spans of an attention with a band: one kind of sequence, with as many new keys as k has for each."""
    band = data["band"]
    sides = band[1:] if isinstance(band, tuple) and len(band) == 3 and type(band[0]) is int else ("",)
    if any(side is not None and (type(side) is not int or side < 0) for side in sides):
        raise MismatchError(
            f"band has {str(band)[:60]}, and it must be (offset, left, right), the last two 0 or more or None"
        )
    if (
        len(spans) != 1
        or d["fresh"] % spans[0].sequences
        or stored != spans[0].sequences * spans[0].cached
        or spans[0].shared
    ):
        raise MismatchError(
            f"a band takes one span, and {tuple(map(tuple, spans))} does not fit {d['fresh']} rows of k"
        )
    return spans


def _whole(span: Any) -> tuple[int, ...]:
    """Checks one stated span: (sequences, new, cached, shared), shared no more than cached."""
    if not isinstance(span, tuple) or len(span) != 4 or any(type(n) is not int or n < 0 for n in span):
        raise MismatchError(
            f"spans has {str(span)[:60]}, and each must be four whole numbers: sequences, new, cached, shared"
        )
    if not span[0] or not span[1] or span[3] > span[2]:
        raise MismatchError(f"spans has {span}: sequences and new must be 1 at least, and shared no more than cached")
    return span


def index_dims(d: Dims, data: Mapping[str, Any]) -> Dims:
    """The same numbers for scores without values: one key head, all query heads against it."""
    shape = {"kv_heads": 1, "group": d["heads"], "v_dim": 0}
    return shape | attention_dims({**d, **shape}, data)


def attention_dims(d: Dims, data: Mapping[str, Any]) -> Dims:
    """Numbers that the row `attention` works with: pairs of one head, sequences, cached tokens, and `keys`: those of
    each sequence where all bring one token to as many of their own (then its GEMMs are equal), else 0."""
    spans, window = spans_of(d, data), data.get("window")
    pairs, band = sum(s.pairs(window) for s in spans), data.get("band")
    if band is not None:
        (span,) = spans
        pairs = span.sequences * Band(*band).pairs(span.new, span.cached + d["fresh"] // span.sequences)
    alike = len(spans) == 1 and spans[0].new == 1 and not spans[0].shared and d["v_dim"] == d["head_dim"]
    alike = alike and band is None
    return {
        "keys": spans[0].pairs(window) // spans[0].sequences if alike else 0,
        "softcap": d.get("softcap", 0),
        "alibi": d.get("alibi", 0),
        "pairs": pairs,
        "sequences": sum(s.sequences for s in spans),
        "cached": kept_tokens(spans),
    }
