"""Statements that a wallet outside signs: made here, signed elsewhere, admitted here. The node never sees the key.

`prepare` keeps the statement and what is to be done once it is signed; `submit` takes the signature, checks it, and
does that. What waits is in memory alone, for an hour: nothing is acknowledged by preparing it, and a node that was
restarted prepares it again.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import check_signed_by
from p2pmem_protocol.limits import HOUR_MS
from p2pmem_protocol.names import Address, parse_hex_id

from p2pmem.face import NotFoundError
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.signing import Signing

PREPARED_MAX: Final = 1_000
PREPARED_MS: Final = HOUR_MS
AGENTS_MAX: Final = 1_000
_SETTING: Final = "agents-outside"


@dataclass(frozen=True, slots=True)
class Handed:
    """A signer that has one signature, made elsewhere, and gives it for the statement that it was made over."""

    address: Address
    digest: bytes
    signature: bytes

    def sign(self, digest: bytes) -> bytes:
        """Raises `MisuseError` for another statement: what it rests on has changed since it was prepared."""
        if digest != self.digest:
            raise MisuseError("what was signed is not what would be said now; prepare it again")
        return self.signature


@dataclass(frozen=True, slots=True)
class Statement:
    """Something to sign: its EIP-712 digest, its typed data, and what is done with the signature.

    `finish` returns the reference or the graph that it was about. `told` says in words what is signed, where a wallet
    shows hashes of it alone.
    """

    action: str
    agent: Address
    digest: bytes
    typed_data: dict[str, object]
    finish: Callable[[Handed], Awaitable[str]]
    told: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    statement: Statement
    until_ms: int


class Wallets:
    """Agents outside, and what waits for their signatures."""

    def __init__(self, ledger: Ledger, signing: Signing) -> None:
        self._ledger = ledger
        self._signing = signing
        self._waiting: dict[bytes, Waiting] = {}
        stored = ledger.get_setting(_SETTING)
        for address, label in json.loads(stored or "{}").items():
            signing.outside[Address.parse(address)] = label

    async def add(self, agent: Address, label: str) -> None:
        """Speak for `agent` from now on, also after a restart. One that is known gets another label."""
        if self._signing.holds(agent):
            raise MisuseError(f"this node holds the key of {agent}; it needs no wallet outside")
        outside = self._signing.outside
        if len(outside) >= AGENTS_MAX and agent not in outside:
            raise MisuseError(f"at most {AGENTS_MAX} agents speak through one node")
        after = {**outside, agent: label}
        await self._ledger.set_setting(_SETTING, json.dumps({str(each): name for each, name in after.items()}))
        outside[agent] = label
        self._ledger.wake()

    def check(self, agent: Address) -> None:
        """Raises `MisuseError` unless `agent` is one of those outside."""
        if agent not in self._signing.outside:
            raise MisuseError(f"{agent} is not known here as an agent with a wallet outside: `p2pmem agent add` it")

    def keep(self, statement: Statement) -> Waiting:
        """Let it wait for its signature. The oldest goes where there are too many."""
        now_ms = self._ledger.clock.now_ms()
        for digest in [digest for digest, it in self._waiting.items() if it.until_ms <= now_ms]:
            del self._waiting[digest]
        while len(self._waiting) >= PREPARED_MAX:
            del self._waiting[next(iter(self._waiting))]
        waiting = Waiting(statement, now_ms + PREPARED_MS)
        self._waiting[statement.digest] = waiting
        return waiting

    async def submit(self, id_: str, signature: str) -> tuple[Statement, str]:
        """Take a signature; returns what was signed and what it was about.

        Raises `NotFoundError` when nothing of that id waits, `RefusedError` for a signature that is none or somebody
        else's; then it still waits.
        """
        waiting = self._waiting.get(parse_hex_id(id_))
        if waiting is None or waiting.until_ms <= self._ledger.clock.now_ms():
            raise NotFoundError("nothing of that id waits for a signature; prepare it again")
        statement = waiting.statement
        raw = _signature(signature)
        check_signed_by(statement.agent, statement.digest, raw)
        about = await statement.finish(Handed(statement.agent, statement.digest, raw))
        self._waiting.pop(statement.digest, None)
        return statement, about


def _signature(text: str) -> bytes:
    """65 bytes of a wallet. Wallets that write v as 0 or 1 are understood; the bytes that are kept have 27 or 28."""
    try:
        raw = bytes.fromhex(text.removeprefix("0x"))
    except ValueError:
        raw = b""
    if len(raw) != 65:
        raise MisuseError("a signature is 65 bytes, r, s and v, in hexadecimal")
    return raw[:64] + bytes([raw[64] + 27]) if raw[64] in (0, 1) else raw
