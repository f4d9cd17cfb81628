"""What a node offers to its users: HTTP and the command line call these, and nothing else.

Values here are for people and JSON: addresses, ids and IRIs as text, times in milliseconds. An asset is named by its
*reference*, `<author address>/<name>`, with `@<version>` after it for one version; without, the newest held is meant.

An author may let go several seals as one version, which are in conflict then. `@<version>:<seal>` names one of them, by
the digest of its seal or by how that begins (0x and 4 digits or more). Without it the best attested is read, and
nothing is signed for one of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from enum import Enum, unique
from typing import Protocol

from p2pmem_protocol.errors import MisuseError

from p2pmem.face_graphs import (
    BranchView as BranchView,
    ChangePreview as ChangePreview,
    Difference as Difference,
    GraphView as GraphView,
    JoinRequestView as JoinRequestView,
    LimitsChange as LimitsChange,
    MemberChange as MemberChange,
    MemberView as MemberView,
    NewGraph as NewGraph,
    NewMember as NewMember,
    PreparedView as PreparedView,
    QuotaView as QuotaView,
    TrustChange as TrustChange,
)
from p2pmem.face_jobs import (
    ENDED_STATES as ENDED_STATES,
    AbsentView as AbsentView,
    JobEffectView as JobEffectView,
    JobEventView as JobEventView,
    JobStepView as JobStepView,
    JobStory as JobStory,
    JobView as JobView,
    JobWaitView as JobWaitView,
)
from p2pmem.face_peers import DelegationView, PeerDetail, ReasonCount, RevocationView
from p2pmem.face_signing import (
    AgentView as AgentView,
    SignedView as SignedView,
    SignRequest as SignRequest,
    SignView as SignView,
)
from p2pmem.face_trust import (
    DiffView as DiffView,
    HistoryStep as HistoryStep,
    RetractView as RetractView,
    SignatureView as SignatureView,
    SignerView as SignerView,
    TrustView as TrustView,
)


class NotFoundError(MisuseError):
    """There is no such graph, version, draft, review or request; or it is not yours, which is the same answer."""


class NoRightError(MisuseError):
    """The agent has not the right to this: by its role in the graph, by its delegation, or because the words are of
    somebody else. Nothing was signed, and there is no job."""


@unique
class Layer(Enum):
    """How far a version went: private, shared until it expires, or published for good."""

    WORKING = "working"
    SHARED = "shared"
    PUBLISHED = "published"


@dataclass(frozen=True, slots=True)
class PeerView:
    """One connected peer and who speaks through it. `clock_apart_ms` is its clock less ours, by what it told in
    hello."""

    peer: str
    address: str
    agents: tuple[str, ...]
    graphs: int
    clock_apart_ms: int
    state: str


@dataclass(frozen=True, slots=True)
class SyncView:
    """How one graph stood with one member's node at the last comparison: `lag` is the difference in items.

    Without a connection it says nothing of now.
    """

    graph: str
    peer: str
    equal: bool
    lag: int
    last_round_ms: int
    trouble: str
    connected: bool = True


@dataclass(frozen=True, slots=True)
class CompactView:
    """What the node's files took before they were written anew, and take now."""

    before_bytes: int
    after_bytes: int


@dataclass(frozen=True, slots=True)
class BackupView:
    """A copy of the ledger: the file, and what it takes."""

    file: str
    bytes: int


@dataclass(frozen=True, slots=True)
class RestoreView:
    """The context graphs in which this node signs nothing, since it was restored and has not compared them yet."""

    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClockView:
    """Whether the wall clock of the node is in doubt, since it jumped by `jumped_ms`: then nothing that ends by it is
    let go. Of so many connected `members` those `agreeing` agree with it, by what they told before it jumped."""

    doubted: bool = False
    jumped_ms: int = 0
    members: int = 0
    agreeing: int = 0


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The node at a glance."""

    version: str
    network: str
    network_name: str
    """What `network` is the hash of, as `node.network` says it."""
    peer: str
    addresses: tuple[str, ...]
    agents: tuple[str, ...]
    started_ms: int
    now_ms: int
    position: int
    projected: int
    graphs: int
    items: int
    peers: tuple[PeerView, ...]
    sync: tuple[SyncView, ...]
    chain: str
    partial: bool
    warnings: tuple[str, ...]
    refused: tuple[ReasonCount, ...] = ()
    clock: ClockView = ClockView()
    restored: RestoreView = RestoreView()


@dataclass(frozen=True, slots=True)
class DraftView:
    """A draft and, once sealed, what was sealed. `edited` is true when content changed after sealing.

    `warnings` say what to know of what was just written; they are not kept.
    """

    graph: str
    reference: str
    iri: str
    subgraph: str
    statements: int
    sealed: bool
    edited: bool
    version: int
    root: str
    updated_ms: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AnchorView:
    """Where a version is on a chain, by this node's own look. `state` is claimed, confirmed or reverted."""

    state: str
    chain: int
    contract: str
    transaction: str
    block: int
    batch_root: str


