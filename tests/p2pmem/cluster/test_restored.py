"""A node that was restored from an old copy signs nothing that may contradict what it said before."""

from __future__ import annotations

import os
from pathlib import Path
from shutil import copyfile

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_jobs import DiskError
from p2pmem_jobs.errors import MisuseError as JobsMisuseError
from p2pmem_protocol.errors import MisuseError, OutsideError
from p2pmem_protocol.limits import HOUR_MS
from p2pmem_protocol.view import asset_view

from p2pmem.face import MemberChange, NewMember, RestoreView
from p2pmem.ledger import audit
from p2pmem.net.limits import PeerLimits
from p2pmem.services.may_sign import SigningWaitsError
from p2pmem.services.restored import MARKED_POINT
from tests.p2pmem.trust.test_wallets import Wallet

FIRST, SECOND, THIRD = (f"ex:a ex:b ex:{it} ." for it in ("one", "two", "three"))


def ledger_of(node: ClusterNode) -> Path:
    path = node.disk.places().ledger
    assert path is not None
    return path


async def lost_share(cluster: Cluster, node: ClusterNode, *others: ClusterNode) -> None:
    """A node shares version 2, which whoever is there has, and forgets it; it stops with the others."""
    promised, said = len(node.promises), len(node.said)
    await node.share(SECOND, name="n")
    await cluster.settled()
    await cluster.stop(node, *others)
    del node.promises[promised:], node.said[said:]  # a restore is what loses that


async def restored_alone(cluster: Cluster, *, by_file: bool = False) -> tuple[ClusterNode, ClusterNode]:
    """Ada's node shares version 1, is copied, shares version 2, which Bo has, and starts alone from the copy."""
    ada, bo = cluster.nodes
    await ada.share(FIRST, name="n")
    copy = ledger_of(ada).with_name("copy.sqlite")
    if by_file:
        await cluster.stop(ada)
        copyfile(ledger_of(ada), copy)
        await cluster.restart(ada)
    else:
        assert (await ada.face.back_up(str(copy))).bytes == copy.stat().st_size
    await lost_share(cluster, ada, bo)
    copy.replace(ledger_of(ada))
    await cluster.restart(ada)
    return ada, bo


async def compared(node: ClusterNode) -> None:
    await node.inside.ledger.until(lambda: not node.inside.services.restored.graphs())


def not_met(node: ClusterNode) -> set[str]:
    return set(node.inside.services.restored.not_met(node.graph))


def numbers(node: ClusterNode) -> list[int]:
    held = (node.graph.set.asset(key) for key in node.graph.set.assets())
    return sorted(version.key.version for asset in held if asset for version in asset.versions)


@pytest.mark.cluster(n=2)
@pytest.mark.parametrize("by_file", [False, True])
async def test_a_restored_node_waits_for_a_round_and_takes_the_next_number(cluster: Cluster, by_file: bool) -> None:
    ada, bo = await restored_alone(cluster, by_file=by_file)
    with pytest.raises(SigningWaitsError, match="p2pmem restore confirm"):
        await ada.share(SECOND, name="n")
    with pytest.raises(OutsideError, match="restored from a copy"):
        await ada.face.change_members(str(ada.graph.name), MemberChange(m=1))
    status = await ada.face.status()
    assert status.restored == RestoreView((str(ada.graph.name),))
    assert [it for it in status.warnings if "p2pmem restore confirm" in it]
    await cluster.restart(bo)
    await compared(ada)
    assert (await ada.face.status()).restored == RestoreView()
    asset = await ada.share(THIRD, name="n")
    assert asset.version == 3
    await cluster.settled()
    for node in (ada, bo):
        assert numbers(node) == [1, 2, 3]
        for key in node.graph.set.assets():
            view = asset_view(node.graph.set, key, node.clock.now_ms())
            assert not any(version.conflict for version in view.versions)


