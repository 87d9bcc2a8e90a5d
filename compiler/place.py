"""Placement: every tensor gets a tier and an address; what does not fit is a Misfit.

A policy orders the tensors of a stage; each then takes the nearest tier that may hold its kind and still has room.
"""

from __future__ import annotations

from collections.abc import Callable
from math import lcm

from ..arch import Chip
from .fit import DoesNotFitError, Misfit, size_text
from .plan import Group, Plan, Stage, Unit

ACTIVATIONS = ""  # stands for all activations together, which have no names here
Policy = Callable[[Plan, dict[str, int], dict[str, int]], list[str]]


def place(plan: Plan, policy: str = "reuse") -> Plan:
    """Fill in tier, address and used. Raises DoesNotFitError about the first stage that is too large."""
    used = []
    for stage in plan.stages:
        used.append(_place_stage(plan, stage, POLICIES[policy]))
    plan.used = tuple(used)
    return plan


def keep_warm(plan: Plan, copies: float) -> None:
    """A repeated step, `copies` of everything that it reads taking turns (1.5: half of it is the same each time): if
    they fit into the part of the nearest shared tier in which things are found again, they are read from there; else,
    as the oldest goes first, none is."""
    near = next(t for t in plan.chip.tiers if t.scope == "chip")
    room = int(near.capacity.value) * (float(near.reuse.value) if near.reuse else 1.0)
    for stage in plan.stages:
        held = stored(plan, stage.units)
        reads = {t: n for unit in stage.units for g in unit.groups for t, n in g.reads.items()}
        if copies * sum(min(n, reads.get(t, n)) for t, n in held.items()) <= room:
            for t in held:
                plan.tier[t] = near.name
            note = f"the step repeats: {copies} copies of what it reads fit into {near.name} and are read from there"
            plan.notes = (*plan.notes, note)


def stored(plan: Plan, units: tuple[Unit, ...]) -> dict[str, int]:
    """Bytes of each tensor that outlives the token (weights, caches, tables), each once, for these units of one
    chip."""
    out: dict[str, int] = {}
    for unit in units:
        for group in unit.groups:
            out |= group_stored(plan, group)
    out |= {t: plan.size(t) for t in appended(plan, units)}
    for name in list(out):
        table = plan.graph.nodes[name].get("tied_to")
        if table in out:
            out[name] = 0
    return out


def appended(plan: Plan, units: tuple[Unit, ...]) -> list[str]:
    """What the step adds to caches: it has room beside what they hold, and no address of its own."""
    return [
        t for unit in units for g in unit.groups for op in g.ops for t in op.outputs.values() if plan.kind(t) == "kv"
    ]


def group_stored(plan: Plan, group: Group) -> dict[str, int]:
    """The same for one group; a part of a group has its part of the matrices."""
    return {
        t: group.scaled(plan.size(t)) if len(plan.graph.nodes[t]["shape"]) > 1 else plan.size(t)
        for op in group.ops
        for t in op.inputs.values()
        if plan.kind(t) != "activation"
    }


def activation_bytes(plan: Plan, units: tuple[Unit, ...]) -> int:
    """Room for activations: the largest in- and output of a group, twice (the present and the next)."""
    most = 0
    for unit in units:
        for group in unit.groups:
            inner = sum(n for t, n in group.reads.items() if plan.kind(t) == "activation")
            most = max(most, inner + sum(plan.size(t) for t in group.produced if plan.kind(t) == "activation"))
    return 2 * most


def _by_reuse(plan: Plan, sizes: dict[str, int], reads: dict[str, int]) -> list[str]:
    """Most reads per byte held first; ties in the order of use."""
    place = {t: i for i, t in enumerate(sizes)}
    return sorted(sizes, key=lambda t: (-reads.get(t, 0) / max(sizes[t], 1), place[t]))


def _in_order(plan: Plan, sizes: dict[str, int], reads: dict[str, int]) -> list[str]:
    """In the order of use."""
    return list(sizes)


POLICIES: dict[str, Policy] = {"reuse": _by_reuse, "order": _in_order}


