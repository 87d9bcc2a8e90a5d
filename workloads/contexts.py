"""Contexts of the sequences of a batch: a list taken in turn, or drawn from a distribution."""

from __future__ import annotations

import numpy as np

from .checks import positive_int, problem, shown

CONTEXT_LIMIT = 2**31
DISTRIBUTIONS = {
    "uniform": "uniform:LEAST:MOST",
    "exponential": "exponential:MEAN",
    "lognormal": "lognormal:MEDIAN:SIGMA",
}


def context_list(contexts: tuple[int, ...] | str, batch: int, seed: int) -> tuple[int, ...]:
    """One context for each of `batch` sequences. Raises StallscopeError for a word or number that makes no sense."""
    if isinstance(contexts, str):
        return _drawn(contexts, batch, seed)
    if not contexts:
        raise problem("request: contexts", "an empty list", "one context at least", "Leave it out or fill it.")
    for number in contexts:
        positive_int(number, "request: contexts", CONTEXT_LIMIT)
    return tuple(contexts[i % len(contexts)] for i in range(batch))


def _drawn(word: str, batch: int, seed: int) -> tuple[int, ...]:
    name, *numbers = word.split(":")
    where, expected = "request: contexts", " or ".join(DISTRIBUTIONS.values())
    wanted = len(DISTRIBUTIONS.get(name, "").split(":")) - 1
    try:
        values = [float(n) for n in numbers]
    except ValueError:
        values = []
    if not wanted or len(values) != wanted or not all(0 < v < CONTEXT_LIMIT for v in values):
        raise problem(where, shown(word), expected, "Numbers are positive; or list contexts as 1024,4096.")
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 0x5E9])))
    if name == "uniform":
        least, most = sorted(values)
        found = least + (most - least + 1) * draw.random(batch)
    elif name == "exponential":
        found = -values[0] * np.log1p(-draw.random(batch))
    else:
        found = values[0] * np.exp(values[1] * draw.standard_normal(batch))
    return tuple(int(n) for n in np.clip(found, 1, CONTEXT_LIMIT - 1))
