"""An anchor's job is cut off at every question it asks the chain, before it is heard and after; then it starts again.

However it was cut, there is one transaction of the sender, one nonce, one anchor.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from eth_account.signers.local import LocalAccount
from eth_utils.crypto import keccak

from p2pmem.chain import TransactionState
from p2pmem.chain.client import EvmChain, open_chain
from p2pmem.chain.transactions import decode

pytestmark = pytest.mark.chain

QUESTIONS_MAX = 100


class Crash(BaseException):
    """The process is gone. No handler may see it."""


@dataclass
class Disk:
    """What survives a crash."""

    raw: bytes | None = None
    anchored: bool = False


async def anchor(chain: EvmChain, disk: Disk, root: bytes) -> None:
    """What a job does, in the order of the rules at the top of seam.py."""
    while not disk.anchored:
        if disk.raw is None:
            disk.raw = (await chain.prepare_anchor(root, 3)).raw
        transaction = decode(disk.raw)
        fact = await chain.look_up(transaction)
        if fact.state is TransactionState.UNKNOWN:
            await chain.send(transaction)
        fact = await chain.wait_confirmed(transaction, confirmations=1)
        if fact.state is TransactionState.REPLACED:
            disk.raw = None
            continue
        assert fact.succeeded
        assert await chain.anchored(root) is not None
        disk.anchored = True


@asynccontextmanager
async def process(
    on_chain: Any, signer: LocalAccount, crash_at: int | None = None, heard: bool = True
) -> AsyncIterator[EvmChain]:
    """A chain as one process has it; that process ends at its question number `crash_at`."""
    async with open_chain(on_chain.settings(), signer) as chain:
        provider = chain._provider
        post = provider._post

        async def counted(content: bytes, what: str) -> bytes:
            if provider.requests == crash_at and not heard:
                raise Crash
            body = await post(content, what)
            if provider.requests == crash_at:
                raise Crash
            return body

        provider._post = counted  # type: ignore[method-assign]
        yield chain


@pytest.mark.parametrize("heard", [False, True], ids=["before it was heard", "after it was answered"])
async def test_a_job_cut_off_at_any_question_ends_with_one_anchor_and_one_transaction(
    on_chain: Any, heard: bool
) -> None:
    crashes = 0
    for crash_at in range(1, QUESTIONS_MAX):
        signer = await on_chain.anvil.new_account()
        root, disk = bytes(keccak(text=f"{heard} {crash_at}")), Disk()
        try:
            async with process(on_chain, signer, crash_at, heard) as chain:
                await anchor(chain, disk, root)
        except Crash:
            crashes += 1
        async with process(on_chain, signer) as chain:
            await anchor(chain, disk, root)
        topic = "0x" + keccak(text="Anchored(bytes32,address,uint32)").hex()
        logs = await on_chain.anvil.rpc("eth_getLogs", {"fromBlock": "0x0", "topics": [topic, "0x" + root.hex()]})
        assert len(logs) == 1, f"cut off at question {crash_at}"
        assert await on_chain.anvil.rpc("eth_getTransactionCount", signer.address, "latest") == "0x1"
        if crashes < crash_at:
            break
    else:
        pytest.fail("the job never got through")
    assert crashes > 10, "there are more than ten questions at which it can be cut off"
