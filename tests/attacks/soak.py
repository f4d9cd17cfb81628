"""Our host under hostile traffic for long: does it hold the same memory, tasks and descriptors afterwards?

First connections in turn, then everything that is known at once, for as long as asked on the victim's clock, which runs
faster than ours. They come from many addresses (all of 127.0.0.0/8 is this machine), because of one address so many
sockets a minute are heard. Every so often somebody honest comes along and must be served.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import trio
from p2pmem_protocol.errors import OutsideError

from p2pmem.net import multistream
from p2pmem.net.seam import READ_BYTES
from p2pmem.net.secure import HandshakeError
from p2pmem.net.wire import WireError

from .attacks import ATTACKS, Target
from .raw import MESHSUB, PING, RST, SYN, data, delimited, dial, frame, negotiate, secured
from .table import SERVED_AFTER_S, Held, Victim, is_heard, is_served, settled, victim_process

ADDRESSES: Final = 64
WARM_UP: Final = 500
AT_ONCE: Final = 3
LOOKS: Final = 10
ACT_S: Final = 10.0
ATTACK_S: Final = 30.0
MEMORY_GROWTH_MAX_BYTES: Final = 8_000_000
"""By so much the least of the later half of the looks may be above that of the first half: what is seen at one look
depends on what went on just before."""
TASKS_GROWTH_MAX: Final = 10
"""The same: of gossip some tasks end a moment after the stream that they look after."""
_GONE: Final = (OSError, OutsideError, WireError, HandshakeError, trio.BrokenResourceError, trio.ClosedResourceError)

Act = Callable[[str, str], Awaitable[None]]


@dataclass(slots=True)
class Report:
    """What was done, and what the victim held: at first, and at each look."""

    first: Held
    in_turn: list[Held] = field(default_factory=list)
    everything: list[Held] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    unserved: int = 0
    times: float = 1.0
    begun_s: float = field(default_factory=time.monotonic)

    def tell(self, what: str, held: Held) -> None:
        """Print one look. Minutes are those of the victim's clock."""
        minutes = (time.monotonic() - self.begun_s) * self.times / 60
        print(
            f"{minutes:6.1f} min  {what:34} {held.memory_bytes / 1e6:7.1f} MB  {held.tasks:4} tasks  "
            f"{held.descriptors:4} descriptors",
            flush=True,
        )

    def troubles(self) -> Iterator[str]:
        """Why it is not flat, if it is not."""
        for part in (self.in_turn, self.everything):
            half = len(part) // 2
            if half:
                grown = min(it.memory_bytes for it in part[half:]) - min(it.memory_bytes for it in part[:half])
                if grown > MEMORY_GROWTH_MAX_BYTES:
                    yield f"{grown / 1e6:.1f} MB more in the later half than in the first"
        first, last = self.first, (self.everything or self.in_turn)[-1]
        if last.tasks > first.tasks + TASKS_GROWTH_MAX:
            yield f"{last.tasks - first.tasks} tasks more than at first"
        if last.descriptors > first.descriptors:
            yield f"{last.descriptors - first.descriptors} descriptors more than at first"
        if self.unserved:
            yield f"somebody honest was not served, {self.unserved} times"


async def _half_a_handshake(address: str, host: str) -> None:
    """What costs the host a key exchange, and us 32 bytes by chance."""
    async with await dial(address, host) as stream:
        words = multistream.encode_token("/multistream/1.0.0") + multistream.encode_token("/noise")
        await stream.send_all(words + (32).to_bytes(2) + os.urandom(32))
        await stream.receive_some(1)


async def _garbage(address: str, host: str) -> None:
    async with await dial(address, host) as stream:
        await stream.send_all(os.urandom(random.randrange(1, 2_000)))


async def _connection(address: str, host: str) -> None:
    (await secured(address, local_address=host)).wire.close()


async def _said(address: str, host: str, words: Iterable[bytes]) -> None:
    """Say all that on one connection, until it is cut off."""
    channel = await secured(address, local_address=host)
    try:
        for piece in words:
            await channel.write(piece)
    finally:
        channel.wire.close()


async def _pings(address: str, host: str) -> None:
    await _said(address, host, itertools.repeat(frame(PING, SYN, 0, 7) * 200, 50))


