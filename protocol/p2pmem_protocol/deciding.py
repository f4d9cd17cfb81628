"""What of the known things is in the set: five steps, each of which looks only at those before it.

The steps are told in `graphset`; the state machine there says when which of them is taken again, and for whom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop
from typing import TypeVar

from p2pmem_protocol.accounts import ASIDE_KEPT_MAX, Account, in_order, passed_over, place_in_line
from p2pmem_protocol.assets import Version
from p2pmem_protocol.holdings import Holdings
from p2pmem_protocol.limits import CUT_KEPT_ASIDE_MS
from p2pmem_protocol.names import Address
from p2pmem_protocol.records import (
    EvidenceRecord,
    Record,
    RetractRecord,
    RevokeRecord,
    SealedRecord,
    State,
)
from p2pmem_protocol.rights import Rights
from p2pmem_protocol.roster import Roster

C = TypeVar("C", RetractRecord, RevokeRecord)


class Deciding(Holdings):
    """Holdings, and who of them counts under the head."""

    def __init__(self) -> None:
        super().__init__()
        self._rights: Rights | None = None
        self._forked = False
        self._revoked: dict[tuple[Address, Address], RevokeRecord] = {}

    @property
    def head(self) -> Roster | None:
        return self._rights.roster if self._rights else None

    @property
    def is_forked(self) -> bool:
        return self._forked

    @property
    def rights(self) -> Rights | None:
        """The head, read for questions of rights."""
        return self._rights

    def _is_revoked(self, record: Record) -> bool:
        """Rule D1: signed under a delegation that its principal has ended, and not among the ids that stay."""
        if not record.delegated:
            return False
        revoke = self._revoked.get((record.principal, record.author))
        return revoke is not None and record.serial <= revoke.revoked_serial and record.id not in revoke.kept

    def _is_erased(self, record: SealedRecord) -> bool:
        asset, version = record.key.asset, record.key.version
        return bool(self._erasers[asset, version, None] or self._erasers[asset, version, record.principal])

    def _settle_cuts(self, account: Account, t_ms: int) -> None:
        """Decide the revokes and retracts of one principal: revokes first, then the retracts that they leave."""
        rights = self._rights
        for agent in [record.agent for record in account.cuts.values() if isinstance(record, RevokeRecord)]:
            if agent is not None:
                self._revoked.pop((account.principal, agent), None)
        revokes: list[RevokeRecord] = []
        retracts: list[RetractRecord] = []
        for cut in list(account.cuts.values()):
            if rights is None or rights.problem(cut) is not None:
                self._move(cut, State.CUT, t_ms)
            elif isinstance(cut, RevokeRecord):
                revokes.append(cut)
            else:
                retracts.append(cut)
        room = rights.quotas.cuts if rights else 0
        account.revokes, _ = self._count_cuts(revokes, room, t_ms)
        for agent, top in highest_revokes(revoke for revoke in revokes if revoke.state is State.IN).items():
            self._revoked[account.principal, agent] = top
        self._cut_revoked([retract for retract in retracts if self._is_revoked(retract)], t_ms)
        left = [retract for retract in retracts if not self._is_revoked(retract)]
        account.retracts, account.waiting = self._count_cuts(left, room - len(account.revokes), t_ms)

    def _count_cuts(self, cuts: Sequence[C], room: int, t_ms: int) -> tuple[list[C], list[C]]:
        """Let the first `room` in order count, and what the head lists beside them. Returns these, and who waits."""
        listed = self._rights.listed if self._rights else frozenset()
        for cut in cuts:
            if cut.id in listed:
                self._move(cut, State.IN, t_ms)
        line = sorted((cut for cut in cuts if cut.id not in listed), key=place_in_line)
        room = max(room, 0)
        counting, waiting, excess = line[:room], line[room : room + ASIDE_KEPT_MAX], line[room + ASIDE_KEPT_MAX :]
        for cuts_there, state in ((counting, State.IN), (waiting, State.OVER), (excess, State.FORGOTTEN)):
            for cut in cuts_there:
                self._move(cut, state, t_ms)
        return counting, waiting

    def _cut_revoked(self, records: Sequence[Record], t_ms: int) -> None:
        """Put aside what a revocation cuts, within bounds: a principal may revoke again and again."""
        line = in_order(records)
        for record in line[:ASIDE_KEPT_MAX]:
            self._move(record, State.CUT, t_ms)
        for record in line[ASIDE_KEPT_MAX:]:
            self._move(record, State.FORGOTTEN, t_ms)

    def _settle_charged(self, account: Account, t_ms: int, ended_ms: int) -> None:
        """Decide again everything that one principal is charged for. What ended by `ended_ms` takes no room."""
        self._settled += 1
        rights = self._rights
        charged: list[Record] = []
        revoked: list[Record] = []
        for record in [record for records in account.by_agent.values() for record in records.values()]:
            if isinstance(record, SealedRecord) and self._is_erased(record):
                self._move(record, State.ERASED, t_ms)
            elif rights is None or rights.problem(record) is not None:
                self._move(record, State.CUT, t_ms)
            elif self._is_revoked(record):
                revoked.append(record)
            elif record.id in rights.listed:
                self._move(record, State.IN, t_ms)
            else:
                charged.append(record)
        self._cut_revoked(revoked, t_ms)
        account.rebuild(in_order(charged))
        self._recount(account, ended_ms)

    def _recount(self, account: Account, t_ms: int) -> None:
        """Fill the quota of one principal anew, in order (rule Q1)."""
        if self._rights is not None:
            line = list(account.charged())
            over = passed_over(line, self._rights.quotas, t_ms)
            for record in line:
                if record.id in over:
                    self._move(record, State.OVER, t_ms)
                elif record.ends_at_ms > t_ms:
                    self._move(record, State.IN, t_ms)
            account.rebuild(line)
            self._forget_excess(account, t_ms)

    def _forget_excess(self, account: Account, t_ms: int) -> None:
        excess = account.over - ASIDE_KEPT_MAX
        if excess > 0:
            for record in account.latest_over(excess):
                account.remove(record)
                account.over -= 1
                self._move(record, State.FORGOTTEN, t_ms)

    def _apply_erasures(self, t_ms: int) -> None:
        """Rule V3, for retracts that came to count in this call."""
        emptied: dict[Address, Account] = {}
        for key, number in self._erased:
            asset = self._assets.get(key)
            for version in asset.numbered(number) if asset else ():
                for record in list(version.sealed):
                    if self._is_erased(record):
                        account = self._accounts[record.principal]
                        self._uncharge(account, record)
                        self._move(record, State.ERASED, t_ms)
                        emptied[account.principal] = account
        self._erased.clear()
        for account in emptied.values():
            if account.over:
                self._recount(account, t_ms)

    def _expire(self, account: Account, records: list[Record], t_ms: int) -> None:
        many = len(records) > 64
        for record in records:
            if not many:
                self._uncharge(account, record)
            self._move(record, State.EXPIRED, t_ms)
        if many:
            account.rebuild([other for other in account.charged() if not other.state.gone])
        if account.over:
            self._recount(account, t_ms)

    def _uncharge(self, account: Account, record: Record) -> None:
        """Take a record that is about to go out of its account's line and sums."""
        if record.state is State.CUT or (self._rights is not None and record.id in self._rights.listed):
            return
        if record.state is State.IN:
            account.count(record, -1)
        else:
            account.over -= 1
        account.remove(record)

    def _choose(self, rivals: list[EvidenceRecord]) -> list[EvidenceRecord]:
        """Of rightful evidence of one signer and one meaning, what is in the set: the lowest id (rules E3, E4).

        What a kept certificate names is never displaced, and displaces the others: else a lower id that means the same
        would make the certificate incomplete, and trust would fall by an approval.
        """
        certified = self._rights.certified if self._rights else frozenset()
        return [record for record in rivals if record.id in certified] or [min(rivals, key=lambda record: record.id)]

    def _chosen(self, version: Version) -> Iterator[EvidenceRecord]:
        """The evidence about a version that is in the set while the version is."""
        rights = self._rights
        for records in (version.evidence or {}).values():
            rightful = [record for record in records if rights is not None and rights.problem(record) is None]
            if rightful:
                yield from self._choose(rightful)

    def _settle_touched(self, t_ms: int) -> None:
        """Decide the evidence of the versions that this call has touched (rules E1, E3, E4)."""
        for version in self._touched.values():
            if version.evidence:
                present = version.present > 0
                chosen = {record.id for record in self._chosen(version)}
                for record in [record for records in version.evidence.values() for record in records]:
                    if not version.sealed:
                        self._move(record, State.FORGOTTEN, t_ms)
                    elif record.id in chosen:
                        self._move(record, State.IN if present else State.LONE, t_ms)
                    elif self._rights is not None and self._rights.problem(record) is None:
                        self._move(record, State.DISPLACED, t_ms)
                    else:
                        self._move(record, State.CUT, t_ms)
            if not version.sealed and not version.evidence:
                self._discard_version(version)
        self._touched.clear()

    def next_end_ms(self) -> int | None:
        """When something known ends next, or was aside long enough: a sweep has work then. None when nothing does."""
        ends = [heap[0][0] for heap in (self._expiries, self._asides if self._forgets else ()) if heap]
        return min(ends, default=None)

    def next_expiry_ms(self) -> int | None:
        """When something that may be read ends next: what is aside, nobody reads."""
        return self._expiries[0][0] if self._expiries else None

    @property
    def _forgets(self) -> bool:
        """Rule H3: what was cut goes after 24 hours, but not while the graph is forked or has no head."""
        return not self._forked and self._rights is not None

    def _forget_asides(self, t_ms: int, at_most: int | None = None) -> None:
        if not self._forgets:
            return
        left = len(self._asides) if at_most is None else at_most
        while left and self._asides and self._asides[0][0] <= t_ms:
            left -= 1
            since_ms, item_id = heappop(self._asides)
            record = self._records.get(item_id)
            if record and record.state is State.CUT and record.since_ms + CUT_KEPT_ASIDE_MS == since_ms:
                self._move(record, State.FORGOTTEN, t_ms)
        self._settle_touched(t_ms)

    def _in_set_at(self, at_ms: int) -> _Membership:
        """What will be in the set at a later instant, when nothing else happens but that things end."""
        out: set[bytes] = set()
        back: set[bytes] = set()
        if self._rights is not None:
            for account in self._accounts.values():
                if account.over:
                    over = passed_over(account.charged(), self._rights.quotas, at_ms)
                    out |= over
                    back.update(record.id for record in account.charged() if record.id not in over)
        return _Membership(at_ms, out, back)


@dataclass(frozen=True, slots=True)
class _Membership:
    at_ms: int
    out: set[bytes]
    back: set[bytes]

    def __call__(self, record: Record) -> bool:
        if record.ends_at_ms <= self.at_ms or record.id in self.out:
            return False
        return record.state is State.IN or record.id in self.back


def highest_revokes(revokes: Iterable[RevokeRecord]) -> dict[Address, RevokeRecord]:
    """For each agent the revoke that acts: the highest serial, at a tie the lowest id (rule D1)."""
    tops: dict[Address, RevokeRecord] = {}
    for revoke in revokes:
        if revoke.agent is None:
            continue
        top = tops.get(revoke.agent)
        if top is None or (-revoke.revoked_serial, revoke.id) < (-top.revoked_serial, top.id):
            tops[revoke.agent] = revoke
    return tops
