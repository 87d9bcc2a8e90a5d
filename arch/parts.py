"""The parts of a chip file: units, memories, links, execution (docs/chips.md explains every key)."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from ..errors import StallscopeError
from .fact import NO_SOURCE, ORIGINS, Fact, Quantity, Strict, problem, read_origin

if TYPE_CHECKING:
    from .dram import DramPreset

# Stated bandwidths are rounded, and memories run a little below the grade that they are sold in.
DRAM_TOLERANCE = 0.05

Dtype = Literal["fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4", "int4"]
TensorKind = Literal["weight", "expert", "kv", "activation", "embedding"]
Topology = Literal["switch", "all-to-all", "ring", "dragonfly"]

Count = Annotated[Fact, Quantity("count")]
Size = Annotated[Fact, Quantity("bytes")]
Bandwidth = Annotated[Fact, Quantity("bandwidth")]
Time = Annotated[Fact, Quantity("time")]
Cycles = Annotated[Fact, Quantity("cycles")]
BytesPerCycle = Annotated[Fact, Quantity("bytes_per_cycle")]
OpsPerCycle = Annotated[Fact, Quantity("ops_per_cycle")]
EnergyPerBit = Annotated[Fact, Quantity("energy_per_bit")]


def _default(kind: str, text: str) -> Any:
    return Field(default_factory=lambda: Quantity(kind).read({"value": text, "assumed": "the default"}))


def _default_alias(alias: str) -> Any:
    return Field(alias=alias, default_factory=lambda: Quantity("count").read({"value": 1, "assumed": "the default"}))


class Source(Strict):
    """Where numbers come from."""

    title: str = Field(min_length=1)
    """What it is, as a reader would look for it."""
    url: str = ""
    """Where to find it; empty for what is not on the web."""


class Stated(Strict):
    """Whole numbers that share one origin."""

    source: str | None = None
    derived: str | None = None
    assumed: str | None = None
    note: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_origin(cls, data: Any) -> Any:
        if isinstance(data, dict):
            if not any(key in data for key in ORIGINS):
                data = {**data, "assumed": NO_SOURCE}
            read_origin(data)
        return data


class Granule(Stated):
    """The smallest product that the matrix unit works on; smaller ones are padded up to it."""

    m: int = Field(ge=1, le=2**20)
    """Rows of the activation: tokens."""
    n: int = Field(ge=1, le=2**20)
    """Columns of the output."""
    k: int = Field(ge=1, le=2**20)
    """Length of the sum."""


class Array(Stated):
    """Shape of a systolic array."""

    rows: int = Field(ge=1, le=2**20)
    """Rows: the length of the sum that the array holds."""
    cols: int = Field(ge=1, le=2**20)
    """Columns: outputs that the array holds."""


class Matrix(Strict):
    """The matrix units of a core."""

    count: Count
    """Units in one core."""
    macs_per_cycle: dict[Dtype, Annotated[Fact, Quantity("macs_per_cycle")]] = Field(min_length=1)
    """Multiply-adds per cycle of one unit, dense, for each dtype that it has."""
    granule: Granule
    """The smallest product that it works on."""
    latency: Cycles
    """From the end of a tile's issue to its result."""
    weight_buffers_fact: Count = Field(alias="weight_buffers")
    """1 or 2: with two, the next weights are loaded while the present ones are used."""
    array: Array | None = None
    """Shape of the array, where it is one."""
    dataflow: Literal["ws", "os", "is", "mxm"] | None = None
    """How an array is used (docs/units.md): what stays in a systolic one, or `mxm`. Without it: a MAC array."""
    granules: dict[Dtype, Granule] = Field(default_factory=dict)
    """Of dtypes whose smallest product is another."""
    mixed: dict[Dtype, tuple[Dtype, ...]] = Field(default_factory=dict)
    """Narrower dtypes that weights may have beside an activation of that dtype, without being unpacked."""
    availability: dict[Dtype, Annotated[Fact, Quantity("fraction")]] = Field(default_factory=dict)
    """Share of the peak rate that the unit sustains (power, issue), by dtype; slows the unit, not the bound."""

    @model_validator(mode="after")
    def _consistent(self) -> Matrix:
        if self.weight_buffers not in (1, 2):
            raise problem(f"found {self.weight_buffers}; expected 1 or 2; 2 is double buffering", ("weight_buffers",))
        if self.dataflow is not None and self.array is None:
            raise problem(f"found {self.dataflow} and no array; add 'array: {{rows: .., cols: ..}}'", ("dataflow",))
        for dtype in self.granules:
            if dtype not in self.macs_per_cycle:
                raise problem("macs_per_cycle has no such dtype; add a rate or drop this", ("granules", dtype))
        return self

    def granule_of(self, dtype: str) -> Granule:
        """The smallest product in that dtype."""
        return self.granules.get(dtype, self.granule)  # type: ignore[call-overload, no-any-return]

    @property
    def weight_buffers(self) -> int:
        """1 or 2."""
        return int(self.weight_buffers_fact.value)


