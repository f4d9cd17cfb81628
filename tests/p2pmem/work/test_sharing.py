"""A publish is about the version that it published, however long it takes and whatever comes after."""

from __future__ import annotations

import pytest
from p2pmem_devnet.cluster import Cluster


@pytest.mark.cluster(n=2, acks=1)
async def test_a_publish_goes_on_with_its_own_version_after_a_newer_one_and_a_restart(cluster: Cluster) -> None:
    ada, bo = cluster.nodes
    await cluster.crash(bo)
    job = await ada.start_publish("note", text="ex:a ex:b ex:one .")
    assert job.waiting_for.startswith("0 members promised")
    newer = await ada.share("ex:a ex:b ex:two .", name="note")
    assert newer.version == 2
    await cluster.crash(ada)
    await cluster.restart(ada, bo)
    await cluster.settled()
    ended = await ada.call(lambda: ada.face.job(job.id, wait_ms=60_000))
    assert ended.state == "succeeded"
    assert isinstance(ended.result, dict)
    assert ended.result["version"] == 1
