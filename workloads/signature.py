"""Signatures of operators: a short text that says roles and shapes, and its matching against real tensors.

    x[M K] weight:weight[N K] bias?:weight[N] -> out[M N]

A role is `name[dims]`. `?` marks it optional, `:kind` says which tensors may play it (default: activation). A
dimension is a product of names and numbers (`heads*head_dim`); a name stands for one number throughout the operator,
or for the op's attribute of that name. A leading `...` stands for any dimensions, the same in all roles. `name[*]`
takes a tensor of any shape.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

Shape = tuple[int, ...]
Dims = dict[str, int]
"""Numbers behind a signature's names; `...`: the product of what it stands for; an optional role: 1 if it is there."""

KINDS: dict[str, tuple[str, ...]] = {
    "activation": ("activation",),
    "weight": ("weight", "expert"),
    "embedding": ("embedding",),
    "kv": ("kv",),
    "expert": ("expert",),
    "any": ("weight", "expert", "kv", "activation", "embedding"),
}
"""Tensor kinds that a role's `:kind` accepts."""


@dataclass(frozen=True)
class Role:
    """One tensor of an operator, as its signature states it."""

    name: str
    kinds: tuple[str, ...]
    optional: bool
    rest: bool
    """Begins with `...`."""
    dims: tuple[tuple[str, ...], ...]
    """Factors of each dimension behind `...`."""
    free: bool = False
    """Takes any shape."""

    @property
    def text(self) -> str:
        """The dimensions as written in the signature."""
        if self.free:
            return "*"
        return " ".join((["..."] if self.rest else []) + ["*".join(factors) for factors in self.dims])


def parse_roles(text: str) -> tuple[tuple[Role, ...], tuple[Role, ...]]:
    """Input and output roles of a signature."""
    inputs, _, outputs = text.partition("->")
    return _side(inputs), _side(outputs)


def _side(text: str) -> tuple[Role, ...]:
    roles = []
    for name, mark, kind, inside in re.findall(r"(\w+)(\??)(?::(\w+))?\[([^\]]*)\]", text):
        dims = [] if inside == "*" else inside.split()
        rest = dims[:1] == ["..."]
        factors = tuple(tuple(dim.split("*")) for dim in (dims[1:] if rest else dims))
        roles.append(Role(name, KINDS[kind or "activation"], bool(mark), rest, factors, inside == "*"))
    return tuple(roles)


class MismatchError(ValueError):
    """Shapes that do not fit a signature; the text says which and why."""


def match(roles: tuple[Role, ...], shapes: Mapping[str, Shape], attributes: Mapping[str, int]) -> Dims:
    """The numbers behind the names of a signature, from the shapes of the roles that are there.

    Raises MismatchError that names the role, its shape and what it should have been.
    """
    dims: Dims = dict(attributes)
    said_by = dict.fromkeys(attributes, "the op's attribute")
    rest: tuple[Shape, str] | None = None
    open_dims: list[tuple[Role, int, tuple[str, ...]]] = []
    for role in roles:
        if role.optional:
            dims[role.name] = int(role.name in shapes)
        if role.name not in shapes or role.free:
            continue
        shape = shapes[role.name]
        if len(shape) < len(role.dims) or (not role.rest and len(shape) > len(role.dims)):
            raise MismatchError(f"{role.name} has shape {shape}, and the operator takes [{role.text}]")
        if role.rest:
            lead = shape[: len(shape) - len(role.dims)]
            if rest is not None and rest[0] != lead:
                raise MismatchError(
                    f"{role.name} has shape {shape}, and the `...` of [{role.text}] must be {rest[0]} as in {rest[1]}"
                )
            rest = (lead, role.name) if rest is None else rest
            dims["..."] = math.prod(lead)
        offset = len(shape) - len(role.dims)
        open_dims += [(role, shape[offset + i], factors) for i, factors in enumerate(role.dims)]
    while open_dims:
        waiting = [item for item in open_dims if not _settle(item, dims, said_by, shapes)]
        if len(waiting) == len(open_dims):
            break
        open_dims = waiting
    return dims


def _settle(
    item: tuple[Role, int, tuple[str, ...]], dims: Dims, said_by: dict[str, str], shapes: Mapping[str, Shape]
) -> bool:
    """Bind or check one dimension; False while two or more of its names are still unknown."""
    role, size, factors = item
    unknown = [f for f in factors if f not in dims and not f.isdigit()]
    if len(unknown) > 1:
        return False
    known = math.prod(int(f) if f.isdigit() else dims[f] for f in factors if f not in unknown)
    if unknown and size % known == 0:
        dims[unknown[0]] = size // known
        said_by[unknown[0]] = role.name
        return True
    if unknown or known != size:
        product = "*".join(factors)
        why = ", ".join(f"{f} = {dims[f]} from {said_by[f]}" for f in factors if f in said_by)
        should = f"a multiple of {known}" if unknown else f"{known}"
        raise MismatchError(
            f"{role.name} has shape {shapes[role.name]}, and {product} in [{role.text}] must be {should}, not {size}"
            + (f" ({why})" if why else "")
        )
    return True