class Vector(Strict):
    """The vector units of a core."""

    count: Count
    """Units in one core."""
    ops_per_cycle: OpsPerCycle
    """Elementwise operations per cycle of one unit (a fused multiply-add is one)."""
    special_per_cycle: OpsPerCycle
    """Exponentials, reciprocal square roots and their like per cycle of one unit."""
    latency: Cycles
    """From the end of issue to the result."""


class Port(Strict):
    """An engine that moves data between the tiers and a core (of a chip, in the static and dataflow styles)."""

    bytes_in_flight: Size | None = None
    """Bytes asked for and not yet there, at most; without it there is no limit."""
    port: BytesPerCycle | None = None
    """Bytes per cycle through its own port; without it only the tiers limit."""
    copy_latency: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """What copying a piece of a tile takes beyond a plain load: set-up, address generation, telling of its end."""


class DramTiming(Stated):
    """The DRAM behind a tier: every controller with its banks, queues and refresh (docs/dram.md)."""

    preset: str = Field(min_length=1)
    """Name or path of a DRAM preset."""
    channels: int = Field(ge=1, le=2**16)
    """Channels of all devices together; pseudo-channels are the preset's."""
    mapping: str = "RoBaCoBg"
    """Order of address fields behind one controller."""
    refresh: Literal["all-bank", "per-bank", "none"] = "all-bank"
    """How banks are refreshed."""
    queue: int = Field(default=32, ge=1, le=4096)
    """Reads, and writes, that wait at one controller at most."""

    @model_validator(mode="after")
    def _exists(self) -> DramTiming:
        from .mapping import make_mapping

        for field, check in (
            ("preset", lambda: self.device),
            ("mapping", lambda: make_mapping(self.mapping, self.device)),
            ("refresh", lambda: self.device.refresh_ticks(self.refresh)),
        ):
            try:
                check()
            except StallscopeError as e:
                raise problem(str(e), (field,)) from e
        return self

    @property
    def device(self) -> DramPreset:
        """The preset."""
        from .dram import load_dram

        return load_dram(self.preset)

    @property
    def controllers(self) -> int:
        """Controllers, each with its own queues."""
        return self.channels * self.device.pseudochannels // self.device.together


