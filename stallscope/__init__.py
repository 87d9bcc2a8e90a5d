"""stallscope shows, cycle by cycle, where a chip's time goes while a transformer decodes.

The public names below are loaded when they are first used, so that `import stallscope` is instant.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arch import load_chip, load_system
    from .compiler.bound import bound_of
    from .compiler.pipeline import compile_graph
    from .errors import StallscopeError
    from .report.tables import stall_table
    from .sim.run import simulate
    from .workloads import Request, decode_graph, graph_from_export, load_graph, load_model

    __version__: str

# In a clone the rooms stand beside this folder, not in it. Python started in the clone's root finds this folder before
# an installed package: it then finds the rooms too.
_here = Path(__file__).parent
if not (_here / "arch").is_dir() and (_here.parent / "arch" / "chip.py").is_file():
    __path__.append(str(_here.parent))

_HOMES = {
    "Request": "workloads",
    "StallscopeError": "errors",
    "bound_of": "compiler.bound",
    "compile_graph": "compiler.pipeline",
    "decode_graph": "workloads",
    "graph_from_export": "workloads",
    "load_chip": "arch",
    "load_graph": "workloads",
    "load_model": "workloads",
    "load_system": "arch",
    "simulate": "sim.run",
    "stall_table": "report.tables",
}

__all__ = [
    "Request",
    "StallscopeError",
    "__version__",
    "bound_of",
    "compile_graph",
    "decode_graph",
    "graph_from_export",
    "load_chip",
    "load_graph",
    "load_model",
    "load_system",
    "simulate",
    "stall_table",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("stallscope")
    elif name in _HOMES:
        value = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
