"""From a bare socket to a channel with a proven peer: multistream-select, noise, multistream-select for yamux.

Noise is py-libp2p's; it alone is offered, because its default security list lets a dialer claim any identity in plain
text. Yamux alone is offered, because the other muxer brings the whole host down with one bad frame.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
from libp2p.abc import IRawConnection
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_x25519_key_pair
from libp2p.peer.id import ID
from libp2p.security.noise.exceptions import PeerIDMismatchesPubkey
from libp2p.security.noise.io import MAX_PLAINTEXT_LENGTH, NoiseTransportReadWriter
from libp2p.security.noise.transport import PROTOCOL_ID as NOISE_PROTOCOL, Transport as NoiseTransport
from libp2p.security.secure_session import SecureSession
from p2pmem_protocol.errors import MisuseError

from p2pmem.net import libp2p_repairs, multistream, yamux
from p2pmem.net.identity import peer_id_of_ed25519
from p2pmem.net.seam import PeerId, PeerUnreachableError, WrongPeerError
from p2pmem.net.wire import Wire, WireError

if TYPE_CHECKING:
    from libp2p.crypto.keys import KeyPair

SEED_BYTES: Final = 32

libp2p_repairs.install()


class HandshakeError(Exception):
    """The other side did not prove who it is, or not in our protocols."""


class Identity:
    """Our key, and the noise transport that proves it."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise MisuseError(f"the seed of an identity has {SEED_BYTES} bytes, not {len(seed)}")
        self.key_pair: KeyPair = create_new_key_pair(seed)
        self.peer_id: PeerId = peer_id_of_ed25519(self.key_pair.public_key.to_bytes())
        # The static key of noise is new at each start; the handshake signs it with the identity.
        self.noise = NoiseTransport(self.key_pair, create_new_x25519_key_pair().private_key)


class _NoiseWire:
    """The wire with the names that py-libp2p's handshake calls. Reads are whole, so its limit of 100 never strikes."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def read(self, n: int | None = None) -> bytes:
        return await self._wire.read_exactly(n or 0)

    async def write(self, data: bytes) -> None:
        await self._wire.write(data)

    async def close(self) -> None:
        self._wire.close()

    def get_remote_address(self) -> tuple[str, int] | None:
        return None


class SecureChannel:
    """Bytes both ways with a proven peer, over noise. One task reads, another writes."""

    def __init__(self, wire: Wire, noise: NoiseTransportReadWriter, peer: PeerId) -> None:
        self.wire = wire
        self.peer = peer
        self._noise = noise
        self._buffer = bytearray()
        self._small_messages = 0

    async def receive(self) -> bytes:
        """What has arrived, at least one byte, or `b""` at the end. Raises `WireError`, `HandshakeError` if forged."""
        while True:
            if self._buffer:
                data = bytes(self._buffer)
                self._buffer.clear()
                return data
            messages = self.wire.take_messages()
            if messages:
                self._small_messages += sum(len(message) < yamux.SMALL_BYTES for message in messages)
                self._buffer += b"".join(self._decrypt(message) for message in messages)
            elif not await self.wire.fill():
                return b""

    def take_work(self) -> int:
        """How many messages came since this was asked last that are too small to pay for themselves."""
        work, self._small_messages = self._small_messages, 0
        return work

    async def read_exactly(self, size_bytes: int) -> bytes:
        while len(self._buffer) < size_bytes:
            self._buffer += self._decrypt(await self.wire.read_exactly(int.from_bytes(await self.wire.read_exactly(2))))
        data = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return data

    async def write(self, data: bytes) -> None:
        """Encrypt and send. Raises `WireError`; cancelled, the channel can only be closed."""
        out = bytearray()
        for begin in range(0, len(data), MAX_PLAINTEXT_LENGTH):
            message = self._noise.encrypt(data[begin : begin + MAX_PLAINTEXT_LENGTH])
            out += len(message).to_bytes(2) + message
        await self.wire.write(bytes(out))

    def _decrypt(self, message: bytes) -> bytes:
        try:
            return self._noise.decrypt(message)
        except Exception as error:
            # The cipher raises errors of two libraries; to us all mean that somebody wrote into the connection.
            raise HandshakeError(
                f"a message of {len(message)} bytes does not decrypt: {type(error).__name__}"
            ) from error


async def secure_inbound(wire: Wire, identity: Identity) -> SecureChannel:
    """Let the dialler prove itself. Raises `HandshakeError`, `WireError`; the caller limits the time."""
    try:
        await multistream.answer(wire, lambda proposal: proposal == NOISE_PROTOCOL)
    except multistream.NegotiationError as error:
        raise HandshakeError(str(error)) from error
    channel = await _shake_hands(wire, identity, expected=None, client=False)
    try:
        await multistream.answer(channel, lambda proposal: proposal == yamux.PROTOCOL)
    except multistream.NegotiationError as error:
        raise HandshakeError(str(error)) from error
    return channel


async def secure_outbound(wire: Wire, identity: Identity, expected: PeerId) -> SecureChannel:
    """Prove ourselves to `expected`. Raises `PeerUnreachableError`, `WrongPeerError`; the caller limits the time."""
    try:
        spoken = await multistream.propose(wire, NOISE_PROTOCOL)
        if not spoken:
            raise PeerUnreachableError(f"whoever listens at the address of {expected} does not speak noise")
        channel = await _shake_hands(wire, identity, expected=expected, client=True)
        if not await multistream.propose(channel, yamux.PROTOCOL):
            raise PeerUnreachableError(f"{expected} does not speak yamux")
    except (multistream.NegotiationError, HandshakeError, WireError) as error:
        raise PeerUnreachableError(f"no connection to {expected}: {error}") from error
    return channel


async def _shake_hands(wire: Wire, identity: Identity, *, expected: PeerId | None, client: bool) -> SecureChannel:
    raw = cast(IRawConnection, _NoiseWire(wire))
    try:
        if client:
            if expected is None:
                raise MisuseError("say whom to expect")
            session = await identity.noise.secure_outbound(raw, ID.from_string(expected))
        else:
            session = await identity.noise.secure_inbound(raw)
    except WireError:
        raise
    except PeerIDMismatchesPubkey as error:
        raise WrongPeerError(f"somebody else than {expected} answered: {error}") from error
    except Exception as error:
        # Whatever a stranger's bytes make the handshake raise is one thing to us: he did not prove himself.
        raise HandshakeError(f"noise handshake: {type(error).__name__}") from error
    if not isinstance(session, SecureSession) or not isinstance(session.conn, NoiseTransportReadWriter):
        raise HandshakeError("noise gave another kind of session than this code knows")
    peer = PeerId(str(session.get_remote_peer()))
    return SecureChannel(wire, session.conn, peer)
