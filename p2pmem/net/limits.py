"""What a node grants peers beyond connections and streams (`seam.NetworkLimits`): bans, dialling, reading, asking."""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem_protocol.errors import MisuseError


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Each limit is tested at the limit and one past it."""

    first_ban_s: float = 10.0
    """How long a peer that forged or malformed is kept out; each further time twice as long."""
    longest_ban_s: float = 3_600.0
    forgiven_after_s: float = 24 * 3_600.0
    """A peer that behaved for so long begins anew."""
    banned_peers_max: int = 10_000
    """Of more, those punished longest ago are forgotten; bans by a person never are."""

    first_dial_pause_s: float = 0.2
    longest_dial_pause_s: float = 60.0
    """Pauses between dials double from the first to the longest, each drawn between half and whole."""
    wanted_peers_max: int = 1_024
    heard_peers_max: int = 128
    """Of these, how many whose addresses only other members told us."""
    heard_failures_max: int = 6
    """So many failures in a row, and a peer that was only heard of and never reached is dialled no more."""
    addresses_per_peer_max: int = 8

    reader_requests_max: int = 600
    """What somebody who is no member may ask about open graphs at once; it grows back in `reader_refill_s`."""
    reader_bytes_max: int = 64 * 1024 * 1024
    """The same in bytes of answers."""
    reader_refill_s: float = 60.0
    readers_max: int = 1_024
    """For how many of them accounts are kept; of more, the oldest is forgotten."""

    waiting_requests_max: int = 100
    """Requests to join, of a graph, that wait for a person."""
    join_streams_max: int = 16
    """Join streams served at once."""

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if getattr(self, name) <= 0:
                raise MisuseError(f"peer limit {name} must be positive, not {getattr(self, name)}")