class Tier(Strict):
    """A memory that holds tensors."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=24)
    """Its name in reports: small letters, digits and _."""
    scope: Literal["core", "chip", "host"]
    """`core`: one in every core; `chip`: shared by all cores; `host`: beyond the package, shared."""
    capacity: Size
    """Bytes of one: of each core's in scope `core`, else of the whole."""
    bandwidth: Bandwidth
    """Peak read rate of the whole tier (in scope `core`: of all cores together)."""
    write_bandwidth: Bandwidth | None = None
    """Peak write rate, where it is another."""
    latency: Time
    """Load to use, as seen from the core, all in all; not what this tier adds to the one before."""
    lanes_fact: Count = _default_alias("lanes")
    """Servers that share the bandwidth evenly: stacks, channels. The address picks the lane."""
    interleave: Size = _default("bytes", "4 KiB")
    """Neighbouring bytes on one lane before the next lane's turn."""
    chunk: Size = _default("bytes", "4 KiB")
    """The piece in which transfers claim lanes: smaller is finer and slower to simulate."""
    holds: tuple[TensorKind, ...] = ()
    """Tensor kinds that may be placed here."""
    availability: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of time in which it can serve (1 - tRFC/tREFI for refresh); slows the lanes, not the bound."""
    reuse: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the capacity in which what is read again and again is still found (`--warm`)."""
    energy: EnergyPerBit | None = None
    """Energy of reading or writing a bit."""
    timing: Literal["fixed", "dram"] = "fixed"
    """`fixed`: a rate and a latency; `dram`: banks, rows, buses and refresh of `dram`, command by command."""
    dram: DramTiming | None = None
    """The DRAM behind it, for timing `dram`. Its clock follows from `bandwidth`; its times count in that clock."""

    @model_validator(mode="after")
    def _one_dram(self) -> Tier:
        if self.dram is None:
            if self.timing == "dram":
                raise problem("is 'dram', but there is no 'dram:'; expected one with its preset; add it", ("timing",))
            return self
        if self.write_bandwidth is not None or self.scope == "core":
            raise problem("stands beside 'write_bandwidth' or 'scope: core'; expected one or none; mend it", ("dram",))
        own = self.dram.controllers * self.dram.device.peak_bytes_per_s
        if abs(own / self.bandwidth.value - 1) > DRAM_TOLERANCE:
            raise problem(
                f"{self.dram.channels} channels of {self.dram.preset} move {own / 1e9:.0f} GB/s, and the bandwidth is "
                f"{self.bandwidth}; expected them within {DRAM_TOLERANCE:.0%}; mend one of the three",
                ("dram", "channels"),
            )
        return self

    @property
    def lanes(self) -> int:
        """Servers that share the bandwidth: the controllers of timing `dram`, else `lanes`."""
        dram = self.simulated_dram
        return int(self.lanes_fact.value) if dram is None else dram.controllers

    @property
    def simulated_dram(self) -> DramTiming | None:
        """The DRAM that is simulated command by command; None with timing `fixed`."""
        return self.dram if self.timing == "dram" else None

    @property
    def dram_tick_fs(self) -> int:
        """One tick of the DRAM at which its data buses move exactly `bandwidth`, in femtoseconds, rounded."""
        if self.dram is None:
            raise StallscopeError(f"tier {self.name}: has no 'dram:'; expected one; add it")
        peak = self.dram.controllers * self.dram.device.peak_bytes_per_tick
        return round(peak * 10**15 / Fraction(self.bandwidth.value))


class Link(Strict):
    """The way to other chips."""

    name: str = Field(min_length=1, max_length=24)
    """Its name in reports."""
    bandwidth: Bandwidth
    """One direction, of one chip, all its links together."""
    latency: Time
    """One hop, memory to memory, the flag that tells of its arrival included."""
    topology: Topology
    """How the chips of a node are joined."""
    peer: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """What each chip beyond the second adds to a step of a collective: its flag is set and waited for."""
    availability: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the rate that collectives reach (packets, acknowledgements); slows the lanes, not the bound."""
    lanes_fact: Count = _default_alias("lanes")
    """Servers that share the bandwidth evenly."""
    chunk: Size = _default("bytes", "4 KiB")
    """The piece in which transfers claim lanes."""
    energy: EnergyPerBit | None = None
    """Energy of moving a bit to the next chip."""

    @property
    def lanes(self) -> int:
        """Servers that share the bandwidth."""
        return int(self.lanes_fact.value)


class Node(Strict):
    """A group of tightly linked chips."""

    chips: Count
    """Chips in it: the largest tensor-parallel split that the compiler chooses by itself."""


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


class AttentionParts(Stated):
    """How a library cuts the cached tokens of a sequence and KV head into parts, each a block of its own."""

    tokens: int = Field(ge=1, le=2**20)
    """Of a part at least."""
    spread: int = Field(ge=1, le=2**20)
    """With n parts of so many tokens, at most the root of `spread` x n are made: what is summed behind stays small."""
    waves: int = Field(ge=1, le=2**10)
    """Blocks of all sequences at most, in multiples of the cores."""


class AttentionKernel(Strict):
    """A kernel of decode attention on the matrix units."""

    helpers: Count | None = None
    """Small kernels that run before it in every step: offsets of the sequences, plans of the parts."""
    prologue: Annotated[Fact, Quantity("time0")] | None = None
    """From its launch to its first blocks; as of products where it is left out."""
    start: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """From there, or from the end of the block before on its core, to a block's first loads."""
    head: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """Of a block, for each of its query heads, on the unit: its positions, its conversion, its results."""
    resident: Count = _default("count", "1")
    """Blocks that a core works on at once."""
    rows: Count | None = None
    """Query heads of a block, where not all of a KV head: the other blocks find its keys and values nearer."""
    tile: Count = _default("count", "64")
    """Tokens of a step."""
    buffers: Count | None = None
    """Tiles of a block that are on their way or waiting; as `stages` where it is left out."""
    join: Annotated[Fact, Quantity("time0")] | None = None
    """The last block of a sequence and KV head adds the parts; this is its wait for them all. Without it `reduction`
    says who adds."""
    merge: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """What each part adds to that."""
    appends: bool = False
    """Whether rotary positions and the append to the cache are its own work, and no kernel before it."""
    least: Annotated[Fact, Quantity("fraction")] | None = None
    """Share of the cores that its parts must fill; for fewer the `masked` kernel runs."""


