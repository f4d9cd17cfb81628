"""A cluster in programs that know nothing of trio."""

from __future__ import annotations

import asyncio
import threading

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, NotSettledError, hours, minutes
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust


def test_every_call_blocks_and_partitions_are_plain_blocks() -> None:
    with Cluster.blocking(3, seed=1, quorum=1) as cluster:
        ada, bo, cy = cluster.nodes
        asset = ada.share("ex:trial ex:lowers ex:ldl .", ttl=hours(2))
        cluster.settled()
        with cluster.partition([ada, bo], [cy]):
            bo.endorse(asset)
            cluster.settled()
            assert cy.trust(asset) is Trust.SELF_ATTESTED
        cluster.settled()
        assert cy.trust(asset) is Trust.ENDORSED
        cluster.crash(bo)
        cluster.restart(bo)
        cluster.settled()
        assert bo.trust(asset) is Trust.ENDORSED
        zoe = cluster.join("zoe")
        cluster.settled()
        assert zoe.sees(asset)
        cluster.audit()
        cluster.advance(hours=3)
        assert cy.recall("trial") == []


def test_errors_are_those_of_the_call_and_the_cluster_goes_on() -> None:
    with Cluster.blocking(2, seed=1) as cluster:
        ada, bo = cluster.nodes
        with pytest.raises(MisuseError):
            ada.share()
        with cluster.partition([ada], [bo]):
            asset = ada.share("ex:a ex:b ex:c .")
        cluster.crash(bo)
        cluster.restart(bo)
        cluster.skew(bo, minutes(20))
        cluster.restart(bo)
        bo.share("ex:a ex:b ex:d .")
        with pytest.raises(NotSettledError):
            cluster.settled(within=minutes(2))
        assert ada.sees(asset)
    with pytest.raises(MisuseError, match="not running"):
        cluster.settled()


def test_an_asyncio_program_uses_it_from_a_thread() -> None:
    async def program(cluster: object) -> bool:
        ada, bo = cluster.nodes  # type: ignore[attr-defined]
        asset = await asyncio.to_thread(ada.share, "ex:a ex:b ex:c .")
        await asyncio.to_thread(cluster.settled)  # type: ignore[attr-defined]
        return bool(bo.sees(asset))

    with Cluster.blocking(2, seed=1) as cluster:
        assert asyncio.run(program(cluster))
    assert not [thread for thread in threading.enumerate() if thread.name == "p2pmem cluster"]


def test_over_libp2p_the_nodes_go_on_between_two_calls() -> None:
    with Cluster.blocking(n=3, seed=2, quorum=1, net="libp2p") as cluster:
        ada, bo, cy = cluster.nodes
        asset = ada.share('ex:a ex:says "over wires" .')
        cluster.settled()
        assert cy.sees(asset)
        bo.endorse(asset)
        cluster.until_seen(asset, cy)
        cluster.settled()
        assert cy.trust(asset) is Trust.ENDORSED
        with pytest.raises(MisuseError, match="net='memory'"), cluster.partition([ada], [bo, cy]):
            pass
        cluster.audit()
    assert not [thread for thread in threading.enumerate() if thread.name == "p2pmem cluster"]


def test_a_call_to_a_cluster_that_has_died_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def dies(self: Cluster) -> None:
        self._nursery.start_soon(_die)
        await trio.sleep_forever()

    monkeypatch.setattr(Cluster, "settled", dies)
    cluster = Cluster.blocking(1, seed=1)
    with pytest.raises((ExceptionGroup, MisuseError, ZeroDivisionError)), cluster:  # noqa: PT012
        with pytest.raises(MisuseError, match="ended while the call was under way"):
            cluster.settled()
        with pytest.raises(MisuseError, match=r"not running|ended while"):
            cluster.settled()


async def _die() -> None:
    raise ZeroDivisionError
