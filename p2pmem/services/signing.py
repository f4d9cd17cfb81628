"""Making what is signed: envelopes and evidence by the agents whose keys this node holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.bodies import Body, ContentRef, Sealed
from p2pmem_protocol.content import Content
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.envelope import NEVER, Envelope, Unsigned
from p2pmem_protocol.evidence import Decision, Endorse, Endorsement, Evidence, Method, Verdict
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.seal import NO_PREVIOUS, Seal, SignedSeal

from p2pmem.keyring import Keyring
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.may_sign import MaySign
from p2pmem.services.rights import check_right

DATED: Final = frozenset(Kind) - {Kind.ENDORSE, Kind.VERDICT}
"""What bears the time at which it was said."""


@dataclass(frozen=True, slots=True)
class Previous:
    """The version that a new one follows: none for a first."""

    version: int = 0
    root: bytes = NO_PREVIOUS


class Signing:
    """Signs as an agent of this node. Nothing here is admitted or sent.

    Whatever makes something to sign raises `SigningWaitsError` while `may_sign` says no.
    """

    def __init__(self, ledger: Ledger, keyring: Keyring, may_sign: MaySign) -> None:
        self.may_sign = may_sign
        self._ledger = ledger
        self._keyring = keyring
        self._acting: tuple[SignedActFor, ...] = ()
        self.outside: dict[Address, str] = {}
        """Agents whose keys are in wallets elsewhere, with their labels."""

    def act_for(self, acting: tuple[SignedActFor, ...]) -> None:
        """From now on agents that a graph does not list speak under these delegations."""
        self._acting = acting

    def acting_in(self, graph: LedgerGraph, agent: Address) -> SignedActFor | None:
        """Under which delegation an agent speaks in a graph: none where it is listed itself, or nobody's member."""
        if graph.is_member(agent):
            return None
        usable = [
            it
            for it in self._acting
            if it.delegation.agent == agent
            and graph.is_member(it.delegation.principal)
            and not self._ledger.is_delegation_revoked(it.delegation.principal, agent, it.delegation.serial)
        ]
        return max(usable, key=lambda it: it.delegation.serial, default=None)

    def check_right(self, graph: LedgerGraph, agent: Address, kind: Kind) -> None:
        """Raises `NoRightError` when nothing of this kind that the agent says now would be let in, and
        `SigningWaitsError` when the node signs none for the moment."""
        self.may_sign.check(graph, dated=kind in DATED)
        check_right(graph, agent, kind, self.acting_in(graph, agent))

    @property
    def default_agent(self) -> Address:
        return self._keyring.default.address

    def holds(self, agent: Address) -> bool:
        return agent in self._keyring

    def speaks_for(self, agent: Address) -> bool:
        """Whether this node holds its key, or hands it what it is to sign."""
        return agent in self._keyring or agent in self.outside

    def takes_part(self, graph: LedgerGraph) -> bool:
        """Whether one of this node's agents is a member, or acts for one, as far as is known here."""
        return any(graph.is_member(agent) or self.acting_in(graph, agent) for agent in self.agents())

    def agents(self) -> tuple[Address, ...]:
        return self._keyring.addresses

    def seal(
        self, graph: LedgerGraph, agent: Address, name: str, subgraph: str, content: Content, previous: Previous
    ) -> Seal:
        """The seal of `content` as the version after `previous`, unsigned."""
        self.may_sign.check(graph, dated=False)
        return Seal(
            network=self._ledger.network,
            graph=graph.id,
            subgraph=subgraph,
            name=name,
            version=previous.version + 1,
            root=content.root,
            leaves=content.line_count,
            previous=previous.root,
            author=agent,
        )

    def sign_seal(self, seal: Seal) -> SignedSeal:
        return seal.sign(self._keyring.get(seal.author))

    def envelope(
        self, graph: LedgerGraph, agent: Address, kind: Kind, body: Body, *, expires_at_ms: int = NEVER
    ) -> Envelope:
        """An envelope of `agent`, issued now. It shows the agent's delegation when the agent itself is not listed."""
        key = self._keyring.get(agent)
        return self.unsigned(graph, agent, kind, body, expires_at_ms=expires_at_ms).sign(key)

    def unsigned(
        self, graph: LedgerGraph, agent: Address, kind: Kind, body: Body, *, expires_at_ms: int = NEVER
    ) -> Unsigned:
        """The same without its signature."""
        self.may_sign.check(graph)
        acting = self.acting_in(graph, agent)
        return Unsigned(
            network=self._ledger.network,
            graph=graph.id,
            kind=kind,
            author=agent,
            delegation=acting,
            roster=graph.head.header.version if graph.head else 0,
            issued_at_ms=self._ledger.clock.now_ms(),
            expires_at_ms=expires_at_ms,
            body=body,
        )

    def sealed_body(self, seal: SignedSeal, content: bytes) -> Sealed:
        return Sealed(seal, ContentRef.of(content))

    def endorsement(
        self, graph: LedgerGraph, agent: Address, subject: VersionKey, decision: Endorse, reason: str
    ) -> Evidence:
        self.may_sign.check(graph, dated=False)
        statement = Endorsement(self._ledger.network, graph.id, subject, decision, reason, agent)
        return Evidence.sign(statement, self._keyring.get(agent))

    def verdict(
        self,
        graph: LedgerGraph,
        agent: Address,
        subject: VersionKey,
        quorum: bytes,
        decision: Decision,
        method: Method,
        reason: str,
    ) -> Evidence:
        self.may_sign.check(graph, dated=False)
        statement = Verdict(self._ledger.network, graph.id, quorum, subject, decision, method, reason, agent)
        return Evidence.sign(statement, self._keyring.get(agent))
