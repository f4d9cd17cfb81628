"""Certificates of what is ConsensusVerified here, and proofs that a statement is part of what was sealed."""

from __future__ import annotations

from p2pmem_protocol import certificate
from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.certificate import CertificateStatement
from p2pmem_protocol.content import Content
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import BugError, MisuseError
from p2pmem_protocol.evidence import Evidence
from p2pmem_protocol.merkle import prove
from p2pmem_protocol.names import VersionKey, hex_id
from p2pmem_protocol.seal import SignedSeal
from p2pmem_protocol.trust import Trust
from p2pmem_protocol.view import VersionView

from p2pmem.face import CertificateView
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger


class Certifying:
    """Makes certificates from kept signatures."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def certificate(self, graph: LedgerGraph, view: VersionView) -> CertificateView:
        """The certificate of a version. Raises `MisuseError` for one that is not ConsensusVerified."""
        report = view.trust
        if report.level is not Trust.CONSENSUS_VERIFIED or report.quorum is None:
            raise MisuseError(
                f"{view.key.asset}@{view.key.version} is {report.level.word} and not ConsensusVerified: "
                f"{report.would_raise}"
            )
        approvals = [self._evidence(line.id) for line in report.approvals]
        headers = certificate.headers_for(graph.headers, report.quorum)
        made = certificate.make(sealed_by_author(self._ledger, graph, view.key), report.quorum, approvals, headers)
        return CertificateView(statement_json(made.check()), made.encode().hex())

    def _evidence(self, item_id: bytes) -> Evidence:
        data = self._ledger.raw(item_id)
        if data is None:
            raise BugError(f"a verdict that counts is not in the ledger: {hex_id(item_id)}")
        return Evidence.decode(data)


def sealed_by_author(ledger: Ledger, graph: LedgerGraph, key: VersionKey) -> SignedSeal:
    """The author's seal of a version. Raises `MisuseError` when no share or publish that bears it is on disk."""
    version = graph.set.version(key)
    sealed = version.sealed if version is not None else ()
    for record in sorted(sealed, key=lambda it: it.id):
        data = ledger.raw(record.id)
        item = decode_item(data) if data is not None else None
        if isinstance(item, Envelope) and isinstance(item.body, Sealed):
            return item.body.seal
    raise MisuseError(f"no share or publish of {key.asset}@{key.version} is on disk any more")


def statement_json(statement: CertificateStatement) -> dict[str, object]:
    """What two peers compare, as JSON: not the choice of verdicts, of which several are valid."""
    seal = statement.seal
    return {
        "network": hex_id(statement.network),
        "graph": str(statement.graph),
        "author": str(seal.author),
        "asset": seal.name,
        "version": seal.version,
        "root": hex_id(seal.root),
        "seal": hex_id(seal.digest),
        "subgraph": seal.subgraph,
        "leaves": seal.leaves,
        "previous": hex_id(seal.previous),
        "quorum": hex_id(statement.quorum.id),
        "quorum_serial": statement.quorum.serial,
        "m": statement.quorum.m,
        "n": statement.n,
    }


def statement_proof(graph: LedgerGraph, view: VersionView, content: Content, statement: str) -> dict[str, object]:
    """That a line of canonical N-Quads is under a version's root, as JSON. Raises `MisuseError` when it is not."""
    line = statement.strip().encode() + b"\n"
    lines = content.lines()
    name = f"{view.key.asset}@{view.key.version}"
    if line not in lines:
        raise MisuseError(f"{name} does not hold that statement; give one line of its canonical N-Quads")
    proof = prove(lines, lines.index(line))
    return {
        "graph": str(graph.name),
        "reference": name,
        "statement": line.decode(),
        "seal": hex_id(view.key.seal),
        "root": hex_id(content.root),
        "leaves": content.line_count,
        "leaf": hex_id(proof.leaf),
        "proof": [hex_id(sister) for sister in proof.hashes],
    }
