"""What a node's users see of peers and of who acts for whom: the values of these parts of `p2pmem.face.Face`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DelegationView:
    """A principal's word that an agent speaks for it.

    `word` is what the agent's node takes (`p2pmem acting accept`). `given`: the principal's key is here; `held`:
    the agent's is, so that its envelopes show it. `revoked`: the principal has ended it, as far as is known here.
    """

    principal: str
    agent: str
    label: str
    rights: tuple[str, ...]
    serial: int
    given: bool
    held: bool
    revoked: bool
    word: str


@dataclass(frozen=True, slots=True)
class RevocationView:
    """What a revocation did: in which graphs it was said, where a member was taken out, how many items still count."""

    subject: str
    graphs: tuple[str, ...]
    removed_from: tuple[str, ...]
    kept: int


@dataclass(frozen=True, slots=True)
class PeerDetail:
    """A peer that is connected or banned.

    `state`: member (hello is done), connected, or banned. `banned_until_ms` 0: not banned; -1: for good. `refusals`
    counts what was held against it; `clock_apart_ms` is its clock less ours, by what it told in hello.
    """

    peer: str
    state: str
    addresses: tuple[str, ...]
    agents: tuple[str, ...]
    principals: tuple[str, ...]
    graphs: tuple[str, ...]
    clock_apart_ms: int
    banned_until_ms: int
    reason: str
    refusals: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True)
class ReasonCount:
    """How often something was refused. `where`: network (a connection), peer (its words), or item (an envelope)."""

    where: str
    reason: str
    count: int
