"""The laws of the rooms (docs/design.md), read from the sources themselves: imports go one way, deferred ones too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HOUSE = ROOT / "stallscope"
FOLDERS = ("arch", "workloads", "compiler", "sim", "stallscope")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
MAY_IMPORT = {
    "errors": (),
    "arch": ("arch", "errors"),
    "workloads": ("workloads", "errors"),
    "compiler.program": (),
    "compiler": ("compiler", "errors", "arch", "workloads"),
    "sim": ("sim", "errors", "compiler.program"),
    "report": ("report", "errors", "sim", "compiler.program"),
}
"""What each room may import of ours. What stands above the rooms (cli, options, catalogue, ...) may import any."""
HINTS_TOO = ("report",)
"""Rooms that may name anything's types for type checkers, since they print what others made."""
CHIPS = re.compile(r"h100|h200|b200|a100|groq|sn40l|sambanova|nvidia", re.IGNORECASE)
LINES = {"sim/kernel.py": 400}


def module(path: Path) -> tuple[str, ...]:
    """The dotted name below `stallscope`, of a package with its __init__."""
    return path.relative_to(HOUSE if path.is_relative_to(HOUSE) else ROOT).with_suffix("").parts


def imports(tree: ast.AST, inside: tuple[str, ...], hints: bool) -> Iterator[str]:
    """Everything imported anywhere: ours as "compiler.program.Body", others as "!numba".

    `hints`: leave out what only type checkers see.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and hints:
            continue
        if isinstance(node, ast.Import):
            yield from (re.sub(r"^!stallscope\.?", "", f"!{alias.name}") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            home = inside[: len(inside) - node.level] if node.level else ("!",)
            full = [".".join((*home, *filter(None, [node.module]), alias.name)) for alias in node.names]
            yield from (re.sub(r"^!stallscope\.", "", name.replace("!.", "!")) for name in full)
        yield from imports(node, inside, hints)


def broken(path: Path, text: str) -> list[str]:
    """Imports of a source that its room does not allow."""
    name = module(path)
    room = next((r for r in MAY_IMPORT if f"{'.'.join(name)}.".startswith(f"{r}.")), None)
    allowed = MAY_IMPORT.get(room or "")
    out = []
    for found in imports(ast.parse(text), name, hints=room in HINTS_TOO):
        if found.startswith("!"):
            if found.startswith("!numba") and name != ("sim", "compiled"):
                out.append(found)
        elif allowed is not None and not any(f"{found}.".startswith(f"{a}.") for a in allowed):
            out.append(found)
    return out


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    assert broken(path, path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("path", "line", "found"),
    [
        ("arch/new.py", "from ..workloads import Model", ["workloads.Model"]),
        ("workloads/new.py", "def f():\n    from ..compiler.plan import Plan", ["compiler.plan.Plan"]),
        ("sim/new.py", "from ..compiler.program import Body\nfrom ..compiler import plan", ["compiler.plan"]),
        ("sim/new.py", "if TYPE_CHECKING:\n    from ..arch import Chip", ["arch.Chip"]),
        ("sim/new.py", "import numba", ["!numba"]),
        ("compiler/styles/new.py", "from ...sim.run import Run\nfrom ..plan import Plan", ["sim.run.Run"]),
        ("compiler/program.py", "from ..errors import StallscopeError", ["errors.StallscopeError"]),
        ("stallscope/report/new.py", "from ..sim.run import Run\nfrom ..workloads import OPS", ["workloads.OPS"]),
        ("stallscope/report/new.py", "if TYPE_CHECKING:\n    from ..workloads import OPS", []),
        ("stallscope/new.py", "from numba import njit\nfrom .arch import Chip", ["!numba.njit"]),
        ("stallscope/report/new.py", "import stallscope.arch", ["arch"]),
    ],
)
def test_the_law_is_seen_to_be_broken(path: str, line: str, found: list[str]) -> None:
    assert broken(ROOT / path, line) == found


def test_numba_waits_until_something_is_simulated() -> None:
    code = (
        "import sys, stallscope.cli, stallscope.compiler.pipeline, stallscope.report.tables\n"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-P", "-c", code], check=True, timeout=120)


def test_no_chip_is_named_in_code() -> None:
    named = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in SOURCES
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if CHIPS.search(line) and path.name not in ("cli.py", "options.py")
    ]
    assert named == []


def test_no_float_in_the_kernel() -> None:
    compiled = [ROOT / "sim" / f"{name}.py" for name in ("account", "basics", "dram", "kernel", "memory")]
    floats = [
        f"{path.name}:{getattr(node, 'lineno', '?')}"
        for path in compiled
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Constant) and isinstance(node.value, float))
        or (isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Div))
        or (isinstance(node, ast.Name | ast.Attribute) and "float" in ast.unparse(node))
    ]
    assert floats == []


def test_there_is_no_room_for_odds_and_ends() -> None:
    assert [p for p in SOURCES if p.stem in ("utils", "util", "helpers", "common", "misc")] == []
    assert not (ROOT / "tests" / "__init__.py").exists()
    assert not (ROOT / "__init__.py").exists()


def test_long_files_are_told() -> None:
    for path in SOURCES:
        name, lines = str(path.relative_to(ROOT)), len(path.read_text(encoding="utf-8").splitlines())
        if lines > LINES.get(name, 300):
            warnings.warn(f"{name} has {lines} lines", stacklevel=1)
