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

_ASKS: Final = {Kind.PROPOSE: "ask for verification"}
"""What somebody wants who says something of this kind, where the kind has no word for it."""
_WHOSE: Final = {
    Kind.SHARE: "writers",
    Kind.PUBLISH: "writers",
    Kind.ANCHOR: "writers",
    Kind.PROPOSE: "writers",
    Kind.ENDORSE: "endorsers",
    Kind.VERDICT: "verifiers",
    Kind.ACK: "members",
    Kind.REVOKE: "members",
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
    start = f"{who} has not the right to {_ASKS.get(kind, kind.word)} in {graph.name}"
    if kind is Kind.RETRACT:
        return NoRightError(f"{start}: only the author, whoever it was said for, and the owner of the graph retract it")
    how = "`p2pmem acting allow` gives it a share of a member's rights, and " if acting is not None else ""
    return NoRightError(
        f"{start}, which is for {_WHOSE[kind]}: {how}the owner gives roles with "
        "`p2pmem graph members --set ADDRESS=ROLES`"
    )
