"""A node killed at the worst moment: the run ends like one in which nobody was killed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from p2pmem_devnet.anvil import AnvilMissingError, find_anvil
from p2pmem_devnet.fleet import Fleet, FleetSettings, NodeProcess, open_fleet
from p2pmem_devnet.group import Group, finished, found, on_all, until
from p2pmem_devnet.money import open_dev_chain
from p2pmem_protocol.keys import Key

from p2pmem.api.problems import UnreachableError
from p2pmem.crash_points import VARIABLE, from_environment
from p2pmem.face import MemberChange, NewMember

TURTLE = resources.files("p2pmem_devnet").joinpath("data", "finding.ttl").read_bytes()
KILLED = (-9, 137)
NAMES = ["ada", "bo", "cy"]


async def share(group: Group) -> str:
    ada = group.founder.face
    await ada.draft(group.graph, "finding", TURTLE, format="turtle", base=None, subgraph="", replace=False)
    await finished(ada, await ada.share(group.graph, "finding", ttl_ms=None))
    await on_all(group.others, lambda node: holds(group, node))
    return (await ada.version(group.graph, "finding")).reference


async def holds(group: Group, node: NodeProcess) -> None:
    async def there() -> bool:
        return any(it.held for it in await node.face.versions(group.graph, layer=None, min_trust=None))

    await until(node.face, there, f"{node.name} does not hold the finding")


async def dies(fleet: Fleet, name: str) -> None:
    """Wait for the crash point, then start the node again with the same home and without one."""
    assert await fleet[name].ended() in KILLED
    await fleet.start(name)


@pytest.mark.parametrize("moment", ["anchor/sign-1/after", "anchor/send-1/tried"])
@pytest.mark.chain
@pytest.mark.processes
@pytest.mark.slow
async def test_an_author_killed_between_a_transaction_and_its_receipt_anchors_once(tmp_path: Path, moment: str) -> None:
    try:
        find_anvil()
    except AnvilMissingError as missing:
        pytest.skip(str(missing))
    async with (
        open_dev_chain(tmp_path / "chain", "devnet") as chain,
        open_fleet(NAMES[:2], tmp_path, FleetSettings("devnet", chain=chain.settings)) as fleet,
    ):
        await chain.pay(node.agent for node in fleet)
        await fleet.start("bo")
        await fleet.start("ada", **{VARIABLE: moment})
        group = await found(fleet, "trial", 1, chain=True)
        reference = await share(group)
        with pytest.raises(UnreachableError):
            await finished(group.founder.face, await group.founder.face.publish(group.graph, reference))
        await dies(fleet, "ada")

        async def anchored(node: NodeProcess) -> None:
            async def there() -> bool:
                anchor = (await node.face.version(group.graph, reference)).anchor
                return anchor is not None and anchor.state == "confirmed"

            await until(node.face, there, f"{node.name} does not see it anchored")

        await on_all(group.members, anchored)
        sent = await chain.anvil.rpc("eth_getTransactionCount", str(group.founder.agent), "latest")
        assert int(sent, 16) == 2  # one registers the quorum, one anchors the root
        (job,) = [it for it in await group.founder.face.jobs(state=None, limit=50) if it.kind == "publish"]
        assert (await finished(group.founder.face, job)).state == "succeeded"


@pytest.mark.parametrize("moment", ["review/admit/before>database.after_commit", "review/admit/after"])
@pytest.mark.processes
@pytest.mark.slow
async def test_a_verifier_killed_after_signing_gives_one_verdict(tmp_path: Path, moment: str) -> None:
    async with open_fleet(NAMES, tmp_path, FleetSettings("devnet")) as fleet:
        await fleet.start("ada", "bo")
        await fleet.start("cy", **{VARIABLE: moment})
        group = await found(fleet, "trial", 2, chain=False)
        reference = await share(group)
        job = await group.founder.face.verify(group.graph, reference, deadline_ms=None)
        await dies(fleet, "cy")
        assert (await finished(group.founder.face, job)).state == "succeeded"

        async def verified(node: NodeProcess) -> None:
            async def there() -> bool:
                return (await node.face.version(group.graph, reference)).trust.level == "ConsensusVerified"

            await until(node.face, there, f"{node.name} does not see it verified")

        await on_all(group.members, verified)
        statements = [(await node.face.certificate(group.graph, reference)).statement for node in fleet]
        assert statements[0] == statements[1] == statements[2]
        signers = [it.address for it in (await fleet["cy"].face.version(group.graph, reference)).trust.signers]
        assert sorted(signers) == sorted(str(fleet[name].agent) for name in ("bo", "cy"))


@pytest.mark.processes
@pytest.mark.slow
async def test_an_owner_killed_after_a_roster_change_tells_it_when_it_is_back(tmp_path: Path) -> None:
    # The first roster is that of the founding; the second is on disk and nobody was told.
    moment = "roster/before>roster/before>database.after_commit"
    newcomer = str(Key(bytes([7]) * 32).address)
    async with open_fleet(NAMES, tmp_path, FleetSettings("devnet")) as fleet:
        await fleet.start("bo", "cy")
        await fleet.start("ada", **{VARIABLE: moment})
        group = await found(fleet, "trial", 2, chain=False)
        change = MemberChange(set=(NewMember(newcomer, ("reader",), "dee"),))
        with pytest.raises(UnreachableError):
            await group.founder.face.change_members(group.graph, change)
        assert {(await node.face.graph(group.graph)).version for node in group.others} == {1}
        await dies(fleet, "ada")

        async def adopted(node: NodeProcess) -> None:
            async def there() -> bool:
                return (await node.face.graph(group.graph)).version == 2

            await until(node.face, there, f"{node.name} does not have the new roster")

        await on_all(group.members, adopted)
        views = [await node.face.graph(group.graph) for node in fleet]
        assert len({view.head for view in views}) == 1
        assert all(newcomer in {member.address for member in view.members} for view in views)
        assert not any(view.trouble for view in views)
        await share(group)


@pytest.mark.processes
@pytest.mark.slow
async def test_what_was_shared_during_a_partition_arrives_when_it_ends(tmp_path: Path) -> None:
    async with open_fleet(NAMES, tmp_path, FleetSettings("devnet")) as fleet:
        await fleet.start()
        group = await found(fleet, "trial", 2, chain=False)
        fleet.part("ada", "cy")
        fleet.part("bo", "cy")
        ada, cy = fleet["ada"].face, fleet["cy"].face
        await ada.draft(group.graph, "finding", TURTLE, format="turtle", base=None, subgraph="", replace=False)
        await finished(ada, await ada.share(group.graph, "finding", ttl_ms=None))
        await holds(group, fleet["bo"])
        assert await cy.versions(group.graph, layer=None, min_trust=None) == ()
        fleet.heal()
        await holds(group, fleet["cy"])


def counting(points: str) -> tuple[Callable[[str], None], list[int]]:
    deaths: list[int] = []
    return from_environment({VARIABLE: points}, lambda: deaths.append(1)), deaths


def test_a_crash_point_waits_for_the_points_before_it() -> None:
    reached, deaths = counting("a>b>a")
    for name in ("b", "a", "a", "b"):
        reached(name)
    assert deaths == []
    reached("a")
    assert deaths == [1]
    reached("a")
    assert deaths == [1]


def test_without_the_variable_no_point_does_anything() -> None:
    deaths: list[int] = []
    from_environment({}, lambda: deaths.append(1))("")
    assert deaths == []
