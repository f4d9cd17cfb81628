"""What a stranger shows as a roster costs a node the same, whether or not it knows the graph: others feel how long."""

from __future__ import annotations

from dataclasses import replace

import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_protocol.join import Answer, Chain, Reply
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.roster import Body, Parts

from tests.devnet.asking import answer_to, ask_of, key_of, raw_peers


@pytest.mark.cluster(n=2)
async def test_a_forged_roster_is_read_no_further_where_its_graph_is_known(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, _ = cluster.nodes
    assert ada.graph.head is not None
    true = ada.graph.headers.chain_to(ada.graph.head.id)
    parts, mallory, read = ada.graph.head.body.parts, key_of("mallory"), 0
    decode = Parts.decode

    def count(parts: Parts, graph: GraphId) -> Body:
        nonlocal read
        read += 1
        return decode(parts, graph)

    monkeypatch.setattr(Parts, "decode", count)
    forged = tuple(replace(it, signature=mallory.sign(it.id)) for it in true)
    async with raw_peers(cluster, "mallory") as (network,):
        for headers, reads in ((forged, 0), (true, 1)):
            for graph in (ada.graph.id, GraphId(bytes(32))):
                read, ask = 0, ask_of(mallory, network.peer_id, graph, ada.clock.now_ms())
                shown = replace(ask, chain=Chain(headers, parts))
                assert await answer_to(network, ada, shown) == Answer(Reply.NO)
                assert read == (reads if graph == ada.graph.id else 0)
    assert ada.inside.penalties.reasons.total() == 0
