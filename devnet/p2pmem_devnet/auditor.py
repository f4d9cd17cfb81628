"""The auditor: reads what a cluster's nodes have on disk, and finds what must never be.

    a  what is accepted anywhere verifies anywhere: each item's form, signature and content, read anew from its bytes
    b  members who believe themselves equal are, and nobody else holds anything
    c  nothing lives past its end, and no end is later than its author signed
    d  trust computed from signatures by a second, naive implementation is the same on all
    e  a job says at most one thing, and ends
    f  queues, caches and tables keep their limits
    g  nothing that was acknowledged is lost on a node that came back
    h  no byte of a gated graph reached a stranger

It believes no node: it reads rows and bytes, and takes from memory only what is to be compared with them. It may be
called at any time; what can only be judged when nothing is under way is judged when nothing is.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from p2pmem_protocol.bodies import RetractMode, Sealed
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.envelope import Envelope, Item, decode_item
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import DAY_MS, HOUR_MS, MINUTE_MS
from p2pmem_protocol.names import AssetKey, GraphId
from p2pmem_protocol.view import asset_view

from p2pmem.exchange.link import RECENT_BYTES_MAX
from p2pmem.ledger.graph import LedgerGraph
from p2pmem_devnet.auditor_trust import line_of, lives_until, naive_level, versions_of

if TYPE_CHECKING:
    from p2pmem_devnet.cluster import Cluster
    from p2pmem_devnet.cluster_node import ClusterNode, Promise

ENDED_ROWS_KEPT_MS: Final = 16 * MINUTE_MS
"""Ten minutes, and the time to the next purge."""
JOB_RUNS_MS_MAX: Final = HOUR_MS
LIVE_JOBS_MAX: Final = 250_000
NEEDLE_BYTES_MIN: Final = 20
FINDINGS_SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that must never be: which rule, where, and what."""

    rule: str
    node: str
    what: str

    def __str__(self) -> str:
        return f"({self.rule}) {self.node}: {self.what}"