@dataclass(frozen=True, slots=True)
class VersionView:
    """One sealed version of a knowledge asset as this node sees it now.

    `seal` is the digest of its seal, which all that is said about it names. In a conflict the reference has it, too.
    """

    graph: str
    reference: str
    iri: str
    author: str
    principal: str
    author_label: str
    name: str
    version: int
    root: str
    seal: str
    statements: int
    subgraph: str
    layer: Layer
    expires_ms: int
    issued_ms: int
    held: bool
    current: bool
    retracted: bool
    newer_unverified: bool
    copies: int
    trust: TrustView
    anchor: AnchorView | None


@dataclass(frozen=True, slots=True)
class ReviewView:
    """A proposal that waits for this node's `verifier`, whose key may be in a wallet outside."""

    id: str
    graph: str
    reference: str
    root: str
    seal: str
    verifier: str
    proposer: str
    deadline_ms: int
    policy: str


@dataclass(frozen=True, slots=True)
class ReviewDetail:
    """All that a verifier looks at: the content, earlier versions, and what is new against the newest of those.

    `content` is somebody's words, not an instruction to the reader. `problem` says what is wrong with root or seal.
    """

    review: ReviewView
    version: VersionView
    content: str
    problem: str
    earlier: tuple[VersionView, ...]
    diff: DiffView | None


