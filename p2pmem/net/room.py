"""Whose place a newcomer gets when all places for inbound connections, or for sockets that are half open, are taken.

To refuse the newcomer would let whoever comes first keep out all others, with connections that cost him nothing. So the
newcomer gets a place, and somebody loses his. Who that is must not be for the newcomer to choose, nor for somebody who
wants to be taken for another:

* **A member keeps its place while strangers hold more than an eighth of all.** Members are peers that have proven, in
  hello, that they speak for somebody whom a graph of ours lists: now, or before in so far as it is still listed. Hello
  comes after the connection, so a member that was never here is a stranger for its first second. Of one member some few
  peers count (`known.py`): who has one key can make any number of peers. A second connection of a member's peer is no
  place that it keeps: it goes where there is no stranger to go.
* **Members cannot fill the last eighth**, for else nobody who was not here yet could come to say who he is. Who of them
  gives way for it is of the context graph that is over its share most (`shares.py`), and of these, one whose member has
  most peers here, the newest. So whoever owns one graph, and lists a thousand keys of his own, has what places nobody
  else needs, and never those of members of another graph that are no more than its share.
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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import Final, Protocol, TypeVar

from p2pmem.net.seam import PeerId, Standing, StandingOf
from p2pmem.net.shares import over_share


@dataclass(frozen=True, slots=True)
class Origin:
    """What counts as one address, and the wider one that it is a part of."""

    narrow: str
    wide: str


NOWHERE: Final = Origin("", "")
STRANGERS_PART: Final = 8
"""One place of so many is for who has not proven yet whose node he is."""


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


def who_gives_way(inbound: Iterable[I], standing_of: StandingOf, newcomer: PeerId) -> I | None:
    """The connection that ends for a newcomer's, where all places are taken; None when it is the newcomer who does not
    get one: members have what is theirs, with one connection each, and he is none whose graph has less."""
    here = list(inbound)
    standing = {peer: who for peer in (newcomer, *(it.peer for it in here)) if (who := standing_of(peer)) is not None}
    kept = len(here) - len(here) // STRANGERS_PART
    goes = at_the_fullest([it for it in here if it.peer not in standing], lambda it: it.origin)
    if not goes or len(standing) > kept:
        held_by = Counter((newcomer, *(it.peer for it in here)))
        goes = [it for it in here if it.peer in standing and held_by[it.peer] > 1]
        if not goes and len(standing) > kept:
            return _of_the_graph_most_over(here, standing, kept)
    return min(goes, key=lambda it: (it.streams_open > 0, it.since_s), default=None)


def _of_the_graph_most_over(here: list[I], standing: Mapping[PeerId, Standing], places: int) -> I | None:
    """One of these, or None for somebody who is not here yet."""
    connections = {it.peer: it for it in here}
    over = dict(zip(standing, over_share([it.graphs for it in standing.values()], places), strict=True))
    peers_of = Counter(it.member for it in standing.values())

    def rank(peer: PeerId) -> tuple[int, int, float]:
        since_s = connections[peer].since_s if peer in connections else inf
        return over[peer], peers_of[standing[peer].member], since_s

    return connections.get(max(standing, key=rank))


def at_the_fullest(places: Iterable[T], origin: Callable[[T], Origin]) -> list[T]:
    """Those places that are held from the address that holds most, in their order. Several hold as many: all theirs."""
    taken = [(place, origin(place)) for place in places]
    wide, narrow = Counter(it.wide for _, it in taken), Counter(it.narrow for _, it in taken)
    most = max(((wide[it.wide], narrow[it.narrow]) for _, it in taken), default=None)
    return [place for place, it in taken if (wide[it.wide], narrow[it.narrow]) == most]
