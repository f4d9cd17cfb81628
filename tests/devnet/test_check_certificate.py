"""The script that checks certificates without our code refuses whatever does not follow from the signatures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import GraphName, NetworkId
from p2pmem_protocol.roster import Header, Quorum, SignedHeader
from p2pmem_protocol.seal import Seal, SignedSeal

from tests.devnet.check_certificate import check

ZERO = bytes(32)
CURVE_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
ROOT, OWNER, AUTHOR, BO, CY, NOBODY = (Key(bytes([number]) * 32) for number in range(1, 7))
NETWORK = NetworkId(bytes([7]) * 32)
GRAPH = GraphName(ROOT.address, "trial")
QUORUM = Quorum(GRAPH.id, 1, 2, tuple(sorted(key.address for key in (AUTHOR, BO, CY))))
SEAL = Seal(NETWORK, GRAPH.id, "", "finding", 1, bytes([8]) * 32, 2, ZERO, AUTHOR.address)


def approval(key: Key, **other: object) -> Evidence:
    verdict = Verdict(NETWORK, GRAPH.id, QUORUM.id, SEAL.key, Decision.APPROVE, Method.MANUAL, "I read it", key.address)
    return Evidence.sign(replace(verdict, **other), key)  # type: ignore[arg-type]  # fields of a verdict


def first_header(**other: object) -> Header:
    header = Header(NETWORK, GRAPH, 1, 1, ZERO, 0, OWNER.address, ZERO, 0, ZERO, ZERO, ZERO, ZERO, ROOT.address)
    return replace(header, **other)  # type: ignore[arg-type]  # fields of a header


FIRST = first_header()
SECOND = replace(
    FIRST, version=2, parent=FIRST.id, parent_term=1, quorum=QUORUM.id, quorum_serial=1, signer=OWNER.address
)


def second(key: Key = OWNER, **other: object) -> SignedHeader:
    return replace(SECOND, signer=key.address, **other).sign(key)  # type: ignore[arg-type]  # fields of a header


def damaged(signature: bytes) -> bytes:
    return signature[:40] + bytes([signature[40] ^ 1]) + signature[41:]


def twin(signature: bytes) -> bytes:
    """The other signature of the same words that the same key is recovered from: high s."""
    high_s = CURVE_ORDER - int.from_bytes(signature[32:64])
    return signature[:32] + high_s.to_bytes(32) + bytes([27 + 28 - signature[64]])


WHOLE = Certificate(
    NETWORK,
    GRAPH,
    SignedSeal(SEAL, AUTHOR.sign(SEAL.digest)),
    QUORUM,
    tuple(sorted((approval(BO), approval(CY)), key=lambda it: it.signer)),
    (FIRST.sign(ROOT), second()),
)


def with_verdicts(*verdicts: Evidence) -> Certificate:
    return replace(WHOLE, verdicts=verdicts)


def with_headers(*headers: SignedHeader) -> Certificate:
    return replace(WHOLE, headers=headers)


def without_quorum() -> Certificate:
    """Nobody is needed, and nobody approved."""
    return replace(WHOLE, quorum=replace(QUORUM, m=0, verifiers=()), verdicts=())


OF_ANOTHER_GRAPH = GraphName(ROOT.address, "other")
BROKEN: dict[str, tuple[Callable[[], Certificate], str]] = {
    "a seal that was not signed": (
        lambda: replace(WHOLE, seal=replace(WHOLE.seal, signature=damaged(WHOLE.seal.signature))),
        "a Seal",
    ),
    "a seal by another than it names": (
        lambda: replace(WHOLE, seal=replace(WHOLE.seal, signature=BO.sign(SEAL.digest))),
        "a Seal",
    ),
    "a verdict of another network": (
        lambda: with_verdicts(approval(BO, network=NetworkId(ZERO)), approval(CY)),
        "about this seal",
    ),
    "a verdict of another graph": (
        lambda: with_verdicts(approval(BO, graph=OF_ANOTHER_GRAPH.id), approval(CY)),
        "about this seal",
    ),
    "a verdict about another author": (
        lambda: with_verdicts(approval(BO, subject=replace(SEAL.key, author=CY.address)), approval(CY)),
        "about this seal",
    ),
    "a verdict about another asset": (
        lambda: with_verdicts(approval(BO, subject=replace(SEAL.key, name="other")), approval(CY)),
        "about this seal",
    ),
    "a verdict about another version": (
        lambda: with_verdicts(approval(BO, subject=replace(SEAL.key, version=2)), approval(CY)),
        "about this seal",
    ),
    "a verdict about another root": (
        lambda: with_verdicts(approval(BO, subject=replace(SEAL.key, root=ZERO)), approval(CY)),
        "about this seal",
    ),
    "a verdict about another seal": (
        lambda: with_verdicts(approval(BO, subject=replace(SEAL.key, seal=ZERO)), approval(CY)),
        "about this seal",
    ),
    "a rejection": (lambda: with_verdicts(approval(BO, decision=Decision.REJECT), approval(CY)), "an approval"),
    "an approval under another quorum": (
        lambda: with_verdicts(approval(BO, quorum=replace(QUORUM, m=1).id), approval(CY)),
        "under this quorum",
    ),
    "an approval that was not signed": (
        lambda: with_verdicts(replace(approval(BO), signature=damaged(approval(BO).signature)), approval(CY)),
        "a Verdict",
    ),
    "an approval with the other signature of the same words": (
        lambda: with_verdicts(replace(approval(BO), signature=twin(approval(BO).signature)), approval(CY)),
        "one form of a signature: Verdict",
    ),
    "an approval with v of 0 or 1": (
        lambda: with_verdicts(
            replace(approval(BO), signature=approval(BO).signature[:64] + bytes([approval(BO).signature[64] - 27])),
            approval(CY),
        ),
        "one form of a signature: Verdict",
    ),
    "an approval by nobody that verifies": (lambda: with_verdicts(approval(BO), approval(NOBODY)), "by verifiers"),
    "an approval by the author": (lambda: with_verdicts(approval(BO), approval(AUTHOR)), "by the author"),
    "too few approvals": (lambda: with_verdicts(approval(BO)), "as many as are needed"),
    "one approval twice": (lambda: with_verdicts(approval(BO), approval(BO)), "as many as are needed"),
    "two approvals by one": (lambda: with_verdicts(approval(BO), approval(BO, reason="so")), "as many as are needed"),
    "no quorum": (without_quorum, "as many as are needed"),
    "another M than the quorum that was named": (
        lambda: replace(WHOLE, quorum=replace(QUORUM, m=1), verdicts=(approval(BO, quorum=replace(QUORUM, m=1).id),)),
        "names the quorum",
    ),
    "no header": (lambda: with_headers(), "names the quorum"),
    "no header of the quorum": (lambda: with_headers(FIRST.sign(ROOT)), "names the quorum"),
    "no root act": (lambda: with_headers(second()), "root key begins"),
    "a root act by another": (
        lambda: with_headers(replace(FIRST, signer=NOBODY.address, quorum=QUORUM.id).sign(NOBODY)),
        "root key begins",
    ),
    "a root act that begins no term": (
        lambda: with_headers(first_header(parent_term=1, quorum=QUORUM.id).sign(ROOT)),
        "root key begins",
    ),
    "a second root act": (
        lambda: with_headers(FIRST.sign(ROOT), first_header(term=2, quorum=QUORUM.id).sign(ROOT)),
        "root key begins",
    ),
    "a header of another graph": (
        lambda: with_headers(FIRST.sign(ROOT), second(name=OF_ANOTHER_GRAPH)),
        "of this graph",
    ),
    "a header of another creator": (
        lambda: with_headers(FIRST.sign(ROOT), second(name=GraphName(BO.address, GRAPH.slug))),
        "of this graph",
    ),
    "a header of another network": (
        lambda: with_headers(FIRST.sign(ROOT), second(network=NetworkId(ZERO))),
        "of this graph",
    ),
    "a header by another than the owner": (lambda: with_headers(FIRST.sign(ROOT), second(BO)), "the owner goes on"),
    "a header that follows from another": (
        lambda: with_headers(FIRST.sign(ROOT), second(parent=bytes([9]) * 32)),
        "the owner goes on",
    ),
    "a header of a later term without the root key": (
        lambda: with_headers(FIRST.sign(ROOT), second(term=2)),
        "the owner goes on",
    ),
    "a parent of another term": (lambda: with_headers(FIRST.sign(ROOT), second(parent_term=2)), "the owner goes on"),
    "an owner that gives the graph away": (
        lambda: with_headers(FIRST.sign(ROOT), second(owner=BO.address)),
        "the owner goes on",
    ),
    "a header that leaves a version out": (
        lambda: with_headers(FIRST.sign(ROOT), second(version=3)),
        "the owner goes on",
    ),
    "a header with another serial than its quorum": (
        lambda: with_headers(FIRST.sign(ROOT), second(quorum_serial=2)),
        "names the quorum",
    ),
    "a header that was not signed": (
        lambda: with_headers(FIRST.sign(ROOT), replace(second(), signature=damaged(second().signature))),
        "a Roster",
    ),
}


def test_a_whole_certificate_is_accepted_by_the_script_and_by_our_code() -> None:
    assert WHOLE.check().subject == SEAL.key
    assert check(WHOLE.encode()) == f"2 of 2 verified {AUTHOR.address}/finding@1, root 0x{'08' * 32}"


@pytest.mark.parametrize("what", BROKEN)
def test_a_certificate_with_something_else_in_it_is_refused_for_that(what: str) -> None:
    make, why = BROKEN[what]
    with pytest.raises(AssertionError, match=why):
        check(make().encode())


def test_another_form_of_certificate_is_refused() -> None:
    with pytest.raises(AssertionError, match="of the form that is known here"):
        check(b"\xa9\x00\x02" + WHOLE.encode()[3:])
