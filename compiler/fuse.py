"""Fusion: which ops run as one kernel, or as one stop of a section.

Read as a list of rules, tried in order for each op: the first that matches lets the op join an open group, else it
opens
one. The rules are what serving kernels do: projections that read the same vector are one product; what follows
elementwise is the
product's epilogue; rotary positions and the append to the cache belong to attention; a residual add belongs to the
norm behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from .plan import Group, PlanOp, Unit

ELEMENTWISE = frozenset(
    {
        "add",
        "mul",
        "silu",
        "gelu",
        "swiglu",
        "geglu",
        "swiglu_clamped",
        "relu",
        "relu_squared",
        "softcap",
        "scale",
        "rope",
        "pointwise",
    }
)
BESIDE = frozenset({"rope", "kv_append", "head_norm", "copy", "slice"})
_PREFIXES = (
    "attention",
    "index_scores",
    "expert_linear",
    "latent_expand",
    "absorb_q",
    "absorb_v",
    "linear",
    "matmul",
    "all_reduce",
    "all_gather",
    "all_to_all",
    "send",
    "rmsnorm",
    "layernorm",
    "sample",
    "softmax",
)


def fuse(ops: list[PlanOp]) -> list[Group]:
    """Groups in the order of execution; every op is in exactly one."""
    readers: dict[str, list[PlanOp]] = {}
    for op in ops:
        for t in op.inputs.values():
            readers.setdefault(t, []).append(op)
    open_: list[list[PlanOp]] = []
    for op in ops:
        home = next((g for rule in RULES for g in rule(op, open_, readers)), None)
        if home is None:
            open_.append([op])
        else:
            home.append(op)
    return [_group(g) for g in _ordered(open_)]


def _siblings(op: PlanOp, groups: list[list[PlanOp]], readers: dict[str, list[PlanOp]]) -> list[list[PlanOp]]:
    """Products of the same activation are one product."""
    if op.op not in ("linear", "expert_linear"):
        return []
    alike = [g for g in groups[-4:] if all(o.op == op.op and o.weight_dtype == op.weight_dtype for o in g)]
    return [g for g in alike if g[0].inputs["x"] == op.inputs["x"]]


def _epilogue(op: PlanOp, groups: list[list[PlanOp]], readers: dict[str, list[PlanOp]]) -> list[list[PlanOp]]:
    """Elementwise on nothing but what the group just made, which nobody else wants: done before it is stored."""
    if op.op not in ELEMENTWISE - {"rope"}:
        return []
    for g in groups[-1:]:
        made = {t for o in g for t in o.outputs.values()}
        mine = set(op.inputs.values())
        if (
            mine <= made
            and all(len(readers[t]) == 1 for t in mine)
            and g[0].op in ("linear", "matmul", "expert_linear")
        ):
            return [g]
    return []


def _attention(op: PlanOp, groups: list[list[PlanOp]], readers: dict[str, list[PlanOp]]) -> list[list[PlanOp]]:
    """Norms of heads, rotary positions, append and attention of one layer are one."""
    if op.op not in (*BESIDE, "attention"):
        return []
    mine = [i for i, g in enumerate(groups) if all(o.op in BESIDE for o in g) and g[0].layer == op.layer][-1:]
    return [groups[i] for i in mine if len(groups) - i <= 3 and not _through(op, groups, i)]


def _through(op: PlanOp, groups: list[list[PlanOp]], home: int) -> bool:
    """Whether an op reads what a group behind `home` has made from something of `home`: then it can't join that."""
    mine = {t for o in groups[home] for t in o.outputs.values()}
    behind = set(mine)
    for g in groups[home + 1 :]:
        if any(t in behind for o in g for t in o.inputs.values()):
            behind |= {t for o in g for t in o.outputs.values()}
    return any(t in behind - mine for t in op.inputs.values())


def _add_norm(op: PlanOp, groups: list[list[PlanOp]], readers: dict[str, list[PlanOp]]) -> list[list[PlanOp]]:
    """A residual add runs with the norm that reads it."""
    if op.op not in ("rmsnorm", "layernorm"):
        return []
    return [g for g in groups[-1:] if [o.op for o in g] == ["add"] and g[0].outputs["out"] == op.inputs["x"]]


RULES: tuple[Callable[[PlanOp, list[list[PlanOp]], dict[str, list[PlanOp]]], list[list[PlanOp]]], ...] = (
    _siblings,
    _attention,
    _add_norm,
    _epilogue,
)


def _ordered(groups: list[list[PlanOp]]) -> list[list[PlanOp]]:
    """Groups so that each comes after those whose tensors it reads: by the order of their last ops' needs."""
    made = {t: i for i, g in enumerate(groups) for o in g for t in o.outputs.values()}
    done: list[int] = []
    seen: set[int] = set()

    def visit(i: int) -> None:
        stack = [i]
        while stack:
            at = stack[-1]
            needs = [made[t] for o in groups[at] for t in o.inputs.values() if t in made and made[t] != at]
            ahead = [n for n in needs if n not in seen]
            if ahead:
                stack.extend(ahead)
                continue
            stack.pop()
            if at not in seen:
                seen.add(at)
                done.append(at)

    for i in range(len(groups)):
        visit(i)
    return [groups[i] for i in done]


def _group(ops: list[PlanOp]) -> Group:
    kind = next((k for k in _PREFIXES if any(o.op == k for o in ops)), ops[-1].op)
    named = [o for o in ops if o.op == kind]
    name = named[0].name + "".join("+" + o.name.rpartition(".")[2] for o in named[1:])
    extra = [o.name.rpartition(".")[2] for o in ops if o.op != kind and kind != "attention"]
    return Group(name + "".join("+" + e for e in extra), kind, tuple(ops), ops[-1].layer)


def units(groups: list[Group]) -> list[Unit]:
    """Consecutive groups of the same layer."""
    out: list[list[Group]] = []
    for g in groups:
        if (out and out[-1][0].layer == g.layer and g.layer is not None) or (
            out and g.layer is None and out[-1][0].layer is None
        ):
            out[-1].append(g)
        else:
            out.append([g])
    return [Unit(u[0].layer, tuple(u)) for u in out]
