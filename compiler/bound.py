"""The analytic bound: what no run may beat. Each resource alone, at its peak, with perfect overlap; the largest is the
bound.

A resource's time is its work over its peak rate, summed over the pipeline stages that a token passes one after the
other. Memory: weights,
experts, caches and table rows, each byte once (activations could stay on the chip). Link: the fastest schedule of
every collective, and
the way from stage to stage.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import networkx as nx

from ..arch import Chip, System
from ..workloads import DTYPE_BITS, check_graph
from .collectives import SCHEDULES, least_fs
from .fit import DoesNotFitError, size_text
from .plan import Group, Plan, group_macs, message, operands
from .program import FS_PER_S, Bound
from .split import plan_without_place, split
from .tile import matrix_dtype

PERSISTENT = ("weight", "expert", "kv", "embedding")


@dataclass(frozen=True)
class Term:
    """One resource: its work and its rate as text, and the time that the work takes at that rate."""

    name: str
    amount_text: str
    rate_text: str
    time_fs: int


@dataclass(frozen=True)
class BoundReport:
    """The bound of one token. Bytes are of the whole system; `capacity` is per chip."""

    terms: tuple[Term, ...]
    time_fs: int
    limiter: str
    weight_bytes: int
    kv_bytes: int
    chips: int
    capacity: dict[str, int]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Work:
    """Work of one kind on one chip: how much, of what, and the peak rate per second."""

    name: str
    amount: Fraction
    unit: str
    rate: Fraction

    @property
    def time_fs(self) -> int:
        """Rounded down: a bound must not be above any run."""
        return int(self.amount * FS_PER_S / self.rate)

    @property
    def term(self) -> Term:
        """For the report."""
        amount, rate = float(self.amount) / 1e9, float(self.rate) / 1e12
        return Term(self.name, f"{amount:,.3f} G{self.unit}", f"{rate:,.3f} T{self.unit}/s", self.time_fs)


def bound_of(graph: nx.DiGraph, system: System) -> BoundReport:
    """The bound of a graph on a system; one chip unless the system says more. A model that does not fit is told in the
    remarks.

    Raises StallscopeError for a split that cannot be made.
    """
    check_graph(graph)
    given = system.tp or system.pp or system.chips
    wanted = system if given else replace(system, tp=1, pp=1)
    remarks: list[str] = []
    try:
        plan = split(graph, wanted)
    except DoesNotFitError as error:
        plan = plan_without_place(graph, wanted)
        remarks.append(_cannot_hold(error, graph, wanted))
    works = list(_works(plan))
    bound = _largest(works, plan)
    remarks += _rules_of_thumb(plan, works)
    chips = plan.chips
    return BoundReport(
        tuple(w.term for w in works)
        + tuple(_link_terms(plan)),
        bound.time_fs, bound.limiter, _held(plan, ("weight", "expert", "embedding")), _held(plan, ("kv",)), chips,
        {t.name: int(t.capacity.value) for t in plan.chip.tiers if t.scope != "core"}, tuple(remarks),
    )  # fmt: skip


def plan_bound(plan: Plan) -> Bound:
    """The bound of a placed plan, for the program's info."""
    return _largest(list(_works(plan)), plan)


def _largest(works: list[_Work], plan: Plan) -> Bound:
    terms = {w.name: w.time_fs for w in works} | {t.name: t.time_fs for t in _link_terms(plan)}
    terms = terms or {"vector": 0}  # activations that are moved and nothing else: they could stay where they are
    name = max(terms, key=lambda t: terms[t])
    return Bound(terms[name], name, terms)


def _groups(plan: Plan) -> Iterator[Group]:
    for stage in plan.stages:
        for unit in stage.units:
            yield from unit.groups


def _works(plan: Plan) -> Iterator[_Work]:
    """Memory, ports and units of one chip, summed over all stages."""
    chip = plan.chip
    read: dict[str, int] = {}
    written: dict[str, int] = {}
    macs: dict[str, int] = {}
    ops = special = moved = 0
    for group in _groups(plan):
        for t, n in group.reads.items():
            if plan.kind(t) in PERSISTENT:
                read[plan.tier[t]] = read.get(plan.tier[t], 0) + group.scaled(n)
                moved += group.scaled(n)
        for t in group.produced:
            if plan.kind(t) in PERSISTENT:
                written[plan.tier[t]] = written.get(plan.tier[t], 0) + plan.size(t)
        for dtype, n in _group_macs(plan, group):
            macs[dtype] = macs.get(dtype, 0) + n
        ops += group.scaled(sum(o.cost.vector_ops for o in group.ops))
        special += group.scaled(sum(o.cost.special_ops for o in group.ops))
    for tier in chip.tiers:
        if tier.name in read or tier.name in written:
            size = read.get(tier.name, 0) + written.get(tier.name, 0)
            best = max(float(tier.bandwidth.value), float(tier.write_bandwidth.value) if tier.write_bandwidth else 0)
            yield _Work(f"bandwidth:{tier.name}", Fraction(size), "B", Fraction(str(best)))
    cores = int(chip.cores.value)
    hertz = Fraction(str(chip.clock.value))
    if chip.load.port is not None:
        ports = cores if chip.style == "kernels" else 1
        yield _Work("load port", Fraction(moved), "B", Fraction(str(chip.load.port.value)) * ports * hertz)
    busy = sum((Fraction(n) / Fraction(str(chip.matrix.macs_per_cycle[d].value)) for d, n in macs.items()), Fraction(0))  # type: ignore[index]
    if busy:
        total = sum(macs.values())
        yield _Work(
            "matrix", Fraction(total), "MAC", Fraction(total) / busy * cores * int(chip.matrix.count.value) * hertz
        )
    units = cores * int(chip.vector.count.value) * hertz
    for name, n, fact in (
        ("vector", ops, chip.vector.ops_per_cycle),
        ("vector special", special, chip.vector.special_per_cycle),
    ):
        if n:
            yield _Work(name, Fraction(n), "op", Fraction(str(fact.value)) * units)


