"""A chain that is in the settings and does not answer: said wherever somebody looks, and waited for."""

from __future__ import annotations

import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from eth_account import Account
from p2pmem_jobs import FullError, Handler, Job, Queue
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import network_id

from p2pmem.chain import ChainSettings
from p2pmem.chain.client import open_chain
from p2pmem.chain.errors import WrongChainError
from p2pmem.face import NewGraph, NewMember
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, OpenChain, Places, Surroundings, open_node
from p2pmem.services.chain_health import ChainHealth

NETWORK = "silence"


@asynccontextmanager
async def node_with(places: Places, chain: OpenChain | None) -> AsyncIterator[Node]:
    keyring, network = Keyring.of(Key(b"\x17" * 32)), MemoryFabric(seed=1).network("ada")
    settings = NodeSettings(NETWORK, "Ada")
    async with open_node(settings, keyring, network, places, Surroundings(inline=True), chain) as node:
        yield node


@pytest.fixture
async def silent() -> AsyncIterator[OpenChain]:
    """A chain at a port where nobody listens."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        settings = ChainSettings(url, 31_337, bytes(20), network_id(NETWORK), confirmations=1, poll_seconds=0.02)
        async with open_chain(settings, Account.from_key(b"\x77" * 32)) as chain:
            yield OpenChain(chain, settings)


async def test_a_silent_chain_is_in_the_status_the_graph_the_job_and_the_log(
    silent: OpenChain, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    says = f"the chain at {silent.settings.url} does not answer since 20"
    places = Places(ledger=tmp_path / "ledger.sqlite")
    async with node_with(places, silent) as node:
        with trio.fail_after(30):
            await node.ledger.until(lambda: bool(node.services.facts.trouble))
        assert [says in it for it in (await node.face.status()).warnings] == [True]
        made = await node.face.found(NewGraph("lab", chain=True))
        assert says in made.trouble
        await node.face.draft(
            made.graph, "x", b"<x:s> <x:p> <x:o> .", format="ttl", base=None, subgraph="", replace=False
        )
        job = await node.face.publish(made.graph, "x")
        assert (job.state, says in job.waiting_for) == ("waiting", True)
        with trio.fail_after(30):
            while not [it for it in await node.face.jobs(state=None, limit=10) if it.kind == "anchor"]:
                await trio.lowlevel.checkpoint()
    assert [it.getMessage() for it in caplog.records if it.name.endswith("chain_health")] == ["chain.silent"]
    async with node_with(places, None) as node:
        jobs = {it.kind: it for it in await node.face.jobs(state=None, limit=10)}
        assert "no chain in its settings" in jobs["anchor"].waiting_for
        assert "handler" not in jobs["anchor"].waiting_for


async def test_what_a_chain_does_is_news_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    answers: list[Exception | None] = []

    async def check() -> None:
        error = answers.pop(0)
        if error is not None:
            raise error

    async def head() -> None:
        return None

    facts, woken = SimpleNamespace(trouble=""), list[str]()
    ledger = SimpleNamespace(clock=SimpleNamespace(now_ms=lambda: 0), wake=lambda: woken.append(facts.trouble))
    chain = SimpleNamespace(check=check, head=head)
    health = ChainHealth(cast(Any, ledger), cast(Any, facts), cast(Any, chain), "https://me:secret@chain.example/key")
    said = []
    silence, another = OutsideError("no answer"), WrongChainError("it is chain 1")
    for it in (None, silence, silence, another, None):
        answers.append(it)
        await health.look()
        said.append(facts.trouble)
    since = "the chain at https://chain.example does not answer since 1970-01-01 00:00:00Z"
    assert [it.partition(",")[0] for it in said[:3]] == ["", since, since]
    assert said[3:] == ["the chain at https://chain.example is not the one to ask: it is chain 1", ""]
    assert woken == [said[1], said[3], ""]
    assert [it.getMessage() for it in caplog.records] == ["chain.silent", "chain.wrong", "chain.answers"]
    assert "secret" not in caplog.text


async def test_a_node_asks_again_for_what_the_queue_had_no_room_for(
    silent: OpenChain, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with node_with(Places(), silent) as node:
        submit, refused = Queue.submit, {"register", "anchor"}

        async def submit_later(self: Queue, kind: Any, args: Any, **options: Any) -> Job[Any]:
            if isinstance(kind, Handler) and kind.kind in refused:
                refused.remove(kind.kind)
                raise FullError("the queue holds 1 live jobs")
            return await submit(self, kind, args, **options)

        monkeypatch.setattr(Queue, "submit", submit_later)
        member = NewMember(str(Key(b"\x18" * 32).address), ("verifier",))
        made = await node.face.found(NewGraph("lab", members=(member,), m=1, chain=True))
        await node.face.draft(
            made.graph, "x", b"<x:s> <x:p> <x:o> .", format="ttl", base=None, subgraph="", replace=False
        )
        await node.face.publish(made.graph, "x")
        asked: set[str] = set()
        with trio.fail_after(30):
            async for event in node.queue.watch(after=0):
                asked.add(event.kind)
                if asked >= {"register", "anchor"}:
                    break
    assert not refused
    assert {"register.not_asked", "anchor.not_asked"} <= {it.getMessage() for it in caplog.records}
