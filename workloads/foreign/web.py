"""A program as a web of producers and readers, in which patterns look for what they know."""

from __future__ import annotations

from .program import Call, Program

Found = tuple[list[Call], Call | list[Call]] | None
"""The calls that a pattern covers, and what takes their place."""
CASTS = frozenset({"Cast", "CastLike", "Identity", "Dropout"})


class Web:
    """Producers and readers of a program as it is now; patterns that change it make a new one."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.made = program.producers()
        self.read = program.readers()
        self.outputs = set(program.outputs)

    def maker(self, value: str, *ops: str) -> Call | None:
        """The call of one of these operators that makes a value, casts in between left out."""
        call = self.made.get(value)
        while call is not None and call.op in CASTS and call.op not in ops:
            call = self.made.get(call.inputs[0])
        return call if call is not None and call.op in ops else None

    def through(self, value: str) -> str:
        """The value behind casts."""
        call = self.made.get(value)
        while call is not None and call.op in CASTS:
            value = call.inputs[0]
            call = self.made.get(value)
        return value

    def readers(self, value: str) -> list[Call]:
        """The calls that read a value, casts in between left out."""
        out = []
        for call in self.read.get(value, []):
            out += self.readers(call.outputs[0]) if call.op in CASTS else [call]
        return list({id(c): c for c in out}.values())

    def only(self, value: str, *ops: str) -> Call | None:
        """The one call that reads a value, if it is one of these operators and the value is no output."""
        found = self.readers(value)
        if value in self.outputs or len(found) != 1 or found[0].op not in ops:
            return None
        return found[0]

    def other(self, call: Call, value: str) -> str | None:
        """The other operand of a call of two."""
        one, two = (self.through(i) for i in call.inputs[:2])
        value = self.through(value)
        return call.inputs[1] if one == value else call.inputs[0] if two == value else None

    def scalar(self, value: str) -> float | None:
        """A known number, behind casts."""
        number = self.program.scalar(value)
        return number if number is not None else self.program.scalar(self.through(value))

    def immediate(self, value: str) -> bool:
        """A stored value of one element."""
        return self.program.values[value].scalar

    def stored(self, value: str) -> bool:
        """Whether a value does not depend on the inputs."""
        return self.program.values[value].stored

    def private(self, calls: list[Call], results: set[str]) -> bool:
        """Whether nobody outside wants what these calls make, but for the results."""
        inside = {id(c) for c in calls}
        for call in calls:
            for out in filter(None, call.outputs):
                if out in results:
                    continue
                if out in self.outputs or any(id(c) not in inside for c in self.readers(out)):
                    return False
        return True
