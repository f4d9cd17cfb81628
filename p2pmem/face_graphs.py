"""Values of the face about context graphs and who is in them. Import them from `p2pmem.face`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberView:
    address: str
    label: str
    roles: tuple[str, ...]
    since_ms: int
    online: bool


@dataclass(frozen=True, slots=True)
class QuotaView:
    """What one member, with all who act for it, may have in a graph."""

    live_bytes: int
    live_items: int
    durable_items: int
    content_bytes: int


@dataclass(frozen=True, slots=True)
class BranchView:
    """One side of a fork: a roster that contradicts another one of the same parent or term."""

    id: str
    version: int
    term: int
    owner: str
    signer: str
    quorum: str


@dataclass(frozen=True, slots=True)
class GraphView:
    """A context graph as its head roster has it. `trouble` says in words why it waits or is forked, empty otherwise.

    `root` is the creator, whose key alone changes the owner and mends a fork; `branches` are the sides of a fork.
    """

    graph: str
    iri: str
    id: str
    access: str
    owner: str
    version: int
    term: int
    head: str
    quorum_m: int
    verifiers: tuple[str, ...]
    members: tuple[MemberView, ...]
    ttl_default_ms: int
    ttl_max_ms: int
    acks_min: int
    chain: int
    contract: str
    trouble: str
    root: str = ""
    quotas: QuotaView | None = None
    branches: tuple[BranchView, ...] = ()


@dataclass(frozen=True, slots=True)
class NewMember:
    """A member to be: `roles` are words of the roster (reader, writer, endorser, verifier, approver)."""

    address: str
    roles: tuple[str, ...]
    label: str = ""


@dataclass(frozen=True, slots=True)
class NewGraph:
    """What `found` needs. `m` 0 means no quorum; with `chain` the quorum is registered in the node's contract."""

    slug: str
    members: tuple[NewMember, ...] = ()
    m: int | None = None
    access: str = "gated"
    ttl_default_ms: int | None = None
    ttl_max_ms: int | None = None
    acks_min: int = 0
    chain: bool = False


@dataclass(frozen=True, slots=True)
class LimitsChange:
    """How a graph works from now on; what is None stays as it is. `chain`: anchor with this node's chain, or no more.

    The quotas are for each member with all who act for it: bytes and number of what is shared, number of what stays,
    and the largest content.
    """

    access: str | None = None
    ttl_default_ms: int | None = None
    ttl_max_ms: int | None = None
    acks_min: int | None = None
    chain: bool | None = None
    live_bytes: int | None = None
    live_items: int | None = None
    durable_items: int | None = None
    content_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class MemberChange:
    """What the next roster is to say. Everything in one change becomes one signed step.

    `set`: add a member or change its roles. `remove`: take it out; what it said so far and counts is kept, unless its
    key `leaked`: then nothing of those that are removed counts any more, nor a certificate that rests on them.
    `m`: approvals that verify, None to leave it, 0 for no quorum. `drop`: versions that are no longer kept as verified
    under an earlier quorum. `owner` and `mend` (go on above every branch of a fork) need the root key.
    """

    set: tuple[NewMember, ...] = ()
    remove: tuple[str, ...] = ()
    m: int | None = None
    leaked: bool = False
    limits: LimitsChange | None = None
    drop: tuple[str, ...] = ()
    owner: str | None = None
    mend: bool = False


@dataclass(frozen=True, slots=True)
class TrustChange:
    """How far a version is trusted now and would be after a change: a level with its M of N, `not shown` now, or `gone`
    then."""

    reference: str
    now: str
    then: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Something that is other after a change: what, in words, and how it stands before and after; empty for nothing."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """What a change would do. `signer` is whose key it needs, `signs_here` whether this node holds that.

    `asked` has a line for everything that the change asks for, `differences` all that is other in the roster that it
    makes: who comes and goes, roles, limits, access, quorum, owner, what is kept. `quorum_m`, `verifiers` and `members`
    are those after it. `notes` say in words what it does; `trust` lists what rises or falls.
    """

    graph: str
    version: int
    signer: str
    signs_here: bool
    quorum_m: int
    verifiers: tuple[str, ...]
    members: tuple[NewMember, ...]
    asked: tuple[str, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]
    trust: tuple[TrustChange, ...]


@dataclass(frozen=True, slots=True)
class PreparedView:
    """A change that an approver prepared and signed, and what it would do now. `word` hands it to the owner."""

    graph: str
    approver: str
    label: str
    change: MemberChange
    preview: ChangePreview
    word: str


@dataclass(frozen=True, slots=True)
class JoinRequestView:
    """Somebody who asks to become a member."""

    id: str
    graph: str
    agent: str
    label: str
    roles: tuple[str, ...]
    asked_ms: int
