"""GossipSub 1.1 for open groups: py-libp2p's router, behind walls of our own.

py-libp2p's `Pubsub` and `GossipSub` expect a host; `GossipHost` is one, so gossip runs over the in-memory network as
over the real one. `SafePubsub` replaces what a stranger could hurt:

* one RPC is read, checked and handled at a time per peer; whatever it makes the router raise resets that stream only;
* what may not be said to a peer (`MaySpeak`) leaves in no RPC, and what it says of it is not heard: subscriptions,
  GRAFT, IHAVE, PRUNE and content go through one filter each way;
* signatures are those of Ed25519 keys; a message is validated once, however many peers bring it at the same time;
* what a peer asks for by id it is given once, however often it asks (`gossip_told`);
* `IGNORE` blames nobody (py-libp2p punishes whoever passed a message on).

If the router fails all the same, it is started anew with the same topics.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p.abc import IHost, INetStream
from libp2p.custom_types import TProtocol
from libp2p.network.stream.exceptions import StreamClosed
from libp2p.peer.id import ID
from libp2p.pubsub.gossipsub import GossipSub
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.pubsub import Pubsub
from libp2p.pubsub.validators import signature_validator
from libp2p.tools.anyio_service import background_trio_service
from p2pmem_protocol.errors import MisuseError, OutsideError, Reason, RefusedError

from p2pmem.net import libp2p_repairs
from p2pmem.net.background import background_nursery
from p2pmem.net.framing import FrameReader, encode_length
from p2pmem.net.gossip_host import Connected, GossipHost, GossipStream
from p2pmem.net.gossip_told import Told
from p2pmem.net.limits import GossipLimits
from p2pmem.net.pace import Pace
from p2pmem.net.seam import Network, PeerEventKind, PeerId, Stream, StreamClosedError
from p2pmem.net.secure import Identity
from p2pmem.net.topics import (
    TOPIC_DATA_MAX_BYTES,
    TOPICS_MAX,
    Blame,
    MaySpeak,
    Receiver,
    Verdict,
    check_topic,
)

libp2p_repairs.install_gossip()

log = logging.getLogger(__name__)

MESHSUB: Final = "/meshsub/1.1.0"
IDENTIFY: Final = "/ipfs/id/1.0.0"
RESTART_PAUSE_S: Final = 0.5
RETRY_PAUSE_S: Final = 1.0
RPCS_OF_ONE_MESSAGE: Final = 4
"""To check a new message, with its author's signature, takes as long as so many RPCs."""
RPCS_OF_ONE_JOIN: Final = 12
"""The same of somebody who joins a topic, where all places are taken: each task costs what all others are."""
ENTRIES_OF_ONE_RPC: Final = 32
"""So many entries, or ids in them, take as long as another RPC."""
BYTES_OF_ONE_RPC: Final = 4 * 1024
"""The same of bytes beside the content of messages: what is read and not used, too, a field that nobody knows or half a
million peers of two bytes in a PRUNE, takes up to 14 ns a byte. Content takes a fifth of one."""
_ED25519_ID: Final = bytes.fromhex("002408011220")


class _Nothing(defaultdict[ID, list[tuple[float, rpc_pb2.RPC]]]):
    """In place of what the router keeps for peers whose stream does not stand yet, by any number of strangers: with a
    limit of 0 it keeps all of it (`queue[-0:]`), for a minute, and looks through it for each message."""

    def __missing__(self, key: ID) -> list[tuple[float, rpc_pb2.RPC]]:
        return []


