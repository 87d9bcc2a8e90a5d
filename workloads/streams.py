"""Request streams for one DRAM channel, in the words of the reference runs: seq, streams, stride, rand, rwseq1, ...

A stream is a list of bursts: numbers modulo the channel's capacity, each a read or a write, in the order in which they
are offered. A request of more bytes than a burst is bursts at consecutive addresses, one after the other. Nothing is
random: what looks so comes from the hash `scatter`, the same on any machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import StallscopeError

Numbers = NDArray[np.int64]

REQUEST = 64
"""Bytes of a request where a pattern does not say."""
MOST = 50_000_000
"""Bursts of a stream: what still fits into memory with ease."""
DIRECTION = 0xABCDEF


@dataclass(frozen=True)
class Geometry:
    """What a stream must know of its channel: bytes of a burst, of a row and of the whole, and bank groups."""

    burst_bytes: int
    row_bytes: int
    bank_groups: int
    capacity: int


@dataclass(frozen=True, eq=False)
class Stream:
    """Burst numbers and directions, in order of offer; under a load, `granule` bursts come at a time."""

    bursts: Numbers
    writes: NDArray[np.bool_]
    granule: int

    @property
    def reads(self) -> int:
        """Bursts that are reads."""
        return len(self.writes) - int(np.count_nonzero(self.writes))


def scatter(x: Numbers) -> NDArray[np.uint64]:
    """h(x): the finaliser of splitmix64 on (x + 1) x 0x9E3779B97F4A7C15, modulo 2^64."""
    z = (x.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


class _Params:
    """The words of "S=4;C=256;off=stag", each asked for once."""

    def __init__(self, pattern: str, text: str) -> None:
        self.pattern = pattern
        self.given: dict[str, str] = {}
        for part in filter(None, text.split(";")):
            key, equals, value = part.partition("=")
            if not equals or key.strip() in self.given:
                raise StallscopeError(
                    f"--params {text!r}: found {part!r}; expected every 'key=value' once, with ';' between them"
                )
            self.given[key.strip()] = value.strip()

    def number(self, key: str, default: int | None = None, least: int = 1, most: int = 2**40) -> int:
        text = self.given.pop(key, None if default is None else str(default))
        if text is None:
            raise self._missing(key)
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise StallscopeError(
                f"--params of {self.pattern}: found {key}={text[:60]}; "
                f"expected a whole number from {least:,} to {most:,}; write '{key}={max(least, 64)}'"
            )
        return int(text)

    def word(self, key: str, known: tuple[str, ...]) -> str:
        text = self.given.pop(key, None)
        if text is None:
            raise self._missing(key)
        if text not in known:
            raise StallscopeError(
                f"--params of {self.pattern}: found {key}={text[:60]}; expected one of {', '.join(known)}; change it"
            )
        return text

    def _missing(self, key: str) -> StallscopeError:
        said = f"found {', '.join(self.given)} and no {key}" if self.given else f"found no {key}"
        return StallscopeError(
            f"--params of {self.pattern}: {said}; expected {PATTERNS[self.pattern][1]}; add '{key}=...'"
        )

    def nothing_left(self, known: str) -> None:
        if self.given:
            raise StallscopeError(
                f"--params of {self.pattern}: unknown {', '.join(self.given)}; it takes {known or 'none'}; drop it"
            )


def make_stream(pattern: str, params: str, requests: int, geometry: Geometry) -> Stream:
    """A stream of that many bursts. Raises StallscopeError for an unknown pattern, or params that it does not take."""
    if pattern not in PATTERNS:
        near = difflib.get_close_matches(pattern, PATTERNS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise StallscopeError(f"--pattern: unknown {pattern[:60]!r}; {hint}it is one of: {', '.join(PATTERNS)}")
    if not 1 <= requests <= MOST:
        raise StallscopeError(f"--requests: found {requests}; expected from 1 to {MOST:,}; change it")
    words = _Params(pattern, params)
    build, known = PATTERNS[pattern]
    addresses, writes, granule = build(words, np.arange(requests, dtype=np.int64), geometry)
    words.nothing_left(known)
    bursts = addresses % geometry.capacity // geometry.burst_bytes
    return Stream(bursts, np.zeros(requests, np.bool_) if writes is None else writes, granule)


Built = tuple[Numbers, NDArray[np.bool_] | None, int]


def _seq(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    return i * geometry.burst_bytes, None, 1


def _streams(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    burst = geometry.burst_bytes
    count, chunk = words.number("S", most=2**20), _granule(words, "C", geometry)
    base = np.arange(count, dtype=np.int64) * (geometry.capacity // 32)
    if words.word("off", ("same", "stag")) == "stag":
        base += np.arange(count, dtype=np.int64) * (geometry.bank_groups + 1) * geometry.row_bytes
    k = i // (chunk // burst)
    return base[k % count] + k // count * chunk + i % (chunk // burst) * burst, None, 1


def _stride(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    step = words.number("stride")
    size = _granule(words, "g", geometry, max(REQUEST, geometry.burst_bytes))
    r, within = _requests(i, size, geometry)
    return r * step + within, None, _together(geometry)


def _rand(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    return _random(_granule(words, "g", geometry), i, geometry)


def _random(size: int, i: Numbers, geometry: Geometry) -> Built:
    r, within = _requests(i, size, geometry)
    places = np.uint64(geometry.capacity // size)
    return (scatter(r) % places).astype(np.int64) * size + within, None, _together(geometry)


def _rwseq1(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    size = max(REQUEST, geometry.burst_bytes)
    return i * geometry.burst_bytes, _writes(words, i, size, geometry), _together(geometry)


def _rwseq2(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    size = max(REQUEST, geometry.burst_bytes)
    writes = _writes(words, i, size, geometry)
    r, within = _requests(i, size, geometry)
    write = writes[:: size // geometry.burst_bytes]
    earlier = np.cumsum(write)  # writes up to and with each request
    turn = np.where(write, earlier - 1, np.arange(len(write)) - earlier)
    base = np.where(write, geometry.capacity // 2 + 2 * (geometry.bank_groups + 1) * geometry.row_bytes, 0)
    return (base + turn * size)[r] + within, writes, _together(geometry)


def _rwrand(words: _Params, i: Numbers, geometry: Geometry) -> Built:
    size = max(REQUEST, geometry.burst_bytes)
    writes = _writes(words, i, size, geometry)
    addresses, _, granule = _random(size, i, geometry)
    return addresses, writes, granule


def _writes(words: _Params, i: Numbers, size: int, geometry: Geometry) -> NDArray[np.bool_]:
    percent = words.number("pr", least=0, most=100)
    r, _ = _requests(i, size, geometry)
    found: NDArray[np.bool_] = scatter(r ^ DIRECTION) % np.uint64(100) >= np.uint64(percent)
    return found


def _requests(i: Numbers, size: int, geometry: Geometry) -> tuple[Numbers, Numbers]:
    """The number of each burst's request, and its bytes from the start of that."""
    bursts = size // geometry.burst_bytes
    return i // bursts, i % bursts * geometry.burst_bytes


