"""The laws that every run obeys, as one check: sums, bound, and bytes worked out from the unsharded graph."""

from __future__ import annotations

from typing import Any

import networkx as nx

from stallscope import Request, compile_graph, decode_graph, load_model, simulate
from stallscope.arch import Chip, System, load_system
from stallscope.compiler.split import split
from stallscope.sim.run import Run
from stallscope.workloads import model_names, op_cost, op_nodes
from stallscope.workloads.dtypes import dtype_of

Moved = dict[tuple[str, str], int]  # (tier, tensor kind) -> bytes

SIMULATED = model_names()
"""Models of the catalogue whose layers are built: all."""


def graph_of(model: str, **request: Any) -> nx.DiGraph:
    return decode_graph(load_model(model), Request(**request))


def run_on(chip: str | Chip, graph: nx.DiGraph, skip: bool = True, **split: int | None) -> Run:
    """Compiled and simulated."""
    return simulate(compile_graph(graph, system_of(chip, **split)), skip=skip)


def system_of(chip: str | Chip, chips: int | None = None, tp: int | None = None, pp: int | None = None) -> System:
    if isinstance(chip, str):
        return load_system(chip, chips=chips, tp=tp, pp=pp)
    return System(chip, chips, tp, pp, chip.link.topology if chip.link else "none", chip.name)


def with_fact(chip: Chip, **changes: float) -> Chip:
    """The chip with numbers (base units) changed; `tiers__hbm__bandwidth` is `tiers.hbm.bandwidth`."""
    for path, value in changes.items():
        chip = _with(chip, path.split("__"), value)
    return chip


def _with(part: Any, path: list[str], value: Any) -> Any:
    name, rest = path[0], path[1:]
    if isinstance(part, tuple):
        return tuple(_with(x, rest, value) if x.name == name else x for x in part)
    if isinstance(part, dict):
        return {**part, name: _with(part[name], rest, value) if rest else _number(part[name], value)}
    inner = getattr(part, name)
    new = _with(inner, rest, value) if rest else _number(inner, value)
    return part.model_copy(update={name: new})


