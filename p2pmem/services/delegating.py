"""Who acts for whom: delegations that are given and held here, and revocations (rule D1).

A principal gives an agent a delegation as one word; the agent's node keeps it, shows it in hello and in envelopes
wherever the agent itself is not listed. No roster changes for it. A revocation is an envelope in every graph in which
its signer is a member: whoever admits it shuts the agent, or the peer, out at once.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable
from typing import Final

from p2pmem_protocol.bodies import REVOKE_IDS_MAX, Revoke
from p2pmem_protocol.credential import ActFor, Right, SignedActFor
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import UINT32_MAX
from p2pmem_protocol.names import Address
from p2pmem_protocol.rosters_change import Change, RemoveMember, SetQuorum

from p2pmem.face_peers import DelegationView, RevocationView
from p2pmem.keyring import Keyring
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.identity import check_peer_id
from p2pmem.net.seam import PeerId
from p2pmem.services.membership import Membership
from p2pmem.services.papers import OwnPapers
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import Outgoing, Ready

log = logging.getLogger(__name__)

RIGHTS: Final = {str(right.name).lower(): right for right in Right}
HELD_MAX: Final = 64


def rights_of(words: tuple[str, ...]) -> Right:
    """Rights by their words; none named: share alone."""
    rights = Right(0)
    for word in words or ("share",):
        if word not in RIGHTS:
            raise MisuseError(f"{word!r} is no right that can be given; these can: {', '.join(RIGHTS)}")
        rights |= RIGHTS[word]
    return rights


def subject_of(text: str) -> Address | PeerId:
    """Who is shut out: an agent by its address, or a peer by its id."""
    is_address = text.strip().lower().startswith(("0x", "did:"))
    return Address.parse(text) if is_address else check_peer_id(text)


class Delegating:
    """Delegations of this node's agents. Made by `open`, which lets papers and signing know what is held."""

    def __init__(
        self,
        ledger: Ledger,
        keyring: Keyring,
        papers: OwnPapers,
        signing: Signing,
        membership: Membership,
        outgoing: Outgoing,
        greet_anew: Callable[[], None],
    ) -> None:
        """`greet_anew` is called when there is more to show in hello."""
        self._ledger = ledger
        self._keyring = keyring
        self._papers = papers
        self._signing = signing
        self._membership = membership
        self._outgoing = outgoing
        self._greet_anew = greet_anew
        self._known: list[SignedActFor] = ledger.database.read(self._read)
        self._show()

    def _read(self, connection: sqlite3.Connection) -> list[SignedActFor]:
        rows = connection.execute(
            "SELECT principal, agent, serial, label, rights, signature FROM delegation ORDER BY at_ms, serial"
        )
        return [
            SignedActFor(
                ActFor(self._ledger.network, Address(row[0]), Address(row[1]), row[2], row[3], Right(row[4])), row[5]
            )
            for row in rows
        ]

    def _show(self) -> None:
        held = tuple(it for it in self._known if it.delegation.agent in self._keyring and not self._is_revoked(it))
        self._papers.act_for(*held[-HELD_MAX:])
        self._signing.act_for(held)

    def _is_revoked(self, signed: SignedActFor) -> bool:
        it = signed.delegation
        return self._ledger.is_delegation_revoked(it.principal, it.agent, it.serial)

    async def _keep(self, signed: SignedActFor) -> None:
        it = signed.delegation
        row = (it.principal, it.agent, it.serial, it.label, int(it.rights), signed.signature, self._now_ms())
        await self._ledger.database.write(
            lambda connection: connection.execute("INSERT OR REPLACE INTO delegation VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        )
        if signed not in self._known:
            self._known.append(signed)
        if it.agent in self._keyring:
            self._show()
            self._greet_anew()

    def _now_ms(self) -> int:
        return self._ledger.clock.now_ms()

    # Giving and holding

    async def give(self, agent: Address, label: str, rights: Right) -> DelegationView:
        """Let `agent` act for this node's default agent. On disk when it returns."""
        key = self._keyring.default
        serial = self.next_serial(key.address, agent)
        if serial > UINT32_MAX:
            raise MisuseError(f"{key.address} has ended all delegations to {agent} for good; let it use another key")
        signed = ActFor(self._ledger.network, key.address, agent, serial, label, rights).sign(key)
        await self._keep(signed)
        return self._view(signed)

    def next_serial(self, principal: Address, agent: Address) -> int:
        """The serial of a new delegation, above all that were given and ended, as far as is known here."""
        return max(self._serial_given(principal, agent), self._serial_revoked(principal, agent)) + 1

    async def hold(self, word: str) -> DelegationView:
        """Keep a delegation that a principal gave to an agent of this node, and show it from now on."""
        return await self.hold_signed(SignedActFor.parse(word))

    async def hold_signed(self, signed: SignedActFor) -> DelegationView:
        """The same, of a delegation that is at hand."""
        it = signed.delegation
        if it.network != self._ledger.network:
            raise MisuseError("the delegation is for another network than this node's (node.network)")
        if it.agent not in self._keyring:
            raise MisuseError(f"the delegation is for {it.agent}, whose key this node does not hold")
        if self._is_revoked(signed):
            raise MisuseError(f"{it.principal} has ended this delegation; ask for a new one")
        await self._keep(signed)
        return self._view(signed)

    async def keep_given(self, signed: SignedActFor) -> None:
        """Remember what a wallet gave through this node, so that its next delegation has the next serial."""
        await self._keep(signed)

    def all(self) -> tuple[DelegationView, ...]:
        """All that are given or held here, oldest first."""
        return tuple(self._view(signed) for signed in self._known)

    def principals(self) -> frozenset[Address]:
        """For whom agents of this node act or have acted."""
        return frozenset(it.delegation.principal for it in self._known if it.delegation.agent in self._keyring)

    def _view(self, signed: SignedActFor) -> DelegationView:
        it = signed.delegation
        return DelegationView(
            principal=str(it.principal),
            agent=str(it.agent),
            label=it.label,
            rights=tuple(word for word, right in RIGHTS.items() if right in it.rights),
            serial=it.serial,
            given=self._signing.speaks_for(it.principal),
            held=it.agent in self._keyring,
            revoked=self._is_revoked(signed),
            word=str(signed),
        )

    def _serial_given(self, principal: Address, agent: Address) -> int:
        """The highest serial known: of what was given here, and of what was said under it."""
        here = [it.delegation.serial for it in self._known if self._is_between(it.delegation, principal, agent)]
        seen = [
            record.serial
            for graph in self._ledger.graphs.values()
            for record in graph.set.known()
            if record.delegated and record.principal == principal and record.author == agent
        ]
        return max((*here, *seen), default=0)

    def _serial_revoked(self, principal: Address, agent: Address) -> int:
        return max(
            (graph.set.revoked_agent_serial(principal, agent) for graph in self._ledger.graphs.values()), default=0
        )

    @staticmethod
    def _is_between(it: ActFor, principal: Address, agent: Address) -> bool:
        return (it.principal, it.agent) == (principal, agent)

    # Revoking

    async def revoke(self, subject: Address | PeerId, *, keep: bool) -> RevocationView:
        """Shut somebody out. An address: end what this node's agents delegated to it, and take it out of the graphs
        that this node owns. A peer: it carries the words of this node's agents no more.

        `keep`: what an agent said so far still counts. On disk here when it returns; members that are connected know
        within moments, others with their next comparison.
        """
        graphs: list[str] = []
        removed: list[str] = []
        kept = 0
        for graph in sorted(self._ledger.graphs.values(), key=lambda it: str(it.name)):
            for signer in self._keyring.addresses:
                body = self.revocation(graph, signer, subject, keep=keep)
                if body is None or not graph.is_member(signer):
                    continue
                await self._outgoing.admit(Ready(self._signing.envelope(graph, signer, Kind.REVOKE, body)))
                kept += len(body.kept)
                graphs.append(str(graph.name))
            if isinstance(subject, Address) and self._may_remove(graph, subject):
                await self._membership.change(graph, _removal(graph, subject))
                removed.append(str(graph.name))
        if not graphs and not removed:
            raise MisuseError(
                f"nothing of {subject} is to be ended here: no agent of this node delegated to it in a graph that it "
                "is a member of, and this node owns no graph that lists it"
            )
        log.warning("revoked", extra={"subject": str(subject), "graphs": len(graphs), "removed": len(removed)})
        return RevocationView(str(subject), tuple(dict.fromkeys(graphs)), tuple(removed), kept)

    def _may_remove(self, graph: LedgerGraph, subject: Address) -> bool:
        return (
            self._membership.is_owner_here(graph)
            and graph.head is not None
            and subject in graph.head.body.by_address
            and subject not in self._keyring
        )

    def revocation(
        self, graph: LedgerGraph, signer: Address, subject: Address | PeerId, *, keep: bool
    ) -> Revoke | None:
        """What `signer` says in a graph to shut somebody out; None when nothing that is known here is to be ended."""
        if not isinstance(subject, Address):
            # Nothing good will ever come from that peer again, whatever serial its credentials have.
            return Revoke(None, subject, UINT32_MAX, ())
        serial = self._serial_given(signer, subject)
        if not serial or self._serial_revoked(signer, subject) >= serial:
            return None
        said = [
            record
            for record in graph.set.records()
            if record.delegated and record.principal == signer and record.author == subject
        ]
        newest = sorted(said, key=lambda record: record.order)[-REVOKE_IDS_MAX:] if keep else []
        return Revoke(subject, None, serial, tuple(sorted(record.id for record in newest)))


def _removal(graph: LedgerGraph, member: Address) -> list[Change]:
    """Take a member out; and when it is a verifier without whom M cannot be reached, lower M to what can.

    Shutting out a stolen machine must not wait until somebody has thought of another verifier.
    """
    assert graph.head is not None
    quorum = graph.head.quorum
    left = len([it for it in quorum.verifiers if it not in (member, graph.head.header.owner)])
    changes: list[Change] = [RemoveMember(member)]
    if member in quorum.verifiers and left < quorum.m:
        changes.append(SetQuorum(left))
    return changes
