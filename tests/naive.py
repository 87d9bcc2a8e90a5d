"""The oracle: docs/model.md a second time, in plain Python, for comparison with the kernel tick for tick.

Slow and clear on purpose. Every run of an instruction is an object, a chain is a trail of (cause, fs) links, waiting
events are a sorted list, and every block is run: nothing is skipped. Numbers in comments are sections of docs/model.md.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import naive_dram
import numpy as np

from stallscope.compiler.program import DRAM_PARAMS, Dep, Drams, Form, TileProgram

Key = tuple[int, int]  # (block, index in its body)
Tag = tuple[int, int]  # (block, group)
Lane = tuple[int, int]  # (station, lane)
Trail = tuple["Trail | None", int, int]  # (what was spent before, cause, fs)


class NaiveDeadlock(Exception):
    """The run cannot end. `waiting`: the heads of the queues; `cycle`: those that wait in a ring."""

    def __init__(self, waiting: list[Key], cycle: list[Key]):
        super().__init__(f"deadlock: {waiting} wait; cycle of waits {cycle}")
        self.waiting, self.cycle = waiting, cycle


class NaiveConflict(Exception):
    """A static schedule breaks its word. `parties`: the late instruction and, if there is one, the one in its way."""

    def __init__(self, reason: str, parties: list[Key]):
        super().__init__(f"conflict: {reason}: {parties}")
        self.reason, self.parties = reason, parties


@dataclass
class NaiveRun:
    """All that docs/model.md says of a run; times in fs. Counters have entries for the causes that occur."""

    makespan_fs: int = 0
    start: dict[Key, int] = field(default_factory=dict)
    release: dict[Key, int] = field(default_factory=dict)
    done: dict[Key, int] = field(default_factory=dict)
    critical_path: Counter[str] = field(default_factory=Counter)
    path_by_op: Counter[int] = field(default_factory=Counter)
    busy_fs: list[int] = field(default_factory=list)
    stalls: list[Counter[str]] = field(default_factory=list)
    bytes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    lane_busy_fs: Counter[Lane] = field(default_factory=Counter)


@dataclass(eq=False)
class Instruction:
    """One run of one instruction, with what became of it."""

    key: Key
    group: int
    engine: int
    op: int
    own_cause: int
    hold: int = 0
    latency: int = 0
    chunks: list[tuple[int, int]] | None = None  # (address, bytes) each; None: a hold
    route: int = -1
    place: tuple[str, str, str] | None = None  # where its bytes are counted
    write: int = 0
    stated_start: int | None = None
    edges: list[tuple[Dep, Instruction]] = field(default_factory=list)
    previous: Instruction | None = None  # in its engine's queue
    free: int = 0  # F
    ready: int = 0
    binding: tuple[Dep, Instruction] | None = None
    start: int = 0
    release: int | None = None
    done: int | None = None
    chain: Chain | None = None  # at done
    port_fs: int = 0
    completed: int = 0

    @property
    def tag(self) -> Tag:
        return self.key[0], self.group


@dataclass(eq=False)
class Cut:
    """The place where a later group took over an earlier group's chain."""

    tag: Tag
    remembers: Chain


@dataclass(frozen=True, eq=False)
class Chain:
    """An origin and the trail of times spent since, each under one cause."""

    origin: Instruction | Cut
    trail: Trail | None = None

    def plus(self, cause: int, fs: int) -> Chain:
        return Chain(self.origin, (self.trail, cause, fs)) if fs else self

    def taken_by(self, tag: Tag) -> Chain:
        return Chain(Cut(tag, self)) if self.origin.tag < tag else self

    def spent(self, causes: int) -> list[int]:
        """V: fs per cause."""
        v, trail = [0] * causes, self.trail
        while trail is not None:
            trail, cause, fs = trail
            v[cause] += fs
        return v


@dataclass(eq=False)
class Chunk:
    """Bytes on their way."""

    transfer: Instruction
    number: int
    address: int
    size: int
    chain: Chain


@dataclass(eq=False)
class DramVisit:
    """A chunk at a DRAM lane: its bursts, and those that are not through."""

    chunk: Chunk
    stage: int
    arrival: int  # fs
    tick: int  # of the lane
    first: int
    count: int
    sent: int = 0
    left: int = 0
    done: int = 0  # tick of the latest