class SafePubsub(Pubsub):
    """py-libp2p's pubsub with everything a peer sends checked before it is believed; see the module."""

    def __init__(
        self,
        host: GossipHost,
        router: GossipSub,
        receivers: dict[str, Receiver],
        may_speak: MaySpeak,
        blame: Blame,
        limits: GossipLimits,
    ) -> None:
        super().__init__(cast(IHost, host), router, strict_signing=True)
        self._limits = limits
        # One that counts from the start second is behind itself after a restart at more than a message a second.
        self.counter = time.time_ns()
        self._receivers = receivers
        self._may_speak = may_speak
        self._blame = blame
        self._validating: set[bytes] = set()
        self._told = Told()
        self._inbound: set[Stream] = set()
        host.on_opened = lambda stream: self.manager.run_task(self._watch, stream.peer_id, stream)
        self._account_of, self._refuse = host.account_of, host.refuse
        self._pace = Pace(
            host.address_of,
            limits.rpcs_per_address_per_minute,
            limits.addresses_max,
            graphs_of=host.accounts_beside,
            graph_per_minute=limits.rpcs_per_graph_per_minute,
        )
        self._announcing: dict[ID, trio.Lock] = {}

    def get_hello_packet(self) -> rpc_pb2.RPC:
        """Nothing: at this point it is not known to whom. `announce` follows."""
        return rpc_pb2.RPC()

    async def announce(self, peer_id: ID) -> None:
        """Make sure a stream to the peer stands, and tell it our topics."""
        lock = self._announcing.setdefault(peer_id, trio.Lock())
        try:
            async with lock:
                await self._announce(peer_id)
        finally:
            # Also where the peer is gone already: whoever comes under ever new ids leaves nothing here.
            waiting = lock.statistics()
            if not waiting.locked and not waiting.tasks_waiting:
                self._announcing.pop(peer_id, None)

    async def _announce(self, peer_id: ID) -> None:
        await self._handle_new_peer(peer_id)
        stream = self.peers.get(peer_id)
        if stream is None:
            return
        rpc = rpc_pb2.RPC()
        for topic in self.topic_ids:
            rpc.subscriptions.add(subscribe=True, topicid=topic)
        await self.write_msg(stream, rpc)

    async def _watch(self, peer_id: ID, stream: INetStream) -> None:
        """Notice the end of a stream on which the peer has nothing to say, and give it up then, or with pubsub."""
        seam = cast(GossipStream, stream).seam
        try:
            while await seam.receive_some():
                pass
        except StreamClosedError:
            pass
        finally:
            await seam.reset()
        if self.peers.get(peer_id) is stream:
            self._handle_dead_peer(peer_id)

    async def _peer_stream_retry_task(self, peer_id: ID) -> None:
        """The peer's stream ended and its connection stands: say everything again, after a pause."""
        try:
            await trio.sleep(RETRY_PAUSE_S)
            await self.announce(peer_id)
        except (OutsideError, StreamClosed) as error:
            log.debug("net.gossip.not_announced", extra={"peer": str(peer_id), "error": str(error)})
        finally:
            self._peer_stream_retries_pending.discard(peer_id)

    async def _greet(self, peer_id: ID) -> None:
        try:
            await self.announce(peer_id)
        except (OutsideError, StreamClosed) as error:
            log.debug("net.gossip.not_announced", extra={"peer": str(peer_id), "error": str(error)})

    async def close_streams(self) -> None:
        """End what peers say to a pubsub that is no more, so that they begin anew."""
        for stream in tuple(self._inbound):
            await stream.reset()

    async def push_msg(self, msg_forwarder: ID, msg: rpc_pb2.Message) -> None:
        """Our own message: to the mesh, and to everybody else who joined, because a mesh may not have formed yet."""
        self._mark_msg_seen(msg)
        await self.router.publish(msg_forwarder, msg)
        topic = msg.topicIDs[0]
        rpc = rpc_pb2.RPC(publish=[msg])
        for peer_id in self.peer_topics.get(topic, set()) - self.mesh(topic):
            if peer_id in self.peer_queues:
                self.peer_queues[peer_id].push(rpc)

    def mesh(self, topic: str) -> set[ID]:
        return set(cast(GossipSub, self.router).mesh.get(topic, ()))

    async def write_msg(self, stream: INetStream, rpc_msg: rpc_pb2.RPC) -> bool:
        """The one way out: what may not be said to this peer is left out."""
        peer = PeerId(str(stream.muxed_conn.peer_id))
        rpc = rpc_pb2.RPC()
        rpc.CopyFrom(rpc_msg)  # others are sent the same one
        _leave_out(rpc, lambda topic: self._may_speak(peer, topic))
        if not rpc.ByteSize():
            return True
        raw = rpc.SerializeToString()
        try:
            await stream.write(encode_length(len(raw)) + raw)
        except StreamClosed:
            self._handle_dead_peer(stream.muxed_conn.peer_id)
            return False
        return True

    async def continuously_read_stream(self, stream: INetStream) -> None:
        """Read a peer's RPCs until it ends or breaks the rules."""
        seam = cast(GossipStream, stream).seam
        if sum(it.peer == seam.peer for it in self._inbound) >= self._limits.streams_per_peer_max:
            self._refuse("net.gossip.refused", "gossip-streams", seam.peer)
            await seam.reset()
            return
        reader = FrameReader(seam, frame_max_bytes=self._limits.rpc_max_bytes)
        self._inbound.add(seam)
        peer_id = ID.from_string(seam.peer)
        if peer_id not in self.peers:
            # When it was told of our topics it did not gossip yet; now it does.
            self.manager.run_task(self._greet, peer_id)
        try:
            await reader.each(partial(self._take_rpc, seam.peer))
        except StreamClosedError:
            log.debug("net.gossip.stream_ended", extra={"peer": seam.peer})
        except RefusedError as error:
            self._blame(seam.peer, str(error))
            await seam.reset()
        except Exception as error:
            # Protobuf, keys and the router raise whatever they like on a stranger's bytes.
            self._blame(seam.peer, f"an RPC that cannot be handled: {type(error).__name__}")
            await seam.reset()
        finally:
            self._inbound.discard(seam)

    async def _take_rpc(self, peer: PeerId, raw: bytes) -> bool:
        """When its turn comes. True: the next may come."""
        await self._pace.turn(self._account_of(peer), peer)
        rpc = rpc_pb2.RPC.FromString(raw)
        if not _within_limits(rpc, self._limits):
            raise ValueError("more entries in an RPC than allowed")
        beside_content = len(raw) - sum(len(it.data) for it in rpc.publish)
        work = max(_entries(rpc) // ENTRIES_OF_ONE_RPC, beside_content // BYTES_OF_ONE_RPC)
        _leave_out(rpc, lambda topic: topic in self._receivers and self._may_speak(peer, topic))
        peer_id = ID.from_string(peer)
        # Of each topic its last word: each time that somebody joins starts three tasks, and each looks at all others.
        said = {it.topicid: it for it in rpc.subscriptions}.values()
        joins = sum(it.subscribe and peer_id not in self.peer_topics.get(it.topicid, ()) for it in said)
        if work := work + RPCS_OF_ONE_JOIN * joins:
            self._pace.owe(self._account_of(peer), peer, work)
        for subscription in said:
            self.handle_subscription(peer_id, subscription)
        for message in rpc.publish:
            await self._take_message(peer, peer_id, message)
        if rpc.HasField("control"):
            self._told.leave_first_asks(peer, rpc, self._holds)
            await self.router.handle_rpc(rpc, peer_id)
        return True

    def _holds(self, message_id: bytes) -> bool:
        return cast(GossipSub, self.router).mcache.get(message_id) is not None

    async def _take_message(self, peer: PeerId, peer_id: ID, message: rpc_pb2.Message) -> None:
        """Raises `RefusedError` for one that its giver is to blame for. What else is in the RPC is not looked at then:
        a thousand faults in one would close his whole address to strangers."""
        message_id = self._msg_id_constructor(message)
        if self._is_msg_seen(message) or message_id in self._validating or message.from_id == self.my_id.to_bytes():
            return
        self._validating.add(message_id)
        self._pace.owe(self._account_of(peer), peer, RPCS_OF_ONE_MESSAGE)
        try:
            if not _has_ed25519_author(message) or not signature_validator(message):
                raise RefusedError(Reason.BAD_SIGNATURE, "a message that is not signed by its author")
            verdict = await self._ask_receiver(peer, message)
            self._mark_msg_seen(message)
            if verdict is Verdict.REJECT:
                raise RefusedError(Reason.BAD_FRAME, "a message that its topic rejects")
            if verdict is Verdict.ACCEPT:
                await self.router.publish(peer_id, message)
        finally:
            self._validating.discard(message_id)

    async def _ask_receiver(self, peer: PeerId, message: rpc_pb2.Message) -> Verdict:
        receiver = self._receivers.get(message.topicIDs[0])
        if receiver is None or len(message.data) > TOPIC_DATA_MAX_BYTES:
            return Verdict.IGNORE
        with trio.move_on_after(self._limits.receive_timeout_s):
            try:
                return await receiver(peer, message.data)
            except Exception:
                log.exception("net.gossip.receiver_failed", extra={"topic": message.topicIDs[0], "peer": peer})
        return Verdict.IGNORE

    def notify_subscriptions(self, publish_message: rpc_pb2.Message) -> None:
        """Receivers were asked already; nobody reads py-libp2p's own channels, which drop silently."""


class GossipTopics:
    """Implements `topics.Topics` with GossipSub. Made and entered by `open_gossip`."""

    def __init__(
        self, network: Network, identity: Identity, may_speak: MaySpeak, blame: Blame, limits: GossipLimits
    ) -> None:
        self._limits = limits
        self._network = network
        self._identity = identity
        self._may_speak = may_speak
        self._blame = blame
        self._receivers: dict[str, Receiver] = {}
        self._pubsub: SafePubsub | None = None
        self._ready = trio.Event()
        self._telling: trio.Nursery | None = None
        self.restarts = 0

    async def subscribe(self, topic: str, receiver: Receiver) -> None:
        check_topic(topic)
        if topic not in self._receivers and len(self._receivers) >= TOPICS_MAX:
            raise MisuseError(f"{TOPICS_MAX} topics are joined already: leave one first")
        self._receivers[topic] = receiver
        pubsub = await self._running()
        await pubsub.subscribe(topic)
        for peer in self._network.connected():
            if self._may_speak(peer, topic):
                self._tell(peer)

    async def unsubscribe(self, topic: str) -> None:
        if self._receivers.pop(topic, None) is not None:
            await (await self._running()).unsubscribe(topic)

    async def publish(self, topic: str, data: bytes) -> None:
        if topic not in self._receivers:
            raise MisuseError(f"topic {topic[:80]!r} is not joined: subscribe first")
        if len(data) > TOPIC_DATA_MAX_BYTES:
            raise MisuseError(f"{len(data)} bytes are more than the {TOPIC_DATA_MAX_BYTES} a topic carries")
        await (await self._running()).publish(topic, data)

    async def announce(self, peer: PeerId) -> None:
        if any(self._may_speak(peer, topic) for topic in self._receivers):
            try:
                await (await self._running()).announce(ID.from_string(peer))
            except (OutsideError, StreamClosed) as error:
                log.debug("net.gossip.not_announced", extra={"peer": peer, "error": str(error)})

    def _tell(self, peer: PeerId) -> None:
        """Announce to a peer beside everything else: one that does not answer takes `open_stream_timeout_s`."""
        if self._telling is not None:  # who has failed tells everybody when it begins anew
            self._telling.start_soon(self.announce, peer)

    def peers(self, topic: str) -> frozenset[PeerId]:
        known = self._pubsub.peer_topics.get(topic, set()) if self._pubsub is not None else set()
        return frozenset(PeerId(str(peer_id)) for peer_id in known)

    def neighbours(self, topic: str) -> frozenset[PeerId]:
        """With whom messages of `topic` are exchanged whole, both ways: the mesh."""
        return frozenset(PeerId(str(peer)) for peer in self._pubsub.mesh(topic)) if self._pubsub else frozenset()

    async def keep_running(self) -> None:
        """Run the router, and run it again if it fails."""
        while True:
            try:
                await self._run()
            except* Exception:  # and not what cancels us at the same time
                log.exception("net.gossip.restarted")
            self.restarts += 1
            self._ready = trio.Event()
            await trio.sleep(RESTART_PAUSE_S)

    async def _running(self) -> SafePubsub:
        while self._pubsub is None or not self._ready.is_set():
            await self._ready.wait()
        return self._pubsub

    async def _run(self) -> None:
        host = GossipHost(self._network, self._identity)
        router = GossipSub(
            protocols=[TProtocol(MESHSUB)],
            degree=6,
            degree_low=4,
            degree_high=12,
            heartbeat_initial_delay=0.2,
            heartbeat_interval=1,
            do_px=False,
            # These count our own publishing against us, adapt to noise, and want addresses we do not give.
            spam_protection_enabled=False,
            adaptive_gossip_enabled=False,
            eclipse_protection_enabled=False,
        )
        router._pending_messages = _Nothing(list)
        pubsub = SafePubsub(host, router, self._receivers, self._may_speak, self._blame, self._limits)
        async with background_trio_service(pubsub), background_trio_service(router), trio.open_nursery() as telling:
            try:
                await pubsub.wait_until_ready()
                for topic in self._receivers:
                    await pubsub.subscribe(topic)
                self._pubsub, self._telling = pubsub, telling
                self._ready.set()
                await self._follow(host)
            finally:
                self._telling = None
                with trio.CancelScope(shield=True):
                    await pubsub.close_streams()

    async def _follow(self, host: GossipHost) -> None:
        """Tell pubsub who comes and goes, as long as the network lives."""
        while True:
            async for event in self._network.peer_events():
                if event.kind is PeerEventKind.CONNECTED:
                    self._tell(event.peer)
                else:
                    for notifee in host.notifees:
                        await notifee.disconnected(None, Connected(ID.from_string(event.peer)))
            await trio.sleep(RESTART_PAUSE_S)


@asynccontextmanager
async def open_gossip(
    network: Network,
    blame: Blame = lambda peer, why: None,
    *,
    identity_seed: bytes,
    may_speak: MaySpeak = lambda peer, topic: True,
    limits: GossipLimits | None = None,
) -> AsyncIterator[GossipTopics]:
    """Gossip over `network`, under the identity of a 32-byte Ed25519 seed (that of the network, if it has one).

    A peer of another implementation asks who we are (identify) before it gossips: it is told our key and that we speak
    GossipSub, and nothing else.
    """
    identity = Identity(identity_seed)
    topics = GossipTopics(network, identity, may_speak, blame, limits or GossipLimits())

    async def identify(stream: Stream) -> None:
        # Identify message: publicKey (1) and protocols (3), each with its length.
        key = identity.key_pair.public_key.serialize()
        message = b"\x0a" + bytes([len(key)]) + key + b"\x1a" + bytes([len(MESHSUB)]) + MESHSUB.encode()
        await stream.send_all(encode_length(len(message)) + message)

    network.set_handler(IDENTIFY, identify)
    try:
        async with background_nursery() as nursery:
            nursery.start_soon(topics.keep_running)
            yield topics
    finally:
        network.remove_handler(IDENTIFY)
        network.remove_handler(MESHSUB)


def _has_ed25519_author(message: rpc_pb2.Message) -> bool:
    """Whether the author's key is in its id, so that no other key needs to be parsed, and none is sent that differs."""
    author = bytes(message.from_id)
    return len(author) == 38 and author.startswith(_ED25519_ID) and message.key in (b"", author[2:])


def _within_limits(rpc: rpc_pb2.RPC, limits: GossipLimits) -> bool:
    control = rpc.control
    entries = (control.ihave, control.iwant, control.graft, control.prune, control.idontwant)
    return (
        len(rpc.subscriptions) <= limits.subscriptions_per_rpc_max
        and len(rpc.publish) <= limits.messages_per_rpc_max
        and all(len(some) <= limits.controls_per_rpc_max for some in entries)
        and all(len(one.messageIDs) <= limits.ids_per_control_max for some in entries[:2] for one in some)
    )


def _entries(rpc: rpc_pb2.RPC) -> int:
    control = rpc.control
    asked = sum(1 + len(one.messageIDs) for some in (control.ihave, control.iwant) for one in some)
    return len(rpc.publish) + len(rpc.subscriptions) + len(control.graft) + len(control.prune) + asked


def _leave_out(rpc: rpc_pb2.RPC, allowed: Callable[[str], bool]) -> None:
    """Remove all that names a topic which is not allowed, and all that this node does not use."""
    rpc.ClearField("senderRecord")
    _keep(rpc.subscriptions, lambda one: allowed(one.topicid))
    _keep(rpc.publish, lambda one: len(one.topicIDs) == 1 and allowed(one.topicIDs[0]))
    if rpc.HasField("control"):
        control = rpc.control
        for name in ("ihave", "graft", "prune"):
            _keep(getattr(control, name), lambda one: allowed(one.topicID))
        for prune in control.prune:
            prune.ClearField("peers")
        control.ClearField("idontwant")
        if not control.ByteSize():
            rpc.ClearField("control")


def _keep(entries: Any, wanted: Callable[[Any], bool]) -> None:
    kept = [entry for entry in entries if wanted(entry)]
    if len(kept) != len(entries):
        del entries[:]
        entries.extend(kept)


if TYPE_CHECKING:
    from p2pmem.net.topics import Topics

    def _keeps_the_interface(topics: GossipTopics) -> Topics:
        return topics
