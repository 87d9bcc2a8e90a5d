"""How many chips, and which layers on which: the smallest split that fits, when none is given."""

from __future__ import annotations

import networkx as nx

from ..arch import Chip, System
from ..errors import StallscopeError
from .fit import DoesNotFitError, size_text
from .fuse import fuse, units
from .place import activation_bytes, group_stored, place, stored
from .plan import Group, Plan, Stage, Unit, plan_ops
from .shard import shard

MOST_STAGES = 4096


def split(graph: nx.DiGraph, system: System) -> Plan:
    """A placed plan. Tries tensor parallelism up to one node first, then pipeline stages.

    Raises DoesNotFitError, with the smallest split that would hold the model where there is one.
    """
    tps = [system.tp] if system.tp else _tp_choices(system)
    error: StallscopeError | None = None
    for tp in tps:
        try:
            if system.pp or tp != tps[-1]:
                return _try(graph, system, tp, system.pp or 1)
            return _fewest_stages(graph, system, tp)
        except StallscopeError as e:
            if error is None or isinstance(e, DoesNotFitError):
                error = e
    assert error is not None
    if isinstance(error, DoesNotFitError) and (system.tp or system.pp or system.chips):
        raise DoesNotFitError(f"{error}; {_remedy(graph, system)}", error.misfit)
    raise error


