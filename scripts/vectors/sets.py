"""Vectors of what follows from signed things: trust, admission under a head, certificates."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from p2pmem_protocol.bodies import Retract, RetractMode
from p2pmem_protocol.certificate import Certificate, make
from p2pmem_protocol.certificate_json import from_json, to_json
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Endorse, Evidence, Method
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.records import EvidenceRecord, record_of
from p2pmem_protocol.roster import KeptCertificate, Quorum
from p2pmem_protocol.trust import Line, assess

from scripts.vectors.common import (
    DAY_MS,
    GRAPH,
    NAME,
    NETWORK,
    NOW_MS,
    Json,
    address,
    changed,
    key,
    refused,
    text,
    word,
)
from scripts.vectors.items import (
    QUORUM,
    delegation,
    endorse,
    envelope,
    every_kind,
    seal,
    sealed,
    share,
    verdict,
)
from scripts.vectors.rosters import after, first, full_body

ABOUT: Final = seal("alice").key
OTHER: Final = Quorum(GRAPH, 2, 1, (address("bob"),))
SAME: Final = Quorum(GRAPH, 3, 2, tuple(sorted((address("carol"), address("dave")))))
ELSEWHERE: Final = seal("alice", subgraph="elsewhere").key
OTHER_ROOT: Final = replace(ABOUT, root=seal("alice", 2).root)
REJECT: Final = Decision.REJECT


def trust() -> Json:
    bob, carol, dave = (verdict(name, ABOUT) for name in ("bob", "carol", "dave"))
    no_bob, no_carol, no_dave = (verdict(name, ABOUT, REJECT) for name in ("bob", "carol", "dave"))
    manual = verdict("bob", ABOUT, method=Method.MANUAL)
    kept = KeptCertificate(ABOUT, QUORUM, tuple(sorted((bob.id, carol.id))))
    of_other = verdict("bob", ABOUT, quorum=OTHER)
    of_one = KeptCertificate(ABOUT, OTHER, (of_other.id,))
    of_same = tuple(verdict(name, ABOUT, quorum=SAME) for name in ("carol", "dave"))
    kept_same = KeptCertificate(ABOUT, SAME, tuple(sorted(it.id for it in of_same)))
    cases = (
        _trust("only the seal", ()),
        _trust("endorsed", (endorse("bob", ABOUT),)),
        _trust("an endorsement withdrawn", (endorse("bob", ABOUT), endorse("bob", ABOUT, Endorse.WITHDRAW))),
        _trust("endorsed by the author only", (endorse("alice", ABOUT),)),
        _trust("endorsed by the principal only", (endorse("team", ABOUT),), principals=("alice", "team")),
        _trust("one of two", (bob,)),
        _trust("two of two", (bob, carol)),
        _trust("two approvals of one verifier are one; the strongest method is shown", (bob, manual)),
        _trust("one who approves and rejects approves", (bob, no_bob)),
        _trust("one rejection of three leaves room for two", (no_bob,)),
        _trust("two rejections of three", (no_bob, no_carol)),
        _trust("an approval does not help then", (bob, no_carol, no_dave)),
        _trust("consensus stands before rejection", (bob, carol, no_dave)),
        _trust("a principal does not verify", (bob, carol), principals=("alice", "carol")),
        _trust("N < M: partly at most", (dave,), principals=("alice", "bob", "carol")),
        _trust("a rejection where N < M", (no_dave,), principals=("alice", "bob", "carol")),
        _trust("under another quorum", (bob, carol), quorum=OTHER),
        _trust("under another quorum, and kept", (bob, carol), quorum=OTHER, certificates=(kept,)),
        _trust("kept, but a verdict is missing", (bob,), quorum=OTHER, certificates=(kept,)),
        _trust("no quorum", (endorse("bob", ABOUT), bob), quorum=None),
        _trust(
            "complete under both: the greatest M counts, here that of the list",
            (bob, carol, of_other),
            quorum=OTHER,
            certificates=(kept,),
        ),
        _trust("and here that of the head", (bob, carol, of_other), certificates=(of_one,)),
        _trust("at a tie the head's", (bob, carol, *of_same), certificates=(kept_same,)),
        _trust("of two of the list the greatest M", (bob, carol, of_other), quorum=None, certificates=(of_one, kept)),
        _trust(
            "of two of the list with one M the lowest quorum id",
            (bob, carol, *of_same),
            quorum=None,
            certificates=(kept, kept_same) if SAME.id < QUORUM.id else (kept_same, kept),
        ),
    )
    return {"subject": _subject(ABOUT), "cases": list(cases)}


def _subject(it: VersionKey) -> list[str | int]:
    return [str(it.author), it.name, it.version, text(it.root), text(it.seal)]


def _trust(
    name: str,
    evidence: Sequence[Evidence],
    *,
    principals: Sequence[str] = ("alice",),
    quorum: Quorum | None = QUORUM,
    certificates: Sequence[KeptCertificate] = (),
) -> Json:
    records = [record_of(it, 0) for it in evidence]
    barred = [address(it) for it in principals]
    reports = [
        assess(
            ABOUT,
            [it for it in order if isinstance(it, EvidenceRecord)],
            principals=barred,
            quorum=quorum,
            certificates=certificates,
        )
        for order in (records, records[::-1])
    ]
    report = reports[0]
    assert (report.level, report.m, report.n) == (reports[1].level, reports[1].m, reports[1].n)
    return {
        "name": name,
        "evidence": [text(it.encode()) for it in evidence],
        "principals": [str(it) for it in barred],
        "quorum": _quorum(quorum) if quorum else None,
        "kept_certificates": [
            {"quorum": _quorum(it.quorum), "verdicts": [text(each) for each in it.verdicts]} for it in certificates
        ],
        "level": report.level.word,
        "m": report.m,
        "n": report.n,
        "approvals": _ids(report.approvals),
        "rejections": _ids(report.rejections),
        "endorsements": _ids(report.endorsements),
    }


def _quorum(quorum: Quorum) -> Json:
    return {"serial": quorum.serial, "m": quorum.m, "verifiers": [str(it) for it in quorum.verifiers]}


def _ids(lines: Sequence[Line]) -> list[str]:
    return sorted(text(line.id) for line in lines)


def admission() -> Json:
    roster = first()
    graph_set = GraphSet(GRAPH, NETWORK)
    graph_set.set_head(roster, NOW_MS)
    kinds = dict(every_kind())
    by_assistant = kinds["a share for a principal"]
    short = share("alice", 1, life=30_000)
    steps: tuple[tuple[str, Item, int, Reason | None], ...] = (
        ("a writer shares", kinds["a share"], NOW_MS, None),
        ("the same again", kinds["a share"], NOW_MS, Reason.DUPLICATE),
        ("nobody listed shares", share("stranger"), NOW_MS, Reason.NOT_LISTED),
        ("a verifier who is no writer shares", share("carol"), NOW_MS, Reason.NOT_LISTED),
        ("an agent shares for a listed principal", by_assistant, NOW_MS, None),
        ("five minutes ahead", share("bob", issued=NOW_MS + 300_000), NOW_MS, None),
        ("and a millisecond more", share("bob", issued=NOW_MS + 300_001), NOW_MS, Reason.FROM_THE_FUTURE),
        ("in its last millisecond", share("bob", life=1), NOW_MS, None),
        ("at its end", share("bob", issued=NOW_MS - 2, life=1), NOW_MS, Reason.EXPIRED),
        ("the longest life", share("alice", 2, life=30 * DAY_MS), NOW_MS, None),
        ("a millisecond more", share("alice", 2, life=30 * DAY_MS + 1), NOW_MS, Reason.LIFE_TOO_LONG),
        ("it ends within a minute", short, NOW_MS, None),
        ("an endorsement", kinds["an endorsement"], NOW_MS, None),
        ("an endorsement of a writer without that role", endorse("team", ABOUT), NOW_MS, Reason.NOT_LISTED),
        ("of what is not held", endorse("bob", seal("alice", 3).key), NOW_MS, Reason.SUBJECT_NOT_HELD),
        ("of another seal of the same root", endorse("bob", ELSEWHERE), NOW_MS, Reason.SUBJECT_NOT_HELD),
        ("of a root that is not its seal's", endorse("bob", OTHER_ROOT), NOW_MS, Reason.SUBJECT_NOT_HELD),
        ("a verdict", kinds["an approval"], NOW_MS, None),
        ("under another quorum", verdict("bob", ABOUT, quorum=OTHER), NOW_MS, Reason.WRONG_QUORUM),
        ("of somebody outside of it", verdict("erin", ABOUT), NOW_MS, Reason.NOT_LISTED),
        ("a proposal", kinds["a proposal"], NOW_MS, None),
        ("an ack of a member", kinds["an ack"], NOW_MS, None),
        ("an anchor", kinds["an anchor"], NOW_MS, None),
        ("a retract of another's words", _retract_of_alice("bob"), NOW_MS, Reason.NOT_LISTED),
        ("the owner's retract", _retract_of_alice("owner"), NOW_MS, None),
        ("a revoke", kinds["a revoke of an agent"], NOW_MS, None),
        (
            "what the agent says later",
            envelope(Kind.SHARE, "assistant", sealed("assistant"), life=2 * DAY_MS, shown=delegation()),
            NOW_MS,
            Reason.REVOKED,
        ),
        (
            "but not under a new delegation",
            envelope(Kind.SHARE, "assistant", sealed("assistant"), life=2 * DAY_MS, shown=delegation(serial=2)),
            NOW_MS,
            None,
        ),
    )
    return {
        "header": text(roster.signed.encode()),
        "parts": [text(it) for it in roster.body.parts.all],
        "steps": [step(graph_set, *each) for each in steps],
        "reconciled": [
            {
                "t": t_ms,
                "items": [[place, text(item_id)] for place, item_id in graph_set.reconciled(t_ms)],
            }
            for t_ms in (NOW_MS, NOW_MS + 8 * DAY_MS)
        ],
    }


def _retract_of_alice(by: str) -> Item:
    body = Retract(address("alice"), "site-7", 1, RetractMode.KEEP, None, "")
    return envelope(Kind.RETRACT, by, body, issued=NOW_MS + 1)


def step(graph_set: GraphSet, name: str, item: Item, t_ms: int, expected: Reason | None) -> Json:
    """What becomes of an item. Whoever makes the vectors learns at once when it is something else."""
    data = item.encode()
    reason: Reason | None = None
    try:
        graph_set.admit(item, len(data), t_ms)
    except RefusedError as error:
        reason = error.reason
    if reason is not expected:
        raise AssertionError(f"{name}: {reason}, not {expected}")
    return {
        "name": name,
        "bytes": text(data),
        "t": t_ms,
        "reason": word(reason) if reason else None,
        "code": int(reason) if reason else None,
    }


def certificate() -> Certificate:
    approvals = [verdict("bob", ABOUT, method=Method.MANUAL, reason="read, and compared"), verdict("carol", ABOUT)]
    return make(seal("alice").sign(key("alice")), QUORUM, approvals, (first().signed,))


def certificates() -> Json:
    good = certificate()
    statement = good.check()
    assert from_json(to_json(good)) == good == Certificate.decode(good.encode())
    return {
        "accepted": {
            "bytes": text(good.encode()),
            "json": to_json(good),
            "says": {
                "subject": _subject(statement.subject),
                "m": statement.quorum.m,
                "n": statement.n,
                "as_of": text(statement.as_of.id),
                "approvals": [[str(signer), method.word] for signer, method in statement.approvals],
            },
        },
        "refused": _refused_certificates(good),
        "refused_json": _refused_json(to_json(good)),
    }


def _refused_certificates(good: Certificate) -> list[Json]:
    data = good.encode()
    bob, carol = good.verdicts if good.verdicts[0].signer < good.verdicts[1].signer else good.verdicts[::-1]
    rejection = verdict("carol", ABOUT, REJECT)
    newer = verdict("carol", seal("alice", 2).key)
    resealed = seal("alice", subgraph="elsewhere").sign(key("alice"))
    roster = first()
    header = roster.signed.encode()
    child = after(roster).signed
    longer = (roster.signed, after(roster, full_body()).signed)

    def approved(*verdicts: Evidence) -> bytes:
        return replace(good, verdicts=verdicts).encode()

    by_address = tuple(sorted((bob, rejection), key=lambda it: it.signer))
    under_other = tuple(sorted((bob, verdict("carol", ABOUT, quorum=OTHER)), key=lambda it: it.signer))
    of_nobody = tuple(sorted((bob, verdict("stranger", ABOUT)), key=lambda it: it.signer))
    about_other = tuple(sorted((bob, newer), key=lambda it: it.signer))
    cases: tuple[tuple[str, Reason, bytes], ...] = (
        ("another format", Reason.BAD_VERSION, changed(data, {0: 2})),
        ("another network", Reason.WRONG_SIGNER, changed(data, {1: bytes(32)})),
        ("another graph", Reason.WRONG_SIGNER, changed(data, {3: "field-note"})),
        ("another author", Reason.WRONG_SIGNER, changed(data, {4: bytes(Address(b"\x01" * 20))})),
        ("M lowered", Reason.WRONG_QUORUM, replace(good, quorum=replace(QUORUM, m=1)).encode()),
        ("one verdict of two", Reason.BAD_SHAPE, approved(bob)),
        ("a verdict twice", Reason.BAD_FIELD, approved(bob, bob)),
        ("verdicts out of order", Reason.BAD_FIELD, approved(carol, bob)),
        ("a rejection", Reason.BAD_FIELD, approved(*by_address)),
        ("a verdict about another version", Reason.BAD_FIELD, approved(*about_other)),
        ("another seal of the same root", Reason.BAD_FIELD, replace(good, seal=resealed).encode()),
        ("a verdict under another quorum", Reason.WRONG_QUORUM, approved(*under_other)),
        ("a verdict of no verifier", Reason.WRONG_QUORUM, approved(*of_nobody)),
        ("a slug of 65 characters", Reason.BAD_NAME, changed(data, {3: "x" * 65})),
        ("a header of another network", Reason.BAD_FIELD, changed(data, {8: [changed(header, {1: bytes(32)})]})),
        ("a header of another graph", Reason.BAD_FIELD, changed(data, {8: [changed(header, {3: "field-note"})]})),
        ("a header that is text", Reason.BAD_FIELD, changed(data, {8: ["x"]})),
        ("no verdict", Reason.BAD_FIELD, changed(data, {7: []})),
        ("no header", Reason.BAD_FIELD, changed(data, {8: []})),
        (
            "a header that names another quorum",
            Reason.WRONG_QUORUM,
            replace(good, headers=longer).encode(),
        ),
        (
            "headers that do not begin at the root",
            Reason.BAD_FIELD,
            replace(good, headers=(child,)).encode(),
        ),
    )
    return [refused(name, reason, it, lambda raw: Certificate.decode(raw).check()) for name, reason, it in cases]


def _refused_json(good: str) -> list[Json]:
    """The readable form, changed in one place."""
    address_of_bob = str(address("bob"))
    first = '"asset": "site-7",\n    "version": 1'
    cases = (
        ("not JSON", good[:-3], Reason.BAD_SHAPE),
        ("a name twice", good.replace('"m": 2', '"m": 2, "m": 2'), Reason.DUPLICATE_KEY),
        ("an unknown name", good.replace('"m": 2', '"m": 2, "k": 2'), Reason.BAD_SHAPE),
        ("a missing name", good.replace('"leaves": 2,', ""), Reason.BAD_SHAPE),
        ("another format", good.replace("certificate 1", "certificate 2"), Reason.BAD_VERSION),
        ("a number with a point", good.replace('"m": 2', '"m": 2.0'), Reason.BAD_FIELD),
        ("a number as text", good.replace('"m": 2', '"m": "2"'), Reason.BAD_FIELD),
        ("true for a number", good.replace('"term": 1', '"term": true'), Reason.BAD_FIELD),
        ("a minus before a zero", good.replace('"parentTerm": 0', '"parentTerm": -0'), Reason.BAD_FIELD),
        ("a minus, where text has to be", good.replace('"read, and compared"', "-1"), Reason.BAD_FIELD),
        ("a number that JSON does not have", good.replace('"leaves": 2', '"leaves": NaN'), Reason.BAD_SHAPE),
        ("an asset with a space", good.replace('"site-7"', '"site 7"'), Reason.BAD_NAME),
        ("a second version without the root before", good.replace(first, first.replace("1", "2")), Reason.BAD_FIELD),
        ("no verdict", json.dumps({**json.loads(good), "verdicts": []}), Reason.BAD_FIELD),
        ("upper-case digits", good.replace(address_of_bob, "0x" + address_of_bob[2:].upper()), Reason.BAD_FIELD),
        ("a graph with its prefix", good.replace(f'"{NAME}"', f'"{NAME.iri}"'), Reason.BAD_FIELD),
        ("a graph in upper case", good.replace(str(NAME), str(NAME).replace("0x", "0X")), Reason.BAD_FIELD),
        ("a reason that was not signed", good.replace("read, and compared", "read"), Reason.WRONG_SIGNER),
        ("half a character", good.replace("read, and compared", "\\ud800"), Reason.BAD_TEXT),
    )
    shown: list[Json] = []
    for name, written, reason in cases:
        assert written != good, name
        entry = refused(name, reason, written.encode(), lambda raw: from_json(raw.decode()).check())
        shown.append({"name": name, "json": written, "reason": entry["reason"], "code": entry["code"]})
    return shown