def _together(geometry: Geometry) -> int:
    """Bursts that a load brings at a time: 64 bytes, however long the requests are."""
    return max(1, REQUEST // geometry.burst_bytes)


def _granule(words: _Params, key: str, geometry: Geometry, default: int | None = None) -> int:
    """Bytes that lie together: whole bursts; `TX` is one."""
    if words.given.get(key) == "TX":
        words.given[key] = str(geometry.burst_bytes)
    size = words.number(key, default, most=geometry.capacity)
    if size % geometry.burst_bytes:
        raise StallscopeError(
            f"--params of {words.pattern}: found {key}={size}; expected whole bursts of {geometry.burst_bytes} bytes; "
            f"write '{key}={geometry.burst_bytes * max(1, size // geometry.burst_bytes)}'"
        )
    return size


PATTERNS: dict[str, tuple[Callable[[_Params, Numbers, Geometry], Built], str]] = {
    "seq": (_seq, ""),
    "burst": (_seq, ""),
    "streams": (_streams, "S=streams;C=bytes of a chunk;off=same|stag"),
    "stride": (_stride, "stride=bytes;g=bytes of a request"),
    "rand": (_rand, "g=bytes of a request"),
    "rwseq1": (_rwseq1, "pr=percent of reads"),
    "rwseq2": (_rwseq2, "pr=percent of reads"),
    "rwrand": (_rwrand, "pr=percent of reads"),
}
"""Builder and params of each pattern."""

ARRIVALS = ("det", "poi")


def arrival_ticks(stream: Stream, load: Fraction | None, peak: Fraction, burst_bytes: int, arrivals: str) -> Numbers:
    """Tick at which each burst may first be offered, for a load as a share of the peak (bytes a tick); None: at once.

    `det`: the i-th granule at floor(i x its bytes / (load x peak)); `poi`: exponential gaps of that mean, by the hash.
    Raises StallscopeError for a load or arrivals that make no sense.
    """
    if arrivals not in ARRIVALS:
        raise StallscopeError(f"--arrivals: found {arrivals[:60]!r}; expected one of {', '.join(ARRIVALS)}; change it")
    count = len(stream.bursts)
    if load is None:
        return np.zeros(count, np.int64)
    if not Fraction(1, 10**6) <= load <= 100:
        raise StallscopeError(
            f"--load: found {float(load):g}; expected a share of the peak from 0.000001 to 100; change it"
        )
    gap = stream.granule * burst_bytes / (load * peak)
    r = np.arange(-(-count // stream.granule), dtype=np.int64)
    if arrivals == "det":
        whole, rest = divmod(gap.numerator, gap.denominator)
        ticks = r * whole + _scaled(r, rest, gap.denominator)
    else:
        uniform = (scatter(r).astype(np.float64) + 0.5) / 2.0**64
        ticks = np.floor(np.cumsum(-np.log(uniform)) * float(gap)).astype(np.int64)
    return np.repeat(ticks, stream.granule)[:count]


def _scaled(r: Numbers, rest: int, denominator: int) -> Numbers:
    """floor(r x rest / denominator), exactly."""
    if len(r) * rest < 2**62:
        return r * rest // denominator
    return np.array([int(x) * rest // denominator for x in r], np.int64)
