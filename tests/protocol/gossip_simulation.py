"""Many gossip machines on a simulated network: virtual time, one seed, and the faults that real members have.

Pure: no task, no socket, no sleep. A link delivers in order after a lognormal delay (median 30 ms, at most 300 ms);
admission takes 3 ms. What is simulated of reconciliation is its outcome: two members end with the union of their sets
after four crossings of the link.

Bodies are their own ids here. CPU and bandwidth are not modelled.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import ceil, inf

from p2pmem_protocol.errors import Reason
from p2pmem_protocol.frames import Frame, ListChange
from p2pmem_protocol.gossip import Close, Compare, Gossip, GossipLimits, Reconcile, Wake, member_hash

GRAPH = b"\x11" * 32
BODY_BYTES = 1_024
ADMISSION_MS = 3
DETECTION_MS = 300


@dataclass
class Member:
    name: str
    gossip: Gossip
    held: dict[bytes, int] = field(default_factory=dict)
    """What is admitted, and when."""
    admitting: set[bytes] = field(default_factory=set)
    is_alive: bool = True
    is_stopped: bool = False
    waiting: deque[tuple[str, Frame, int]] = field(default_factory=deque)
    """What a stopped member has not read, and on which connection it came."""
    frames_left: float = inf
    """Dies after so many frames."""
    lies: bool = False
    writer_at: dict[str, float] = field(default_factory=dict)
    tick_at: float = inf


@dataclass
class Totals:
    bodies: int = 0
    duplicates: int = 0
    frames: int = 0
    control_bytes: int = 0


@dataclass(frozen=True)
class Outcome:
    """What came of some messages among the members that should have them."""

    covered: float
    """Share of (message, member) that holds."""
    duplicates_per_delivery: float
    frames_per_delivery: float
    last_ms: float
    """Mean over messages of when the last member had it."""
    p95_ms: float


class Simulation:
    """Virtual time and everything that happens in it. All randomness comes from `seed`."""

    def __init__(self, seed: int, limits: GossipLimits | None = None) -> None:
        self.random = random.Random(seed)
        self._seed = seed
        self._dice: dict[tuple[str, str], random.Random] = {}
        self.now_ms = 0.0
        self.members: dict[str, Member] = {}
        self.totals = Totals()
        self.dead_links: set[frozenset[str]] = set()
        self.frame_loss = 0.0
        self._limits = limits
        self._links: dict[frozenset[str], int] = {}
        self._arrivals: dict[tuple[str, str], float] = {}
        self._published: dict[bytes, tuple[str, float]] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    # Building

    def add(self, names: Iterable[str]) -> None:
        for name in names:
            self.members[name] = Member(name, Gossip(name, self._limits))

    def connect(self, one: str, other: str) -> None:
        """Open a connection; both compare sets at once, as on every connection."""
        link = frozenset((one, other))
        if link in self._links or one == other:
            return
        self._count += 1
        self._links[link] = self._count
        for me, peer in ((one, other), (other, one)):
            self._carry_out(me, self.members[me].gossip.peer_joined(peer, [GRAPH], self._clock()))
        if self.members[one].held or self.members[other].held:
            self.reconcile(one, other)

    def neighbours(self, name: str) -> list[str]:
        return list(self.members[name].gossip.members(GRAPH))

    # Time

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now_ms + delay_ms, self._count, action))

    def run(self, duration_ms: float) -> None:
        end = self.now_ms + duration_ms
        while self._events and self._events[0][0] <= end:
            self.now_ms, _, action = heapq.heappop(self._events)
            action()
        self.now_ms = end

    def _clock(self) -> int:
        return int(self.now_ms)

    def _delay(self, sender: str, receiver: str) -> float:
        # Each way has its own dice, so that what one member does leaves the delays of the others alone.
        way = (sender, receiver)
        if way not in self._dice:
            self._dice[way] = random.Random(f"{self._seed} {sender} {receiver}")
        return min(300.0, self._dice[way].lognormvariate(3.4, 0.6))

    # What people do

    def publish(self, name: str) -> bytes:
        member = self.members[name]
        item_id = self.random.randbytes(32)
        member.held[item_id] = self._clock()
        self._published[item_id] = (name, self.now_ms)
        self._carry_out(name, member.gossip.published(GRAPH, item_id, BODY_BYTES, self._clock()))
        return item_id

    def kill(self, name: str) -> None:
        """Power cut; who was connected notices after a while."""
        self.members[name].is_alive = False
        for peer in self.neighbours(name):
            self.after(DETECTION_MS, lambda peer=peer: self._gone(peer, name))
            self._links.pop(frozenset((name, peer)), None)

    def cut(self, one: str, other: str) -> None:
        """A connection breaks; both notice, and what was on it is lost."""
        if self._links.pop(frozenset((one, other)), None) is None:
            return
        for me, peer in ((one, other), (other, one)):
            self.after(DETECTION_MS, lambda me=me, peer=peer: self._gone(me, peer))
        self.after(DETECTION_MS + 1_000, lambda: self._again(one, other))

    def stop(self, name: str) -> None:
        self.members[name].is_stopped = True

    def go_on(self, name: str) -> None:
        member = self.members[name]
        member.is_stopped = False
        while member.waiting:
            peer, frame, connection = member.waiting.popleft()
            if self._may_read(name, peer, connection):
                self._receive(name, peer, frame, is_last=not member.waiting)

    def reconcile(self, one: str, other: str) -> None:
        if frozenset((one, other)) in self.dead_links:
            return
        self.after(4 * self._delay(one, other), lambda: self._reconciled(one, other))

    def _reconciled(self, one: str, other: str) -> None:
        a, b = self.members[one], self.members[other]
        if frozenset((one, other)) not in self._links or not (a.is_alive and b.is_alive):
            return
        for taker, giver in ((a, b), (b, a)):
            new = [item_id for item_id in giver.held if item_id not in taker.held]
            for item_id in new:
                taker.held[item_id] = self._clock()
            if new:
                items = [(item_id, BODY_BYTES) for item_id in new]
                self._carry_out(taker.name, taker.gossip.reconciled(GRAPH, items, self._clock()))

    def _gone(self, me: str, peer: str) -> None:
        if self.members[me].is_alive:
            self._carry_out(me, self.members[me].gossip.peer_left(peer, self._clock()))

    def _again(self, one: str, other: str) -> None:
        if self.members[one].is_alive and self.members[other].is_alive:
            self.connect(one, other)

    # The machine's commands

    def _carry_out(self, name: str, commands: Iterable[object]) -> None:
        member = self.members[name]
        for command in commands:
            if isinstance(command, Wake):
                self._plan_writer(member, command.peer)
            elif isinstance(command, Reconcile):
                self.reconcile(name, command.peer)
            elif isinstance(command, Compare):
                for peer in self.neighbours(name):
                    self.reconcile(name, peer)
            elif isinstance(command, Close):
                self.cut(name, command.peer)
        due = member.gossip.next_ms()
        if due < member.tick_at:
            member.tick_at = due
            self.after(max(0.0, due - self.now_ms), lambda: self._tick(member))

    def _tick(self, member: Member) -> None:
        member.tick_at = inf
        if member.is_alive:
            self._carry_out(member.name, member.gossip.tick(self._clock()))

    def _plan_writer(self, member: Member, peer: str) -> None:
        due = max(self.now_ms, member.gossip.due_ms(peer))
        if due < member.writer_at.get(peer, inf):
            member.writer_at[peer] = due
            self.after(ceil(due - self.now_ms), lambda: self._write(member, peer))

    def _write(self, member: Member, peer: str) -> None:
        member.writer_at.pop(peer, None)
        while member.is_alive and (outgoing := member.gossip.take(peer, self._clock())) is not None:
            if outgoing.envelopes and member.frames_left <= 0:
                self.kill(member.name)
                return
            member.frames_left -= bool(outgoing.envelopes)
            lists = outgoing.lists
            if member.lies and lists:
                everybody = tuple(member_hash(GRAPH, it) for it in self.members)
                lists = (ListChange(GRAPH, is_whole=True, added=everybody),)
            self._send(member.name, peer, replace(outgoing, lists=lists).frame(outgoing.envelopes))
        if member.is_alive and member.gossip.due_ms(peer) < inf:
            self._plan_writer(member, peer)

    # The network

    def _send(self, sender: str, receiver: str, frame: Frame) -> None:
        link = frozenset((sender, receiver))
        self.totals.frames += 1
        self.totals.control_bytes += 8 * (len(frame.announced) + len(frame.asked)) + 9 * sum(
            len(it.added) + len(it.removed) for it in frame.lists
        )
        if self.frame_loss and self.random.random() < self.frame_loss:
            # A stream does not lose a frame: it breaks.
            self.cut(sender, receiver)
            return
        connection = self._links.get(link)
        if connection is None or link in self.dead_links:
            return
        way = (sender, receiver)
        # Real time runs on between reading a clock and writing: arrival keeps the order of sending.
        at = self._arrivals[way] = max(self._arrivals.get(way, 0.0), self.now_ms + self._delay(sender, receiver))
        self.after(at - self.now_ms, lambda: self._arrive(sender, receiver, frame, connection))

    def _arrive(self, sender: str, receiver: str, frame: Frame, connection: int) -> None:
        if not self._may_read(receiver, sender, connection):
            return
        member = self.members[receiver]
        if member.is_stopped:
            member.waiting.append((sender, frame, connection))
        else:
            self._receive(receiver, sender, frame, is_last=True)

    def _may_read(self, receiver: str, sender: str, connection: int) -> bool:
        """What a dead sender had sent still arrives; what was on a broken connection does not."""
        if not self.members[receiver].is_alive or sender not in self.neighbours(receiver):
            return False
        return not self.members[sender].is_alive or self._links.get(frozenset((sender, receiver))) == connection

    def _receive(self, name: str, peer: str, frame: Frame, *, is_last: bool) -> None:
        member = self.members[name]
        now = self._clock()
        self._carry_out(name, member.gossip.frame_received(peer, frame, is_last=is_last, now_ms=now))
        for item_id in frame.envelopes:
            self.totals.bodies += 1
            if item_id in member.held or item_id in member.admitting:
                self.totals.duplicates += 1
                self._carry_out(name, member.gossip.refused(peer, GRAPH, item_id, Reason.DUPLICATE, now))
                continue
            member.admitting.add(item_id)
            member.gossip.arriving(peer, item_id, now)
            self.after(ADMISSION_MS, lambda item_id=item_id: self._admit(name, peer, item_id))

    def _admit(self, name: str, peer: str, item_id: bytes) -> None:
        member = self.members[name]
        member.admitting.discard(item_id)
        if member.is_alive and item_id not in member.held:
            member.held[item_id] = self._clock()
            self._carry_out(name, member.gossip.admitted(GRAPH, item_id, BODY_BYTES, peer, self._clock()))

    # The result

    def outcome(self, among: Iterable[str] | None = None) -> Outcome:
        """How far everything published so far has come, among the living or `among` some of them."""
        names = [it.name for it in self.members.values() if it.is_alive] if among is None else list(among)
        due = held = 0
        delays: list[float] = []
        last: list[float] = []
        for item_id, (author, at) in self._published.items():
            times = [
                self.members[name].held[item_id] - at
                for name in names
                if name != author and item_id in self.members[name].held
            ]
            due += sum(name != author for name in names)
            held += len(times)
            delays += times
            last.append(max(times, default=0.0))
        deliveries = max(1, held)
        return Outcome(
            covered=held / max(1, due),
            duplicates_per_delivery=self.totals.duplicates / deliveries,
            frames_per_delivery=self.totals.frames / deliveries,
            last_ms=sum(last) / max(1, len(last)),
            p95_ms=sorted(delays)[int(0.95 * len(delays))] if delays else 0.0,
        )


# Shapes


def names(count: int, prefix: str = "n") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def mesh(simulation: Simulation, some: list[str]) -> None:
    for one, other in combinations(some, 2):
        simulation.connect(one, other)


def random_graph(simulation: Simulation, some: list[str], degree: int) -> None:
    """Everybody dials half of `degree`; nobody holds more than it; a ring first, so that nobody is alone."""
    if len(some) <= degree + 1:
        mesh(simulation, some)
        return
    for one, other in zip(some, some[1:] + some[:1], strict=True):
        simulation.connect(one, other)
    load = dict.fromkeys(some, 2)
    for name in some:
        candidates = simulation.random.sample(some, min(len(some), 3 * degree))
        for other in candidates:
            if load[name] >= degree:
                break
            if other != name and load[other] < degree and other not in simulation.neighbours(name):
                simulation.connect(name, other)
                load[name] += 1
                load[other] += 1


def behind_nat(simulation: Simulation, public: list[str], hidden: list[str], dials: int) -> None:
    """Hidden members can dial public ones and are never dialled."""
    mesh(simulation, public)
    for name in hidden:
        for other in simulation.random.sample(public, min(dials, len(public))):
            simulation.connect(name, other)


def messages(simulation: Simulation, count: int, authors: list[str], gap_ms: float = 500.0) -> None:
    """Let random authors publish, one after the other."""
    for number in range(count):
        author = simulation.random.choice(authors)
        simulation.after(number * gap_ms, lambda author=author: simulation.publish(author))
    simulation.run(count * gap_ms)
