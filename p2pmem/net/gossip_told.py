"""What a peer asks for by id (IWANT) it is given once.

py-libp2p answers each id as often as it is named: 500 kB of one id, again and again, made an answer of hundreds of MB,
in memory and queued for a peer that reads none of it. What is lost on the way a comparison brings.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

# isort: off
import p2pmem.net.quiet_imports  # noqa: F401 - before all else of py-libp2p

# isort: on
from libp2p.pubsub.pb import rpc_pb2
from libp2p.pubsub.utils import safe_bytes_from_hex

from p2pmem.net.libp2p_repairs import BoundedSeen
from p2pmem.net.seam import PeerId

TOLD_S: Final = 120
"""So long it is remembered: longer than a message can be asked for."""


class Told:
    """Who was given which message of late."""

    def __init__(self) -> None:
        self._given = BoundedSeen(TOLD_S)

    def leave_first_asks(self, peer: PeerId, rpc: rpc_pb2.RPC, is_held: Callable[[bytes], bool]) -> None:
        """Remove from an RPC of this peer all that it asks for and was given, or cannot be given now."""
        for wanted in rpc.control.iwant:
            ids = (safe_bytes_from_hex(it) for it in wanted.messageIDs)
            first = [it for it in ids if it is not None and is_held(it) and self._given.add(peer.encode() + it)]
            del wanted.messageIDs[:]
            wanted.messageIDs.extend(it.hex().encode() for it in first)
