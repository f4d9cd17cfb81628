"""hello: how two peers that have proven who they are learn what they may tell each other.

The secure channel has proven the peer ids. On a new member stream, in this order:

    opener -> listener   Greeting    network, protocol version, known kinds, limits, clock
    listener -> opener   Greeting    the same
    opener -> listener   Proof       the agents that it speaks for: credentials, and delegations of principals
    listener -> opener   Proof       only of those of its own agents that share a context graph with the opener's
                                     ... or it closes, when there are none

A stranger so learns no name, no graph and no count, and cannot tell who knows him not from who is in no graph at all.
Everything must be done within `HELLO_MS_MAX`. What follows is frames.

`may_speak` is the judgement about a greeting; `Proof.check` that about a proof. Both are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import SignedActFor, SignedCarry
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.fields import Reader
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import (
    CONTENT_BYTES_MAX,
    FUTURE_MS_MAX,
    ITEM_BYTES_MAX,
    SECOND_MS,
    TIME_MS_MAX,
    UINT32_MAX,
    UINT64_MAX,
)
from p2pmem_protocol.names import Address, NetworkId

PROTOCOL_VERSION: Final = 2
HELLO_MS_MAX: Final = 5 * SECOND_MS
HELLO_BYTES_MAX: Final = 64 * 1024
AGENTS_MAX: Final = 64
KINDS_MAX: Final = 256

MEMBER_PROTOCOL: Final = "/p2pmem/member/2"
SYNC_PROTOCOL: Final = "/p2pmem/sync/2"
JOIN_PROTOCOL: Final = "/p2pmem/join/2"
RELAY_PROTOCOL: Final = "/p2pmem/join-for/2"


@dataclass(frozen=True, slots=True)
class Greeting:
    """What any peer may know: which network, which words are understood, and what time it is here."""

    network: NetworkId
    version: int
    kinds: frozenset[int]
    item_bytes_max: int
    content_bytes_max: int
    clock_ms: int

    @classmethod
    def ours(cls, network: NetworkId, clock_ms: int) -> Greeting:
        return cls(
            network,
            PROTOCOL_VERSION,
            frozenset(int(kind) for kind in Kind),
            ITEM_BYTES_MAX,
            CONTENT_BYTES_MAX,
            clock_ms,
        )

    def encode(self) -> bytes:
        kinds: list[Value] = [*sorted(self.kinds)]
        return cbor.encode(
            {
                0: self.network,
                1: self.version,
                2: kinds,
                3: self.item_bytes_max,
                4: self.content_bytes_max,
                5: self.clock_ms,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Greeting:
        reader = Reader(cbor.decode(data, limit_bytes=HELLO_BYTES_MAX), "a greeting")
        network = NetworkId(reader.hash(0))
        version = reader.uint(1, UINT32_MAX, 1)
        kinds = reader.ascending_uints(2, KINDS_MAX, UINT32_MAX)
        greeting = cls(
            network,
            version,
            frozenset(kinds),
            reader.uint(3, UINT64_MAX),
            reader.uint(4, UINT64_MAX),
            reader.uint(5, TIME_MS_MAX),
        )
        reader.end()
        return greeting


def may_speak(ours: Greeting, theirs: Greeting) -> None:
    """Raises `RefusedError` when the two can have nothing to say to each other.

    A clock that is more than five minutes away is no reason to end here: members must be able to see it in `status`.
    It is a reason not to reconcile (rule R2); see `clocks_agree`.
    """
    if theirs.network != ours.network:
        raise RefusedError(Reason.WRONG_NETWORK, "the peer belongs to another network")
    if theirs.version != ours.version:
        raise RefusedError(
            Reason.BAD_VERSION, f"the peer speaks version {theirs.version} of the protocol, we speak {ours.version}"
        )


def clocks_agree(ours_ms: int, theirs_ms: int) -> bool:
    """Whether two clocks are close enough to reconcile."""
    return abs(ours_ms - theirs_ms) <= FUTURE_MS_MAX


@dataclass(frozen=True, slots=True)
class Proof:
    """The agents that a peer speaks for, and the principals that these act for."""

    credentials: tuple[SignedCarry, ...]
    delegations: tuple[SignedActFor, ...] = ()

    def encode(self) -> bytes:
        acting: list[Value] = [[bytes(it.delegation.agent), it.to_value()] for it in self.delegations]
        shown: list[Value] = [it.to_value() for it in self.credentials]
        return cbor.encode({0: shown, 1: acting})

    @classmethod
    def decode(cls, data: bytes, network: NetworkId, peer: str) -> Proof:
        """`peer` is whom the secure channel proved: a credential of another peer fails in `check`."""
        reader = Reader(cbor.decode(data, limit_bytes=HELLO_BYTES_MAX), "a proof")
        credentials = tuple(SignedCarry.from_value(value, network, peer) for value in reader.items(0, AGENTS_MAX, 1))
        delegations = tuple(_acting(value, network) for value in reader.items(1, AGENTS_MAX))
        reader.end()
        return cls(credentials, delegations)

    def check(self, now_ms: int) -> Speakers:
        """Who stands behind the peer. Raises `RefusedError` when a credential or delegation does not hold."""
        for credential in self.credentials:
            credential.check(now_ms)
        agents = {credential.carry.agent: credential.carry for credential in self.credentials}
        for acting in self.delegations:
            if acting.delegation.agent not in agents:
                raise RefusedError(Reason.BAD_FIELD, "a delegation for an agent that the peer does not carry")
            acting.check()
        return Speakers(
            tuple(
                Speaker(carry.agent, carry.serial, carry.until_ms, _principals(self.delegations, carry.agent))
                for carry in agents.values()
            )
        )


@dataclass(frozen=True, slots=True)
class Speaker:
    """An agent behind a peer; the credential's serial and end; (principal, serial) of what it acts for."""

    agent: Address
    serial: int
    until_ms: int
    principals: tuple[tuple[Address, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Speakers:
    """Everybody behind one peer."""

    speakers: tuple[Speaker, ...]

    def names_at(self, now_ms: int) -> frozenset[Address]:
        """Agents and principals whose membership the peer may use, as long as the credentials last."""
        lasting = [speaker for speaker in self.speakers if now_ms < speaker.until_ms]
        return frozenset(
            name for speaker in lasting for name in (speaker.agent, *(principal for principal, _ in speaker.principals))
        )


def _acting(value: Value, network: NetworkId) -> SignedActFor:
    reader = Reader.of_list(value, 2, "an agent with what it acts under")
    return SignedActFor.from_value(reader.nested(1), network, reader.address(0))


def _principals(delegations: tuple[SignedActFor, ...], agent: Address) -> tuple[tuple[Address, int], ...]:
    return tuple(
        (acting.delegation.principal, acting.delegation.serial)
        for acting in delegations
        if acting.delegation.agent == agent
    )
