"""The multiaddrs this node listens at and dials: a host and a TCP port."""

from __future__ import annotations

import ipaddress
from typing import Final

from p2pmem_protocol.errors import MisuseError

_HOST_MAX_CHARACTERS: Final = 253


def parse_tcp(address: str) -> tuple[str, int]:
    """Host and port of `/ip4|ip6|dns|dns4|dns6/<host>/tcp/<port>`; `MisuseError` for anything else."""
    parts = address.split("/")
    if len(parts) != 5 or parts[0] or parts[3] != "tcp" or parts[1] not in ("ip4", "ip6", "dns", "dns4", "dns6"):
        raise MisuseError(f"{address[:100]!r} is not of the form /ip4|ip6|dns/<host>/tcp/<port>")
    kind, host, port = parts[1], parts[2], parts[4]
    if not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > 65535:
        raise MisuseError(f"{address[:100]!r}: a port is a number from 0 to 65535")
    try:
        if kind == "ip4":
            ipaddress.IPv4Address(host)
        elif kind == "ip6":
            ipaddress.IPv6Address(host)
        elif not host or len(host) > _HOST_MAX_CHARACTERS or not host.isascii() or not host.isprintable():
            raise ValueError("not a host name")
    except ValueError as error:
        raise MisuseError(f"{address[:100]!r}: {error}") from error
    return host, int(port)


def format_tcp(host: str, port: int) -> str:
    """The multiaddr of a host (an IP address or a name) and a port."""
    try:
        kind = f"ip{ipaddress.ip_address(host.partition('%')[0]).version}"
    except ValueError:
        kind = "dns"
    return f"/{kind}/{host.partition('%')[0]}/tcp/{port}"
