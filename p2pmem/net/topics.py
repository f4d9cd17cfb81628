"""Gossip in open groups, as the node sees it: topics anybody may join.

Nothing of a gated graph is ever a topic: membership there is enforced on streams between members. What is published
here may be lost; reconciliation is what guarantees delivery.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from enum import Enum, unique
from typing import Final, Protocol, TypeAlias

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.seam import Network, PeerId

TOPIC_DATA_MAX_BYTES: Final = 512 * 1024
TOPICS_MAX: Final = 256
TOPIC_NAME_MAX_BYTES: Final = 256


@unique
class Verdict(Enum):
    """What becomes of a message."""

    ACCEPT = "accept"
    """It was taken, and is passed on."""
    IGNORE = "ignore"
    """Not for us, or not now: it is not passed on, and nobody is blamed."""
    REJECT = "reject"
    """Wrong for everybody: the peer that sent it is to blame."""


Receiver: TypeAlias = Callable[[PeerId, bytes], Awaitable[Verdict]]
"""Gets each message once, with the peer that passed it on (not its author), and takes it in. A slow receiver holds up
that peer only; one that takes longer than five seconds is cancelled, and counts as IGNORE; one that raises, too."""

MaySpeak: TypeAlias = Callable[[PeerId, str], bool]
"""Whether a topic may be mentioned to a peer at all, in any message. Must not block."""

Blame: TypeAlias = Callable[[PeerId, str], None]
"""Told of a peer that sent malformed bytes, forged signatures or what a receiver rejected. Must not block."""


class Topics(Protocol):
    """Publish and subscribe among connected peers."""

    async def subscribe(self, topic: str, receiver: Receiver) -> None:
        """Join `topic` (1 to 256 bytes of printable ASCII; at most 256 topics, otherwise `MisuseError`).

        Again for the same topic: only the receiver changes.
        """

    async def unsubscribe(self, topic: str) -> None:
        """Leave `topic`. Not joined: nothing happens."""

    async def publish(self, topic: str, data: bytes) -> None:
        """Send `data`, at most 512 KiB, to those who joined `topic`. We must have joined too, or `MisuseError`.

        Our own receiver does not get it. Returning means queued for the neighbours of the moment, possibly for nobody.
        """

    async def announce(self, peer: PeerId) -> None:
        """Tell `peer` which topics we joined, as far as `MaySpeak` now allows: to be called when that has changed."""

    def peers(self, topic: str) -> frozenset[PeerId]:
        """Who is known to have joined `topic`."""


OpenTopics: TypeAlias = Callable[[Network, Blame], AbstractAsyncContextManager[Topics]]
"""How a node begins to gossip over its network; leaving ends all of it, handlers included."""


def check_topic(topic: str) -> str:
    """The topic itself, or `MisuseError` with the rule it broke."""
    if not 0 < len(topic) <= TOPIC_NAME_MAX_BYTES or not topic.isascii() or not topic.isprintable():
        raise MisuseError(f"topic {topic[:80]!r}: 1 to {TOPIC_NAME_MAX_BYTES} bytes of printable ASCII")
    return topic
