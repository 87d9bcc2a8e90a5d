"""Options that several commands share, and what each word of theirs stands for."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, get_type_hints

import typer

from .errors import StallscopeError

if TYPE_CHECKING:
    import networkx as nx

    from .arch import System
    from .workloads import Request

EVERYTHING = "all"
DTYPE_HELP = (
    "Format of the weights: bf16, fp8, int4, ... or WxAy words such as W4A16. KV cache and activations stay bf16, "
    "unless --kv or --activation say otherwise or the format is a plain fp16 or fp32, which then holds for all three."
)
OF_GRAPH = ("graph", "dim", "causal", "in_place")
INTEGER_DTYPES = {"4": "int4", "8": "int8", "16": "bf16"}


@dataclass(frozen=True)
class Split:
    """How many chips, and how the model is split over them; None: the smallest split that fits."""

    chips: Annotated[int | None, typer.Option(help="Number of chips. Default: as few as hold the model.")] = None
    tp: Annotated[int | None, typer.Option(help="Tensor parallel: chips that share every layer.")] = None
    pp: Annotated[int | None, typer.Option(help="Pipeline parallel: stages of whole layers.")] = None
    timing: Annotated[
        Literal["fixed", "dram"] | None,
        typer.Option(
            help="Memories with `dram:` in the chip file: fixed, a rate and a latency, in seconds; or dram, every "
            "command to every bank, in more of them. Default: what the chip file says, else fixed."
        ),
    ] = None

    def system(self, name: str) -> System:
        """The system of that name or file, or that many of the chip of that name or file."""
        from .arch import load_system

        system = load_system(name, chips=self.chips, tp=self.tp, pp=self.pp)
        return system if self.timing is None else system.with_timing(self.timing)


@dataclass(frozen=True)
class Workload:
    """Which graph is run: a model with a request, or the user's own graph."""

    model: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Catalogue name, config.json, or folder that has one.")
    ] = None
    graph: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="A graph instead of --model: JSON, GraphML, ONNX or torch.export (.pt2)."),
    ] = None
    dim: Annotated[
        list[str] | None, typer.Option(metavar="NAME=NUMBER", help="A symbolic length of --graph; repeatable.")
    ] = None
    causal: Annotated[
        bool | None, typer.Option("--causal", help="Masks of --graph with unknown values are causal.")
    ] = None
    in_place: Annotated[
        bool | None, typer.Option("--in-place", help="Caches that --graph gives back grow where they lie.")
    ] = None
    batch: Annotated[int | None, typer.Option(help="Sequences worked on together. Default: 1.")] = None
    context: Annotated[int | None, typer.Option(help="Tokens in the KV cache of each sequence. Default: 1024.")] = None
    contexts: Annotated[
        str | None, typer.Option(metavar="LIST|WORD", help="A context for each: 1024,4096 or lognormal:1000:0.8.")
    ] = None
    prefix: Annotated[int | None, typer.Option(help="Leading cached tokens that all sequences share.")] = None
    phase: Annotated[str | None, typer.Option(help="decode, prefill, mixed (a prefill beside decodes), verify.")] = None
    prompt: Annotated[int | None, typer.Option(help="New tokens of a prefill. Sets --phase prefill.")] = None
    chunk: Annotated[int | None, typer.Option(help="Prefill so many tokens at a time.")] = None
    steps: Annotated[int | None, typer.Option(help="Decode steps, the KV cache growing. Default: 1.")] = None
    verify: Annotated[int | None, typer.Option(help="New tokens of each sequence. Sets --phase verify.")] = None
    routing: Annotated[
        str | None, typer.Option(metavar="WORD|FILE", help="Experts of a token: uniform, power:ALPHA, or a trace.")
    ] = None
    seed: Annotated[int | None, typer.Option(help="Of contexts and routing that are drawn. Default: 0.")] = None
    ep: Annotated[int | None, typer.Option(help="Expert parallel: chips over which experts are spread whole.")] = None
    latent: Annotated[str | None, typer.Option(help="Form of latent attention: auto, absorbed, plain.")] = None
    dtype: Annotated[str | None, typer.Option(help=DTYPE_HELP)] = None
    weight: Annotated[str | None, typer.Option(help="Format of the weights alone.")] = None
    attention: Annotated[str | None, typer.Option(help="Format of attention's weights.")] = None
    expert: Annotated[str | None, typer.Option(help="Format of the experts.")] = None
    embedding: Annotated[str | None, typer.Option(help="Format of the embedding tables.")] = None
    head: Annotated[str | None, typer.Option(help="Format of the head.")] = None
    kv: Annotated[str | None, typer.Option(help="Format of the KV cache. Default: bf16.")] = None
    activation: Annotated[str | None, typer.Option(help="Format of activations. Default: bf16.")] = None
    cast: Annotated[
        str | None, typer.Option(help="Format of activations before a product with quantised weights, or none.")
    ] = None

    def load(self) -> nx.DiGraph[Any]:
        """The graph. Raises StallscopeError if there is none or too much is said, or if it cannot be read."""
        if self.graph is not None:
            said = [f"--{f.name}" for f in fields(self) if f.name not in OF_GRAPH and getattr(self, f.name) is not None]
            if said:
                raise StallscopeError(
                    f"--graph {self.graph}: the graph file states these itself; leave out {', '.join(said)}"
                )
            from .workloads import load_graph
            from .workloads.foreign.lengths import parse_dims

            graph = load_graph(self.graph, parse_dims(self.dim or ()), bool(self.causal), bool(self.in_place))
            for warning in graph.graph.get("warnings", ()):
                print(f"warning: {warning}", file=sys.stderr)
            return graph
        if self.model is None:
            raise StallscopeError("nothing to run: give --model NAME (`stallscope models` lists them) or --graph FILE")
        graphs = self.graphs()
        if len(graphs) > 1:
            raise StallscopeError(
                f"{len(graphs)} steps: this command takes one; leave out --chunk and --steps, or use `stallscope run`"
            )
        return graphs[0]

    def graphs(self) -> list[nx.DiGraph[Any]]:
        """The graph of each step. Raises StallscopeError as `load` does."""
        if self.graph is not None or self.model is None:
            return [self.load()]
        from .workloads import decode_graph, load_model

        model, request = load_model(self.model), self.request()
        graphs = [decode_graph(model, request, step) for step in range(len(request.plan))]
        for warning in graphs[-1].graph.get("warnings", ()):
            print(f"warning: {warning}", file=sys.stderr)
        return graphs

    def request(self) -> Request:
        """The request. Raises StallscopeError for a format or a number that makes no sense."""
        from .workloads import Request

        alone = [f"--{name.replace('_', '-')}" for name in OF_GRAPH[1:] if getattr(self, name)]
        if alone:
            raise StallscopeError(f"{', '.join(alone)}: found no --graph, which alone it is about; leave it out")
        formats = dtype_word(self.dtype) if self.dtype is not None else {}
        apart = ("model", "dtype", "contexts", *OF_GRAPH)
        said = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in apart}
        said = formats | {name: value for name, value in said.items() if value is not None}
        if self.phase is None and (self.prompt is not None or self.verify is not None):
            said["phase"] = "prefill" if self.prompt is not None else "verify"
        if self.contexts is not None:
            said["contexts"] = _contexts(self.contexts)
            if self.batch is None and isinstance(said["contexts"], tuple):
                said["batch"] = len(said["contexts"])
        return Request(**said)


