"""How many chips, and which layers on which: the smallest split that fits, when none is given."""

from __future__ import annotations

from dataclasses import replace

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
    """A placed plan: the split that is given, or the first that fits of the candidates.

    Raises DoesNotFitError, with the smallest split that would hold the model where there is one, or StallscopeError for
    a split that cannot be made.
    """
    system = _of_one(graph, system)
    error: StallscopeError | None = None
    for tp, pp in _candidates(system):
        try:
            return _fewest_stages(graph, system, tp) if pp is None else _with_stages(graph, system, tp, pp)
        except StallscopeError as e:
            if error is None or (isinstance(e, DoesNotFitError) and not isinstance(error, DoesNotFitError)):
                error = e
    assert error is not None
    if isinstance(error, DoesNotFitError) and (system.tp or system.pp or system.chips):
        raise DoesNotFitError(f"{error}; {_remedy(graph, system)}", error.misfit)
    raise error


def _of_one(graph: nx.DiGraph, system: System) -> System:
    """The chips that run the graph, where several such groups share their experts. Raises StallscopeError where the
    number of chips does not make equal groups, or they have no link."""
    groups = graph.graph.get("replicas", 1)
    if groups > 1 and system.chip.link is None:
        raise StallscopeError(f"--ep {groups}: {system.chip.name} has no link; expected 1; leave it out")
    if groups > 1 and system.chips and system.chips % groups:
        raise StallscopeError(f"--ep {groups}: found {system.chips} chips; expected a multiple of {groups}; change one")
    return replace(system, chips=system.chips // groups) if groups > 1 and system.chips else system


def _candidates(system: System) -> list[tuple[int, int | None]]:
    """(tp, pp) in the order in which they are tried; pp None: as few stages as fit.

    A number of chips is used up whole. Free, tensor parallelism grows up to a node, then stages are added, with the
    largest tp that shares out the heads.
    """
    chips, tp, pp = system.chips, system.tp, system.pp
    if chips and (chips % ((tp or 1) * (pp or 1)) or (tp and pp and tp * pp != chips)):
        parts = " x ".join(f"{name} {n}" for name, n in (("tp", tp), ("pp", pp)) if n)
        raise StallscopeError(f"{chips} chips are not a whole number of {parts}; expected all to be used; change one")
    node = _node(system)
    if tp and (pp or not chips):
        return [(tp, pp)]
    if chips:
        ways = [tp] if tp else [chips // pp] if pp else [n for n in range(min(node, chips), 0, -1) if chips % n == 0]
        return [(n, chips // n) for n in ways]
    ways = [n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256) if n < node] + [node]
    return [(n, pp or 1) for n in ways] + ([] if pp else [(n, None) for n in reversed(ways)])


def _node(system: System) -> int:
    """Chips that tensor parallelism takes by itself at most: a node, one without links."""
    return int(system.chip.node.chips.value) if system.chip.link else 1


def plan_without_place(graph: nx.DiGraph, system: System) -> Plan:
    """A plan in which every tensor is in the nearest tier for its kind, whether it fits or not: for bounds."""
    plan, all_units = _prepare(graph, system, _candidates(system)[0][0])
    plan.stages = _even(all_units, _candidates(system)[0][1] or 1, plan)
    for node, data in plan.graph.nodes(data=True):
        if data["kind"] == "tensor":
            plan.tier[node] = next(t.name for t in plan.chip.tiers_for(data["tensor"]) if t.scope != "core")
    return plan


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


def _with_stages(graph: nx.DiGraph, system: System, tp: int, pp: int) -> Plan:
    """A given number of stages. A static schedule fills them in turn where layers in equal numbers do not fit."""
    plan, all_units = _prepare(graph, system, tp)
    try:
        plan.stages = _even(all_units, pp, plan)
        return _explain(place(plan))
    except StallscopeError:
        if system.chip.style != "static" or pp == 1:
            raise
    packed = _pack(plan, all_units)
    if packed.pp != pp:
        raise DoesNotFitError(
            f"{plan.graph.graph['name']} does not fit on {pp} stages of {plan.tp} {system.chip.name}: "
            f"it fills {packed.pp}; set --pp to {packed.pp}, or leave it out"
        )
    return packed


def _fewest_stages(graph: nx.DiGraph, system: System, tp: int) -> Plan:
    """The smallest number of stages that fits with this tp."""
    plan, all_units = _prepare(graph, system, tp)
    if system.chip.style == "static":
        return _pack(plan, all_units)
    layers = sum(u.layer is not None for u in all_units)
    first: DoesNotFitError | None = None
    for pp in range(1, 2 if system.chip.link is None else max(layers, 1) + 1):
        plan = Plan(system.chip, plan.graph, tp, ())
        plan.stages = _even(all_units, pp, plan)
        try:
            return _explain(place(plan))
        except DoesNotFitError as e:
            first = first or e
    assert first is not None
    raise first


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


def _pack(plan: Plan, all_units: list[Unit]) -> Plan:
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
    if group.kind not in ("linear", "expert_linear", "embedding", "keep") or spare <= 0:
        raise DoesNotFitError(
            f"{plan.graph.graph['name']} does not fit on {plan.chip.name} with tp {plan.tp}: "
            f"{group.name} alone needs {size_text(size)} of "
            f"{size_text(room)} on each chip, and cannot be cut; raise --tp, or lower --batch or --context"
        )
    return group.slices(-(-size // spare) if spare >= size // 64 else 64)


def _explain(plan: Plan) -> Plan:
    """The arithmetic behind the number of chips, for the report."""
    held = [sum(sum(kinds.values()) for kinds in used.values()) for used in plan.used]
    whole = sum(held) * plan.tp * plan.replicas
    chip: Chip = plan.chip
    tiers = [t for t in chip.tiers_for("weight") if t.scope != "core"]
    room = " + ".join(f"{size_text(int(t.capacity.value))} {t.name}" for t in tiers)
    capacity = sum(int(t.capacity.value) for t in tiers)
    least = -(-whole // capacity)
    lines = [
        f"{size_text(whole)} in all (weights, KV, tables, activations) / ({room}) = "
        f"at least {least} chip{'s' * (least != 1)}",
        f"{'' if plan.replicas == 1 else f'ep {plan.replicas} x '}tp {plan.tp} x pp {plan.pp} = {plan.chips} chips; "
        f"the fullest holds {size_text(max(held))} ({max(held) / capacity:.0%})",
    ]
    plan.fit = tuple(lines)
    return plan
