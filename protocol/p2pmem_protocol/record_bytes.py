"""Records of shares and publishes in few bytes, for a ledger that keeps them beside what was signed.

To read 50,000 envelopes takes seconds of strict decoding that was done once already, when they were admitted; to read
these takes a tenth. They never come from outside and are never sent: a ledger that has none decodes the envelope.
"""

from __future__ import annotations

from struct import Struct, error as StructError
from typing import Final

from p2pmem_protocol.credential import Right
from p2pmem_protocol.errors import BugError
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, VersionKey
from p2pmem_protocol.records import Record, SealedRecord, State
from p2pmem_protocol.seal import NO_PREVIOUS

_FORMAT: Final = 1
# Format, author, principal, serial, rights, issued, ends, charge, version, root, seal, leaves, previous, content hash
# and length, length of the name in bytes; then the name and the sub-graph.
_FIELDS: Final = Struct(">B20s20sQIQQQI32s32sI32s32sQH")


def to_bytes(record: Record) -> bytes | None:
    """The record of a share or publish without id, kind and state; None for other kinds, which are few."""
    if not isinstance(record, SealedRecord):
        return None
    key = record.key
    name = key.name.encode()
    head = _FIELDS.pack(
        _FORMAT,
        record.author,
        record.principal,
        record.serial,
        int(record.rights),
        record.issued_at_ms,
        record.ends_at_ms,
        record.charge_bytes,
        key.version,
        key.root,
        key.seal,
        record.leaves,
        record.previous,
        record.content_hash,
        record.content_length,
        len(name),
    )
    return head + name + record.subgraph.encode()


class RecordReader:
    """Reads many records. What many of them have in common is one object in all of them."""

    def __init__(self) -> None:
        self._addresses: dict[bytes, Address] = {}
        self._rights: dict[int, Right] = {}
        self._subgraphs: dict[bytes, str] = {b"": ""}

    def from_bytes(self, data: bytes, item_id: bytes, kind: Kind) -> SealedRecord:
        """Raises `BugError` for bytes that `to_bytes` did not make."""
        try:
            (
                form,
                author_bytes,
                principal_bytes,
                serial,
                rights,
                issued_at_ms,
                ends_at_ms,
                charge_bytes,
                version,
                root,
                seal,
                leaves,
                previous,
                content_hash,
                content_length,
                name_bytes,
            ) = _FIELDS.unpack_from(data)
        except StructError as error:
            raise BugError(f"a record of {len(data)} bytes: {error}") from None
        if form != _FORMAT:
            raise BugError(f"a record of format {form}")
        author = self._address(author_bytes)
        name_end = _FIELDS.size + name_bytes
        return SealedRecord(
            item_id,
            kind,
            author,
            author if principal_bytes == author_bytes else self._address(principal_bytes),
            serial,
            self._right(rights),
            issued_at_ms,
            ends_at_ms,
            charge_bytes,
            State.NEW,
            0,
            VersionKey(author, data[_FIELDS.size : name_end].decode(), version, root, seal),
            self._subgraph(data[name_end:]),
            leaves,
            NO_PREVIOUS if previous == ZERO_HASH else previous,
            content_hash,
            content_length,
        )

    def _address(self, data: bytes) -> Address:
        known = self._addresses.get(data)
        if known is None:
            known = self._addresses[data] = Address(data)
        return known

    def _right(self, number: int) -> Right:
        known = self._rights.get(number)
        if known is None:
            known = self._rights[number] = Right(number)
        return known

    def _subgraph(self, data: bytes) -> str:
        known = self._subgraphs.get(data)
        if known is None:
            known = self._subgraphs[data] = data.decode()
        return known