def _contexts(word: str) -> tuple[int, ...] | str:
    """A list of numbers, or a word that Request knows."""
    parts = word.replace(" ", "").split(",")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else word


def dtype_word(word: str) -> dict[str, str]:
    """Formats of weight, kv and activation that one word asks for; what it leaves out keeps its default.

    Raises StallscopeError for a WxAy word of widths that no format has; plain names are checked by Request.
    """
    parts = re.fullmatch(r"w(\d+)a(\d+)(?:kv(\d+))?", word.lower())
    if parts is None:
        return dict.fromkeys(("weight", "kv", "activation") if word in ("fp16", "fp32") else ("weight",), word)
    widths = {k: w for k, w in zip(("weight", "activation", "kv"), parts.groups(), strict=True) if w is not None}
    if not set(widths.values()) <= set(INTEGER_DTYPES):
        known = ", ".join(INTEGER_DTYPES)
        raise StallscopeError(f"--dtype {word}: found a width other than {known} bits; write for instance W4A16 or fp8")
    return {kind: INTEGER_DTYPES[width] for kind, width in widths.items()}


def command(function: Callable[..., None]) -> Callable[..., None]:
    """The function as a command: dataclass parameters become options, and bad input one message and exit code 2."""
    hints = get_type_hints(function, include_extras=True)
    own = inspect.signature(function).parameters
    groups = {name: hints[name] for name in own if is_dataclass(hints[name])}
    shown: list[inspect.Parameter] = []
    for name, parameter in own.items():
        shown += _options(groups[name]) if name in groups else [parameter.replace(annotation=hints[name])]
    keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]

    @functools.wraps(function)
    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{f.name: given.pop(f.name) for f in fields(group)})
        try:
            function(**given)
        except StallscopeError as error:
            fail(error)
        except KeyboardInterrupt:
            raise SystemExit(130) from None

    del run.__wrapped__  # type: ignore[attr-defined]
    run.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in keyword}
    return run


def _options(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(f.name, kind, default=f.default, annotation=hints[f.name]) for f in fields(group)]


def fail(error: StallscopeError) -> NoReturn:
    """Print the one message, with control characters made harmless, and leave with exit code 2."""
    text = "".join(c if c.isprintable() or c == "\n" else repr(c)[1:-1] for c in str(error))
    print(f"error: {text}", file=sys.stderr)
    raise typer.Exit(2)


def emit(text: str) -> None:
    """Write to stdout. A reader that went away ends the program quietly; a full disk is an error as any other."""
    if sys.stdout is None:
        raise StallscopeError("stdout is closed; expected a place for the result; give one, or --json FILE")
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = None  # type: ignore[assignment]  # nothing may be flushed at exit
        raise SystemExit(141) from None
    except OSError as error:
        raise StallscopeError(f"stdout cannot be written: {error.strerror or error}") from None


def name_all(words: Sequence[str]) -> list[str]:
    """`--explain` and `--draw` without a word mean all, or the default: say so, since options of typer have a value."""
    result: list[str] = []
    for i, word in enumerate(words):
        result.append(word)
        if word in ("--explain", "--draw") and (i + 1 == len(words) or words[i + 1].startswith("-")):
            result.append(EVERYTHING)
    return result


def explain(word: str | None) -> None:
    """Print what the word means, or all words, and leave."""
    if word is None:
        return
    from .report.explain import explain_text

    try:
        emit(explain_text(None if word == EVERYTHING else word))
    except StallscopeError as error:
        fail(error)
    raise typer.Exit


Explain = Annotated[
    str | None,
    typer.Option(metavar="[WORD]", callback=explain, is_eager=True, help="Print what each number, or WORD, means."),
]
JsonFile = Annotated[str | None, typer.Option("--json", metavar="FILE", help="Write JSON to FILE, or - for stdout.")]
ChipName = Annotated[str, typer.Option("--chip", metavar="NAME|FILE", help="Chip or system, by name or YAML file.")]
