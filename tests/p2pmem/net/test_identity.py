"""Peer ids computed without libp2p are those that libp2p computes."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError

from p2pmem.net.identity import ed25519_of_peer_id, peer_id_of_ed25519
from p2pmem.net.seam import PeerId


@given(key=st.binary(min_size=32, max_size=32))
def test_the_key_comes_back_from_its_peer_id(key: bytes) -> None:
    peer = peer_id_of_ed25519(key)
    assert peer.startswith("12D3KooW")
    assert ed25519_of_peer_id(peer) == key


@given(text=st.text(max_size=60))
def test_other_texts_are_no_peer_ids(text: str) -> None:
    with pytest.raises(MisuseError):
        ed25519_of_peer_id(PeerId(text))


def test_a_peer_id_of_another_kind_of_key_is_refused() -> None:
    with pytest.raises(MisuseError):
        ed25519_of_peer_id(PeerId("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"))
    with pytest.raises(MisuseError):
        ed25519_of_peer_id(PeerId("z" * 52))


def test_libp2p_agrees() -> None:
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.peer.id import ID

    for number in range(20):
        pair = create_new_key_pair(bytes([number] * 32))
        assert str(ID.from_pubkey(pair.public_key)) == peer_id_of_ed25519(pair.public_key.to_bytes())
