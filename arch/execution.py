"""How work is started on a chip and cut into tiles; the kernels of its library."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .attention import Attention
from .fact import Fact, Quantity, Strict
from .fields import Count, Cycles, Dtype, Stated, default, default_alias

Side = Annotated[int, Field(ge=1, le=2**20)]


class Tiles(Stated):
    """The tile shapes of the chip's kernels, and how deep one step of their main loop is."""

    shapes: tuple[tuple[Side, Side], ...] = Field(min_length=1)
    """[rows of the activation (tokens), columns of the output] of each; a smaller product is padded to a tile."""
    depth: int = Field(ge=1, le=2**20)
    """Bytes of one row of an operand that a step takes: length of the sum x size of an element."""


class Promotion(Strict):
    """Products of block-scaled operands on a unit without scales: behind each block of the sum, the vector units scale
    what it came to and add it in fp32, one fused multiply-add for each sum of the tile."""

    tiles: Tiles
    """Those of such kernels: two sets of sums must fit into registers."""
    chain: Cycles
    """What each block adds to the main loop's own cycles: waiting for its products, loading its scales."""


_SHAPES = tuple((rows, columns) for rows in (8, 16, 32, 64, 128) for columns in (8, 16, 32, 64, 128, 256))


def _default_tiles() -> Tiles:
    return Tiles(shapes=_SHAPES, depth=128, assumed="the default")


class Execution(Strict):
    """How work is started on the chip."""

    launch_gap: Annotated[Fact, Quantity("time0")]
    """From the end of one kernel (section) to the start of the next."""
    overlap: Literal["none", "programmatic"] = "none"
    """`programmatic`: the next kernel's launch and first loads go on under the present one."""
    stages_fact: Count | None = Field(alias="stages", default=None)
    """Tile buffers of each core in the kernels style: loads run ahead by that many."""
    tiles: Tiles = Field(default_factory=_default_tiles)
    """Tile shapes that the kernels style chooses from."""
    prologue: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """From the launch of a kernel that works on tiles to its first loads: parameters, addresses, barriers."""
    attention: Attention = Field(default_factory=lambda: Attention())
    """Kernels of attention."""
    expert_helpers: dict[Dtype, Count] = Field(default_factory=dict)
    """Small kernels before the first products of experts, which sort pairs of token and expert; by type of weights."""
    expert_gather: Literal["kernel", "inside"] = "inside"
    """Tokens are put in the order of their experts by a `kernel`, or products pick their rows themselves, `inside`.
    Products that unpack their weights always do."""
    expert_loop: Literal["once", "persistent"] = "once"
    """Products of experts: cores start anew for each tile, or go through theirs in one loop and load ahead."""
    expert_switch: Annotated[Fact, Quantity("time0")] | None = None
    """What a core takes before its first loads of another expert: descriptors of its operands are written anew."""
    expert_walk: Annotated[Fact, Quantity("time0")] | None = None
    """What a core takes to pass over one expert, where products with scales along the sum look for their tiles."""
    epilogue: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """From the last product of a tile to the store of its results: sums leave the unit, are converted and laid out."""
    step: Annotated[Fact, Quantity("cycles")] = default("cycles", "0 cycles")
    """A step of the main loop beside its products: waiting at the tile buffer's barrier, issue, dependent sums."""
    promotion: Promotion | None = None
    """How sums of block-scaled operands are scaled; none: by the matrix units, at no cost."""
    row_scale: Annotated[Fact, Quantity("cycles")] = default("cycles", "0 cycles")
    """Of a cast with one scale per row: from its elements to the scale; the row is then read again. 0: neither."""
    step_runs: Literal["under", "beside"] = "under"
    """The loop's own cycles go on `under` the products (other threads copy), or add to them, `beside`."""
    cluster_fact: Count = default_alias("cluster")
    """Cores that share the loads of an operand which they all need."""
    step_gap: Annotated[Fact, Quantity("time0")] = default("time0", "0 ns")
    """The host between two steps that sample a token: the token comes back, the next step is started."""
    host_gap: Annotated[Fact, Quantity("time0")] | None = None
    """From one kernel to the next where each is launched by the host and not by a graph on the chip."""
    apart: tuple[Literal["rope", "kv_append", "swiglu", "silu", "gelu"], ...] = ()
    """Ops that run as kernels of their own, not as part of the product or the attention beside them."""
    reduction: Literal["kernel", "inside"] = "inside"
    """Parts of a split sum are added by a `kernel` of its own, or `inside` by the last core of each tile."""
    notes: tuple[str, ...] = ()
    """What a reader of results should know."""

    @property
    def cluster(self) -> int:
        """Cores that share loads."""
        return int(self.cluster_fact.value)

    @property
    def stages(self) -> int | None:
        """Tile buffers of each core."""
        return None if self.stages_fact is None else int(self.stages_fact.value)