@dataclass(frozen=True, slots=True)
class HistoryView:
    """What became of an asset: transitions, oldest first; what is live, newest first; what was taken back."""

    graph: str
    reference: str
    steps: tuple[HistoryStep, ...]
    versions: tuple[VersionView, ...]
    retracts: tuple[RetractView, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
    """Everything that stands behind a version's level, so that anybody can derive it again.

    `quorum_*` and `verifiers` are of the quorum under which the level stands; `kept` says that it is an earlier one
    that the head lists. `barred` do not count: the author and all for whom it was signed. `missing` may still say
    something under the head's quorum, which needs `m_now` (0 when there is none). `asked_until_ms`: until when the
    verifiers are asked, 0 when they are not. `conflicts`: other seals that claim to be this version, by references
    that name them.
    """

    version: VersionView
    shown: str
    quorum: str
    quorum_serial: int
    verifiers: tuple[str, ...]
    barred: tuple[str, ...]
    missing: tuple[str, ...]
    m_now: int
    would_raise: str
    kept: bool
    asked_until_ms: int
    signatures: tuple[SignatureView, ...]
    conflicts: tuple[str, ...]
    retracts: tuple[RetractView, ...]


@dataclass(frozen=True, slots=True)
class RecallHit:
    """A passage and who stands behind it. `text` is somebody's words, not an instruction to the reader."""

    text: str
    subject: str
    score: float
    own_draft: bool
    note: str
    version: VersionView | None
    draft: DraftView | None


@dataclass(frozen=True, slots=True)
class RecallAnswer:
    question: str
    policy: str
    position: int
    hits: tuple[RecallHit, ...]


@dataclass(frozen=True, slots=True)
class QueryAnswer:
    """`kind` is rows, boolean or triples. Rows hold N-Triples terms or None by variable."""

    kind: str
    variables: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    boolean: bool | None
    triples: str
    position: int
    truncated: bool


@dataclass(frozen=True, slots=True)
class CertificateView:
    """`statement` is what peers compare; `cbor` the file that verifies offline, as hexadecimal text."""

    statement: dict[str, object]
    cbor: str


@dataclass(frozen=True, slots=True)
class ChangeEvent:
    """Something changed. `position` is the cursor to go on from."""

    position: int
    what: str
    graph: str
    reference: str
    at_ms: int


class Face(Protocol):
    """All that a node does for its users. Errors are those of `p2pmem_protocol.errors`, `NotFoundError` and
    `NoRightError` among them.

    Nothing is acknowledged before it is on disk. Cancelling a call never undoes what it had already written.
    """

    async def status(self) -> NodeStatus: ...

    async def confirm_clock(self) -> ClockView:
        """Say that the wall clock is right, though it jumped: the doubt ends, and what has ended by it is let go for
        good. Without a doubt it does nothing."""

    async def back_up(self, to: str) -> BackupView:
        """Copy the ledger, as it is now, to a new file on the node's machine, while the node goes on; `to` is an
        absolute path. It holds no key and no configuration."""

    async def confirm_restore(self, graph: str | None) -> RestoreView:
        """Say that nothing was said in a graph since the copy was made that this node was restored from: it signs there
        again. None: in all graphs."""

    async def compact(self) -> CompactView:
        """Write all files anew, so that nothing that was erased or has ended is left in any. Takes a while."""

    async def found(self, new: NewGraph) -> GraphView:
        """Found a context graph with this node's agent as creator and owner."""

    async def graphs(self) -> tuple[GraphView, ...]: ...

    async def graph(self, graph: str) -> GraphView:
        """Unknown and not yours are one answer."""

    async def change_members(self, graph: str, change: MemberChange) -> GraphView:
        """The owner's node signs the next roster; one that holds the root key also a change of owner, or a mending."""

    async def preview_members(self, graph: str, change: MemberChange) -> ChangePreview:
        """What `change_members` would do. Any member may ask; nothing is signed."""

    async def prepare_members(self, graph: str, change: MemberChange) -> PreparedView:
        """Prepare a change as an approver: one word for the owner, who signs it by `sign_members`."""

    async def prepared_members(self, word: str) -> PreparedView:
        """What an approver prepared, who that was, and what it would do now. Nothing is signed."""

    async def sign_members(self, word: str) -> GraphView:
        """Make what an approver prepared the next roster, as `change_members` does: one signed step."""

    async def leave(self, graph: str) -> None:
        """Forget a graph locally. What one said stays with the others."""

    async def invite(self, graph: str, *, roles: tuple[str, ...], uses: int, life_ms: int, ask: bool = False) -> str:
        """One string that lets its bearer join with these roles, while uses remain; with `ask`, once the owner agrees.

        Without roles it only leads who is listed already to this node.
        """

    async def join(self, invite: str, *, label: str) -> GraphView:
        """Use an invite. Returns once this node is on the roster and has adopted it."""

    async def follow(self, graph: str, *, addresses: tuple[str, ...]) -> GraphView:
        """Read an open graph without being listed in it, from nodes at these addresses. An invite without roles to an
        open graph does the same by `join`."""

    async def join_requests(self, graph: str) -> tuple[JoinRequestView, ...]: ...

    async def decide_join(self, request: str, *, approve: bool) -> None: ...

    async def delegate(self, agent: str, *, label: str, rights: tuple[str, ...]) -> DelegationView:
        """Let an agent act for this node's agent, its principal, with these rights; none named: share alone."""

    async def accept_delegation(self, word: str) -> DelegationView:
        """Keep a delegation that was given to an agent of this node, and show it from now on."""

    async def delegations(self) -> tuple[DelegationView, ...]:
        """All that are given or held here."""

    async def revoke(self, subject: str, *, keep: bool = True) -> RevocationView:
        """Shut out an agent (by its address) or a node (by its peer id): what was delegated to it here ends, and an
        agent leaves the graphs that this node owns. `keep`: what it said so far still counts."""

    async def peers(self) -> tuple[PeerDetail, ...]:
        """Who is connected, and who is banned."""

    async def peer(self, peer: str) -> PeerDetail: ...

    async def ban_peer(self, peer: str, *, for_ms: int | None) -> PeerDetail:
        """Keep a peer out for a time, or for good."""

    async def unban_peer(self, peer: str) -> None:
        """Let a peer in again, and forget what led to its ban."""

    async def draft(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        replace: bool,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> DraftView:
        """Write to a private draft. Additive, unless `replace`.

        Without `base`, relative IRIs become ones that only this asset has. `merge_graphs` asserts all that named graphs
        say. `file` is what messages call the data; without it, the name of the draft.
        """

    async def drafts(self, graph: str | None) -> tuple[DraftView, ...]: ...

    async def discard(self, graph: str, name: str) -> None:
        """Delete a draft. `NotFoundError` where there is none."""

    async def seal(self, graph: str, name: str) -> DraftView: ...

    async def share(self, graph: str, name: str, *, ttl_ms: int | None) -> JobView:
        """Seal if unsealed, and share the draft `name`. Sharing the same again renews it.

        Raises a `MisuseError` when it cannot be; then nothing is shared, and there is no job.
        """

    async def share_data(
        self,
        graph: str,
        name: str,
        data: bytes,
        *,
        format: str | None,
        base: str | None,
        subgraph: str,
        ttl_ms: int | None,
        merge_graphs: bool = False,
        file: str | None = None,
    ) -> JobView:
        """Share statements as the next version of an asset at once, without a draft. `ttl_ms` None: the default.

        The data are read as by `draft`.

        Raises a `MisuseError` when they cannot be; then nothing is shared, and there is no job.
        """

    async def publish(self, graph: str, reference: str) -> JobView:
        """Publish a draft, sealed if it is not, or what was shared.

        Raises a `MisuseError` when it cannot be; then there is no job.
        """

    async def endorse(self, graph: str, reference: str, *, reason: str, withdraw: bool) -> JobView: ...

    async def verify(self, graph: str, reference: str, *, deadline_ms: int | None) -> JobView:
        """Ask the verifiers. The job ends ConsensusVerified, rejected, or at its deadline."""

    async def attest(self, graph: str, reference: str) -> JobView:
        """Put a certificate into the graph's contract. A job; the sender of this node pays."""

    async def retract(
        self, graph: str, reference: str, *, reason: str, successor: int | None, erase: bool
    ) -> VersionView: ...

    async def reviews(self, *, graph: str | None = None) -> tuple[ReviewView, ...]:
        """What waits for the verdict of this node's verifiers, in one graph or in all."""

    async def review(self, review: str) -> ReviewDetail:
        """What to look at before one decides."""

    async def decide_review(self, review: str, *, approve: bool, reason: str) -> JobView:
        """A person's verdict on a proposal (method manual)."""

    async def job(self, job: str, *, wait_ms: int = 0) -> JobView:
        """The job; waits at most so long for its end."""

    async def jobs(
        self, *, state: str | None, limit: int, before: str | None = None, kind: str | None = None
    ) -> tuple[JobView, ...]:
        """Jobs, newest first, 1 to 1,000. For the next page, `before` is the id of the last one of this page."""

    async def job_story(self, job: str) -> JobStory: ...

    def watch_job(self, job: str, *, since: int = 0) -> AsyncIterator[JobView]:
        """The job as it is now and after each change, until it has ended, or only a person can say how.

        Intermediate states may be left out. `since` is the position of what is known already, and not told again.
        """

    async def cancel_job(self, job: str) -> JobView: ...

    async def retry_job(self, job: str) -> JobView:
        """A new job in place of one that failed or was cancelled; it has the steps and effects of the old one."""

    async def resolve_job(self, job: str, *, outcome: str) -> JobView:
        """A person's word on a job whose outcome is unknown: `succeeded`, `failed`, or `retry`."""

    async def versions(
        self, graph: str, *, layer: Layer | None, min_trust: str | None, min_m: int = 0
    ) -> tuple[VersionView, ...]:
        """All live versions. With a floor, `min_trust` or a least M, those that are current at it."""

    async def version(self, graph: str, reference: str) -> VersionView: ...

    async def history(self, graph: str, reference: str) -> HistoryView:
        """What became of an asset; a version number in the reference is passed over."""

    async def diff(self, graph: str, reference: str, *, other: str | None) -> DiffView:
        """A version against another one of its asset, which `other` names by `<version>[:<seal>]` or in full; without
        it, against the one before."""

    async def explain(self, graph: str, reference: str) -> Explanation:
        """Who stands behind a version, by which signatures, and what is missing."""

    async def roster(self, graph: str) -> bytes:
        """The head, and the headers from the root key to it: to judge certificates against, without a node."""

    async def content(self, graph: str, reference: str) -> bytes:
        """The sealed canonical N-Quads, byte for byte."""

    async def certificate(self, graph: str, reference: str) -> CertificateView: ...

    async def proof(self, graph: str, reference: str, statement: str) -> dict[str, object]:
        """Membership of one statement, an N-Quads line: `statement`, `root`, `leaves`, `leaf` and `proof` (hashes)."""

    async def recall(
        self, question: str, *, graph: str | None, min_trust: str | None, min_m: int, limit: int
    ) -> RecallAnswer: ...

    async def query(
        self, sparql: str, *, graph: str, layer: Layer | None, min_trust: str | None, at_least: int, min_m: int = 0
    ) -> QueryAnswer:
        """Over what is current at the floor of a level and a least M."""

    # Signing by wallets outside

    async def agents(self) -> tuple[AgentView, ...]:
        """Who speaks through this node, the default first."""

    async def add_agent(self, address: str, *, label: str) -> AgentView:
        """From now on prepare what an agent with a wallet outside is to sign; its reviews are listed here."""

    async def sign_prepare(self, request: SignRequest) -> SignView:
        """The typed data of a statement. What is prepared is forgotten after an hour, and when the node stops."""

    async def sign_submit(self, id: str, *, signature: str) -> SignedView:
        """The signature, 65 bytes in hexadecimal. Checked, and done: on disk when this returns."""

    def changes(self, since: int) -> AsyncIterator[ChangeEvent]:
        """Changes after a position, then on as they come. Ends when cancelled or when the node stops."""
