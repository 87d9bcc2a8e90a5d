"""The report of one run as text: the answer first, then where the time went, what moved, and what it all rests on.

A section is one function of `Run` and one row of `SECTIONS`; it says None when it has nothing to show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import RenderableType

from . import units
from .dram import dram_table
from .layout import WIDTH, bullets, grid, pairs, render, section

if TYPE_CHECKING:
    from ..compiler.program import Info
    from ..sim.run import EngineAccount, OpAccount, Run

DEAREST = 12
KINDS = ("weight", "expert", "kv", "activation", "embedding")
ENGINE_COLUMN = 13
BAR = 40
SPANS = 3  # kinds of sequences that a title names one by one


def stall_table(run: Run) -> str:
    """The whole report of a run: text of at most 100 columns, the same in a pipe as on a terminal."""
    return render(*(part for build in SECTIONS if (part := build(run)) is not None))


def job_text(run: Run, chip: bool = True) -> str:
    """What was run, in one line: model, chip (if wanted), phase, batch, context, dtypes."""
    info = run.program.info
    what = f"{info.model} on {info.chip}" if chip else info.model
    return ", ".join([f"{what}: {info.phase}, {work_text(info)}", *_dtypes(info.dtypes)])


def work_text(info: Info) -> str:
    """Whose tokens a step works on: 'batch 8, context 1,024', or '1 x 512 tokens behind 1,536, 8 x 1 behind 900'."""
    if not info.spans:
        return f"batch {info.batch:,}, context {info.context:,}"
    if len(info.spans) > SPANS:
        sequences, tokens = (sum(n) for n in zip(*((c, c * new) for c, new, *_ in info.spans), strict=True))
        contexts = [cached for _, _, cached, *_ in info.spans]
        return f"{tokens:,} tokens of {sequences:,} sequences, contexts {min(contexts):,} to {max(contexts):,}"
    return ", ".join(_span_text(*span) for span in info.spans)


def _span_text(count: int, new: int, cached: int, shared: int = 0) -> str:
    behind = f" behind {cached:,}" if cached else ""
    return f"{count:,} x {new:,} token{'s' * (new > 1)}{behind}" + (f" ({shared:,} shared)" if shared else "")


def time_label(run: Run) -> str:
    """What a run's time is called: of a decode step the time per token."""
    return "time per token" if run.program.info.phase == "decode" else "time of the step"


def split_text(run: Run) -> str:
    """The chips and how the model is split over them: '8 (tp 8 x pp 1)'."""
    info = run.program.info
    spread = "" if info.replicas == 1 else f"ep {info.replicas} x "
    return f"{info.chips:,} ({spread}tp {info.tp} x pp {info.pp})"


def distance_text(run: Run) -> str:
    """How far the run is from its bound: '1.17x the bound, 812.000 us above it'."""
    bound_fs = run.program.info.bound.time_fs
    if bound_fs <= 0:
        return "no bound is known"
    if run.time_fs < bound_fs:
        return f"{units.ratio_text(run.time_fs, bound_fs)} the bound: less than it is impossible, please report this"
    return f"{units.ratio_text(run.time_fs, bound_fs)} the bound, {units.time_text(run.time_fs - bound_fs)} above it"


def answer(run: Run) -> RenderableType:
    """The answer: times and rates, chips with the arithmetic behind their number, the bound and the way to it."""
    info = run.program.info
    others = [(name, fs) for name, fs in by_size(info.bound.terms_fs) if name != info.bound.limiter]
    rows = [
        (
            time_label(run),
            f"{units.time_text(run.time_fs)}   {run.cycles:,} cycles at {units.clock_text(info.clock_hz)}",
        ),
        ("tokens/s per user", units.number_text(run.tokens_per_s_per_user)),
        ("tokens/s in all", units.number_text(run.tokens_per_s) + _interval_text(run)),
        ("chips", split_text(run)),
        *(("", line) for line in info.fit),
        *(("" if i else "each chip holds", line) for i, line in enumerate(_placed(info.placement))),
        ("bound", f"{units.time_text(info.bound.time_fs)}, limited by {info.bound.limiter}"),
        *(("", f"{name} alone: {units.time_text(fs)}") for name, fs in others),
        ("distance", distance_text(run)),
    ]
    return section(job_text(run), "", pairs(rows))


def critical_path(run: Run) -> RenderableType:
    """The critical path by cause: cycles, time and share, each column with its exact sum."""
    causes = by_size(run.critical_path_fs)
    parts = [fs for _, fs in causes]
    cycles, times, shares = units.count_column(parts, run.cycles), units.time_column(parts), units.share_column(parts)
    bars = ["#" * n for n in units.apportion(parts, BAR)]
    names = [name for name, _ in causes]
    rows = [*zip([*names, time_label(run)], cycles, times, shares, [*bars, ""], strict=True)]
    table = grid(("cause", "cycles", "time", "share", ""), rows[:-1], rows[-1], words=(0, 4))
    return section("Where the time goes: the critical path by cause", table)


def engines(run: Run) -> RenderableType | None:
    """Busy time and stalls of each kind of engine, as shares of its time; a column adds up to 100 %."""
    if not run.engines:
        return None
    per_table = (WIDTH - 24) // ENGINE_COLUMN
    groups = [run.engines[i : i + per_table] for i in range(0, len(run.engines), per_table)]
    return section(
        "What each kind of engine does: busy, or stalled by cause", *(_engine_grid(list(group)) for group in groups)
    )


