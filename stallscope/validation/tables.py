"""Measured tables as cases: a CSV file is known by its columns, a row that is left out says why."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..arch import Chip
from ..errors import StallscopeError
from ..workloads.dtypes import dtype_of
from .cases import BY_ROW, COPIES, DTYPES, OPERANDS, SAME, Case
from .routed import is_routing

Row = dict[str, str]
MB = 10**6
MOST, MOST_TOKENS = 2**31, 2**20  # of anything counted in a row; of tokens whose experts are drawn
WEIGHTS = ((10 * MB, "under 10 MB"), (25 * MB, "10 to 25 MB"), (100 * MB, "25 to 100 MB"), (400 * MB, "100 to 400 MB"))
CACHES = ((16 * MB, "under 16 MB"), (256 * MB, "16 to 256 MB"))
PROMPTS = ((1024, "under 1,024 tokens"), (4096, "1,024 to 4,096 tokens"))
TOKENS = ((8, "under 8 tokens"), (64, "8 to 64 tokens"))
MESSAGES = ((32 * 1024, "under 32 KiB"), (1 << 20, "32 KiB to 1 MiB"))
CASTS = {("fp8", "trtllm"): 6}
"""Kernels beside the product that a row of that dtype and framework holds, where it is not the one that casts. A scale
per tensor that is found anew each time takes clearing, the maximum, the scale, the cast, and two on single numbers: so
many that the smallest products, 12.2 us against 2.6 in bf16, come out."""


HOSTED = {("fp8_block", "vllm"): 3}
"""Launches of a product whose rows hold the host's time and not that of a graph of the chip: they take 56 to 62 us at
any size from 64 columns and 128 terms to 1024 of both, up to 16 tokens. Three by these times and `host_gap`, thought to
be the cast, the layout of its scales and the product. At 128 tokens the rows take 80 us and more, for which no reason
is known: they come out too fast."""
LEAST = (64, 128)
"""Columns and terms below which those rows take 150 us and more: another path, not known here."""


class LeftOut(Exception):
    """A row that is not compared, and why."""


@dataclass
class Table:
    """A file's cases, and how many rows were left out for which reason."""

    name: str
    cases: list[Case] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Names:
    """Which chip a table means. Words are compared without case, spaces and punctuation; the first part of a name is
    enough where no other chip has it."""

    chips: dict[str, str]

    @classmethod
    def of(cls, chips: Collection[Chip], others: Iterable[str] = ()) -> Names:
        """The names that these chips go by, where chips of other names are known as well."""
        firsts = Counter(name.partition("-")[0] for name in {*(chip.name for chip in chips), *others})
        words = {
            _plain(word): chip.name
            for chip in chips
            for word in (chip.name.partition("-")[0], chip.name, *chip.also)
            if firsts[word] < 2
        }
        return cls(words)

    def __getitem__(self, word: str) -> str:
        """The chip's name. Raises LeftOut."""
        if _plain(word) not in self.chips:
            raise LeftOut(f"chip {word or '(none)'}")
        return self.chips[_plain(word)]


def _plain(word: str) -> str:
    return "".join(c for c in word.casefold() if c.isalnum())


def read_table(path: Path, chips: Names) -> Table:
    """All rows of a file.

    Raises StallscopeError for a file that cannot be read, has columns that are not known, no rows, a row of another
    length than its header, or no number where one is asked for.
    """
    table = Table(path.stem)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = csv.reader(file)
            header = next(lines, [])
            kind = _kind(path, header)
            for fields in filter(any, lines):
                try:
                    table.cases.append(kind.case(table.name, _row(header, fields), chips))
                except LeftOut as reason:
                    table.left_out[str(reason)] += 1
                except ValueError as problem:
                    raise StallscopeError(f"{path}:{lines.line_num}: {problem}; correct it") from None
    except OSError as problem:
        raise StallscopeError(f"{path}: cannot be read: {problem.strerror or problem}; check the path") from None
    except (UnicodeDecodeError, csv.Error) as problem:
        raise StallscopeError(f"{path}: is no CSV text in UTF-8: {problem}; check the file") from None
    if not table.cases and not table.left_out:
        raise StallscopeError(f"{path}: found no rows below its header; expected one at least; add them")
    return table


def _kind(path: Path, header: list[str]) -> Kind:
    if not header:
        raise StallscopeError(f"{path}:1: found no header; expected the names of columns; docs/validation.md has some")
    twice = next((name for name in header if header.count(name) > 1), None)
    if twice is not None:
        raise StallscopeError(f"{path}:1: found column {twice!r} twice; expected each once; rename or remove one")
    kind = next((k for k in KINDS if k.columns <= set(header)), None)
    if kind is None:
        known = "; ".join(f"{k.op}: {', '.join(sorted(k.columns))}" for k in KINDS)
        raise StallscopeError(
            f"{path}:1: found columns {', '.join(header)[:200]}; expected those of one of these ({known}); rename them"
        )
    return kind


