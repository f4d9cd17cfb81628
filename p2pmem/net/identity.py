"""Peer ids of Ed25519 keys, without a libp2p to compute them.

A peer id is the multihash of the key in its protobuf form; for Ed25519 that is the "identity" hash, so the key can be
read back from the id (libp2p peer-ids specification). The text is base58btc.
"""

from __future__ import annotations

from typing import Final

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.seam import PeerId

_ALPHABET: Final = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
# identity multihash (0x00) of 36 bytes: protobuf {1: type = 1 (Ed25519), 2: 32 bytes of key}
_ED25519_PREFIX: Final = bytes.fromhex("002408011220")
_PEER_ID_TEXT_CHARACTERS: Final = 52


def peer_id_of_ed25519(public_key: bytes) -> PeerId:
    """The peer id of a 32-byte Ed25519 public key: `12D3KooW...`."""
    if len(public_key) != 32:
        raise MisuseError(f"an Ed25519 public key has 32 bytes, not {len(public_key)}")
    # The prefix begins with one zero byte, which base58 writes as one '1'; the rest is never zero.
    number, digits = int.from_bytes(_ED25519_PREFIX + public_key), ""
    while number:
        number, digit = divmod(number, 58)
        digits = _ALPHABET[digit] + digits
    return PeerId("1" + digits)


def check_peer_id(text: str) -> PeerId:
    """The peer id itself, or `MisuseError` when the text is none of an Ed25519 key."""
    peer = PeerId(text.strip())
    ed25519_of_peer_id(peer)
    return peer


def ed25519_of_peer_id(peer: PeerId) -> bytes:
    """The 32-byte public key in a peer id, or `MisuseError` if it is not one of Ed25519."""
    if len(peer) != _PEER_ID_TEXT_CHARACTERS or any(character not in _ALPHABET for character in peer):
        raise MisuseError(f"{str(peer)[:80]!r} is not the peer id of an Ed25519 key (12D3KooW...)")
    number = 0
    for character in peer:
        number = number * 58 + _ALPHABET.index(character)
    if number.bit_length() > 38 * 8:
        raise MisuseError(f"{peer!r} is not the peer id of an Ed25519 key (12D3KooW...)")
    raw = number.to_bytes(38)
    if not raw.startswith(_ED25519_PREFIX):
        raise MisuseError(f"{peer!r} is not the peer id of an Ed25519 key (12D3KooW...)")
    return raw[len(_ED25519_PREFIX) :]
