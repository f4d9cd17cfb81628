"""The rules of the set and the view once more, as literally as they are written and as slowly as that is.

Nothing is shared with the fast implementation but the values themselves. Everything is computed from scratch, from the
known items, the head, and the time. Whoever doubts a rule reads it here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from p2pmem_protocol.bodies import Ack, Propose, Retract, RetractMode, Revoke, Sealed
from p2pmem_protocol.credential import Right
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Verdict
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ACK_MS_MAX, DEADLINE_MS_MAX
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.roster import KeptCertificate, Quorum, Role, Roster

FIVE_MINUTES, ONE_MINUTE, ONE_DAY = 5 * 60_000, 60_000, 24 * 3_600_000
PLACE_OF_WHAT_STAYS = 2**53 - 1


def is_live(item: Item, t: int) -> bool:
    """R2."""
    return isinstance(item, Evidence) or item.expires_at_ms == 0 or t < item.expires_at_ms


def is_listed(item: Item, head: Roster) -> bool:
    """K1, K3."""
    return item.id in head.body.kept_ids or any(item.id in kept.verdicts for kept in head.body.certificates)


def roles(head: Roster, agent: Address) -> Role:
    return next((member.roles for member in head.body.members if member.address == agent), Role(0))


def is_member(head: Roster, agent: Address) -> bool:
    return agent == head.header.owner or roles(head, agent) != Role(0)


def has_role(item: Item, head: Roster) -> bool:
    """Whether the head gives the signer what the kind needs; a listed id stands in for that."""
    if is_listed(item, head):
        return True
    if isinstance(item, Evidence):
        if isinstance(item.statement, Endorsement):
            return Role.ENDORSER in roles(head, item.signer)
        return item.signer in head.quorum.verifiers
    rights = item.delegation.delegation.rights if item.delegation else Right.all()
    body = item.body
    if item.kind is Kind.SHARE:
        return Role.WRITER in roles(head, item.principal) and Right.SHARE in rights
    if item.kind in (Kind.PUBLISH, Kind.ANCHOR):
        return Role.WRITER in roles(head, item.principal) and Right.PUBLISH in rights
    if item.kind is Kind.PROPOSE:
        return Role.WRITER in roles(head, item.principal) and Right.PROPOSE in rights
    if item.kind in (Kind.ACK, Kind.REVOKE):
        return is_member(head, item.author) and item.delegation is None
    assert isinstance(body, Retract)
    if body.author == item.author:
        return is_member(head, item.principal) and Right.RETRACT in rights
    if item.delegation is not None:
        return False
    if body.shown is not None:
        return is_member(head, item.author)
    return item.author == head.header.owner


def has_right(item: Item, head: Roster) -> bool:
    """Role or listing, and what a listing does not stand in for."""
    if not has_role(item, head):
        return False
    if isinstance(item, Evidence):
        # T2
        return (
            isinstance(item.statement, Endorsement) or is_listed(item, head) or item.statement.quorum == head.quorum.id
        )
    life = item.expires_at_ms - item.issued_at_ms
    if item.kind is Kind.SHARE and life > head.body.limits.ttl_max_ms:
        return False
    if item.kind is Kind.PROPOSE and life > DEADLINE_MS_MAX:
        return False
    if item.kind is Kind.ACK and life > ACK_MS_MAX:
        return False
    if isinstance(item.body, Propose) and item.body.quorum != head.quorum.id:
        return False
    if isinstance(item.body, Sealed) and not is_listed(item, head):
        return item.body.content.length <= head.body.limits.quotas.content_bytes
    return True


def fill(items: Iterable[Envelope], sizes: dict[bytes, int], head: Roster) -> set[bytes]:
    """Q1: in order, each that still fits all limits; per principal."""
    quotas = head.body.limits.quotas
    used: dict[Address, list[int]] = {}
    counted: set[bytes] = set()
    for item in sorted(items, key=lambda item: (item.issued_at_ms, item.id)):
        live_bytes, live, durable = used.setdefault(item.principal, [0, 0, 0])
        size = sizes[item.id]
        if isinstance(item.body, Sealed) and item.body.content.inline is None:
            size += item.body.content.length
        live_bytes += size
        if item.expires_at_ms:
            live += 1
        else:
            durable += 1
        if live_bytes <= quotas.live_bytes and live <= quotas.live_items and durable <= quotas.durable_items:
            used[item.principal] = [live_bytes, live, durable]
            counted.add(item.id)
    return counted


def first(items: Iterable[Envelope], room: dict[Address, int]) -> set[bytes]:
    """The first in order, as many of each principal as it has room for; takes the room."""
    counted: set[bytes] = set()
    for item in sorted(items, key=lambda item: (item.issued_at_ms, item.id)):
        if room[item.principal] > 0:
            room[item.principal] -= 1
            counted.add(item.id)
    return counted


def is_revoked(item: Envelope, revokes: Iterable[Envelope]) -> bool:
    """D1."""
    if item.delegation is None:
        return False
    about: list[tuple[int, bytes, Revoke]] = []
    for revoke in revokes:
        assert isinstance(revoke.body, Revoke)
        if revoke.author == item.principal and revoke.body.agent == item.author:
            about.append((-revoke.body.serial, revoke.id, revoke.body))
    if not about:
        return False
    _, _, counting = min(about, key=lambda it: it[:2])
    return item.delegation.delegation.serial <= counting.serial and item.id not in counting.kept


def covers(retract: Envelope, item: Envelope) -> bool:
    """V2: the author's and the owner's take back all of the version, a principal's what was said for it."""
    body, seal = retract.body, item.body
    assert isinstance(body, Retract)
    assert isinstance(seal, Sealed)
    return (body.author, body.name) == (item.author, seal.seal.seal.name) and (
        body.shown is None or retract.author == item.principal
    )


