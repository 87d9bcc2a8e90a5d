"""Tokens of each expert as the public benchmark of expert layers sends them, on the chip that gets most. The rules are
those of the collector that the tables are from (aiconfigurator, Apache-2.0), written anew."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
DRAWS = 15  # of which the one with the median number of woken experts is taken; the benchmark takes the mean of five


def is_routing(word: str) -> bool:
    """Whether `routed` knows the word. A power of 1 has another law."""
    power = re.fullmatch(r"power_law_(\d(?:\.\d+)?)", word)
    return word == "balanced" or (power is not None and float(power[1]) != 1)


@lru_cache(maxsize=1024)
def routed(word: str, experts: int, top_k: int, tokens: int, ways: int) -> tuple[int, ...]:
    """Loads of the first of `ways` chips, woken experts only, most first. `word`: "balanced", or "power_law_ALPHA"."""
    if word == "balanced":
        found = balanced(experts, top_k, tokens)[: experts // ways]
    else:
        alpha = float(word.rpartition("_")[2])
        drawn = [power_law(experts, top_k, tokens, ways, alpha, seed) for seed in range(DRAWS)]
        found = sorted((c[: experts // ways] for c in drawn), key=lambda c: (np.count_nonzero(c), c.sum()))[DRAWS // 2]
    return tuple(int(n) for n in np.sort(found[found > 0])[::-1])


def balanced(experts: int, top_k: int, tokens: int) -> Counts:
    """Tokens of each expert where tokens go round all experts: as many are woken as can be."""
    stride = -(-experts // top_k)
    pace = 1.0 if tokens >= stride else stride / tokens
    chosen = (np.arange(tokens)[:, None] * pace + np.arange(top_k) * stride) % experts
    return np.bincount(chosen.astype(np.int64).ravel(), minlength=experts)


def power_law(experts: int, top_k: int, tokens: int, ways: int, alpha: float, seed: int) -> Counts:
    """Tokens of each expert where loads, not ranks, fall as a power: the density of a load n is as n^-alpha. The chip
    of `ways` that gets most stands first."""
    low, high = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    u = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, tokens]))).random(experts)
    a, b = low ** (1 - alpha), high ** (1 - alpha)
    shares = ((b - a) * u + a) ** (1 / (1 - alpha))
    wanted = np.rint(shares / shares.sum() * tokens * top_k).astype(np.int64)
    counts = np.minimum(wanted, tokens).reshape(ways, -1)
    _settle(counts, tokens * top_k - int(counts.sum()), tokens)
    counts = np.roll(counts, -int(counts.sum(axis=1).argmax()), axis=0)
    first: Counts = counts.ravel()
    return first


def _settle(counts: Counts, missing: int, most: int) -> None:
    """Add what is missing chip by chip in turn, each time to the expert that has least; or take what is too much from
    those that have most."""
    while missing:
        for chip in counts:
            at = int(chip.argmin() if missing > 0 else chip.argmax())
            if chip[at] < most if missing > 0 else chip[at] > 0:
                step = 1 if missing > 0 else -1
                chip[at] += step
                missing -= step
            if not missing:
                break
