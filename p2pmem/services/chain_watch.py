"""This node's own look at the chain: anchors in the set are claims until it has found them there itself."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_jobs import OutsideError as NotStoredError, Queue
from p2pmem_protocol.bodies import Anchor
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import OutsideError, RefusedError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.merkle import Proof, leaf_hash, verify_value
from p2pmem_protocol.names import GraphId, VersionKey, hex_id
from p2pmem_protocol.records import AnchorRecord
from p2pmem_protocol.view import Anchored

from p2pmem.chain.errors import WrongChainError
from p2pmem.exchange.holdings import SELF
from p2pmem.ledger.batch import Batch, Delta
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import ChainFact, Ledger
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.chain_health import ChainHealth
from p2pmem.services.signing import Signing
from p2pmem.work.anchoring import AnchorArgs, AnchoringJobs, write_fact
from p2pmem.work.outgoing import ASK_AGAIN_S
from p2pmem.work.verifying import version_view

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain

log = logging.getLogger(__name__)

RECHECK_DEPTH: Final = 64
"""Anchors in the newest blocks are looked at again: a reorganisation may take them back."""


class ChainWatch:
    """Follows claims and confirms them; submits anchor jobs for what waits. `run` it in the node's nursery."""

    def __init__(
        self,
        ledger: Ledger,
        facts: ChainFacts,
        signing: Signing,
        jobs: AnchoringJobs,
        queue: Queue,
        chain: Chain,
        chain_id: int,
        health: ChainHealth,
        *,
        poll_s: float,
        confirmations: int,
    ) -> None:
        self._ledger = ledger
        self._facts = facts
        self._signing = signing
        self._jobs = jobs
        self._queue = queue
        self._chain = chain
        self._chain_id = chain_id
        self._health = health
        self._poll_s = poll_s
        self._confirmations = confirmations
        self._pending: dict[bytes, GraphId] = {}

    def heard(self, delta: Delta) -> None:
        """A change is on disk: note new claims."""
        for item in delta.entered:
            if item.kind is Kind.ANCHOR:
                self._pending[item.id] = delta.graph
        if delta.entered:
            self._ledger.wake()

    async def run(self) -> None:
        """Look until cancelled. A chain that does not answer is asked again later."""
        for graph in self._ledger.graphs.values():
            for record in graph.set.records():
                if isinstance(record, AnchorRecord) and record.batch_root not in self._ledger.chain_facts:
                    self._pending[record.id] = graph.id
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._health.run)
            nursery.start_soon(self._run_jobs)
            nursery.start_soon(self._run_claims)

    # What this node is to anchor

    async def _run_jobs(self) -> None:
        while True:
            await self._ledger.until(lambda: any(map(self._facts.waits, self._ledger.graphs.values())))
            for graph in self._ledger.graphs.values():
                waiting = self._facts.take_waiting(graph)
                if waiting:
                    args = AnchorArgs(graph.id, bytes(waiting[0].author), self._ledger.position)
                    try:
                        await self._queue.submit(self._jobs.anchor, args)
                    except NotStoredError as error:  # the queue or the disk is full
                        log.warning("anchor.not_asked", extra={"why": str(error)})
                        for version in waiting:
                            self._facts.want_anchor(graph, version)
                        await trio.sleep(ASK_AGAIN_S)

    # What others and we claim

    async def _run_claims(self) -> None:
        while True:
            await self._ledger.until(lambda: bool(self._pending))
            for item_id, graph_id in list(self._pending.items()):
                try:
                    if await self._is_settled(item_id, graph_id):
                        self._pending.pop(item_id, None)
                except (OutsideError, WrongChainError) as error:
                    # what it means for people, `ChainHealth` says
                    log.info("chain.unreachable", extra={"why": str(error)})
                    break
            if self._pending:
                await trio.sleep(self._poll_s)

    async def _is_settled(self, item_id: bytes, graph_id: GraphId) -> bool:
        """Look at one claim. True when there is no more to look for."""
        data = self._ledger.raw(item_id)
        graph = self._ledger.graphs.get(graph_id)
        if data is None or graph is None:
            return True
        item = decode_item(data)
        assert isinstance(item, Envelope)
        assert isinstance(item.body, Anchor)
        anchor = item.body
        if anchor.chain != self._chain_id or not self._proven(graph, anchor):
            log.info("anchor.not_believed", extra={"graph": str(graph.name), "id": hex_id(item_id)})
            return True
        found = await self._chain.anchored(anchor.batch_root)
        if found is None or found.confirmations < self._confirmations:
            return False
        fact = ChainFact(
            anchor.batch_root, anchor.chain, Anchored.CONFIRMED.value, anchor.transaction, found.block_number
        )
        await self._note(fact, {graph.id: [asset.subject for asset in anchor.assets]})
        return True

    def _proven(self, graph: LedgerGraph, anchor: Anchor) -> bool:
        """Whether every version that the anchor names is in the batch whose root it names."""
        now_ms = self._ledger.clock.now_ms()
        for asset in anchor.assets:
            seal = asset.subject.seal
            if version_view(graph, asset.subject, now_ms) is None:
                return False
            try:
                verify_value(anchor.batch_root, anchor.count, seal, Proof(leaf_hash(seal), asset.proof))
            except RefusedError:
                return False
        return True

    async def _note(self, fact: ChainFact, subjects: dict[GraphId, list[VersionKey]]) -> None:
        batch = Batch(self._ledger.clock.now_ms(), SELF)
        for graph, keys in subjects.items():
            batch.event(graph, fact.state, {key.asset for key in keys})
        self._ledger.chain_facts[fact.batch_root] = fact
        await self._ledger.commit(batch, lambda connection: write_fact(connection, fact, batch.at_ms))
        log.info("anchor.seen", extra={"root": hex_id(fact.batch_root), "state": fact.state, "block": fact.block})

    # What a reorganisation takes back

    async def recheck(self) -> None:
        """Look again at anchors in the newest blocks. Raises `OutsideError` when the chain does not answer."""
        head = await self._chain.head()
        for fact in list(self._ledger.chain_facts.values()):
            if fact.block > head.number - RECHECK_DEPTH:
                await self._recheck(fact)

    async def _recheck(self, fact: ChainFact) -> None:
        found = await self._chain.anchored(fact.batch_root)
        state = Anchored.CONFIRMED if found is not None else Anchored.REVERTED
        if state.value == fact.state:
            return
        subjects = {
            graph.id: [subject for record in _anchors(graph, fact.batch_root) for subject in record.subjects]
            for graph in self._ledger.graphs.values()
        }
        await self._note(replace(fact, state=state.value), {graph: keys for graph, keys in subjects.items() if keys})
        if state is Anchored.REVERTED:
            for graph_id, keys in subjects.items():
                for key in keys:
                    if self._signing.holds(key.author):
                        self._facts.want_anchor(self._ledger.graph(graph_id), key)


def _anchors(graph: LedgerGraph, batch_root: bytes) -> list[AnchorRecord]:
    return [it for it in graph.set.records() if isinstance(it, AnchorRecord) and it.batch_root == batch_root]
