"""Asking the gate of a network, which is code of others."""

from __future__ import annotations

import logging

from p2pmem.net.seam import Gate, PeerId

log = logging.getLogger(__name__)


def admits(gate: Gate | None, peer: PeerId) -> bool:
    """Whether `gate` lets `peer` be connected. No gate lets everybody; one that raises, nobody."""
    if gate is None:
        return True
    try:
        return gate(peer)
    except Exception:
        log.exception("net.gate.failed", extra={"peer": peer})
        return False
