"""What of py-libp2p 0.8.1 is changed in place, all of it, with the reason at each line.

Little is left to change, because what was found broken is not used: connections are kept by our own `connection` and
`libp2p_host` (its swarm never gives an inbound slot back, authenticates plaintext dialers by default, remembers failed
dials for a minute and leaves its listener open), streams by our own `yamux` (its window is not enforced, a cancelled
write destroys the connection, a stream nobody accepts stops all others), and words are agreed on by `multistream` (its
`ls` tells a stranger all we speak). `tests/upstream` holds a reproduction of each. From py-libp2p come the noise
handshake with its keys and identities, and GossipSub.
"""

from __future__ import annotations

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
from libp2p.crypto.ed25519 import Ed25519PublicKey
from libp2p.crypto.keys import KeyType, PublicKey
from libp2p.crypto.pb import crypto_pb2
from libp2p.security.noise import messages as noise_messages

_ED25519_KEY_PROTOBUF_BYTES = 36


def _deserialize_ed25519_only(data: bytes) -> PublicKey:
    """The identity in a noise handshake, if it is an Ed25519 key."""
    if len(data) != _ED25519_KEY_PROTOBUF_BYTES:
        raise ValueError("an identity is an Ed25519 key of 36 bytes in its protobuf form")
    message = crypto_pb2.PublicKey.FromString(data)
    if message.key_type != KeyType.Ed25519.value or len(message.data) != 32:
        raise ValueError("an identity is an Ed25519 key")
    return Ed25519PublicKey.from_bytes(message.data)


def install() -> None:
    """Make the changes. Again is allowed."""
    # A stranger chooses the kind of key in his handshake. RSA of any size, ECDSA (through fastecdsa, C code over
    # attacker's points) and secp256k1 would all be parsed and verified before anybody asks whether we want them; and a
    # peer id of another kind does not hold its key, which `identity` relies on.
    setattr(noise_messages, "deserialize_public_key", _deserialize_ed25519_only)  # noqa: B010 - it is no export
