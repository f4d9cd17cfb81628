"""The contract's rules, on a real chain, with statements that eth-account signed.

Rules 1 to 6 are those at the top of Anchor.sol.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import pytest
from eth_abi.abi import encode
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak

from p2pmem.chain import (
    Approval,
    ContractRefusedError,
    QuorumFact,
    QuorumPreimage,
    Subject,
    TransactionFact,
)
from p2pmem.chain.artifact import load_artifact
from p2pmem.chain.client import EvmChain

pytestmark = pytest.mark.chain

SECP256K1_ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
ROOT = bytes(keccak(text="a batch"))


class Graph(Protocol):
    creator: LocalAccount
    verifiers: list[LocalAccount]
    author: LocalAccount
    id: bytes

    def quorum(self, m: int, serial: int = 1) -> QuorumPreimage: ...
    def quorum_id(self, quorum: QuorumPreimage) -> bytes: ...
    def registration(self, quorum: QuorumPreimage, *, by: LocalAccount | None = None) -> Any: ...
    def subject(self, **changes: Any) -> Subject: ...
    def approval(self, signer: LocalAccount, quorum: QuorumPreimage, subject: Subject, **options: Any) -> Approval: ...


async def carry_out(chain: EvmChain, transaction: Any) -> TransactionFact:
    await chain.send(transaction)
    fact = await chain.wait_confirmed(transaction, confirmations=1)
    assert fact.succeeded
    return fact


async def gas_of(anvil: Any, fact: TransactionFact) -> int:
    assert fact.hash is not None
    return int((await anvil.rpc("eth_getTransactionReceipt", "0x" + fact.hash.hex()))["gasUsed"], 16)


async def register(chain: EvmChain, graph: Graph, quorum: QuorumPreimage) -> TransactionFact:
    return await carry_out(chain, await chain.prepare_register_quorum(graph.registration(quorum)))


# Rule 1: anchors


async def test_the_first_anchor_counts_and_a_repeat_never_reverts(on_chain: Any, chain: EvmChain) -> None:
    assert await chain.anchored(ROOT) is None
    first = await carry_out(chain, await chain.prepare_anchor(ROOT, 100))
    again = await carry_out(chain, await chain.prepare_anchor(ROOT, 100))
    assert first.block is not None
    assert again.block is not None
    assert again.block.number > first.block.number
    fact = await chain.anchored(ROOT)
    assert fact is not None
    assert fact.block_number == first.block.number
    assert fact.confirmations == 2


async def test_who_copies_an_anchor_and_comes_first_only_pays_for_it(on_chain: Any, chain: EvmChain) -> None:
    copier = await on_chain.client()
    ours = await chain.prepare_anchor(ROOT, 7)
    await carry_out(copier, await copier.prepare_anchor(ROOT, 999))
    await carry_out(chain, ours)
    assert await chain.anchored(ROOT) == await copier.anchored(ROOT)
    topic = "0x" + keccak(text="Anchored(bytes32,address,uint32)").hex()
    logs = await on_chain.anvil.rpc("eth_getLogs", {"fromBlock": "0x0", "topics": [topic, "0x" + ROOT.hex()]})
    assert [(log["topics"][2][-40:], int(log["data"], 16)) for log in logs] == [
        (copier.sender.hex(), 999),
        (chain.sender.hex(), 7),
    ]


# Rule 2 and 3: quorums


async def test_a_creators_quorum_is_registered_under_the_id_that_everybody_computes(
    chain: EvmChain, graph: Graph
) -> None:
    quorum = graph.quorum(3)
    assert await chain.quorum_of(graph.id) is None
    await register(chain, graph, quorum)
    assert await chain.quorum_of(graph.id) == QuorumFact(graph.quorum_id(quorum), 1)


async def test_a_stranger_cannot_register_a_quorum_for_anothers_graph(
    chain: EvmChain, graph: Graph, stranger: LocalAccount
) -> None:
    squatting = graph.registration(graph.quorum(1), by=stranger)
    with pytest.raises(ContractRefusedError) as caught:
        await chain.prepare_register_quorum(squatting)
    assert caught.value.rule == "NotSignedByCreator"
    # As its own creator, the stranger gets a graph of another id.
    own = replace(squatting, creator=bytes.fromhex(stranger.address[2:]))
    with pytest.raises(ContractRefusedError):
        await chain.prepare_register_quorum(own)
    await register(chain, graph, graph.quorum(3))


async def test_a_registration_that_somebody_else_sends_first_does_not_hurt(
    on_chain: Any, chain: EvmChain, graph: Graph
) -> None:
    other = await on_chain.client()
    ours = await chain.prepare_register_quorum(graph.registration(graph.quorum(3)))
    await register(other, graph, graph.quorum(3))
    await carry_out(chain, ours)
    assert await chain.quorum_of(graph.id) == QuorumFact(graph.quorum_id(graph.quorum(3)), 1)


@pytest.mark.parametrize("serial", [1, 4, 5])
async def test_only_a_higher_serial_replaces_a_quorum(chain: EvmChain, graph: Graph, serial: int) -> None:
    await register(chain, graph, graph.quorum(3, serial=5))
    with pytest.raises(ContractRefusedError) as caught:
        await chain.prepare_register_quorum(graph.registration(graph.quorum(2, serial=serial)))
    assert caught.value.rule == "StaleSerial"
    await register(chain, graph, graph.quorum(2, serial=6))
    assert await chain.quorum_of(graph.id) == QuorumFact(graph.quorum_id(graph.quorum(2, serial=6)), 6)


def unchecked(quorum: QuorumPreimage, **changes: Any) -> QuorumPreimage:
    """A quorum that our own value would refuse, as a hostile client would send it."""
    made = replace(quorum)
    for name, value in changes.items():
        object.__setattr__(made, name, value)
    return made


async def test_a_quorum_that_cannot_be_is_refused_though_its_creator_signed_it(chain: EvmChain, graph: Graph) -> None:
    sound = graph.quorum(3)
    reverse, twice = tuple(reversed(sound.verifiers)), (sound.verifiers[0], *sound.verifiers)
    zero = (bytes(20), *sound.verifiers)
    for bad in (
        unchecked(sound, m=0),
        unchecked(sound, m=6),
        unchecked(sound, verifiers=reverse),
        unchecked(sound, verifiers=twice),
        unchecked(sound, verifiers=zero),
        unchecked(sound, verifiers=()),
    ):
        with pytest.raises(ContractRefusedError) as caught:
            await chain.prepare_register_quorum(graph.registration(bad))
        assert caught.value.rule == "BadQuorum"
    with pytest.raises(ContractRefusedError) as caught:
        await chain.prepare_register_quorum(graph.registration(unchecked(sound, serial=0)))
    assert caught.value.rule == "StaleSerial"


# Rule 4, 5 and 6: attestations


async def attested(chain: EvmChain, graph: Graph, m: int = 3) -> tuple[QuorumPreimage, Subject, list[Approval]]:
    """A graph with its quorum, a subject and the approvals of all verifiers."""
    quorum, subject = graph.quorum(m), graph.subject()
    await register(chain, graph, quorum)
    return quorum, subject, [graph.approval(signer, quorum, subject) for signer in graph.verifiers]


async def refused(chain: EvmChain, subject: Subject, quorum: QuorumPreimage, approvals: Sequence[Approval]) -> str:
    with pytest.raises(ContractRefusedError) as caught:
        await chain.prepare_attest(subject, quorum, approvals)
    assert await chain.attestation_of(subject) is None
    return caught.value.rule


async def test_m_approvals_attest_a_version_and_a_repeat_changes_nothing(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    assert await chain.attestation_of(subject) is None
    fact = await carry_out(chain, await chain.prepare_attest(subject, quorum, [approvals[4], *approvals[:2]]))
    held = await chain.attestation_of(subject)
    assert held is not None
    assert fact.block is not None
    assert (held.serial, held.m, held.verifiers, held.approvals) == (1, 3, 5, 3)
    assert held.block_number == fact.block.number
    await carry_out(chain, await chain.prepare_attest(subject, quorum, approvals))
    assert await chain.attestation_of(subject) == replace(held, confirmations=2)


async def test_an_attestation_is_of_one_graph_name_version_root_and_author(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    await carry_out(chain, await chain.prepare_attest(subject, quorum, approvals[:3]))
    for other in (
        replace(subject, asset="soil/ph-2025"),
        replace(subject, version=4),
        replace(subject, root=bytes(keccak(text="other"))),
        replace(subject, seal=bytes(keccak(text="other"))),
        replace(subject, author=approvals[4].signer),
    ):
        assert await refused(chain, other, quorum, approvals[:3]) == "BadSignature"


async def test_too_few_approvals_are_refused(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    assert await refused(chain, subject, quorum, approvals[:2]) == "TooFewApprovals"
    assert await refused(chain, subject, quorum, []) == "TooFewApprovals"


async def test_one_verifier_never_counts_twice(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    doubled = [approvals[0], approvals[1], approvals[1]]
    assert await refused(chain, subject, quorum, doubled) == "SignersNotAscending"


def attest_call(subject: Subject, quorum: QuorumPreimage, approvals: Sequence[Approval]) -> bytes:
    """The call as a hostile client makes it, in any order; encoded apart from our client."""
    kinds = [
        "(bytes32,bytes32,uint32,bytes32,bytes32,address)",
        "uint32",
        "uint16",
        "address[]",
        "(address,uint8,bytes32,uint8,bytes32,bytes32)[]",
    ]
    asset_hash = keccak(text=subject.asset)
    arguments = [
        (subject.graph, asset_hash, subject.version, subject.root, subject.seal, subject.author),
        quorum.serial,
        quorum.m,
        list(quorum.verifiers),
        [(a.signer, a.method, a.reason, a.signature[64], a.signature[:32], a.signature[32:64]) for a in approvals],
    ]
    return bytes(keccak(text=f"attest({','.join(kinds)})")[:4]) + encode(kinds, arguments)


async def test_approvals_out_of_order_are_refused(on_chain: Any, chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    disordered = attest_call(subject, quorum, [approvals[1], approvals[0], approvals[2]])
    with pytest.raises(ContractRefusedError) as caught:
        await chain.prepare(disordered, to=on_chain.contract)
    assert caught.value.rule == "SignersNotAscending"
    await carry_out(chain, await chain.prepare(attest_call(subject, quorum, approvals[:3]), to=on_chain.contract))
    assert await chain.attestation_of(subject) is not None


async def test_a_stranger_is_no_verifier(chain: EvmChain, graph: Graph, stranger: LocalAccount) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    foreign = graph.approval(stranger, quorum, subject)
    assert await refused(chain, subject, quorum, [*approvals[:2], foreign]) == "NotAVerifier"


async def test_the_author_never_approves_a_version_also_as_a_verifier(chain: EvmChain, graph: Graph) -> None:
    quorum = graph.quorum(3)
    await register(chain, graph, quorum)
    subject = graph.subject(author=bytes.fromhex(graph.verifiers[2].address[2:]))
    approvals = [graph.approval(signer, quorum, subject) for signer in graph.verifiers]
    assert await refused(chain, subject, quorum, approvals[:3]) == "AuthorCannotApprove"
    await carry_out(chain, await chain.prepare_attest(subject, quorum, [*approvals[:2], approvals[3]]))


def with_signature(
    approval: Approval, *, r: bytes | None = None, s: int | None = None, v: int | None = None
) -> Approval:
    old = approval.signature
    r_bytes = old[:32] if r is None else r
    s_bytes = old[32:64] if s is None else s.to_bytes(32, "big")
    return replace(approval, signature=r_bytes + s_bytes + bytes([old[64] if v is None else v]))


async def test_a_signature_has_one_form_only(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    good = approvals[0]
    s, v = int.from_bytes(good.signature[32:64], "big"), good.signature[64]
    for bad in (
        with_signature(good, s=SECP256K1_ORDER - s, v=55 - v),  # the same signature in its high form
        with_signature(good, v=v - 27),
        with_signature(good, v=55 - v),
        with_signature(good, s=0),
        with_signature(good, r=bytes(32), s=1),
    ):
        assert await refused(chain, subject, quorum, [bad, *approvals[1:3]]) == "BadSignature"


async def test_a_rejection_an_altered_method_or_reason_and_another_network_do_not_approve(
    chain: EvmChain, graph: Graph
) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    signer = graph.verifiers[0]
    for bad in (
        graph.approval(signer, quorum, subject, decision=2),
        replace(approvals[0], method=4),
        replace(approvals[0], reason=bytes(32)),
        graph.approval(signer, quorum, subject, salt=bytes(32)),
    ):
        assert await refused(chain, subject, quorum, [bad, *approvals[1:3]]) == "BadSignature"
    unknown = replace(approvals[0])
    object.__setattr__(unknown, "method", 5)
    assert await refused(chain, subject, quorum, [unknown, *approvals[1:3]]) == "BadMethod"


async def test_another_quorum_than_the_registered_one_attests_nothing(chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    smaller = graph.quorum(1)
    assert await refused(chain, subject, smaller, [graph.approval(graph.verifiers[0], smaller, subject)]) == (
        "NotTheLatestQuorum"
    )
    foreign = graph.subject(graph=bytes(keccak(text="no such graph")))
    assert await refused(chain, foreign, quorum, approvals[:3]) == "NotTheLatestQuorum"


async def test_an_old_quorum_attests_nothing_once_a_newer_one_is_registered(chain: EvmChain, graph: Graph) -> None:
    old, subject, approvals = await attested(chain, graph)
    await register(chain, graph, graph.quorum(3, serial=2))
    assert await refused(chain, subject, old, approvals[:3]) == "NotTheLatestQuorum"
    # Verdicts under the old quorum do not count under the new one, though the verifiers are the same.
    assert await refused(chain, subject, graph.quorum(3, serial=2), approvals[:3]) == "BadSignature"


async def test_gas_stays_near_what_was_measured(on_chain: Any, chain: EvmChain, graph: Graph) -> None:
    quorum, subject, approvals = await attested(chain, graph)
    anchor = await gas_of(on_chain.anvil, await carry_out(chain, await chain.prepare_anchor(ROOT, 100)))
    attest = await gas_of(
        on_chain.anvil, await carry_out(chain, await chain.prepare_attest(subject, quorum, approvals[:3]))
    )
    print(f"gas: anchor {anchor}, attest 3 of 5 {attest}, creation code {len(load_artifact().bytecode)} bytes")
    assert anchor < 50_000
    assert attest < 90_000


# Proofs


def standard_tree(npm: Path, values: Sequence[bytes]) -> tuple[bytes, list[list[bytes]]]:
    """Root and proofs by OpenZeppelin's own package."""
    script = (
        "const { StandardMerkleTree } = require('@openzeppelin/merkle-tree');"
        "require('stream/consumers').json(process.stdin).then((values) => {"
        "const tree = StandardMerkleTree.of(values.map((v) => [v]), ['bytes32']);"
        "console.log(JSON.stringify({ root: tree.root, proofs: values.map((v) => tree.getProof([v])) })); });"
    )
    given_values = json.dumps(["0x" + value.hex() for value in values])
    ran = subprocess.run(
        ["node", "-e", script], cwd=npm, input=given_values, capture_output=True, text=True, check=True, timeout=60
    )
    said = json.loads(ran.stdout)
    return bytes.fromhex(said["root"][2:]), [[bytes.fromhex(each[2:]) for each in proof] for proof in said["proofs"]]


