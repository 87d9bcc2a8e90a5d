"""The parts that a chip file may have (docs/chips.md explains every key), one subject a file."""

from .attention import Attention, AttentionKernel, AttentionParts, FlashKernel, MaskedKernel
from .engines import Array, Granule, Matrix, Port, Vector
from .execution import Execution, Promotion, Tiles
from .fields import Count, Dtype, Source, Stated
from .link import Link, Node, Topology
from .tier import DramTiming, Tier

__all__ = [
    "Array",
    "Attention",
    "AttentionKernel",
    "AttentionParts",
    "Count",
    "DramTiming",
    "Dtype",
    "Execution",
    "FlashKernel",
    "Granule",
    "Link",
    "MaskedKernel",
    "Matrix",
    "Node",
    "Port",
    "Promotion",
    "Source",
    "Stated",
    "Tier",
    "Tiles",
    "Topology",
    "Vector",
]
