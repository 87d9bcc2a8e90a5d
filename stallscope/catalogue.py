"""What comes with stallscope, and what a file is: the commands `chips` and `check`."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import StallscopeError

if TYPE_CHECKING:
    from .arch import Chip

SYSTEM_KEY = re.compile(r"^system\s*:", re.MULTILINE)
DRAM_KEY = re.compile(r"^(standard|rate_mbps|tCK_ps)\s*:", re.MULTILINE)
LOOK_BYTES = 1_000_000
JSON_LIMIT = 2**30


def chips_text() -> str:
    """The shipped chips with their tiers, and the shipped systems."""
    from .arch import chip_names, load_chip, load_system, system_names
    from .report.layout import grid, render, section

    chips = [load_chip(name) for name in chip_names()]
    rows = [(c.name, f"{c.title}\n{_tiers(c)}", c.style, _sourced(c)) for c in chips]
    systems = [(s, load_system(s)) for s in system_names()]
    lines = [(name, s.chip.name, *(_or_auto(n) for n in (s.chips, s.tp, s.pp)), s.topology) for name, s in systems]
    parts = [section("Chips", grid(("name", "what", "style", "assumed"), rows, words=(0, 1, 2)))]
    if lines:
        parts.append(section("Systems", grid(("name", "chip", "chips", "tp", "pp", "topology"), lines, words=(0, 1))))
    return render(*parts)


def _tiers(chip: Chip) -> str:
    return "; ".join(f"{t.name} {t.capacity.text}, {t.bandwidth.text}" for t in chip.tiers)


def _sourced(chip: Chip) -> str:
    facts = [fact for _, fact in chip.facts()]
    return f"{sum(fact.assumed is not None for fact in facts)} of {len(facts)}"


def _or_auto(n: int | None) -> str:
    return "auto" if n is None else f"{n:,}"


def check_text(file: str) -> str:
    """What the file is, in one line. Raises StallscopeError with what is wrong with it."""
    path = Path(file)
    try:
        if not path.exists():
            raise StallscopeError(f"{file}: no such file; give the path of a YAML file, a config.json or a graph")
        if path.is_dir():
            return f"{file}: {_check_model(file)}\n"
        with path.open("rb") as stream:
            text = stream.read(LOOK_BYTES).decode("utf-8-sig", errors="replace")
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        raise StallscopeError(f"{file}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if path.suffix.lower() in (".onnx", ".pt2", ".graphml"):
        return f"{file}: {_check_graph(file)}\n"
    if path.suffix == ".json" or text.lstrip().startswith("{"):
        return f"{file}: {_json_check(path)(file)}\n"
    yaml = _check_system if SYSTEM_KEY.search(text) else _check_dram if DRAM_KEY.search(text) else _check_chip
    return f"{file}: {yaml(file)}\n"


def _json_check(path: Path) -> Callable[[str], str]:
    from .workloads.jsonfile import read_json
    from .workloads.refusals import has_sizes, recognise

    data = read_json(path, "model or graph file", JSON_LIMIT).data
    if {"nodes", "edges", "links"} & set(data) or str(data.get("schema", "")).startswith("stallscope-graph"):
        return _check_graph
    if "model_type" in data or "architectures" in data or has_sizes(data) or recognise(data):
        return _check_model
    if "schema" in data:
        return lambda file: f"a report ({data['schema']}), which nothing reads back"
    keys = ", ".join(repr(key) for key in list(data)[:5]) or "none"
    raise StallscopeError(
        f"{path}: neither a model's config.json (with 'model_type') nor a graph (with 'nodes'); its keys: {keys}"
    )


def _check_chip(file: str) -> str:
    from .arch import load_chip

    chip = load_chip(file)
    return f"a chip, {chip.name} ({chip.title}); fine. {_sourced(chip)} numbers are assumed"


def _check_system(file: str) -> str:
    from .arch import load_system

    system = load_system(file)
    return f"a system of {_or_auto(system.chips)} x {system.chip.name}, {system.topology}; fine"


def _check_dram(file: str) -> str:
    from .arch.dram import load_dram

    preset = load_dram(file)
    return f"a DRAM preset, {preset.name} ({preset.standard}, {preset.rate_mbps:,} Mb/s); fine"


def _check_model(file: str) -> str:
    from .workloads import load_model

    model = load_model(file)
    warnings = "".join(f"\nwarning: {line}" for line in model.warnings)
    active = f" ({model.active_params:,} active)" if model.active_params != model.params else ""
    kept = f"{model.kv_bytes(1):,} bytes of KV cache per token in bf16"
    return f"a model, {model.name}, of {model.params:,} parameters{active}, {kept}; fine{warnings}"


def _check_graph(file: str) -> str:
    from .workloads import load_graph

    graph = load_graph(file)
    ops = sum(kind == "op" for _, kind in graph.nodes(data="kind"))
    return f"a graph, {graph.graph.get('name', 'without a name')}, of {ops:,} ops; fine"