def _place_stage(plan: Plan, stage: Stage, policy: Policy) -> dict[str, dict[str, int]]:
    chip = plan.chip
    free = {t.name: int(t.capacity.value) for t in chip.tiers}
    used: dict[str, dict[str, int]] = {}
    sizes = stored(plan, stage.units)
    new = set(appended(plan, stage.units))
    acts = activation_bytes(plan, stage.units)
    home = _nearest(chip, free, "activation", acts)
    if home is None:
        raise _misfit(plan, stage, "activation", {ACTIVATIONS: acts}, used)
    for unit in stage.units:
        for group in unit.groups:
            for t in (*group.reads, *group.produced):
                if plan.kind(t) == "activation":
                    plan.tier[t] = home
    _take(free, used, home, "activation", acts)
    reads: dict[str, int] = {}
    for unit in stage.units:
        for group in unit.groups:
            for t, n in group.reads.items():
                reads[t] = reads.get(t, 0) + n
    held = {t: n for t, n in sizes.items() if t not in new}
    for t in [*policy(plan, held, reads), *(t for t in sizes if t in new)]:
        kind = plan.kind(t)
        name = _nearest(chip, free, kind, sizes[t])
        if name is None:
            raise _misfit(plan, stage, kind, sizes, used)
        plan.tier[t] = name
        _take(free, used, name, kind, sizes[t])
    for t in sizes:  # a tied head is where its table is
        table = plan.graph.nodes[t].get("tied_to")
        if table in sizes:
            plan.tier[t] = plan.tier[table]
    _addresses(plan, stage, sizes)
    return used


def _nearest(chip: Chip, free: dict[str, int], kind: str, size: int) -> str | None:
    return next((t.name for t in chip.tiers_for(kind) if t.scope != "core" and free[t.name] >= size), None)


def _take(free: dict[str, int], used: dict[str, dict[str, int]], tier: str, kind: str, size: int) -> None:
    free[tier] -= size
    used.setdefault(tier, {})
    used[tier][kind] = used[tier].get(kind, 0) + size


def _addresses(plan: Plan, stage: Stage, sizes: dict[str, int]) -> None:
    """Tensors of a unit lie one behind the other; units of equal size are equally far apart, by whole turns of the
    lanes."""
    turn = {t.name: lcm(t.lanes * int(t.interleave.value), 256) for t in plan.chip.tiers}
    at = dict.fromkeys(turn, 0)
    for unit in stage.units:
        for tier in at:
            at[tier] = -(-at[tier] // turn[tier]) * turn[tier]
        new = set(appended(plan, (unit,)))
        for t in stored(plan, (unit,)):
            if t in new:
                continue
            tier = plan.tier[t]
            plan.address[t] = at[tier]
            at[tier] += -(-sizes[t] // 256) * 256


def _misfit(
    plan: Plan, stage: Stage, kind: str, sizes: dict[str, int], used: dict[str, dict[str, int]]
) -> DoesNotFitError:
    """The error for a stage that is too large for the tiers of a kind: what they hold by now, and all that is left."""
    tiers = {t.name: int(t.capacity.value) for t in plan.chip.tiers_for(kind) if t.scope != "core"}
    terms: dict[str, int] = {}
    for name in tiers:
        for held, n in used.get(name, {}).items():
            terms[held] = terms.get(held, 0) + n
    for t, n in sizes.items():
        left = kind if t == ACTIVATIONS else plan.kind(t)
        if t not in plan.tier and {x.name for x in plan.chip.tiers_for(left)} & set(tiers):
            terms[left] = terms.get(left, 0) + n
    terms = {k: n for k, n in terms.items() if n}
    needed, capacity, names = sum(terms.values()), sum(tiers.values()), " + ".join(tiers)
    parts = ", ".join(f"{k} {size_text(n)}" for k, n in terms.items())
    return DoesNotFitError(
        f"{plan.graph.graph['name']} does not fit on {plan.chip.name} with tp {plan.tp}, pp {plan.pp}: "
        f"each chip of stage {stage.index} needs {size_text(needed)} in {names} and has {size_text(capacity)} "
        f"({size_text(max(needed - capacity, 0))} too much): {parts}",
        Misfit(names, capacity, needed, terms),
    )
