"""Attention written out: product, scale, mask, softmax, product. It becomes one call `Attend`.

From each softmax the search goes up to the product of queries and keys and down to the product with the values. The
chain may scale, cap, mask, cast and reshape; anything else in it, or a result of it that is wanted elsewhere, and it
stays as it is: products and a softmax, all scores written and read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from .program import Call, Program
from .web import CASTS, Web

SHAPED = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Transpose", "Expand", "Tile", "Flatten", *CASTS})
"""Ways from the keys or values to the product; with Expand and Tile heads are repeated."""
PRODUCTS = frozenset({"MatMul", "Gemm", "com.microsoft.FusedMatMul"})


@dataclass
class Chain:
    """What has been found so far."""

    covered: list[Call] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    softcap: bool = False
    sinks: str = ""
    """A stored score of each head that stands beside those of the keys."""


def recognise_attention(program: Program) -> None:
    """Put `Attend` calls in the place of written-out attention, and of operators behind joined or repeated keys."""
    for call in [c for c in program.calls if c.op == "Attention" and not c.input(4) and not c.output(3)]:
        replaced = _operator(Web(program), call)
        if replaced is not None:
            program.substitute(*replaced)
            program.prune()
    for softmax in [c for c in program.calls if c.op == "Softmax"]:
        web = Web(program)
        found = _attend(web, softmax)
        if found is not None:
            program.substitute(*found)
            program.prune()


def _operator(web: Web, call: Call) -> tuple[list[Call], Call] | None:
    """The operator on keys and values as they are before they are joined with a past, or repeated for query heads."""
    shapes = [web.program.shape(i) for i in call.inputs[:3]]
    if len(shapes[0]) != 4 or call.input(6):
        return None
    (batch, heads, queries, dim), (*_, keys, _), (*_, v_dim) = shapes
    sizes = (batch, heads, queries, keys, dim, v_dim)
    found = _behind(web, call.inputs[0], call.inputs[1], call.inputs[2], sizes)
    if found is None:
        return None
    inputs, outputs, attrs, gone = found
    attrs |= {
        "masks": (call.input(3),) if call.input(3) else (),
        "softcap": bool(call.attr("softcap", 0.0)),
        "causal": 0 if call.attr("is_causal") else None,
        "left": int(call.attr("left_window_size", -1)),
        "right": int(call.attr("right_window_size", -1)),
    }
    given = tuple(new or old for new, old in zip(outputs, (call.output(1), call.output(2)), strict=True))
    return [*gone, call], Call("Attend", call.name, inputs, (call.outputs[0], *given), attrs, (call.op,))


def _behind(
    web: Web, q: str, k: str, v: str, sizes: tuple[int, ...]
) -> tuple[tuple[str, ...], list[str], dict[str, Any], list[Call]] | None:
    """(inputs, presents, sizes, joins that go) of an attention, from keys and values as they come to it."""
    batch, heads, queries, keys, dim, v_dim = sizes
    values = web.program.values
    (k, k_way), (v, v_way) = _source(web, k), _source(web, v)
    kv_heads = values[k].elements // (batch * keys * dim)
    if not kv_heads or heads % kv_heads or values[v].elements != batch * keys * kv_heads * v_dim:
        return None
    attrs: dict[str, Any] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": kv_heads,
        "head_dim": dim,
        "v_dim": v_dim,
        "queries": queries,
        "fresh": keys,
    }
    past, given = _past(web, k, v, dim, v_dim, batch * kv_heads)
    if not past:
        return (q, k, v, "", ""), [_given(web, name, way) for name, way in ((k, k_way), (v, v_way))], attrs, []
    attrs["cached"] = values[past[2]].elements // (batch * kv_heads * dim)
    attrs["fresh"] = keys - attrs["cached"]
    joins = [web.made[k], web.made[v]]
    gone = joins if all(_only_here(web, join) for join in joins) else []
    return (q, *past), given, attrs, gone


def _attend(web: Web, softmax: Call) -> tuple[list[Call], Call] | None:
    program = web.program
    rank = len(program.shape(softmax.inputs[0]))
    if softmax.attr("axis", -1) % rank != rank - 1:
        return None
    chain = Chain([softmax])
    scores = _up(web, softmax.inputs[0], chain)
    values = _down(web, softmax, chain)
    if scores is None or values is None or not web.private(chain.covered, {values.outputs[0]}):
        return None
    queries, dim = program.shape(scores.inputs[0])[-2:]
    keys, v_dim = program.shape(values.inputs[1])[-2:]
    *lead, rows, columns = program.shape(softmax.inputs[0])
    if (rows, columns) != (queries, keys + bool(chain.sinks)) or not math.prod(lead):
        return None
    batch = lead[0] if len(lead) > 1 else 1
    sizes = (batch, math.prod(lead) // batch, queries, keys, dim, v_dim)
    q = _source(web, scores.inputs[0])[0]
    if program.values[q].elements != math.prod(lead) * queries * dim:
        q = _unscaled(web, scores.inputs[0])
    found = _behind(web, q, scores.inputs[1], values.inputs[1], sizes)
    if found is None:
        return None
    inputs, given, attrs, gone = found
    order = {id(c): i for i, c in enumerate(program.calls)}
    covered = sorted(chain.covered, key=lambda c: order[id(c)])
    attrs |= {"masks": tuple(chain.masks), "softcap": chain.softcap, "sinks": chain.sinks}
    outputs = (values.outputs[0], *given)
    return [*covered, *gone], Call("Attend", scores.name, inputs, outputs, attrs, tuple(c.op for c in covered))


def _up(web: Web, value: str, chain: Chain) -> Call | None:
    """From the softmax's input up to the product of queries and keys."""
    for _ in range(16):
        call = web.made.get(value)
        if call is None:
            return None
        chain.covered.append(call)
        if _product(web, call):
            chain.masks += [i for i in call.inputs[2:] if i]
            return call
        if call.op in CASTS or call.op in ("Reshape", "Tanh"):
            chain.softcap = chain.softcap or call.op == "Tanh"
            value = call.inputs[0]
        elif call.op in ("Mul", "Div") and any(map(web.immediate, call.inputs)):
            value = next(i for i in call.inputs if not web.immediate(i))
        elif call.op in ("Add", "Sub", "Max", "Where"):
            size = web.program.values[value].elements
            operands = call.inputs[1:] if call.op == "Where" else call.inputs
            scores = [i for i in operands if _leads_to_product(web, i) and web.program.values[i].elements == size]
            if len(scores) != 1:
                return None
            if call.op == "Where":
                chain.masks.append(f"{'' if scores[0] == call.inputs[1] else '!'}{call.inputs[0]}")
            elif call.op == "Add":
                chain.masks += [i for i in call.inputs if i != scores[0]]
            elif call.op == "Sub":  # the largest score, taken off before the softmax
                chain.covered += _cone(web, next(i for i in call.inputs if i != scores[0]), {scores[0]}) or []
            value = scores[0]
        elif call.op == "Concat" and len(call.inputs) == 2 and web.stored(call.inputs[1]) and not chain.sinks:
            chain.sinks = web.program.values[call.inputs[1]].root
            value = call.inputs[0]
        else:
            return None
    return None