class DramLane:
    """Section 10: one controller, tick by tick (naive_dram.py), with the chunks that wait or are served there."""

    def __init__(self, drams: Drams, kind: int):
        self.channel = naive_dram.new_channel(drams, kind)
        params = dict(zip(DRAM_PARAMS, drams.params[kind].tolist(), strict=True))
        self.tick_fs, self.burst = params["tick_fs"], params["burst_bytes"]
        self.visits: list[DramVisit] = []  # whose bursts are not all sent
        self.out: dict[int, DramVisit] = {}  # by the number of a burst that is not through
        self.done = np.full(1 << 16, -1, np.int64)
        self.sent = 0
        self.last_counted = [0] * 6  # when a chunk last left

    @property
    def busy(self) -> bool:
        return bool(self.visits or self.out)

    @property
    def now_fs(self) -> int:
        return int(self.channel.g[naive_dram.NOW]) * self.tick_fs

    def counted(self) -> list[int]:
        """Ticks of data; lost to refresh, row misses, bank conflicts, turnaround; and to all else."""
        n = naive_dram
        lost = [int(x) for x in self.channel.lost]
        named = [lost[cause] for cause in (n.BY_REFRESH, n.BY_MISS, n.BY_CONFLICT, n.BY_TURN)]
        return [int(self.channel.g[n.DATA]), *named, lost[n.BY_GROUP] + lost[n.BY_OTHER]]

    def step(self) -> list[tuple[DramVisit, list[int]]]:
        """Accepts what comes now, then one tick. Returns the chunks that are through, with what is counted by then."""
        now = int(self.channel.g[naive_dram.NOW])
        through = []
        while self.visits and self.visits[0].tick <= now:
            visit = self.visits[0]
            number, write = self.sent, visit.chunk.transfer.write
            assert number < len(self.done), "more bursts than the oracle has room for"
            if not naive_dram.send(self.channel, number, visit.first + visit.sent, write, self.done):
                break
            self.out[number] = visit
            self.sent += 1
            visit.sent += 1
            if visit.sent == visit.count:
                self.visits.pop(0)
            through += self.collect([number])
        naive_dram.tick(self.channel, self.done)
        return through + self.collect(list(self.out))

    def collect(self, numbers: list[int]) -> list[tuple[DramVisit, list[int]]]:
        through = []
        for number in numbers:
            if self.done[number] >= 0:
                visit = self.out.pop(number)
                visit.left -= 1
                visit.done = max(visit.done, int(self.done[number]))
                if visit.left == 0:
                    through.append((visit, self.counted()))
        return through


@dataclass(eq=False)
class EngineState:
    """An engine: its queue, F (None while a transfer still issues), its chain, and its bytes in flight."""

    index: int
    queue: list[Instruction] = field(default_factory=list)
    head: int = 0
    free: int | None = 0
    chain: Chain | None = None
    in_flight: int = 0
    chunks_issued: int = 0  # of the whole run
    next_chunk: int = 0  # of the transfer that issues
    wants: bool = False  # its next chunk
    waits: bool = False  # that chunk did not fit in the window


@dataclass(eq=False)
class LaneState:
    free: int = 0
    chain: Chain | None = None
    last: Key = (-1, -1)


def naive_run(program: TileProgram) -> NaiveRun:
    """Runs every block of the program.

    Raises NaiveDeadlock if it cannot end, NaiveConflict if a static block breaks its schedule.
    """
    order = _unroll(program)
    machine = _Machine(program, order)
    machine.run()
    return _account(program, order, machine)


