"""Whole nodes and a chain: the quorum is registered when it changes, and a certificate is attested."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
from eth_account import Account
from p2pmem_devnet.anvil import CHAIN_ID, Anvil
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import network_id, parse_hex_id

from p2pmem.chain import ChainSettings, Subject
from p2pmem.chain.client import open_chain
from p2pmem.face import LimitsChange, MemberChange, NewGraph, NewMember, SignRequest
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, OpenChain, Places, Surroundings, open_node

pytestmark = pytest.mark.chain
NETWORK = "chain-of-trust"
ROOT = Account.from_key(b"\x77" * 32)


async def serial(chain: OpenChain, graph: bytes, at_least: int) -> int:
    """The serial that is registered, once it is so high."""
    with trio.fail_after(30):
        while True:
            fact = await chain.chain.quorum_of(graph)
            if fact is not None and fact.serial >= at_least:
                return fact.serial
            await trio.sleep(0.02)


async def cast(stack: AsyncExitStack, anvil: Anvil) -> tuple[list[Node], OpenChain]:
    """An author with a chain, and two verifiers without."""
    contract = await anvil.deploy_anchor(network_id(NETWORK))
    settings = ChainSettings(
        url=anvil.url, chain_id=CHAIN_ID, contract=contract, network=network_id(NETWORK), confirmations=1,
        poll_seconds=0.02,
    )  # fmt: skip
    signer = await anvil.new_account()
    chain = OpenChain(await stack.enter_async_context(open_chain(settings, signer)), settings)
    fabric = MemoryFabric(seed=1)
    nodes = [
        await stack.enter_async_context(
            open_node(
                NodeSettings(NETWORK, f"n{number}"),
                Keyring.of(Key(bytes([number + 1]) * 32)),
                fabric.network(f"n{number}"),
                Places(),
                Surroundings(inline=True),
                chain if number == 0 else None,
            )
        )
        for number in range(3)
    ]
    return nodes, chain


async def test_a_quorum_is_registered_by_itself_and_a_certificate_attested(anvil: Anvil) -> None:
    async with AsyncExitStack() as stack:
        nodes, chain = await cast(stack, anvil)
        author, *verifiers = nodes
        addresses = [node.services.signing.default_agent for node in nodes]
        members = tuple(NewMember(str(it), ("verifier",)) for it in addresses[1:])
        view = await author.face.found(NewGraph("g", members=members, m=2, chain=True))
        found = author.ledger.named(view.graph)
        assert await serial(chain, found.id, 1) == 1
        invite = await author.face.invite(view.graph, roles=(), uses=1, life_ms=60_000)
        for node in verifiers:
            await node.face.join(invite, label="")
        data = b"<urn:a> <urn:b> <urn:c> .\n"
        await author.face.draft(view.graph, "x", data, format="nt", base=None, subgraph="", replace=False)
        await author.face.share(view.graph, "x", ttl_ms=None)
        with pytest.raises(MisuseError, match="not ConsensusVerified"):
            await author.face.attest(view.graph, "x")
        with pytest.raises(MisuseError, match="has no chain"):
            await verifiers[0].face.attest(view.graph, f"{addresses[0]}/x")
        job = await author.face.verify(view.graph, "x", deadline_ms=None)
        assert (await author.face.job(job.id, wait_ms=30_000)).state == "succeeded"
        job = await author.face.attest(view.graph, "x")
        ended = await author.face.job(job.id, wait_ms=30_000)
        assert ended.state == "succeeded", ended.error
        version = await author.face.version(view.graph, "x")
        root, seal = parse_hex_id(version.root), parse_hex_id(version.seal)
        subject = Subject(found.id, "x", 1, root, seal, bytes(addresses[0]))
        fact = await chain.chain.attestation_of(subject)
        assert fact is not None
        assert (fact.serial, fact.m, fact.verifiers, fact.approvals) == (1, 2, 2, 2)
        # Once it is attested, asking again sends nothing.
        sent = chain.chain.statistics().sent
        job = await author.face.attest(view.graph, "x")
        assert (await author.face.job(job.id, wait_ms=30_000)).state == "succeeded"
        assert chain.chain.statistics().sent == sent
        await author.face.change_members(view.graph, MemberChange(m=1))
        assert await serial(chain, found.id, 2) == 2


async def test_a_root_key_in_a_wallet_outside_registers_too(anvil: Anvil) -> None:
    async with AsyncExitStack() as stack:
        nodes, chain = await cast(stack, anvil)
        face = nodes[0].face
        member = NewMember(str(nodes[1].services.signing.default_agent), ("verifier",))
        await face.add_agent(ROOT.address, label="root")

        async def does(action: str, **fields: object) -> str:
            view = await face.sign_prepare(SignRequest(action, ROOT.address, **fields))  # type: ignore[arg-type]
            signature = ROOT.sign_typed_data(full_message=view.typed_data).signature
            return (await face.sign_submit(view.id, signature="0x" + bytes(signature).hex())).reference

        graph = await does("found", new=NewGraph("g", members=(member,), m=1))
        with pytest.raises(MisuseError, match="has no chain"):
            await does("quorum", graph=graph)
        await does("roster", graph=graph, change=MemberChange(limits=LimitsChange(chain=True)))
        await does("quorum", graph=graph)
        assert await serial(chain, nodes[0].ledger.named(graph).id, 1) == 1
