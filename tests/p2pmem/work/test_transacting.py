"""A transaction of a job, when the chain does not say what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest
import trio
from eth_account import Account
from eth_utils.crypto import keccak
from p2pmem_jobs import Context, InlineBlocking, Job, Queue, State, TrioClock, open_database
from p2pmem_protocol.errors import OutsideError
from trio.testing import MockClock

from p2pmem.chain.seam import Chain, Head, SendOutcome, SignedTransaction, TransactionFact, TransactionState
from p2pmem.chain.transactions import Fees, sign
from p2pmem.work.outgoing import RETRY, classify_error
from p2pmem.work.transacting import transact

PAYER = Account.from_key(keccak(text="payer"))
START_MS = 1_800_000_000_000
T = TypeVar("T")


@dataclass(frozen=True)
class Put:
    root: bytes


@dataclass(frozen=True)
class Done:
    transaction: bytes
    block: int


@dataclass
class FakeChain:
    """A chain that takes transactions, and answers, or does not."""

    answers: bool = True
    takes: bool = True
    pool: Counter[bytes] = field(default_factory=Counter)
    prepared: int = 0

    async def prepare(self) -> SignedTransaction:
        self.prepared += 1
        fees = Fees(2_000_000_007, 7)
        return sign(PAYER, chain_id=31337, nonce=self.prepared, to=b"\x11" * 20, data=b"", gas=100_000, fees=fees)

    async def send(self, transaction: SignedTransaction) -> SendOutcome:
        if self.takes:
            self.pool[transaction.hash] += 1
        return self._said(SendOutcome.ACCEPTED)

    async def look_up(self, transaction: SignedTransaction) -> TransactionFact:
        known = transaction.hash in self.pool
        return self._said(TransactionFact(TransactionState.PENDING if known else TransactionState.UNKNOWN))

    async def wait_confirmed(self, transaction: SignedTransaction) -> TransactionFact:
        assert transaction.hash in self.pool, "nobody waits for what was never sent"
        return self._said(
            TransactionFact(TransactionState.MINED, transaction.hash, Head(7, b"\x07" * 32), 2, succeeded=True)
        )

    def _said(self, answer: T) -> T:
        if not self.answers:
            raise OutsideError("the chain at http://127.0.0.1:1 does not answer")
        return answer


@asynccontextmanager
async def running(chain: FakeChain) -> AsyncIterator[Queue]:
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        queue = Queue(database, clock=TrioClock(START_MS))

        async def found() -> int | None:
            return None

        @queue.handler("anchor", version=1, retry=RETRY, classify=classify_error, concurrency=1)
        async def anchor(context: Context, args: Put) -> Done:
            transaction, block = await transact(context, cast("Chain", chain), chain.prepare, found)
            return Done(transaction.hash, block)

        async with queue.run():
            yield queue


async def until_unknown(job: Job[Done]) -> str:
    """Waits for a job that a person has to resolve; the reason that it gives."""
    with trio.fail_after(3_600):
        while job.record().state is not State.OUTCOME_UNKNOWN:
            assert not job.record().ended, job.record()
            await trio.sleep(1)
    return job.record().error or ""


@pytest.mark.parametrize("sent", [True, False])
async def test_what_a_silent_chain_leaves_unknown_is_told_with_the_transactions_hash(
    autojump_clock: MockClock, sent: bool
) -> None:
    chain = FakeChain(answers=False, takes=sent)
    async with running(chain) as queue:
        job = await queue.submit("anchor", Put(bytes(32)))
        reason = await until_unknown(job)
        (effect,) = queue.story(job.id).effects
        assert effect.note.startswith("transaction 0x")
        assert effect.note in reason
        assert "does not answer" in reason
        # asked once more while the chain is silent, it is as unknown as before
        await queue.resolve(job.id, State.QUEUED)
        assert effect.note in await until_unknown(job)
        chain.answers = chain.takes = True
        await queue.resolve(job.id, State.QUEUED)
        done = await job.result()
        assert effect.note == f"transaction 0x{done.transaction.hex()}"
    assert (chain.prepared, dict(chain.pool)) == (1, {done.transaction: 1})


@pytest.mark.parametrize("word", [State.SUCCEEDED, State.FAILED])
async def test_a_persons_word_ends_it_and_nothing_more_is_sent(autojump_clock: MockClock, word: State) -> None:
    chain = FakeChain(answers=False)
    async with running(chain) as queue:
        job = await queue.submit("anchor", Put(bytes(32)))
        await until_unknown(job)
        await queue.resolve(job.id, word)
        assert job.record().state is word
        chain.answers = True
        await trio.sleep(10_000)
    assert chain.pool.total() == 1


async def test_a_retry_of_what_a_person_called_failed_looks_for_the_same_transaction_first(
    autojump_clock: MockClock,
) -> None:
    chain = FakeChain(answers=False)
    async with running(chain) as queue:
        job = await queue.submit("anchor", Put(bytes(32)))
        await until_unknown(job)
        await queue.resolve(job.id, State.FAILED)
        chain.answers = True
        done = await (await queue.retry(job.id)).result()
    assert (chain.prepared, dict(chain.pool)) == (1, {done.transaction: 1})
