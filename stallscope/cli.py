"""The commands. Each loads what it needs when it runs, so that `--help` and file checks are instant."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .errors import StallscopeError
from .options import EVERYTHING, ChipName, Explain, JsonFile, Split, Workload, command, emit, name_all
from .progress import shown

if TYPE_CHECKING:
    import networkx as nx

    from .arch import System
    from .sim.run import Run

app = typer.Typer(
    name="stallscope",
    help="Shows, cycle by cycle, where a chip's time goes while a transformer decodes.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

DEFAULT_MODEL = "llama-3.1-8b"  # of `sensitivity`
NoSkip = Annotated[bool, typer.Option("--no-skip", help="Simulate every layer, even those that repeat exactly.")]


class SchemaName(StrEnum):
    """What `schema` can print."""

    CHIP = "chip"
    SYSTEM = "system"
    GRAPH = "graph"
    RUN = "run"


@app.command()
@command
def run(
    chip: ChipName,
    split: Split,
    work: Workload,
    no_skip: NoSkip = False,
    warm: Annotated[
        int,
        typer.Option(metavar="N", min=0, help="The step repeats, N copies of its tensors in turn: caches are warm."),
    ] = 0,
    json: JsonFile = None,
    explain: Explain = None,
) -> None:
    """Simulate one step, or several, on a chip or system, and report where the time goes."""
    _check_target(json)
    from .report.json import run_json
    from .report.steps import steps_json, steps_table
    from .report.tables import stall_table

    runs = _simulate_all(work.graphs(), split.system(chip), no_skip, warm)
    if len(runs) > 1:
        _deliver(json, lambda: steps_json(runs), lambda: steps_table(runs))
    else:
        _deliver(json, lambda: run_json(runs[0]), lambda: stall_table(runs[0]))


@app.command()
@command
def compare(
    chips_named: Annotated[list[str], typer.Argument(metavar="CHIP", help="Chips or systems, by name or file.")],
    split: Split,
    work: Workload,
    no_skip: NoSkip = False,
    json: JsonFile = None,
    explain: Explain = None,
) -> None:
    """Simulate the same step on several chips, and show them side by side."""
    _check_target(json)
    from .report.compare import Column, compare_json, compare_table

    graph = work.load()
    for name in chips_named:
        Split().system(name)  # a wrong name or file is an error; a chip that cannot do it is a result
    columns = []
    with shown("chips simulated", len(chips_named)) as done:
        for name in chips_named:
            result: Run | StallscopeError
            try:
                result = _simulate(graph, split.system(name), no_skip)
            except StallscopeError as error:
                result = error
            columns.append(Column(Path(name).stem if os.sep in name else name, result))
            done()
    _deliver(json, lambda: compare_json(columns), lambda: compare_table(columns))
    if all(isinstance(column.result, StallscopeError) for column in columns):
        raise StallscopeError("none of these chips can do it; each column says why")


@app.command(name="compile")
@command
def compile_(
    chip: ChipName,
    split: Split,
    work: Workload,
    whole: Annotated[bool, typer.Option("--print", help="Print the whole program, one instruction per line.")] = False,
) -> None:
    """Compile for a chip or system, and show the program (docs/ir.md) or a summary of it."""
    from .compiler.pipeline import compile_graph
    from .report.program import program_table

    program = compile_graph(work.load(), split.system(chip))
    emit(program.text() if whole else program_table(program))


@app.command()
@command
def bound(chip: ChipName, split: Split, work: Workload, json: JsonFile = None, explain: Explain = None) -> None:
    """The analytic limit of one step, with its arithmetic: what no run can beat. Nothing is simulated."""
    _check_target(json)
    from .compiler.bound import bound_of
    from .graph import work_text
    from .report.bound import bound_json, bound_table

    graph, system = work.load(), split.system(chip)
    result = bound_of(graph, system)
    title = work_text(graph, f" on {system.name}")
    _deliver(json, lambda: bound_json(result), lambda: bound_table(result, title))


@app.command()
@command
def gemm(
    array: Annotated[str, typer.Option(metavar="ROWSxCOLS", help="Shape of the systolic array, such as 128x128.")],
    m: Annotated[int, typer.Option("-m", help="Rows of the activation: tokens.")],
    n: Annotated[int, typer.Option("-n", help="Columns of the output.")],
    k: Annotated[int, typer.Option("-k", help="Terms of each sum.")],
    dataflow: Annotated[
        str, typer.Option(metavar="os|ws|is", help="What stays in the array: output, weight or input.")
    ] = "ws",
    weight_buffers: Annotated[int, typer.Option(help="2: the next tile loads while the present one is used.")] = 1,
    json: JsonFile = None,
) -> None:
    """Cycles of one product, m x k times k x n, on a systolic array whose memory is never late, term by term.

    Efficiencies are percentages in the table and fractions from 0 to 1 in JSON. docs/units.md has the formulas.
    """
    _check_target(json)
    from .compiler.matrix import gemm as time_gemm
    from .report.gemm import gemm_json, gemm_table

    result = time_gemm(array, dataflow, weight_buffers, m, n, k)
    _deliver(json, lambda: gemm_json(result), lambda: gemm_table(result))


@app.command()
@command
def memory(
    dram: Annotated[str, typer.Option(metavar="NAME|FILE", help="DRAM preset, by name or YAML file (docs/dram.md).")],
    mapping: Annotated[str, typer.Option(help="Address mapping: fields from the most significant.")] = "RoBaCoBg",
    pattern: Annotated[str, typer.Option(help="seq, streams, stride, rand, rwseq1, rwseq2 or rwrand.")] = "seq",
    params: Annotated[str, typer.Option(help="What the pattern takes, such as 'S=4;C=256;off=stag'.")] = "",
    requests: Annotated[int, typer.Option(help="Bursts of the stream.")] = 100_000,
    load: Annotated[str, typer.Option(help="Offered load as a share of the peak, or sat: all at once.")] = "sat",
    arrivals: Annotated[str, typer.Option(help="det: evenly spaced; poi: at random (Poisson).")] = "det",
    refresh: Annotated[
        str | None, typer.Option(metavar="MODE", help="all-bank (the default), per-bank or none.")
    ] = None,
    queue: Annotated[int | None, typer.Option(help="Reads, and writes, that wait at most. Default: 32.")] = None,
    json: JsonFile = None,
) -> None:
    """Run one DRAM channel under a stream of requests: cycles, efficiency, latencies, and where the cycles went."""
    _check_target(json)
    from .memory import Request, run_memory
    from .report.memory import memory_json, memory_table

    with shown(f"simulating {requests:,} bursts on one channel of {dram}", 1):
        result = run_memory(Request(dram, mapping, pattern, params, requests, load, arrivals, refresh, queue))
    _deliver(json, lambda: memory_json(result), lambda: memory_table(result))


@app.command()
@command
def graph(
    work: Workload,
    what: Annotated[str | None, typer.Argument(metavar="MODEL|FILE", help="A model, or a graph file.")] = None,
    output: Annotated[str | None, typer.Option("-o", metavar="FILE", help="Write it: .json or .graphml.")] = None,
    draw: Annotated[
        str | None, typer.Option(metavar="[FILE]", help="Draw it: .svg, or .dot for Graphviz. Default: graph.svg.")
    ] = None,
) -> None:
    """Show a model or file as a graph: its numbers, its operators, and what was mapped to what (docs/graphs.md)."""
    from .graph import graph_table, workload_of, write_graph

    found = workload_of(what, work).load()
    if draw is not None:
        from .picture import draw as picture

        emit(picture(found, "graph.svg" if draw == EVERYTHING else draw))
    if output is not None:
        emit(write_graph(found, output))
    if output is None and draw is None:
        emit(graph_table(found))


@app.command()
@command
def chips() -> None:
    """List the chips and systems that come with stallscope."""
    from .catalogue import chips_text

    emit(chips_text())


@app.command()
@command
def models(
    models_named: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Names, config.json files or their folders.")
    ] = None,
    json: JsonFile = None,
) -> None:
    """List the models that come with stallscope, or those named: parameters, active ones, KV bytes per token."""
    _check_target(json)
    from .report.models import models_json, models_table
    from .workloads import load_model, model_names

    found = [load_model(name) for name in models_named or model_names()]
    _deliver(json, lambda: models_json(found), lambda: models_table(found))


@app.command()
@command
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="Chip, system or DRAM preset, config.json, or graph.")],
) -> None:
    """Read a file as a run would, and say what it is and that it is fine, or what is wrong with it."""
    from .catalogue import check_text

    emit(check_text(file))


@app.command()
@command
def schema(what: Annotated[SchemaName, typer.Argument(help="Which files it is about.")]) -> None:
    """Print a JSON Schema, by which editors complete files and programs check them."""
    from .report.json import json_text
    from .schemas import schema_of

    emit(json_text(schema_of(what.value)))


def _version(wanted: bool) -> None:
    if wanted:
        from . import __version__

        emit(f"stallscope {__version__}\n")
        raise typer.Exit


@app.command()
@command
def validate(
    table: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Measured table, CSV (docs/validation.md); repeatable. Default: ours."),
    ] = None,
    chip: Annotated[
        list[str] | None, typer.Option(metavar="NAME|FILE", help="Only rows of this chip; repeatable.")
    ] = None,
    sample: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="At most so many rows of a table, the same each time.")
    ] = None,
    fit: Annotated[
        str | None, typer.Option(metavar="NAME=LOW:HIGH", help="Find this number of the chip file from the rows.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(metavar="FILE", help="Predicted against measured, as an image.")] = None,
    json: JsonFile = None,
) -> None:
    """Compare predictions with measured tables: errors by chip, op, dtype and size, and the worst rows explained."""
    _check_target(json)
    from .validation.command import run_validation
    from .validation.report import check_plot

    if plot is not None:
        check_plot(plot)
    result = run_validation(table or [], chip or [], sample, fit)
    if plot is not None:
        result.plot(plot)
    _deliver(json, result.json, result.text)


@app.command()
@command
def sensitivity(chip: ChipName, split: Split, work: Workload, json: JsonFile = None) -> None:
    """Which numbers of a chip file are assumed, and how far the time of a step moves when each moves by 10 %."""
    _check_target(json)
    from .validation.command import run_sensitivity

    graph = work.load() if work.model or work.graph else Workload(model=DEFAULT_MODEL).load()
    result = run_sensitivity(graph, split.system(chip))
    _deliver(json, result.json, result.text)


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    explain: Explain = None,
) -> None:
    pass


def _check_target(json: str | None) -> None:
    if json not in (None, "-"):
        from .report.json import check_target

        check_target(json)


def _simulate(graph: nx.DiGraph[Any], system: System, no_skip: bool, warm: int = 0) -> Run:
    from .compiler.pipeline import compile_graph

    program = compile_graph(graph, system, warm)  # a model that does not fit says so before the simulator is loaded
    from .sim.run import simulate

    return simulate(program, skip=not no_skip)


def _simulate_all(graphs: list[nx.DiGraph[Any]], system: System, no_skip: bool, warm: int) -> list[Run]:
    """All steps on as many chips as the last needs, whose KV cache is the largest."""
    what = "steps simulated" if len(graphs) > 1 else f"simulating {graphs[-1].graph['name']} on {system.name}"
    with shown(what, len(graphs)) as done:
        last = _simulate(graphs[-1], system, no_skip, warm)
        done()
        info = last.program.info
        fixed = replace(system, chips=None, tp=info.tp, pp=None if system.chip.style == "static" else info.pp)
        runs = []
        for graph in graphs[:-1]:
            runs.append(_simulate(graph, fixed, no_skip, warm))
            done()
    return [*runs, last]


def _deliver(json: str | None, data: Any, table: Any) -> None:
    from .report.json import json_text, write_json

    if json == "-":
        emit(json_text(data()))
        return
    if json is not None:
        write_json(json, data())
    emit(table())


def main() -> None:
    """The `stallscope` command."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115  # else warnings would go to stdout, among results
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a terminal without these letters is no reason to fail
    app(args=name_all(sys.argv[1:]), prog_name="stallscope")


if __name__ == "__main__":
    main()
