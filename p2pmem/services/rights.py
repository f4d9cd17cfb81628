"""Who may say what in a context graph: asked before anything is made, so that nobody waits for a job that must fail.

The rule itself is `p2pmem_protocol.rights`; admission asks it again of what was signed.
"""

from __future__ import annotations

from typing import Final

from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address

from p2pmem.face import NoRightError
from p2pmem.ledger.graph import LedgerGraph

_WHOSE: Final = {
    Kind.SHARE: "of writers",
    Kind.PUBLISH: "of writers",
    Kind.ANCHOR: "of writers",
    Kind.PROPOSE: "of writers",
    Kind.ENDORSE: "of endorsers",
    Kind.VERDICT: "of verifiers",
    Kind.RETRACT: "of the author, of whom it was said for, and of the owner",
    Kind.ACK: "of members",
    Kind.REVOKE: "of members",
}


def check_right(graph: LedgerGraph, agent: Address, kind: Kind, acting: SignedActFor | None) -> None:
    """Raises `NoRightError` when nothing of this kind that `agent` says would be let in. `acting` is the delegation
    under which it speaks in the graph.

    Without a roster nothing can be told, and who needs one says so.
    """
    rights = graph.set.rights
    if rights is None:
        return
    if acting is None:
        allowed = rights.may_say(kind, agent)
    else:
        allowed = rights.may_say(kind, acting.delegation.principal, acting.delegation.rights)
    if not allowed:
        raise no_right(graph, agent, kind, acting)


def no_right(graph: LedgerGraph, agent: Address, kind: Kind, acting: SignedActFor | None = None) -> NoRightError:
    """What to say to an agent that may not say this."""
    who = f"{agent}, for {acting.delegation.principal}," if acting is not None else str(agent)
    how = "`p2pmem acting allow` gives it a share of a member's rights, and " if acting is not None else ""
    return NoRightError(
        f"{who} has not the right to {kind.word} in {graph.name}, which is {_WHOSE[kind]}: {how}"
        "the owner gives roles with `p2pmem graph members --set ADDRESS=ROLES`"
    )
