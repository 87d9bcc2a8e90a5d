"""What can be shown of an attention mask: causal, causal with a window, or nothing (then the whole rectangle counts).

The mask is worked out from its constants as far as they go. Padding that comes in as an input is not known; it can
only take keys away, so a mask that is causal without it counts as causal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .evaluate import LIMIT, MASKED, evaluate
from .program import Array, Call, Program


class Shown(NamedTuple):
    """Query i sees keys up to i + offset, and `window` of them at most (None: all)."""

    offset: int
    window: int | None


def values_of(program: Program, made: dict[str, Call], name: str, seen: dict[str, Array | None]) -> Array | None:
    """A value as far as it is known (NaN: an element that is not); None where it is too large to say."""
    if name in seen:
        return seen[name]
    value = program.values[name]
    seen[name] = None
    if value.data is not None:
        result: Array | None = value.data
    elif value.elements > LIMIT:
        result = None
    else:
        call = made.get(name)
        outputs = None
        if call is not None and len(seen) < 2000:
            inputs = [values_of(program, made, i, seen) if i else None for i in call.inputs]
            if all(a is not None or not i for a, i in zip(inputs, call.inputs, strict=True)):
                outputs = evaluate(call, inputs, [program.shape(o) for o in call.outputs if o])
        result = outputs[call.outputs.index(name)] if call and outputs else np.full(value.shape, np.nan)
    seen[name] = result
    return result


def band_of(mask: Array, queries: int, keys: int, boolean: bool) -> Shown | None:
    """The band that a mask leaves, if it is the same for all heads and sequences. None: it leaves no band."""
    numbers = np.asarray(mask, np.float64)
    hidden = numbers == 0 if boolean else numbers <= MASKED
    if hidden.ndim < 2 or hidden.shape[-1] != keys or hidden.shape[-2] not in (1, queries):
        return None
    hidden = np.broadcast_to(hidden, (*hidden.shape[:-2], queries, keys)).reshape(-1, queries, keys)
    if not hidden.any() or bool((hidden != hidden[0]).any()):
        return None
    allowed = ~hidden[0]
    i, j = np.arange(queries)[:, None], np.arange(keys)[None, :]
    last = np.flatnonzero(allowed[0])
    if not len(last):
        return None
    offset = int(last[-1])
    lowest = int(np.flatnonzero(allowed[-1])[0]) if allowed[-1].any() else 0
    window = None if lowest == 0 else min(queries - 1 + offset, keys - 1) - lowest + 1
    if window is not None and queries - 1 + offset > keys - 1:
        return None
    band = (j <= i + offset) & ((j > i + offset - window) if window is not None else True)
    return Shown(offset, window) if bool((band == allowed).all()) else None
