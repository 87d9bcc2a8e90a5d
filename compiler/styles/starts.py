"""Static starts: a program in which nothing waits at run time, because every start is fixed here.

List scheduling in body order, in the kernel's own integers (docs/model.md, sections 3 and 4): an instruction starts at
the first clock edge at which its engine is free, all that it waits for is done, and every lane on its route is free for
as long as it is served, whatever was scheduled before. Blocks follow each other when all is done, so starts within a
block never depend on other blocks.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field, replace

from ..program import Body, Form, TileProgram, ints


def fix_starts(program: TileProgram) -> TileProgram:
    """The program with every start stated, its segments static. `info.schedule_fs` is the schedule's own makespan."""
    timed = [_Timer(program, body).run() for body in program.bodies]
    bodies = tuple(replace(b, start_fs=ints(t.start)) for b, t in zip(program.bodies, timed, strict=True))
    segments = tuple(replace(s, static=True, length_fs=timed[s.body].length_fs) for s in program.segments)
    makespan = 0
    if segments:
        last = timed[segments[-1].body]
        makespan = sum(s.repeat * s.length_fs for s in segments) - last.length_fs + max(last.done, default=0)
    return replace(program, bodies=bodies, segments=segments, info=replace(program.info, schedule_fs=makespan))


@dataclass
class _Lane:
    """When one lane serves: disjoint intervals in order of time, those that touch joined."""

    begin: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)

    def conflict(self, at: int, service: int) -> int:
        """0 if [at, at + service) is free, else the end of an interval that is in the way."""
        i = bisect_right(self.begin, at)
        if i and self.end[i - 1] > at:
            return self.end[i - 1]
        if i < len(self.begin) and self.begin[i] < at + service:
            return self.end[i]
        return 0

    def reserve(self, at: int, service: int) -> None:
        """Take a free interval."""
        end = at + service
        i = bisect_right(self.begin, at)
        if i < len(self.begin) and self.begin[i] == end:
            end = self.end.pop(i)
            self.begin.pop(i)
        if i and self.end[i - 1] == at:
            self.end[i - 1] = end
        else:
            self.begin.insert(i, at)
            self.end.insert(i, end)


@dataclass(frozen=True)
class _Hop:
    """A station on a route."""

    station: int
    lanes: int
    interleave: int
    num: int
    den: int
    latency: int


def _hop(program: TileProgram, station: int, latency: int) -> _Hop:
    s = program.stations
    lanes, interleave, num, den = (int(x[station]) for x in (s.lanes, s.interleave, s.num, s.den))
    return _Hop(station, lanes, interleave, num, den, latency)


class _Timer:
    """The schedule of one body. After `run`: `start` and `done` per instruction, and the block's length."""

    def __init__(self, program: TileProgram, body: Body) -> None:
        e, r = program.engines, program.routes
        self.body = body
        self.period, self.port_num, self.port_den = e.period_fs.tolist(), e.port_num.tolist(), e.port_den.tolist()
        self.routes = [
            [_hop(program, int(r.station[h]), int(r.latency_fs[h])) for h in range(r.ptr[i], r.ptr[i + 1])]
            for i in range(len(r.name))
        ]
        self.lanes: dict[tuple[int, int], _Lane] = {}
        self.start: list[int] = []
        self.done: list[int] = []
        self.length_fs = 0

    def run(self) -> _Timer:
        """Place every instruction in turn."""
        b = self.body
        free = [0] * len(self.period)
        ptr, pred, slot = b.dep_ptr.tolist(), b.dep_pred.tolist(), b.dep_slot.tolist()
        rows = zip(
            *(x.tolist() for x in (b.engine, b.form, b.hold_fs, b.latency_fs, b.nbytes, b.route, b.address, b.step)),
            strict=True,
        )
        for i, (engine, form, hold, latency, nbytes, route, address, step) in enumerate(rows):
            at = max([free[engine], *(self.done[pred[d]] for d in range(ptr[i], ptr[i + 1]) if not slot[d])])
            period = self.period[engine]
            at = -(-at // period) * period
            if form == Form.HOLD:
                busy, done = hold, at + hold + latency
            else:
                busy = -(-nbytes * self.port_num[engine] // self.port_den[engine])
                at, done = self._transfer(at, period, nbytes, self.routes[route], address, step)
            free[engine] = at + busy
            self.start.append(at)
            self.done.append(done)
        # Ports may carry a last chunk longer than its way: the next block must find them free as well.
        edge = max(self.period, default=1)
        self.length_fs = -(-max([*self.done, *free], default=0) // edge) * edge
        return self

    def _transfer(
        self, at: int, period: int, nbytes: int, route: list[_Hop], address: int, step: int
    ) -> tuple[int, int]:
        """First start at which one chunk finds every lane of its route free, and when it is done; takes the lanes."""
        while True:
            claims: list[tuple[_Lane, int, int]] = []
            now, late = at, 0
            for hop in route:
                service = -(-nbytes * hop.num // hop.den)
                for lane in self._lanes(hop, address, step):
                    end = lane.conflict(now, service)
                    late = max(late, end - now if end else 0)
                    claims.append((lane, now, service))
                now += service + hop.latency
            if not late:
                break
            at = -(-(at + late) // period) * period
        for lane, begin, service in claims:
            lane.reserve(begin, service)
        return at, now

    def _lanes(self, hop: _Hop, address: int, step: int) -> list[_Lane]:
        """The lane of an address; all lanes where the next block's address may lie on another."""
        turn = hop.lanes * hop.interleave
        which = range(hop.lanes) if step % turn else [address // hop.interleave % hop.lanes]
        return [self.lanes.setdefault((hop.station, lane), _Lane()) for lane in which]
