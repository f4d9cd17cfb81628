"""A peer in JavaScript: another implementation of libp2p, CBOR and Ethereum signatures speaks the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Final

OLD_NODE: Final = Path(__file__).parent / "old_node.mjs"
"""To be imported first: what js-libp2p wants and Node.js 20 lacks."""
