"""Telling any number of readers who came and who went, without waiting for the slowest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import trio

from p2pmem.net.seam import PeerEvent

EVENTS_HELD_MAX: Final = 1024


class PeerEvents:
    """Fans events out. A reader whose channel is full finds it ended, and begins again with who is present."""

    def __init__(self) -> None:
        self._channels: set[trio.MemorySendChannel[PeerEvent]] = set()
        self._closed = False

    def subscribe(self, present: Iterable[PeerEvent]) -> trio.MemoryReceiveChannel[PeerEvent]:
        send, receive = trio.open_memory_channel[PeerEvent](EVENTS_HELD_MAX)
        for event in present:
            send.send_nowait(event)
        if self._closed:
            send.close()
        else:
            self._channels.add(send)
        return receive

    def publish(self, event: PeerEvent) -> None:
        for channel in tuple(self._channels):
            try:
                channel.send_nowait(event)
            except trio.WouldBlock:
                self._drop(channel)
            except trio.BrokenResourceError:
                self._drop(channel)

    def close(self) -> None:
        self._closed = True
        for channel in tuple(self._channels):
            self._drop(channel)

    def _drop(self, channel: trio.MemorySendChannel[PeerEvent]) -> None:
        channel.close()
        self._channels.discard(channel)
