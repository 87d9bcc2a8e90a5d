"""What every reader gives: values with shapes, and calls of ONNX's operators in the order of execution.

Operators of other domains carry theirs (`com.microsoft.GroupQueryAttention`). A value that does not depend on the
inputs is *stored*: whatever makes it is done once, before the first run, and costs nothing in it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from ...errors import StallscopeError
from ..checks import problem

Array = NDArray[Any]
Shape = tuple[int, ...]

CALL_LIMIT = 200_000
"""Calls of one program, loops unrolled."""


@dataclass
class Value:
    """A tensor of the program. `data`: its elements, where they are known."""

    name: str
    shape: Shape
    dtype: str
    stored: bool = False
    data: Array | None = None
    root: str = ""
    """The stored tensor that this is a view of; its own name if it is none."""
    packed: tuple[str, ...] = ()
    """Stored scales and zero points that belong to a quantised tensor."""

    @property
    def elements(self) -> int:
        """How many; 1 for a scalar."""
        return math.prod(self.shape)

    @property
    def scalar(self) -> bool:
        """One stored element: an immediate of the instruction, no tensor in memory."""
        return self.stored and self.elements == 1


@dataclass(frozen=True)
class Call:
    """One operator at work. An absent optional input or output is ""."""

    op: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    stands_for: tuple[str, ...] = ()
    """The operators that a pattern has put together here."""
    note: str = ""

    @property
    def place(self) -> str:
        """Where it stands, for messages."""
        return f"node {self.name!r} ({self.op})"

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute or its default."""
        return self.attrs.get(name, default)

    def input(self, i: int) -> str:
        """The i-th input, "" if it is absent."""
        return self.inputs[i] if i < len(self.inputs) else ""

    def output(self, i: int) -> str:
        """The i-th output, "" if it is absent."""
        return self.outputs[i] if i < len(self.outputs) else ""


@dataclass
class Program:
    """A foreign graph with all its lengths known. `source`: the file, for messages."""

    name: str
    source: str
    values: dict[str, Value] = field(default_factory=dict)
    calls: list[Call] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    before: dict[str, Call] = field(default_factory=dict)
    """The call that made each value as the file has it: patterns forget, masks ask."""

    def shape(self, name: str) -> Shape:
        """Shape of a value."""
        return self.values[name].shape

    def scalar(self, name: str) -> float | None:
        """The number that a value of one known element is."""
        value = self.values.get(name)
        if value is None or value.data is None or value.elements != 1:
            return None
        return float(value.data.reshape(-1)[0])

    def error(self, call: Call | None, found: str, expected: str, todo: str) -> StallscopeError:
        """The one error, with the file and the node."""
        return problem(f"{self.source}: {call.place}" if call else self.source, found, expected, todo)

    def producers(self) -> dict[str, Call]:
        """The call that makes each value."""
        return {out: call for call in self.calls for out in call.outputs if out}

    def readers(self) -> dict[str, list[Call]]:
        """The calls that read each value, each once."""
        out: dict[str, list[Call]] = {}
        for call in self.calls:
            for name in dict.fromkeys(filter(None, call.inputs)):
                out.setdefault(name, []).append(call)
        return out

    def prune(self) -> None:
        """Drop calls whose results nobody wants."""
        wanted = set(self.outputs)
        kept = []
        for call in reversed(self.calls):
            if wanted & set(call.outputs):
                wanted.update(filter(None, call.inputs))
                kept.append(call)
        self.calls = kept[::-1]

    def substitute(self, gone: Iterable[Call], new: Call) -> None:
        """Put `new` where the last of the calls `gone` stood."""
        names = {id(call) for call in gone}
        last = max(i for i, call in enumerate(self.calls) if id(call) in names)
        self.calls = [
            new if i == last else call for i, call in enumerate(self.calls) if i == last or id(call) not in names
        ]


def composite(op: str, calls: list[Call], inputs: Iterable[str], outputs: Iterable[str], **attrs: Any) -> Call:
    """The call that a pattern puts in the place of several."""
    stands = tuple(part for call in calls for part in (call.stands_for or (call.op,)))
    return Call(op, calls[-1].name, tuple(inputs), tuple(outputs), attrs, stands)
