"""Vectors of whole sets: steps under one head, what R(t) is then, and what a reader sees of each asset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from p2pmem_protocol.bodies import Ack, ContentRef, Retract, RetractMode, Revoke, Sealed
from p2pmem_protocol.credential import ActFor, Right, SignedActFor
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.evidence import Evidence, Method
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import AssetKey, VersionKey
from p2pmem_protocol.roster import Access, Body, KeptCertificate, Limits, Quorum, Quotas, Roster
from p2pmem_protocol.seal import NO_PREVIOUS, Seal
from p2pmem_protocol.trust import Floor, Trust
from p2pmem_protocol.view import asset_view

from scripts.vectors.common import DAY_MS, GRAPH, NETWORK, NOW_MS, Json, address, key, text
from scripts.vectors.contents import content_of
from scripts.vectors.items import delegation, endorse, envelope, seal, share, verdict
from scripts.vectors.rosters import ROLES, after, first, members
from scripts.vectors.sets import step

QUORUM: Final = first().quorum
LATER: Final = Quorum(GRAPH, 2, 1, (address("bob"),))


@dataclass(frozen=True)
class _Step:
    name: str
    item: Item
    reason: Reason | None = None


def sets() -> Json:
    return {"cases": [_quotas(), _lead(), _cuts(), _kept(), _made_up(), _versions(), _evidence()]}


def _case(
    name: str,
    roster: Roster,
    steps: Sequence[_Step],
    assets: Sequence[tuple[str, str]],
    earlier: Sequence[Roster] = (),
) -> Json:
    """`earlier`: the other rosters of which the headers are held."""
    headers = HeadChain(GRAPH, NETWORK)
    headers.add_all([it.signed for it in (*earlier, roster)])
    graph_set = GraphSet(GRAPH, NETWORK)
    graph_set.set_head(roster, NOW_MS, named=headers.quorums_of(roster.id))
    taken = [step(graph_set, it.name, it.item, NOW_MS, it.reason) for it in steps]
    reconciled: list[Json] = []
    views: list[Json] = []
    for t_ms in (NOW_MS, NOW_MS + DAY_MS):
        graph_set.sweep(t_ms)
        items = [[place, text(item_id)] for place, item_id in graph_set.reconciled(t_ms)]
        reconciled.append({"t": t_ms, "items": items})
        views += [_view(graph_set, AssetKey(address(author), asset), t_ms) for author, asset in assets]
    return {
        "name": name,
        "header": text(roster.signed.encode()),
        "parts": [text(it) for it in roster.body.parts.all],
        "earlier": [text(it.signed.encode()) for it in earlier],
        "steps": taken,
        "reconciled": reconciled,
        "views": views,
    }


def _view(graph_set: GraphSet, asset: AssetKey, t_ms: int) -> Json:
    view = asset_view(graph_set, asset, t_ms)
    return {
        "author": str(asset.author),
        "asset": asset.name,
        "t": t_ms,
        "versions": [
            {
                "version": it.key.version,
                "root": text(it.key.root),
                "seal": text(it.key.seal),
                "published": it.published,
                "shared_until": it.shared_until_ms,
                "hidden_by": text(it.hidden_by) if it.hidden_by else None,
                "conflict": it.conflict,
                "visible": it.is_visible,
                "level": it.trust.level.word,
            }
            for it in view.versions
        ],
        "current": {
            level.word: [[it.key.version, text(it.key.seal)] for it in view.current(Floor(level))]
            for level in Trust
            if level is not Trust.REJECTED
        },
    }


def _sealed(author: str, asset: str, version: int = 1, says: str = "1", subgraph: str = "") -> Sealed:
    content = content_of(f'<urn:{asset}> <urn:p:says> "{says}" .\n')
    previous = NO_PREVIOUS if version == 1 else bytes([version - 1]) * 32
    seal = Seal(NETWORK, GRAPH, subgraph, asset, version, content.root, content.line_count, previous, address(author))
    return Sealed(seal.sign(key(author)), ContentRef.of(content.data))


def _key(author: str, asset: str, version: int = 1, says: str = "1") -> VersionKey:
    return _sealed(author, asset, version, says).seal.seal.key


def _share(author: str, asset: str, version: int = 1, says: str = "1", *, at: int = 0, life: int = DAY_MS) -> Envelope:
    return envelope(Kind.SHARE, author, _sealed(author, asset, version, says), issued=NOW_MS + at, life=life)


def _publish(
    author: str, asset: str, version: int = 1, says: str = "1", *, at: int = 0, shown: SignedActFor | None = None
) -> Envelope:
    return envelope(Kind.PUBLISH, author, _sealed(author, asset, version, says), issued=NOW_MS + at, shown=shown)


def _retract(
    by: str,
    author: str,
    asset: str,
    version: int = 1,
    *,
    mode: RetractMode = RetractMode.KEEP,
    successor: int | None = None,
    at: int = 0,
    shows: SignedActFor | None = None,
    shown: SignedActFor | None = None,
) -> Envelope:
    body = Retract(address(author), asset, version, mode, successor, "", shows)
    return envelope(Kind.RETRACT, by, body, issued=NOW_MS + at, shown=shown)


def _revoke(by: str, agent: str, *, at: int = 0) -> Envelope:
    return envelope(Kind.REVOKE, by, Revoke(address(agent), None, 1, ()), issued=NOW_MS + at)


def _limits(quorum: Quorum = QUORUM, quotas: Quotas | None = None) -> Limits:
    return Limits(Access.GATED, quorum, quotas=quotas or Quotas())


def _quotas() -> Json:
    roster = first(_limits(quotas=Quotas(1_800, 3, 2, 1_000, 20)))
    ack = envelope(Kind.ACK, "alice", Ack(bytes(32)), issued=NOW_MS + 3, life=DAY_MS)
    full = Reason.OVER_QUOTA
    large = envelope(Kind.SHARE, "alice", _sealed("alice", "large", says="x" * 1_000), life=DAY_MS)
    largest = envelope(Kind.SHARE, "bob", _sealed("bob", "large", says="x" * 970), life=DAY_MS)
    steps = (
        _Step("content of more bytes than the largest", large, full),
        _Step("content of exactly so many", largest),
        _Step("a publish", _publish("alice", "a")),
        _Step("a first live item", _share("alice", "b", at=1)),
        _Step("a second", _share("alice", "c", at=2)),
        _Step("a third, small", ack),
        _Step("a fourth, issued later than all", _share("alice", "d", at=4), full),
        _Step("another one's quota is another one", _share("bob", "d", at=4)),
        _Step("a fourth, issued earlier: the third is put aside", _share("alice", "e", at=-1)),
        _Step("a second publish: bytes are counted of what stays, too", _publish("alice", "f", at=5), full),
        _Step("an early publish puts one aside, and lets a smaller one in again", _publish("alice", "g", at=-2)),
        _Step("a third publish, earlier still: the last of them is put aside", _publish("alice", "h", at=-3)),
    )
    return _case("quotas", roster, steps, [("alice", it) for it in ("a", "b", "c", "e", "g", "h")])


def _lead() -> Json:
    """What ends within the minute after t is not in R(t), and takes no room there."""
    roster = first(_limits(quotas=Quotas(live_items=1)))
    steps = (
        _Step("a share", _share("alice", "a", at=1)),
        _Step("one issued earlier, for half a minute, puts it aside", _share("alice", "b", life=30_000)),
    )
    return _case("what ends within the minute", roster, steps, [("alice", "a"), ("alice", "b")])


def _cuts() -> Json:
    roster = first(_limits(quotas=Quotas(cuts=2)))
    full = Reason.OVER_QUOTA
    by_team = delegation()
    steps = (
        *(_Step(f"a publish of {it}", _publish("alice", it)) for it in ("a", "b", "c")),
        _Step("an agent publishes for a principal", _publish("assistant", "p", shown=by_team)),
        _Step("a retract", _retract("alice", "alice", "a", at=1)),
        _Step("a second", _retract("alice", "alice", "b", at=2)),
        _Step("a third", _retract("alice", "alice", "c", at=3), full),
        _Step("a revoke puts the second retract aside", _revoke("alice", "stranger", at=9)),
        _Step("an agent retracts its own words", _retract("assistant", "assistant", "p", shown=by_team)),
        _Step("but not another's", _retract("assistant", "team", "q", shown=by_team), Reason.NOT_LISTED),
        _Step("a revoke ends the agent's words and its retract", _revoke("team", "assistant", at=1)),
        _Step("an ack under a delegation", _ack_of_agent(), Reason.NOT_LISTED),
        _Step("a publish under the right to share", _publish("assistant", "r", shown=_sharing()), Reason.NOT_LISTED),
    )
    assets = [*(("alice", it) for it in ("a", "b", "c")), ("assistant", "p")]
    return _case("cuts", roster, steps, assets)


def _sharing() -> SignedActFor:
    return delegation(Right.SHARE, serial=2)


def _ack_of_agent() -> Envelope:
    return envelope(Kind.ACK, "assistant", Ack(bytes(32)), life=DAY_MS, shown=delegation(serial=2))


def _kept() -> Json:
    """Alice is removed, the quorum is another one; one share and one certificate stay."""
    about = _key("alice", "kept")
    bob, carol = verdict("bob", about), verdict("carol", about, method=Method.MANUAL)
    again = _another(carol, [verdict("carol", about, method=Method.MANUAL, reason=str(n)) for n in range(64)])
    kept = _share("alice", "kept")
    body = Body(
        members({name: roles for name, roles in ROLES.items() if name != "alice"}),
        _limits(LATER),
        (kept.id,),
        (KeptCertificate(about, QUORUM, tuple(sorted((bob.id, carol.id)))),),
    )
    steps = (
        _Step("a share that is listed", kept),
        _Step("one that is not", _share("alice", "other"), Reason.NOT_LISTED),
        _Step("a renewal of what is listed", _share("alice", "kept", at=1), Reason.NOT_LISTED),
        _Step("a verdict that the certificate lists", bob),
        _Step("under the earlier quorum, not listed", verdict("dave", about), Reason.WRONG_QUORUM),
        _Step("the other one that it lists", carol),
        _Step("the same of its signer, under the earlier quorum", again, Reason.WRONG_QUORUM),
        _Step("a retract by her who is removed", _retract("alice", "alice", "kept"), Reason.NOT_LISTED),
    )
    return _case("what a head keeps", after(first(), body), steps, [("alice", "kept")], [first()])


def _made_up() -> Json:
    """The owner keeps a certificate under a quorum that no header names, by somebody who is no member."""
    about = _key("alice", "kept")
    mine = Quorum(GRAPH, 1_000, 1, (address("mallory"),))
    said = verdict("mallory", about, quorum=mine)
    body = Body(members(), _limits(LATER), (), (KeptCertificate(about, mine, (said.id,)),))
    steps = (_Step("a share", _share("alice", "kept")), _Step("a verdict that the certificate lists", said))
    return _case("a quorum that the graph never had", after(first(), body), steps, [("alice", "kept")], [first()])


def _another(than: Evidence, others: Sequence[Evidence]) -> Evidence:
    """One with a lower id."""
    return next(it for it in others if it.id < than.id)


def _versions() -> Json:
    to_alice = ActFor(NETWORK, address("team"), address("alice"), 1, "", Right.all()).sign(key("team"))
    erase = RetractMode.ERASE
    steps = (
        _Step("early: version 1 for two days", _share("alice", "early", 1, life=2 * DAY_MS)),
        _Step("early: version 2 ends before it", _share("alice", "early", 2, "2")),
        _Step("early: a renewal of version 2", _share("alice", "early", 2, "2", at=1, life=3 * DAY_MS)),
        _Step("barred: version 1", _share("alice", "barred", 1, life=2 * DAY_MS)),
        _Step("barred: version 2 ends before it", _share("alice", "barred", 2, "2")),
        *(_Step(f"hidden: version {n}", _publish("alice", "hidden", n, str(n))) for n in (1, 2, 3)),
        _Step("hidden: a retract of version 2", _retract("alice", "alice", "hidden", 2)),
        *(_Step(f"back: version {n}", _publish("alice", "back", n, str(n))) for n in (1, 2, 3)),
        _Step("back: a retract of 3 with 1 for successor", _retract("alice", "alice", "back", 3, successor=1)),
        *(_Step(f"moderated: version {n}", _publish("alice", "moderated", n, str(n))) for n in (1, 2)),
        _Step("moderated: the owner's retract", _retract("owner", "alice", "moderated", 2)),
        _Step("spoken: for a principal", _publish("assistant", "spoken", shown=delegation())),
        _Step("spoken: the principal's retract", _retract("team", "assistant", "spoken", shows=delegation())),
        _Step("own: by alice", _publish("alice", "own")),
        _Step("own: a retract by whom she never spoke for", _retract("team", "alice", "own", shows=to_alice)),
        _Step("erased: shared", _share("alice", "erased")),
        _Step("erased: the retract", _retract("alice", "alice", "erased", mode=erase)),
        _Step("erased: a renewal", _share("alice", "erased", at=1), Reason.ERASED),
        _Step("erased: another version", _share("alice", "erased", 2, "2")),
        _Step("split: one root", _publish("alice", "split", says="one")),
        _Step("split: another one", _share("alice", "split", says="two")),
    )
    names = ("early", "barred", "hidden", "back", "moderated", "own", "erased", "split")
    return _case("versions", first(), steps, [*(("alice", it) for it in names), ("assistant", "spoken")])


def _evidence() -> Json:
    one, two, three = (_key("alice", "floors", n, str(n)) for n in (1, 2, 3))
    endorsed = endorse("bob", one)
    lower = _another(endorsed, [endorse("bob", one, reason=str(n)) for n in range(64)])
    sealed = _sealed("alice", "resealed", subgraph="approved")
    other, again = sealed.seal.seal.key, envelope(Kind.SHARE, "alice", sealed, life=DAY_MS)
    mixed = replace(other, root=two.root)
    steps = (
        *(_Step(f"version {n}", _publish("alice", "floors", n, str(n))) for n in (1, 2, 3)),
        _Step("an endorsement of 1", endorsed),
        _Step("the same with a lower id takes its place", lower),
        _Step("one of 2", endorse("alice", two)),
        *(_Step(f"{it} approves 1", verdict(it, one)) for it in ("carol", "dave")),
        _Step("carol approves 2", verdict("carol", two)),
        _Step("bob endorses 3", endorse("bob", three)),
        _Step("of a root that is not held", endorse("bob", _key("alice", "floors", 3, "4")), Reason.SUBJECT_NOT_HELD),
        _Step("a version that is verified", _publish("alice", "resealed")),
        *(_Step(f"{it} approves it", verdict(it, _key("alice", "resealed"))) for it in ("carol", "dave")),
        _Step("the same root sealed in a sub-graph, and shared", again),
        _Step("an approval of that", verdict("carol", other)),
        _Step("under the seal of one and the root of another", verdict("bob", mixed), Reason.SUBJECT_NOT_HELD),
        _Step("shared for an hour", share("bob", life=3_600_000)),
        _Step("its approval goes with it", verdict("carol", seal("bob").key)),
    )
    assets = [("alice", "floors"), ("bob", "site-7"), ("alice", "resealed")]
    return _case("evidence and floors", first(), steps, assets)
