"""How far an address reaches: what is worth telling others, and what is safe to dial because somebody said so.

An address that is everywhere (0.0.0.0) or has no port reaches nobody. A loopback address reaches this machine: it is
told only by a node that listens nowhere else, as a devnet does.

Whoever says where a peer is makes others knock there, so on hearsay this is never dialled:

* this machine: its loopback, unless by a node that is nowhere else, the addresses by which it sends to others, and the
  hosts of those that it tells;
* addresses that do not reach the world, unless of a private range in which this machine has one of these addresses
  itself, as members on one local network do;
* link-local addresses, and others where machines of a cloud answer questions about themselves;
* ports below 1024, where a system's services are, but 443.

What is left may be a stranger's port, in the world or on this node's local network (a database's, say): a peer can make
this node connect there and begin the handshake of libp2p, in bytes that the peer does not choose, as often as the
dialer tries what is hearsay. Nor is every address of this machine known: a further one, or the one that a router has
for it, is dialled as any other where it is not told.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum, unique
from functools import lru_cache
from typing import Final

ADDRESSES_REMEMBERED: Final = 1_024
"""For so many it is remembered how far they reach: peers tell the same ones again and again."""
_ROUTED: Final = {socket.AF_INET: ("192.0.2.1", 9), socket.AF_INET6: ("2001:db8::1", 9)}
_UNSPECIFIED: Final = {"/ip4/0.0.0.0/": ("ip4", socket.AF_INET), "/ip6/::/": ("ip6", socket.AF_INET6)}
_CARRY_IPV4: Final = tuple(map(ipaddress.IPv6Network, ("::ffff:0:0/96", "64:ff9b::/96", "::/96")))
"""IPv6 addresses that stand for the IPv4 address at their end: mapped, through NAT64, and as it was written once."""
_OF_CLOUDS: Final = frozenset(
    map(
        ipaddress.ip_address,
        ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:c1::a9fe:a9fe", "fd00:ec2::254", "fd20:ce::254"),
    )
)
"""Beside link-local ones, where machines of a cloud answer questions about themselves."""

_PRIVATE: Final = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)
"""Ranges of networks that are not the world's: at home, at work, behind a provider's or an overlay's translation."""
_PORTS_OF_SYSTEMS: Final = 1_024
_PORT_OF_ALL: Final = 443
"""Where peers listen of whom nothing else gets through."""


@unique
class Reach(IntEnum):
    """From where an address can be dialled."""

    NOWHERE = 0
    MACHINE = 1
    NETWORK = 2
    WORLD = 3


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def reach_of(address: str) -> Reach:
    """How far a multiaddr reaches. A name that is no IP address in any spelling is taken to reach the world."""
    parts = address.split("/")
    if len(parts) < 3 or parts[0] or parts[3:5] in (["tcp", "0"], []):
        return Reach.NOWHERE
    is_name = parts[1].startswith("dns")
    ip = _ip_of(parts[2], is_name=is_name)
    if ip is None:
        return (_reach_of_name(parts[2]) if is_name else Reach.WORLD) if parts[1][:2] != "ip" else Reach.NOWHERE
    if ip.is_unspecified or ip.is_multicast:
        return Reach.NOWHERE if not is_name else Reach.MACHINE  # a system dials 0.0.0.0 at its own loopback
    if ip.is_loopback:
        return Reach.MACHINE
    return Reach.WORLD if ip.is_global else Reach.NETWORK


@lru_cache(maxsize=ADDRESSES_REMEMBERED)
def _ip_of(host: str, *, is_name: bool) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a host is, also in the short and whole-number spellings that resolvers take for names."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        if not is_name:
            return None
        try:
            ip = ipaddress.IPv4Address(socket.inet_aton(host))
        except (OSError, ValueError):  # ValueError: what no name has in it, as a zero byte
            return None
    if isinstance(ip, ipaddress.IPv4Address):
        return ip
    if int(ip) > 1 and any(ip in network for network in _CARRY_IPV4):
        return ipaddress.IPv4Address(int(ip) & 0xFFFF_FFFF)
    return ipaddress.IPv6Address(int(ip))  # without an interface


