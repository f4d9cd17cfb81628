"""A certificate: one file that shows, without a node, that M of N verified a version.

It holds what the statement needs and nothing more: the graph's name, the author's seal, the preimage of the quorum id,
M approvals (those with the lowest signer addresses), and the roster headers from the root key's signature to the first
header that names the quorum. No list of members.

What it says: *M of N under this quorum, as of this header.* What came later (a retract, another quorum, a root act of a
later term) it cannot know; `standing` judges it against a newer roster. It cannot know either for which principal the
author spoke: whoever makes it leaves out verifiers that were principals of the version.

    0 format      1 network     2 creator     3 slug        4 author      5 seal (as in a share)
    6 quorum [serial, M, [verifier]]          7 [verdict, a byte string]  8 [header, a byte string]
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.evidence import Decision, Evidence, Method, Verdict
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.heads import HeadChain, check_child
from p2pmem_protocol.limits import UINT32_MAX, VERIFIERS_MAX
from p2pmem_protocol.names import Address, GraphName, NetworkId, VersionKey, check_slug
from p2pmem_protocol.rights import kept_under
from p2pmem_protocol.roster import Quorum, Roster, SignedHeader
from p2pmem_protocol.seal import Seal, SignedSeal

FORMAT: Final = 1
HEADERS_MAX: Final = 10_000
CERTIFICATE_BYTES_MAX: Final = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CertificateStatement:
    """What a checked certificate says: what peers compare. Several valid choices of M verdicts say the same."""

    network: NetworkId
    graph: GraphName
    seal: Seal
    quorum: Quorum
    n: int
    as_of: SignedHeader = field(compare=False)
    approvals: tuple[tuple[Address, Method], ...] = field(compare=False)

    @property
    def subject(self) -> VersionKey:
        return self.seal.key

    @property
    def shown(self) -> str:
        header = self.as_of.header
        return (
            f"{self.subject} in {self.graph}: {self.quorum.m} of {self.n} under quorum {self.quorum.serial}, "
            f"as of roster {header.version} of term {header.term}; it cannot know later ones"
        )


@unique
class Standing(Enum):
    """How a certificate stands under a roster."""

    CURRENT = "its quorum is the roster's"
    KEPT = "the roster lists it as complete under an earlier quorum"
    OUTDATED = "its quorum is not the roster's, and the roster does not list it"


@dataclass(frozen=True)
class Certificate:
    """A certificate as read. `check` says whether it is right."""

    network: NetworkId
    graph: GraphName
    seal: SignedSeal
    quorum: Quorum
    verdicts: tuple[Evidence, ...]
    headers: tuple[SignedHeader, ...]

    @property
    def subject(self) -> VersionKey:
        return self.seal.seal.key

    def check(self) -> CertificateStatement:
        """What it says, when every signature and every link is right. Raises `RefusedError` otherwise."""
        seal = self.seal.seal
        if seal.network != self.network or seal.graph != self.graph.id:
            raise RefusedError(Reason.BAD_FIELD, "the seal is of another network or context graph")
        self.seal.check()
        self._check_quorum()
        self._check_headers()
        approvals = self._check_verdicts()
        n = sum(verifier != seal.author for verifier in self.quorum.verifiers)
        return CertificateStatement(self.network, self.graph, seal, self.quorum, n, self.headers[-1], approvals)

    def _check_quorum(self) -> None:
        if self.quorum.is_none or self.quorum.graph != self.graph.id:
            raise RefusedError(Reason.WRONG_QUORUM, "the quorum is none, or of another context graph")

    def _check_headers(self) -> None:
        """From a root act, each header the child of the one before, to one that names the quorum (rule H2)."""
        if not 0 < len(self.headers) <= HEADERS_MAX:
            raise RefusedError(Reason.BAD_SHAPE, f"a certificate has 1 to {HEADERS_MAX} roster headers")
        if not self.headers[0].header.is_root_act:
            raise RefusedError(Reason.BAD_FIELD, "the first roster header is not signed by the root key")
        for position, signed in enumerate(self.headers):
            header = signed.header
            if header.network != self.network or header.name != self.graph:
                raise RefusedError(Reason.BAD_FIELD, "a roster header of another network or context graph")
            if position:
                check_child(self.headers[position - 1].header, header)
            signed.check()
        last = self.headers[-1].header
        if last.quorum != self.quorum.id or last.quorum_serial != self.quorum.serial:
            raise RefusedError(Reason.WRONG_QUORUM, "the last roster header names another quorum")

    def _check_verdicts(self) -> tuple[tuple[Address, Method], ...]:
        if len(self.verdicts) != self.quorum.m:
            raise RefusedError(Reason.BAD_SHAPE, f"{self.quorum.m} verdicts are needed, {len(self.verdicts)} are shown")
        approvals: list[tuple[Address, Method]] = []
        for evidence in self.verdicts:
            it = evidence.statement
            if not isinstance(it, Verdict) or it.decision is not Decision.APPROVE:
                raise RefusedError(Reason.BAD_FIELD, "a verdict of a certificate is not an approval")
            if it.network != self.network or it.graph != self.graph.id or it.subject != self.subject:
                raise RefusedError(Reason.BAD_FIELD, "a verdict about something else than this seal")
            if (
                it.quorum != self.quorum.id
                or it.signer not in self.quorum.verifiers
                or it.signer == self.subject.author
            ):
                raise RefusedError(Reason.WRONG_QUORUM, f"{it.signer} does not count under this quorum")
            if approvals and it.signer <= approvals[-1][0]:
                raise RefusedError(Reason.BAD_FIELD, "signers of a certificate are distinct and in ascending order")
            evidence.check()
            approvals.append((it.signer, it.method))
        return tuple(approvals)

    def encode(self) -> bytes:
        fields: dict[int, Value] = {
            0: FORMAT,
            1: self.network,
            2: bytes(self.graph.creator),
            3: self.graph.slug,
            4: bytes(self.seal.seal.author),
            5: self.seal.to_value(),
            6: self.quorum.to_value(),
            7: [verdict.encode() for verdict in self.verdicts],
            8: [header.encode() for header in self.headers],
        }
        return cbor.encode(fields)

    @classmethod
    def decode(cls, data: bytes) -> Certificate:
        """Read a certificate. Raises `RefusedError` when its form is wrong; nothing is checked yet."""
        reader = Reader(cbor.decode(data, limit_bytes=CERTIFICATE_BYTES_MAX), "a certificate")
        if reader.uint(0, UINT32_MAX) != FORMAT:
            raise RefusedError(Reason.BAD_VERSION, "a format of certificate that is not known here")
        network = NetworkId(reader.hash(1))
        graph = GraphName(reader.address(2), reader.name(3, check_slug))
        author = reader.address(4)
        seal = SignedSeal.from_value(reader.nested(5), network, graph.id, author)
        quorum = Quorum.from_value(reader.nested(6), graph.id)
        verdicts = tuple(Evidence.decode(each) for each in reader.strings(7, VERIFIERS_MAX, 1))
        headers = tuple(SignedHeader.decode(each) for each in reader.strings(8, HEADERS_MAX, 1))
        reader.end()
        return cls(network, graph, seal, quorum, verdicts, headers)


def make(
    seal: SignedSeal, quorum: Quorum, approvals: Iterable[Evidence], headers: Sequence[SignedHeader]
) -> Certificate:
    """The certificate that `approvals` under `quorum` make, with the lowest addresses and each one's strongest method.

    `approvals` are those that count (see `TrustReport.approvals`), `headers` come from `headers_for`. Raises
    `MisuseError` when they do not make one; what is returned was checked.
    """
    if not headers:
        raise MisuseError("no roster header that names the quorum is held; ask a member for the headers of the graph")
    best: dict[Address, Evidence] = {}
    for evidence in sorted(approvals, key=_strongest_first):
        best.setdefault(evidence.signer, evidence)
    chosen = tuple(best[signer] for signer in sorted(best)[: quorum.m])
    name = headers[0].header.name
    certificate = Certificate(seal.seal.network, name, seal, quorum, chosen, tuple(headers))
    try:
        certificate.check()
    except RefusedError as refused:
        raise MisuseError(f"no certificate for {seal.seal.key}: {refused}") from None
    return certificate


def headers_for(chain: HeadChain, quorum: Quorum) -> tuple[SignedHeader, ...]:
    """From the root key's signature to the first held header that names `quorum`. Empty when none is held."""
    for signed in chain.headers():
        if signed.header.quorum == quorum.id:
            return chain.chain_to(signed.id)
    return ()


def standing(certificate: Certificate, roster: Roster, named: Collection[bytes]) -> Standing:
    """How a checked certificate stands under `roster`, which the caller knows to be of the same graph's own chain.

    `named` are the quorums of the headers that it descends from (`HeadChain.quorums_of`): a list can keep a certificate
    under one of them, and under no other (rule K3).
    """
    if roster.header.name != certificate.graph or roster.header.network != certificate.network:
        raise MisuseError("the roster is of another context graph or network than the certificate")
    if roster.quorum.id == certificate.quorum.id:
        return Standing.CURRENT
    kept = kept_under(roster, named).get(certificate.subject, ())
    return Standing.KEPT if any(each.quorum.id == certificate.quorum.id for each in kept) else Standing.OUTDATED


def _strongest_first(evidence: Evidence) -> tuple[int, bytes]:
    method = evidence.statement.method if isinstance(evidence.statement, Verdict) else 0
    return (-int(method), evidence.id)
