"""A peer in JavaScript: another implementation of libp2p, CBOR and Ethereum signatures speaks the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PEER: Final = Path(__file__).parent / "peer.mjs"
"""Says hello as a member, and exchanges envelopes of an open graph; what it is told and says is in its head."""
OLD_NODE: Final = Path(__file__).parent / "old_node.mjs"
"""To be imported first: what js-libp2p wants and Node.js 20 lacks."""
