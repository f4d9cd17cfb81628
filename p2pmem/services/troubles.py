"""What a person should know of the node's state, in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from p2pmem_protocol.errors import counted
from p2pmem_protocol.hello import clocks_agree

from p2pmem.ledger.ledger import Ledger
from p2pmem.net.dialer import Dialer
from p2pmem.net.sessions import Sessions
from p2pmem.services.auditing import Auditing
from p2pmem.services.chain_facts import ChainFacts
from p2pmem.services.clock_watch import AWAY_MS_MAX, ClockWatch
from p2pmem.services.disk_watch import DiskWatch
from p2pmem.services.lifetimes import Lifetimes
from p2pmem.services.projector import Projector
from p2pmem.services.restored import Restored
from p2pmem.services.signing import Signing

TRIED_SHOWN: Final = 3


class Troubles:
    """Gathers what is not as it should be, for `status`."""

    def __init__(
        self,
        ledger: Ledger,
        sessions: Sessions,
        dialer: Dialer,
        clock_watch: ClockWatch,
        restored: Restored,
        disk: DiskWatch,
        lifetimes: Lifetimes,
        facts: ChainFacts,
        signing: Signing,
        projector: Projector,
        auditing: Auditing,
    ) -> None:
        self._ledger = ledger
        self._signing = signing
        self._projector = projector
        self._auditing = auditing
        self._sessions = sessions
        self._dialer = dialer
        self._clock_watch = clock_watch
        self._restored = restored
        self._disk = disk
        self._lifetimes = lifetimes
        self._facts = facts

    def warnings(self) -> tuple[str, ...]:
        return (
            *self._of_graphs(),
            *self._of_restore(),
            *self._of_connections(),
            *self._of_chain(),
            *self._of_clocks(),
            *self._of_disk(),
            *self._of_lifetimes(),
        )

    def _of_graphs(self) -> Iterator[str]:
        for graph in self._ledger.graphs.values():
            if graph.trouble:
                yield f"{graph.name}: {graph.trouble}"

    def _of_restore(self) -> Iterator[str]:
        for graph in self._restored.graphs():
            if self._signing.takes_part(graph) and (why := self._signing.may_sign.why_not(graph, dated=False)):
                yield f"{graph.name}: {why}"

    def _of_connections(self) -> Iterator[str]:
        """One member that can be reached is enough; without any, a person may know where they are. Who only reads open
        graphs has no sessions with anybody."""
        if self._sessions.all() or not any(map(self._signing.takes_part, self._ledger.graphs.values())):
            return
        unwelcome, unanswered = self._dialer.unwelcome(), self._dialer.unanswered()
        if unwelcome:
            yield (
                f"{counted(len(unwelcome), 'known peer')} answered, and this node is let in nowhere there: whoever it "
                "speaks for may have been removed or revoked, and what is shared here reaches nobody. Ask the owner"
            )
        if not unanswered:
            return
        tried = [address.partition("/p2p/")[0] for addresses in unanswered.values() for address in addresses]
        shown = ", ".join(tried[:TRIED_SHOWN]) + (" and others" if len(tried) > TRIED_SHOWN else "")
        whose = "the one known peer" if len(unanswered) == 1 else f"any of {len(unanswered)} known peers"
        yield (
            f"no connection to anybody, and no answer from {whose} at {shown}. Do their nodes run? If one has moved, "
            "join once more with an invite of its own: your roles stay"
        )

    def _of_chain(self) -> Iterator[str]:
        if self._facts.trouble:
            yield self._facts.trouble

    def _of_clocks(self) -> Iterator[str]:
        for session in self._sessions.all():
            apart_ms = self._sessions.apart_ms(session)
            if not clocks_agree(0, apart_ms):
                yield (
                    f"the clock of {session.peer} is {apart_ms / 1000:+.0f} s away from ours: "
                    "nothing is reconciled with it until that is mended"
                )
        clock = self._clock_watch.view()
        if clock.doubted:
            agree = f"{clock.agreeing} of {counted(clock.members, 'connected member')} agree with it"
            or_off = ", or this node was off for so long," if clock.jumped_ms > AWAY_MS_MAX else ""
            yield (
                f"the wall clock jumped by {clock.jumped_ms / 1000:+.0f} s{or_off} and is in doubt ({agree}): nothing "
                "that has ended is let go, queries that would find it are refused, and nothing is signed that bears a "
                "time. If the clock is wrong, set it right; if it is right, say so: `p2pmem clock confirm`"
            )

    def _of_disk(self) -> Iterator[str]:
        owed = self._ledger.database.refusal
        for said in filter(None, (owed, *self._projector.refusals())):
            yield f"the disk refuses what is to be stored, which waits and is tried again until there is room: {said}"
        if self._auditing.waiting:
            yield (
                f"{counted(self._auditing.waiting, 'answer')} of recall not in the audit yet: the disk has no room for "
                "the lines. They are written when it has, and lost if the node ends before"
            )
        if self._disk.is_partial:
            yield (
                f"less than {self._disk.watermark_bytes // 1_000_000} MB of disk are free: nothing of others is taken "
                "in until there is more (disk.free_min_mb)"
            )

    def _of_lifetimes(self) -> Iterator[str]:
        soon = self._lifetimes.ends_soon()
        if soon:
            hours = (soon[0].ends_ms - self._ledger.clock.now_ms()) / 3_600_000
            yield (
                f"{counted(len(soon), 'version')} that your agents shared, endorsed or approved will end soon, first "
                f"{soon[0].key}@{soon[0].version} in {hours:.1f} h: share again what is to stay, or publish it"
            )