def _group_macs(plan: Plan, group: Group) -> Iterator[tuple[str, int]]:
    for op, macs in group_macs(group):
        weight, x = operands(op)
        yield matrix_dtype(plan.chip, plan.dtype(weight), plan.dtype(x)), macs


def collective_fs(plan: Plan, group: Group) -> int:
    """Link time of a collective on an idle link; 0 for other groups."""
    link = plan.chip.link
    if group.kind not in SCHEDULES or link is None:
        return 0
    return least_fs(group.kind, *message(plan, group), link)


def _link_terms(plan: Plan) -> list[Term]:
    total = sum(collective_fs(plan, g) for g in _groups(plan))
    link = plan.chip.link
    if link is None or (not total and plan.pp == 1):
        return []
    total += plan.hops * int(link.latency.value)
    many = sum(g.kind in SCHEDULES for g in _groups(plan))
    amount = f"{many} collectives" + (f", {plan.hops} hops between stages" if plan.hops else "")
    return [
        Term(
            "link",
            amount,
            f"{float(link.bandwidth.value) / 1e9:,.0f} GB/s, {int(link.latency.value) / 1e6:,.0f} ns",
            total,
        )
    ]


def group_bound(plan: Plan, group: Group) -> tuple[int, int]:
    """(bytes that must move, fs no execution can beat) of a group on one chip.

    Must move: weights, caches and rows once, the activations that come in and those that leave, once each;
    outside the kernels style activations are streams from unit to unit, and no memory need see them.
    """
    streams = plan.chip.style != "kernels"
    must: dict[str, int] = {}
    persistent = 0
    for t, n in group.reads.items():
        if streams and plan.kind(t) not in PERSISTENT:
            continue
        part = group.scaled(n) if plan.kind(t) in PERSISTENT else n
        must[plan.tier[t]] = must.get(plan.tier[t], 0) + part
        persistent += part if plan.kind(t) in PERSISTENT else 0
    for t in group.produced:
        if streams and plan.kind(t) not in PERSISTENT:
            continue
        inside = {o.name for o in group.ops}
        readers = list(plan.graph.successors(t))
        if not readers or any(r not in inside for r in readers):
            must[plan.tier[t]] = must.get(plan.tier[t], 0) + plan.size(t)
    if group.kind in SCHEDULES:
        return sum(must.values()), collective_fs(plan, group)
    chip = plan.chip
    times = [n / float(chip.tier(t).bandwidth.value) for t, n in must.items()]
    rate = int(chip.cores.value) * int(chip.matrix.count.value) * chip.clock_hz
    busy = [n / (float(chip.matrix.macs_per_cycle[d].value) * rate) for d, n in _group_macs(plan, group)]  # type: ignore[index]
    times.append(sum(busy))
    if chip.load.port is not None:
        ports = int(chip.cores.value) if chip.style == "kernels" else 1
        times.append(persistent / (float(chip.load.port.value) * ports * chip.clock_hz))
    return sum(must.values()), int(max(times, default=0.0) * FS_PER_S)


def _held(plan: Plan, kinds: tuple[str, ...]) -> int:
    """Bytes of tensors of these kinds over all chips, tied ones once."""
    total = 0
    for node, data in plan.graph.nodes(data=True):
        if (
            data["kind"] == "tensor"
            and data["tensor"] in kinds
            and not plan.graph.in_degree(node)
            and "tied_to" not in data
        ):
            total += plan.size(node)
    return total * plan.tp * plan.replicas


def _cannot_hold(error: DoesNotFitError, graph: nx.DiGraph, system: System) -> str:
    """What a system that is too small lacks, and what would do."""
    m = error.misfit
    if m is None:
        return str(error)
    chip: Chip = system.chip
    text = f"{chip.name} cannot hold this: {size_text(m.needed)} are needed in {m.tier} of each chip, "
    text += f"which has {size_text(m.capacity)}"
    try:
        fits = split(graph, System(chip, None, None, None, system.topology, system.name))
    except DoesNotFitError:
        return f"{text}; no number of these chips does"
    return f"{text}; {fits.tp * fits.pp} chips (tp {fits.tp}, pp {fits.pp}) can"


def _rules_of_thumb(plan: Plan, works: list[_Work]) -> list[str]:
    """The figure that people compute from a model's name, beside ours which counts tensors."""
    named = re.search(r"(\d+(?:\.\d+)?)b(?![a-z0-9])", plan.graph.graph["name"].lower())
    memory = next((w for w in works if w.name.startswith("bandwidth:")), None)
    if named is None or memory is None:
        return []
    dtype = plan.graph.graph["dtypes"]["weight"]
    size = float(named[1]) * 1e9 * DTYPE_BITS[dtype] / 8
    chips = plan.tp
    seconds = size / chips / float(memory.rate)
    per = "" if chips == 1 else f" / {chips} chips"
    return [
        f"rule of thumb, from the name: {named[1]} billion parameters in {dtype} = {size / 1e9:,.0f} GB{per} / "
        f"{float(memory.rate) / 1e12:.2f} TB/s = {seconds * 1e3:.1f} ms; "
        "the bound counts the tensors that a token reads"
    ]
