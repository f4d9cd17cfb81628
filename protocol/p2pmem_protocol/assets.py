"""The indexes of a set: versions with what is known of them, and a small index for everything else."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, Final, Generic, TypeVar

from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, AssetKey, VersionKey
from p2pmem_protocol.records import EvidenceRecord, Record, SealedRecord, State

K = TypeVar("K", bound=Hashable)
R = TypeVar("R", bound=Record)

Slot = tuple[Kind, Address, bytes, int, int]


class Version:
    """One sealed version: its shares and publishes that are known, in the set or aside, and the evidence about it.

    `present` counts those in the set: while there is one, the evidence is in the set too (rule E1). Nearly every
    version has one share, so a dictionary is made for the second only.
    """

    __slots__ = ("_many", "_one", "evidence", "key", "present")

    def __init__(self, key: VersionKey) -> None:
        self.key = key
        self.present = 0
        self.evidence: dict[Slot, list[EvidenceRecord]] | None = None
        self._one: SealedRecord | None = None
        self._many: dict[bytes, SealedRecord] | None = None

    @property
    def sealed(self) -> Collection[SealedRecord]:
        if self._many is not None:
            return self._many.values()
        return () if self._one is None else (self._one,)

    def add_sealed(self, record: SealedRecord) -> None:
        if self._many is None and self._one is None:
            self._one = record
        elif self._many is not None:
            self._many[record.id] = record
        elif self._one is not None:
            self._many = {self._one.id: self._one, record.id: record}
            self._one = None

    def discard_sealed(self, record: SealedRecord) -> None:
        if self._many is None:
            assert self._one is record
            self._one = None
        else:
            del self._many[record.id]

    def live(self, t_ms: int) -> Iterator[SealedRecord]:
        """Its shares and publishes that are in the set and have not ended at `t_ms`."""
        return (record for record in self.sealed if record.state is State.IN and t_ms < record.ends_at_ms)

    def evidence_in_set(self) -> Iterator[EvidenceRecord]:
        for records in (self.evidence or {}).values():
            yield from (record for record in records if record.state is State.IN)

    def add_evidence(self, record: EvidenceRecord) -> None:
        if self.evidence is None:
            self.evidence = {}
        self.evidence.setdefault(record.slot, []).append(record)

    def discard_evidence(self, record: EvidenceRecord) -> None:
        assert self.evidence is not None
        records = self.evidence[record.slot]
        records.remove(record)
        if not records:
            del self.evidence[record.slot]
        if not self.evidence:
            self.evidence = None


class Asset:
    """A knowledge asset: its versions. Like `Version`, it makes a dictionary for the second only."""

    __slots__ = ("_many", "_one", "key")

    def __init__(self, key: AssetKey) -> None:
        self.key = key
        self._one: Version | None = None
        self._many: dict[VersionKey, Version] | None = None

    @property
    def versions(self) -> Collection[Version]:
        """Every version that is known, of a number every seal, in no order."""
        if self._many is not None:
            return self._many.values()
        return () if self._one is None else (self._one,)

    def get(self, key: VersionKey) -> Version | None:
        if self._many is not None:
            return self._many.get(key)
        return self._one if self._one is not None and self._one.key == key else None

    def add(self, version: Version) -> None:
        if self._many is None and self._one is None:
            self._one = version
        elif self._many is not None:
            self._many[version.key] = version
        elif self._one is not None:
            self._many = {each.key: each for each in (self._one, version)}
            self._one = None

    def discard(self, version: Version) -> None:
        if self._many is not None:
            self._many.pop(version.key, None)
        elif self._one is version:
            self._one = None

    def numbered(self, number: int) -> list[Version]:
        """Every seal that is known of one version number."""
        return [version for version in self.versions if version.key.version == number]


class Index(Generic[K, R]):
    """Records in the set by something that they name."""

    __slots__ = ("_records",)

    def __init__(self) -> None:
        self._records: dict[K, dict[bytes, R]] = {}

    def __getitem__(self, key: K) -> Collection[R]:
        return self._records.get(key, _NOTHING).values()

    def keys(self) -> Iterable[K]:
        return self._records.keys()

    def add(self, key: K, record: R) -> None:
        self._records.setdefault(key, {})[record.id] = record

    def discard(self, key: K, record: R) -> None:
        records = self._records[key]
        del records[record.id]
        if not records:
            del self._records[key]


_NOTHING: Final[dict[bytes, Any]] = {}
