"""How the kernel's functions are compiled."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from numba import njit

# No reference counts (_nrt): nothing here allocates, and counting them costs two thirds of the time. C rules for
# division by zero: rates are checked before.
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": False}

compiled = njit(**_OPTIONS)
"""A function that others call: compiled as a part of them."""


def _stamp() -> int:
    text = b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
    return int.from_bytes(hashlib.sha256(text).digest()[:7], "big")


STAMP = _stamp()


def entry(make: Callable[[int], Callable[..., Any]]) -> Any:
    """A function that Python calls: compiled once and kept on disk.

    Numba keeps compiled code as long as the file of the function is the same, whatever happened to those that it calls.
    What a function closes over counts too: so `make` gets a stamp of all files of this folder, and its function must
    mention it.
    """
    return njit(cache=True, **_OPTIONS)(make(STAMP))
