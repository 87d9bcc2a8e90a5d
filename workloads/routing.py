"""Which experts the tokens of a step are sent to: drawn at random, layer by layer, or read from a trace.

A draw gives each token `top_k` distinct experts. Uniform: every expert is as likely; then b tokens wake
n (1 - (1 - k/n)^b) of n experts on average. `power:ALPHA`: an expert's popularity falls with its rank as
rank^-ALPHA, ranks shuffled anew in each layer; each token draws without replacement. A draw depends on the seed, the
layer and the step alone: the same on every machine.
"""

from __future__ import annotations

import csv
import os
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .checks import problem, shown

SLICE = 1 << 22
"""Random numbers that are drawn at once: bounds the memory of a long prefill."""


def expert_loads(
    routing: str, experts: int, top_k: int, tokens: int, seed: int, layer: int, ep: int = 1
) -> tuple[int, ...]:
    """Tokens sent to each expert that any is sent to, most first; they sum to tokens x top_k.

    With `ep` chips of `tokens` each, that share the experts in equal parts: those of the chip that gets most, for which
    all others wait.
    Raises StallscopeError for a routing that is none, or a trace that does not reach.
    """
    if routing == "uniform" or routing.startswith("power:"):
        return _drawn_loads(routing, experts, top_k, tokens, seed, layer, ep)
    return _busiest(_traced(routing, experts, top_k, tokens * ep, layer), ep)


@lru_cache(maxsize=4096)
def _drawn_loads(
    routing: str, experts: int, top_k: int, tokens: int, seed: int, layer: int, ep: int
) -> tuple[int, ...]:
    scores = np.zeros(experts)
    if routing != "uniform":
        draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, layer, 1])))
        scores = -_alpha(routing) * np.log(draw.permutation(experts) + 1.0)
    return _busiest(_drawn(scores, top_k, tokens * ep, seed, layer), ep)


def _busiest(counts: NDArray[np.int64], ep: int) -> tuple[int, ...]:
    """Loads of the chip whose experts get most, of `ep` chips that have as many experts each."""
    chips = counts.reshape(ep, -1)
    counts = chips[int(chips.sum(axis=1).argmax())]
    return tuple(int(n) for n in np.sort(counts[counts > 0])[::-1])


def check_routing(routing: object) -> None:
    """Raise StallscopeError for what is neither uniform, a power law, nor a file."""
    if isinstance(routing, str) and (routing == "uniform" or Path(routing).is_file()):
        return
    if isinstance(routing, str) and routing.startswith("power:"):
        _alpha(routing)
        return
    expected = "uniform, power:ALPHA, or a CSV file with columns layer and experts"
    raise problem("request: routing", shown(routing), expected, "Correct it, or create the file.")


def _alpha(routing: str) -> float:
    try:
        alpha = float(routing.removeprefix("power:"))
    except ValueError:
        alpha = -1.0
    if not 0 <= alpha <= 10:
        raise problem("request: routing", shown(routing), "power:ALPHA with ALPHA from 0 to 10", "Write power:1.0.")
    return alpha


def _drawn(scores: NDArray[np.float64], top_k: int, tokens: int, seed: int, layer: int) -> NDArray[np.int64]:
    """Counts by the Gumbel rule: the top_k of score + noise are drawn in proportion to exp(score), none twice."""
    experts = len(scores)
    counts = np.zeros(experts, np.int64)
    draw = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, layer])))
    step = max(1, SLICE // experts)
    for first in range(0, tokens, step):
        noise = draw.random((min(step, tokens - first), experts))
        keys = scores - np.log(-np.log(np.clip(noise, 1e-300, 1 - 1e-16)))
        chosen = np.argpartition(keys, experts - top_k, axis=1)[:, experts - top_k :]
        counts += np.bincount(chosen.ravel(), minlength=experts)
    return counts


def _traced(path: str, experts: int, top_k: int, tokens: int, layer: int) -> NDArray[np.int64]:
    try:
        stamp = os.stat(path).st_mtime_ns
    except OSError as error:
        raise problem(path, str(error.strerror), "a trace of routing", "Check the path.") from None
    rows = _trace(path, stamp).get(layer, [])
    where = f"{path}: layer {layer}"
    if len(rows) < tokens:
        todo = "Record more, or lower --batch or --prompt."
        raise problem(where, f"{len(rows)} tokens", f"{tokens}, one row for each new token of the step", todo)
    counts = np.zeros(experts, np.int64)
    for number, row in enumerate(rows[:tokens]):
        if len(set(row)) != top_k or len(row) != top_k or not all(0 <= e < experts for e in row):
            expected = f"{top_k} distinct experts from 0 to {experts - 1}"
            raise problem(f"{where}, token {number}", shown(" ".join(map(str, row))), expected, "Correct the row.")
        counts[row] += 1
    return counts


@lru_cache(maxsize=8)
def _trace(path: str, stamp: int) -> dict[int, list[list[int]]]:
    """Layer -> experts of each token, from a CSV file: `layer,experts` with experts apart by spaces."""
    found: dict[int, list[list[int]]] = {}
    try:
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                found.setdefault(int(row["layer"]), []).append([int(e) for e in row["experts"].split()])
    except (OSError, KeyError, ValueError, AttributeError, UnicodeDecodeError) as error:
        raise problem(path, f"{type(error).__name__}: {error}", "CSV with columns layer,experts", "Mend it.") from None
    return found
