"""Tile shapes, and the cycles that a unit takes for a tile: the documented formulas (docs/units.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..arch import Chip
from ..arch.parts import AttentionParts, MaskedKernel
from ..workloads import DTYPE_BITS
from ..workloads.dtypes import dtype_of, element_of
from .matrix import unit_cycles
from .program import FS_PER_S, Ints, ints

PARTIAL = 4  # bytes of a partial sum: fp32
UNPACK_OPS = 1  # elementwise operations per weight: a conversion, its scale a factor of the same instruction
MIN_TOKENS = 64  # keys of one attention tile: fewer leave the matrix unit's n granule half empty
SPLITS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 14, 16, 18, 20, 24, 28, 32)
LEAST_STEPS = 4  # of a part of a split sum
PIECES = 16384  # of a kernel: steps of longer ones are simulated several at a time


def matrix_dtype(chip: Chip, weight: str, activation: str) -> str:
    """What a product is computed in: the wider of its operands, or the next wider that the chip has."""
    weight, activation = element_of(weight), element_of(activation)
    wider = weight if DTYPE_BITS[weight] > DTYPE_BITS[activation] else activation
    return chip.compute_dtype(weight if weight == activation else wider)


def matrix_fs(chip: Chip, dtype: str, m: Any, n: Any, k: Any, units: Any = 1) -> Ints:
    """Time of m x n x k multiply-adds on `units` matrix units, in whole cycles (docs/units.md).

    m, n, k and units may be arrays; units may be a share of one.
    """
    return unit_cycles(chip, dtype, m, n, k, units) * chip.period_fs


def vector_fs(chip: Chip, ops: Any, special: Any, units: float = 1) -> Ints:
    """Time of elementwise and special operations on `units` vector units, in whole cycles, at least one."""
    v = chip.vector
    cycles = np.ceil(ints(ops) / (float(v.ops_per_cycle.value) * units))
    cycles = cycles + np.ceil(ints(special) / (float(v.special_per_cycle.value) * units))
    return ints(np.maximum(cycles, 1)) * chip.period_fs


def unpack_fs(chip: Chip, stored: str, computed: str, elements: Any, units: float = 1) -> Ints | None:
    """Time of vector units to make what a product is computed in of weights that are stored otherwise.

    None where a unit takes the weights as they are.
    """
    if element_of(stored) in (computed, *chip.matrix.mixed.get(computed, ())):  # type: ignore[call-overload]
        return None
    return vector_fs(chip, UNPACK_OPS * ints(elements), 0, units)


def promoted_terms(chip: Chip, stored: str, computed: str) -> int:
    """Terms of a sum between two promotions by the vector units; 0 where there are none: weights without scales along
    the sum, scaled as they are unpacked, or by the matrix units."""
    inputs = dtype_of(stored).inputs
    scaled = chip.execution.promotion is not None and element_of(stored) == computed
    return inputs if scaled and inputs else 0


def promote_fs(chip: Chip, every: int, rows: int, columns: int, terms: Any) -> Ints | None:
    """Time of the vector unit to promote the sums of a tile every so many of `terms`; None where that is never."""
    return vector_fs(chip, rows * columns * -(-ints(terms) // every), 0) if every else None


def operand_bytes(dtype: str, elements: Any) -> Ints:
    """Bytes of so many elements and their scales, in proportion."""
    known = dtype_of(dtype)
    scales = known.block_bits if known.inputs else 0
    block = (known.outputs or 1) * (known.inputs or 1)
    return ints(-(-ints(elements) * (known.bits * block + scales) // (8 * block)))


def latency_fs(chip: Chip, unit: str) -> int:
    """Pipeline latency of a unit."""
    return round(float(getattr(chip, unit).latency.value)) * chip.period_fs


def shares(total: Any, parts: int) -> Ints:
    """A whole number cut into parts that differ by at most one, the sum exact."""
    edges = ints(total) * np.arange(parts + 1, dtype=np.int64) // parts
    return edges[1:] - edges[:-1]


@dataclass(frozen=True)
class Product:
    """A product as the choice of tiles sees it: m x n x k, bits of an element of each operand, the dtype that it is
    computed in, and the tier that the weights come from."""

    m: int
    n: int
    k: int
    weight_bits: int
    bits: int
    dtype: str
    home: str
    promoted: int = 0
    """Terms of the sum between two promotions; 0: none."""


@dataclass(frozen=True)
class GemmTiles:
    """Tiles of `rows` x `columns`, the sum cut into `split` parts; each part is `steps` steps of `depth` terms."""

    rows: int
    columns: int
    split: int
    steps: int
    depth: int
    stages: int
    """Tile buffers that fit into a core."""


def gemm_tiles(chip: Chip, p: Product, splits: tuple[int, ...] = SPLITS) -> GemmTiles:
    """The tiles and split of least estimated time; ties: fewer parts, then larger tiles. Promoted sums stay whole."""
    best: tuple[tuple[float, int, int], GemmTiles] | None = None
    for rows, columns, depth, stages in _shapes(chip, p):
        loop = float(step_fs(chip, p.dtype, rows, columns, depth, promoted=p.promoted).max())
        promotion = promote_fs(chip, p.promoted, rows, columns, depth)
        loop += 0.0 if promotion is None else float(promotion.max())
        for split in splits[:1] if p.promoted else splits:
            steps = -(-p.k // (split * depth))
            if split > 1 and steps < LEAST_STEPS:
                break
            tiles = GemmTiles(rows, columns, split, steps, depth, stages)
            cost = (estimate_fs(chip, p, tiles, loop), split, -rows * columns)
            if best is None or cost < best[0]:
                best = cost, tiles
    assert best is not None
    return best[1]


def _shapes(chip: Chip, p: Product) -> Iterator[tuple[int, int, int, int]]:
    """Rows, columns, depth and tile buffers of the tiles worth trying: no larger than the product needs."""
    promotion = chip.execution.promotion
    tiles = promotion.tiles if promotion and p.promoted else chip.execution.tiles
    depth = max(1, tiles.depth * 8 // max(p.weight_bits, p.bits))
    memory = int(chip.tiers[0].capacity.value)
    enough = [_enough({s[side] for s in tiles.shapes}, size) for side, size in ((0, p.m), (1, p.n))]
    shapes = [s for s in tiles.shapes if s[0] <= enough[0] and s[1] <= enough[1]] or [min(tiles.shapes)]
    for r, c in shapes:
        stage = (r * p.bits + c * p.weight_bits) * depth // 8
        yield r, c, depth, max(1, min(chip.execution.stages or 2, memory // max(stage, 1)))


def _enough(sides: set[int], size: int) -> int:
    """The smallest side that covers a size, or the largest."""
    return min((s for s in sides if s >= size), default=max(sides))


def step_fs(chip: Chip, dtype: str, rows: Any, columns: Any, terms: Any, steps: Any = 1, promoted: int = 0) -> Ints:
    """Time of `steps` steps of a kernel's main loop, `terms` of the sum in all: products at the rate that the unit
    sustains, and the loop's own cycles under or beside them. `promoted`: terms between two promotions of the sums."""
    share = chip.matrix.availability.get(dtype)  # type: ignore[call-overload]
    products = unit_cycles(chip, dtype, rows, columns, terms)
    if share is not None:
        products = ints(np.ceil(products / float(share.value)))
    own = ints(steps) * int(chip.execution.step.value)
    if promoted and chip.execution.promotion:
        own = own + -(-ints(terms) // promoted) * int(chip.execution.promotion.chain.value)
    return ints(np.maximum(products, own) if chip.execution.step_runs == "under" else products + own) * chip.period_fs


def estimate_fs(chip: Chip, p: Product, t: GemmTiles, step: float) -> float:
    """What a library's heuristic would think of a choice: waves of tiles, each as long as its slowest resource. `step`:
    time of a step of the main loop."""
    cores, home, near = int(chip.cores.value), chip.tier(p.home), next(c for c in chip.tiers if c.scope == "chip")
    row_tiles, column_tiles = -(-p.m // t.rows), -(-p.n // t.columns)
    ctas = row_tiles * column_tiles * t.split
    latency = float(home.latency.value) + float(chip.load.copy_latency.value)
    terms = t.steps * t.depth
    weights = min(t.columns, p.n) * terms * p.weight_bits / 8
    operand = min(t.rows, p.m) * terms * p.bits / 8 / min(chip.execution.cluster, column_tiles)
    window = latency * t.steps / t.stages
    port = chip.load.port
    through = (weights + operand) * chip.period_fs / float(port.value) if port else 0.0
    alone = max(step * t.steps, window, through)
    far = FS_PER_S / (float(home.bandwidth.value) * float(home.availability.value if home.availability else 1))
    close = FS_PER_S / float(near.bandwidth.value)

    def wave(n: int) -> float:
        return max(alone, n / row_tiles * weights * far, n * (weights + operand) * close)

    whole, rest = divmod(ctas, cores)
    time = whole * wave(cores) + (wave(rest) if rest else 0.0)
    time = max(time, p.n * p.k * p.weight_bits / 8 * far)
    if t.split > 1:
        e = chip.execution
        launch = float(e.launch_gap.value) if e.reduction == "kernel" else 0.0
        time += launch + 2 * float(near.latency.value) + 2 * t.split * p.m * p.n * PARTIAL * close
    return time


def attention_parts(cores: int, parts: AttentionParts, pairs: int, tokens: int) -> int:
    """Parts of the tokens of each of `pairs` sequences and KV heads by a library's rule."""
    most = tokens // parts.tokens
    most = max(1, min(most, round(float(np.sqrt(parts.spread * most)))))
    return max(1, min(most, parts.waves * cores // pairs))


def masked_parts(cores: int, masked: MaskedKernel, blocks: int, tokens: int) -> tuple[int, int]:
    """Parts of the tokens of each of `blocks` heads, and the blocks that share a core: as many parts as give every
    core one, but none that leaves threads without a token. Few blocks are large ones."""
    most = int(masked.resident.value)
    larger = min(-(-most * cores // blocks), most)
    resident = next(n for n in range(1, most + 1) if most % n == 0 and n * larger >= most)
    at_once = int(masked.tokens.value) * int(masked.loads.value) // resident
    return max(1, min(-(-cores // blocks), -(-(tokens + 1) // at_once))), resident


@dataclass(frozen=True)
class Flash:
    """A kernel of decode attention as the choice of its parts sees it."""

    home: str
    """Tier of the cache."""
    blocks: int
    """[sequence, KV head], or more where several share the query heads of a KV head."""
    readers: int
    """Blocks that read the same keys and values."""
    tokens: int
    tile: int
    """Tokens of a step."""
    token_bytes: float
    step_fs: int
    stages: int
    """Buffers for tiles."""
    start_fs: int
    """Of a part's beginning."""
    partial: int
    """Bytes of a part's result."""


def attention_split(chip: Chip, f: Flash) -> int:
    """Into how many parts the cached tokens of each block are cut: those of least estimated time; ties: fewer."""
    cores, tier, near = int(chip.cores.value), chip.tier(f.home), next(c for c in chip.tiers if c.scope == "chip")
    e = chip.execution
    far = FS_PER_S / (float(tier.bandwidth.value) * float(tier.availability.value if tier.availability else 1))
    latency = float(tier.latency.value) + float(chip.load.copy_latency.value)
    port = chip.load.port
    through = f.tile * f.token_bytes * chip.period_fs / float(port.value) if port else 0.0
    each = max(float(f.step_fs), through, latency / f.stages)
    best: tuple[float, int] | None = None
    for split in range(1, max(1, min(-(-f.tokens // f.tile), 2 * cores // f.blocks)) + 1):
        steps = -(-f.tokens // (split * f.tile))
        waves = -(-f.blocks * split // cores)
        time = waves * (f.start_fs + latency + float(e.epilogue.value) + steps * each)
        time = max(time, f.start_fs + latency + f.blocks // f.readers * f.tokens * f.token_bytes * far)
        if split > 1:
            sums = 2 * split * f.blocks * f.partial * FS_PER_S / float(near.bandwidth.value)
            time += 2 * float(near.latency.value) + sums
            time += float(e.launch_gap.value) if e.reduction == "kernel" else 0.0
        if best is None or (time, split) < best:
            best = time, split
    assert best is not None
    return best[1]


def stage_bytes(chip: Chip) -> int:
    """Size of one tile buffer: the cores' memory shared out over the stages, with one share left for operands and
    results."""
    memory = int(chip.tiers[0].capacity.value)
    stages = chip.execution.stages or 2
    return 1 << max((memory // (stages + 1)).bit_length() - 1, 8)