class MaskedKernel(Strict):
    """A kernel of decode attention on the vector units: a block for each query head of a sequence. It makes positions
    and appends itself. It runs where each query head has a KV head of its own."""

    prologue: Annotated[Fact, Quantity("time0")]
    """From its launch to its first blocks."""
    start: Annotated[Fact, Quantity("time0")]
    """From there, or from the end of the block before on its core, to a block's first loads."""
    head: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """Of a block on the unit, beside its tokens: positions, sums over all threads, results."""
    join: Annotated[Fact, Quantity("time0")]
    """The wait of the last block for the parts of a head."""
    tokens: Count
    """Tokens that all threads of a core take at once."""
    loads: Count
    """Such tokens that are on their way: the loop is unrolled so often."""
    resident: Count
    """Blocks that share a core at most; fewer, larger ones where they are few."""
    ops: dict[Dtype, Count] = Field(min_length=1)
    """Vector operations for each element of keys and values, by dtype of the cache: conversion, product, sum."""


class FlashKernel(Strict):
    """The kernel of attention of prompts: where a sequence's new tokens fill a block of query rows."""

    helpers: Count | None = None
    """Small kernels that run before it: offsets of the sequences, a counter of blocks."""
    prologue: Annotated[Fact, Quantity("time0")] | None = None
    """From its launch to its first loads; as of products where it is left out."""
    softmax: Literal["under", "beside"] = "under"
    """The vector units' work on scores goes on `under` the products, or adds to them, `beside`."""
    split: bool = True
    """Whether the keys of a block of several tokens are split over cores where blocks are too few."""


class Attention(Strict):
    """How attention is run."""

    parts: AttentionParts | None = None
    """How tokens of `grouped` are cut into parts; without it, and of latents, by least estimated time."""
    grouped: dict[Dtype, AttentionKernel] = Field(default_factory=dict)
    """Of query heads that share KV heads, by dtype of the cache; as products where it is left out."""
    latent: AttentionKernel | None = None
    """Of latents; as products where it is left out."""
    flash: FlashKernel = Field(default_factory=FlashKernel)
    """Of prompts."""
    masked: MaskedKernel | None = None
    """Of query heads with their own KV heads, and of what is too small for `grouped`."""


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
    prologue: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
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
    epilogue: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
    """From the last product of a tile to the store of its results: sums leave the unit, are converted and laid out."""
    step: Annotated[Fact, Quantity("cycles")] = _default("cycles", "0 cycles")
    """A step of the main loop beside its products: waiting at the tile buffer's barrier, issue, dependent sums."""
    promotion: Promotion | None = None
    """How sums of block-scaled operands are scaled; none: by the matrix units, at no cost."""
    row_scale: Annotated[Fact, Quantity("cycles")] = _default("cycles", "0 cycles")
    """Of a cast with one scale per row: from its elements to the scale; the row is then read again. 0: neither."""
    step_runs: Literal["under", "beside"] = "under"
    """The loop's own cycles go on `under` the products (other threads copy), or add to them, `beside`."""
    cluster_fact: Count = _default_alias("cluster")
    """Cores that share the loads of an operand which they all need."""
    step_gap: Annotated[Fact, Quantity("time0")] = _default("time0", "0 ns")
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