class AuditError(AssertionError):
    """The auditor found something."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        self.findings = findings
        shown = "\n".join(f"  {finding}" for finding in findings[:FINDINGS_SHOWN_MAX])
        more = len(findings) - FINDINGS_SHOWN_MAX
        super().__init__(f"the audit found {len(findings)}\n{shown}" + (f"\n  and {more} more" if more > 0 else ""))


@dataclass(frozen=True, slots=True)
class Held:
    """One graph on one node, as its file has it."""

    node: ClusterNode
    graph: LedgerGraph
    items: dict[bytes, Item]
    about: dict[AssetKey, list[Item]]
    """Shares, publishes and evidence, by the asset that they are about."""


class Auditor:
    """Audits one cluster. What it has read and found right it does not read again: items are named by their digest."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._decoded: dict[bytes, Item] = {}
        self._right: set[tuple[bytes, bytes]] = set()

    def audit(self) -> tuple[Finding, ...]:
        """Everything that is wrong now, in a stable order."""
        held = [it for node in self._cluster.nodes if node.is_up for it in self._read(node)]
        findings = [
            *(finding for it in held for finding in self._verifies(it)),
            *self._equal(held),
            *(finding for it in held for finding in self._ends(it)),
            *(finding for it in held for finding in self._trust(it)),
            *(finding for node in self._up() for finding in self._jobs(node)),
            *(finding for node in self._up() for finding in self._limits(node)),
            *(finding for node in self._up() for finding in self._kept(node)),
            *self._strangers(held),
        ]
        return tuple(sorted(findings, key=str))

    def _up(self) -> list[ClusterNode]:
        return [node for node in self._cluster.nodes if node.is_up]

    def _read(self, node: ClusterNode) -> Iterator[Held]:
        rows: dict[GraphId, dict[bytes, bytes]] = {}
        for graph, item_id, data in _rows(node, "SELECT graph, id, data FROM item WHERE place = 'in'"):
            rows.setdefault(GraphId(graph), {})[item_id] = data
        for graph_id, graph in node.inside.ledger.graphs.items():
            found = rows.get(graph_id, {})
            items = {item_id: self._decode(item_id, data) for item_id, data in found.items()}
            about: dict[AssetKey, list[Item]] = {}
            for item in items.values():
                key = _asset_of(item)
                if key is not None:
                    about.setdefault(key, []).append(item)
            yield Held(node, graph, items, about)

    def _decode(self, item_id: bytes, data: bytes) -> Item:
        item = self._decoded.get(item_id)
        if item is None:
            item = self._decoded[item_id] = decode_item(data)
        return item

    # a

    def _verifies(self, held: Held) -> Iterator[Finding]:
        name = held.node.name
        contents = {row[0]: row[1] for row in _rows(held.node, "SELECT hash, data FROM content")}
        for item_id, item in held.items.items():
            content = item.body.content if isinstance(item, Envelope) and isinstance(item.body, Sealed) else None
            data = contents.get(content.hash, b"") if content is not None else b""
            if (item_id, data[:1]) in self._right:
                continue
            try:
                _verify(item_id, item, data)
            except (RefusedError, AssertionError) as wrong:
                yield Finding("a", name, f"a {item.kind.word} {item_id.hex()[:8]} that does not verify: {wrong}")
            else:
                self._right.add((item_id, data[:1]))

    # b

    def _equal(self, held: list[Held]) -> Iterator[Finding]:
        for it in held:
            on_disk = set(it.items)
            in_memory = {record.id for record in it.graph.set.records()}
            # The memory may be ahead of the disk by what is being written just now.
            if on_disk != in_memory and it.node.inside.ledger.database.is_idle:
                differ = len(on_disk ^ in_memory)
                yield Finding("b", it.node.name, f"its file and its memory differ in {differ} items of {it.graph.name}")
        for group in self._cluster.reachable():
            for graph_id in sorted({it.graph.id for it in held}):
                here = [it for it in held if it.graph.id == graph_id and it.node in group]
                yield from self._equal_members(here)
        yield from self._outsiders(held)

    def _equal_members(self, here: list[Held]) -> Iterator[Finding]:
        newest = max((it.graph for it in here if it.graph.head), key=_order, default=None)
        if newest is None:
            return
        members = [it for it in here if newest.is_member(it.node.address)]
        if not members or not all(self._believes_equal(it, members) for it in members):
            return
        t_ms = max(it.node.clock.now_ms() for it in members) + MINUTE_MS
        sets = {
            it.node.name: {item_id for item_id, item in it.items.items() if _stays(it, item, t_ms)} for it in members
        }
        union = set().union(*sets.values())
        for name, ids in sets.items():
            if ids != union:
                missing = ", ".join(sorted(item_id.hex()[:8] for item_id in union - ids)[:4])
                yield Finding("b", name, f"believes itself equal with the others and lacks {missing}")

    def _believes_equal(self, held: Held, members: list[Held]) -> bool:
        """Whether the last comparisons with all other members were equal, and nothing came since."""
        last = held.node.inside.exchange.last_comparisons()
        changed_ms = self._cluster.changed_ms(held.graph.id)
        for other in members:
            if other is held:
                continue
            found = last.get((other.node.inside.network.peer_id, held.graph.id))
            if found is None or not found.comparison.equal or found.at_ms <= changed_ms:
                return False
        return True

    def _outsiders(self, held: list[Held]) -> Iterator[Finding]:
        for it in held:
            listed = {
                member.address for other in held if other.graph.id == it.graph.id and other.graph.head
                for member in other.graph.head.body.members
            }  # fmt: skip
            names = {it.node.address, *it.node.inside.services.delegating.principals()}
            if names & listed or names & self._cluster.ever_listed:
                continue
            if it.items and not it.node.inside.ledger.is_open(it.graph.id):
                yield Finding(
                    "b", it.node.name, f"was never a member of {it.graph.name} and holds {len(it.items)} items"
                )
        for node, since_ms in self._cluster.removed.items():
            for it in held:
                if it.node is not node:
                    continue
                after = [
                    item for item in it.items.values()
                    if isinstance(item, Envelope) and item.author != node.address
                    and item.issued_at_ms > since_ms + 5 * MINUTE_MS
                ]  # fmt: skip
                if after:
                    yield Finding("b", node.name, f"was removed and got {len(after)} items that were said afterwards")

    # c

    def _ends(self, held: Held) -> Iterator[Finding]:
        node, name, now_ms = held.node, held.node.name, held.node.clock.now_ms()
        for item_id, item in held.items.items():
            if node.inside.services.keeper.paused or not isinstance(item, Envelope) or not item.expires_at_ms:
                continue
            if now_ms >= item.expires_at_ms + MINUTE_MS:
                yield Finding("c", name, f"a {item.kind.word} {item_id.hex()[:8]} is in the set past its end")
        for key in held.graph.set.assets():
            for view in asset_view(held.graph.set, key, now_ms).versions:
                signed = lives_until(held.about.get(key, ()), view.key, now_ms)
                shown = None if not view.published and view.shares_end_ms is None else view.lives_until_ms or 0
                if view.is_visible and signed != shown:
                    yield Finding("c", name, f"{view.key} is shown as living until {shown}; its author signed {signed}")
        stands = {iri for iri in node.inside.store.placed() if "/assertion/" not in iri}
        live = versions_of(held.items.values(), now_ms)
        names = {f"/{key.author}/{key.name}" for key in live}
        behind = node.inside.services.projector.position < node.inside.ledger.position
        for iri in sorted(stands):
            mine = iri.startswith(held.graph.name.iri)
            if mine and not behind and not any(iri.partition("@")[0].endswith(name) for name in names):
                yield Finding("c", name, f"the triple store still holds {iri.rpartition('/')[2]}, which has ended")

    # d

    def _trust(self, held: Held) -> Iterator[Finding]:
        head, now_ms = held.graph.head, held.node.clock.now_ms()
        if head is None:
            return
        headers = line_of(head, [signed.header for signed in held.graph.headers.headers()])
        for key in held.graph.set.assets():
            for view in asset_view(held.graph.set, key, now_ms).versions:
                naive = naive_level(held.about.get(key, []), head, headers, view.key, now_ms)
                if naive != view.trust.level.word:
                    shown = view.trust.level.word
                    yield Finding(
                        "d", held.node.name, f"{view.key} is shown as {shown}; its signatures make it {naive}"
                    )

    # e

    def _jobs(self, node: ClusterNode) -> Iterator[Finding]:
        now_ms = node.clock.now_ms()
        rows = _rows(node, "SELECT id, kind, state, submitted_ms, detail FROM job")
        recent = [row for row in rows if row[3] > now_ms - 6 * DAY_MS]
        for job_id, kind, state, submitted_ms, detail in rows:
            if state in ("queued", "running") and now_ms - submitted_ms > JOB_RUNS_MS_MAX:
                yield Finding("e", node.name, f"a {kind} job {job_id} is {state} since long: {detail}")
        said = Counter(kind for kind, at_ms in node.said if at_ms > now_ms - 6 * DAY_MS)
        submitted = Counter(row[1] for row in recent)
        for kind, word in ((Kind.SHARE, "share"), (Kind.PUBLISH, "publish")):
            if said[kind] > submitted[word]:
                yield Finding("e", node.name, f"{submitted[word]} {word} jobs said {said[kind]} things")

    # f

    def _limits(self, node: ClusterNode) -> Iterator[Finding]:
        inside, now_ms = node.inside, node.clock.now_ms()
        if node.clock.skew_ms == 0 and not inside.services.keeper.paused:
            before_ms = now_ms - ENDED_ROWS_KEPT_MS
            up_ms = now_ms - inside.services.started_ms
            rows = _rows(node, "SELECT aside_ms FROM item WHERE place = 'expired'")
            ended = sum(aside_ms < before_ms for (aside_ms,) in rows)
            if ended and up_ms > ENDED_ROWS_KEPT_MS:
                yield Finding("f", node.name, f"{ended} rows of what ended long ago")
        live = inside.queue.statistics().live
        if live > LIVE_JOBS_MAX:
            yield Finding("f", node.name, f"{live} jobs live")
        cached = inside.exchange.recent_bytes
        if cached > RECENT_BYTES_MAX:
            yield Finding("f", node.name, f"{cached} bytes are kept for relaying")
        if inside.network.statistics().connections > 256:
            yield Finding("f", node.name, "more connections than any node may have")

    # g

    def _kept(self, node: ClusterNode) -> Iterator[Finding]:
        now_ms = node.clock.now_ms()
        jobs = {row[0] for row in _rows(node, "SELECT id FROM job")}
        drafts = {(row[0], row[1]) for row in _rows(node, "SELECT graph, name FROM draft")}
        own = {(row[0], row[1]) for row in _rows(node, "SELECT graph, name FROM own")}
        for promise in node.promises:
            if promise.job and promise.job not in jobs and now_ms - promise.at_ms < 6 * DAY_MS:
                yield Finding("g", node.name, f"the job {promise.job} was acknowledged and is lost")
            place = (promise.graph, promise.name)
            if promise.name and place not in drafts and place not in own and not _was_erased(node, promise):
                yield Finding("g", node.name, f"{promise.name} was acknowledged and is lost")

    # h

    def _strangers(self, held: list[Held]) -> Iterator[Finding]:
        if not self._cluster.strangers:
            return
        needles: dict[bytes, str] = {}
        for it in held:
            needles[it.graph.name.iri.encode()] = "the name of a graph"
            for member in it.graph.head.body.members if it.graph.head else ():
                needles[bytes(member.address)] = "the address of a member"
            for item_id in it.items:
                needles[item_id] = "the id of an item"
        for node in self._up():
            for (data,) in _rows(node, "SELECT data FROM content"):
                needles |= {line: "a statement" for line in data.splitlines() if len(line) >= NEEDLE_BYTES_MIN}
        for stranger in self._cluster.strangers:
            heard = bytes(stranger.heard)
            for what in sorted({what for needle, what in needles.items() if needle in heard}):
                yield Finding("h", stranger.network.name, f"heard {what}")


