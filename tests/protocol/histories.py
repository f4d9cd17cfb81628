"""Random histories of a small context graph: rosters, and a pool of things that its members and others signed.

Everything follows from one seed. The pool is rich in what the rules are about: renewals, conflicts, early ends, agents
of principals, revocations, retracts of every sort, full quotas, evidence of many hands and methods, kept lists.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from p2pmem_protocol.bodies import RetractMode, Sealed
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.evidence import Decision, Endorse, Evidence, Method, Verdict
from p2pmem_protocol.kinds import CUTS, EVIDENCE, Kind
from p2pmem_protocol.names import AssetKey, VersionKey
from p2pmem_protocol.roster import KeptCertificate, Quotas, Role, Roster

from tests.protocol import world
from tests.protocol.world import DAY, HOUR, MINUTE, T0, address

WRITERS = ("alice", "bob")
AGENT = "helper"
JUDGES = ("carol", "dave", "erin")
EVERYBODY = (*WRITERS, *JUDGES, AGENT, "owner", "owner-2", "stranger")
LIVES = (50 * MINUTE, 3 * HOUR, DAY, 2 * DAY)


@dataclass(frozen=True)
class History:
    """`heads`: (roster, forked) in the order in which they were signed; `pool`: what was signed, in no order;
    `quorums`: the ids that the rosters name."""

    seed: int
    heads: list[tuple[Roster | None, bool]]
    pool: list[Item]
    quorums: frozenset[bytes]

    @property
    def assets(self) -> list[AssetKey]:
        found = {item.subject.asset for item in self.pool if isinstance(item, Evidence)}
        for item in self.pool:
            if isinstance(item, Envelope) and isinstance(item.body, Sealed):
                found.add(item.body.seal.seal.key.asset)
        return sorted(found)


def make(seed: int, *, size: int = 48) -> History:
    rng = random.Random(seed)
    again = random.Random(seed + 3)  # of its own, so that the other things of a seed do not hang on it
    quotas = _quotas(rng)
    members = _members(rng)
    chain = [world.roster(members, _m(rng, members), quotas=quotas)]
    pool: list[Item] = [
        world.share(author, version, name="x", issued=T0 - HOUR, life=3 * DAY)
        for author, version in (("alice", 1), ("bob", 1), ("alice", 2))
    ]
    for _ in range(rng.randint(1, 2)):
        pool += [_item(rng, chain, pool) for _ in range(size // 3)]
        chain.append(_next(rng, chain, pool, quotas))
        pool += _verified_again(again, chain[-1])
    pool += [_item(rng, chain, pool) for _ in range(size // 3)]
    heads: list[tuple[Roster | None, bool]] = [(each, False) for each in chain]
    for _ in range(rng.randint(0, 2)):
        place = rng.randint(1, len(heads))
        heads.insert(place, (rng.choice([None, *chain]), True))
    unique = {item.id: item for item in pool}
    return History(seed, heads, list(unique.values()), frozenset(it.quorum.id for it in chain))


def round_rank(kind: Kind) -> int:
    """In which order a round hands over: revokes and retracts first, evidence last."""
    if kind in CUTS:
        return 0
    return 2 if kind in EVIDENCE else 1


def _quotas(rng: random.Random) -> Quotas:
    if rng.random() < 0.5:
        return Quotas()
    return Quotas(
        live_bytes=rng.choice((2_500, 10_000, 100_000)),
        live_items=rng.randint(2, 8),
        durable_items=rng.randint(1, 4),
        content_bytes=rng.choice((20, 200, 10_000)),
        cuts=rng.randint(1, 5),
    )


def _members(rng: random.Random) -> dict[str, Role]:
    members = {name: rng.choice((world.W, world.W, world.W | world.E, world.W | world.V)) for name in WRITERS}
    for name in JUDGES:
        members[name] = rng.choice((world.V, world.E | world.V, world.E | world.V, world.W | world.E | world.V))
    if rng.random() < 0.2:
        members[AGENT] = world.W
    return members


def _changed(rng: random.Random, members: dict[str, Role]) -> dict[str, Role]:
    """One or two members removed, demoted or promoted."""
    changed = dict(members)
    for name in rng.sample([*WRITERS, *JUDGES], rng.randint(1, 2)):
        changed.pop(name, None)
        if rng.random() < 0.6:
            changed[name] = rng.choice((Role.READER, world.W, world.V, world.E | world.V))
    return changed


def _m(rng: random.Random, members: dict[str, Role]) -> int:
    verifiers = sum(Role.VERIFIER in roles for roles in members.values())
    return rng.randint(1, min(verifiers, 3)) if verifiers and rng.random() < 0.9 else 0


def _next(rng: random.Random, chain: list[Roster], pool: list[Item], quotas: Quotas) -> Roster:
    """Another roster, with lists that a careful, a careless or a forgetful owner may have written."""
    parent = chain[-1]
    share = rng.choice((0.0, 0.3, 0.9))
    kept = tuple(item.id for item in pool if rng.random() < share)
    members = {member.label: member.roles for member in parent.body.members}
    m = parent.quorum.m
    if rng.random() < 0.7:
        members = _changed(rng, members)
    if rng.random() < 0.3 or m > sum(Role.VERIFIER in roles for roles in members.values()):
        m = _m(rng, members)
    change_owner = rng.random() < 0.2
    return world.roster(
        members,
        m,
        parent=parent,
        owner="owner-2" if change_owner or parent.header.owner == address("owner-2") else "owner",
        term=parent.header.term + 1 if change_owner else None,
        quotas=quotas if rng.random() < 0.7 else _quotas(rng),
        ttl_max_ms=rng.choice((30 * DAY, 30 * DAY, 2 * HOUR)),
        kept=kept,
        certificates=_certificates(rng, chain, pool),
    )


def _certificates(rng: random.Random, chain: list[Roster], pool: list[Item]) -> tuple[KeptCertificate, ...]:
    found: list[KeptCertificate] = []
    verdicts = [item for item in pool if isinstance(item, Evidence) and isinstance(item.statement, Verdict)]
    for roster in chain:
        quorum = roster.quorum
        subjects = sorted({item.subject for item in verdicts})
        for about in subjects:
            here = [it for it in verdicts if it.subject == about and _quorum_of(it) == quorum.id]
            # Mostly right lists, sometimes lists with a rejection or the same signer twice in them.
            good = {it.signer: it.id for it in here if it.statement.decision is Decision.APPROVE}
            ids = sorted(good.values()) if rng.random() < 0.8 else sorted({it.id for it in here})
            if quorum.m and len(ids) >= quorum.m and rng.random() < 0.7:
                found.append(KeptCertificate(about, quorum, tuple(sorted(rng.sample(ids, quorum.m)))))
    return tuple(found[:6])


def _verified_again(rng: random.Random, head: Roster) -> list[Item]:
    """What is kept under a quorum with a greater M than the head's is mostly verified under that of the head too."""
    names = {address(name): name for name in EVERYBODY}
    return [
        world.verdict(names[verifier], kept.subject, head.quorum)
        for kept in head.body.certificates
        if 0 < head.quorum.m < kept.quorum.m
        for verifier in head.quorum.verifiers
        if rng.random() < 0.8
    ]


