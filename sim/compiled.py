"""How the kernel's functions are compiled."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba import config, njit, types
from numba.extending import intrinsic

# No reference counts (_nrt): nothing here allocates, and counting them costs two thirds of the time. C rules for
# division by zero: rates are checked before.
_CHECKED = bool(config.DISABLE_JIT or config.BOUNDSCHECK)  # type: ignore[attr-defined,unused-ignore]
_OPTIONS: dict[str, Any] = {"error_model": "numpy", "_nrt": _CHECKED}

compiled = njit(forceinline=not _CHECKED, **_OPTIONS)
"""A function that others call: compiled as a part of them, since calls would take a third of the time."""

LINE = 8
"""Numbers in a line of memory: what is fetched at a time."""

if _CHECKED:

    @compiled  # type: ignore[untyped-decorator,unused-ignore]
    def pointer(array: Any) -> Any:
        """The numbers of an array, with all checks of an index."""
        return array.reshape(-1)

    @compiled  # type: ignore[untyped-decorator,unused-ignore]
    def whole(number: Any, part: Any) -> Any:
        """How often `part` goes into `number`; neither is negative."""
        return number // part

    @compiled  # type: ignore[untyped-decorator,unused-ignore]
    def soon(numbers: Any, at: Any) -> None:
        """Nothing: this is about time only."""

else:

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def pointer(context: Any, array: Any) -> Any:
        """The numbers of a contiguous array of int64 by themselves: handed on as one word, never counted from the end.

        That halves the time of functions that take few steps and many arrays' elements.
        """

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return context.make_array(signature.args[0])(context, builder, arguments[0]).data

        return types.CPointer(types.int64)(array), code  # type: ignore[no-untyped-call,unused-ignore]

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def whole(context: Any, number: Any, part: Any) -> Any:
        """How often `part` goes into `number`; neither is negative: a division that looks at no signs."""

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.udiv(*arguments)

        return types.int64(types.int64, types.int64), code  # type: ignore[no-untyped-call,unused-ignore]

    @intrinsic  # type: ignore[untyped-decorator,unused-ignore]
    def soon(context: Any, numbers: Any, at: Any) -> Any:
        """This one of the numbers that `pointer` gives will be needed soon: its line of memory is fetched meanwhile."""

        def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word, byte = ir.IntType(32), ir.IntType(8).as_pointer()
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            place = builder.bitcast(builder.gep(arguments[0], [arguments[1]]), byte)
            builder.call(fetch, [place, word(0), word(3), word(1)])
            return context.get_dummy_value()

        return types.void(numbers, at), code


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
