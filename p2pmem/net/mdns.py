"""Finding members on the same network by multicast DNS. Off unless `peer.mdns` is set.

As in libp2p's specification of peer discovery by mDNS: service `_p2p._udp.local`, a name drawn at random at every
start, and one TXT entry `dnsaddr=<multiaddr>/p2p/<peer>` an address. Whoever listens on the network learns that a peer
is here and where, and nothing about agents or graphs. What is found is hearsay: it is dialled within bounds, and hello
decides. In hello the dialler proves first: so whoever announces himself is told which agents this node speaks for, and
nothing about graphs. Where that must not be known to those around, leave it off.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from p2pmem.net.background import background_nursery

log = logging.getLogger(__name__)

SERVICE: Final = "_p2p._udp.local."
ADDRESSES_MAX: Final = 8
TXT_BYTES_MAX: Final = 255
LOOKUP_MS: Final = 3_000
_WAITING_MAX: Final = 64
_KEY: Final = "dnsaddr="


def txt_of(addresses: Iterable[str]) -> bytes:
    """The TXT record: each address with its length before it."""
    entries = [f"{_KEY}{address}".encode() for address in addresses]
    return b"".join(bytes([len(it)]) + it for it in entries[:ADDRESSES_MAX] if len(it) <= TXT_BYTES_MAX)


def addresses_in(txt: bytes) -> tuple[str, ...]:
    """The addresses of a TXT record that somebody sent; what is none is left out."""
    found: list[str] = []
    at = 0
    while at < len(txt) and len(found) < ADDRESSES_MAX:
        entry = txt[at + 1 : at + 1 + txt[at]]
        at += 1 + txt[at]
        text = entry.decode("ascii", "replace")
        if text.startswith(_KEY + "/") and "/p2p/" in text and text.isprintable():
            found.append(text.removeprefix(_KEY))
    return tuple(found)


@asynccontextmanager
async def open_mdns(
    addresses: tuple[str, ...],
    heard: Callable[[str], object],
    random_bytes: Callable[[int], bytes],
    interfaces: tuple[str, ...] = (),
) -> AsyncIterator[None]:
    """Announce `addresses` and call `heard` for each address of others, until the block ends.

    `interfaces`: IP addresses of the interfaces to use; none: all. Raises `OSError` when multicast is not to be had.
    """
    from zeroconf import InterfaceChoice, ServiceInfo, Zeroconf

    name = f"{random_bytes(16).hex()}.{SERVICE}"
    send, receive = trio.open_memory_channel[tuple[str, ...]](_WAITING_MAX)
    token = trio.lowlevel.current_trio_token()

    def open_all() -> tuple[Any, Any]:
        choice: Any = list(interfaces) if interfaces else InterfaceChoice.Default
        zeroconf = Zeroconf(interfaces=choice)
        host = f"{name[:32]}.local."
        info = ServiceInfo(SERVICE, name, port=_port(addresses), properties=txt_of(addresses), server=host)
        info.addresses = [_packed(it) for it in addresses if _packed(it)][:1]
        zeroconf.register_service(info)
        return zeroconf, _browse(zeroconf, name, lambda found: token.run_sync_soon(_offer, send, found))

    zeroconf, browser = await trio.to_thread.run_sync(open_all)
    try:
        async with background_nursery() as nursery:
            nursery.start_soon(_tell, receive, heard, frozenset(addresses))
            log.info("mdns.started", extra={"addresses": len(addresses)})
            yield
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(browser.cancel)
            await trio.to_thread.run_sync(zeroconf.close)


def _browse(zeroconf: Any, own_name: str, offer: Callable[[tuple[str, ...]], object]) -> Any:
    """Look up whoever announces the service. Runs in threads of zeroconf's own."""
    from zeroconf import ServiceBrowser, ServiceStateChange

    def changed(zeroconf: Any, service_type: str, name: str, state_change: Any) -> None:
        if name == own_name or state_change is ServiceStateChange.Removed:
            return
        info = zeroconf.get_service_info(service_type, name, timeout=LOOKUP_MS)
        if info is not None and info.text:
            offer(addresses_in(info.text))

    return ServiceBrowser(zeroconf, SERVICE, handlers=[changed])


def _offer(send: trio.MemorySendChannel[tuple[str, ...]], found: tuple[str, ...]) -> None:
    """Hand over, or drop: whoever is still there announces again."""
    try:
        send.send_nowait(found)
    except trio.WouldBlock:
        log.info("mdns.too_many")


async def _tell(
    receive: trio.MemoryReceiveChannel[tuple[str, ...]], heard: Callable[[str], object], own: frozenset[str]
) -> None:
    async for found in receive:
        for address in found:
            if address not in own:
                heard(address)


def _port(addresses: Iterable[str]) -> int:
    """The port of the first address that has one; the record wants some, whoever reads it takes `dnsaddr`."""
    for address in addresses:
        parts = address.split("/")
        if len(parts) > 4 and parts[4].isdigit():
            return int(parts[4])
    return 0


def _packed(address: str) -> bytes:
    parts = address.split("/")
    try:
        return ipaddress.ip_address(parts[2]).packed
    except (ValueError, IndexError):
        return b""
