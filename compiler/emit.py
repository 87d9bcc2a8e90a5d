"""Collects tile instructions and their edges, a few or arrays of them at a time, and makes a Body of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .machine import TENSOR_KINDS, Machine
from .program import PER_INSTRUCTION, Body, Dep, Form, Ints, Opcode, ints

_DEFAULTS = {"tier": -1, "kind": -1, "start_fs": -1, "export": -1}


class Emitter:
    """One body in the making. Instructions are numbered as they come; that is also the order of every engine's
    queue."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.machine, self.name = machine, name
        self.count = 0
        self.op = self.group = 0
        self.number_op: Callable[[Any], int] = lambda group: 0
        self._parts: list[dict[str, Any]] = []
        self._sorts: list[tuple[int, Ints]] = []
        self._edges: list[tuple[Ints, Ints, int, int]] = []

    def hold(
        self, engine: Any, hold_fs: Any, cause: str, latency_fs: Any = 0, opcode: Opcode = Opcode.COMPUTE, n: int = 1
    ) -> Ints:
        """n holds (compute, launch, barrier); returns their numbers."""
        number = self.machine.cause(cause)
        return self._add(
            n, engine=engine, form=Form.HOLD, opcode=opcode, hold_fs=hold_fs, latency_fs=latency_fs, cause=number
        )

    def load(self, engine: Any, nbytes: Any, tier: str, kind: str, address: Any = 0, step: Any = 0, n: int = 1) -> Ints:
        """n loads from a tier; returns their numbers."""
        return self.move(engine, nbytes, [(f"load:{tier}", tier, kind)] * n, address, step)

    def store(
        self, engine: Any, nbytes: Any, tier: str, kind: str, address: Any = 0, step: Any = 0, n: int = 1
    ) -> Ints:
        """n stores to a tier; returns their numbers."""
        return self.move(engine, nbytes, [(f"store:{tier}", tier, kind)] * n, address, step)

    def move(
        self, engine: Any, nbytes: Any, ways: Sequence[tuple[str, str, str]], address: Any = 0, step: Any = 0
    ) -> Ints:
        """One transfer per entry of `ways` (route, tier, tensor kind); returns their numbers. Without a tier ("") its
        bytes are counted nowhere: they have been where the tensor is held."""
        known = {w: i for i, w in enumerate(dict.fromkeys(ways))}
        which = np.array([known[w] for w in ways]) if len(known) > 1 else np.zeros(len(ways), np.int64)
        write = np.array([w[0].startswith("store:") for w in known], np.int64)[which]
        return self._add(
            len(ways), engine=engine, form=Form.TRANSFER, opcode=np.where(write, Opcode.STORE, Opcode.LOAD),
            nbytes=nbytes,
            route=np.array([self.machine.route_of[w[0]] for w in known])[which],
            tier=np.array([self.machine.tier(w[1]) if w[1] else -1 for w in known])[which],
            kind=np.array([TENSOR_KINDS.index(w[2]) for w in known])[which], address=address, step=step, write=write,
        )  # fmt: skip

    def send(self, engine: Any, nbytes: Any, n: int = 1) -> Ints:
        """n sends to other chips over the link; returns their numbers."""
        route = self.machine.route_of["link"]
        return self._add(n, engine=engine, form=Form.TRANSFER, opcode=Opcode.SEND, nbytes=nbytes, route=route)

    def _add(self, n: int, **columns: Any) -> Ints:
        first = self.count
        self.count += n
        self._parts.append({"n": n, "op": self.op, "group": self.group, **columns})
        return np.arange(first, self.count, dtype=np.int64)

    def after(self, to: Any, pred: Any, kind: Dep) -> None:
        """Edges: each of `to` waits for the matching one of `pred` (arrays are broadcast)."""
        one, two = np.broadcast_arrays(np.atleast_1d(to), np.atleast_1d(pred))
        self._edges.append((one.copy(), two.copy(), int(kind), 0))

    def after_slot(self, to: Any, slot: Any, kind: Dep) -> None:
        """Edges to what the block before exports as `slot`."""
        one, two = np.broadcast_arrays(np.atleast_1d(to), np.atleast_1d(slot))
        self._edges.append((one.copy(), two.copy(), int(kind), 1))

    def export(self, which: Any, slot: Any) -> None:
        """Let the next block wait for these instructions as slots."""
        self._parts.append({"n": 0, "which": np.atleast_1d(which), "slot": np.atleast_1d(slot)})

    def sort(self, first: int, keys: Ints) -> None:
        """In the finished body, the instructions from `first` to the present last stand in the order of these keys
        (ties: as made).

        Numbers stay as they were given out until then.
        """
        self._sorts.append((first, keys))

    def _places(self) -> Ints:
        place = np.arange(self.count, dtype=np.int64)
        for first, keys in self._sorts:
            place[first + np.argsort(keys, kind="stable")] = first + np.arange(len(keys))
        return place

    def body(self) -> Body:
        """The finished body: edges sorted by instruction, in the order in which they were made."""
        columns = {name: np.full(self.count, _DEFAULTS.get(name, 0), np.int64) for name in PER_INSTRUCTION}
        at = 0
        for part in self._parts:
            n = part["n"]
            for name, values in part.items():
                if name in columns:
                    columns[name][at : at + n] = values
            at += n
        for part in self._parts:
            if "slot" in part:
                columns["export"][part["which"]] = part["slot"]
        place = self._places()
        columns = {name: values[np.argsort(place)] for name, values in columns.items()}
        edges = self._edges or [(ints([]), ints([]), 0, 0)]
        to = place[np.concatenate([e[0] for e in edges])]
        order = np.argsort(to, kind="stable")
        pred = np.concatenate([e[1] if e[3] else place[e[1]] for e in edges])[order]
        kind = np.concatenate([np.full(len(e[0]), e[2]) for e in edges])[order]
        slot = np.concatenate([np.full(len(e[0]), e[3]) for e in edges])[order]
        ptr = np.concatenate([[0], np.cumsum(np.bincount(to, minlength=self.count))])
        return Body(
            self.name, **columns, dep_ptr=ints(ptr), dep_pred=ints(pred), dep_type=ints(kind), dep_slot=ints(slot)
        )
