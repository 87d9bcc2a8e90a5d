"""How consecutive bursts lie in a DRAM: over which banks they go in turn, and in which order they are served."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..compiler.program import DRAM_COMMANDS, DRAM_FIELDS, DRAM_PARAMS, Drams, Ints

LONGEST_TURN = 64
EDGES = DRAM_PARAMS.index("edges")


@dataclass(frozen=True)
class Pattern:
    """Consecutive bursts in a block: one row of each of its banks, gone through in turns that are all alike.

    By place in a turn: `bank`, counted from the block's first; distances to the next burst in this bank (`ahead`) and
    from the last (`back`). `order` are the places as they are served. The pairs are for reads and for writes: `pace`,
    ticks from one RD or WR to the next if a turn goes by itself (0: not in an order of its own); `strict`, whether
    others might come between; `cross`, the least distance to RD or WR of another stack id.
    """

    block: int = 1
    turn: int = 0
    """Bursts of a turn; 0: consecutive bursts have no such pattern."""
    bank: tuple[int, ...] = ()
    ahead: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    each: int = 1
    """Bursts of a bank in a turn."""
    order: tuple[int, ...] = ()
    ordered: bool = False
    """Whether bursts are served by whole turns: `order` is another than theirs, or some of a turn share a bank."""
    beside: int = 0
    """Bursts of a turn that are served after one of their own bank group."""
    pace: tuple[int, int] = (0, 0)
    strict: tuple[bool, bool] = (False, False)
    cross: tuple[int, int] = (0, 0)


def banks_of(params: Ints) -> dict[str, int]:
    """By field of an address: how many banks it is worth."""
    _, sids, groups, banks = params[:4].tolist()
    return {"rank": sids * groups * banks, "sid": groups * banks, "group": banks, "bank": 1}


def find_pattern(drams: Drams, kind: int) -> Pattern:
    """The pattern of a kind of lane."""
    params = drams.params[kind]
    fields = drams.fields[drams.field_ptr[kind] : drams.field_ptr[kind + 1]].tolist()
    names = [DRAM_FIELDS[f] for f, _, _ in fields]
    hashed = params[-1]
    if "column" not in names or hashed or any(size & (size - 1) for _, size, _ in fields):
        return Pattern()
    top = len(names) - 1 - names[::-1].index("column")
    if {"row", "sid"} & {name for name, (_, size, _) in zip(names[:top], fields, strict=False) if size > 1}:
        return Pattern()
    upper = max((i for i in range(top) if names[i] != "column" and fields[i][1] > 1), default=-1)
    turn = math.prod(size for _, size, _ in fields[: upper + 1])
    if turn > LONGEST_TURN:
        return Pattern()
    worth = banks_of(params)
    bank, group = [0] * turn, [0] * turn
    for i in range(turn):
        rest = i
        for name, (_, size, step) in zip(names, fields, strict=True):
            bank[i] += rest % size * step * worth.get(name, 0)
            group[i] += rest % size * step * (name in ("group", "rank")) * worth.get(name, 0)
            rest //= size
    ahead = [next(k for k in range(1, turn + 1) if bank[(i + k) % turn] == b) for i, b in enumerate(bank)]
    back = [next(k for k in range(1, turn + 1) if bank[i - k] == b) for i, b in enumerate(bank)]
    mine = drams.rules[drams.rule_ptr[kind] : drams.rule_ptr[kind + 1]].tolist()
    order: list[int] = list(range(turn))
    pace, strict, cross = [0, 0], [False, False], [0, 0]
    for q, command in enumerate(("RD", "WR")):
        c = DRAM_COMMANDS.index(command)
        gaps = [(level, t, near) for b, a, level, t, _, near in mine if (b, a) == (c, c)]
        common = max((t for level, t, near in gaps if level < 3 and not near), default=1)
        same = max((t for level, t, near in gaps if level >= 3), default=1)
        cross[q] = max((t for level, t, near in gaps if near and level == 2), default=0)
        if turn == 1:
            found, pace[q], strict[q] = [0], max(common, same), same > common
        else:
            found, pace[q] = _served(group, -(-same // common)), common
        beyond = max((t for level, t, near in gaps if level < 2 or near), default=1)
        strict[q] |= bool(params[1] > 1) and beyond < pace[q]
        if params[0] > 1 or not found or (q == 1 and found != order) or (params[EDGES] and pace[q] % 2):
            pace[q] = 0
        elif q == 0:
            order = found
    beside = sum(group[order[i - 1]] == group[x] for i, x in enumerate(order))
    return Pattern(
        block=math.prod(size for _, size, _ in fields[: top + 1]),
        turn=turn,
        bank=tuple(bank),
        ahead=tuple(ahead),
        back=tuple(back),
        each=turn // len(set(bank)),
        order=tuple(order),
        ordered=order != list(range(turn)) or turn > len(set(bank)),
        beside=beside,
        pace=(pace[0], pace[1]),
        strict=(strict[0], strict[1]),
        cross=(cross[0], cross[1]),
    )


def _served(group: list[int], apart: int) -> list[int]:
    """The order in which turns are served, one burst a slot: the oldest whose group had none for `apart` slots.

    Empty if there is no such burst in some slot, or if turns do not come one after the other and all alike.
    """
    turn = len(group)
    waiting = list(range(4 * turn))
    last: dict[int, int] = {}
    served = []
    for slot in range(3 * turn):
        x = next((x for x in waiting if slot - last.get(group[x % turn], -apart) >= apart), None)
        if x is None or x // turn != slot // turn:
            return []
        waiting.remove(x)
        last[group[x % turn]] = slot
        served.append(x % turn)
    first = served[:turn]
    return first if served == 3 * first else []
