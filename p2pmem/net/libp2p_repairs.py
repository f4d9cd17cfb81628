"""What of py-libp2p 0.8.1 is changed in place, all of it, with the reason at each line.

Little is left to change, because what was found broken is not used: connections are kept by our own `connection` and
`libp2p_host` (its swarm never gives an inbound slot back, authenticates plaintext dialers by default, remembers failed
dials for a minute and leaves its listener open), streams by our own `yamux` (its window is not enforced, a cancelled
write destroys the connection, a stream nobody accepts stops all others), and words are agreed on by `multistream` (its
`ls` tells a stranger all we speak). `tests/upstream` reproduces most of it. From py-libp2p come the noise
handshake with its keys and identities, and GossipSub.
"""

from __future__ import annotations

import logging
from functools import partial
from types import ModuleType

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
import trio
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.crypto.keys import KeyType, PublicKey
from libp2p.crypto.pb import crypto_pb2
from libp2p.security.noise import messages as noise_messages
from p2pmem_protocol.errors import BugError

_ED25519_KEY_PROTOBUF_BYTES = 36
_QUEUED_RPCS_MAX = 256
_RPC_MAX_BYTES = 1 << 20
_SEEN_MAX = 65_536


class BoundedSeen:
    """Ids of messages seen in the last two minutes, on trio's clock; the oldest go first when there are too many."""

    def __init__(self, ttl: int, sweep_interval: int = 60) -> None:
        self._ttl_s = ttl
        self._until: dict[bytes, float] = {}

    def add(self, key: bytes) -> bool:
        if self.has(key):
            return False
        now = trio.current_time()
        while self._until and (len(self._until) >= _SEEN_MAX or next(iter(self._until.values())) <= now):
            del self._until[next(iter(self._until))]
        self._until[key] = now + self._ttl_s
        return True

    def has(self, key: bytes) -> bool:
        until = self._until.get(key)
        return until is not None and until > trio.current_time()

    def length(self) -> int:
        return len(self._until)

    def stop(self) -> None:
        """There is no thread to stop."""


def _deserialize_ed25519_only(data: bytes) -> PublicKey:
    """The identity in a noise handshake, if it is an Ed25519 key."""
    if len(data) != _ED25519_KEY_PROTOBUF_BYTES:
        raise ValueError("an identity is an Ed25519 key of 36 bytes in its protobuf form")
    message = crypto_pb2.PublicKey.FromString(data)
    if message.key_type != KeyType.Ed25519.value or len(message.data) != 32:
        raise ValueError("an identity is an Ed25519 key")
    return Ed25519PublicKey.from_bytes(message.data)


def _replace(module: ModuleType, name: str, replacement: object) -> None:
    """Put `replacement` in the place of a name that has to be there: an upgrade that moves it is noticed at once."""
    if not hasattr(module, name):
        raise BugError(f"{module.__name__}.{name} is not there: this is not the py-libp2p that is repaired here")
    setattr(module, name, replacement)


def install() -> None:
    """Make the changes to the noise handshake. Again is allowed."""
    # A stranger chooses the kind of key in his handshake. RSA of any size, ECDSA (through fastecdsa, C code over
    # attacker's points) and secp256k1 would all be parsed and verified before anybody asks whether we want them; and a
    # peer id of another kind does not hold its key, which `identity` relies on.
    _replace(noise_messages, "deserialize_public_key", _deserialize_ed25519_only)


def install_gossip() -> None:
    """Make the changes to GossipSub, which is imported here and not before: few nodes use it. Again is allowed."""
    from libp2p.pubsub import gossipsub, pubsub
    from libp2p.pubsub.rpc_queue import RpcQueue

    # Every RPC would carry a signed list of our addresses, sign it anew and verify the peer's: a third of the CPU of
    # small messages, and addresses told to strangers. Nothing here uses it.
    for module in (pubsub, gossipsub):
        _replace(module, "env_to_send_in_RPC", lambda host: (b"", False))
        _replace(module, "maybe_consume_signed_record", lambda *arguments: True)
    # It warns of what is wrong in an RPC, for each id: a stranger had 50,000 lines written by one of 250 KB.
    logging.getLogger("libp2p.pubsub").setLevel(logging.ERROR)
    # The cache of seen messages has no limit but time, uses the wall clock, and starts a thread that nobody stops.
    _replace(pubsub, "LastSeenCache", BoundedSeen)
    # 32 queued RPCs per peer lose messages silently at some 20 a second.
    _replace(pubsub, "RpcQueue", partial(RpcQueue, max_size=_QUEUED_RPCS_MAX, max_message_size=_RPC_MAX_BYTES))
