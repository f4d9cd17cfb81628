"""A projection that the disk refuses holds up nobody but who asks for what it lacks; the node says so, and goes on."""

from __future__ import annotations

import pyoxigraph as ox
import pytest
from p2pmem_devnet.cluster import Cluster
from p2pmem_jobs import DiskError

from p2pmem.store.transaction import Transaction

QUERY = "SELECT ?s { ?s ?p ?o }"
WARNING = "the disk refuses what is to be stored"


@pytest.mark.cluster(n=2)
async def test_a_node_whose_projection_is_refused_for_a_while_says_so_and_catches_up_by_itself(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ada, bo = cluster.nodes
    early = await ada.share("ex:a ex:b ex:c .")
    await cluster.settled()
    run, is_full = Transaction.run, True

    def refuse(transaction: Transaction, store: ox.Store) -> None:
        if is_full and store is bo.inside.store._open_store:
            raise OSError("IO error: No space left on device")
        run(transaction, store)

    async def asked() -> int:
        answer = await bo.inside.face.query(QUERY, graph=cluster.graph, layer=None, min_trust=None, at_least=0)
        return len(answer.rows)

    async def warned() -> bool:
        return any(WARNING in it for it in (await bo.inside.face.status()).warnings)

    assert (await asked(), await warned()) == (1, False)
    monkeypatch.setattr(Transaction, "run", refuse)
    late = await ada.share("ex:d ex:e ex:f .")
    await cluster.advance(minutes=5)
    assert bo.is_up
    assert bo.incarnation == 1
    assert bo.view(late) is not None  # the ledger has it
    assert await warned()
    with pytest.raises(DiskError, match="free some space"):
        await asked()
    with pytest.raises(DiskError):
        await bo.inside.face.compact()
    is_full = False
    await cluster.settled()
    assert (await asked(), await warned()) == (2, False)
    assert early != late
    await bo.inside.store.check()
