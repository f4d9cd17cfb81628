"""Changes of members that an approver prepares and the owner's node signs: one word, and one signed step each.

The word goes from one person to the other as an invite does. Nothing waits on either side: it is good for the roster
that it was prepared on, and when that is no longer the head it is prepared again.
"""

from __future__ import annotations

import json
from typing import Final

from p2pmem_jobs import codec
from p2pmem_jobs.errors import NotSerialisableError
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.json_nesting import NestedTooDeepError, check_nesting
from p2pmem_protocol.names import Address
from p2pmem_protocol.prepared import Prepared, SignedPrepared
from p2pmem_protocol.roster import Role, Roster

from p2pmem.face import MemberChange, NoRightError, PreparedView
from p2pmem.keyring import Keyring
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.member_desk import MemberDesk

_NOTHING: Final = MemberChange()


class Preparing:
    """The part of the face between approvers and the owner."""

    def __init__(self, ledger: Ledger, members: MemberDesk, keyring: Keyring) -> None:
        self._ledger = ledger
        self._members = members
        self._keyring = keyring

    def unsigned(self, graph: LedgerGraph, change: MemberChange, approver: Address) -> Prepared:
        """What `approver` is to sign. Raises `MisuseError` for a change that cannot be, and for who is no approver."""
        head = _head(graph)
        _check_approver(graph, head, approver)
        _check_is_the_owners(change)
        self._members.plan(graph, change)
        return Prepared(self._ledger.network, graph.id, head.id, _written(change), approver)

    def prepare(self, graph: LedgerGraph, change: MemberChange) -> PreparedView:
        """Prepare a change as this node's agent."""
        key = self._keyring.default
        return self._view(graph, self.unsigned(graph, change, key.address).sign(key))

    def read(self, word: str) -> PreparedView:
        """What was prepared, by whom, and what it would do now. Raises `MisuseError` for what is not to be signed."""
        graph, signed = self._read(word)
        return self._view(graph, signed)

    def change_of(self, word: str) -> tuple[LedgerGraph, MemberChange]:
        """The graph, and the change that its approver prepared on the roster that is its head. Raises as `read`."""
        graph, signed = self._read(word)
        change = _change(signed)
        _check_is_the_owners(change)
        return graph, change

    def _read(self, word: str) -> tuple[LedgerGraph, SignedPrepared]:
        signed = SignedPrepared.parse(word)
        it = signed.prepared
        if it.network != self._ledger.network:
            raise MisuseError("the change was prepared for another network than this node's (node.network)")
        graph = self._ledger.graph(it.graph)
        head = _head(graph)
        if it.parent != head.id:
            raise MisuseError(f"the roster of {graph.name} is not the one that this was prepared on; prepare it again")
        _check_approver(graph, head, it.approver)
        return graph, signed

    def _view(self, graph: LedgerGraph, signed: SignedPrepared) -> PreparedView:
        approver = signed.prepared.approver
        change = _change(signed)
        _check_is_the_owners(change)
        return PreparedView(
            graph=str(graph.name),
            approver=str(approver),
            label=graph.label_of(approver),
            change=change,
            preview=self._members.preview(graph, change),
            word=str(signed),
        )


def _head(graph: LedgerGraph) -> Roster:
    if graph.head is None:
        raise MisuseError(f"{graph.name} has no roster here yet: {graph.trouble}")
    return graph.head


def _check_approver(graph: LedgerGraph, head: Roster, approver: Address) -> None:
    listed = head.body.by_address.get(approver)
    if listed is None or Role.APPROVER not in listed.roles:
        raise NoRightError(f"{approver} is no approver of {graph.name}: the owner gives that role")


def _check_is_the_owners(change: MemberChange) -> None:
    """An owner who signs without a look must not give away more than an owner can."""
    if change.owner is not None or change.mend:
        raise MisuseError("another owner is named, and a fork mended, by the root key alone: nobody prepares that")


def _written(change: MemberChange) -> str:
    """The change as its approver signs it: what is as by default is left out, so that a person can read it."""
    if change == _NOTHING:
        raise MisuseError("nothing is to change: name a member to set or to remove, an M, a limit or an owner")
    given = json.loads(codec.encode(change, MemberChange))
    default = json.loads(codec.encode(_NOTHING, MemberChange))
    short = {name: value for name, value in given.items() if value != default[name]}
    return json.dumps(short, ensure_ascii=False, separators=(",", ":"))


def _change(signed: SignedPrepared) -> MemberChange:
    text = signed.prepared.change
    try:
        check_nesting(text)
        change = codec.decode(text, MemberChange)
    except (NotSerialisableError, NestedTooDeepError, ValueError) as error:
        raise MisuseError(f"what was prepared is no change of members: {error}") from None
    assert isinstance(change, MemberChange)
    if text != _written(change):
        raise MisuseError(
            "what was prepared is not written as a change of members is, so that it may not be what a wallet showed of "
            "it: a name twice, one that changes nothing, or blanks"
        )
    return change
