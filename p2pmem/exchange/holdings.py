"""What the movers of envelopes need of the ledger, and nothing more."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum, unique
from typing import Final, Protocol

from p2pmem_protocol.envelope import Item, decode_item
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.frames import GraphState
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.roster import SignedHeader
from p2pmem_protocol.snapshot import View


@unique
class How(Enum):
    """By which way something came into the ledger."""

    OWN = "own"
    MEMBER = "member"
    ROUND = "round"
    TOPIC = "topic"
    """From the topic of an open graph. Topics blame their givers by themselves."""
    SELF = "self"
    """What the node does by itself: sweeps, heads, contents."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who gave it, and by which way. `peer` is empty for what no peer gave."""

    how: How
    peer: str = ""


OWN: Final = Source(How.OWN)
SELF: Final = Source(How.SELF)


class Offered:
    """An item as it came, decoded once, when somebody first wants to know what it says."""

    __slots__ = ("_item", "_refused", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self._item: Item | None = None
        self._refused: RefusedError | None = None

    @property
    def item(self) -> Item:
        """Raises `RefusedError` when the bytes are no item; the same each time."""
        if self._item is None:
            if self._refused is None:
                try:
                    self._item = decode_item(self.data)
                    return self._item
                except RefusedError as refused:
                    self._refused = refused
            raise self._refused
        return self._item

    @property
    def is_item(self) -> bool:
        try:
            return bool(self.item.id)
        except RefusedError:
            return False


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of one item that was offered. `reason` is None when it is in the set now, or was before."""

    id: bytes | None
    is_new: bool
    reason: Reason | None


class Holdings(Protocol):
    """The ledger as the exchange sees it."""

    def state(self, graph: GraphId, at_ms: int) -> GraphState:
        """Head, count and fingerprint of the set as it will be 60 s after `at_ms`."""

    def view(self, graph: GraphId, agreed_ms: int) -> View:
        """The set to reconcile, cut at the agreed time."""

    def view_of(self, graph: GraphId, kinds: Collection[int], agreed_ms: int) -> View | None:
        """The same of kinds that a peer knows. None: not now, other parts of the kinds were asked for just before."""

    def sizes(self, graph: GraphId, ids: Sequence[bytes]) -> list[tuple[bytes, int]]:
        """Items by id, and how many bytes they have; what is not in the set is left out. Cuts first, then content, the
        rest, evidence."""

    def raw(self, graph: GraphId, ids: Sequence[bytes]) -> list[bytes]:
        """The same as bytes, in the same order."""

    def attachment_piece(
        self, graph: GraphId, content_hash: bytes, offset: int, bytes_max: int
    ) -> tuple[int, bytes] | None:
        """Of content that an item of this graph's set names, and that came through this graph: its length, and at most
        so many bytes from `offset` on."""

    def roster_part(self, graph: GraphId, part_hash: bytes) -> bytes | None:
        """A part of this graph's head roster."""

    def headers(self, graph: GraphId, ids: Collection[bytes]) -> list[bytes]:
        """Of these roster headers those that are held, parents before children."""

    def roster_version(self, graph: GraphId) -> int:
        """The version of the adopted head, 0 for none."""

    def member_count(self, graph: GraphId) -> int:
        """How many the adopted head lists, 0 for none."""

    def lacks_headers(self, graph: GraphId) -> bool:
        """Whether the head descends from a header that is not held."""
        ...

    def header_ids(self, graph: GraphId) -> tuple[bytes, ...]:
        """Of all roster headers that are held, parents before children."""
        ...

    async def add_headers(self, graph: GraphId, headers: Sequence[SignedHeader]) -> None:
        """Take in headers that follow from those held. Raises `RefusedError` for one that is wrong for everybody."""

    def missing_parts(self, graph: GraphId) -> tuple[bytes, ...]:
        """Hashes of the parts of the head that are not held yet: until they are, the graph waits."""

    async def add_parts(self, graph: GraphId, parts: Sequence[bytes]) -> None:
        """Keep parts of the head; when none is missing any more the head is adopted."""

    async def admit(self, items: Sequence[Offered], source: Source) -> list[Admitted]:
        """Test and keep; returns when what is new is on disk."""

    def wanted_attachments(self, graph: GraphId) -> tuple[tuple[bytes, int], ...]:
        """(hash, length) of content that the set names and that is not held."""

    async def keep_attachment(self, graph: GraphId, content_hash: bytes, data: bytes) -> bool:
        """Check content against the seals that name it, and keep it. Returns whether any does."""