def _number(fact: Any, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    return fact.model_copy(update={"value": value, "text": str(value)})


def check_run(run: Run) -> None:
    """What holds of every run by itself: the sums, the bound, the counts."""
    info = run.program.info
    assert run.time_fs > 0
    assert sum(run.critical_path_fs.values()) == run.time_fs
    assert all(fs >= 0 for fs in run.critical_path_fs.values())
    for engine in run.engines:
        assert engine.busy_fs + sum(engine.stalls_fs.values()) == run.time_fs * engine.count, engine.name
        assert engine.busy_fs >= 0
        assert min(engine.stalls_fs.values(), default=0) >= 0, (engine.name, engine.stalls_fs)
    assert sum(op.time_fs for op in run.ops) == run.time_fs
    for cause in run.critical_path_fs:
        assert sum(op.causes_fs.get(cause, 0) for op in run.ops) == run.critical_path_fs[cause]
    assert run.time_fs >= info.bound.time_fs, f"{run.time_fs} fs beat the bound of {info.bound.time_fs} fs"
    assert info.bound.time_fs == max(info.bound.terms_fs.values())
    assert info.chips == info.tp * info.pp * info.replicas
    assert run.interval_fs <= run.time_fs
    assert run.interval_fs * info.pp >= run.time_fs
    assert run.simulated_blocks <= run.blocks == run.program.blocks
    counted = sum(n for ways in run.bytes.values() for kinds in ways.values() for n in kinds.values())
    assert counted == sum(op.bytes for op in run.ops)


def check_bytes(run: Run, graph: nx.DiGraph, system: System) -> None:
    """Bytes of weights, caches and tables per tier, as the whole model's graph and the placement imply them."""
    read, written = implied(graph, system)
    for way, wanted in (("read", read), ("write", written)):
        found = {
            (tier, kind): n
            for tier, ways in run.bytes.items()
            for kind, n in ways[way].items()
            if n and kind != "activation"
        }
        assert found == {at: n for at, n in wanted.items() if n}, way


def implied(graph: nx.DiGraph, system: System) -> tuple[Moved, Moved]:
    """(read, written) by the whole system, from op_cost over the unsharded graph and each tensor's tier.

    Under tensor parallelism matrices and caches are cut, vectors (norms) read by every chip; caches and the
    projections that make K and V are copied where there are more chips than KV heads. Matrices must divide evenly.
    """
    plan = split(graph, system)
    read: Moved = {}
    written: Moved = {}
    for op in op_nodes(graph):
        cost = op_cost(graph, op)
        for tensors, out in ((cost.reads, read), (cost.writes, written)):
            for tensor, n in tensors.items():
                data = graph.nodes[tensor]
                if data["tensor"] != "activation":
                    at = plan.tier[tensor], data["tensor"]
                    out[at] = out.get(at, 0) + _by_all(graph, op, tensor, n, plan.tp) * plan.replicas
    return read, written


def _by_all(graph: nx.DiGraph, op: str, tensor: str, n: int, tp: int) -> int:
    """What tp chips together move of a tensor of which one alone moves n: copies, and blocks that a cut divides."""
    data, dtype = graph.nodes[tensor], dtype_of(graph.nodes[tensor]["dtype"])
    how = "row" if graph.nodes[op]["op"] == "embedding" else graph.nodes[op].get("parallel")
    if tp == 1 or not dtype.block_bits or how is None or len(data["shape"]) < 2 or data["tensor"] == "kv":
        return n * copies(graph, op, tensor, tp)
    *lead, rows, columns = data["shape"]
    part = (rows, -(-columns // tp)) if how == "row" else (-(-rows // tp), columns)
    local, whole = dtype.size((*lead, *part)), dtype.size(data["shape"])
    return -(-local * n // whole) * tp * copies(graph, op, tensor, tp)


def copies(graph: nx.DiGraph, op: str, tensor: str, tp: int) -> int:
    """How often the bytes of a tensor are read by tp chips together."""
    data, shape = graph.nodes[op], graph.nodes[tensor]["shape"]
    if data["op"] in WHOLE or (data["op"] == "linear" and data.get("parallel") is None):
        return tp
    if data["op"] == "head_norm":
        width = next(graph.nodes[t]["shape"][-1] for t, _, r in graph.in_edges(op, data="role") if r == "x")
        if shape[-1] != width:
            return tp
    if graph.nodes[tensor]["tensor"] == "kv":
        return max(tp // shape[1], 1)
    if op.endswith((".k_proj", ".v_proj", ".k_norm")):
        layer = [d for _, d in graph.nodes(data=True) if d.get("layer") == data.get("layer")]
        return max(tp // next(d["kv_heads"] for d in layer if d.get("op") == "attention"), 1)
    bias = (data["op"] == "linear" and len(shape) == 1) or (data["op"] == "expert_linear" and len(shape) == 2)
    return tp if bias and data.get("parallel") == "row" else 1


WHOLE = ("rmsnorm", "layernorm", "latent_norm", "latent_gather", "topk", "scale")
"""Ops that every chip of a tensor-parallel group does alike, with all of what they read."""


def check_kernels(run: Run) -> None:
    """What holds in the kernels style without overlap: kernels take turns, so each obeys its own bound.

    An append before attention and the sum of a split product are kernels and rows of their own.
    """
    moved: dict[str, int] = {}
    must: dict[str, int] = {}
    for op in run.ops:
        assert op.time_fs >= op.bound_fs, op.name
        if op.kind not in ("all_gather", "all_to_all") and op.name != "send to next stage":  # these count at no tier
            name = op.name.removesuffix(" append").removesuffix(" sum")
            moved[name], must[name] = moved.get(name, 0) + op.bytes, must.get(name, 0) + op.must_bytes
    assert not {name: (moved[name], n) for name, n in must.items() if moved[name] < n}