@pytest.mark.cluster(n=3)
async def test_a_member_who_was_away_too_does_not_end_the_wait(cluster: Cluster) -> None:
    ada, bo, cy = cluster.nodes
    await ada.share(FIRST, name="n")
    await cluster.settled()
    copy = ledger_of(ada).with_name("copy.sqlite")
    await ada.face.back_up(str(copy))
    await cluster.stop(cy)
    await lost_share(cluster, ada, bo)
    copy.replace(ledger_of(ada))
    await cluster.restart(ada, cy)
    await cluster.advance(minutes=20)
    assert numbers(ada) == numbers(cy) == [1]
    with pytest.raises(SigningWaitsError, match="with bo yet"):
        await ada.share(THIRD, name="n")
    with pytest.raises(OutsideError, match="with bo yet"):
        await ada.face.change_members(str(ada.graph.name), MemberChange(m=1))
    await cluster.restart(bo)
    await compared(ada)
    assert (await ada.share(THIRD, name="n")).version == 3
    await cluster.settled()
    assert [numbers(node) for node in cluster.nodes] == [[1, 2, 3]] * 3


@pytest.mark.cluster(n=4, limits=PeerLimits(members_all_max=3, members_few=1, members_dialled=2))
async def test_in_a_crowd_as_many_members_are_enough_as_a_node_dials(cluster: Cluster) -> None:
    ada, *others = cluster.nodes
    copy = ledger_of(ada).with_name("copy.sqlite")
    await ada.face.back_up(str(copy))
    await cluster.stop(*cluster.nodes)
    copy.replace(ledger_of(ada))
    await cluster.restart(ada, others[0])
    await cluster.advance(minutes=20)
    assert (await ada.face.status()).restored.waiting
    await cluster.restart(others[1])
    await compared(ada)


@pytest.mark.cluster(n=2)
async def test_killed_between_the_round_and_the_end_of_its_mark_a_node_compares_again(cluster: Cluster) -> None:
    ada, bo = await restored_alone(cluster)
    ada.crash_at = (MARKED_POINT, 1)
    await cluster.restart(bo)
    await cluster.crashed(ada)
    await cluster.stop(bo)
    await cluster.restart(ada)
    with pytest.raises(SigningWaitsError):
        await ada.share(THIRD, name="n")
    await cluster.restart(bo)
    await compared(ada)
    assert (await ada.share(THIRD, name="n")).version == 3
    await cluster.settled()
    assert numbers(bo) == [1, 2, 3]


@pytest.mark.cluster(n=2)
async def test_the_operator_ends_the_wait_by_hand_and_for_good(cluster: Cluster) -> None:
    ada, _ = await restored_alone(cluster)
    graph = str(ada.graph.name)
    assert await ada.face.confirm_restore(graph) == RestoreView()
    assert (await ada.share(THIRD, name="m")).version == 1
    await cluster.restart(ada)
    assert (await ada.face.status()).restored == RestoreView()
    assert await ada.face.confirm_restore(None) == RestoreView()
    entries = ada.inside.ledger.database.read(lambda connection: audit.read(connection, 0, 1_000))
    assert [it.payload for it in entries if it.what == "restore"] == [
        "put back; graphs to compare: 1",
        "confirmed by the operator; graphs to compare: 0",
    ]


