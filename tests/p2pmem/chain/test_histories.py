"""Random histories of one sender on a chain that mines late and reorganises: every effect happens exactly once."""

from __future__ import annotations

import random
from typing import Any

import pytest
import trio
from eth_utils.crypto import keccak

from p2pmem.chain import ChainRefusedError, SignedTransaction, TransactionState
from p2pmem.chain.client import EvmChain

pytestmark = pytest.mark.chain

STEPS = 40


async def live(chain: EvmChain, anvil: Any, chance: random.Random, effects: list[list[SignedTransaction]]) -> None:
    """One step of a life that nobody planned."""
    match chance.choice(["prepare", "prepare", "send", "send", "send", "raise", "mine", "mine", "reorganise", "look"]):
        case "prepare":
            root = bytes(keccak(text=f"root {len(effects)}"))
            effects.append([await chain.prepare_anchor(root, 1)])
        case "mine":
            await anvil.mine(chance.randint(1, 2))
        case "reorganise" if (await chain.head()).number > 4:
            await anvil.reorganise(chance.randint(1, 2))
        case "send" if effects:
            await chain.send(chance.choice(chance.choice(effects)))
        case "raise" if effects:
            effect = chance.choice(effects)
            effect.append(await chain.raise_fee(effect[-1]))
        case "look" if effects:
            assert (await chain.look_up(*chance.choice(effects))).state is not TransactionState.REPLACED


@pytest.mark.parametrize("seed", range(6))
async def test_every_effect_of_any_history_happens_exactly_once(on_chain: Any, chain: EvmChain, seed: int) -> None:
    print(f"seed {seed}")
    chance, effects = random.Random(seed), list[list[SignedTransaction]]()
    await on_chain.anvil.set_automine(False)
    for _ in range(STEPS):
        try:
            await live(chain, on_chain.anvil, chance, effects)
        except ChainRefusedError as error:
            # A bid below one that waits already is refused by the chain, and nothing else is.
            if "underpriced" not in str(error):
                raise

    async def mine_on() -> None:
        while True:
            await on_chain.anvil.mine()

    with trio.fail_after(60):
        async with trio.open_nursery() as miner:
            miner.start_soon(mine_on)
            for effect in effects:
                fact = await chain.wait_confirmed(*effect, confirmations=3)
                assert fact.state is TransactionState.MINED
                assert fact.succeeded
            miner.cancel_scope.cancel()
    topic = "0x" + keccak(text="Anchored(bytes32,address,uint32)").hex()
    logs = await on_chain.anvil.rpc("eth_getLogs", {"fromBlock": "0x0", "topics": [topic]})
    roots = sorted(log["topics"][1] for log in logs)
    assert roots == sorted("0x" + keccak(text=f"root {number}").hex() for number in range(len(effects)))
    assert effects
    count = await on_chain.anvil.rpc("eth_getTransactionCount", "0x" + chain.sender.hex(), "latest")
    assert int(count, 16) == len(effects)
