"""Asking the gate of a network, which is code of others."""

from __future__ import annotations

import logging

from p2pmem.net.seam import Gate, PeerId

log = logging.getLogger(__name__)


def admits(gate: Gate | None, peer: PeerId, origin: str) -> bool:
    """Whether `gate` lets `peer` in, that dials from `origin`. No gate lets everybody in; one that raises, nobody."""
    if gate is None:
        return True
    try:
        return gate(peer, origin)
    except Exception:
        log.exception("net.gate.failed", extra={"peer": peer})
        return False