def _quorum_of(item: Evidence) -> bytes:
    return item.statement.quorum if isinstance(item.statement, Verdict) else b""


def _subject(rng: random.Random, pool: list[Item]) -> VersionKey:
    keys = [it.body.seal.seal.key for it in pool if isinstance(it, Envelope) and isinstance(it.body, Sealed)]
    if rng.random() < 0.7:
        return rng.choice(keys[:3])
    if rng.random() < 0.95:
        return rng.choice(keys)
    return world.subject(rng.choice(WRITERS), rng.randint(1, 2), "a")


def _item(rng: random.Random, chain: list[Roster], pool: list[Item]) -> Item:
    issued = T0 + rng.randint(-30, 10) * MINUTE
    maker = rng.choices(
        (_share, _publish, _retract, _revoke, _other, _endorse, _verdict), weights=(26, 8, 7, 4, 5, 14, 36)
    )[0]
    return maker(rng, chain, pool, issued)


def _speaker(rng: random.Random) -> tuple[str, world.SignedActFor | None]:
    """Who signs, and for whom: members for themselves, the agent for a principal, one member for another."""
    author = rng.choice((*WRITERS, *WRITERS, *WRITERS, AGENT, AGENT, AGENT, "carol", "stranger"))
    if author == AGENT or rng.random() < 0.05:
        principal = rng.choice([name for name in (*WRITERS, "carol") if name != author])
        rights = Right.all() if rng.random() < 0.9 else rng.choice((Right.SHARE, Right.PUBLISH, Right.RETRACT))
        return author, world.act_for(principal, author, rng.randint(1, 2), rights)
    return author, None


