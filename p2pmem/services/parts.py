"""The parts of a running node that its face calls."""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem_jobs import Clock, Queue

from p2pmem.exchange.exchange import Exchange
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.ledger import Ledger
from p2pmem.net.seam import Network
from p2pmem.net.sessions import Sessions
from p2pmem.recall.recalling import Recalling
from p2pmem.services.auditing import Auditing
from p2pmem.services.backing_up import BackingUp
from p2pmem.services.certifying import Certifying
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.clock_watch import ClockWatch
from p2pmem.services.compacting import Compacting
from p2pmem.services.delegating import Delegating
from p2pmem.services.disk_watch import DiskWatch
from p2pmem.services.drafting import Drafting
from p2pmem.services.duties import Duties
from p2pmem.services.joining import Joining
from p2pmem.services.keeper import Keeper
from p2pmem.services.lifetimes import Lifetimes
from p2pmem.services.member_desk import MemberDesk
from p2pmem.services.membership import Membership
from p2pmem.services.peering import Peering
from p2pmem.services.preparing import Preparing
from p2pmem.services.projector import Projector
from p2pmem.services.restored import Restored
from p2pmem.services.showing import Showing
from p2pmem.services.signing import Signing
from p2pmem.services.signing_desk import SigningDesk
from p2pmem.services.troubles import Troubles
from p2pmem.store.query_worker import Queries
from p2pmem.work.outgoing import Outgoing
from p2pmem.work.registering import RegisteringJobs
from p2pmem.work.sharing import SharingJobs
from p2pmem.work.verifying import VerifyingJobs


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the face calls."""

    ledger: Ledger
    admission: Admission
    network: Network
    sessions: Sessions
    exchange: Exchange
    signing: Signing
    facts: ChainFacts
    drafting: Drafting
    membership: Membership
    members: MemberDesk
    preparing: Preparing
    wallets: SigningDesk
    joining: Joining
    duties: Duties
    keeper: Keeper
    clock_watch: ClockWatch
    restored: Restored
    backups: BackingUp
    disk: DiskWatch
    lifetimes: Lifetimes
    troubles: Troubles
    compacting: Compacting
    delegating: Delegating
    peering: Peering
    projector: Projector
    recalling: Recalling
    queries: Queries
    showing: Showing
    certifying: Certifying
    registering: RegisteringJobs | None
    auditing: Auditing
    outgoing: Outgoing
    sharing: SharingJobs
    verifying: VerifyingJobs
    queue: Queue
    clock: Clock
    chain: str
    started_ms: int
    label: str
    network_name: str
