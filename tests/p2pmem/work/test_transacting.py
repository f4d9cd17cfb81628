"""A transaction of a job, when the chain does not say what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar, cast

import pytest
import trio
from eth_account import Account
from eth_utils.crypto import keccak
from p2pmem_jobs import Context, InlineBlocking, Job, Queue, State, TransientError, TrioClock, open_database
from p2pmem_jobs.database import no_crash
from p2pmem_protocol.errors import OutsideError
from trio.testing import MockClock

from p2pmem.chain.nonces import Nonces
from p2pmem.chain.seam import Chain, Head, SendOutcome, SignedTransaction, TransactionFact, TransactionState
from p2pmem.chain.transactions import Fees, sign
from p2pmem.work.outgoing import RETRY, classify_error
from p2pmem.work.transacting import ATTEMPTS_MAX, OnChain, transact

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
    nonces: Nonces = field(default_factory=Nonces)
    lost: set[bytes] = field(default_factory=set)
    overtaken: int = 0
    """So many transactions to come lose their nonce to others of the sender."""
    before: OnChain | None = None
    """What somebody has done before."""

    async def found(self) -> OnChain | None:
        return self.before

    async def settled(self, ask: Callable[[], Awaitable[OnChain | None]]) -> OnChain | None:
        return await ask()

    async def prepare(self) -> SignedTransaction:
        self.prepared += 1
        nonce = self.nonces.take(len(self.pool))
        fees = Fees(2_000_000_007, 7)
        return sign(PAYER, chain_id=31337, nonce=nonce, to=b"\x11" * 20, data=b"", gas=100_000, fees=fees)

    def release(self, transaction: SignedTransaction) -> None:
        self.nonces.release(transaction.nonce)

    async def send(self, transaction: SignedTransaction) -> SendOutcome:
        if self.takes:
            self.pool[transaction.hash] += 1
        return self._said(SendOutcome.ACCEPTED)

    async def look_up(self, transaction: SignedTransaction) -> TransactionFact:
        known = transaction.hash in self.pool
        return self._said(TransactionFact(TransactionState.PENDING if known else TransactionState.UNKNOWN))

    async def wait_confirmed(self, transaction: SignedTransaction) -> TransactionFact:
        assert transaction.hash in self.pool, "nobody waits for what was never sent"
        if self.overtaken:
            self.overtaken -= 1
            self.lost.add(transaction.hash)
        if transaction.hash in self.lost:
            return TransactionFact(TransactionState.REPLACED)
        return self._said(
            TransactionFact(TransactionState.MINED, transaction.hash, Head(7, b"\x07" * 32), 2, succeeded=True)
        )

    def _said(self, answer: T) -> T:
        if not self.answers:
            raise OutsideError("the chain at http://127.0.0.1:1 does not answer")
        return answer


@asynccontextmanager
async def running(chain: FakeChain, crash_point: Callable[[str], None] = no_crash) -> AsyncIterator[Queue]:
    async with open_database(":memory:", blocking=InlineBlocking()) as database:
        queue = Queue(database, clock=TrioClock(START_MS), crash_point=crash_point)

        @queue.handler("anchor", version=1, retry=RETRY, classify=classify_error, concurrency=1)
        async def anchor(context: Context, args: Put) -> Done:
            done = await transact(context, cast("Chain", chain), chain.prepare, chain.found)
            return Done(done.transaction, done.block)

        async with queue.run():
            yield queue


async def until_unknown(job: Job[Done]) -> str:
    """Waits for a job that a person has to resolve; the reason that it gives."""
    with trio.fail_after(3_600):
        while job.record().state is not State.OUTCOME_UNKNOWN:
            assert not job.record().ended, job.record()
            await trio.sleep(1)
    return job.record().error or ""


async def test_a_job_whose_transactions_were_overtaken_many_times_signs_again(autojump_clock: MockClock) -> None:
    chain = FakeChain(overtaken=2 * ATTEMPTS_MAX + 1)
    async with running(chain) as queue:
        job = await queue.submit("anchor", Put(bytes(32)))
        with trio.fail_after(3_600):
            done = await job.result()
        assert done.block == 7
        assert done.transaction not in chain.lost
        assert job.record().attempt > 1


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


async def test_what_is_on_the_chain_already_is_neither_signed_nor_sent(autojump_clock: MockClock) -> None:
    chain = FakeChain(before=OnChain(5, 3, b"\x05" * 32))
    async with running(chain) as queue:
        done = await (await queue.submit("anchor", Put(bytes(32)))).result()
        assert done == Done(b"\x05" * 32, 5)
    assert (chain.prepared, chain.pool.total()) == (0, 0)


@pytest.mark.parametrize("point", ["sign-1/unstored", "send-1/before", "send-1/intended"])
async def test_a_transaction_that_was_signed_and_not_sent_keeps_no_nonce(autojump_clock: MockClock, point: str) -> None:
    """What has a higher nonce waits for it, and it may never come: its job may be cancelled before it runs again."""
    chain = FakeChain()
    left = [f"anchor/{point}"]

    def fail(name: str) -> None:
        if name in left:
            left.remove(name)
            raise TransientError("not now")

    async with running(chain, fail) as queue:
        job = await queue.submit("anchor", Put(bytes(32)))
        async for event in queue.watch(job.id):
            if "not now" in event.reason:
                break
        assert len(chain.nonces) == 0
        await job.result()
    assert chain.pool.total() == 1
