"""Records of shares and publishes as bytes, over everything that random histories say."""

from __future__ import annotations

import dataclasses

import pytest
from p2pmem_protocol.errors import BugError
from p2pmem_protocol.graphset import GraphSet
from p2pmem_protocol.kinds import CONTENT, Kind
from p2pmem_protocol.record_bytes import RecordReader, to_bytes
from p2pmem_protocol.records import State, record_of

from tests.protocol import histories
from tests.protocol.world import GRAPH, NETWORK, T0, W, roster, share, size_of


def test_what_was_written_is_read_again() -> None:
    reader = RecordReader()
    written = 0
    for seed in range(40):
        for item in histories.make(seed).pool:
            record = record_of(item, size_of(item))
            data = to_bytes(record)
            assert (data is not None) == (item.kind in CONTENT)
            if data is not None:
                again = reader.from_bytes(data, record.id, record.kind)
                assert dataclasses.astuple(again) == dataclasses.astuple(record)
                written += 1
    assert written > 300


def test_a_set_is_restored_from_them_as_from_envelopes() -> None:
    items = [share("ada", number) for number in range(1, 20)]
    one, other, reader = GraphSet(GRAPH, NETWORK), GraphSet(GRAPH, NETWORK), RecordReader()
    for item in items:
        one.restore(item, size_of(item), State.IN)
        data = to_bytes(record_of(item, size_of(item)))
        assert data is not None
        other.restore_record(reader.from_bytes(data, item.id, item.kind), State.IN)
    for graph_set in (one, other):
        graph_set.set_head(roster({"ada": W}), T0)
    assert len(one) == len(items)
    assert one.reconciled(T0) == other.reconciled(T0)


@pytest.mark.parametrize("data", [b"", b"\1" * 50, b"\2" * 400])
def test_other_bytes_are_a_bug(data: bytes) -> None:
    with pytest.raises(BugError):
        RecordReader().from_bytes(data, b"\0" * 32, Kind.SHARE)
