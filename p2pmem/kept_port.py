"""The port at which other peers reached this node: chosen by the system once, and taken again at every start.

Members remember where they reached each other. With a new port at each start, two that were both stopped would never
meet again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from p2pmem.net.multiaddr import parse_tcp

log = logging.getLogger(__name__)

_LENGTH_MAX = 16


def read_port(path: Path) -> int:
    """The port of the start before, 0 where there is none or the file says anything else."""
    try:
        with path.open("rb") as file:
            text = file.read(_LENGTH_MAX)
    except OSError:
        return 0
    port = int(text) if text.strip().isdigit() else 0
    return port if port < 2**16 else 0


def keep_port(path: Path, addresses: Iterable[str]) -> None:
    """Remember the port of the first of these multiaddrs."""
    for address in addresses:
        _, port = parse_tcp(address.partition("/p2p/")[0])
        if port != read_port(path):
            partial = path.with_suffix(".new")
            try:
                partial.write_text(f"{port}\n")
                partial.replace(path)
            except OSError as error:  # it is no reason not to run
                log.warning("peer.port_not_kept", extra={"path": str(path), "error": str(error)})
        return
