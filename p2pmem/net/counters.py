"""Byte counters by peer, bounded: what a stranger can make grow has a limit."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Final

from p2pmem.net.seam import NetworkStatistics, PeerId, PeerStatistics

PEERS_COUNTED_MAX: Final = 4096


@dataclass(slots=True)
class Traffic:
    """Running counts of one peer, or of one socket that has not proven who it is."""

    wire_sent_bytes: int = 0
    wire_received_bytes: int = 0
    stream_sent_bytes: int = 0
    stream_received_bytes: int = 0

    def add(self, other: Traffic) -> None:
        self.wire_sent_bytes += other.wire_sent_bytes
        self.wire_received_bytes += other.wire_received_bytes
        self.stream_sent_bytes += other.stream_sent_bytes
        self.stream_received_bytes += other.stream_received_bytes


class Counters:
    """What `Network.statistics` shows. Of those who went, the one longest gone is forgotten first."""

    def __init__(self) -> None:
        self._present: dict[PeerId, Traffic] = {}
        self._past: dict[PeerId, Traffic] = {}
        self.unproven = Traffic()
        self.refused: Counter[str] = Counter()
        self.restarts = 0
        self.unread_bytes = 0
        """What was received in streams and nobody has read yet, of all peers."""

    def of(self, peer: PeerId) -> Traffic:
        """The live counts of `peer`, kept until it is `gone` and some time after."""
        if peer not in self._present:
            self._present[peer] = self._past.pop(peer) if peer in self._past else Traffic()
        return self._present[peer]

    def gone(self, peer: PeerId) -> None:
        """The peer is no longer connected."""
        traffic = self._present.pop(peer, None)
        if traffic is not None:
            self._past[peer] = traffic
        while len(self._past) > PEERS_COUNTED_MAX:
            del self._past[next(iter(self._past))]

    def refuse(self, why: str) -> None:
        """Count one refusal under a stable name; the names are ours, never a peer's."""
        self.refused[why] += 1

    def snapshot(
        self,
        *,
        connections: dict[PeerId, int],
        inbound_streams: dict[PeerId, int],
        inbound_connections: int,
        half_open: int,
    ) -> NetworkStatistics:
        return NetworkStatistics(
            peers={
                peer: PeerStatistics(
                    wire_sent_bytes=traffic.wire_sent_bytes,
                    wire_received_bytes=traffic.wire_received_bytes,
                    stream_sent_bytes=traffic.stream_sent_bytes,
                    stream_received_bytes=traffic.stream_received_bytes,
                    connections=connections.get(peer, 0),
                    inbound_streams=inbound_streams.get(peer, 0),
                )
                for peer, traffic in (*self._past.items(), *self._present.items())
            },
            unproven_sent_bytes=self.unproven.wire_sent_bytes,
            unproven_received_bytes=self.unproven.wire_received_bytes,
            half_open=half_open,
            connections=sum(connections.values()),
            inbound_connections=inbound_connections,
            restarts=self.restarts,
            refused=dict(self.refused),
        )
