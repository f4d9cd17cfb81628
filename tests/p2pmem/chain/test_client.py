"""The client on a real chain: one effect per nonce, lost blocks, a chain that goes away."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import trio
from eth_utils.crypto import keccak
from p2pmem_devnet.anvil import start_anvil
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.chain import (
    ChainRefusedError,
    ChainUnreachableError,
    HeadWatch,
    SendOutcome,
    TransactionState,
    WrongChainError,
)
from p2pmem.chain.client import EvmChain, open_chain
from p2pmem.chain.transactions import decode

pytestmark = pytest.mark.chain


def root(number: int) -> bytes:
    return bytes(keccak(text=f"batch {number}"))


async def test_preparing_sends_nothing(chain: EvmChain) -> None:
    before = await chain.head()
    transaction = await chain.prepare_anchor(root(1), 10)
    assert (await chain.look_up(transaction)).state is TransactionState.UNKNOWN
    assert await chain.anchored(root(1)) is None
    assert await chain.head() == before


async def test_sending_again_at_any_time_is_one_effect(on_chain: Any, chain: EvmChain) -> None:
    await on_chain.anvil.set_automine(False)
    transaction = await chain.prepare_anchor(root(1), 10)
    assert await chain.send(transaction) is SendOutcome.ACCEPTED
    assert (await chain.look_up(transaction)).state is TransactionState.PENDING
    assert await chain.send(transaction) is SendOutcome.ALREADY_KNOWN
    await on_chain.anvil.mine()
    assert await chain.send(transaction) is SendOutcome.ALREADY_KNOWN
    await on_chain.anvil.mine()
    assert int(await on_chain.anvil.rpc("eth_getTransactionCount", "0x" + chain.sender.hex(), "latest"), 16) == 1


async def test_a_stored_transaction_is_found_and_sent_by_a_process_that_did_not_make_it(
    on_chain: Any, chain: EvmChain
) -> None:
    stored = (await chain.prepare_anchor(root(1), 10)).raw
    async with open_chain(on_chain.settings(), chain._signer) as later:
        transaction = decode(stored)
        assert (await later.look_up(transaction)).state is TransactionState.UNKNOWN
        await later.send(transaction)
        fact = await later.wait_confirmed(transaction, confirmations=1)
        assert fact.succeeded
        # The nonce of what was sent is not given to the next.
        assert (await later.prepare_anchor(root(2), 10)).nonce == transaction.nonce + 1


async def test_confirmations_are_counted_and_waited_for(on_chain: Any, chain: EvmChain) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    # The chain makes the block after it has taken the transaction, in its own time.
    assert (await chain.wait_confirmed(transaction, confirmations=1)).confirmations == 1
    waited = trio.Event()

    async with trio.open_nursery() as nursery:

        async def wait() -> None:
            assert (await chain.wait_confirmed(transaction, confirmations=3)).confirmations == 3
            waited.set()

        nursery.start_soon(wait)
        await on_chain.anvil.mine()
        assert (await chain.look_up(transaction)).confirmations == 2
        assert not waited.is_set()
        await on_chain.anvil.mine()
        await waited.wait()


async def test_waiting_can_be_cancelled_and_taken_up_again(on_chain: Any, chain: EvmChain) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    # The chain makes the block after it has taken the transaction, in its own time.
    await chain.wait_confirmed(transaction, confirmations=1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: chain.wait_confirmed(transaction, confirmations=2, poll_seconds=0.001))
        asked = chain.statistics().requests
        while chain.statistics().requests < asked + 5:
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    await on_chain.anvil.mine()
    assert (await chain.wait_confirmed(transaction, confirmations=2)).confirmations == 2


async def test_many_prepared_at_once_take_nonces_in_a_row_and_all_are_mined(chain: EvmChain) -> None:
    made = []

    async def prepare(number: int) -> None:
        made.append(await chain.prepare_anchor(root(number), 10))

    async with trio.open_nursery() as nursery:
        for number in range(8):
            nursery.start_soon(prepare, number)
    assert sorted(each.nonce for each in made) == list(range(8))
    for transaction in reversed(made):
        await chain.send(transaction)
    for transaction in made:
        assert (await chain.wait_confirmed(transaction, confirmations=1)).succeeded
    assert [await chain.anchored(root(number)) is not None for number in range(8)] == [True] * 8


async def test_a_released_transaction_leaves_no_gap(chain: EvmChain) -> None:
    given_up = await chain.prepare_anchor(root(1), 10)
    chain.release(given_up)
    transaction = await chain.prepare_anchor(root(2), 10)
    assert transaction.nonce == given_up.nonce
    await chain.send(transaction)
    await chain.wait_confirmed(transaction, confirmations=1)


async def test_a_raised_fee_is_the_same_effect_and_happens_once(on_chain: Any, chain: EvmChain) -> None:
    await on_chain.anvil.set_automine(False)
    cheap = await chain.prepare_anchor(root(1), 10)
    await chain.send(cheap)
    dear = await chain.raise_fee(cheap)
    assert (dear.nonce, dear.hash != cheap.hash) == (cheap.nonce, True)
    await chain.send(dear)
    await on_chain.anvil.mine()
    fact = await chain.look_up(cheap, dear)
    assert (fact.state, fact.hash) == (TransactionState.MINED, dear.hash)
    # Who forgot the second one only learns that the first will not come, once it is deep enough.
    assert (await chain.look_up(cheap, confirmations=2)).state is TransactionState.UNKNOWN
    assert await chain.send(cheap) is SendOutcome.NONCE_PASSED
    await on_chain.anvil.mine()
    assert (await chain.look_up(cheap, confirmations=2)).state is TransactionState.REPLACED
    assert (await chain.wait_confirmed(cheap, confirmations=2)).state is TransactionState.REPLACED


async def test_transactions_of_several_nonces_are_not_looked_up_as_one_effect(chain: EvmChain) -> None:
    first, second = await chain.prepare_anchor(root(1), 1), await chain.prepare_anchor(root(2), 1)
    with pytest.raises(MisuseError, match="one nonce"):
        await chain.look_up(first, second)
    with pytest.raises(MisuseError, match="at least one"):
        await chain.look_up()


async def test_a_transaction_of_another_sender_is_not_sent(on_chain: Any, chain: EvmChain) -> None:
    other = await on_chain.client()
    with pytest.raises(MisuseError, match="this node sends for"):
        await chain.send(await other.prepare_anchor(root(1), 1))


async def test_a_sender_without_money_is_told_so_by_the_chain(on_chain: Any) -> None:
    poor = await on_chain.client()
    await on_chain.anvil.fund("0x" + poor.sender.hex(), 0)
    with pytest.raises(ChainRefusedError, match=r"(?i)insufficient|funds|gas"):
        await poor.send(await poor.prepare_anchor(root(1), 1))


async def test_a_chain_dearer_than_the_limit_is_not_paid(on_chain: Any) -> None:
    thrifty = await on_chain.client(fee_per_gas_max_wei=1000)
    with pytest.raises(MisuseError, match="the limit is 1000"):
        await thrifty.prepare_anchor(root(1), 1)
    assert thrifty.statistics().reserved_nonces == 0


# A wrong chain


async def test_an_address_without_our_contract_is_named(on_chain: Any) -> None:
    lost = await on_chain.client(contract=b"\x99" * 20)
    with pytest.raises(WrongChainError, match="no contract of ours at 0x9999"):
        await lost.prepare_anchor(root(1), 1)


async def test_a_contract_of_another_network_is_not_used(on_chain: Any) -> None:
    other = await on_chain.client(network=bytes(32))
    with pytest.raises(WrongChainError, match="another network"):
        await other.anchored(root(1))


async def test_another_chain_id_is_not_used(on_chain: Any) -> None:
    other = await on_chain.client(chain_id=1)
    with pytest.raises(WrongChainError, match="is chain 31337 and the settings say 1"):
        await other.check()


# Blocks that go away


async def test_a_reorganisation_unmines_a_transaction_and_the_watch_says_from_where(
    on_chain: Any, chain: EvmChain
) -> None:
    watch = HeadWatch(chain)
    await watch.poll()
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    fact = await chain.wait_confirmed(transaction, confirmations=1)
    assert fact.block is not None
    await on_chain.anvil.mine()
    change = await watch.next_change(0.01)
    assert change.changed_from is None

    await on_chain.anvil.reorganise(2)
    change = await watch.next_change(0.01)
    assert change.changed_from is not None
    assert change.changed_from <= fact.block.number
    assert await chain.block_hash(fact.block.number) != fact.block.hash
    assert (await chain.look_up(transaction)).state is not TransactionState.MINED
    assert await chain.anchored(root(1)) is None


async def test_who_waits_sends_again_what_a_reorganisation_dropped(
    on_chain: Any, chain: EvmChain, caplog: pytest.LogCaptureFixture
) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    first = await chain.wait_confirmed(transaction, confirmations=1)
    caplog.set_level(logging.WARNING, "p2pmem.chain")
    async with trio.open_nursery() as nursery:
        facts = []

        async def wait() -> None:
            facts.append(await chain.wait_confirmed(transaction, confirmations=3))
            nursery.cancel_scope.cancel()

        nursery.start_soon(wait)
        asked = chain.statistics().requests
        while chain.statistics().requests < asked + 5:
            await trio.lowlevel.checkpoint()
        await on_chain.anvil.reorganise(1)
        sent = chain.statistics().sent
        while chain.statistics().sent == sent:
            await trio.lowlevel.checkpoint()
        await on_chain.anvil.mine(2)
    assert facts[0].block != first.block
    assert facts[0].succeeded
    assert "chain.transaction.reorganised" in caplog.messages
    assert (await chain.anchored(root(1))) is not None


async def test_a_receipt_of_a_block_that_is_not_on_the_chain_is_not_believed(
    chain: EvmChain, monkeypatch: pytest.MonkeyPatch
) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    await chain.wait_confirmed(transaction, confirmations=1)

    async def another(number: int) -> bytes:
        await trio.lowlevel.checkpoint()
        return bytes(32)

    monkeypatch.setattr(chain, "block_hash", another)
    assert (await chain.look_up(transaction)).state is TransactionState.PENDING


# A chain that goes away


async def test_a_killed_chain_is_an_outside_error_and_its_return_is_no_second_effect(
    on_chain: Any, chain: EvmChain
) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    fact = await chain.wait_confirmed(transaction, confirmations=1)
    await on_chain.anvil.stop()
    for ask in (chain.head, lambda: chain.send(transaction), lambda: chain.anchored(root(1))):
        with pytest.raises(ChainUnreachableError):
            await ask()
    await on_chain.anvil.start()
    assert await chain.look_up(transaction) == fact
    assert await chain.send(transaction) is SendOutcome.ALREADY_KNOWN


async def test_a_chain_killed_under_a_waiting_job_ends_the_wait_with_an_outside_error(
    on_chain: Any, chain: EvmChain
) -> None:
    transaction = await chain.prepare_anchor(root(1), 10)
    await chain.send(transaction)
    async with trio.open_nursery() as nursery:
        ended = trio.Event()

        async def wait() -> None:
            with pytest.raises(OutsideError):
                await chain.wait_confirmed(transaction, confirmations=50)
            ended.set()

        nursery.start_soon(wait)
        await on_chain.anvil.kill()
        await ended.wait()


async def test_a_chain_that_is_down_can_be_opened_and_used_when_it_comes(
    anvil_binary: Path, tmp_path: Path, on_chain: Any
) -> None:
    await on_chain.anvil.stop()
    async with open_chain(on_chain.settings(), _payer()) as chain:
        with pytest.raises(ChainUnreachableError):
            await chain.check()
        await on_chain.anvil.start()
        await chain.check()
        assert await chain.anchored(root(1)) is None


async def test_two_chains_at_once_have_their_own_ports_and_blocks(anvil_binary: Path, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with start_anvil(tmp_path / "a") as one, start_anvil(tmp_path / "b") as two:
        assert one.url != two.url
        await one.mine(3)
        assert (await one.rpc("eth_blockNumber"), await two.rpc("eth_blockNumber")) == ("0x3", "0x0")


def _payer() -> Any:
    from eth_account import Account

    return Account.from_key(keccak(text="payer"))
