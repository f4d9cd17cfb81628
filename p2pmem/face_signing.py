"""Values of the face for agents whose keys are in wallets outside. Import them from `p2pmem.face`."""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem.face_graphs import MemberChange, NewGraph


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent that speaks through this node. `outside`: its key is in a wallet that the node never sees."""

    address: str
    label: str
    outside: bool


@dataclass(frozen=True, slots=True)
class SignRequest:
    """What an agent with a wallet elsewhere is to sign. `action` says what, and which of the other fields it takes:

    found      new                                          a graph whose creator and owner is the agent
    roster     graph, change                                the next roster, as its owner or root key
               prepared                                     the same, of a change that an approver prepared
    prepare    graph, change                                one word for the owner, as an approver
    seal       graph, name, data, format, base, subgraph,   a draft: with data, written first in place of the old
               merge_graphs
    share      graph, name, ttl_ms                          what is sealed
    publish    graph, name                                  what is sealed, or was shared
    endorse    graph, reference, reason, withdraw
    propose    graph, reference, deadline_ms                ask the verifiers
    verdict    graph, reference, decision, reason           approve or reject, by the method manual
    retract    graph, reference, reason, successor, erase   as author, as the principal it was said for, or as owner
    ack        graph, reference, deadline_ms                that this node holds the bytes, until then
    revoke     graph, subject, keep                         an agent's delegations, or a peer: nothing of it counts
    carry                                                   that this node carries the agent's words
    act_for    label, subject, rights                       that `subject` speaks for it; none named: this node's agent
    quorum     graph                                        the head's quorum for the contract, as the root key
    """

    action: str
    agent: str
    graph: str = ""
    name: str = ""
    data: str | None = None
    format: str | None = None
    base: str | None = None
    subgraph: str = ""
    merge_graphs: bool = False
    reference: str = ""
    reason: str = ""
    decision: str = ""
    withdraw: bool = False
    successor: int | None = None
    erase: bool = False
    ttl_ms: int | None = None
    deadline_ms: int | None = None
    label: str = ""
    subject: str = ""
    rights: tuple[str, ...] = ()
    keep: bool = True
    prepared: str = ""
    change: MemberChange | None = None
    new: NewGraph | None = None


@dataclass(frozen=True, slots=True)
class SignView:
    """A statement that waits for its signature until `until_ms`. `typed_data` is what `eth_signTypedData_v4` takes.

    `told` says in words what one signs where a wallet shows bytes and hashes of it alone: of a roster, all that it
    changes. `warnings` say what to know of it before.
    """

    id: str
    action: str
    agent: str
    typed_data: dict[str, object]
    until_ms: int
    told: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SignedView:
    """What became of a signature: `id` is that of the signed thing, `reference` the version or graph it is about.

    Of `prepare` and `act_for` it is the word that hands it on.
    """

    id: str
    action: str
    reference: str
