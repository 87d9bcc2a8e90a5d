"""The compiler, from a graph and a system to a TileProgram: the passes in order."""

from __future__ import annotations

import networkx as nx

from ..arch import System
from ..workloads import check_graph
from .bound import PERSISTENT, plan_bound
from .place import keep_warm
from .plan import Plan, plan_ops
from .program import Assumption, Info, TileProgram
from .schedule import schedule
from .split import split
from .verify import verify


def compile_graph(graph: nx.DiGraph, system: System, warm: float = 0) -> TileProgram:
    """Lower a workload graph onto a system. `warm`: the step is repeated, this many copies of its tensors taking turns;
    what fits into the nearest shared memory is read from there (0: everything comes from where it is held).

    Raises StallscopeError for a graph or split that is wrong, DoesNotFitError (with the numbers) for a model that is
    too large.
    """
    check_graph(graph)  # schema, shapes, no cycles
    plan = split(graph, system)  # shard, fuse and place for the smallest split that fits, or the one that is given
    if warm:
        keep_warm(plan, warm)  # kernels repeated as benchmarks do
    program = schedule(plan, _info(plan, graph))  # tile and emit in the chip's style
    verify(program)  # the laws of every program
    return program


def _info(plan: Plan, whole: nx.DiGraph) -> Info:
    chip, graph = plan.chip, plan.graph.graph
    return Info(
        chip=chip.name, chips=plan.chips, tp=plan.tp, pp=plan.pp, replicas=plan.replicas,
        model=graph["name"], phase=graph["phase"],
        batch=graph["batch"], context=graph["context"], spans=graph.get("spans", ()),
        dtypes=dict(graph["dtypes"]), clock_hz=chip.clock_hz, clock_fs=chip.period_fs,
        bound=plan_bound(plan), fit=plan.fit, placement=_fullest(plan), copied_bytes=_copied(plan, whole),
        assumptions=_assumptions(plan),
        notes=(*chip.notes, *chip.execution.notes, *_dram_notes(plan), *plan.notes),
    )  # fmt: skip


def _dram_notes(plan: Plan) -> list[str]:
    """What the other timing of a tier would have in place of its simulated DRAM."""
    return [
        f"{t.name}: every command to every bank is simulated. With --timing fixed it has "
        f"{float(t.availability.value):.1%} of its bandwidth on {int(t.lanes_fact.value)} lanes instead: the two times "
        "differ by what refresh, rows, banks and channels that are not evenly asked take more or less than that."
        for t in plan.chip.tiers
        if t.simulated_dram is not None and t.availability is not None
    ]


def _copied(plan: Plan, whole: nx.DiGraph) -> dict[str, int]:
    """What tp chips read beyond one copy of the whole graph's weights, caches and rows."""
    if plan.tp == 1:
        return {}
    extra: dict[str, int] = {}
    for graph, times in ((plan.graph, plan.tp), (whole, -1)):
        for op in plan_ops(graph):
            for tensor, n in op.cost.reads.items():
                kind = graph.nodes[tensor]["tensor"]
                if kind in PERSISTENT:
                    extra[kind] = extra.get(kind, 0) + times * n
    return {kind: n for kind, n in extra.items() if n}


def _fullest(plan: Plan) -> dict[str, dict[str, int]]:
    """What each chip of the fullest stage holds."""
    return max(plan.used, key=lambda used: sum(sum(kinds.values()) for kinds in used.values()), default={})


def _assumptions(plan: Plan) -> tuple[Assumption, ...]:
    chip = plan.chip
    unused = {f"tiers.{t.name}.{key}" for t in chip.tiers for key in _UNUSED[t.simulated_dram is not None]}
    out = [
        Assumption(f"{path} = {fact.text}", fact.assumed)
        for path, fact in chip.facts()
        if fact.assumed and fact.assumed != "the default" and path not in unused
    ]
    for dtype in sorted(
        {plan.dtype(t) for t, d in plan.graph.nodes(data=True) if d["kind"] == "tensor" and d["tensor"] != "embedding"}
        & set(_FLOATS)
    ):
        used = chip.compute_dtype(dtype)
        if used != dtype:
            out.append(Assumption(f"{dtype} is computed at the {used} rate", f"{chip.name} states no rate for {dtype}"))
    return tuple(out)


_UNUSED = {True: ("lanes", "availability"), False: ("dram",)}
"""Keys of a tier that no run rests on, with its DRAM simulated and without."""
_FLOATS = ("fp32", "bf16", "fp16", "fp8", "int8", "fp4", "int4")
