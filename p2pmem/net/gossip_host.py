"""What py-libp2p's pubsub expects to be given: a host, its streams and its connections, made of a `seam.Network`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p.abc import INetStream
from libp2p.crypto.keys import PrivateKey, PublicKey
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF
from libp2p.peer.id import ID

from p2pmem.net.seam import Network, PeerId, Stream, StreamClosedError
from p2pmem.net.secure import Identity


class GossipStream:
    """A stream of the seam under the names that py-libp2p calls."""

    metric_send_channel = None

    def __init__(self, stream: Stream) -> None:
        self.seam = stream
        self.peer_id = ID.from_string(stream.peer)
        self.muxed_conn = self
        self._writing = trio.Lock()

    def get_protocol(self) -> str:
        return self.seam.protocol

    async def read(self, n: int | None = None) -> bytes:
        try:
            data = await self.seam.receive_some(n or 65_536)
        except StreamClosedError as error:
            raise StreamClosed(str(error)) from error
        if not data:
            raise StreamEOF("the peer ended the stream")
        return data

    async def write(self, data: bytes) -> None:
        async with self._writing:
            try:
                await self.seam.send_all(data)
            except StreamClosedError as error:
                await self.seam.reset()  # pubsub forgets it, and what has arrived on it would be unread for ever
                raise StreamClosed(str(error)) from error

    async def close(self) -> None:
        await self.seam.aclose()

    async def reset(self) -> None:
        await self.seam.reset()


class Connected:
    """What py-libp2p wants to see of a connection: whose it is, and that it stands."""

    is_closed = False

    def __init__(self, peer_id: ID) -> None:
        self.peer_id = peer_id
        self.muxed_conn = self


class GossipHost:
    """As much of a py-libp2p host (and of its network) as pubsub calls."""

    def __init__(self, network: Network, identity: Identity) -> None:
        self._network = network
        self.address_of, self.refuse = network.address_of, network.refuse
        self.account_of, self.accounts_beside = network.account_of, network.accounts_beside
        self._identity = identity
        self.notifees: list[Any] = []
        self.on_opened: Callable[[GossipStream], object] = lambda stream: None
        """Told of each stream that is opened, before pubsub says anything on it, or fails to."""

    def get_id(self) -> ID:
        return ID.from_string(self._identity.peer_id)

    def get_private_key(self) -> PrivateKey:
        return self._identity.key_pair.private_key

    def get_public_key(self) -> PublicKey:
        return self._identity.key_pair.public_key

    def get_network(self) -> GossipHost:
        return self

    def register_notifee(self, notifee: object) -> None:
        self.notifees.append(notifee)

    def get_connections(self, peer_id: ID) -> list[Connected]:
        return [Connected(peer_id)] if PeerId(str(peer_id)) in self._network.connected() else []

    def set_stream_handler(self, protocol: TProtocol, handler: Callable[[INetStream], Awaitable[None]]) -> None:
        async def serve(stream: Stream) -> None:
            await handler(cast(INetStream, GossipStream(stream)))

        self._network.set_handler(protocol, serve)

    async def new_stream(self, peer_id: ID, protocols: list[TProtocol]) -> GossipStream:
        # What it raises is none of py-libp2p's own errors, so that pubsub does not try again and again by itself.
        stream = GossipStream(await self._network.open_stream(PeerId(str(peer_id)), protocols[0]))
        self.on_opened(stream)
        return stream

    async def connect(self, peer_info: object) -> None:
        """Peers that strangers recommend are not dialled."""
