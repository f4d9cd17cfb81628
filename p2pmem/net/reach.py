"""How far an address reaches: what is worth telling others, and what is safe to dial because somebody said so.

An address that is everywhere (0.0.0.0) or has no port reaches nobody. A loopback address reaches this machine: it is
told only by a node that listens nowhere else, as a devnet does, and dialled on hearsay only by such a node, so that no
peer can make a node knock at the doors of its own machine.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from contextlib import suppress
from enum import IntEnum, unique
from typing import Final

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


@unique
class Reach(IntEnum):
    """From where an address can be dialled."""

    NOWHERE = 0
    MACHINE = 1
    NETWORK = 2
    WORLD = 3


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


def may_dial_on_hearsay(address: str, own: Iterable[str]) -> bool:
    """Whether an address that another peer told us may be dialled by a node that tells `own` to others."""
    reach = reach_of(address)
    ip = _ip_of(address.split("/")[2], is_name=True) if reach is not Reach.NOWHERE else None
    if ip is not None and (ip.is_link_local or ip in _OF_CLOUDS):
        return False  # where machines of a cloud answer questions about themselves
    if reach is Reach.MACHINE:
        return any(reach_of(it) is Reach.MACHINE for it in own)
    return reach is not Reach.NOWHERE


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