def time_for(size: int, num: int, den: int) -> int:
    """Section 1: fs to move `size` bytes at num/den fs per byte."""
    return -(-size * num // den)


def share(g: int, v: list[int]) -> list[int]:
    """Section 6: g fs over the causes in proportion to V, in integers that sum to g."""
    if g == 0:
        return [0] * len(v)
    shift = 0
    while sum(v) >> shift >= 2**31:
        shift += 1
    t = sum(v) >> shift

    def up_to(k: int) -> int:
        c = sum(v[:k]) >> shift
        return g // t * c + g % t * c // t

    return [up_to(k + 1) - up_to(k) for k in range(len(v))]


# --- Section 2: the program, unrolled -----------------------------------------------------------------------------


def _unroll(program: TileProgram) -> list[Instruction]:
    order: list[Instruction] = []
    exported: dict[int, Instruction] = {}  # by the block before
    last: dict[int, Instruction] = {}  # by engine
    block, base = 0, 0
    for segment in program.segments:
        body = program.bodies[segment.body]
        for iteration in range(segment.repeat):
            here = [_instruction(program, segment.body, i, (block, i), iteration) for i in range(len(body))]
            for i, x in enumerate(here):
                for d in range(int(body.dep_ptr[i]), int(body.dep_ptr[i + 1])):
                    number = int(body.dep_pred[d])
                    pred = exported.get(number) if body.dep_slot[d] else here[number]
                    if pred is not None:
                        x.edges.append((Dep(int(body.dep_type[d])), pred))
                if segment.static:
                    x.stated_start = base + int(body.start_fs[i])
                x.previous = last.get(x.engine)
                last[x.engine] = x
            exported = {int(body.export[i]): x for i, x in enumerate(here) if body.export[i] >= 0}
            order += here
            block, base = block + 1, base + segment.length_fs
    return order


def _instruction(program: TileProgram, body_number: int, i: int, key: Key, iteration: int) -> Instruction:
    body = program.bodies[body_number]
    engine = int(body.engine[i])
    x = Instruction(key, int(body.group[i]), engine, int(body.op[i]), int(body.cause[i]))
    if body.form[i] == Form.HOLD:
        x.hold, x.latency = int(body.hold_fs[i]), int(body.latency_fs[i])
        return x
    x.own_cause = int(program.engines.port_cause[engine])
    x.route, x.write = int(body.route[i]), int(body.write[i])
    size, nbytes = int(program.routes.chunk_bytes[x.route]), int(body.nbytes[i])
    address = int(body.address[i]) + iteration * int(body.step[i])
    x.chunks = [(address + at, min(size, nbytes - at)) for at in range(0, nbytes, size)]
    if body.tier[i] >= 0:
        x.place = (program.tiers[body.tier[i]], program.kinds[body.kind[i]], "write" if body.write[i] else "read")
    return x


# --- Sections 3 to 5: engines, stations, chains -------------------------------------------------------------------


class _Machine:
    def __init__(self, program: TileProgram, order: list[Instruction]):
        self.program = program
        self.engines = [EngineState(e) for e in range(len(program.engines.name))]
        for x in order:
            self.engines[x.engine].queue.append(x)
        self.lanes: dict[Lane, LaneState] = {}
        self.lane_busy: Counter[Lane] = Counter()
        self.bytes: Counter[tuple[str, str, str]] = Counter()
        self.events: list[tuple[int, int, int, int]] = []  # (time, engine, chunk, stage), sorted
        self.chunks: dict[tuple[int, int], Chunk] = {}  # in flight, by (engine, number)
        self.drams: dict[Lane, DramLane] = {}

    def run(self) -> None:
        self.start_what_can()
        while True:
            behind = min(
                (lane for lane in self.drams.items() if lane[1].busy), key=lambda lane: lane[1].now_fs, default=None
            )
            if behind is not None and (not self.events or behind[1].now_fs < self.events[0][0]):
                self.step_lane(*behind)
                continue
            if not self.events:
                break
            time, e, number, stage = self.events.pop(0)
            if stage == 0:
                self.engines[e].wants = True
                self.issue_what_fits(self.engines[e], time)
            elif stage < len(self.hops(self.chunks[e, number].transfer.route)):
                self.claim(self.chunks[e, number], stage, time)
            else:
                self.complete(self.chunks.pop((e, number)), time)
            self.start_what_can()
        for at, dram in self.drams.items():
            self.lane_busy[at] = dram.counted()[0] * dram.tick_fs
        if any(engine.head < len(engine.queue) or engine.free is None for engine in self.engines):
            raise _deadlock(self.engines)

    def hops(self, route: int) -> list[tuple[int, int, int]]:
        """(station, latency, cause of the latency) of every hop."""
        r = self.program.routes
        here = range(int(r.ptr[route]), int(r.ptr[route + 1]))
        return [(int(r.station[h]), int(r.latency_fs[h]), int(r.latency_cause[h])) for h in here]

    def start_what_can(self) -> None:
        while sum(self.start_head(engine) for engine in self.engines):
            pass

    def start_head(self, engine: EngineState) -> bool:
        """Section 3: starts the head of the queue if F and all its dependencies are known."""
        if engine.free is None or engine.head == len(engine.queue):
            return False
        x = engine.queue[engine.head]
        if any(pred.done is None for _, pred in x.edges):
            return False
        engine.head += 1
        x.free = engine.free
        x.ready = max((pred.done or 0 for _, pred in x.edges), default=0)
        x.binding = next(((dep, pred) for dep, pred in x.edges if pred.done == x.ready), None)
        x.start = self.start_time(x)
        if x.ready >= x.free and (x.binding is not None or x.free == 0):
            chain = Chain(x)
        else:
            assert engine.chain is not None
            chain = engine.chain.taken_by(x.tag)
        engine.chain = chain.plus(x.own_cause, x.start - max(x.free, x.ready))
        if x.chunks is None:
            engine.chain = engine.chain.plus(x.own_cause, x.hold)
            engine.free = x.release = x.start + x.hold
            x.done = x.release + x.latency
            x.chain = engine.chain.plus(x.own_cause, x.latency)
        else:
            engine.free, engine.next_chunk = None, 0
            insort(self.events, (x.start, x.engine, engine.chunks_issued, 0))
        return True

    def start_time(self, x: Instruction) -> int:
        earliest, period = max(x.free, x.ready), int(self.program.engines.period_fs[x.engine])
        if x.stated_start is None:
            return -(-earliest // period) * period
        if x.stated_start < earliest:
            other = x.binding[1] if x.binding is not None and x.ready >= x.free else x.previous
            raise NaiveConflict("start too early", [x.key] + ([other.key] if other else []))
        if x.stated_start % period:
            raise NaiveConflict("start off the clock edge", [x.key])
        return x.stated_start

    def issue_what_fits(self, engine: EngineState, now: int, freed_by: Chunk | None = None) -> None:
        """Section 4, rules 1 to 3: issues the wanted chunk, and those after it that are wanted now, while they fit."""
        e = self.program.engines
        window, cause = int(e.window_bytes[engine.index]), int(e.port_cause[engine.index])
        while engine.wants:
            x = engine.queue[engine.head - 1]
            assert x.chunks is not None
            address, size = x.chunks[engine.next_chunk]
            if window and engine.in_flight + size > window:
                engine.waits = True
                return
            if engine.waits:
                assert freed_by is not None
                engine.chain, engine.waits = freed_by.chain, False
            assert engine.chain is not None
            engine.chain = engine.chain.taken_by(x.tag)
            chunk = Chunk(x, engine.chunks_issued, address, size, engine.chain)
            self.chunks[engine.index, chunk.number] = chunk
            engine.in_flight += size
            engine.chunks_issued += 1
            engine.next_chunk += 1
            self.claim(chunk, 0, now)
            port = time_for(size, int(e.port_num[engine.index]), int(e.port_den[engine.index]) or 1)
            engine.chain = engine.chain.plus(cause, port)
            x.port_fs += port
            if engine.next_chunk == len(x.chunks):
                engine.free, x.release, engine.wants = now + port, now + port, False
            elif port:
                engine.wants = False
                insort(self.events, (now + port, engine.index, engine.chunks_issued, 0))

    def claim(self, chunk: Chunk, stage: int, now: int) -> None:
        """Section 4: the chunk claims a lane of its route's next station, is served, and travels on."""
        x, s = chunk.transfer, self.program.stations
        station, latency, latency_cause = self.hops(x.route)[stage]
        piece, lanes = chunk.address // int(s.interleave[station]), int(s.lanes[station])
        number = piece % lanes
        if s.dram[station] >= 0:  # section 10: turns are scattered
            number = (piece + (piece // lanes * 40503 // 256) % 65536) % lanes
        lane = self.lanes.setdefault((station, number), LaneState())
        if s.dram[station] >= 0:
            self.enter((station, number), chunk, stage, now)
            return
        if lane.free > now:
            if x.stated_start is not None:
                raise NaiveConflict(f"lane {number} of {s.name[station]} is busy", [x.key, lane.last])
            assert lane.chain is not None
            chunk.chain = lane.chain.taken_by(x.tag)
        service = time_for(chunk.size, int(s.num[station]), int(s.den[station]))
        chunk.chain = chunk.chain.plus(int(s.cause[station]), service)
        lane.free, lane.chain, lane.last = max(lane.free, now) + service, chunk.chain, x.key
        self.lane_busy[station, number] += service
        chunk.chain = chunk.chain.plus(latency_cause, latency)
        insort(self.events, (lane.free + latency, x.engine, chunk.number, stage + 1))

    def enter(self, at: Lane, chunk: Chunk, stage: int, now: int) -> None:
        """Section 10: the chunk's bursts are offered to a DRAM lane, from its next tick on."""
        station, s = at[0], self.program.stations
        if at not in self.drams:
            self.drams[at] = DramLane(self.program.drams, int(s.dram[station]))
        lane = self.drams[at]
        if lane.now_fs < now:
            assert not lane.busy, "a lane that is busy is never behind"
            naive_dram.idle(lane.channel, -(-now // lane.tick_fs), lane.done)
        turn = int(s.interleave[station]) * int(s.lanes[station])
        own = chunk.address // turn * int(s.interleave[station]) + chunk.address % int(s.interleave[station])
        first, last = own // lane.burst, (own + chunk.size - 1) // lane.burst
        count, tick = last - first + 1, lane.now_fs // lane.tick_fs
        lane.visits.append(DramVisit(chunk, stage, now, tick, first, count, left=count))

    def step_lane(self, at: Lane, dram: DramLane) -> None:
        """One tick of a DRAM lane; chunks that are through go on, their time since they came, or since the last chunk
        left, split by what the lane counted in it."""
        s, lane = self.program.stations, self.lanes[at]
        cause, lost = int(s.cause[at[0]]), int(s.lost_cause[at[0]])
        for visit, counted in dram.step():
            chunk, done = visit.chunk, visit.done * dram.tick_fs
            since = visit.arrival
            if visit.arrival < lane.free <= done:
                assert lane.chain is not None
                since = lane.free
                chunk.chain = lane.chain.taken_by(chunk.transfer.tag)
            left = done - since
            for why, now, before in zip(
                (cause, *range(lost, lost + 4), cause), counted, dram.last_counted, strict=True
            ):
                part = min(left, (now - before) * dram.tick_fs)
                chunk.chain, left = chunk.chain.plus(why, part), left - part
            _, latency, latency_cause = self.hops(chunk.transfer.route)[visit.stage]
            chunk.chain = chunk.chain.plus(latency_cause, left)
            if done >= lane.free:
                lane.free, lane.chain, dram.last_counted = done, chunk.chain, counted
            chunk.chain = chunk.chain.plus(latency_cause, latency)
            insort(self.events, (done + latency, chunk.transfer.engine, chunk.number, visit.stage + 1))

    def complete(self, chunk: Chunk, now: int) -> None:
        """Section 4: the chunk has passed its route."""
        x, engine = chunk.transfer, self.engines[chunk.transfer.engine]
        assert x.chunks is not None
        engine.in_flight -= chunk.size
        if x.place is not None:
            self.bytes[x.place] += chunk.size
        x.completed += 1
        if x.completed == len(x.chunks):
            x.done, x.chain = now, chunk.chain
        self.issue_what_fits(engine, now, freed_by=chunk)


def _deadlock(engines: list[EngineState]) -> NaiveDeadlock:
    """Follows, from a waiting head, a dependency that is not done to the head of that one's queue, and so on."""
    heads = {e.index: e.queue[e.head] for e in engines if e.free is not None and e.head < len(e.queue)}
    stuck = [e.queue[e.head - 1].key for e in engines if e.free is None]  # a chunk that no window ever fits
    for head in heads.values():
        x, seen = head, list[Instruction]()
        while x not in seen:
            seen.append(x)
            undone = next(pred for _, pred in x.edges if pred.done is None)
            if undone.engine not in heads:
                break
            x = heads[undone.engine]
        else:
            return NaiveDeadlock([h.key for h in heads.values()] + stuck, [y.key for y in seen[seen.index(x) :]])
    return NaiveDeadlock([h.key for h in heads.values()] + stuck, [])


# --- Sections 5 to 7: the accounts --------------------------------------------------------------------------------


def _account(program: TileProgram, order: list[Instruction], machine: _Machine) -> NaiveRun:
    run = NaiveRun(bytes=machine.bytes, lane_busy_fs=machine.lane_busy)
    for x in order:
        assert x.release is not None
        assert x.done is not None
        run.start[x.key], run.release[x.key], run.done[x.key] = x.start, x.release, x.done
    run.makespan_fs = max(run.done.values(), default=0)
    _walk_path(program, order, run)
    last_release: dict[str, int] = {}  # by kind of engine
    for e, kind in enumerate(program.engines.kind):
        queue = machine.engines[e].queue
        end = min(run.makespan_fs, queue[-1].release or 0) if queue else 0
        last_release[kind] = max(last_release.get(kind, 0), end)
    for e, kind in enumerate(program.engines.kind):
        busy, stalls = _engine(program, machine.engines[e].queue, run.makespan_fs, last_release[kind])
        assert busy + sum(stalls.values()) == run.makespan_fs
        run.busy_fs.append(busy)
        run.stalls.append(stalls)
    return run


def _sections(chain: Chain) -> Iterator[Chain]:
    """The chain and, behind its cuts, the chains that they remember, latest first."""
    yield chain
    while isinstance(chain.origin, Cut):
        chain = chain.origin.remembers
        yield chain


def _walk_path(program: TileProgram, order: list[Instruction], run: NaiveRun) -> None:
    """Section 5: from the instruction done last, back to one that was ready at 0."""
    x = next((x for x in order if x.done == run.makespan_fs), None)
    while x is not None:
        assert x.chain is not None
        for section in _sections(x.chain):
            op = x.op if section is x.chain else next(y.op for y in order if y.tag == section.origin.tag)
            for name, fs in zip(program.causes, section.spent(len(program.causes)), strict=True):
                run.critical_path[name] += fs
                run.path_by_op[op] += fs
        assert isinstance(section.origin, Instruction)
        x = section.origin.binding[1] if section.origin.binding else None
    assert sum(run.critical_path.values()) == run.makespan_fs


def _engine(program: TileProgram, queue: list[Instruction], makespan: int, kind_end: int) -> tuple[int, Counter[str]]:
    """Section 6: one engine's busy time, and its stalls by cause."""
    busy, stalls, causes = 0, Counter[str](), program.causes
    for x in queue:
        assert x.chain is not None
        assert x.release is not None
        _explain_gap(causes, x, stalls)
        if x.chunks is None:
            busy += x.hold
        else:
            busy += x.port_fs
            waited = x.release - x.start - x.port_fs
            _charge(stalls, causes, share(waited, x.chain.spent(len(causes))))
    end = queue[-1].release or 0 if queue else 0
    if end > makespan:  # the port still carries a chunk that has already arrived
        busy, end = busy - (end - makespan), makespan
    stalls["imbalance"] += kind_end - end
    stalls["idle"] += makespan - kind_end
    return busy, stalls


def _explain_gap(causes: tuple[str, ...], x: Instruction, stalls: Counter[str]) -> None:
    stalls[causes[x.own_cause]] += x.start - max(x.free, x.ready)
    at, edge = x.ready, x.binding  # F to `at` is not yet explained
    while at > x.free:
        assert edge is not None
        dep, pred = edge
        if dep == Dep.WAR:
            stalls["buffer"] += at - x.free
            return
        other = pred.engine != x.engine and x.previous is not None and pred.tag == x.previous.tag
        if dep == Dep.ORDER and other:
            stalls["imbalance"] += at - x.free
            return
        assert pred.chain is not None
        for section in _sections(pred.chain):
            v = section.spent(len(causes))
            if at - sum(v) <= x.free:
                _charge(stalls, causes, share(at - x.free, v))
                return
            _charge(stalls, causes, v)
            at -= sum(v)
        assert isinstance(section.origin, Instruction)
        edge = section.origin.binding


def _charge(stalls: Counter[str], causes: tuple[str, ...], v: list[int]) -> None:
    for name, fs in zip(causes, v, strict=True):
        stalls[name] += fs
