"""Agreeing on a protocol (multistream-select 1.0.0): one side proposes, the other says the same word or `na`.

The side that answers says nothing before the other has said what it is, does not list what it speaks (`ls` is answered
`na`: a stranger who wants to know whether we speak something must name it), and hears a few proposals only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

_HEADER: Final = "/multistream/1.0.0"
_NOT_AVAILABLE: Final = "na"
TOKEN_MAX_BYTES: Final = 1024
PROPOSALS_MAX: Final = 8


class NegotiationError(Exception):
    """The other side does not speak multistream-select, or will not come to an end."""


class Channel(Protocol):
    """Bytes both ways, with as much waiting as it takes."""

    async def read_exactly(self, size_bytes: int) -> bytes: ...

    async def write(self, data: bytes) -> None: ...


def encode_token(token: str) -> bytes:
    """A word on the wire: varint of the length with the newline, the word, a newline."""
    raw = token.encode() + b"\n"
    length = len(raw)
    return (bytes([length]) if length < 0x80 else bytes([length & 0x7F | 0x80, length >> 7])) + raw


async def propose(channel: Channel, protocol: str) -> bool:
    """Ask for `protocol`; whether the other side speaks it. Raises `NegotiationError` and what the channel raises."""
    await channel.write(encode_token(_HEADER) + encode_token(protocol))
    if await _read_token(channel) != _HEADER:
        raise NegotiationError("the other side does not speak multistream-select 1.0.0")
    answer = await _read_token(channel)
    if answer not in (protocol, _NOT_AVAILABLE):
        raise NegotiationError("the other side answered neither yes nor no")
    return answer == protocol


async def answer(channel: Channel, speaks: Callable[[str], bool]) -> str:
    """Wait for a proposal that we speak, and return it. Raises `NegotiationError` and what the channel raises."""
    # A longer first word is refused on its first byte: whoever speaks HTTP or TLS to us gets an end at once.
    if await _read_token(channel, max_bytes=len(_HEADER) + 1) != _HEADER:
        raise NegotiationError("the other side does not speak multistream-select 1.0.0")
    await channel.write(encode_token(_HEADER))
    for _ in range(PROPOSALS_MAX):
        proposal = await _read_token(channel)
        if speaks(proposal):
            await channel.write(encode_token(proposal))
            return proposal
        await channel.write(encode_token(_NOT_AVAILABLE))
    raise NegotiationError(f"none of {PROPOSALS_MAX} proposals is spoken here")


async def _read_token(channel: Channel, max_bytes: int = TOKEN_MAX_BYTES) -> str:
    length = (await channel.read_exactly(1))[0]
    if length >= 0x80 and max_bytes >= 0x80:
        length = length & 0x7F | (await channel.read_exactly(1))[0] << 7
    if not 0 < length <= max_bytes:
        raise NegotiationError(f"a word has 1 to {max_bytes} bytes here")
    raw = await channel.read_exactly(length)
    if not raw.endswith(b"\n") or not raw.isascii():
        raise NegotiationError("a word is ASCII and ends in a newline")
    return raw[:-1].decode("ascii")