def traffic(run: Run) -> RenderableType | None:
    """Bytes read and written per tier and tensor kind, over all chips, for one step."""
    lines = [(f"{tier} {way}", ways.get(way, {})) for tier, ways in run.bytes.items() for way in ("read", "write")]
    lines = [(name, kinds) for name, kinds in lines if any(kinds.values())]
    if not lines:
        return None
    seen = {kind for _, kinds in lines for kind, n in kinds.items() if n}
    columns = [kind for kind in KINDS if kind in seen] + sorted(seen - set(KINDS))
    rows = [
        (name, *(_bytes_or_dash(kinds.get(kind, 0)) for kind in columns), units.bytes_text(sum(kinds.values())))
        for name, kinds in lines
    ]
    table = grid(("tier", *columns, "total"), rows)
    copied = ", ".join(f"{kind} {units.bytes_text(n)}" for kind, n in run.program.info.copied_bytes.items())
    below = [bullets([f"of this, copies on the chips of a tensor-parallel group: {copied}"])] if copied else []
    return section("Bytes moved in one step, all chips", table, *below)


def dearest_ops(run: Run) -> RenderableType | None:
    """The ops with the largest parts of the critical path; the rest in one row, so that the column adds up."""
    if not run.ops:
        return None
    ranked = sorted(run.ops, key=lambda op: -op.time_fs)
    shown, rest = ranked[:DEAREST], ranked[DEAREST:]
    parts = [op.time_fs for op in shown] + ([sum(op.time_fs for op in rest)] if rest else [])
    times, shares = units.time_column(parts), units.share_column(parts)
    rows = [_op_row(op, t, s) for op, t, s in zip(shown, times, shares, strict=False)]
    if rest:
        rows.append((f"{len(rest)} others", "", times[-2], shares[-2], "", "", _moved(rest)))
    total = ("all ops", "", times[-1], shares[-1], "", units.bytes_text(sum(op.bytes for op in run.ops)), "")
    header = ("op", "cause", "time", "share", "/bound", "moved", "/must")
    return section("Ops that cost most", grid(header, rows, total, words=(0, 1)))


def assumptions(run: Run) -> RenderableType:
    """What the result rests on that no source states."""
    lines = [f"{a.what}: {a.why}" for a in run.program.info.assumptions]
    if not lines:
        return section("Assumptions", "none: every number of the chip has a source")
    return section(f"Assumptions ({len(lines)}) that this rests on", bullets(lines))


def notes(run: Run) -> RenderableType | None:
    """What the compiler remarks."""
    return section("Notes", bullets(run.program.info.notes)) if run.program.info.notes else None


def definitions(run: Run) -> RenderableType:
    """Where the words are explained."""
    return section("What each number means: stallscope run --explain, or --explain WORD (such as bandwidth)")


SECTIONS: tuple[Callable[[Run], RenderableType | None], ...] = (
    answer,
    critical_path,
    engines,
    traffic,
    dram_table,
    dearest_ops,
    assumptions,
    notes,
    definitions,
)


def by_size(parts: dict[str, int]) -> list[tuple[str, int]]:
    """Entries that are not 0, largest first; equal ones by name, so that the order never changes."""
    return sorted(((k, v) for k, v in parts.items() if v), key=lambda kv: (-kv[1], kv[0]))


def _dtypes(dtypes: dict[str, str]) -> list[str]:
    same = set(dtypes.values())
    return [f"all {same.pop()}"] if len(same) == 1 else [f"{kind} {dtype}" for kind, dtype in dtypes.items()]


def _placed(placement: dict[str, dict[str, int]]) -> list[str]:
    return [
        f"{tier}: " + ", ".join(f"{kind} {units.bytes_text(n)}" for kind, n in by_size(kinds))
        for tier, kinds in placement.items()
        if any(kinds.values())
    ]


def _interval_text(run: Run) -> str:
    if run.interval_fs == run.time_fs:
        return ""
    return f"   a step leaves every {units.time_text(run.interval_fs)}, with all pipeline stages full"


def _engine_grid(group: list[EngineAccount]) -> RenderableType:
    causes: dict[str, int] = {}
    for engine in group:
        for cause, fs in engine.stalls_fs.items():
            causes[cause] = causes.get(cause, 0) + fs
    names = [name for name, _ in by_size(causes)]
    columns = [units.share_column([e.busy_fs, *(e.stalls_fs.get(c, 0) for c in names)]) for e in group]
    labels = ["busy", *names, "sum"]
    rows = [
        (label, *(c if c != "0.0%" else "-" for c in cells)) for label, *cells in zip(labels, *columns, strict=True)
    ]
    rows.insert(0, ("engines", *(f"{e.count:,}" for e in group)))
    return grid(("", *(e.name for e in group)), rows[:-1], rows[-1])


def _op_row(op: OpAccount, time: str, share: str) -> tuple[str, ...]:
    name = f"{op.name} x{op.count:,}" if op.count > 1 else op.name
    against_bound = units.ratio_text(op.time_fs, op.bound_fs)
    return (name, op.cause, time, share, against_bound, units.bytes_text(op.bytes), _over(op.bytes, op.must_bytes))


def _moved(ops: list[OpAccount]) -> str:
    return units.bytes_text(sum(op.bytes for op in ops))


def _over(moved: int, must: int) -> str:
    return f"{moved / must:.2f}" if must else "-"


def _bytes_or_dash(n: int) -> str:
    return units.bytes_text(n) if n else "-"
