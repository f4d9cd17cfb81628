"""anchor: put a batch of seal digests on the chain.

    collect   wait a moment for company; take what waits to be anchored; build the tree of seal digests
    look      is the root on the chain already, from before a backup was put back, say? Then nothing is sent
    sign      sign the transaction and store it with its hash, before anything is sent
    send      an outside effect: intended on disk, looked up after a crash, sent again only if it is not there
    confirm   wait for confirmations
    admit     sign the `anchor` envelope with a proof for each version; note what was seen

Whoever anchored a root, it is anchored: a root that somebody else put there first is a success too.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from p2pmem_jobs import Context, Handler, Queue
from p2pmem_protocol.bodies import Anchor, AnchoredAsset
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import ANCHOR_ASSETS_MAX
from p2pmem_protocol.merkle import Tree
from p2pmem_protocol.names import Address, GraphId
from p2pmem_protocol.view import Anchored

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import ChainFact, Ledger
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.signing import Signing
from p2pmem.work.outgoing import RETRY, Outgoing, Ready, Stands, classify_error
from p2pmem.work.transacting import NO_HASH, OnChain, transact
from p2pmem.work.verifying import SubjectArgs, version_view

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain

COMPANY_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class AnchorArgs:
    graph: bytes
    agent: bytes
    first: int
    """The position of the ledger when it was asked for: makes the job's key unique."""


@dataclass(frozen=True, slots=True)
class Collected:
    """The batch, once and for all: versions, in the order of the tree of their seals."""

    versions: list[SubjectArgs]


@dataclass(frozen=True, slots=True)
class AnchorResult:
    batch_root: bytes
    count: int
    transaction: bytes
    block: int


class AnchoringJobs:
    """Registers anchor with a queue. Only a node with a chain has it."""

    def __init__(
        self,
        ledger: Ledger,
        signing: Signing,
        outgoing: Outgoing,
        facts: ChainFacts,
        queue: Queue,
        *,
        chain: Chain,
        chain_id: int,
        contract: Address,
    ) -> None:
        self._ledger = ledger
        self._signing = signing
        self._outgoing = outgoing
        self._facts = facts
        self._chain = chain
        self._chain_id = chain_id
        self._contract = contract
        self.anchor: Handler[AnchorArgs, AnchorResult] = queue.handler(
            "anchor", version=1, retry=RETRY, classify=classify_error, concurrency=1
        )(self._anchor)

    async def _anchor(self, ctx: Context, args: AnchorArgs) -> AnchorResult:
        graph = self._ledger.graph(GraphId(args.graph))
        await ctx.sleep("company", COMPANY_S)
        batch = await ctx.step("collect", lambda: self._collect(graph), returns=Collected)
        if not batch.versions:
            return AnchorResult(bytes(32), 0, NO_HASH, 0)
        tree = Tree.of_values([version.seal for version in batch.versions])

        async def found() -> OnChain | None:
            fact = await self._chain.anchored(tree.root)
            if fact is None:
                return None
            by = await self._chain.anchoring_transaction(fact)
            return OnChain(fact.block_number, fact.confirmations, by or NO_HASH)

        done = await transact(ctx, self._chain, lambda: self._chain.prepare_anchor(tree.root, tree.leaf_count), found)
        await self._admit(ctx, graph, Address(args.agent), batch, tree, done)
        return AnchorResult(tree.root, tree.leaf_count, done.transaction, done.block)

    def _collect(self, graph: LedgerGraph) -> Collected:
        now_ms = self._ledger.clock.now_ms()
        wanted = self._facts.unanchored(graph)[:ANCHOR_ASSETS_MAX]
        views = [view for key in wanted if (view := version_view(graph, key, now_ms)) is not None and view.published]
        return Collected([SubjectArgs.of(graph.id, view.key) for view in views])

    async def _admit(
        self,
        ctx: Context,
        graph: LedgerGraph,
        agent: Address,
        batch: Collected,
        tree: Tree,
        done: OnChain,
    ) -> None:
        fact = ChainFact(tree.root, self._chain_id, Anchored.CONFIRMED.value, done.transaction, done.block)

        def rows(connection: sqlite3.Connection) -> None:
            write_fact(connection, fact, self._ledger.clock.now_ms())

        def make() -> Ready | Stands:
            for said in graph.set.anchors(batch.versions[0].key):  # before the node was put back from a copy
                if (said.author, said.batch_root, said.chain) == (agent, tree.root, self._chain_id):
                    return Stands(said.id, rows)
            assets = tuple(
                AnchoredAsset(subject.key, tree.prove(index).hashes) for index, subject in enumerate(batch.versions)
            )
            body = Anchor(
                tree.root, tree.leaf_count, self._chain_id, self._contract, done.transaction, done.block, assets
            )
            item = self._signing.envelope(graph, agent, Kind.ANCHOR, body)
            return Ready(item, rows=rows)

        await self._outgoing.admit_step(ctx, "admit", graph, make)
        self._ledger.chain_facts[fact.batch_root] = fact
        self._ledger.wake()


def write_fact(connection: sqlite3.Connection, fact: ChainFact, now_ms: int) -> None:
    """Keep what was seen on the chain."""
    connection.execute(
        "INSERT OR REPLACE INTO chain_fact VALUES (?, ?, ?, ?, ?, ?)",
        (fact.batch_root, fact.chain, fact.state, fact.transaction, fact.block, now_ms),
    )
