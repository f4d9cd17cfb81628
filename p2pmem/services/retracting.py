"""Taking a version back: as its author, as a principal for whom it was said, or as the owner (rule V2)."""

from __future__ import annotations

from p2pmem_protocol.bodies import Retract, RetractMode
from p2pmem_protocol.credential import SignedActFor
from p2pmem_protocol.envelope import Envelope, decode_item
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.face import NotFoundError
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger


def retraction(
    ledger: Ledger,
    graph: LedgerGraph,
    view: VersionView,
    agent: Address,
    *,
    erase: bool,
    successor: int | None,
    reason: str,
) -> Retract:
    """What `agent` signs to take a version back.

    A principal shows the delegation under which the version was said, as the version itself shows it: then it is its
    own words that it takes back, with the versions before, and not moderation. What stands in its place has to be
    there: taken back, a version never returns.
    """
    key = view.key
    if successor == key.version:
        raise MisuseError(f"version {successor} cannot stand in its own place; nothing was retracted")
    asset = asset_view(graph.set, key.asset, ledger.clock.now_ms())
    if successor is not None and successor not in {it.key.version for it in asset.versions}:
        raise NotFoundError(
            f"{key.author}/{key.name} has no version {successor} in {graph.name} to stand in the place of this; "
            "nothing was retracted"
        )
    mode = RetractMode.ERASE if erase else RetractMode.KEEP
    shown = None if agent == key.author else _shown(ledger, graph, view, agent)
    return Retract(key.author, key.name, key.version, mode, successor, reason, shown)


def _shown(ledger: Ledger, graph: LedgerGraph, view: VersionView, principal: Address) -> SignedActFor | None:
    """The delegation of `principal` in a share or publish of the version; None when it was not said for it."""
    version = graph.set.version(view.key)
    for record in version.sealed if version is not None else ():
        if record.delegated and record.principal == principal:
            data = ledger.raw(record.id)
            item = decode_item(data) if data is not None else None
            if isinstance(item, Envelope):
                return item.delegation
    return None
