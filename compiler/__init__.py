"""The compiler: from a workload graph and a system to a TileProgram."""

from .pipeline import compile_graph
from .program import TileProgram

__all__ = ["TileProgram", "compile_graph"]
