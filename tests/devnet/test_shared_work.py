"""What nodes of one process do once for all of them: the same comes out, and nothing is let in that would not be."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest
import trio
from p2pmem_devnet import shared_work as shared
from p2pmem_devnet.cluster import Cluster, minutes
from p2pmem_devnet.shared_work import LONG_BYTES, PURE, shared_work
from p2pmem_devnet.virtual_time import virtual_clock
from p2pmem_protocol import keys
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.trust import Trust

from p2pmem.ledger import admission


def trace_of(*, is_shared: bool) -> str:
    async def main() -> str:
        async with Cluster(4, seed=5, quorum=1) as cluster:
            ada, bo, *_ = cluster.nodes
            with shared_work() if is_shared else nullcontext():
                asset = await ada.share("ex:trial ex:lowers ex:ldl .", ttl=minutes(30))
                await cluster.settled()
                await bo.endorse(asset)
                await cluster.crash(bo)
                await cluster.restart(bo)
                await cluster.settled()
                assert bo.trust(asset) is Trust.ENDORSED
                await cluster.advance(minutes=40)
            cluster.audit()
            return cluster.trace.digest

    return trio.run(main, clock=virtual_clock())


def test_a_cluster_goes_the_same_way_whether_or_not_its_nodes_share_work() -> None:
    assert trace_of(is_shared=True) == trace_of(is_shared=False)


def test_work_on_one_item_is_done_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    for module, name in PURE:

        def counted(*args: bytes, plain: object = getattr(module, name), name: str = name) -> object:
            done[name] += 1
            return plain(*args)  # type: ignore[operator]

        monkeypatch.setattr(module, name, counted)

    async def main() -> None:
        async with Cluster(4, seed=5) as cluster:
            with shared_work():
                done.clear()
                await cluster.nodes[0].share("ex:trial ex:lowers ex:ldl .", ttl=minutes(30))
                await cluster.settled()

    trio.run(main, clock=virtual_clock())
    assert done["decode_item"] == done["check_canonical"] == 1
    assert 1 <= done["signer_of"] <= 2


def test_one_other_byte_is_looked_at_anew_and_refused_each_time() -> None:
    key, digest = Key(bytes(31) + b"\1"), bytes(32)
    signature = key.sign(digest)
    with shared_work():
        assert keys.signer_of(digest, signature) == keys.signer_of(digest, signature) == key.address
        other = bytes(31) + b"\1"
        assert keys.signer_of(other, signature) != key.address, "what was signed is part of what is asked"
        for _ in range(2):
            with pytest.raises(RefusedError):
                keys.check_signed_by(key.address, other, signature)
            with pytest.raises(RefusedError):
                admission.check_canonical(b"nothing\n")


def test_what_is_remembered_is_bounded_and_ends_with_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "REMEMBERED_MAX", 2)
    looked: list[bytes] = []
    plain = [getattr(module, name) for module, name in PURE]
    monkeypatch.setattr(admission, "check_canonical", lambda data: looked.append(data))
    long = bytes(LONG_BYTES + 1)
    with shared_work():
        for data in (b"1", b"2", b"1", b"3", b"2", long, long):
            admission.check_canonical(data)
    assert looked == [b"1", b"2", b"3", b"2", long, long]
    monkeypatch.undo()
    assert [getattr(module, name) for module, name in PURE] == plain