def _share(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    author, act = _speaker(rng)
    return world.share(
        author,
        rng.randint(1, 3),
        rng.choice("aab"),
        name=rng.choice(("x", "x", "y")),
        issued=issued,
        life=rng.choice(LIVES),
        act=act,
        size=rng.choice((10, 10, 10, 100, 500)),
        subgraph=_subgraph(issued),
    )


def _publish(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    author, act = _speaker(rng)
    return world.publish(
        author,
        rng.randint(1, 3),
        rng.choice("aab"),
        name=rng.choice(("x", "x", "y")),
        issued=issued,
        act=act,
        subgraph=_subgraph(issued),
    )


def _subgraph(issued: int) -> str:
    """One in three in another sub-graph: so there are several seals of one root."""
    return "" if issued // MINUTE % 3 else "elsewhere"


def _retract(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    about = _subject(rng, pool)
    author = next(name for name in EVERYBODY if address(name) == about.author)
    by = rng.choice((author, author, "owner", "owner-2", "carol", *WRITERS))
    act = shown = None
    if by == author and rng.random() < 0.4:
        principal = rng.choice([name for name in WRITERS if name != author])
        act = world.act_for(principal, author, rng.randint(1, 2))
    elif by in WRITERS and by != author and rng.random() < 0.8:
        shown = world.act_for(by, author)
    return world.retract(
        by,
        author,
        about.version,
        name=about.name,
        mode=rng.choice((RetractMode.KEEP, RetractMode.KEEP, RetractMode.KEEP, RetractMode.ERASE)),
        successor=rng.choice((None, None, 1, 2, 3)),
        issued=issued,
        act=act,
        shown=shown,
    )


def _revoke(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    kept = tuple(item.id for item in pool if isinstance(item, Envelope) and item.delegation and rng.random() < 0.2)
    principal = rng.choice(WRITERS)
    return world.revoke(principal, AGENT, rng.randint(1, 2), kept, issued)


def _other(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    author, act = _speaker(rng)
    which = rng.randrange(3)
    if which == 0:
        return world.propose(
            author, _subject(rng, pool), rng.choice(chain).quorum, issued=issued, life=rng.choice(LIVES), act=act
        )
    if which == 1:
        return world.ack(rng.choice(EVERYBODY), rng.choice("ab"), issued=issued, life=rng.choice(LIVES))
    return world.anchor(author, _subject(rng, pool), issued=issued)


def _endorse(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    decision = Endorse.WITHDRAW if rng.random() < 0.2 else Endorse.ENDORSE
    return world.endorse(
        rng.choice((*JUDGES, *JUDGES, *WRITERS, "stranger")), _subject(rng, pool), decision, rng.choice(("", "good"))
    )


def _verdict(rng: random.Random, chain: list[Roster], pool: list[Item], issued: int) -> Item:
    return world.verdict(
        rng.choice((*JUDGES, *JUDGES, *JUDGES, *WRITERS)),
        _subject(rng, pool),
        rng.choice((chain[-1], chain[-1], chain[-1], *chain)).quorum,
        Decision.REJECT if rng.random() < 0.25 else Decision.APPROVE,
        rng.choice((Method.AUTO, Method.AUTO, Method.MANUAL)),
        rng.choice(("", "because")),
    )
