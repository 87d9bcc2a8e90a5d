"""Numbers with units: "3.35 TB/s", "80 GiB", "560 ns", "20 cycles" become plain numbers in the base unit.

Base units: bytes, bytes/s, femtoseconds, Hz, pJ/bit, pJ, W, FLOP/s, cycles, bytes/cycle, counts and fractions. Numbers
are read as exact fractions, so "3.35 TB/s" is 3,350,000,000,000 and no float rounding reaches simulated time.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pint

# Simulated time and byte counts are int64 (docs/model.md); nothing in a file may come near its end.
LIMIT = 2**62

# Our own small set of units instead of pint's full one: it loads in milliseconds, and a symbol means what it means on
# a data sheet (b is a bit and not a barn, K- is a thousand as in KB).
DEFINITIONS = """
femto- = 1e-15 = f-
pico- = 1e-12 = p-
nano- = 1e-9 = n-
micro- = 1e-6 = µ- = μ- = u-
milli- = 1e-3 = m-
kilo- = 1e3 = k- = K-
mega- = 1e6 = M-
giga- = 1e9 = G-
tera- = 1e12 = T-
peta- = 1e15 = P-
exa- = 1e18 = E-
kibi- = 1024 = Ki-
mebi- = 1048576 = Mi-
gibi- = 1073741824 = Gi-
tebi- = 1099511627776 = Ti-
pebi- = 1125899906842624 = Pi-
byte = [information] = B
bit = byte / 8 = b
second = [time] = s = sec
hertz = 1 / second = Hz
bps = bit / second
joule = [energy] = J
watt = joule / second = W
cycle = [cycle] = cycle = clk
operation = [work] = op = FLOP
flops = operation / second = FLOPS = OPS
MAC = [mac]
percent = 0.01
"""


class UnitError(ValueError):
    """A value that is not of its kind. str(e) says what was found, what was expected and what to do."""


@dataclass(frozen=True)
class Kind:
    """One kind of quantity: its base unit, how it is written, and what values make sense."""

    what: str
    unit: str
    example: str
    whole: bool = False
    zero: bool = False
    plain: bool = False
    most: int = LIMIT


KINDS = {
    "count": Kind("a whole number, 1 or more", "", "132", whole=True, plain=True, most=10**9),
    "fraction": Kind("a share above 0 and at most 1", "", "0.91", plain=True, most=1),
    "frequency": Kind("a frequency", "hertz", "1.83 GHz", most=10**15),
    "bytes": Kind("a size in bytes", "byte", "80 GiB", whole=True),
    "bandwidth": Kind("a bandwidth", "byte/second", "3.35 TB/s"),
    "time": Kind("a time", "femtosecond", "560 ns"),
    "time0": Kind("a time, zero allowed", "femtosecond", "1.3 us", zero=True),
    "cycles": Kind("a number of core clock cycles", "cycle", "30 cycles", whole=True, zero=True),
    "bytes_per_cycle": Kind("bytes per core clock cycle", "byte/cycle", "64 B/cycle"),
    "macs_per_cycle": Kind("multiply-adds per core clock cycle", "MAC/cycle", "1024 MAC/cycle", plain=True),
    "ops_per_cycle": Kind("operations per core clock cycle", "operation/cycle", "128 ops/cycle", plain=True),
    "flops": Kind("operations per second", "flops", "989 TFLOPS"),
    "energy_per_bit": Kind("an energy per bit", "picojoule/bit", "3.59 pJ/bit"),
    "energy": Kind("an energy", "picojoule", "0.32 pJ"),
    "power": Kind("a power", "watt", "700 W"),
}

# Base units that simulated time is computed from are kept as whole numbers.
_ROUNDED = ("bandwidth", "time", "time0", "frequency", "flops")

_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_,]*\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)\s*(.*?)\s*")
_UNIT = re.compile(r"[A-Za-zµμ]+(\s*/\s*[A-Za-z]+)?")


def to_base(value: Any, kind_name: str) -> int | float:
    """A number, or a text of number and unit, in the base unit of its kind.

    Returns an int where the exact result is whole (bytes, femtoseconds and bytes/s always are), else a float. Raises
    UnitError for what is not a number, has no unit or a wrong one, is negative, NaN, infinite, zero or too large.
    """
    kind = KINDS[kind_name]
    exact = _exact(value, kind)
    if exact < 0:
        raise _refused(value, kind, "is negative")
    if exact == 0 and not kind.zero:
        raise _refused(value, kind, "is zero")
    if exact > kind.most:
        raise _refused(value, kind, f"is above {kind.most:,}" + (f" {kind.unit}s" if kind.unit else ""))
    if exact.denominator != 1 and kind.whole:
        raise _refused(value, kind, f"is not a whole number{f' of {kind.unit}s' if kind.unit else ''}")
    if kind_name in _ROUNDED:
        rounded = round(exact)
        if rounded == 0 and exact > 0:
            raise _refused(value, kind, f"is less than one {kind.unit}")
        return rounded
    return int(exact) if exact.denominator == 1 else float(exact)


def _exact(value: Any, kind: Kind) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise _refused(value, kind, "is empty" if value is None else "is not a number with a unit")
    # Words and not a parse: "inf TB/s" and YAML's .nan are wrong in the same way.
    text = str(value)
    if re.match(r"\s*[+-]?\.?(nan|inf)", text, re.IGNORECASE):
        raise _refused(value, kind, "is not a finite number")
    match = _NUMBER.fullmatch(text) if len(text) <= 80 else None
    if match is None:
        raise _refused(value, kind, "is not a number with a unit")
    number, unit = Fraction(re.sub("[_,]", "", match[1])), match[2].replace("%", "percent")
    if not unit:
        if not kind.plain:
            raise _refused(value, kind, "has no unit")
        return number
    if not _UNIT.fullmatch(unit):
        raise _refused(value, kind, f"has a unit {unit!r} that cannot be read")
    return number * _factor(unit, kind, value)


def _factor(unit: str, kind: Kind, value: Any) -> Fraction:
    import pint

    try:
        return _conversion(unit, kind.unit)
    except pint.UndefinedUnitError as e:
        raise _refused(value, kind, f"has an unknown unit {unit!r}") from e
    except pint.DimensionalityError as e:
        raise _refused(value, kind, f"has a unit {unit!r} of another dimension") from e
    except Exception as e:  # pint raises many types on a malformed unit
        raise _refused(value, kind, f"has a unit {unit!r} that cannot be read") from e


@functools.cache
def _conversion(unit: str, base: str) -> Fraction:
    registry = _registry()
    quantity = registry.Quantity(Fraction(1), registry.parse_units(unit))
    return Fraction(quantity.to(base or "dimensionless").magnitude)


@functools.cache
def _registry() -> pint.UnitRegistry[Any]:
    # Imported here: pint takes longer to import than the rest of arch, and file checks come first.
    import pint

    registry: pint.UnitRegistry[Any] = pint.UnitRegistry(None, non_int_type=Fraction)
    registry.load_definitions(DEFINITIONS.strip().splitlines())
    return registry


def _refused(value: Any, kind: Kind, why: str) -> UnitError:
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    return UnitError(f"{shown} {why}; expected {kind.what}; write it like {kind.example!r}")
