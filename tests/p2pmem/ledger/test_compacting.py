"""After compacting, what was erased is in no file of a node, its query workers' snapshots included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from p2pmem.face import NewGraph
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import NodeSettings, open_node
from tests.p2pmem.ledger.victim_node import KEY, places, surroundings


async def test_compact_leaves_what_was_erased_in_no_file_also_of_query_workers(tmp_path: Path) -> None:
    secret = "Zweiundvierzigtausend"

    def files_with_it() -> list[str]:
        return [str(it) for it in tmp_path.rglob("*") if it.is_file() and secret.encode() in it.read_bytes()]

    network = MemoryFabric(seed=1).network("ada")
    at = replace(places(tmp_path), snapshots=tmp_path / "snapshots")
    taken = replace(surroundings(), inline=False)
    async with open_node(NodeSettings("compacted"), Keyring.of(KEY), network, at, taken) as node:
        graph = (await node.face.found(NewGraph("compacted"))).graph
        for name, word in (("stays", "word"), ("goes", secret)):
            data = f'<urn:{name}> <urn:says> "{word}" .\n'.encode()
            await node.face.share_data(graph, name, data, format="nt", base=None, subgraph="", ttl_ms=None)

        async def ask() -> int:
            text = "SELECT * { ?s <urn:says> ?o }"
            answer = await node.face.query(text, graph=graph, layer=None, min_trust=None, at_least=0)
            return len(answer.rows)

        assert await ask() == 2
        await node.face.retract(graph, "goes", reason="", successor=None, erase=True)
        assert await ask() == 1
        assert any("snapshots" in it for it in files_with_it())
        await node.face.compact()
        assert files_with_it() == []
        assert await ask() == 1
