"""An auditor that cannot fail is none: for each rule a build that is broken in just that way, which it must catch."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any

import pytest
from p2pmem_devnet import cluster_disk
from p2pmem_devnet.auditor import AuditError
from p2pmem_devnet.cluster import Cluster, hours
from p2pmem_protocol import evidence, view
from p2pmem_protocol.envelope import Envelope
from p2pmem_protocol.frames import GraphState
from p2pmem_protocol.trust import Trust, TrustReport

from p2pmem.exchange.holdings import OWN, Admitted, Offered
from p2pmem.ledger.admission import Admission
from p2pmem.ledger.ledger_holdings import LedgerHoldings
from p2pmem.net.sessions import Sessions
from p2pmem.services.keeper import Keeper
from p2pmem.work.outgoing import Ready
from p2pmem.work.sharing import SharingJobs

pytestmark = pytest.mark.cluster(n=3, quorum=1, audit=False)
Patch = pytest.MonkeyPatch


def rules(cluster: Cluster) -> set[str]:
    """The rules that the auditor finds broken."""
    try:
        cluster.audit()
    except AuditError as error:
        return {finding.rule for finding in error.findings}
    return set()


async def a_busy_day(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .", ttl=hours(2))
    published = await bo.publish(text="ex:d ex:e ex:f .")
    await cluster.settled()
    await cy.endorse(asset)
    await bo.verify(published)
    await cluster.settled()
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.advance(hours=1)
    await cluster.settled()


async def test_a_whole_build_passes(cluster: Cluster) -> None:
    await a_busy_day(cluster)
    stranger = await cluster.stranger()
    await attack(cluster, stranger)
    await cluster.advance(hours=3)
    cluster.audit()
    assert stranger.heard
    assert all(node.said for node in cluster.nodes)
    assert sum(len(node.promises) for node in cluster.nodes) >= 5


async def test_it_finds_what_no_signature_stands_behind(cluster: Cluster, monkeypatch: Patch) -> None:
    ada, _, cy = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    item = next(item for item in _envelopes(cluster, 0) if item.kind.word == "share")
    forged = Envelope(replace(item.unsigned, issued_at_ms=item.issued_at_ms + 1), item.signature)
    with monkeypatch.context() as broken:
        broken.setattr(Envelope, "check", lambda self: None)
        _, blamed = await cy.inside.services.admission.admit([Offered(forged.encode())], OWN)
        assert not blamed
    await cluster.advance(minutes=3)
    assert "a" in rules(cluster)
    assert ada.sees(asset)


async def test_it_finds_members_that_only_believe_themselves_equal(cluster: Cluster, monkeypatch: Patch) -> None:
    ada, _, cy = cluster.nodes
    await cluster.advance(minutes=1)
    monkeypatch.setattr(LedgerHoldings, "state", _everything_is_equal)
    monkeypatch.setattr(LedgerHoldings, "admit", _admit_nothing)
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.advance(minutes=20)
    assert not cy.sees(asset)
    assert rules(cluster) == {"b"}


async def test_it_finds_what_outlives_its_end(cluster: Cluster, monkeypatch: Patch) -> None:
    monkeypatch.setattr(Keeper, "sweep", _nothing)
    monkeypatch.setattr(Keeper, "_run_sweeps", _nothing)
    await cluster.restart(*cluster.nodes)
    await cluster.nodes[0].share("ex:a ex:b ex:c .", ttl=hours(1))
    await cluster.settled()
    assert rules(cluster) == set()
    await cluster.advance(hours=1, minutes=2)
    assert rules(cluster) == {"c"}


async def test_it_finds_trust_that_no_signatures_make(cluster: Cluster, monkeypatch: Patch) -> None:
    honest = view.assess

    def flattering(*args: Any, **kwargs: Any) -> TrustReport:
        report = honest(*args, **kwargs)
        return replace(report, level=Trust.CONSENSUS_VERIFIED) if report.endorsements else report

    ada, bo, _ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    await bo.endorse(asset)
    await cluster.settled()
    assert rules(cluster) == set()
    monkeypatch.setattr(view, "assess", flattering)
    assert rules(cluster) == {"d"}


async def test_it_finds_a_job_that_says_two_things(cluster: Cluster, monkeypatch: Patch) -> None:
    once = SharingJobs.share_at_once

    async def twice(self: SharingJobs, *args: Any, **kwargs: Any) -> Any:
        done = await once(self, *args, **kwargs)
        said = next(item for item in _envelopes(cluster, 0) if item.kind.word == "share")
        later = replace(said.unsigned, issued_at_ms=said.issued_at_ms + 1)
        await self._outgoing.admit(Ready(later.sign(cluster.nodes[0].key)))
        return done

    monkeypatch.setattr(SharingJobs, "share_at_once", twice)
    await cluster.nodes[0].share("ex:a ex:b ex:c .")
    await cluster.settled()
    assert rules(cluster) == {"e"}


async def test_it_finds_tables_that_only_grow(cluster: Cluster, monkeypatch: Patch) -> None:
    async def purge(self: Admission) -> int:
        return 0

    monkeypatch.setattr(Admission, "purge", purge)
    await cluster.nodes[0].share("ex:a ex:b ex:c .", ttl=hours(1))
    await cluster.advance(hours=1, minutes=5)
    assert rules(cluster) == set()
    await cluster.advance(minutes=20)
    assert rules(cluster) == {"f"}


async def test_it_finds_what_was_acknowledged_and_is_lost(cluster: Cluster, monkeypatch: Patch) -> None:
    """A disk that says `synced` and was not: the log of the last writes is not there after the crash."""

    def forgetful(source: Any, target: Any, **kwargs: Any) -> Any:
        return shutil.copytree(source, target, ignore=shutil.ignore_patterns("*-wal", "*-shm"))

    _, bo, _ = cluster.nodes
    await cluster.settled()
    await cluster.restart(bo)
    await bo.draft("ex:a ex:b ex:c .", name="precious")
    monkeypatch.setattr(cluster_disk, "copytree", forgetful)
    await cluster.crash(bo)
    await cluster.restart(bo)
    await cluster.settled()
    assert rules(cluster) == {"g"}


async def test_it_finds_a_byte_that_reached_a_stranger(cluster: Cluster, monkeypatch: Patch) -> None:
    await cluster.nodes[0].share("ex:a ex:b ex:c .")
    await cluster.settled()
    stranger = await cluster.stranger()
    await attack(cluster, stranger)
    assert rules(cluster) == set()

    def too_polite(self: Sessions, speakers: Any, peer: Any) -> Any:
        return self._papers.credentials() and _proof(self)

    def _proof(sessions: Sessions) -> Any:
        from p2pmem_protocol.hello import Proof

        return Proof(sessions._papers.credentials(), ())

    monkeypatch.setattr(Sessions, "_proof_for", too_polite)
    stranger = await cluster.stranger()
    await stranger.hello(cluster.nodes[0].inside.network.addresses()[0], stranger.key)
    assert rules(cluster) == {"h"}


async def _nothing(self: Any) -> None: ...


async def attack(cluster: Cluster, stranger: Any) -> None:
    """Everything that the stranger knows, against every node."""
    for node in cluster.nodes:
        ids = [record.id for record in node.graph.set.records()]
        address = node.inside.network.addresses()[0]
        await stranger.everything(address, node.graph.id, ids, cluster.nodes[0].address)


def _envelopes(cluster: Cluster, number: int) -> list[Envelope]:
    node = cluster.nodes[number]
    raw = [node.inside.ledger.raw(record.id) for record in node.graph.set.records()]
    items = [Envelope.decode(data) for data in raw if data is not None]
    return [item for item in items if not isinstance(item, evidence.Evidence)]


def _everything_is_equal(self: LedgerHoldings, graph: Any, at_ms: int) -> GraphState:
    found = self._ledger.graphs[graph]
    return GraphState(graph, found.head_id, 0, bytes(16))


async def _admit_nothing(self: LedgerHoldings, items: Any, source: Any) -> list[Admitted]:
    return [Admitted(None, is_new=False, reason=None) for _ in items]