def _product(web: Web, call: Call) -> bool:
    """Whether a call is a product of two activations."""
    return call.op in PRODUCTS and not any(map(web.stored, call.inputs[:2])) and not call.attr("transA")


def _leads_to_product(web: Web, value: str) -> bool:
    """Whether a value comes from a product of two activations by scaling, masking and reshaping."""
    for _ in range(16):
        call = web.made.get(value)
        if call is None or web.stored(value):
            return False
        if call.op in PRODUCTS:
            return _product(web, call)
        if call.op in CASTS or call.op in ("Reshape", "Tanh") or call.op == "Concat":
            value = call.inputs[0]
        elif call.op in ("Mul", "Div", "Add", "Sub", "Max", "Where"):
            large = [i for i in call.inputs if web.program.values[i].elements == web.program.values[value].elements]
            ahead = [i for i in large if not web.stored(i)]
            if len(ahead) != 1:
                return any(_leads_to_product(web, i) for i in ahead)
            value = ahead[0]
        else:
            return False
    return False


def _down(web: Web, softmax: Call, chain: Chain) -> Call | None:
    """From the softmax's output down to the product with the values.

    On the way rows that are masked whole may become 0: a Where whose condition comes from the scores or weights alone.
    """
    value, own = softmax.outputs[0], {softmax.inputs[0], softmax.outputs[0]}
    for _ in range(8):
        readers = list(web.read.get(value, []))
        guard = next((c for c in readers if c.op == "Where" and value in c.inputs[1:]), None)
        if guard is not None:
            tests = _cone(web, guard.inputs[0], own)
            if tests is None or any(all(r is not c for c in (*tests, guard)) for r in readers):
                return None
            chain.covered += [*tests, guard]
            value = guard.outputs[0]
            own.add(value)
            continue
        if len(readers) != 1 or value in web.outputs:
            return None
        (call,) = readers
        chain.covered.append(call)
        if call.op in PRODUCTS:
            fits = _product(web, call) and call.inputs[0] == value and not call.input(2)
            return call if fits and not call.attr("transA") and not call.attr("transB") else None
        if call.op == "Slice" and chain.sinks:  # the sinks' weights are dropped
            value = call.outputs[0]
            continue
        elements = [web.program.values[n].elements for n in (value, call.outputs[0])]
        if call.op not in (*CASTS, "Reshape", "Expand") or elements[0] != elements[1]:
            return None
        value = call.outputs[0]
    return None