def _row(header: list[str], fields: list[str]) -> Row:
    if len(fields) < len(header) or any(fields[len(header) :]):
        raise ValueError(f"found {len(fields)} fields; expected {len(header)}, as in the header")
    return dict(zip(header, fields, strict=False))


@dataclass(frozen=True)
class Kind:
    """One kind of table: the columns that it is known by, and what makes a case of a row."""

    op: str
    columns: frozenset[str]
    case: Callable[[str, Row, Names], Case]


def _dtype(word: str) -> str:
    if word not in DTYPES:
        raise LeftOut(f"dtype {word}")
    return DTYPES[word]


def _bucket(size: int, limits: tuple[tuple[int, str], ...], most: str) -> str:
    return next((name for limit, name in limits if size < limit), most)


def _number(row: Row, name: str) -> float:
    try:
        return float(row[name])
    except ValueError:
        raise ValueError(f"{name}: found {row[name][:60] or 'nothing'}; expected a number") from None


def _whole(row: Row, *names: str, least: int = 1) -> Iterator[int]:
    for name in names:
        value = _number(row, name)
        if not value.is_integer() or not least <= value <= MOST:
            raise ValueError(f"{name}: found {row[name]}; expected a whole number from {least} to {MOST:,}")
        yield int(value)


def _time(row: Row, name: str = "latency_ms") -> float:
    value = _number(row, name)
    if not 0 < value < math.inf:
        raise ValueError(f"{name}: found {row[name]}; expected milliseconds, more than 0")
    return value


def _gemm(table: str, row: Row, chips: Names) -> Case:
    m, n, k = _whole(row, "m", "n", "k")
    if row["dtype"] not in OPERANDS:
        raise LeftOut(f"products in {row['dtype']}")
    framework = row.get("framework", "").lower()
    weight, activation = OPERANDS[row["dtype"]]
    if activation == "fp8" and framework in ("vllm", "sglang"):
        activation = BY_ROW
    bucket = _bucket(dtype_of(weight).size((n, k)), WEIGHTS, "400 MB and more")
    casts = CASTS.get((row["dtype"], framework), 1) if activation not in ("bf16", "fp16") else 0
    launches = HOSTED.get((row["dtype"], framework), 0)
    if launches and (n < LEAST[0] or k < LEAST[1]):
        raise LeftOut(
            f"host launches of a product below {LEAST[0]} x {LEAST[1]}: too small for the block-scaled kernel"
        )
    ask = ("gemm", m, n, k, weight, activation, casts, COPIES, launches)
    chip, time = chips[row["gpu"]], _time(row)
    op = "gemm, host launch" if launches else "gemm"
    return Case(table, chip, op, row["dtype"], bucket, f"m {m}, n {n}, k {k}", time, ask)


def _attention(table: str, row: Row, chips: Names) -> Case:
    batch, context, heads, kv_heads, dim = _whole(row, "batch", "context", "n_heads", "n_kv_heads", "head_dim")
    kv = _dtype(row["kv_dtype"])
    size = 2 * batch * context * kv_heads * dim * (1 if kv == "fp8" else 2)
    bucket = _bucket(size, CACHES, "256 MB and more")
    ask = ("attention", batch, context, heads, kv_heads, dim, kv, SAME)
    name = f"batch {batch}, context {context}, heads {heads}/{kv_heads}"
    chip, time = chips[row["gpu"]], _time(row)
    return Case(table, chip, "decode attention", row["kv_dtype"], bucket, name, time, ask)


def _prefill(table: str, row: Row, chips: Names) -> Case:
    batch, prompt, heads, kv_heads, dim = _whole(
        row, "batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim"
    )
    q, kv = _dtype(row["attn_dtype"]), _dtype(row["kv_cache_dtype"])
    bucket = _bucket(prompt, PROMPTS, "4,096 tokens and more")
    name = f"batch {batch}, {prompt} tokens, heads {heads}/{kv_heads}"
    ask = ("prefill attention", batch, prompt, heads, kv_heads, dim, q, kv)
    chip, time = chips[row["gpu"]], _time(row)
    return Case(table, chip, "prefill attention", row["attn_dtype"], bucket, name, time, ask)


def _latent(table: str, row: Row, chips: Names) -> Case:
    batch, context, heads = _whole(row, "batch", "context", "num_heads")
    kv = _dtype(row["kv_cache_dtype"])
    bucket = _bucket(batch * context * 576 * (1 if kv == "fp8" else 2), CACHES, "256 MB and more")
    ask = ("mla", batch, context, heads, kv, SAME)
    chip, time = chips[row["gpu"]], _time(row)
    name = f"batch {batch}, context {context}, heads {heads}"
    return Case(table, chip, "mla", row["kv_cache_dtype"], bucket, name, time, ask)


FORMATS = {
    "bfloat16": ("bf16", False, 0),
    "fp8": ("fp8", True, 2),
    "fp8_block": ("fp8/128x128s32", True, 0),
    "w4a16_mxfp4": ("mxfp4", False, 27),
}
"""Formats of experts' weights: ours, whether activations are cast to 8 bits, and kernels on single numbers that the
rows hold beside those of any mixture. fp8: scales of both products' results. mxfp4: another library, whose router is
built of small operations; so many that the rows of one expert, 75 us, come out."""