async def _streams(address: str, host: str) -> None:
    pairs = (frame(1, SYN, number, 0) + frame(1, RST, number, 0) for number in range(1, 1_000, 2))
    await _said(address, host, pairs)


async def _random_frames(address: str, host: str) -> None:
    chance = random.Random()
    await _said(
        address,
        host,
        (
            frame(chance.randrange(5), chance.randrange(16), chance.randrange(9), size, os.urandom(size))
            for size in (chance.randrange(200) for _ in range(50))
        ),
    )


async def _random_rpcs(address: str, host: str) -> None:
    rpcs = (delimited(os.urandom(random.randrange(60))) for _ in range(50))
    await _said(address, host, (negotiate(1, MESHSUB, b"".join(rpcs)), *(data(1, bytes(300)) for _ in range(20))))


async def _half_an_rpc(address: str, host: str) -> None:
    await _said(
        address,
        host,
        (negotiate(number, MESHSUB, delimited(bytes(1_000_000))[: READ_BYTES // 2]) for number in range(1, 20, 2)),
    )


ACTS: Final[tuple[Act, ...]] = (
    _half_a_handshake,
    _garbage,
    _connection,
    _pings,
    _half_a_handshake,
    _streams,
    _random_frames,
    _random_rpcs,
    _half_an_rpc,
)


def addresses() -> Iterator[str]:
    """One after the other, without end."""
    return itertools.cycle(f"127.0.{number >> 8 & 255}.{number & 255}" for number in range(2, 2 + ADDRESSES))


async def soak(connections: int, minutes: float, times: float) -> Report:
    """Try it. `minutes` are those of the victim's clock, which runs `times` as fast as ours."""
    async with victim_process("ours", str(times)) as victim:
        hosts = addresses()
        report = Report(await victim.held(), times=times)
        await _in_turn(victim, report, hosts, WARM_UP)
        await _look(victim, report, f"after {WARM_UP} connections")
        for _ in range(LOOKS if connections else 0):
            await _in_turn(victim, report, hosts, connections // LOOKS)
            what = f"after {report.done['connections in turn']} connections"
            report.in_turn.append(await _look(victim, report, what))
        for number in range(LOOKS if minutes else 0):
            await _everything(victim, report, hosts, 60 * minutes / times / LOOKS)
            what = f"after {(number + 1) * minutes / LOOKS:g} min of everything"
            report.everything.append(await _look(victim, report, what))
        return report


async def _look(victim: Victim, report: Report, what: str) -> Held:
    """Whether somebody honest is served, and what is held when all have gone."""
    await _serves(victim, report)
    held = await settled(victim, report.first)
    report.tell(what, held)
    return held


async def _serves(victim: Victim, report: Report) -> None:
    if not (await is_served(victim, SERVED_AFTER_S) and await is_heard(victim, SERVED_AFTER_S)):
        report.unserved += 1


async def _in_turn(victim: Victim, report: Report, hosts: Iterator[str], count: int) -> None:
    for _ in range(count):
        try:
            await _connection(victim.address, next(hosts))
            report.done["connections in turn"] += 1
        except _GONE:
            report.done["connections in turn, refused"] += 1


async def _everything(victim: Victim, report: Report, hosts: Iterator[str], for_s: float) -> None:
    """All attacks of the table in turn, and at the same time whatever is small, for so long on our clock."""
    acts, names = itertools.cycle(ACTS), itertools.cycle(ATTACKS)
    deadline_s = trio.current_time() + for_s

    async def act() -> None:
        while trio.current_time() < deadline_s:
            one = next(acts)
            with suppress(*_GONE), trio.move_on_after(ACT_S):
                await one(victim.address, next(hosts))
            report.done[one.__name__.strip("_").replace("_", " ")] += 1

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(act)
        for name in itertools.islice(names, random.randrange(len(ATTACKS)), None):
            if trio.current_time() >= deadline_s:
                break
            with suppress(*_GONE), trio.move_on_after(ATTACK_S):
                async with ATTACKS[name](Target(victim.address, victim.connected)):
                    await trio.lowlevel.checkpoint()
            report.done["attacks of the table"] += 1
