"""Numbers as a person reads them. Columns that are shown with a total add up to it, digit by digit."""

from __future__ import annotations

from collections.abc import Sequence

FS_PER_S = 10**15
TIME_UNITS = (("s", 10**15), ("ms", 10**12), ("us", 10**9), ("ns", 10**6), ("ps", 10**3), ("fs", 1))
BYTE_UNITS = (("PB", 10**15), ("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
BINARY_UNITS = (("PiB", 2**50), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


def apportion(parts: Sequence[int], total: int) -> list[int]:
    """Integers in proportion to `parts` that sum to `total` exactly.

    Each gets its share rounded down, then the largest remainders get one more (the first among equals).
    Parts that are all 0 get 0.
    """
    whole = sum(parts)
    if whole == 0:
        return [0] * len(parts)
    shares = [part * total // whole for part in parts]
    by_remainder = sorted(range(len(parts)), key=lambda i: -(parts[i] * total % whole))
    for i in by_remainder[: total - sum(shares)]:
        shares[i] += 1
    return shares


def decimal(ticks: int, digits: int) -> str:
    """`ticks` of 10**-digits as text with thousand separators: decimal(1234567, 3) is '1,234.567'."""
    if digits == 0:
        return f"{ticks:,}"
    whole, rest = divmod(ticks, 10**digits)
    return f"{whole:,}.{rest:0{digits}d}"


def time_unit(fs: int) -> tuple[str, int]:
    """The largest unit (name, femtoseconds) of which `fs` holds at least one."""
    return next((unit for unit in TIME_UNITS if fs >= unit[1]), TIME_UNITS[-1])


def time_text(fs: int, digits: int = 3) -> str:
    """A time in s, ms, us, ns, ps or fs: '5.612 ms'."""
    name, size = time_unit(fs)
    if size == 1:
        return f"{fs:,} fs"
    return f"{decimal(_rounded(fs * 10**digits, size), digits)} {name}"


def time_column(parts_fs: Sequence[int], digits: int = 3) -> list[str]:
    """Times in the one unit that fits their sum, rounded so that they add up; the sum itself comes last."""
    total = sum(parts_fs)
    name, size = time_unit(total)
    digits = 0 if size == 1 else digits
    ticks = _rounded(total * 10**digits, size)
    return [f"{decimal(t, digits)} {name}" for t in (*apportion(parts_fs, ticks), ticks)]


def share_column(parts: Sequence[int]) -> list[str]:
    """Percentages with one digit that add up to 100.0 %; the sum itself comes last.

    A part that is there but rounds to nothing shows as '<0.1%'.
    """
    total = 1000 if sum(parts) else 0
    tenths = apportion(parts, total)
    texts = ["<0.1%" if part and not t else f"{decimal(t, 1)}%" for part, t in zip(parts, tenths, strict=True)]
    return [*texts, f"{decimal(total, 1)}%"]


def percent_text(share: float, digits: int = 1, sign: bool = False) -> str:
    """A share alone, with so many digits behind the point: '4.2%', with `sign` '+4.2%'."""
    return f"{100 * share:{'+' if sign else ''}.{digits}f}%"


def count_column(parts: Sequence[int], total: int) -> list[str]:
    """`total` counts split in proportion to `parts`, with thousand separators; the total comes last."""
    return [f"{n:,}" for n in (*apportion(parts, total), total)]


def bytes_text(n: int) -> str:
    """Bytes that move, in decimal units, as bandwidths are given: '16.06 GB'."""
    return _scaled(n, BYTE_UNITS)


def capacity_text(n: int) -> str:
    """Bytes that must fit somewhere, in both units: '42.95 GB (40.00 GiB)'."""
    return (
        f"{_scaled(n, BYTE_UNITS)} ({_scaled(n, BINARY_UNITS)})" if n >= BINARY_UNITS[-2][1] else _scaled(n, BYTE_UNITS)
    )


def number_text(x: float) -> str:
    """A rate or a plain number with about four digits: '178.2', '12,345', '0.213'."""
    for least, digits in ((1000, 0), (100, 1), (10, 2)):
        if x >= least:
            return f"{x:,.{digits}f}"
    return f"{x:.3f}" if x >= 0.01 or x == 0 else f"{x:.2e}"


def ratio_text(part: int, whole: int) -> str:
    """How many times `whole` goes into `part`: '1.17x'; '-' when there is nothing to compare with."""
    return f"{number_text(part / whole) if part >= 10 * whole else format(part / whole, '.2f')}x" if whole else "-"


def clock_text(hz: float) -> str:
    """A clock: '1.755 GHz', '900 MHz'."""
    return f"{hz / 1e9:.4g} GHz" if hz >= 1e9 else f"{hz / 1e6:.4g} MHz"


def _rounded(numerator: int, denominator: int) -> int:
    return (2 * numerator + denominator) // (2 * denominator)


def _scaled(n: int, units: Sequence[tuple[str, int]]) -> str:
    for name, size in units:
        if n >= size:
            return f"{decimal(_rounded(n * 100, size), 2)} {name}"
    return f"{n:,} B"