@pytest.mark.node
@pytest.mark.parametrize("count", [1, 2, 5, 16])
async def test_a_proof_by_openzeppelins_package_is_verified_in_the_contract(
    chain: EvmChain, npm: Path, count: int
) -> None:
    digests = [bytes(keccak(text=f"seal {number}")) for number in range(count)]
    root, proofs = standard_tree(npm, digests)
    assert not await chain.proves_anchored(root, digests[0], proofs[0]), "nothing is proved before the root is anchored"
    await carry_out(chain, await chain.prepare_anchor(root, count))
    for digest, proof in zip(digests, proofs, strict=True):
        assert await chain.proves_anchored(root, digest, proof)
        assert not await chain.proves_anchored(root, bytes(keccak(digest)), proof)
        assert not await chain.proves_anchored(root, digest, [*proof, bytes(32)])
        if proof:
            assert not await chain.proves_anchored(root, digest, proof[:-1])
    # A root is not its own leaf, nor is an inner node one: leaves are hashed twice.
    assert not await chain.proves_anchored(root, root, [])


def test_the_domain_and_types_of_the_contract_are_those_that_are_signed() -> None:
    source = (Path(__file__).parents[3] / "p2pmem" / "chain" / "contract" / "Anchor.sol").read_text()
    for text in (
        "EIP712Domain(string name,string version,bytes32 salt)",
        "RegisterQuorum(bytes32 graph,bytes32 quorum,uint32 serial)",
        "Verdict(bytes32 graph,bytes32 quorum,string asset,uint32 version,bytes32 root,bytes32 seal,address author,"
        "uint8 decision,uint8 method,bytes32 reason,address signer)",
    ):
        assert f'"{text}"' in source
        assert keccak(text=text) in load_artifact().bytecode
