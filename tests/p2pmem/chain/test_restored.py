"""A file that was put back from a backup knows nothing of a transaction that was signed since. It is not done twice."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio
from eth_utils.crypto import keccak
from p2pmem_devnet.anvil import CHAIN_ID, Anvil
from p2pmem_jobs import Context, InlineBlocking, Queue, State, open_database
from p2pmem_jobs.database import CrashPoint, no_crash
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import network_id
from web3.exceptions import Web3RPCError

from p2pmem.chain import ChainSettings
from p2pmem.chain.client import EvmChain, open_chain
from p2pmem.face import NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, OpenChain, Places, Surroundings, open_node
from p2pmem.work.outgoing import RETRY, classify_error
from p2pmem.work.transacting import NO_HASH, OnChain, transact

pytestmark = pytest.mark.chain
NETWORK = "restored"
KEYS = [Key(bytes([number + 1]) * 32) for number in range(3)]
DATA = b"<urn:a> <urn:b> <urn:c> .\n"
KINDS = ("register", "anchor", "attest")


@dataclass(frozen=True)
class Put:
    root: bytes


@asynccontextmanager
async def anchoring(chain: EvmChain) -> AsyncIterator[Queue]:
    """A queue that knows of nothing, with the job that anchors."""
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        queue = Queue(database)

        @queue.handler("anchor", version=1, retry=RETRY, classify=classify_error)
        async def anchor(context: Context, args: Put) -> bytes:
            async def found() -> OnChain | None:
                fact = await chain.anchored(args.root)
                if fact is None:
                    return None
                by = await chain.anchoring_transaction(fact)
                return OnChain(fact.block_number, fact.confirmations, by or NO_HASH)

            return (await transact(context, chain, lambda: chain.prepare_anchor(args.root, 1), found)).transaction

        async with queue.run(drain_s=0):
            yield queue


async def test_a_transaction_that_is_on_its_way_is_waited_for_before_another_is_signed(
    on_chain: Any, chain: EvmChain
) -> None:
    root = bytes(keccak(text="a batch"))
    await on_chain.anvil.set_automine(False)
    first = await chain.prepare_anchor(root, 1)
    await chain.send(first)
    async with open_chain(on_chain.settings(), chain._signer) as later, anchoring(later) as queue:
        job = await queue.submit("anchor", Put(root))
        with trio.fail_after(30):
            while later.statistics().requests < 10:
                await trio.lowlevel.checkpoint()
            await on_chain.anvil.mine(2)
            assert await job.result() == first.hash
        assert later.statistics().prepared == 0
    assert await sent(on_chain.anvil, chain.sender) == 1


async def test_one_that_the_chain_lost_is_not_waited_for(on_chain: Any, chain: EvmChain) -> None:
    root = bytes(keccak(text="a batch"))
    await on_chain.anvil.set_automine(False)
    first = await chain.prepare_anchor(root, 1)
    await chain.send(first)
    async with open_chain(on_chain.settings(confirmations=1), chain._signer) as later, anchoring(later) as queue:
        job = await queue.submit("anchor", Put(root))
        with trio.fail_after(30):
            while later.statistics().requests < 10:
                await trio.lowlevel.checkpoint()
            await on_chain.anvil.rpc("anvil_dropTransaction", "0x" + first.hash.hex())
            await on_chain.anvil.set_automine(True)
            await job.result()
    assert await sent(on_chain.anvil, chain.sender) == 1


async def test_a_server_without_old_logs_leaves_it_open_which_transaction_anchored(
    chain: EvmChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: object) -> None:
        raise Web3RPCError("pruned", rpc_response={"error": {"code": 4444, "message": "pruned history unavailable"}})  # type: ignore[typeddict-item]

    root = bytes(keccak(text="a batch"))
    transaction = await chain.prepare_anchor(root, 1)
    await chain.send(transaction)
    await chain.wait_confirmed(transaction, confirmations=1)
    fact = await chain.anchored(root)
    assert fact is not None
    assert await chain.anchoring_transaction(fact) == transaction.hash
    monkeypatch.setattr(chain._web3.eth, "get_logs", refuse)
    assert await chain.anchoring_transaction(fact) is None


async def sent(anvil: Anvil, sender: bytes) -> int:
    return int(await anvil.rpc("eth_getTransactionCount", "0x" + sender.hex(), "latest"), 16)


class Backups:
    """Copies the ledger just before each transaction is signed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = folder / "ledger.sqlite"

    def __call__(self, point: str) -> None:
        kind, _, rest = point.partition("/")
        if rest == "sign-1/before":
            # Without its lock file: as one that was put back, which says nothing of what came after it.
            for suffix in ("", "-wal"):
                shutil.copyfile(f"{self.ledger}{suffix}", self.folder / f"{kind}.sqlite{suffix}")