def is_erased(item: Envelope, retracts: Iterable[Envelope]) -> bool:
    """V3."""
    assert isinstance(item.body, Sealed)
    for retract in retracts:
        body = retract.body
        assert isinstance(body, Retract)
        if body.mode is RetractMode.ERASE and body.version == item.body.seal.seal.version and covers(retract, item):
            return True
    return False


@dataclass
class Decided:
    """The set, and the steps on the way to it."""

    ids: set[bytes] = field(default_factory=set)
    cut: set[bytes] = field(default_factory=set)
    erased: set[bytes] = field(default_factory=set)
    displaced: set[bytes] = field(default_factory=set)


def decide(known: Iterable[Item], sizes: dict[bytes, int], head: Roster | None, t: int) -> Decided:
    """The set under `head` at `t`."""
    known = [item for item in known if is_live(item, t)]
    decided = Decided()
    if head is None:
        decided.cut = {item.id for item in known}
        return decided
    rightful = [item for item in known if has_right(item, head)]
    decided.cut = {item.id for item in known} - {item.id for item in rightful}
    envelopes = [item for item in rightful if isinstance(item, Envelope)]

    # Q2: revokes and retracts first, with a count of their own.
    room = {item.principal: head.body.limits.quotas.cuts for item in envelopes}
    revokes = [item for item in envelopes if item.kind is Kind.REVOKE]
    counted = first((item for item in revokes if not is_listed(item, head)), room)
    revokes = [item for item in revokes if item.id in counted or is_listed(item, head)]
    decided.cut |= {item.id for item in envelopes if is_revoked(item, revokes)}
    retracts = [item for item in envelopes if item.kind is Kind.RETRACT and not is_revoked(item, revokes)]
    counted = first((item for item in retracts if not is_listed(item, head)), room)
    retracts = [item for item in retracts if item.id in counted or is_listed(item, head)]
    decided.ids |= {item.id for item in revokes} | {item.id for item in retracts}

    # Then what they cut is cut, also of what the head cuts already.
    decided.erased = {
        item.id
        for item in known
        if isinstance(item, Envelope) and isinstance(item.body, Sealed) and is_erased(item, retracts)
    }
    rest = [
        item
        for item in envelopes
        if item.kind not in (Kind.REVOKE, Kind.RETRACT)
        and item.id not in decided.erased
        and not is_revoked(item, revokes)
    ]
    # Then the rest is counted; Q3: what the head lists is outside the quota.
    decided.ids |= {item.id for item in rest if is_listed(item, head)}
    decided.ids |= fill((item for item in rest if not is_listed(item, head)), sizes, head)

    # E1, E3, E4
    subjects = {item.body.seal.seal.key for item in rest if item.id in decided.ids and isinstance(item.body, Sealed)}
    certified = {verdict for kept in head.body.certificates for verdict in kept.verdicts}
    evidence = [item for item in rightful if isinstance(item, Evidence)]
    for item in evidence:
        rivals = {other.id for other in evidence if meaning(other) == meaning(item)}
        if item.id not in (rivals & certified or {min(rivals)}):
            decided.displaced.add(item.id)
        elif item.subject in subjects:
            decided.ids.add(item.id)
    return decided


def meaning(item: Evidence) -> object:
    it = item.statement
    if isinstance(it, Verdict):
        return ("verdict", it.signer, it.quorum, it.subject, it.decision, it.method)
    return ("endorse", it.signer, it.subject, it.decision)


