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


@unique
class Reach(IntEnum):
    """From where an address can be dialled."""

    NOWHERE = 0
    MACHINE = 1
    NETWORK = 2
    WORLD = 3


def reach_of(address: str) -> Reach:
    """How far a multiaddr reaches. What is no IP address (a DNS name, say) is taken to reach the world."""
    parts = address.split("/")
    if len(parts) < 3 or parts[0]:
        return Reach.NOWHERE
    if parts[1] in ("ip4", "ip6"):
        try:
            ip = ipaddress.ip_address(parts[2])
        except ValueError:
            return Reach.NOWHERE
        if ip.is_unspecified or ip.is_multicast or parts[3:5] in (["tcp", "0"], []):
            return Reach.NOWHERE
        if ip.is_loopback:
            return Reach.MACHINE
        return Reach.WORLD if ip.is_global else Reach.NETWORK
    if parts[1].startswith("dns") and parts[2] == "localhost":
        return Reach.MACHINE
    return Reach.WORLD


def worth_telling(addresses: Iterable[str]) -> tuple[str, ...]:
    """Those that lead others here: everything beyond this machine, or its loopback addresses when there is no other."""
    spread = [it for address in addresses for it in _spread(address)]
    known = list(dict.fromkeys(it for it in spread if reach_of(it) is not Reach.NOWHERE))
    beyond = tuple(it for it in known if reach_of(it) is not Reach.MACHINE)
    return beyond or tuple(known)


def may_dial_on_hearsay(address: str, own: Iterable[str]) -> bool:
    """Whether an address that another peer told us may be dialled by a node that tells `own` to others."""
    reach = reach_of(address)
    if reach is Reach.MACHINE:
        return any(reach_of(it) is Reach.MACHINE for it in own)
    return reach is not Reach.NOWHERE


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
