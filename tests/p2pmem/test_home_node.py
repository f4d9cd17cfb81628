"""A node inside a trio program of one's own, over libp2p, from a home directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from p2pmem_devnet.fleet import make_home
from p2pmem_protocol.errors import MisuseError

from p2pmem.face import NewGraph
from p2pmem.home import Home
from p2pmem.home_node import open_home


@pytest.mark.slow
async def test_a_program_has_two_nodes_of_its_own_and_they_share(tmp_path: Path) -> None:
    homes = [Home.find(str(tmp_path / name)) for name in ("ada", "bo")]
    for home in homes:
        make_home(home, home.data_dir.name, "embedded")
    async with open_home(homes[0]) as ada, open_home(homes[1]) as bo:
        graph = (await ada.face.found(NewGraph("lab"))).graph
        await bo.face.join(await ada.face.invite(graph, roles=("writer",), uses=1, life_ms=60_000), label="bo")
        await ada.face.draft(
            graph, "note", b"<urn:a> <urn:b> <urn:c> .", format="turtle", base=None, subgraph="", replace=False
        )
        await ada.face.job((await ada.face.share(graph, "note", ttl_ms=None)).id, wait_ms=30_000)
        await bo.ledger.until(lambda: len(bo.ledger.named(graph).set) == 1)
    async with open_home(homes[1]) as bo:
        assert len(bo.ledger.named(graph).set) == 1, "it comes back with what it held"


async def test_a_directory_that_is_no_home_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(MisuseError, match="p2pmem init"):
        async with open_home(Home.find(str(tmp_path / "nothing"))):
            pass
