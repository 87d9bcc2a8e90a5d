"""A small made-up Run whose sums are right, for the tests of reports."""

from __future__ import annotations

import dataclasses
from typing import Any

from stallscope.compiler.program import (
    Assumption,
    Body,
    Bound,
    Engines,
    Info,
    OpInfo,
    Routes,
    Segment,
    Stations,
    TileProgram,
    ints,
)
from stallscope.sim.run import EngineAccount, OpAccount, Run

TIME_FS = 5_612_345_678_901
CAUSES = {
    "bandwidth:hbm": 4_800_000_000_007,
    "launch": 500_000_000_000,
    "latency:hbm": 250_000_000_000,
    "matrix": 62_345_678_893,
    "link": 1,
    "vector": 0,
}


def make_info(**changes: Any) -> Info:
    info = Info(
        chip="h100-sxm",
        chips=1,
        model="llama-3.1-8b",
        batch=1,
        context=1024,
        dtypes={"weight": "bf16", "kv": "bf16", "activation": "bf16"},
        clock_hz=1.755e9,
        clock_fs=569_801,
        bound=Bound(4_480_000_000_000, "bandwidth:hbm", {"bandwidth:hbm": 4_480_000_000_000, "matrix": 20_000_000_000}),
        fit=("weights 16.06 GB + KV 134.22 MB + activations 1.00 MB = 16.20 GB per chip", "hbm holds 80 GB: 1 chip"),
        placement={"hbm": {"weight": 15_000_000_000, "kv": 134_217_728}},
        assumptions=(
            Assumption(
                "launch_gap 700 ns",
                "no vendor states it; between the 500 ns and 1 us that people measure with back-to-back empty kernels, "
                "so half of the difference either way",
            ),
        ),
        notes=("the KV cache of the new token is appended within the step",),
    )
    return dataclasses.replace(info, **changes)


def make_program(info: Info) -> TileProgram:
    """The smallest program: one engine, one tier, one body of one hold, run for 33 blocks."""
    one, none = ints([0]), ints([])
    each = {f.name: one for f in dataclasses.fields(Body) if f.name not in ("name", "dep_ptr")}
    body = Body(
        **{**each, "name": "layer", "dep_ptr": ints([0, 0]), "dep_pred": none, "dep_type": none, "dep_slot": none}
    )
    return TileProgram(
        causes=tuple(CAUSES),
        tiers=("hbm",),
        kinds=("weight",),
        engines=Engines(("load0",), ("load",), ints([1]), one, one, ints([1]), one),
        stations=Stations(("hbm",), ints([80]), ints([4096]), ints([1]), ints([1]), one, ints([-1]), ints([0])),
        routes=Routes(("hbm",), ints([4096]), ints([0, 1]), one, one, one),
        ops=(OpInfo("mlp", "linear"),),
        bodies=(body,),
        segments=(Segment(0, 33),),
        info=info,
    )


def make_run(info: Info | None = None, ops: int = 20) -> Run:
    """`ops` ops, of which the first takes what the others leave of the critical path."""
    each = [{"bandwidth:hbm": 10_000_000_000 * (i + 1)} for i in range(ops - 1)]
    first = dict(CAUSES)
    first["bandwidth:hbm"] -= sum(c["bandwidth:hbm"] for c in each)
    accounts = [
        OpAccount(f"model.layers.*.mlp.part_{i}", "linear", 32, sum(c.values()), c, 10**9, 10**9 - i, 9 * 10**9)
        for i, c in enumerate([first, *each])
    ]
    engines = []
    for name, count, busy in (("load", 132, 4 * 10**12), ("matrix", 528, 62_345_678_893), ("launcher", 1, 10**9)):
        left = TIME_FS * count - busy
        engines.append(EngineAccount(name, count, busy, {"bandwidth:hbm": left // 2, "idle": left - left // 2}))
    return Run(
        program=make_program(info or make_info()),
        time_fs=TIME_FS,
        critical_path_fs=dict(CAUSES),
        engines=tuple(engines),
        bytes={
            "hbm": {
                "read": {"weight": 15_010_000_000, "kv": 134_217_728, "embedding": 8192},
                "write": {"kv": 131_072, "activation": 0},
            },
            "l2": {"read": {"activation": 10**6}, "write": {}},
        },
        ops=tuple(accounts),
        lanes_busy_fs={"hbm": 10**12},
        interval_fs=TIME_FS,
        blocks=33,
        simulated_blocks=5,
        events=1000,
    )
