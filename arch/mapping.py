"""Address mappings of a DRAM channel: which bits of a burst's number are its row, bank, column.

A mapping is a list of fields, most significant first: Ro row, Ba bank, Bg bank group, Si stack id, Ra rank, Pc
pseudo-channel, Ch channel, Co column, and Cn (C1, C2, ...) n low bits of the column, of which Co is then the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import StallscopeError
from .dram import DramPreset
from .fact import unknown

Numbers = NDArray[np.int64]

NAMED = {
    "RoBaBgCo": "RoBaBgSiPcRaCo",
    "RoBaCoBg": "RoBaSiRaCoBgPc",
    "RoBaCoBgC1": "RoBaSiRaCoBgC1Pc",
    "RoCoBaBg": "RoCoBaBgSiRaPc",
    "MOP4CLXOR": "RoCoBaBgSiPcC2",
}
"""Names that stand for a whole list of fields."""
HASHED = ("MOP4CLXOR",)
"""Those whose bank-ish fields and row are XORed with successive bits of the column, from its lowest."""
_HASH_ORDER = ("pseudochannel", "sid", "bank_group", "bank", "row")

FIELDS = {
    "ro": "row",
    "ba": "bank",
    "bg": "bank_group",
    "si": "sid",
    "ra": "rank",
    "pc": "pseudochannel",
    "ch": "channel",
    "co": "column",
}
_TOKEN = re.compile(r"ro|ba|bg|si|ra|pc|ch|co|c[1-9]\d?", re.IGNORECASE)


class Location(NamedTuple):
    """Where bursts lie: arrays of one length."""

    channel: Numbers
    pseudochannel: Numbers
    sid: Numbers
    bank_group: Numbers
    bank: Numbers
    row: Numbers
    column: Numbers


class Piece(NamedTuple):
    """A run of a burst number: `size` values of a field, each worth `worth` of it."""

    field: str
    size: int
    worth: int


@dataclass(frozen=True)
class Mapping:
    """A mapping of one organisation, least significant piece first."""

    name: str
    pieces: tuple[Piece, ...]
    sizes: dict[str, int]
    hashed: bool

    @property
    def bursts(self) -> int:
        """Bursts that it maps; numbers beyond wrap around."""
        return int(np.prod([piece.size for piece in self.pieces], dtype=object))

    def decode(self, bursts: Numbers) -> Location:
        """Where each burst lies. Any number is taken modulo the capacity."""
        rest = np.asarray(bursts, np.int64) % self.bursts
        found = {name: np.zeros_like(rest) for name in self.sizes}
        for piece in self.pieces:
            found[piece.field] += rest % piece.size * piece.worth
            rest //= piece.size
        self._swap(found)
        return Location(*(found[name] for name in Location._fields))

    def encode(self, location: Location) -> Numbers:
        """The burst numbers, below the capacity: the inverse of `decode`."""
        found = {name: np.array(part, np.int64) for name, part in location._asdict().items()}
        self._swap(found)
        out = np.zeros_like(found["row"])
        for piece in reversed(self.pieces):
            out *= piece.size
            if piece.field in found:
                out += found[piece.field] // piece.worth % piece.size
        return out

    def _swap(self, found: dict[str, Numbers]) -> None:
        """XOR with the column's bits: twice is as not at all."""
        if not self.hashed:
            return
        column = found["column"]
        for name in _HASH_ORDER:
            found[name] ^= column & (self.sizes[name] - 1)
            column = column >> (self.sizes[name] - 1).bit_length()


def mapping_names() -> list[str]:
    """Names with a meaning of their own; any other order is spelled by its fields."""
    return list(NAMED)


def make_mapping(name: str, preset: DramPreset, channels: int = 1) -> Mapping:
    """The mapping of that name or order of fields over one controller's DRAM, or over `channels` of them.

    Every field of more than one value must be in a spelled order. Raises StallscopeError.
    """
    sizes = {
        "channel": channels,
        "pseudochannel": preset.together,
        "sid": preset.sids,
        "rank": 1,
        "bank_group": preset.bank_groups,
        "bank": preset.banks,
        "row": preset.rows,
        "column": preset.columns,
    }
    known = {each.lower(): each for each in NAMED}
    canonical = known.get(name.lower(), name)
    spelled = NAMED.get(canonical, canonical) + ("Ch" if canonical in NAMED else "")
    mapping = Mapping(canonical, _pieces(canonical, spelled, sizes), sizes, canonical in HASHED)
    if mapping.hashed and any(size & (size - 1) for size in sizes.values()):
        raise StallscopeError(f"mapping {canonical}: {preset.name} has a number that is no power of two; use another")
    return mapping


def _pieces(name: str, spelled: str, sizes: dict[str, int]) -> tuple[Piece, ...]:
    tokens = [token.lower() for token in _TOKEN.findall(spelled)]
    if "".join(tokens) != spelled.lower() or not tokens:
        raise StallscopeError(
            f"{unknown('mapping', name[:60], NAMED)}; or spell the fields from the most significant: "
            "Ro Ba Bg Si Ra Pc Ch Co, and C1, C2, ... for that many low column bits"
        )
    fields = [FIELDS.get(token, "low columns") for token in tokens]
    for field in fields:
        if field != "low columns" and fields.count(field) > 1:
            raise StallscopeError(f"mapping {name}: names the {field} twice; expected every field once; drop one")
    low = [1 << int(token[1:]) if field == "low columns" else 1 for token, field in zip(tokens, fields, strict=True)]
    rest, left = divmod(sizes["column"], int(np.prod(low)))
    if left or not rest:
        raise StallscopeError(f"mapping {name}: more low column bits than {sizes['column']} columns have; lower them")
    out, worth = [], 1
    for field, bits in reversed(list(zip(fields, low, strict=True))):
        column = field in ("low columns", "column")
        size = bits if field == "low columns" else rest if field == "column" else sizes[field]
        if size > 1:
            out.append(Piece("column" if column else field, size, worth if column else 1))
        worth *= size if column else 1
    _check_whole(name, out, sizes)
    return tuple(out)


def _check_whole(name: str, pieces: list[Piece], sizes: dict[str, int]) -> None:
    """All of every field, and nothing twice."""
    for field, size in sizes.items():
        placed = int(np.prod([piece.size for piece in pieces if piece.field == field], dtype=object))
        if placed != size:
            short = next(token for token, each in FIELDS.items() if each == field).capitalize()
            raise StallscopeError(f"mapping {name}: leaves out the {field} ({size} of them); add {short} to it")
