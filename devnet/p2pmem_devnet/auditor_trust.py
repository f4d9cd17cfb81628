"""Trust computed a second time, slowly and from the signed bytes alone, to hold the node's own answer against.

Nothing is taken from the node but the bytes of items and the roster. No index, no record, no earlier result: each
version is judged by reading everything that was ever said. See rules E1, E3, E4, T1 and K3.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.envelope import Envelope, Item
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Verdict
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.roster import Header, Quorum, Role, Roster


def versions_of(items: Iterable[Item], t_ms: int) -> set[VersionKey]:
    """Every version of which a share or a publish is live."""
    return {
        _key(item)
        for item in items
        if isinstance(item, Envelope) and isinstance(item.body, Sealed) and _lives(item, t_ms)
    }


def lives_until(items: Iterable[Item], key: VersionKey, t_ms: int) -> int | None:
    """The latest end that an author signed for a version; 0 when it was published, None when nothing of it lives."""
    ends = [item.expires_at_ms for item in _sealed(items, t_ms) if _key(item) == key]
    if not ends:
        return None
    return 0 if 0 in ends else max(ends)


def line_of(head: Roster, headers: Iterable[Header]) -> list[Header]:
    """The head's header and those from which it descends, as far as they are among `headers`."""
    known = {header.id: header for header in headers}
    line = [head.header]
    while (parent := known.get(line[-1].parent)) is not None:
        line.append(parent)
    return line


def naive_level(items: Collection[Item], head: Roster, headers: Collection[Header], key: VersionKey, t_ms: int) -> str:
    """The word of the level at which a version stands. `headers`: those from which the head descends."""
    barred = {key.author} | {item.principal for item in _sealed(items, t_ms) if _number(item) == _number_of(key)}
    said = [item for item in items if isinstance(item, Evidence) and item.subject == key]
    verdicts = [(item.id, item.statement) for item in said if isinstance(item.statement, Verdict)]
    approved, rejected = _verdicts(verdicts, head.quorum, barred)
    m = head.quorum.m
    n = sum(verifier not in barred for verifier in head.quorum.verifiers)
    if (m and len(approved) >= m) or _is_certified(verdicts, head, headers, key, barred):
        return "ConsensusVerified"
    if rejected and len(rejected) > n - m:
        return "Rejected"
    if approved:
        return "PartiallyVerified"
    return "Endorsed" if _is_endorsed(said, head, barred) else "SelfAttested"


def _verdicts(
    verdicts: Iterable[tuple[bytes, Verdict]], quorum: Quorum, barred: Collection[Address]
) -> tuple[set[Address], set[Address]]:
    """Who approved, and who rejected and did not approve, under this quorum."""
    counted = [
        verdict
        for _, verdict in verdicts
        if quorum.m
        and verdict.quorum == quorum.id
        and verdict.signer in quorum.verifiers
        and verdict.signer not in barred
    ]
    approved = {verdict.signer for verdict in counted if verdict.decision is Decision.APPROVE}
    return approved, {verdict.signer for verdict in counted} - approved


def _is_certified(
    verdicts: Iterable[tuple[bytes, Verdict]],
    head: Roster,
    headers: Collection[Header],
    key: VersionKey,
    barred: Collection[Address],
) -> bool:
    """Whether the head keeps a certificate whose verdicts are all there, of a quorum that the graph has or had."""
    held = dict(verdicts)
    for kept in head.body.certificates:
        was_named = any(kept.quorum.id == header.quorum for header in headers)
        if kept.subject == key and was_named and all(item_id in held for item_id in kept.verdicts):
            listed = [(item_id, held[item_id]) for item_id in kept.verdicts]
            approved, _ = _verdicts(listed, kept.quorum, barred)
            if len(approved) == len(kept.verdicts) == kept.quorum.m:
                return True
    return False


def _is_endorsed(said: Iterable[Evidence], head: Roster, barred: Collection[Address]) -> bool:
    endorsed: set[Address] = set()
    withdrawn: set[Address] = set()
    for item in said:
        if isinstance(item.statement, Endorsement):
            (withdrawn if item.statement.decision is Endorse.WITHDRAW else endorsed).add(item.signer)
    listed = {member.address for member in head.body.members if Role.ENDORSER in member.roles}
    kept = {item.signer for item in said if item.id in head.body.kept_ids}
    return bool((endorsed & (listed | kept)) - withdrawn - set(barred))


def _sealed(items: Iterable[Item], t_ms: int) -> list[Envelope]:
    return [
        item for item in items if isinstance(item, Envelope) and isinstance(item.body, Sealed) and _lives(item, t_ms)
    ]


def _lives(item: Envelope, t_ms: int) -> bool:
    return item.expires_at_ms == 0 or t_ms < item.expires_at_ms


def _key(item: Envelope) -> VersionKey:
    assert isinstance(item.body, Sealed)
    seal = item.body.seal.seal
    return seal.key


def _number(item: Envelope) -> tuple[Address, str, int]:
    return _number_of(_key(item))


def _number_of(key: VersionKey) -> tuple[Address, str, int]:
    return (key.author, key.name, key.version)
