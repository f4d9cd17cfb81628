"""The vectors are what the script writes, and the package reads them as they say.

The other half of the proof is `test_reader`: a reader in another language that knows nothing of the package.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.certificate_json import from_json
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.envelope import decode_item
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.hello import Greeting, Proof
from p2pmem_protocol.join import Answer, Invite
from p2pmem_protocol.keys import check_signed_by
from p2pmem_protocol.merkle import Proof as MerkleProof, verify
from p2pmem_protocol.names import Address, AssetKey, GraphId, NetworkId, VersionKey, network_id
from p2pmem_protocol.prepared import SignedPrepared
from p2pmem_protocol.rdfc import canonicalize
from p2pmem_protocol.records import EvidenceRecord, record_of
from p2pmem_protocol.roster import KeptCertificate, Parts, Quorum, Roster, SignedHeader
from p2pmem_protocol.trust import Floor, Trust, assess
from p2pmem_protocol.view import asset_view

ROOT = Path(__file__).parents[2]
VECTORS = {path.stem: json.loads(path.read_text()) for path in (ROOT / "protocol" / "vectors").glob("*.json")}
NETWORK = network_id("vectors")


def raw(text: str) -> bytes:
    assert text.startswith("0x")
    return bytes.fromhex(text[2:])


def test_the_files_are_what_the_script_writes() -> None:
    subprocess.run([sys.executable, str(ROOT / "scripts" / "make_vectors.py"), "--check"], check=True, timeout=60)


def graph() -> GraphId:
    return GraphId(raw(VECTORS["names"]["graph"][0]["id"]))


def refused() -> Iterator[tuple[str, dict[str, Any], Callable[[bytes], object]]]:
    """Every vector of something that is refused, with what reads it."""
    talk = VECTORS["conversation"]
    parts = Parts(*(raw(it["bytes"]) for it in VECTORS["rosters"]["rosters"][1]["parts"].values()))
    signatures = VECTORS["structs"]["signatures"]

    def proof(data: bytes) -> object:
        return Proof.decode(data, NETWORK, talk["peer"]).check(talk["now"])

    def signature(data: bytes) -> None:
        check_signed_by(Address.parse(signatures["signer"]), raw(signatures["digest"]), data)

    yield from (("cbor", it, cbor.decode) for it in VECTORS["cbor"]["refused"])
    yield from (("content", it, check_canonical) for it in VECTORS["contents"]["refused"])
    yield from (("item", it, decode_item) for it in VECTORS["items"]["refused_by_form"])
    yield from (("item", it, lambda data: decode_item(data).check()) for it in VECTORS["items"]["refused_by_signature"])
    yield from (("header", it, _checked_header) for it in VECTORS["rosters"]["refused_headers"])
    for it in VECTORS["rosters"]["refused_parts"]:
        yield "part", it, lambda data, part=it["part"]: replace(parts, **{part: data}).decode(graph())
    yield from (("certificate", it, lambda data: Certificate.decode(data).check()) for it in _certificates())
    for it in VECTORS["certificates"]["refused_json"]:
        yield "certificate in JSON", it | {"bytes": "0x" + it["json"].encode().hex()}, _checked_json
    yield from (("greeting", it, Greeting.decode) for it in talk["refused_greetings"])
    yield from (("proof", it, proof) for it in talk["refused_proofs"])
    yield from (("answer", it, Answer.decode) for it in talk["refused_answers"])
    yield from (("signature", it | {"bytes": it["signature"]}, signature) for it in signatures["refused"])


def _checked_json(data: bytes) -> None:
    from_json(data.decode()).check()


def _checked_header(data: bytes) -> None:
    SignedHeader.decode(data).check()


def _certificates() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = VECTORS["certificates"]["refused"]
    return found


REFUSED = [pytest.param(it, read, id=f"{what}: {it['name']}") for what, it, read in refused()]


@pytest.mark.parametrize(("vector", "read"), REFUSED)
def test_what_is_refused_is_refused_with_this_reason(vector: dict[str, Any], read: Callable[[bytes], object]) -> None:
    with pytest.raises(RefusedError) as caught:
        read(raw(vector["bytes"]))
    assert caught.value.reason is Reason(vector["code"])
    assert vector["reason"] == Reason(vector["code"]).name.lower().replace("_", "-")


def test_every_reason_that_bytes_alone_can_give_has_a_vector() -> None:
    shown = {parameter.values[0]["code"] for parameter in REFUSED}
    bytes_alone = {int(reason) for reason in Reason if reason < Reason.BAD_FRAME}
    # These compare two things, content and its seal.
    compared = {int(it) for it in (Reason.CONTENT_ROOT_MISMATCH, Reason.CONTENT_HASH_MISMATCH)}
    assert bytes_alone - compared <= shown


def test_accepted_cbor_is_its_own_encoding() -> None:
    for vector in VECTORS["cbor"]["accepted"]:
        data = raw(vector["bytes"])
        assert cbor.encode(cbor.decode(data)) == data


def test_items_are_read_and_written_as_they_are() -> None:
    for vector in VECTORS["items"]["accepted"]:
        data = raw(vector["bytes"])
        item = decode_item(data)
        item.check()
        assert item.encode() == data
        assert (item.id, item.kind.word) == (raw(vector["id"]), vector["kind"])


def test_contents_are_canonical_and_every_line_has_its_proof() -> None:
    for vector in VECTORS["contents"]["canonical"]:
        content = check_canonical(vector["canonical"].encode())
        assert (content.root, content.hash, content.line_count) == (
            raw(vector["root"]),
            raw(vector["hash"]),
            vector["leaves"],
        )
        for it in vector["proofs"]:
            proof = MerkleProof(raw(it["leaf"]), tuple(raw(each) for each in it["proof"]))
            verify(content.root, content.line_count, it["line"].encode(), proof)


def test_the_work_of_labelling_is_what_the_vectors_say() -> None:
    for vector in VECTORS["contents"]["canonical"] + VECTORS["contents"]["at_the_edge"]:
        content = check_canonical(vector["canonical"].encode())
        lines = [line.decode()[:-3].split(" ", 2) for line in content.lines()]
        work = canonicalize([(subject, predicate, object_, "") for subject, predicate, object_ in lines]).work
        counted = {"calls": work.calls, "permutations": work.permutations, "looked_at": work.visits}
        assert {**counted, "depth": work.deepest} == vector["work"], vector["name"]


def test_a_roster_joins_with_its_parts_only() -> None:
    first, second = VECTORS["rosters"]["rosters"]
    joined = []
    for vector in (first, second):
        signed = SignedHeader.decode(raw(vector["header"]))
        signed.check()
        parts = Parts(*(raw(it["bytes"]) for it in vector["parts"].values()))
        roster = Roster.join(signed, parts)
        assert (roster.id, roster.body.parts) == (raw(vector["id"]), parts)
        joined.append((signed, parts))
    with pytest.raises(RefusedError) as caught:
        Roster.join(joined[0][0], joined[1][1])
    assert caught.value.reason is Reason.CONTENT_HASH_MISMATCH


SETS = [VECTORS["admission"] | {"name": "admission"}, *VECTORS["sets"]["cases"]]


@pytest.mark.parametrize("case", SETS, ids=lambda case: str(case["name"]))
def test_a_set_goes_as_the_steps_say(case: dict[str, Any]) -> None:
    parts = Parts(*(raw(it) for it in case["parts"]))
    graph_set = GraphSet(graph(), NetworkId(NETWORK))
    head = Roster.join(SignedHeader.decode(raw(case["header"])), parts)
    headers = HeadChain(graph(), NetworkId(NETWORK))
    headers.add_all([head.signed, *(SignedHeader.decode(raw(it)) for it in case.get("earlier", ()))])
    graph_set.set_head(head, case["steps"][0]["t"], named=headers.quorums_of(head.id))
    for step in case["steps"]:
        data = raw(step["bytes"])
        reason = None
        try:
            graph_set.admit(decode_item(data), len(data), step["t"])
        except RefusedError as refusal:
            reason = int(refusal.reason)
        assert reason == step["code"], step["name"]
    for reconciled in case["reconciled"]:
        graph_set.sweep(reconciled["t"])
        expected = [(place, raw(item_id)) for place, item_id in reconciled["items"]]
        assert graph_set.reconciled(reconciled["t"]) == expected
        for shown in case.get("views", ()):
            if shown["t"] == reconciled["t"]:
                check_view(graph_set, shown)


def check_view(graph_set: GraphSet, shown: dict[str, Any]) -> None:
    view = asset_view(graph_set, AssetKey(Address.parse(shown["author"]), shown["asset"]), shown["t"])
    for it, expected in zip(view.versions, shown["versions"], strict=True):
        assert (it.key.version, it.key.root, it.key.seal, it.trust.level.word) == (
            expected["version"],
            raw(expected["root"]),
            raw(expected["seal"]),
            expected["level"],
        )
        assert (it.published, it.shared_until_ms, it.conflict, it.is_visible) == tuple(
            expected[name] for name in ("published", "shared_until", "conflict", "visible")
        )
        assert it.hidden_by == (raw(expected["hidden_by"]) if expected["hidden_by"] else None)
    for floor, current in shown["current"].items():
        found = [[it.key.version, "0x" + it.key.seal.hex()] for it in view.current(Floor(Trust.parse(floor)))]
        assert found == current


@pytest.mark.parametrize("case", VECTORS["trust"]["cases"], ids=lambda case: str(case["name"]))
def test_trust_is_what_the_cases_say(case: dict[str, Any]) -> None:
    author, name, version, root, seal = VECTORS["trust"]["subject"]
    subject = VersionKey(Address.parse(author), name, version, raw(root), raw(seal))
    records = [record_of(decode_item(raw(it)), 0) for it in case["evidence"]]
    report = assess(
        subject,
        [it for it in records if isinstance(it, EvidenceRecord)],
        principals=[Address.parse(it) for it in case["principals"]],
        quorum=_quorum(case["quorum"]) if case["quorum"] else None,
        certificates=[
            KeptCertificate(subject, _quorum(it["quorum"]), tuple(raw(each) for each in it["verdicts"]))
            for it in case["kept_certificates"]
        ],
    )
    assert (report.level.word, report.m, report.n) == (case["level"], case["m"], case["n"])
    for lines, word in (
        (report.approvals, "approvals"),
        (report.rejections, "rejections"),
        (report.endorsements, "endorsements"),
    ):
        assert sorted("0x" + line.id.hex() for line in lines) == case[word]


def _quorum(shown: dict[str, Any]) -> Quorum:
    return Quorum(graph(), shown["serial"], shown["m"], tuple(Address.parse(it) for it in shown["verifiers"]))


def test_both_forms_of_the_certificate_say_the_same() -> None:
    vector = VECTORS["certificates"]["accepted"]
    certificate = Certificate.decode(raw(vector["bytes"]))
    assert certificate == from_json(vector["json"])
    assert certificate.encode() == raw(vector["bytes"])
    statement = certificate.check()
    assert statement.seal.digest == raw(vector["says"]["subject"][4])
    assert [[str(signer), method.word] for signer, method in statement.approvals] == vector["says"]["approvals"]


def test_words_are_read_and_damaged_ones_are_not() -> None:
    talk = VECTORS["conversation"]
    assert str(Invite.parse(talk["invite"]["text"])) == talk["invite"]["text"]
    signed = SignedActFor.parse(talk["delegation"]["text"])
    assert str(signed.delegation.agent) == talk["delegation"]["fields"]["agent"]
    handed = SignedPrepared.parse(talk["prepared"]["text"])
    assert str(handed) == talk["prepared"]["text"]
    assert handed.prepared.digest == raw(talk["prepared"]["digest"])
    assert handed.prepared.change == talk["prepared"]["fields"]["change"]
    for word in talk["invites_refused"]:
        with pytest.raises(MisuseError):
            Invite.parse(word)
    for word in talk["delegations_refused"]:
        with pytest.raises(MisuseError):
            SignedActFor.parse(word)
    for word in talk["prepared_refused"]:
        with pytest.raises(MisuseError):
            SignedPrepared.parse(word)