def plan_without_place(graph: nx.DiGraph, system: System) -> Plan:
    """A plan in which every tensor is in the nearest tier for its kind, whether it fits or not: for bounds."""
    plan, all_units = _prepare(graph, system, system.tp or _tp_choices(system)[-1])
    pp = system.pp or (system.chips // plan.tp if system.chips else 1)
    plan.stages = _even(all_units, max(pp, 1), plan)
    for node, data in plan.graph.nodes(data=True):
        if data["kind"] == "tensor":
            plan.tier[node] = next(t.name for t in plan.chip.tiers_for(data["tensor"]) if t.scope != "core")
    return plan


def _tp_choices(system: System) -> list[int]:
    node = int(system.chip.node.chips.value) if system.chip.link else 1
    if system.chips:
        node = min(node, system.chips)
        most = (
            max(n for n in range(1, node + 1) if system.chips % n == 0) if not system.pp else system.chips // system.pp
        )
        return [max(most, 1)]
    return [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n < node] + [node]


def _remedy(graph: nx.DiGraph, system: System) -> str:
    try:
        free = System(system.chip, None, None, None, system.topology, system.name)
        plan = split(graph, free)
    except StallscopeError:
        return "no number of these chips holds it"
    return f"the smallest split that fits is tp {plan.tp}, pp {plan.pp} ({plan.tp * plan.pp} chips)"


def _prepare(graph: nx.DiGraph, system: System, tp: int) -> tuple[Plan, list[Unit]]:
    local = shard(graph, tp)
    return Plan(system.chip, local, tp, ()), units(fuse(plan_ops(local)))


def _try(graph: nx.DiGraph, system: System, tp: int, pp: int) -> Plan:
    plan, all_units = _prepare(graph, system, tp)
    if system.chip.style == "static" and pp > 1:
        return _check_stages(_pack(plan, all_units, pp), system, pp)
    plan.stages = _even(all_units, pp, plan)
    return _explain(place(plan))


def _fewest_stages(graph: nx.DiGraph, system: System, tp: int) -> Plan:
    """The smallest number of stages that fits with this tp."""
    given = system.chips // tp if system.chips else None
    if given:
        return _try(graph, system, tp, given)
    if system.chip.style == "static":
        plan, all_units = _prepare(graph, system, tp)
        return _pack(plan, all_units, None)
    alone = system.chip.link is None
    first: DoesNotFitError | None = None
    plan, all_units = _prepare(graph, system, tp)
    layers = sum(u.layer is not None for u in all_units)
    for pp in range(1, 2 if alone else max(layers, 1) + 1):
        plan, all_units = _prepare(graph, system, tp) if pp > 1 else (plan, all_units)
        plan.stages = _even(all_units, pp, plan)
        try:
            return _explain(place(plan))
        except DoesNotFitError as e:
            first = first or e
    assert first is not None
    raise first


def _check_stages(plan: Plan, system: System, pp: int) -> Plan:
    if plan.pp > pp:
        raise DoesNotFitError(
            f"{plan.graph.graph['name']} does not fit on {pp} stages of {plan.tp} {system.chip.name}: "
            f"it needs {plan.pp}; "
            f"raise --pp to {plan.pp}, or leave it out"
        )
    return plan


def _even(all_units: list[Unit], pp: int, plan: Plan) -> tuple[Stage, ...]:
    """Layers in equal numbers; what comes before the first goes with it, what comes after the last too."""
    layers = [i for i, u in enumerate(all_units) if u.layer is not None]
    if pp > max(len(layers), 1):
        raise StallscopeError(
            f"pp {pp}: {plan.graph.graph['name']} has {len(layers)} layers; "
            "expected at most one stage per layer; lower --pp"
        )
    cuts = [0, *(layers[len(layers) * s // pp] for s in range(1, pp)), len(all_units)]
    return tuple(Stage(s, tuple(all_units[cuts[s] : cuts[s + 1]])) for s in range(pp))


def _pack(plan: Plan, all_units: list[Unit], pp: int | None) -> Plan:
    """Fill each stage's memory in turn: whole layers, then groups of a layer that is too large, then slices of a
    group."""
    room = sum(int(t.capacity.value) for t in plan.chip.tiers_for("weight") if t.scope != "core")
    pieces: list[Unit] = []
    for unit in all_units:
        pieces += _pieces(plan, unit, room)
    stages: list[list[Unit]] = [[]]
    for piece in pieces:
        if stages[-1] and _held(plan, (*stages[-1], piece)) > room:
            stages.append([])
        stages[-1].append(piece)
    if len(stages) > MOST_STAGES:
        raise DoesNotFitError(
            f"{plan.graph.graph['name']} would need {len(stages)} stages of {plan.tp} {plan.chip.name}"
        )
    plan.stages = tuple(Stage(i, tuple(s)) for i, s in enumerate(stages))
    return _explain(place(plan))


def _held(plan: Plan, these: tuple[Unit, ...]) -> int:
    return sum(stored(plan, these).values()) + activation_bytes(plan, these)


def _pieces(plan: Plan, unit: Unit, room: int) -> list[Unit]:
    if _held(plan, (unit,)) <= room:
        return [unit]
    out = []
    for group in unit.groups:
        out += [Unit(unit.layer, (g,)) for g in _slices(plan, group, room)]
    return out


def _slices(plan: Plan, group: Group, room: int) -> list[Group]:
    spare = room - activation_bytes(plan, (Unit(group.layer, (group,)),))
    size = sum(group_stored(plan, group).values())
    if size <= spare:
        return [group]
    if group.kind not in ("linear", "embedding") or spare <= 0:
        raise DoesNotFitError(
            f"{plan.graph.graph['name']} does not fit on {plan.chip.name} with tp {plan.tp}: "
            f"{group.name} alone needs {size_text(size)} of "
            f"{size_text(room)} on each chip, and cannot be cut; raise --tp, or lower --batch or --context"
        )
    return group.slices(-(-size // spare) if spare >= size // 64 else 64)


def _explain(plan: Plan) -> Plan:
    """The arithmetic behind the number of chips, for the report."""
    held = [sum(sum(kinds.values()) for kinds in used.values()) for used in plan.used]
    whole = sum(held) * plan.tp
    chip: Chip = plan.chip
    tiers = [t for t in chip.tiers_for("weight") if t.scope != "core"]
    room = " + ".join(f"{size_text(int(t.capacity.value))} {t.name}" for t in tiers)
    capacity = sum(int(t.capacity.value) for t in tiers)
    least = -(-whole // capacity)
    lines = [
        f"{size_text(whole)} in all (weights, KV, tables, activations) / ({room}) = "
        f"at least {least} chip{'s' * (least != 1)}",
        f"tp {plan.tp} x pp {plan.pp} = {plan.tp * plan.pp} chips; "
        f"the fullest holds {size_text(max(held))} ({max(held) / capacity:.0%})",
    ]
    plan.fit = tuple(lines)
    return plan