def _moe(table: str, row: Row, chips: Names) -> Case:
    tokens, hidden, inner, top_k, count, tp, ep = _whole(
        row, "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size"
    )
    for name, part, whole in (("topk", top_k, count), ("num_tokens", tokens, MOST_TOKENS)):
        if part > whole:
            raise ValueError(f"{name}: found {part}; expected at most {whole:,}")
    for name, ways, whole in (("moe_tp_size", tp, inner), ("moe_ep_size", ep, count)):
        if whole % ways:
            raise ValueError(f"{name}: found {ways}; expected a divisor of {whole:,}")
    if row["moe_dtype"] not in FORMATS:
        raise LeftOut(f"experts in {row['moe_dtype']}")
    weight, cast, beside = FORMATS[row["moe_dtype"]]
    word = row["distribution"]
    if not is_routing(word):
        raise LeftOut(f"experts chosen by {word or '(nothing)'}")
    ask = ("moe", tokens, hidden, inner // tp, top_k, count, ep, word, weight, cast, beside)
    chip, time = chips[row["gpu"]], _time(row)
    like = f"{row['model_like']}, " if row.get("model_like") else ""
    name = f"{like}{tokens} tokens, tp {tp}, ep {ep}, {word}"
    return Case(table, chip, "moe", row["moe_dtype"], _bucket(tokens, TOKENS, "64 tokens and more"), name, time, ask)


def _collective(table: str, row: Row, chips: Names) -> Case:
    (ways,), (nbytes,) = _whole(row, "num_gpus", least=2), _whole(row, "message_bytes")
    if row["op"] != "all_reduce":
        raise LeftOut(row["op"])
    launches = 1 if "eager" in row["impl"] else 0
    bucket = _bucket(nbytes, MESSAGES, "1 MiB and more")
    ask = ("all-reduce", nbytes, ways, launches)
    chip, time = chips[row["gpu"]], _time(row)
    op = "all-reduce, host launch" if launches else "all-reduce"
    return Case(table, chip, op, "bf16", bucket, f"{ways} chips, {nbytes:,} B, {row['impl']}", time, ask)


def _step(table: str, row: Row, chips: Names) -> Case:
    if row["spec_decode"] not in ("", "0", "0.0"):
        raise LeftOut("speculative decoding")
    if not (row["n_devices"] and row["tpot_ms"] and row["isl"] and row["batch"]):
        raise LeftOut("chips, time, batch or prompt not stated")
    dtype = {"bf16/fp16": "bf16", "? (not recorded)": "bf16"}.get(row["dtype"], row["dtype"])
    if dtype not in ("bf16", "fp8", "fp4"):
        raise LeftOut(f"{row['model']} in {row['dtype']}")
    chip = chips[row["hardware"]]
    ways, batch, prompt = _whole(row, "n_devices", "batch", "isl")
    (out,) = _whole(row, "osl", least=0) if row["osl"] else (0,)
    how = (
        "request" if row["metric"].startswith("request latency") else "served" if "concurrency" in row["metric"] else ""
    )
    ask = ("step", model_name(row["model"]), ways, dtype, batch, prompt, out, how)
    name = f"{row['model']} on {ways}, {row['framework']}, batch {batch}, {prompt} + {out} tokens"
    return Case(table, chip, "step", row["dtype"], row["framework"] or "all", name, _time(row, "tpot_ms"), ask)


def model_name(word: str) -> str:
    """The catalogue's name of a model as tables write it."""
    return word.lower().removeprefix("meta-").removesuffix("-instruct")


KINDS = (
    Kind("gemm", frozenset(("gpu", "dtype", "m", "n", "k", "latency_ms")), _gemm),
    Kind(
        "decode attention",
        frozenset(("gpu", "kv_dtype", "batch", "context", "n_heads", "n_kv_heads", "head_dim", "latency_ms")),
        _attention,
    ),
    Kind(
        "prefill attention",
        frozenset(
            ("gpu", "attn_dtype", "kv_cache_dtype", "batch_size", "isl", "num_heads", "num_key_value_heads",
             "head_dim", "latency_ms")
        ),
        _prefill,
    ),
    Kind(
        "mla", frozenset(("gpu", "kv_cache_dtype", "num_heads", "batch", "context", "latency_ms", "mla_dtype")), _latent
    ),
    Kind(
        "moe",
        frozenset(
            ("gpu", "moe_dtype", "num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size",
             "moe_ep_size", "distribution", "latency_ms")
        ),
        _moe,
    ),
    Kind("all-reduce", frozenset(("gpu", "op", "impl", "num_gpus", "message_bytes", "latency_ms")), _collective),
    Kind(
        "step",
        frozenset(
            ("model", "dtype", "hardware", "n_devices", "framework", "batch", "isl", "osl", "tpot_ms", "metric",
             "spec_decode")
        ),
        _step,
    ),
)  # fmt: skip