def _verify(item_id: bytes, item: Item, content: bytes) -> None:
    assert item.id == item_id, "it is kept under another id than its own"
    assert decode_item(item.encode()).id == item_id, "it does not survive being encoded"
    item.check()
    if content and isinstance(item, Envelope) and isinstance(item.body, Sealed):
        seal = item.body.seal.seal
        found = check_canonical(content)
        assert (found.root, found.line_count) == (seal.root, seal.leaves), "its content is not what was sealed"


def _stays(held: Held, item: Item, t_ms: int) -> bool:
    """Whether an item is in what members compare: it lives a minute from now; evidence as long as its subject."""
    if isinstance(item, Envelope):
        return item.expires_at_ms == 0 or item.expires_at_ms > t_ms
    return lives_until(held.about.get(item.subject.asset, ()), item.subject, t_ms) is not None


def _asset_of(item: Item) -> AssetKey | None:
    if not isinstance(item, Envelope):
        return item.subject.asset
    return item.body.seal.seal.key.asset if isinstance(item.body, Sealed) else None


def _order(graph: LedgerGraph) -> tuple[int, int, bytes]:
    assert graph.head is not None
    return (graph.head.header.term, graph.head.header.version, graph.head.id)


def _rows(node: ClusterNode, sql: str) -> list[tuple[Any, ...]]:
    def read(connection: sqlite3.Connection) -> list[tuple[Any, ...]]:
        return connection.execute(sql).fetchall()

    return node.inside.ledger.database.read(read)


def _was_erased(node: ClusterNode, promise: Promise) -> bool:
    """Whether the author took it back for good: then its bytes must be gone, also here."""
    graph = node.inside.ledger.graphs.get(promise.graph)
    retracts = graph.set.retracts(AssetKey(node.address, promise.name)) if graph is not None else ()
    return any(retract.mode is RetractMode.ERASE for retract in retracts)