@dataclass(frozen=True)
class NaiveVersion:
    key: VersionKey
    shared_until: int | None
    published: bool
    hidden: bool
    conflict: bool
    level: str
    m: int
    n: int
    approvals: tuple[tuple[Address, int], ...]
    rejections: tuple[Address, ...]
    endorsements: tuple[Address, ...]

    @property
    def is_visible(self) -> bool:
        return not self.hidden and (self.shared_until is not None or self.published)


LEVELS = ("Rejected", "SelfAttested", "Endorsed", "PartiallyVerified", "ConsensusVerified")


class NaivePeer:
    """What one node knows, with the rules of what it keeps. Everything else is computed when asked."""

    def __init__(self) -> None:
        self.head: Roster | None = None
        self.forked = False
        self.named: Collection[bytes] = ()
        self.known: dict[bytes, Item] = {}
        self.sizes: dict[bytes, int] = {}
        self.cut_since: dict[bytes, int] = {}

    def set_head(self, head: Roster | None, t: int, forked: bool, named: Collection[bytes]) -> None:
        self.head, self.forked, self.named = head, forked, named
        self.tidy(t)

    def admit(self, item: Item, size: int, t: int) -> bool:
        if item.id in self.known or not is_live(item, t):
            return False
        if isinstance(item, Envelope) and item.issued_at_ms > t + FIVE_MINUTES:
            return False
        sizes = self.sizes | {item.id: size}
        if item.id not in decide([*self.known.values(), item], sizes, self.head, t).ids:
            return False
        self.known[item.id] = item
        self.sizes = sizes
        self.tidy(t)
        return True

    def tidy(self, t: int) -> None:
        """Let go what is not kept: ended, erased, displaced, evidence without a subject, cut for a day (H3)."""
        decided = decide(self.known.values(), self.sizes, self.head, t)
        self.cut_since = {item_id: self.cut_since.get(item_id, t) for item_id in decided.cut}
        gone = decided.erased | decided.displaced
        gone |= {item.id for item in self.known.values() if not is_live(item, t)}
        if self.head is not None and not self.forked:
            gone |= {item_id for item_id, since in self.cut_since.items() if since + ONE_DAY <= t}
        self._forget(gone)
        subjects = {
            item.body.seal.seal.key
            for item in self.known.values()
            if isinstance(item, Envelope) and isinstance(item.body, Sealed)
        }
        self._forget({it.id for it in self.known.values() if isinstance(it, Evidence) and it.subject not in subjects})

    def _forget(self, ids: set[bytes]) -> None:
        for item_id in ids:
            self.known.pop(item_id, None)
            self.cut_since.pop(item_id, None)

    def ids(self, t: int) -> set[bytes]:
        return decide(self.known.values(), self.sizes, self.head, t).ids

    def items(self, t: int) -> list[Item]:
        ids = self.ids(t)
        return [item for item in self.known.values() if item.id in ids]

    def reconciled(self, t: int) -> list[tuple[int, bytes]]:
        """R1: the set as it will be at t + 60 s."""
        items = self.items(t + ONE_MINUTE)
        places: dict[VersionKey, int] = {}
        found: list[tuple[int, bytes]] = []
        for item in items:
            if isinstance(item, Envelope):
                place = item.expires_at_ms or PLACE_OF_WHAT_STAYS
                found.append((place, item.id))
                if isinstance(item.body, Sealed):
                    key = item.body.seal.seal.key
                    places[key] = max(place, places.get(key, 0))
        found += [(places[item.subject], item.id) for item in items if isinstance(item, Evidence)]
        return sorted(found)

    # The view

    def view(self, asset: AssetKey, t: int) -> list[NaiveVersion]:
        items = self.items(t)
        sealed = [
            item
            for item in items
            if isinstance(item, Envelope) and isinstance(item.body, Sealed) and item.body.seal.seal.key.asset == asset
        ]
        retracts = [
            item
            for item in items
            if isinstance(item, Envelope)
            and isinstance(item.body, Retract)
            and AssetKey(item.body.author, item.body.name) == asset
        ]
        keys = sorted({_key(item) for item in sealed}, key=lambda key: (-key.version, key.seal))
        ends = {
            key: max(item.expires_at_ms for item in sealed if _key(item) == key and item.kind is Kind.SHARE)
            for key in keys
            if any(_key(item) == key and item.kind is Kind.SHARE for item in sealed)
        }
        # V1
        counting = {
            key: end
            for key, end in ends.items()
            if not any(o.version < key.version and e > end for o, e in ends.items())
        }
        published = {_key(item) for item in sealed if item.kind is Kind.PUBLISH}
        shown = set(counting) | published
        versions: list[NaiveVersion] = []
        for key in keys:
            of_number = [item for item in sealed if _key(item).version == key.version]
            barred = {asset.author} | {item.principal for item in of_number}
            about = [item for item in items if isinstance(item, Evidence) and item.subject == key]
            versions.append(
                NaiveVersion(
                    key=key,
                    shared_until=counting.get(key),
                    published=key in published,
                    hidden=any(_hides(retract, key.version, of_number) for retract in retracts),
                    conflict=key in shown and any(o.version == key.version and o != key for o in shown),
                    **self._trust(key, about, barred),
                )
            )
        return versions

    def _trust(self, key: VersionKey, about: list[Evidence], barred: set[Address]) -> dict[str, object]:
        assert self.head is not None
        verdicts = [item.statement for item in about if isinstance(item.statement, Verdict)]
        ids = {item.id for item in about}
        endorsing = [item.statement for item in about if isinstance(item.statement, Endorsement)]
        withdrawn = {it.signer for it in endorsing if it.decision is Endorse.WITHDRAW}
        endorsers = {it.signer for it in endorsing} - withdrawn - barred

        def under(quorum: Quorum) -> tuple[dict[Address, int], set[Address], int]:
            verifiers = set(quorum.verifiers) - barred
            mine = [it for it in verdicts if it.quorum == quorum.id and it.signer in verifiers and quorum.m]
            approvals: dict[Address, int] = {}
            for it in mine:
                if it.decision is Decision.APPROVE:
                    approvals[it.signer] = max(int(it.method), approvals.get(it.signer, 0))
            rejections = {it.signer for it in mine if it.decision is Decision.REJECT} - set(approvals)
            return approvals, rejections, len(verifiers)

        quorum = self.head.quorum
        approvals, rejections, n = under(quorum)
        m = quorum.m
        level = "SelfAttested"
        if m and len(approvals) >= m:
            level = "ConsensusVerified"
        elif rejections and len(rejections) > n - m:
            level = "Rejected"
        elif approvals:
            level = "PartiallyVerified"
        elif endorsers:
            level = "Endorsed"
        # Of what is complete the greatest M: at a tie the head's, then the lowest quorum id, then the first in the list
        best: KeptCertificate | None = None
        for kept in self.head.body.certificates:
            old, _, _ = under(kept.quorum)
            of_list = {it.signer for it in verdicts if it.digest in kept.verdicts}
            whole = set(kept.verdicts) <= ids and all(
                it.decision is Decision.APPROVE and it.quorum == kept.quorum.id
                for it in verdicts
                if it.digest in kept.verdicts
            )
            is_named = kept.quorum.id in {*self.named, quorum.id}
            is_complete = whole and len(of_list) == kept.quorum.m and of_list <= set(old)
            is_better = best is None or (kept.quorum.m, best.quorum.id) > (best.quorum.m, kept.quorum.id)
            if kept.subject == key and is_named and is_complete and is_better:
                best = kept
        if best is not None and (level != "ConsensusVerified" or best.quorum.m > m):
            old, against, n = under(best.quorum)
            level, m = "ConsensusVerified", best.quorum.m
            approvals = {it.signer: old[it.signer] for it in verdicts if it.digest in best.verdicts}
            rejections |= against
        return {
            "level": level,
            "m": m,
            "n": n,
            "approvals": tuple(sorted(approvals.items())),
            "rejections": tuple(sorted(rejections)),
            "endorsements": tuple(sorted(endorsers)),
        }

    def copies(self, root: bytes, t: int) -> dict[Address, int]:
        """A1."""
        found: dict[Address, int] = {}
        for item in self.items(t):
            if isinstance(item, Envelope) and isinstance(item.body, Ack) and item.body.root == root:
                found[item.author] = max(found.get(item.author, 0), item.expires_at_ms)
        return found


def current(view: list[NaiveVersion], level: str) -> set[VersionKey]:
    """V4: at a floor those roots are current that reach it, of the highest version that does."""
    reaching = [it for it in view if it.is_visible and LEVELS.index(it.level) >= LEVELS.index(level)]
    highest = max((version.key.version for version in reaching), default=0)
    return {version.key for version in reaching if version.key.version == highest}


def _key(item: Envelope) -> VersionKey:
    assert isinstance(item.body, Sealed)
    return item.body.seal.seal.key


def _hides(retract: Envelope, version: int, of_number: list[Envelope]) -> bool:
    """V2."""
    body = retract.body
    assert isinstance(body, Retract)
    if not any(covers(retract, item) for item in of_number):
        return False
    if body.version == version:
        return True
    by_owner = body.author != retract.author and body.shown is None
    return version < body.version and not by_owner and version != body.successor
