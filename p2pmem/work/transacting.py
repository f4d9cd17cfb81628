"""One transaction of a job, from signing to confirmations, and again when another one took its nonce.

sign-N    sign, and store before anything is sent: after a crash it is this transaction that is looked for
send-N    an outside effect: intended on disk, looked up after a crash, sent again only if it is not there
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from p2pmem_jobs import Context, Happened, Looked, TransientError
from p2pmem_protocol.errors import MisuseError

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain, SignedTransaction

ATTEMPTS_MAX: Final = 8


async def transact(
    ctx: Context,
    chain: Chain,
    prepare: Callable[[], Awaitable[SignedTransaction]],
    found: Callable[[], Awaitable[int | None]],
) -> tuple[SignedTransaction, int]:
    """The transaction, and the block that it is confirmed in.

    `found` tells in which block somebody else has done the same, once ours can no longer be mined. Raises `MisuseError`
    when the contract refuses it, `TransientError` when others took its nonce too often.
    """
    for attempt in range(1, ATTEMPTS_MAX + 1):
        transaction = await _sign(ctx, prepare, attempt)
        block = await _send(ctx, chain, transaction, attempt)
        if block is None:
            block = await found()
        if block is not None:
            return transaction, block
    raise TransientError(f"{ATTEMPTS_MAX} transactions were overtaken by others of the same sender")


async def _sign(ctx: Context, prepare: Callable[[], Awaitable[SignedTransaction]], attempt: int) -> SignedTransaction:
    from p2pmem.chain import transactions

    async def sign() -> bytes:
        return (await prepare()).raw

    return transactions.decode(await ctx.step(f"sign-{attempt}", sign, returns=bytes))


async def _send(ctx: Context, chain: Chain, transaction: SignedTransaction, attempt: int) -> int | None:
    """The block that it is confirmed in; None when another transaction took its nonce."""
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
    return fact.block.number
