"""Norms, activations and rotations that exporters write as many small operators, put together again.

Each rule looks at one call and, if it stands at the heart of its pattern, gives the calls that it covers and the one
call that takes their place. What lies between and is wanted elsewhere too spoils a pattern: then all stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable

from .program import Call, Program, Value, composite
from .rotations import rope, rope_halves, rope_part
from .web import Found, Web


def recognise(program: Program) -> None:
    """Apply all rules, in order, until none of them finds anything."""
    program.prune()
    for rule in RULES:
        _apply(program, rule)


def _apply(program: Program, rule: Callable[[Web, Call], Found]) -> None:
    web = Web(program)
    gone: dict[int, list[Call]] = {}
    for call in program.calls:
        found = None if id(call) in gone else rule(web, call)
        if found is None or any(id(c) in gone for c in found[0]):
            continue
        calls = found[0]
        new = found[1] if isinstance(found[1], list) else [found[1]]
        if not web.private(calls, {out for c in new for out in c.outputs}):
            continue
        order = {id(c): i for i, c in enumerate(program.calls)}
        last = max(calls, key=lambda c: order[id(c)])
        gone.update({id(c): [] for c in calls})
        gone[id(last)] = new
    if gone:
        program.calls = [new for c in program.calls for new in gone.get(id(c), [c])]
        program.prune()


def _square(web: Web, value: str) -> tuple[list[Call], str] | None:
    """x of x^2 or x*x."""
    call = web.maker(value, "Pow", "Mul")
    if call is None:
        return None
    if call.op == "Pow" and web.scalar(call.inputs[1]) == 2:
        return [call], web.through(call.inputs[0])
    if call.op == "Mul" and web.through(call.inputs[0]) == web.through(call.inputs[1]):
        return [call], web.through(call.inputs[0])
    return None


def _last_axis(web: Web, call: Call) -> bool:
    axes = call.attr("axes")
    if axes is None and call.input(1):
        data = web.program.values[call.inputs[1]].data
        axes = None if data is None else data.reshape(-1).tolist()
    rank = len(web.program.shape(call.inputs[0]))
    return axes is not None and [int(a) % rank for a in axes] == [rank - 1]


def _inverse_root(web: Web, value: str, of: str) -> tuple[list[Call], Call] | None:
    """(calls, the call that scales) behind a variance: its root, and `of` over it, or times its inverse."""
    calls: list[Call] = []
    eps = web.only(value, "Add", "Max", "Clip")
    if eps is not None:
        calls.append(eps)
        value = eps.outputs[0]
    root = web.only(value, "Sqrt", "Pow", "Rsqrt")
    if root is None or (root.op == "Pow" and web.scalar(root.inputs[1]) not in (0.5, -0.5)):
        return None
    calls.append(root)
    value = root.outputs[0]
    inverted = root.op == "Rsqrt" or (root.op == "Pow" and web.scalar(root.inputs[1]) == -0.5)
    if not inverted:
        flip = web.only(value, "Reciprocal", "Div")
        if flip is None:
            return None
        if flip.op == "Div" and web.through(flip.inputs[0]) == of:
            return [*calls, flip], flip
        if flip.op == "Div" and web.scalar(flip.inputs[0]) != 1:
            return None
        calls.append(flip)
        value = flip.outputs[0]
    scale = web.only(value, "Mul")
    if scale is None or web.through(web.other(scale, value) or "") != of:
        return None
    return [*calls, scale], scale


def _weighted(web: Web, value: str, op: str, width: int) -> tuple[Call, str] | None:
    """The product with (or sum of) a stored row, and the row."""
    call = web.only(value, op)
    row = web.other(call, value) if call is not None else None
    if call is None or not row or not web.stored(row) or web.program.values[row].elements != width:
        return None
    return call, row


def rms_norm(web: Web, call: Call) -> Found:
    """x * weight / sqrt(mean(x^2) + eps)."""
    if call.op != "ReduceMean" or not _last_axis(web, call):
        return None
    square = _square(web, call.inputs[0])
    if square is None:
        return None
    x = square[1]
    scaled = _inverse_root(web, call.outputs[0], x)
    if scaled is None:
        return None
    calls = [*square[0], call, *scaled[0]]
    weighted = _weighted(web, scaled[1].outputs[0], "Mul", web.program.shape(x)[-1])
    if weighted is None:
        return None
    calls.append(weighted[0])
    return calls, composite("RMSNormalization", calls, (x, weighted[1]), weighted[0].outputs[:1])


def layer_norm(web: Web, call: Call) -> Found:
    """(x - mean) * weight / sqrt(variance + eps) + bias."""
    if call.op != "Sub":
        return None
    mean = web.maker(call.inputs[1], "ReduceMean")
    x = web.through(call.inputs[0])
    if mean is None or not _last_axis(web, mean) or web.through(mean.inputs[0]) != x:
        return None
    centred = call.outputs[0]
    for reader in web.readers(centred):
        squared = _square(web, reader.outputs[0]) if reader.op in ("Pow", "Mul") else None
        variance = web.only(reader.outputs[0], "ReduceMean") if squared and squared[1] == centred else None
        scaled = _inverse_root(web, variance.outputs[0], centred) if variance else None
        if variance is None or scaled is None:
            continue
        calls = [mean, call, reader, variance, *scaled[0]]
        width = web.program.shape(x)[-1]
        weighted = _weighted(web, scaled[1].outputs[0], "Mul", width)
        if weighted is None:
            return None
        calls.append(weighted[0])
        inputs = [x, weighted[1]]
        biased = _weighted(web, weighted[0].outputs[0], "Add", width)
        if biased is not None:
            calls.append(biased[0])
            inputs.append(biased[1])
        return calls, composite("LayerNormalization", calls, inputs, calls[-1].outputs[:1])
    return None


def silu(web: Web, call: Call) -> Found:
    """x * sigmoid(x)."""
    if call.op != "Sigmoid":
        return None
    times = web.only(call.outputs[0], "Mul")
    if times is None or web.through(web.other(times, call.outputs[0]) or "") != web.through(call.inputs[0]):
        return None
    calls = [call, times]
    return calls, composite("Silu", calls, (web.through(call.inputs[0]),), times.outputs)


def gated(web: Web, call: Call) -> Found:
    """silu(gate) * up."""
    if call.op not in ("Silu", "Swish"):
        return None
    times = web.only(call.outputs[0], "Mul")
    up = web.other(times, call.outputs[0]) if times else None
    if times is None or not up or web.stored(up) or web.program.shape(up) != web.program.shape(call.inputs[0]):
        return None
    calls = [call, times]
    return calls, composite("SwiGLU", calls, (call.inputs[0], up), times.outputs)


def gelu(web: Web, call: Call) -> Found:
    """x / 2 * (1 + erf(x / sqrt 2)), or the same with tanh of a cubic in x; the half may stand anywhere."""
    inner = _error_of(web, call) if call.op == "Erf" else _cubic_of(web, call) if call.op == "Tanh" else None
    plus = web.only(call.outputs[0], "Add")
    if inner is None or plus is None or web.scalar(web.other(plus, call.outputs[0]) or "") != 1:
        return None
    calls, x = inner
    calls = [*calls, call, plus]
    value, met = plus.outputs[0], False
    for _ in range(2):
        times = web.only(value, "Mul")
        other = web.through(web.other(times, value) or "") if times else ""
        if times is None or not other:
            break
        half = web.maker(other, "Mul", "Div")
        if half is not None and not met and x in map(web.through, half.inputs) and any(map(web.immediate, half.inputs)):
            calls.append(half)
        elif other != x and not web.immediate(other):
            break
        met = met or not web.immediate(other)
        calls.append(times)
        value = times.outputs[0]
    return (calls, composite("Gelu", calls, (x,), (value,))) if met else None


def _scaled(web: Web, value: str) -> tuple[Call, str] | None:
    """The product or quotient of one value and a number, and that value."""
    call = web.maker(value, "Mul", "Div")
    if call is None:
        return None
    plain = [i for i in call.inputs if not web.immediate(i)]
    return (call, web.through(plain[0])) if len(plain) == 1 else None


def _error_of(web: Web, call: Call) -> tuple[list[Call], str] | None:
    scaled = _scaled(web, call.inputs[0])
    return ([scaled[0]], scaled[1]) if scaled else None


def _cubic_of(web: Web, call: Call) -> tuple[list[Call], str] | None:
    scaled = _scaled(web, call.inputs[0])
    total = web.maker(scaled[1], "Add") if scaled else None
    for i in (0, 1) if total else ():
        assert scaled is not None
        assert total is not None
        cube = _scaled(web, total.inputs[i])
        power = web.maker(cube[1], "Pow") if cube else None
        x = web.through(total.inputs[1 - i])
        if cube and power is not None and web.through(power.inputs[0]) == x and web.scalar(power.inputs[1]) == 3:
            return [power, cube[0], total, scaled[0]], x
    return None


def bias(web: Web, call: Call) -> Found:
    """A product with a weight, plus a stored row."""
    if call.op != "MatMul" or web.stored(call.inputs[0]) or not web.stored(call.inputs[1]):
        return None
    weight = web.program.shape(call.inputs[1])
    added = _weighted(web, call.outputs[0], "Add", weight[-1]) if len(weight) == 2 else None
    if added is None:
        return None
    return [call, added[0]], composite("MatMul", [call, added[0]], (*call.inputs, added[1]), added[0].outputs)


def columns(web: Web, call: Call) -> Found:
    """A product whose result is only cut by columns: one product for each part, of that part of the weight."""
    values = web.program.values
    if call.op not in ("MatMul", "Gemm") or call.attr("transA") or web.stored(call.inputs[0]):
        return None
    weight = values[call.inputs[1]]
    row = values[call.input(2)] if call.input(2) else None
    width = (web.program.shape(call.outputs[0]) or (0,))[-1]
    if not weight.stored or len(weight.shape) != 2 or (row is not None and (not row.stored or row.elements != width)):
        return None
    made = call.outputs[0]
    covered = [call]
    reshaped = web.only(made, "Reshape", "Unsqueeze", "Squeeze")
    if reshaped is not None and web.program.shape(reshaped.outputs[0])[-1] == width:
        covered, made = [call, reshaped], reshaped.outputs[0]
    cut = web.only(made, "Split")
    if cut is None or cut.attr("axis", 0) % len(web.program.shape(made)) != len(web.program.shape(made)) - 1:
        return None
    turned = bool(call.attr("transB"))
    new = []
    for i, out in enumerate(cut.outputs):
        n = values[out].shape[-1]
        shape = (n, weight.shape[0]) if not turned else (n, weight.shape[1])
        part = f"{weight.root}.columns{i}"
        values[part] = Value(part, shape, values[weight.root].dtype, True, None, part)
        inputs = [call.inputs[0], part]
        if row is not None:
            values[f"{row.root}.part{i}"] = Value(
                f"{row.root}.part{i}", (n,), row.dtype, True, None, f"{row.root}.part{i}"
            )
            inputs.append(f"{row.root}.part{i}")
        new.append(
            Call("Gemm", f"{call.name}.{i}", tuple(inputs), (out,), {"transB": 1}, (call.op,), "one of its parts")
        )
    return [*covered, cut], new


RULES: tuple[Callable[[Web, Call], Found], ...] = (
    layer_norm, rms_norm, silu, gated, gelu, rope, rope_halves, rope_part, bias, columns,
)  # fmt: skip