async def ended(node: Node, kind: str) -> None:
    """Waits until a job of this kind has succeeded."""
    with trio.fail_after(30):
        async for event in node.queue.watch(kind=kind, after=0):
            assert event.state is not State.FAILED, event
            if event.state is State.SUCCEEDED:
                return


async def main_job(author: Node, verifiers: list[Node]) -> str:
    """Found, publish, verify, attest. Returns the graph."""
    members = tuple(NewMember(str(key.address), ("verifier",)) for key in KEYS[1:])
    graph = (await author.face.found(NewGraph("g", members=members, m=2, chain=True))).graph
    await ended(author, "register")
    invite = await author.face.invite(graph, roles=(), uses=1, life_ms=60_000)
    for node in verifiers:
        await node.face.join(invite, label="")
    await author.face.draft(graph, "x", DATA, format="nt", base=None, subgraph="", replace=False)
    await author.face.publish(graph, "x")
    await ended(author, "publish")
    await author.face.verify(graph, "x", deadline_ms=None)
    await ended(author, "verify")
    await author.face.attest(graph, "x")
    await ended(author, "attest")
    return graph


async def test_every_kind_that_sends_a_transaction_finds_it_after_its_file_was_put_back(
    anvil: Anvil, tmp_path: Path
) -> None:
    contract = await anvil.deploy_anchor(network_id(NETWORK))
    settings = ChainSettings(anvil.url, CHAIN_ID, contract, network_id(NETWORK), confirmations=1, poll_seconds=0.02)
    signer = await anvil.new_account()
    sender = bytes.fromhex(signer.address[2:])
    backups = Backups(tmp_path)

    @asynccontextmanager
    async def author_at(ledger: Path, fabric: MemoryFabric, crash_point: CrashPoint) -> AsyncIterator[Node]:
        async with (
            open_chain(settings, signer) as chain,
            open_node(
                NodeSettings(NETWORK, "author"), Keyring.of(KEYS[0]), fabric.network("author"), Places(ledger),
                Surroundings(inline=True, crash_point=crash_point), OpenChain(chain, settings),
            ) as node,
        ):  # fmt: skip
            yield node

    fabric = MemoryFabric(seed=1)
    async with AsyncExitStack() as stack:
        author = await stack.enter_async_context(author_at(backups.ledger, fabric, backups))
        verifiers = [
            await stack.enter_async_context(
                open_node(
                    NodeSettings(NETWORK, str(key.address)[:8]), Keyring.of(key), fabric.network(str(key.address)),
                    Places(), Surroundings(inline=True),
                )
            )
            for key in KEYS[1:]
        ]  # fmt: skip
        graph = await main_job(author, verifiers)
        version = await author.face.version(graph, "x")
        assert version.anchor is not None
    assert await sent(anvil, sender) == len(KINDS)
    for kind in KINDS:
        async with author_at(tmp_path / f"{kind}.sqlite", MemoryFabric(seed=2), no_crash) as restored:
            await restored.face.confirm_restore(None)  # nobody is here whom it could ask
            await ended(restored, kind)
            if kind == "anchor":
                again = (await restored.face.version(graph, "x")).anchor
                assert again is not None
                assert (again.transaction, again.block) == (version.anchor.transaction, version.anchor.block)
        assert await sent(anvil, sender) == len(KINDS), kind
