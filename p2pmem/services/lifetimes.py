"""What ends soon: one's own shares are renewed if that is wished, and one is told of what one relies on.

One relies on what one shared, endorsed or approved. Looked at every few minutes, because to look at everything costs as
much as there is; a renewal is due long before the end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import trio
from p2pmem_protocol.assets import Version
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision, Endorse
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import AssetKey, GraphId
from p2pmem_protocol.records import FOREVER, EvidenceRecord
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.may_sign import SigningWaitsError
from p2pmem.services.signing import Signing
from p2pmem.work.sharing import ShareArgs, SharingJobs

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 600.0
LOOKED_AT_ONCE: Final = 50
SOON_MS: Final = DAY_MS
LAST_PART: Final = 4
"""A share is renewed in the last quarter of the graph's usual life. One is told in that quarter, or on the last day."""


@dataclass(frozen=True, slots=True)
class EndsSoon:
    """A shared version that one relies on, and when it ends."""

    graph: GraphId
    key: AssetKey
    version: int
    ends_ms: int
    is_own: bool


class Lifetimes:
    """Looks at what ends. `run` it in the node's nursery, after the queue runs."""

    def __init__(
        self,
        ledger: Ledger,
        signing: Signing,
        sharing: SharingJobs,
        *,
        renews: bool,
    ) -> None:
        """While nothing is signed, nothing is renewed: by a clock in doubt members would take it only when its day has
        come."""
        self._ledger = ledger
        self._signing = signing
        self._sharing = sharing
        self.renews = renews
        self.renewed = 0
        self._soon: tuple[EndsSoon, ...] = ()

    async def run(self) -> None:
        while True:
            await self.look()
            await trio.sleep(LOOK_EVERY_S)

    def ends_soon(self) -> tuple[EndsSoon, ...]:
        """What was last found to end soon and has not ended yet, soonest first."""
        now_ms = self._ledger.clock.now_ms()
        return tuple(it for it in self._soon if it.ends_ms > now_ms)

    async def look(self) -> None:
        """Look at everything that is shared, renew what is due, and note what ends soon."""
        soon: list[EndsSoon] = []
        for graph in list(self._ledger.graphs.values()):
            if graph.head is None:
                continue
            renewed_ms = graph.head.body.limits.ttl_default_ms // LAST_PART
            told_ms = min(SOON_MS, renewed_ms)
            for number, key in enumerate(list(graph.set.assets())):
                if number % LOOKED_AT_ONCE == 0:
                    await trio.lowlevel.checkpoint()
                for found in self._that_end(graph, key, renewed_ms):
                    left_ms = found.ends_ms - self._ledger.clock.now_ms()
                    is_due = self.renews and found.is_own and left_ms <= renewed_ms
                    if is_due and not self._signing.may_sign.why_not(graph) and await self._renew(graph, found):
                        continue
                    if left_ms <= told_ms:
                        soon.append(found)
        self._soon = tuple(sorted(soon, key=lambda it: it.ends_ms))

    def _that_end(self, graph: LedgerGraph, key: AssetKey, within_ms: int) -> Iterator[EndsSoon]:
        """The versions of an asset that end so soon, are current, and that this node's agents stand behind."""
        asset = graph.set.asset(key)
        if asset is None:
            return
        own = self._signing.holds(key.author)
        # Most is others' and nobody here has spoken of it: no view is made for nothing.
        if not own and not any(version.evidence and self._is_behind(version) for version in asset.versions):
            return
        now_ms = self._ledger.clock.now_ms()
        if not any(_ends_by(version, now_ms + within_ms) for version in asset.versions):
            return
        view = asset_view(graph.set, key, now_ms)
        newest = next(view.visible(), None)
        for version in view.visible():
            ends_ms = version.lives_until_ms
            if ends_ms is None or ends_ms > now_ms + within_ms:
                continue
            if (own and version is newest) or self._stands_behind(graph, version):
                yield EndsSoon(graph.id, key, version.key.version, ends_ms, own and version is newest)

    def _stands_behind(self, graph: LedgerGraph, view: VersionView) -> bool:
        version = graph.set.version(view.key)
        return version is not None and self._is_behind(version)

    def _is_behind(self, version: Version) -> bool:
        return any(self._signing.holds(record.author) and _speaks_for(record) for record in version.evidence_in_set())

    async def _renew(self, graph: LedgerGraph, found: EndsSoon) -> bool:
        args = ShareArgs(graph.id, bytes(found.key.author), found.key.name, None)
        try:
            await self._sharing.renew(args)
        except (MisuseError, SigningWaitsError) as error:
            log.info("renewal.refused", extra={"asset": found.key.name, "why": type(error).__name__})
            return False
        self.renewed += 1
        return True


def _ends_by(version: Version, at_ms: int) -> bool:
    ends_ms = max((record.ends_at_ms for record in version.sealed), default=FOREVER)
    return ends_ms <= at_ms


def _speaks_for(record: EvidenceRecord) -> bool:
    return record.decision in (Endorse.ENDORSE, Decision.APPROVE)
