"""What a name means: one's own draft, one's own version, or the one of the only author who has it."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster

from p2pmem.cli.views import show_version
from p2pmem.cli.views_trust import show_history
from p2pmem.face import NotFoundError
from p2pmem.services.drafting import NoSuchDraftError

pytestmark = pytest.mark.cluster(n=3, quorum=1)


async def test_a_draft_is_compared_with_what_was_said_before(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    await ada.draft("ex:a ex:b ex:one .", name="x")
    with pytest.raises(NotFoundError, match=r"no earlier version of .*/x is held here"):
        await ada.face.diff(cluster.graph, "x", other=None)
    await ada.share(name="x")
    await ada.share("ex:a ex:b ex:two .", name="x")
    await ada.draft("ex:a ex:b ex:one, ex:three .", name="x")
    diff = await ada.face.diff(cluster.graph, "x", other=None)
    assert (diff.older, diff.newer) == (f"{ada.address}/x@2", f"draft {ada.address}/x")
    assert (len(diff.added), len(diff.removed)) == (2, 1)
    diff = await ada.face.diff(cluster.graph, f"{ada.address}/x", other="1")
    assert (diff.older, len(diff.added), len(diff.removed)) == (f"{ada.address}/x@1", 1, 0)
    assert (await ada.face.diff(cluster.graph, "x@2", other=None)).newer == f"{ada.address}/x@2"
    await cluster.settled()
    assert (await bo.face.diff(cluster.graph, "x", other=None)).newer == f"{ada.address}/x@2"


async def test_where_a_version_is_wanted_and_there_is_a_draft_that_is_said(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    await ada.draft("ex:a ex:b ex:one .", name="x")
    for call in (ada.face.version, ada.face.content, ada.face.explain):
        with pytest.raises(NotFoundError, match=r"/x is a draft in .*: `p2pmem share x`"):
            await call(cluster.graph, "x")
    with pytest.raises(NotFoundError, match="/x is a draft"):
        await ada.face.verify(cluster.graph, "x", deadline_ms=None)
    for reference in ("x", f"{ada.address}/x"):
        with pytest.raises(NotFoundError, match="never came"):
            await bo.face.version(cluster.graph, reference)


async def test_a_version_that_nobody_has_is_not_sought_at_its_author(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    await ada.share("ex:a ex:b ex:one .", name="x")
    await ada.share("ex:a ex:b ex:two .", name="x")
    await cluster.settled()

    async def refusal(reference: str) -> str:
        with pytest.raises(NotFoundError) as refused:
            await bo.face.endorse(cluster.graph, reference, reason="", withdraw=False)
        return str(refused.value).removeprefix(f"you have no x in {cluster.graph}")

    of = f"{ada.address}/x"
    assert await refusal("x") == f"; name it with its author: {of} (ada)"
    assert await refusal("x@1") == f"; name it with its author: {of}@1 (ada)"
    assert await refusal("x@7") == f", and nobody has a version 7 of one; name it with its author: {of}@2 (ada)"
    assert await refusal(f"{of}@7") == f"{of} has no version 7 in {cluster.graph}; known of it here: @1, @2"
    await bo.share("ex:a ex:b ex:three .", name="x")
    assert await refusal("x@7") == f"{bo.address}/x has no version 7 in {cluster.graph}; known of it here: @1"


async def test_the_newest_version_is_not_said_to_have_a_newer_one(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    first = await ada.share("ex:a ex:b ex:one .", name="x")
    await bo.endorse(first)
    await ada.share("ex:a ex:b ex:two .", name="x")
    await cluster.settled()
    version = await bo.face.version(cluster.graph, f"{ada.address}/x")
    assert version.newer_unverified
    (note,) = [line for line in show_version(version).splitlines() if line.strip().startswith("note")]
    assert note.split(maxsplit=1)[1] == "newer than one that is better attested"


async def test_what_was_retracted_is_said_to_be_gone_and_its_history_needs_no_author(cluster: Cluster) -> None:
    ada, bo, _ = cluster.nodes
    asset = await ada.share("ex:a ex:b ex:one .", name="x")
    await ada.retract(asset)
    await cluster.settled()
    for node in (ada, bo):
        with pytest.raises(NotFoundError, match=rf"expired or was retracted; `p2pmem history {ada.address}/x` tells"):
            await node.face.explain(cluster.graph, "x")
        history = await node.face.history(cluster.graph, "x")
        assert (history.reference, len(history.retracts)) == (f"{ada.address}/x", 1)
        (line,) = [it for it in show_history(history).splitlines() if "SelfAttested" in it]
        assert "retracted" in line


async def test_to_share_what_was_never_drafted_is_refused_with_the_command_that_drafts(cluster: Cluster) -> None:
    ada, *_ = cluster.nodes
    with pytest.raises(NoSuchDraftError, match=r"has neither a draft nor .* 'x' here: `p2pmem draft x FILE` begins"):
        await ada.share(name="x")
