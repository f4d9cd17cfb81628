"""register and attest: what a graph's contract is told about its quorum and about what that verified.

register  the head's quorum, with the root key's signature over RegisterQuorum; asked for by itself when a graph with a
          chain has another quorum and this node holds its root key, or when a wallet outside has signed it
attest    a certificate: M verdicts under the registered quorum, checked again by the contract

Only a higher serial replaces a registered quorum, so whatever was registered in between is a success too.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import trio
from p2pmem_jobs import Context, Handler, Job, OutsideError as NotStoredError, Queue
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, typed_data
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Verdict
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.names import GraphId, NetworkId, VersionKey
from p2pmem_protocol.roster import Quorum

from p2pmem.keyring import Keyring
from p2pmem.ledger.batch import Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.certifying import Certifying
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.finding import reference_in
from p2pmem.work.outgoing import ASK_AGAIN_S, RETRY, classify_error
from p2pmem.work.transacting import DEEP_ENOUGH, OnChain, transact
from p2pmem.work.verifying import SubjectArgs, version_view

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain, QuorumPreimage

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RegisterArgs:
    """A quorum and its creator's signature."""

    graph: bytes
    serial: int
    m: int
    verifiers: list[bytes]
    signature: bytes


@dataclass(frozen=True, slots=True)
class RegisteredResult:
    serial: int
    transaction: bytes
    block: int


@dataclass(frozen=True, slots=True)
class AttestArgs:
    subject: SubjectArgs


@dataclass(frozen=True, slots=True)
class AttestedResult:
    reference: str
    approvals: int
    transaction: bytes
    block: int


class RegisteringJobs:
    """Registers register and attest with a queue. Only a node with a chain has it."""

    def __init__(
        self, ledger: Ledger, keyring: Keyring, facts: ChainFacts, certifying: Certifying, queue: Queue, chain: Chain
    ) -> None:
        self._ledger = ledger
        self._keyring = keyring
        self._facts = facts
        self._certifying = certifying
        self._queue = queue
        self._chain = chain
        self._changed: set[GraphId] = set()
        self.register: Handler[RegisterArgs, RegisteredResult] = queue.handler(
            "register", version=1, retry=RETRY, classify=classify_error, concurrency=1
        )(self._register)
        self.attest: Handler[AttestArgs, AttestedResult] = queue.handler(
            "attest", version=1, retry=RETRY, classify=classify_error, concurrency=1
        )(self._attest)

    # When

    def heard(self, delta: Delta) -> None:
        """A change is on disk: another head may have another quorum."""
        if delta.head_changed:
            self._changed.add(delta.graph)

    async def run(self) -> None:
        """Ask for what is not registered, now and after each change of a head, until cancelled."""
        self._changed.update(self._ledger.graphs)
        while True:
            await self._ledger.until(lambda: bool(self._changed))
            changed, self._changed = self._changed, set()
            for graph_id in sorted(changed):
                graph = self._ledger.graphs.get(graph_id)
                if graph is not None and graph.name.creator in self._keyring and self._has_quorum(graph):
                    assert graph.head is not None
                    key = self._keyring.get(graph.name.creator)
                    statement = registration_digest(self._ledger.network, graph.head.quorum)
                    try:
                        await self.submit(graph.head.quorum, key.sign(statement))
                    except NotStoredError as error:  # the queue or the disk is full
                        log.warning("register.not_asked", extra={"why": str(error)})
                        self._changed.add(graph_id)
                        await trio.sleep(ASK_AGAIN_S)

    def _has_quorum(self, graph: LedgerGraph) -> bool:
        return self._facts.anchors(graph) and graph.head is not None and not graph.head.quorum.is_none

    async def submit(self, quorum: Quorum, signature: bytes) -> Job[RegisteredResult]:
        """Register a quorum; the same one again is the same job."""
        args = RegisterArgs(quorum.graph, quorum.serial, quorum.m, [bytes(it) for it in quorum.verifiers], signature)
        # Signatures of one statement may differ; the job is about the quorum.
        key = keccak256(quorum.id + signature).hex()
        return await self._queue.submit(self.register, args, dedupe_key=key)

    # register

    async def _register(self, ctx: Context, args: RegisterArgs) -> RegisteredResult:
        from p2pmem.chain.seam import QuorumPreimage, QuorumRegistration

        graph = self._ledger.graph(GraphId(args.graph))
        registration = QuorumRegistration(
            creator=bytes(graph.name.creator),
            slug_hash=keccak256(graph.name.slug.encode()),
            quorum=QuorumPreimage(args.serial, args.m, tuple(args.verifiers)),
            signature=args.signature,
        )

        async def found() -> OnChain | None:
            fact = await self._chain.quorum_of(graph.id)
            if fact is None or fact.serial < args.serial:
                return None
            return OnChain(0, DEEP_ENOUGH)  # the contract keeps no block of a quorum

        done = await transact(ctx, self._chain, lambda: self._chain.prepare_register_quorum(registration), found)
        return RegisteredResult(args.serial, done.transaction, done.block)

    # attest

    def check(self, graph: LedgerGraph) -> None:
        """Raises `MisuseError` unless this node's contract is that of the graph."""
        if not self._facts.anchors(graph):
            raise MisuseError(f"{graph.name} has no chain that this node asks: `p2pmem graph members --chain`")

    async def _attest(self, ctx: Context, args: AttestArgs) -> AttestedResult:
        from p2pmem.chain.seam import Approval, Subject

        graph = self._ledger.graph(GraphId(args.subject.graph))
        key = args.subject.key
        certificate = self._certificate(graph, key)
        subject = Subject(graph.id, key.name, key.version, key.root, key.seal, bytes(key.author))
        approvals = [
            Approval(bytes(it.signer), int(it.method), keccak256(it.reason.encode()), evidence.signature)
            for evidence in certificate.verdicts
            if isinstance(it := evidence.statement, Verdict)
        ]

        async def found() -> OnChain | None:
            # What an earlier quorum approved is another statement; the contract holds only the newest of them.
            fact = await self._chain.attestation_of(subject)
            if fact is None or fact.serial < certificate.quorum.serial:
                return None
            return OnChain(fact.block_number, fact.confirmations)

        done = await transact(
            ctx,
            self._chain,
            lambda: self._chain.prepare_attest(subject, _preimage(certificate.quorum), approvals),
            found,
        )
        return AttestedResult(reference_in(graph, key), len(approvals), done.transaction, done.block)

    def _certificate(self, graph: LedgerGraph, key: VersionKey) -> Certificate:
        view = version_view(graph, key, self._ledger.clock.now_ms())
        if view is None:
            raise MisuseError(f"{reference_in(graph, key)} is not here any more")
        return Certificate.decode(bytes.fromhex(self._certifying.certificate(graph, view).cbor))


def registration_digest(network: NetworkId, quorum: Quorum) -> bytes:
    """What the root key signs so that the contract takes a quorum."""
    return digest(Struct.REGISTER_QUORUM, _values(quorum), network)


def registration_typed_data(network: NetworkId, quorum: Quorum) -> dict[str, object]:
    return typed_data(Struct.REGISTER_QUORUM, _values(quorum), network)


def _values(quorum: Quorum) -> dict[str, FieldValue]:
    return {"graph": quorum.graph, "quorum": quorum.id, "serial": quorum.serial}


def _preimage(quorum: Quorum) -> QuorumPreimage:
    from p2pmem.chain.seam import QuorumPreimage

    return QuorumPreimage(quorum.serial, quorum.m, tuple(bytes(it) for it in quorum.verifiers))