@pytest.mark.cluster(n=2)
async def test_what_a_restored_node_promises_and_publishes_comes_after_the_round(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    copy = ledger_of(bo).with_name("copy.sqlite")
    draft = await ada.draft("ex:a ex:b ex:c .", name="p")
    del draft
    await cluster.settled()
    await bo.face.back_up(str(copy))
    await cluster.stop(bo)
    copy.replace(ledger_of(bo))
    await cluster.stop(ada)
    await cluster.restart(bo)
    assert (await bo.face.status()).restored.waiting
    await cluster.restart(ada)
    await ada.publish("p")
    await compared(bo)
    await cluster.settled()
    assert any(record.kind.name == "ACK" for record in ada.graph.set.records())


@pytest.mark.cluster(n=1)
async def test_a_graph_without_other_members_is_free_at_once(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    await ada.share(FIRST, name="n")
    copy = ledger_of(ada).with_name("copy.sqlite")
    await ada.face.back_up(str(copy))
    await cluster.stop(ada)
    copy.replace(ledger_of(ada))
    await cluster.restart(ada)
    assert (await ada.share(SECOND, name="n")).version == 2


async def put_back(cluster: Cluster, node: ClusterNode, *others: ClusterNode) -> None:
    """A node shares version 2 since its copy, which `others` have, and starts alone from the copy."""
    copy = ledger_of(node).with_name("copy.sqlite")
    await node.face.back_up(str(copy))
    await lost_share(cluster, node, *others)
    copy.replace(ledger_of(node))
    await cluster.restart(node)


@pytest.mark.cluster(n=2)
async def test_a_wallet_that_speaks_here_alone_has_no_node_to_wait_for(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    wanda = Wallet("wanda")
    member = NewMember(wanda.address, ("writer",), "wanda")
    await ada.face.change_members(cluster.graph, MemberChange(set=(member,)))
    await ada.face.add_agent(wanda.address, label="wanda")
    await put_back(cluster, ada, bo)
    assert not_met(ada) == {"bo", "wanda"}
    await cluster.restart(bo)
    await cluster.advance(minutes=20)
    with pytest.raises(SigningWaitsError, match="with wanda yet"):  # who may speak anywhere
        await ada.share(THIRD, name="n")
    await ada.face.confirm_restore(None)
    await wanda.does(ada, "carry")
    await put_back(cluster, ada, bo)
    assert not_met(ada) == {"bo"}
    await cluster.restart(bo)
    await compared(ada)
    await cluster.settled()


@pytest.mark.cluster(n=2)
async def test_a_wallet_that_was_met_at_another_node_too_is_waited_for(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    wanda = Wallet("wanda")
    member = NewMember(wanda.address, ("writer",), "wanda")
    await ada.face.change_members(cluster.graph, MemberChange(set=(member,)))
    await cluster.settled()
    for node in (ada, bo):
        await node.face.add_agent(wanda.address, label="wanda")
        await wanda.does(node, "carry")
    await cluster.restart(bo)
    await cluster.advance(minutes=5)
    await put_back(cluster, ada, bo)
    assert not_met(ada) == {"bo", "another node of wanda"}
    await cluster.restart(bo)
    await compared(ada)
    await cluster.settled()


@pytest.mark.cluster(n=1)
async def test_another_node_of_the_same_agent_is_waited_for_once_it_was_met(cluster: Cluster) -> None:
    (ada,) = cluster.nodes
    twin = await cluster.twin(ada, "ada2")
    await ada.share(FIRST, name="n")
    await cluster.settled()
    await put_back(cluster, ada, twin)
    with pytest.raises(SigningWaitsError, match=r"with another node of .* yet"):
        await ada.share(THIRD, name="n")
    await cluster.restart(twin)
    await compared(ada)
    assert (await ada.share(THIRD, name="n")).version == 3
    await cluster.settled()


@pytest.mark.cluster(n=2)
async def test_who_only_acts_for_an_agent_of_this_node_is_no_other_node_of_it(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    restored = ada.inside.services.restored
    restored.compared({bo.address}, {bo.address, ada.address}, [])
    await cluster.advance(minutes=1)
    await put_back(cluster, ada, bo)
    assert not_met(ada) == {"bo"}
    await cluster.restart(bo)
    await compared(ada)
    await cluster.settled()


@pytest.mark.cluster(n=1)
async def test_a_backup_overwrites_nothing_and_only_its_owner_reads_it(cluster: Cluster, tmp_path: Path) -> None:
    (ada,) = cluster.nodes
    copy = tmp_path / "copy.sqlite"
    await ada.face.back_up(str(copy))
    assert copy.stat().st_mode & 0o777 == 0o600
    with pytest.raises(JobsMisuseError, match="exists"):
        await ada.face.back_up(str(copy))
    with pytest.raises(MisuseError, match="absolute"):
        await ada.face.back_up("copy.sqlite")
    with pytest.raises(MisuseError, match="null"):
        await ada.face.back_up(str(tmp_path / "copy\0.sqlite"))
    with pytest.raises(DiskError, match="was not written"):
        await ada.face.back_up(str(tmp_path / "no" / "copy.sqlite"))
    assert os.listdir(tmp_path) == ["copy.sqlite"]


@pytest.mark.cluster(n=1, keep_projections=True)
async def test_a_backup_goes_nowhere_where_a_node_keeps_its_own(cluster: Cluster, tmp_path: Path) -> None:
    (ada,) = cluster.nodes
    places = ada.disk.places()
    assert places.ledger is not None
    assert places.text is not None
    assert places.store is not None
    folder, link, hard = tmp_path / "folder", tmp_path / "link", places.ledger.with_name("hard")
    folder.symlink_to(places.ledger.parent)
    link.symlink_to(places.text)
    os.link(places.text, hard)
    before = sorted(os.listdir(places.ledger.parent)), sorted(os.listdir(places.store))
    for database in ("ledger.sqlite", "text.sqlite"):
        for end in ("", "-wal", "-shm", "-journal"):
            with pytest.raises((MisuseError, JobsMisuseError)):
                await ada.face.back_up(str(folder / f"{database}{end}"))
    for own in (link, hard, folder / "ledger.sqlite.lock", folder / "store" / ".." / "text.sqlite"):
        with pytest.raises((MisuseError, JobsMisuseError)):
            await ada.face.back_up(str(own))
    for inside in (places.store, folder / "store"):
        with pytest.raises(MisuseError, match="come and go"):
            await ada.face.back_up(str(inside / "copy.sqlite"))
    assert (sorted(os.listdir(places.ledger.parent)), sorted(os.listdir(places.store))) == before
    await ada.face.back_up(str(folder / "copy.sqlite"))
    assert places.ledger.with_name("copy.sqlite").is_file()


@pytest.mark.cluster(n=2)
async def test_who_asks_a_restored_owner_to_be_let_in_waits_too_and_uses_no_invite_up(cluster: Cluster) -> None:
    ada, bo = await restored_alone(cluster)
    cyd = await cluster.add("cyd")
    invite = await ada.face.invite(str(ada.graph.name), roles=("writer",), uses=1, life_ms=HOUR_MS)
    with pytest.raises(OutsideError, match="has not decided yet"):
        await cyd.face.join(invite, label="cyd")
    await cluster.restart(bo)
    await compared(ada)
    await cyd.face.join(invite, label="cyd")
    await cluster.settled()
    assert ada.graph.is_member(cyd.address)


@pytest.mark.cluster(n=2)
async def test_a_version_that_members_gave_back_is_renewed_and_published_as_one_s_own(cluster: Cluster) -> None:
    ada, bo = await restored_alone(cluster)
    await cluster.restart(bo)
    await compared(ada)
    await cluster.settled()
    until_ms = (await ada.face.version(cluster.graph, "n")).expires_ms
    await cluster.advance(hours=1)
    assert (await ada.share(name="n")).version == 2
    assert (await ada.face.version(cluster.graph, "n")).expires_ms >= until_ms + HOUR_MS
    assert (await ada.publish("n@2")).version == 2
    await cluster.settled()
    assert numbers(ada) == numbers(bo) == [1, 2]


@pytest.mark.cluster(n=2)
async def test_a_version_that_members_gave_back_is_renewed_by_itself(cluster: Cluster) -> None:
    ada, bo = await restored_alone(cluster)
    ada.inside.services.lifetimes.renews = True
    await cluster.restart(bo)
    await compared(ada)
    await cluster.settled()
    await cluster.advance(days=6)
    assert ada.inside.services.lifetimes.renewed == 1
    await cluster.advance(days=2)
    await cluster.settled()
    assert numbers(ada) == numbers(bo) == [2]
