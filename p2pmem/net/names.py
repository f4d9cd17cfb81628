"""Names heard from others, and where they lead.

Whoever tells a name decides what it stands for, at every look-up anew: this machine's loopback, or where machines of a
cloud answer questions about themselves. So a name that is hearsay is looked up here, what it stands for is judged as if
it had been told instead, and that is dialled, with no second look-up between. (To refuse names would be simpler, and
would leave out members whose address changes and who announce a name for that.)
"""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final, TypeAlias

import trio

from p2pmem.net.multiaddr import format_tcp, parse_tcp
from p2pmem.net.reach import may_dial_on_hearsay

PLACES_MAX: Final = 4
"""Of a name that stands for more addresses, so many are dialled."""
_LOOKUPS: Final = trio.CapacityLimiter(2)
"""Threads that look up names. A name can be made to take half a minute; nothing else of the node waits for these."""
_FAMILIES: Final = {"dns": socket.AF_UNSPEC, "dns4": socket.AF_INET, "dns6": socket.AF_INET6}

Resolve: TypeAlias = Callable[[str, socket.AddressFamily], Awaitable[Iterable[str]]]
"""The IP addresses that a name stands for now; none for an unknown one, or for what is no name."""


async def system_resolve(name: str, family: socket.AddressFamily) -> list[str]:
    """As this machine resolves names. Cancelled, it returns at once; the thread ends later."""
    look_up = partial(socket.getaddrinfo, name, None, family, socket.SOCK_STREAM)
    try:
        found = await trio.to_thread.run_sync(look_up, abandon_on_cancel=True, limiter=_LOOKUPS)
    except (OSError, ValueError):
        return []
    return [str(entry[4][0]) for entry in found]


async def places_on_hearsay(address: str, own: Iterable[str], resolve: Resolve = system_resolve) -> tuple[str, ...]:
    """What may be dialled because somebody said `address`, by a node that tells `own`: itself, or what its name stands
    for; empty for nothing.

    Raises `MisuseError` for a name in an address of another form than those that can be dialled.
    """
    own = tuple(own)
    where, mark, peer = address.rpartition("/p2p/")
    kind = where.split("/")[1:2]
    if not mark or not kind or not kind[0].startswith("dns"):
        return (address,) if may_dial_on_hearsay(address, own) else ()
    host, port = parse_tcp(where)
    found = dict.fromkeys(await resolve(host, _FAMILIES[kind[0]]))
    places = [f"{format_tcp(ip, port)}/p2p/{peer}" for ip in found]
    return tuple(it for it in places if may_dial_on_hearsay(it, own))[:PLACES_MAX]
