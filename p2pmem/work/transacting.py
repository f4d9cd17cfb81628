"""One transaction of a job, from signing to confirmations, and again when another one took its nonce.

look      is it on the chain already? The file may be a backup from before the signing, and know of no transaction
sign-N    sign, and store before anything is sent: after a crash it is this transaction that is looked for
send-N    an outside effect: intended on disk, looked up after a crash, sent again only if it is not there
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Final

from p2pmem_jobs import Context, Happened, Looked, TransientError
from p2pmem_protocol.errors import MisuseError

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain, SignedTransaction

ATTEMPTS_MAX: Final = 8
NO_HASH: Final = bytes(32)
DEEP_ENOUGH: Final = 2**63
"""More confirmations than anybody asks for."""


@dataclass(frozen=True, slots=True)
class OnChain:
    """That it is on the chain. `transaction` is NO_HASH where it is not known which one did it."""

    block: int
    confirmations: int
    transaction: bytes = NO_HASH


async def transact(
    ctx: Context,
    chain: Chain,
    prepare: Callable[[], Awaitable[SignedTransaction]],
    found: Callable[[], Awaitable[OnChain | None]],
) -> OnChain:
    """Do something on the chain, at most once; returns when it is confirmed.

    `found` looks for what is to be done: who did it does not matter. It is asked before a transaction is signed, the
    first one too. Raises `MisuseError` when the contract refuses it, `TransientError` when others took its nonce too
    often in one run; the next run signs again.
    """
    signed = 0
    for attempt in count(1):
        if not ctx.is_done(f"sign-{attempt}"):
            before = await chain.settled(found)
            if before is not None:
                return before
            if signed == ATTEMPTS_MAX:
                break
            signed += 1
        done = await _sign_and_send(ctx, chain, prepare, attempt)
        if done is not None:
            return done
    raise TransientError(f"{ATTEMPTS_MAX} transactions were overtaken by others of the same sender")


async def _sign_and_send(
    ctx: Context, chain: Chain, prepare: Callable[[], Awaitable[SignedTransaction]], attempt: int
) -> OnChain | None:
    """None when another transaction took the nonce of this one."""
    from p2pmem.chain import transactions

    transaction: SignedTransaction | None = None

    async def sign() -> bytes:
        nonlocal transaction
        transaction = await prepare()
        return transaction.raw

    try:
        transaction = transactions.decode(await ctx.step(f"sign-{attempt}", sign, returns=bytes))
        return await _send(ctx, chain, transaction, attempt)
    except BaseException:
        # What may never be sent keeps no nonce: all that have a higher one would wait for it.
        if transaction is not None:
            chain.release(transaction)
        raise


async def _send(ctx: Context, chain: Chain, transaction: SignedTransaction, attempt: int) -> OnChain | None:
    from p2pmem.chain.seam import TransactionState

    async def send() -> bool:
        await chain.send(transaction)
        return True

    async def look_up() -> Happened[bool] | Looked:
        fact = await chain.look_up(transaction)
        # Sending the same bytes again is harmless: at most one transaction of a nonce is ever mined.
        return Looked.NOT_HAPPENED if fact.state is TransactionState.UNKNOWN else Happened(True)

    note = f"transaction 0x{transaction.hash.hex()}"
    await ctx.effect(f"send-{attempt}", send, look_up, note=note, returns=bool)
    fact = await chain.wait_confirmed(transaction)
    if fact.state is not TransactionState.MINED or fact.block is None:
        return None
    if not fact.succeeded:
        raise MisuseError(f"the contract refused {note}: look at it there")
    return OnChain(fact.block.number, fact.confirmations, transaction.hash)
