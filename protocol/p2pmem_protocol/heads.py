"""Which roster is the head of a context graph: a pure, order-free fold over signed roster headers (rules H1, H2).

    root act        signed by the creator, term above its parent's. Stands alone: its parent need not be held.
    other header    needs its parent held, has the parent's term and owner, is signed by that owner, is version + 1, and
                    has the parent's quorum and serial, or another quorum and serial + 1.

From the only root act of the highest term, walk while there is exactly one child: where the walk ends is the head. With
two children the graph is *forked* there and the parent is the head. With several root acts in the highest term the
graph is forked, and the head is their nearest common ancestor; there is none when it is not held or does not exist.

Of the children of one parent the two lowest ids are kept: two are enough to know of the fork, and everybody who has
seen them all keeps the same two. Of the root acts of one term the `ROOT_ACTS_MAX` lowest are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.names import GraphId, NetworkId, hex_id
from p2pmem_protocol.roster import Header, SignedHeader

CHILDREN_MAX: Final = 2
ROOT_ACTS_MAX: Final = 8

FORKED_RIGHTS: Final = (
    "Until the root key signs the next term, members that a branch removed have the rights of the roster before the "
    "fork again, also for new words."
)


@dataclass(frozen=True, slots=True)
class HeadState:
    """What the headers that are held say. `branches` are the ids that contradict each other, lowest first."""

    header: SignedHeader | None
    forked: bool
    branches: tuple[bytes, ...]
    why: str


class HeadChain:
    """The headers of one context graph that matter, and the head that follows from them."""

    def __init__(self, graph: GraphId, network: NetworkId) -> None:
        self._graph = graph
        self._network = network
        self._held: dict[bytes, SignedHeader] = {}
        self._children: dict[bytes, list[bytes]] = {}
        self._root_acts: dict[int, list[bytes]] = {}
        self._state = self._fold()

    def __contains__(self, header_id: bytes) -> bool:
        return header_id in self._held

    def __len__(self) -> int:
        return len(self._held)

    def get(self, header_id: bytes) -> SignedHeader | None:
        return self._held.get(header_id)

    def headers(self) -> tuple[SignedHeader, ...]:
        """All that are held, every parent before its children: what is sent to a peer and kept on disk."""
        return tuple(sorted(self._held.values(), key=_parent_first))

    def head(self) -> HeadState:
        return self._state

    @property
    def next_term(self) -> int:
        """The term that the root key signs next: above every root act that is held."""
        return max(self._root_acts, default=0) + 1

    def quorums_of(self, header_id: bytes) -> frozenset[bytes]:
        """The ids of the quorums that a header and those from which it descends name, across terms, as far as they are
        held: under no other does a certificate that its roster keeps count (rule K3)."""
        return frozenset(signed.header.quorum for signed in self.line_to(header_id))

    def lacks_ancestors(self, header_id: bytes) -> bool:
        """Whether a header descends from one that is not held: who joined after a root act has its term alone."""
        return any(ancestor not in self._held for ancestor in self._ancestors(header_id))

    def add(self, signed: SignedHeader, *, checked: bool = False) -> bool:
        """Take a header in. True when it is new and kept.

        `checked` says that the signature was found right before (a header from the own disk). Raises `RefusedError`:
        `PARENT_NOT_HELD` when it has to wait for its parent, `SUPERSEDED` when two lower siblings tell the same.
        """
        if not self._take(signed, checked):
            return False
        header = signed.header
        head = self._state.header
        if head is not None and not self._state.forked and header.parent == head.id and not header.is_root_act:
            # The everyday case: the first roster after the head. The walk from the root act would end here.
            self._state = _plain(signed)
            return True
        self._state = self._fold()
        return signed.id in self._held

    def add_all(self, headers: Iterable[SignedHeader], *, checked: bool = False) -> tuple[SignedHeader, ...]:
        """Take in what a peer sent, in whatever order. Returns what was new and is kept.

        A header whose parent is not held, or that tells nothing new, is left out silently; any other `RefusedError` is
        raised, after those before it were taken in.
        """
        taken: list[SignedHeader] = []
        try:
            for signed in sorted(headers, key=_parent_first):
                try:
                    if self._take(signed, checked):
                        taken.append(signed)
                except RefusedError as refused:
                    if refused.reason not in (Reason.PARENT_NOT_HELD, Reason.SUPERSEDED):
                        raise
        finally:
            self._state = self._fold()
        return tuple(signed for signed in taken if signed.id in self._held)

    def chain_to(self, header_id: bytes) -> tuple[SignedHeader, ...]:
        """The headers from the root act of its term to this one, as a certificate shows them. Empty when not held."""
        chain: list[SignedHeader] = []
        while (signed := self._held.get(header_id)) is not None:
            chain.append(signed)
            if signed.header.is_root_act:
                return tuple(reversed(chain))
            header_id = signed.header.parent
        return ()

    def line_to(self, header_id: bytes) -> tuple[SignedHeader, ...]:
        """All headers that this one descends from, across terms, as far as they are held, and itself last: what tells
        under which quorums its roster can keep a certificate (rule K3)."""
        line = (*reversed(tuple(self._ancestors(header_id))), header_id)
        return tuple(signed for signed in map(self._held.get, line) if signed is not None)

    def _take(self, signed: SignedHeader, checked: bool) -> bool:
        header = signed.header
        if header.network != self._network:
            raise RefusedError(Reason.WRONG_NETWORK, "a roster of another network")
        if header.graph != self._graph:
            raise RefusedError(Reason.UNKNOWN_GRAPH, f"a roster of {header.name}, not of this context graph")
        if header.id in self._held:
            return False
        if header.is_root_act:
            siblings = self._root_acts.get(header.term, [])
            most = ROOT_ACTS_MAX
        else:
            parent = self._held.get(header.parent)
            if parent is None:
                raise RefusedError(Reason.PARENT_NOT_HELD, f"the parent {hex_id(header.parent)[:10]} is not held here")
            check_child(parent.header, header)
            siblings = self._children.get(header.parent, [])
            most = CHILDREN_MAX
        if len(siblings) >= most and header.id > siblings[-1]:
            raise RefusedError(Reason.SUPERSEDED, f"{most} lower siblings already tell of the fork")
        if not checked:
            signed.check()
        self._hold(signed, most)
        return True

    def _hold(self, signed: SignedHeader, most: int) -> None:
        header = signed.header
        self._held[header.id] = signed
        siblings = (
            self._root_acts.setdefault(header.term, [])
            if header.is_root_act
            else self._children.setdefault(header.parent, [])
        )
        siblings.append(header.id)
        siblings.sort()
        if len(siblings) > most:
            self._forget(siblings.pop())

    def _forget(self, header_id: bytes) -> None:
        """Drop a header and what descends from it in its term. Root acts of later terms stand alone and stay."""
        waiting = [header_id]
        while waiting:
            gone = waiting.pop()
            del self._held[gone]
            waiting += self._children.pop(gone, [])

    def _fold(self) -> HeadState:
        if not self._root_acts:
            return HeadState(None, False, (), "no roster of this context graph is held; ask a member for its headers")
        term = max(self._root_acts)
        acts = self._root_acts[term]
        if len(acts) > 1:
            return self._between_root_acts(term, tuple(acts))
        head_id = acts[0]
        while len(children := self._children.get(head_id, [])) == 1:
            head_id = children[0]
        head = self._held[head_id]
        if not children:
            return _plain(head)
        why = (
            f"forked: two rosters follow version {head.header.version} of term {term}, "
            f"{hex_id(children[0])[:10]} and {hex_id(children[1])[:10]}. {FORKED_RIGHTS}"
        )
        return HeadState(head, True, tuple(children), why)

    def _between_root_acts(self, term: int, acts: tuple[bytes, ...]) -> HeadState:
        lines = [list(self._ancestors(act)) for act in acts]
        common = set(lines[0]).intersection(*lines[1:])
        nearest = next((ancestor for ancestor in lines[0] if ancestor in common), None)
        head = self._held.get(nearest) if nearest is not None else None
        shown = ", ".join(hex_id(act)[:10] for act in acts)
        if head is None:
            what = "have no common ancestor" if nearest is None else "have a common ancestor that is not held here"
            why = f"forked: the root key signed {len(acts)} rosters of term {term} ({shown}) that {what}. No head."
        else:
            why = f"forked: the root key signed {len(acts)} rosters of term {term} ({shown}). {FORKED_RIGHTS}"
        return HeadState(head, True, acts, why)

    def _ancestors(self, header_id: bytes) -> Iterator[bytes]:
        """Ids from the parent upwards, ending with the first that is not held."""
        signed = self._held.get(header_id)
        while signed is not None and signed.header.parent != ZERO_HASH:
            yield signed.header.parent
            signed = self._held.get(signed.header.parent)


def _plain(head: SignedHeader) -> HeadState:
    return HeadState(head, False, (), f"roster {head.header.version} of term {head.header.term}")


def check_child(parent: Header, child: Header) -> None:
    """Raises `RefusedError` unless `child`, no root act, may follow `parent` (rule H2). No signature is read."""
    if child.is_root_act or child.parent != parent.id or child.term != parent.term:
        raise RefusedError(Reason.BAD_FIELD, "a roster has the term of its parent unless it is a root act")
    if child.version != parent.version + 1:
        raise RefusedError(Reason.BAD_FIELD, f"version {child.version} cannot follow version {parent.version}")
    if child.signer != parent.owner or child.owner != parent.owner:
        raise RefusedError(Reason.WRONG_SIGNER, "a roster is signed by the owner that its parent names, and keeps it")
    step = child.quorum_serial - parent.quorum_serial
    if (step, child.quorum == parent.quorum) not in ((0, True), (1, False)):
        raise RefusedError(Reason.BAD_FIELD, "the quorum serial rises by one exactly when the quorum changes")


def _parent_first(signed: SignedHeader) -> tuple[int, int, bytes]:
    return (signed.header.term, signed.header.version, signed.id)
