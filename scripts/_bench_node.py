"""One node of a measurement, in a process of its own: libp2p on loopback, everything durable in one directory.

It is told what to do by lines of JSON on its input and answers each with one line, in order of their ends. The author
is driven inside its own process, so that no HTTP is measured. Times are of the monotonic clock, which all processes of
one machine share.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from cProfile import Profile
from pathlib import Path
from typing import Any, Final

import trio
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address, AssetKey
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import asset_view

from p2pmem.face import NewGraph, NewMember
from p2pmem.home_node import tune_garbage_collection
from p2pmem.keyring import Keyring
from p2pmem.ledger.admission import EXPIRED_KEPT_MS
from p2pmem.ledger.batch import Delta
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.store.native_memory import share_arenas
from p2pmem.store.terms import Iri
from scripts._bench_reading import Readers

STATEMENT_BYTES: Final = 200
ROLES: Final = ("writer",)
VERIFIED: Final = Floor(Trust.CONSENSUS_VERIFIED)
VISIBLE_S: Final = 600.0
READ_ON_S: Final = 5.0


def content_of(number: int, statements: int, size_bytes: int) -> bytes:
    """A subject with so many statements, so large in all, as N-Triples."""
    each = size_bytes // statements
    lines = []
    for place in range(statements):
        start = f'{subject_of(number)} <http://bench.example/said/{place}> "asset {number} says {place} '
        words = "that the trial lowers cholesterol in most of those who took part in it "
        text = (words * (each // len(words) + 1))[: max(each - len(start) - 4, 1)]
        lines.append(f'{start}{text}" .\n')
    return "".join(lines).encode()


def subject_of(number: int) -> str:
    return f"<http://bench.example/asset/{number}>"


def name_of(number: int) -> str:
    return f"asset-{number}"


def number_of(name: str) -> int:
    return int(name.removeprefix("asset-"))


class Watching:
    """Notes when each share of one author can be found by this node's own look-up in its store.

    Content that is too large for its envelope comes later than that: a share is looked for again at each change of it.
    """

    def __init__(self, node: Node, graph: str) -> None:
        self._node = node
        self._graph = node.ledger.named(graph)
        self._waiting: deque[tuple[int, AssetKey]] = deque()
        self.found: dict[int, float] = {}
        self.every = 1
        self._has_heard = trio.Event()
        self.moved = trio.Event()
        node.ledger.listen(self._heard)

    def _heard(self, delta: Delta) -> None:
        if delta.graph == self._graph.id:
            for key in delta.assets:
                if key.name.startswith("asset-") and number_of(key.name) not in self.found:
                    # The store may be there already: it reads what is on disk, of which we are told one by one.
                    self._waiting.append((delta.position, key))
                    self._has_heard.set()

    async def run(self) -> None:
        """Look, one share after another, as the store moves on, until cancelled."""
        store = self._node.store
        while True:
            if not self._waiting:
                self._has_heard = trio.Event()
                await self._has_heard.wait()
            await store.reached(self._waiting[0][0])
            while self._waiting and self._waiting[0][0] <= store.position:
                _, key = self._waiting.popleft()
                number = number_of(key.name)
                if number not in self.found and (number % self.every or await self.is_found(key)):
                    self.found[number] = time.monotonic()
            self.moved.set()
            self.moved = trio.Event()

    async def is_found(self, key: AssetKey) -> bool:
        subject = Iri(subject_of(number_of(key.name)).strip("<>"))
        iri = self._graph.name.shared_iri(key.author, key.name, "")
        return bool(await self._node.store.lookup(subject, None, None, [iri], limit=1))


class Blocks(trio.abc.Instrument):
    """The longest time that one step of a task held the event loop."""

    def __init__(self) -> None:
        self.longest_ms = 0.0
        self._begin = float("inf")

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._begin = time.monotonic()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest_ms = max(self.longest_ms, (time.monotonic() - self._begin) * 1000)


class BenchNode:
    """What the lines of input ask for."""

    def __init__(self, node: Node, agent: Address, profiler: Profile | None) -> None:
        self._node = node
        self._profiler = profiler
        self._agent = agent
        self._watching: dict[str, Watching] = {}
        self._nursery: trio.Nursery | None = None
        self._blocks = Blocks()

    async def info(self) -> dict[str, Any]:
        status = await self._node.face.status()
        return {"peer": status.peer, "address": str(self._agent), "items": status.items}

    async def found(self, slug: str, members: list[str], roles: list[str] | None = None) -> dict[str, Any]:
        new = NewGraph(slug, members=tuple(NewMember(member, tuple(roles or ROLES)) for member in members))
        return {"graph": (await self._node.face.found(new)).graph}

    async def invite(self, graph: str, roles: list[str]) -> dict[str, Any]:
        return {"invite": await self._node.face.invite(graph, roles=tuple(roles), uses=99, life_ms=86_400_000)}

    async def join(self, invite: str) -> dict[str, Any]:
        return {"graph": (await self._node.face.join(invite, label="")).graph}

    async def connected(self, count: int) -> dict[str, Any]:
        """Return once sessions with so many members stand."""
        while len(list(self._node.services.sessions.all())) < count:
            await trio.sleep(0.02)
        return {}

    async def watch(self, graph: str, every: int) -> dict[str, Any]:
        assert self._nursery is not None
        if graph not in self._watching:
            self._watching[graph] = Watching(self._node, graph)
            self._nursery.start_soon(self._watching[graph].run)
        self._watching[graph].every = every
        return {}

    async def share(
        self,
        graph: str,
        first: int,
        count: int,
        *,
        rate: float = 0.0,
        together: int = 128,
        statements: int = 5,
        size_bytes: int = 1_000,
        ends_ms: int | None = None,
    ) -> dict[str, Any]:
        """Share so many, at a rate or as fast as the node lets; answers when each began and when it was returned.

        With `ends_ms` they all end then, but for the milliseconds that a call takes.
        """
        began: dict[str, float] = {}
        returned: dict[str, float] = {}
        free = trio.Semaphore(together)
        start = trio.current_time()

        async def one(number: int) -> None:
            async with free:
                began[name_of(number)] = time.monotonic()
                await self._share_one(graph, name_of(number), content_of(number, statements, size_bytes), ends_ms)
                returned[name_of(number)] = time.monotonic()

        async with trio.open_nursery() as nursery:
            for place in range(count):
                if rate:
                    await trio.sleep_until(start + place / rate)
                else:
                    async with free:
                        pass
                nursery.start_soon(one, first + place)
        return {"began": began, "returned": returned}

    async def _share_one(self, graph: str, name: str, data: bytes, ends_ms: int | None) -> None:
        face = self._node.face
        ttl_ms = ends_ms - self._node.ledger.clock.now_ms() if ends_ms is not None else None
        job = await face.share_data(graph, name, data, format="nt", base=None, subgraph="", ttl_ms=ttl_ms)
        if job.state in ("queued", "running"):
            job = await face.job(job.id, wait_ms=60_000)
        if job.state != "succeeded":
            raise RuntimeError(f"{name}: {job.state} {job.error}")

    async def verify(self, graph: str, first: int, count: int, together: int) -> dict[str, Any]:
        """Ask the verifiers about so many, so many at a time; answers when all are decided."""
        free = trio.Semaphore(together)

        async def one(number: int) -> None:
            async with free:
                job = await self._node.face.verify(graph, name_of(number), deadline_ms=None)
                ended = await self._node.face.job(job.id, wait_ms=300_000)
                assert isinstance(ended.result, dict), ended
                assert ended.result["level"] == VERIFIED.level.word, ended

        async with trio.open_nursery() as nursery:
            for number in range(first, first + count):
                nursery.start_soon(one, number)
        return {}

    async def verified(self, graph: str, first: int, count: int) -> dict[str, Any]:
        """Answer once so many assets are shown here as ConsensusVerified; tested for what each change touches."""
        found = self._node.ledger.named(graph)
        names = {name_of(number) for number in range(first, first + count)}
        left = {key for key in found.set.assets() if key.name in names}
        with suppress(KeyError):
            trio.lowlevel.remove_instrument(self._blocks)  # it costs, and nobody asks here what it knows
        touched = set(left)
        stop = self._node.ledger.listen(lambda delta: touched.update(delta.assets))
        while left:
            await self._node.ledger.until(lambda: bool(touched))
            now_ms = self._node.ledger.clock.now_ms()
            left -= {key for key in touched & left if any(asset_view(found.set, key, now_ms).current(VERIFIED))}
            touched.clear()
        stop()
        return {"at": time.monotonic()}

    async def visible(self, graph: str, count: int, since: int = 0) -> dict[str, Any]:
        """Answer when each share was found, once so many are, from number `since` on."""
        watching = self._watching[graph]
        with trio.fail_after(VISIBLE_S):
            while len(watching.found) < count or sum(number >= since for number in watching.found) < count:
                await watching.moved.wait()
        return {"found": {name_of(number): at for number, at in watching.found.items() if number >= since}}

    async def found_at_least(self, graph: str, author: str, count: int) -> dict[str, Any]:
        """Answer once so many assets are in the store, and the last of them is found."""
        watching = self._watching[graph]
        while self._node.store.statistics().assets < count:
            await self._node.store.reached(self._node.store.position + 1)
        if not await watching.is_found(AssetKey(Address.parse(author), name_of(count - 1))):
            raise RuntimeError("the last share is not found")
        return {}

    async def ends(self, graph: str) -> dict[str, Any]:
        """When the first and the last of what is in the set here end."""
        versions = await self._node.face.versions(graph, layer=None, min_trust=None)
        ends_ms = [it.expires_ms for it in versions]
        return {"count": len(ends_ms), "first_ms": min(ends_ms), "last_ms": max(ends_ms)}

    async def end(self, graph: str, author: str, ends_ms: int) -> dict[str, Any]:
        """Read on all faces until all that ends at `ends_ms` has left set, store and text index here, and on for some
        seconds; answers how long after the instant each was empty, and what the readers saw."""
        readers = Readers(self._node, graph, "71", f"{author}/{name_of(71)}", ends_ms)
        found, store, clock = self._node.ledger.named(graph), self._node.store, self._node.ledger.clock
        projector = self._node.services.projector
        after_s: dict[str, float] = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readers.run)
            while len(after_s) < 3:
                await trio.sleep(0.01)
                empty = {"set": len(found.set) == 0, "store": store.statistics().assets == 0}
                empty["text"] = empty["set"] and projector.position == self._node.ledger.position
                for name, is_empty in empty.items():
                    if is_empty and name not in after_s:
                        after_s[name] = round((clock.now_ms() - ends_ms) / 1000, 2)
            await trio.sleep(READ_ON_S)
            nursery.cancel_scope.cancel()
        return {"after_s": after_s, "seen": readers.seen.told()}

    async def purge(self, swept_ms: int) -> dict[str, Any]:
        """Once the ledger may let go of what was swept by `swept_ms`: do that, and say how long it took."""
        clock, keeper = self._node.ledger.clock, self._node.services.keeper
        await trio.sleep((swept_ms + EXPIRED_KEPT_MS - clock.now_ms()) / 1000 + 1)
        began_s = trio.current_time()
        await keeper.purge()
        return {"seconds": round(trio.current_time() - began_s, 2), "left_bytes": self._payload_bytes()}

    async def profile_anew(self) -> dict[str, Any]:
        """Forget what was measured of the calls so far."""
        if self._profiler is not None:
            self._profiler.clear()
        return {}

    async def reset(self, graph: str) -> dict[str, Any]:
        self._watching[graph].found.clear()
        return {}

    async def check_all(self, graph: str, author: str, count: int) -> dict[str, Any]:
        """How many of the first shares this node can find in its store."""
        watching = self._watching.get(graph) or Watching(self._node, graph)
        keys = [AssetKey(Address.parse(author), name_of(number)) for number in range(count)]
        return {"found": sum([await watching.is_found(key) for key in keys])}

    async def watch_blocks(self) -> dict[str, Any]:
        """Measure how long steps of tasks hold the event loop, which costs a little at each."""
        trio.lowlevel.add_instrument(self._blocks)
        return {}

    async def statistics(self) -> dict[str, Any]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        network = self._node.network.statistics()
        return {
            "cpu_s": usage.ru_utime + usage.ru_stime,
            "loop_cpu_s": time.thread_time(),
            "rss_bytes": _rss_bytes(),
            "position": self._node.ledger.position,
            "items": self._node.ledger.statistics().items,
            "database": _plain(self._node.ledger.database.statistics()),
            "store": _plain(self._node.store.statistics()),
            "received_bytes": sum(it.wire_received_bytes for it in network.peers.values()),
            "payload_bytes": self._payload_bytes(),
            "longest_block_ms": round(self._blocks.longest_ms, 1),
            "gossip": _plain(self._node.exchange.gossip_statistics()),
        }

    def _payload_bytes(self) -> int:
        return int(
            self._node.ledger.database.read(
                lambda connection: connection.execute("SELECT coalesce(sum(length(data)), 0) FROM item").fetchone()[0]
            )
        )

    async def run(self) -> None:
        """Obey until the input ends."""
        stdin = trio.lowlevel.FdStream(0)
        buffer = b""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            async for piece in stdin:
                buffer += bytes(piece)
                *lines, buffer = buffer.split(b"\n")
                for line in lines:
                    nursery.start_soon(self._obey, json.loads(line))
            nursery.cancel_scope.cancel()

    async def _obey(self, asked: dict[str, Any]) -> None:
        number = asked.pop("number")
        what: Callable[..., Awaitable[dict[str, Any]]] = getattr(self, asked.pop("do"))
        answer = await what(**asked)
        print(json.dumps({"number": number, **answer}), flush=True)


def _rss_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _plain(statistics: Any) -> dict[str, Any]:
    names = getattr(statistics, "__slots__", ())
    return {name: getattr(statistics, name) for name in names if isinstance(getattr(statistics, name), int | float)}


async def main(directory: str, number: int, profile: str) -> None:
    begin = time.monotonic()
    share_arenas()
    home = Path(directory)
    home.mkdir(parents=True, exist_ok=True)
    key = Key((number + 1).to_bytes(32))
    network = Libp2pNetwork(identity_seed=(number + 1).to_bytes(32), listen=("/ip4/127.0.0.1/tcp/0",))
    places = Places(home / "ledger.sqlite", home / "store", home / "text.sqlite", home / "snapshots")
    settings = NodeSettings("bench", label=f"node {number}")
    async with open_node(settings, Keyring.of(key), network, places, Surroundings()) as node:
        tune_garbage_collection()
        print(json.dumps({"number": 0, "ready_s": time.monotonic() - begin}), flush=True)
        if not profile:
            await BenchNode(node, key.address, None).run()
            return
        profiler = Profile(time.thread_time)  # what others do at the same time is not counted
        profiler.enable()
        try:
            await BenchNode(node, key.address, profiler).run()
        finally:
            profiler.disable()
            profiler.dump_stats(profile)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "")
