"""Whose place a newcomer gets when all places for inbound connections, or for sockets that are half open, are taken.

To refuse the newcomer would let whoever comes first keep out all others, with connections that cost him nothing. So the
newcomer gets a place, and somebody loses his. Who that is must not be for the newcomer to choose, nor for somebody who
wants to be taken for another:

* **A member never loses its place to a stranger.** Members are peers that have proven, in hello, that they speak for
  somebody whom a graph of ours lists: now, or before in so far as it is still listed. Hello comes after the connection,
  so a member that was never here is a stranger for its first second. Of one member some few peers count (`known.py`):
  who has one key can make any number of peers. A second connection of a member's peer is no place that it keeps: it
  goes where there is no stranger to go.
* **Of strangers, one at the address that holds most places loses his**: an IPv4 address, a /64 in IPv6, and of those a
  /48 first, which is what anybody gets for nothing. So an attacker can only take the places of his own addresses, until
  he has more addresses than there are places. Then strangers crowd each other out, the oldest first, and a stranger has
  as long as that takes for what he came for; members do not notice. A network behind one address that many honest
  strangers share loses first when an attacker has fewer at each of his; whoever of them is a member does not.
* **At one address, whoever has no stream open goes first, and of these the one that is idle for longest.** To open
  streams, or to open and close them again and again, therefore gains an attacker nothing but to choose among his own.
  Being busy protects nobody against another address: it costs nothing, so it proves nothing. A stranger who waits for
  an answer to his question to join has a stream open and came a moment ago, and is behind all that at his address.
* Who was banned, or is refused for another reason, displaces nobody: room is made last, for a peer that is proven and
  may stay. Each displacement costs an attacker a handshake with a new address.

Besides, nobody may hold a place for nothing: an inbound connection of a stranger on which no stream is open for
`silent_timeout_s` is closed, room or no room. He dials again when he has something to say.

Pure: who is here, and who is a member, are arguments.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from p2pmem.net.seam import PeerId


@dataclass(frozen=True, slots=True)
class Origin:
    """What counts as one address, and the wider one that it is a part of."""

    narrow: str
    wide: str


NOWHERE: Final = Origin("", "")


def origin_of(host: str) -> Origin:
    """An IPv4 address, in both; of an IPv6 address its /64, which a host usually has to itself, and its /48."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is None:
            narrow, wide = (str(ipaddress.ip_network((address, bits), strict=False)) for bits in (64, 48))
            return Origin(narrow, wide)
        address = address.ipv4_mapped
    return Origin(str(address), str(address))


def origin_of_address(address: str) -> Origin:
    """The same for a multiaddr; of one without an IP address, what names the host."""
    host = address.split("/")[1:3]
    with suppress(ValueError, IndexError):
        return origin_of(host[1])
    name = "/" + "/".join(host)
    return Origin(name, name)


class Inbound(Protocol):
    """A connection that its peer opened."""

    @property
    def peer(self) -> PeerId: ...

    @property
    def origin(self) -> Origin: ...

    @property
    def streams_open(self) -> int: ...

    @property
    def since_s(self) -> float:
        """Since when no stream is open; while one is, since when the connection stands."""


I = TypeVar("I", bound=Inbound)  # noqa: E741
T = TypeVar("T")


def who_gives_way(inbound: Iterable[I], is_known: Callable[[PeerId], bool]) -> I | None:
    """The connection that ends for a newcomer's; None when only members are here, with one connection each."""
    here = list(inbound)
    fullest = at_the_fullest([it for it in here if not is_known(it.peer)], lambda it: it.origin)
    if not fullest:
        held_by = Counter(it.peer for it in here)
        fullest = [it for it in here if held_by[it.peer] > 1]
    return min(fullest, key=lambda it: (it.streams_open > 0, it.since_s), default=None)


def at_the_fullest(places: Iterable[T], origin: Callable[[T], Origin]) -> list[T]:
    """Those places that are held from the address that holds most, in their order. Several hold as many: all theirs."""
    taken = [(place, origin(place)) for place in places]
    wide, narrow = Counter(it.wide for _, it in taken), Counter(it.narrow for _, it in taken)
    most = max(((wide[it.wide], narrow[it.narrow]) for _, it in taken), default=None)
    return [place for place, it in taken if (wide[it.wide], narrow[it.narrow]) == most]