def _reach_of_name(name: str) -> Reach:
    plain = name.rstrip(".").casefold()
    return Reach.MACHINE if plain == "localhost" or plain.endswith(".localhost") else Reach.WORLD


def worth_telling(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those that lead others here: everything beyond this machine, or its loopback addresses when there is no other."""
    spread = [it for address in addresses for it in _spread(address)]
    known = list(dict.fromkeys(it for it in spread if reach_of(it) is not Reach.NOWHERE))
    beyond = tuple(it for it in known if reach_of(it) is not Reach.MACHINE)
    return beyond or tuple(known)


def may_pass_on(address: str, own: Iterable[str]) -> bool:
    """Whether an address that another peer told us may be told to others by a node that tells `own`: they may be on a
    local network where this node is not."""
    reach = reach_of(address)
    if reach is Reach.NOWHERE or not _is_port_for_peers(address):
        return False
    if reach is Reach.MACHINE:
        return any(reach_of(it) is Reach.MACHINE for it in own)
    ip = _ip_of(_host_of(address)[1], is_name=True)
    return ip is None or not (ip.is_link_local or ip in _OF_CLOUDS)


def may_dial_on_hearsay(address: str, own: Iterable[str]) -> bool:
    """Whether an address that another peer told us may be dialled by a node that tells `own` to others.

    Of a name only the port is judged: see `names` for what it stands for.
    """
    own = tuple(own)
    if not may_pass_on(address, own):
        return False
    ip, reach = _ip_of(_host_of(address)[1], is_name=True), reach_of(address)
    if ip is None or reach is Reach.MACHINE:
        return True
    hosts = (*(_host_of(other)[1] for other in own), *map(_outward, _ROUTED))
    ours = [it for it in (_ip_of(host, is_name=True) for host in hosts) if it is not None]
    if ip in ours:
        return False
    return reach is Reach.WORLD or any(ip in network and any(it in network for it in ours) for network in _PRIVATE)


def _is_port_for_peers(address: str) -> bool:
    """Whether the TCP port is none of a system's services; True for an address without one."""
    kind, _, port = "/".join(address.split("/")[3:5]).partition("/")
    if kind != "tcp":
        return True
    return port.isdecimal() and len(port) <= 5 and (int(port) >= _PORTS_OF_SYSTEMS or int(port) == _PORT_OF_ALL)


def is_same_host(address: str, other: str) -> bool:
    """Whether two multiaddrs lead to one host, whatever the port. A name is the same as nothing: it may change."""
    (kind, host), (other_kind, other_host) = (_host_of(it) for it in (address, other))
    if "dns" in (kind[:3], other_kind[:3]) or not host or not other_host:
        return False
    ip, other_ip = (_ip_of(it, is_name=False) for it in (host, other_host))
    return ip == other_ip if ip is not None else (kind, host) == (other_kind, other_host)


def _host_of(address: str) -> tuple[str, str]:
    """The first part of a multiaddr: what kind of host, and which; empty for none."""
    parts = address.split("/")
    return (parts[1], parts[2]) if len(parts) > 2 else ("", "")


def _spread(address: str) -> tuple[str, ...]:
    """An address that is everywhere stands for the one by which this machine sends to others."""
    for prefix, (protocol, family) in _UNSPECIFIED.items():
        if address.startswith(prefix):
            own = _outward(family)
            return (f"/{protocol}/{own}/{address.removeprefix(prefix)}",) if own else ()
    return (address,)


def _outward(family: socket.AddressFamily) -> str:
    """Which of this machine's addresses the system would send from; nothing is sent. Empty without a network."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(_ROUTED[family])
        return str(probe.getsockname()[0])
    return ""