def _cone(web: Web, value: str, ends: set[str]) -> list[Call] | None:
    """The calls between some values and this one, if it comes from nothing else; few of them."""
    out: list[Call] = []
    todo = [value]
    while todo:
        name = todo.pop()
        call = web.made.get(name)
        if name in ends or web.stored(name) or any(call is c for c in out):
            continue
        if call is None or len(out) > 12:
            return None
        out.append(call)
        todo += [i for i in call.inputs if i]
    return out


def _unscaled(web: Web, value: str) -> str:
    """The value before products with a number."""
    while (call := web.made.get(value)) is not None and call.op in ("Mul", "Div"):
        plain = [i for i in call.inputs if not web.immediate(i)]
        if len(plain) != 1 or len(call.inputs) != 2 or (call.op == "Div" and plain[0] != call.inputs[0]):
            break
        value = plain[0]
    return value


def _source(web: Web, value: str) -> tuple[str, list[str]]:
    """The keys or values behind reshapes, repeats and scales, and every name on the way."""
    way = [value]
    while True:
        value = _unscaled(web, value)
        way.append(value)
        call = web.made.get(value)
        if call is None or call.op not in SHAPED:
            return value, way
        value = call.inputs[0]


def _past(web: Web, k: str, v: str, dim: int, v_dim: int, lanes: int) -> tuple[list[str], list[str]]:
    """([new k, new v, past k, past v], presents given back) where keys and values are a past and new ones joined."""
    joins = [web.made.get(n) for n in (k, v)]
    parts: list[str] = []
    given: list[str] = []
    for join, width in zip(joins, (dim, v_dim), strict=True):
        if join is None or join.op != "Concat" or len(join.inputs) != 2:
            return [], []
        old, new = join.inputs
        if web.program.values[old].elements % (lanes * width) or web.through(old) not in web.program.inputs:
            return [], []
        parts += [new, web.through(old)]
        given.append(join.outputs[0] if join.outputs[0] in web.outputs else "")
    if web.program.values[parts[1]].elements == 0:
        return [], []
    return [parts[0], parts[2], parts[1], parts[3]], given


def _given(web: Web, value: str, way: list[str]) -> str:
    """The name under which keys or values are a result of the whole graph."""
    names = {value, *way}
    for name in list(names):
        names |= {c.outputs[0] for c in web.read.get(name, []) if c.op in SHAPED}
    return next((name for name in web.program.outputs if name in names), "")


def _only_here(web: Web, join: Call) -> bool:
    """Whether a joined cache is read by nothing but views that lead to this attention."""
    return all(reader.op in (*SHAPED, *PRODUCTS, "Mul", "Attention") for reader in web.readers(join.outputs[0]))
