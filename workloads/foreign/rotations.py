"""Rotary positions as exporters write them: patterns of halves, whole heads or a part of each."""

from __future__ import annotations

from .program import Call, composite
from .web import Found, Web


def rope(web: Web, call: Call) -> Found:
    """x * cos + rotate_half(x) * sin: halves swapped, one of them negated."""
    if call.op != "Add":
        return None
    products = [web.maker(i, "Mul") for i in call.inputs]
    for straight, turned in (products, products[::-1]):
        if straight is None or turned is None:
            continue
        for i in (0, 1):
            swap = web.maker(turned.inputs[i], "Concat")
            found = _rotated(web, swap) if swap is not None else None
            if swap is None or found is None:
                continue
            calls, x = found
            if x not in map(web.through, straight.inputs):
                continue
            covered = [*calls, swap, straight, turned, call]
            dim = web.program.shape(x)[-1]
            return covered, composite("Rope", covered, (x,), call.outputs, head_dim=dim)
    return None


def _rotated(web: Web, swap: Call) -> tuple[list[Call], str] | None:
    """The x of concat(-x[half:], x[:half])."""
    rank = len(web.program.shape(swap.outputs[0]))
    if len(swap.inputs) != 2 or swap.attr("axis", 0) % rank != rank - 1:
        return None
    negated = web.maker(swap.inputs[0], "Neg")
    if negated is None:
        return None
    upper = web.maker(negated.inputs[0], "Slice", "Split")
    lower = web.maker(swap.inputs[1], "Slice", "Split")
    if upper is None or lower is None or web.through(upper.inputs[0]) != web.through(lower.inputs[0]):
        return None
    parts = [upper] if upper is lower else [lower, upper]
    return [*parts, negated], web.through(upper.inputs[0])


def rope_halves(web: Web, call: Call) -> Found:
    """concat(a*cos - b*sin, b*cos + a*sin) of the halves a and b of x."""
    if call.op != "Concat" or len(call.inputs) != 2:
        return None
    minus, plus = web.maker(call.inputs[0], "Sub"), web.maker(call.inputs[1], "Add")
    if minus is None or plus is None:
        return None
    products = [web.maker(i, "Mul") for part in (minus, plus) for i in part.inputs]
    cuts = {id(c): c for p in products if p for i in p.inputs if (c := web.maker(i, "Slice", "Split")) is not None}
    sources = {web.through(c.inputs[0]) for c in cuts.values()}
    if None in products or len(sources) != 1:
        return None
    x = sources.pop()
    if web.program.shape(x) != web.program.shape(call.outputs[0]):
        return None
    covered = [*cuts.values(), *(p for p in products if p), minus, plus, call]
    covered = list({id(c): c for c in covered}.values())
    return covered, composite("Rope", covered, (x,), call.outputs, head_dim=web.program.shape(x)[-1])


def rope_part(web: Web, call: Call) -> Found:
    """concat(rope(x[:part]), x[part:]): the rotation of a part of each head."""
    if call.op != "Concat" or len(call.inputs) != 2:
        return None
    turned = web.maker(call.inputs[0], "Rope")
    rest = web.maker(call.inputs[1], "Slice", "Split")
    head = web.maker(turned.inputs[0], "Slice", "Split") if turned else None
    if turned is None or rest is None or head is None:
        return None
    x = web.through(rest.inputs[0])
    if web.through(head.inputs[0]) != x or web.program.shape(x) != web.program.shape(call.outputs[0]):
        return None
    covered = [head, turned, call] if rest is head else [head, rest, turned, call]
    size, part = web.program.shape(x)[-1], web.program.shape(turned.inputs[0])[-1]
    return covered, composite("Rope", covered, (x,), call.outputs, head_dim=size, rotary_dim=part)
