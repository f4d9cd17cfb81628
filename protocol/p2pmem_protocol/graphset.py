"""The set of a context graph: what is admitted, under which head, at what time. An incremental state machine.

It is fed from a ledger and does no IO. After each call its content is a pure function of what is *known* (everything
that was admitted and is not gone), the head roster and the latest time that was named:

    1  rights      what the head gives no right is cut (`rights`); its owner's lists stand in for roles
    2  cuts        revokes count up to their quota, then cut what was signed under the delegations that they end;
                   retracts that are left count up to what remains of that quota (rules Q2, D1)
    3  erasure     shares and publishes of a version that a counting retract erases are gone (rule V3)
    4  quota       of what is left of each principal, in the order (issued_at, id), what fits counts (rule Q1)
    5  evidence    is in while a share or publish of its subject is, of each meaning the lowest id (rules E1, E3, E4)

Steps never look back, so a change is followed downwards only. An ordinary share costs a few dictionary look-ups and one
insertion into its author's sorted list; a head change settles everything.

What a head or a revocation cuts is kept aside for 24 hours, and as long as the graph is forked or has no head (rule
H3). What an older one of the same author pushes out of the quota is kept aside until it ends: it must come back where
room appears, since another member may have admitted it in another order. What does not fit when it is offered is
refused and not kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush

from p2pmem_protocol.accounts import OVER_KEPT_MAX, Account, first_in_order, passed_over
from p2pmem_protocol.assets import Version
from p2pmem_protocol.bodies import RetractMode
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import BugError, Reason, RefusedError
from p2pmem_protocol.holdings import Changes, Holdings
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CUT_KEPT_ASIDE_MS, RECONCILE_LEAD_MS
from p2pmem_protocol.names import Address, GraphId, NetworkId
from p2pmem_protocol.records import (
    EvidenceRecord,
    Record,
    RetractRecord,
    RevokeRecord,
    SealedRecord,
    State,
    record_of,
)
from p2pmem_protocol.rights import Rights, check_time
from p2pmem_protocol.roster import Roster

_WORDS = {
    Reason.NOT_LISTED: "the head lists neither its signer for this nor its id",
    Reason.LIFE_TOO_LONG: "it lives longer than the head allows",
    Reason.WRONG_QUORUM: "it names another quorum than the head's",
    Reason.OVER_QUOTA: "its content is larger than the head allows",
}


class GraphSet(Holdings):
    """The set of one context graph. Starts without a head, so empty: `restore` what was known, then `set_head`."""

    def __init__(self, graph: GraphId, network: NetworkId) -> None:
        super().__init__()
        self.graph = graph
        self.network = network
        self._rights: Rights | None = None
        self._forked = False
        self._revoked: dict[tuple[Address, Address], RevokeRecord] = {}

    # Reading

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

    def reconciled(self, t_ms: int, kinds: Collection[Kind] | None = None) -> list[tuple[int, bytes]]:
        """R(t): the set as it will be a minute after `t_ms`, as (place, id) in order (rule R1).

        `t_ms` is the later of both clocks, `kinds` those that both peers know. The place is the end, `FOREVER` for what
        stays; evidence stands at the place of its subject.
        """
        at_ms = t_ms + RECONCILE_LEAD_MS
        stays = self._in_set_at(at_ms)
        found: list[tuple[int, bytes]] = []
        for asset in self._assets.values():
            for version in asset.versions.values():
                if not version.evidence:
                    continue
                place = max((record.ends_at_ms for record in version.sealed.values() if stays(record)), default=0)
                if place:
                    found += [
                        (place, record.id) for record in self._chosen(version) if kinds is None or record.kind in kinds
                    ]
        for record in self._records.values():
            if record.kind not in _EVIDENCE and stays(record) and (kinds is None or record.kind in kinds):
                found.append((record.ends_at_ms, record.id))
        found.sort()
        return found

    # Changing

    def restore(self, item: Item, encoded_size_bytes: int, state: State, since_ms: int = 0) -> None:
        """Put back a known thing from the ledger, untested, as it stood. Call `set_head` when all are back."""
        if self._rights is not None:
            raise BugError("things are restored before the first head is set")
        record = record_of(item, encoded_size_bytes)
        self._place(record)
        record.state = state
        record.since_ms = since_ms
        if state is State.IN:
            self._enter(record)
        elif state is State.CUT:
            heappush(self._asides, (since_ms + CUT_KEPT_ASIDE_MS, record.id))
        self._begin()

    def set_head(self, roster: Roster | None, t_ms: int, *, forked: bool = False) -> Changes:
        """Judge everything under another head. `forked`: the head is a parent of branches that contradict each other.

        Without a head nothing is in the set, and nothing that is known goes.
        """
        if roster is not None and roster.graph != self.graph:
            raise BugError("the head of another context graph")
        before = self._rights.roster if self._rights else None
        self._rights = Rights(roster) if roster else None
        self._forked = forked
        accounts = list(self._accounts.values())
        for account in accounts:
            self._settle_cuts(account, t_ms)
        self._erased.clear()
        for account in accounts:
            self._settle_charged(account, t_ms)
        for asset in self._assets.values():
            for version in asset.versions.values():
                if version.evidence:
                    self._touched[version.key] = version
                    if not _same_judges(before, roster):
                        self._changed.add(asset.key)
        self._settle_touched(t_ms)
        self._forget_asides(t_ms)
        return self._collect()

    def test(self, item: Item, encoded_size_bytes: int, t_ms: int) -> None:
        """Raises `RefusedError` unless `item` may be admitted at `t_ms`. Reads no signature and changes nothing."""
        self._test(item, encoded_size_bytes, t_ms)

    def admit(self, item: Item, encoded_size_bytes: int, t_ms: int, *, checked: bool = False) -> Changes:
        """Take `item` into the set, or raise `RefusedError` and change nothing.

        In a reconciliation `t_ms` is the later of both clocks. `checked` says that the signatures were found right.
        """
        record = self._test(item, encoded_size_bytes, t_ms)
        if not checked:
            item.check()
        self._place(record)
        if isinstance(record, EvidenceRecord):
            self._admit_evidence(record, t_ms)
        elif isinstance(record, RetractRecord | RevokeRecord):
            self._admit_cut(record, t_ms)
        else:
            self._admit_charged(record, t_ms)
        self._settle_touched(t_ms)
        changes = self._collect()
        assert record.state is State.IN
        return changes

    def sweep(self, t_ms: int) -> Changes:
        """Let go what has ended at `t_ms` and what was aside too long; let in again what now finds room."""
        ended: dict[Address, dict[bytes, Record]] = {}
        while self._expiries and self._expiries[0][0] <= t_ms:
            _, item_id = heappop(self._expiries)
            # What went before its end and came again is here twice.
            record = self._records.get(item_id)
            if record is not None:
                ended.setdefault(record.principal, {})[item_id] = record
        for principal, records in ended.items():
            self._expire(self._accounts[principal], list(records.values()), t_ms)
        self._settle_touched(t_ms)
        self._forget_asides(t_ms)
        return self._collect()

    # Admission

    def _test(self, item: Item, encoded_size_bytes: int, t_ms: int) -> Record:
        if item.network != self.network:
            raise RefusedError(Reason.WRONG_NETWORK, "signed for another network")
        if item.graph != self.graph:
            raise RefusedError(Reason.UNKNOWN_GRAPH, "signed for another context graph")
        known = self._records.get(item.id)
        if known is not None:
            raise RefusedError(Reason.DUPLICATE, f"already known; it stands {known.state.value}")
        rights = self._rights
        if rights is None:
            raise RefusedError(Reason.NO_HEAD, "this context graph has no head here; nothing can be judged")
        record = record_of(item, encoded_size_bytes)
        check_time(record, t_ms)
        problem = rights.problem(record)
        if problem is not None:
            raise RefusedError(problem, f"a {record.kind.word} by {record.author}: {_WORDS[problem]}")
        if self._is_revoked(record):
            raise RefusedError(Reason.REVOKED, f"{record.principal} ended its delegation to {record.author}")
        if isinstance(record, EvidenceRecord):
            self._check_evidence(record, t_ms)
            return record
        if isinstance(record, SealedRecord) and self._is_erased(record):
            raise RefusedError(Reason.ERASED, f"{record.key} was retracted with erase")
        if record.id not in rights.listed and not self._has_room(record, rights, t_ms):
            raise RefusedError(Reason.OVER_QUOTA, f"the quota of {record.principal} has no room for it")
        return record

    def _check_evidence(self, record: EvidenceRecord, t_ms: int) -> None:
        version = self.version(record.subject)
        if version is None or not any(version.live(t_ms)):
            raise RefusedError(Reason.SUBJECT_NOT_HELD, f"no share or publish of {record.subject} is in the set")
        others = (version.evidence or {}).get(record.slot, ())
        if record not in self._choose([record, *(other for other in others if other.state is State.IN)]):
            raise RefusedError(Reason.SUPERSEDED, "the same is known of this signer, with a lower id")

    def _has_room(self, record: Record, rights: Rights, t_ms: int) -> bool:
        account = self._accounts.get(record.principal)
        if account is None:
            account = Account(record.principal)
        if isinstance(record, RetractRecord | RevokeRecord):
            if len(account.cuts) < rights.quotas.cuts:
                return True
            return self._decide_cuts([*account.cuts.values(), record])[record.id] is State.IN
        exact = not self._has_ended(t_ms)
        if account.fits(record, rights.quotas) and (exact or not account.over):
            return True
        if exact and account.is_last(record):
            return False
        entries = sorted([*account.charged, (record.issued_at_ms, record.id, record)])
        return record.id not in passed_over(entries, rights.quotas, t_ms)

    def _has_ended(self, t_ms: int) -> bool:
        """Whether something that has ended at `t_ms` still waits for a sweep."""
        return bool(self._expiries) and self._expiries[0][0] <= t_ms

    def _admit_charged(self, record: Record, t_ms: int) -> None:
        rights = self._rights
        assert rights is not None
        if record.id in rights.listed:
            self._move(record, State.IN, t_ms)
            return
        account = self._accounts[record.principal]
        account.insert(record)
        if account.fits(record, rights.quotas) and not (account.over and self._has_ended(t_ms)):
            account.count(record, 1)
            self._move(record, State.IN, t_ms)
        else:
            self._recount(account, t_ms)

    def _admit_cut(self, record: RetractRecord | RevokeRecord, t_ms: int) -> None:
        rights = self._rights
        assert rights is not None
        account = self._accounts[record.principal]
        if isinstance(record, RetractRecord) and len(account.cuts) <= rights.quotas.cuts:
            self._move(record, State.IN, t_ms)
        else:
            self._settle_cuts(account, t_ms)
            self._settle_charged(account, t_ms)
        self._apply_erasures(t_ms)

    def _admit_evidence(self, record: EvidenceRecord, t_ms: int) -> None:
        """What it displaces, of the same signer and meaning, is gone for good (rules E3, E4)."""
        slot = (self._version_of(record.subject).evidence or {})[record.slot]
        rivals = [other for other in slot if other.state is State.IN]
        chosen = self._choose([record, *rivals])
        for rival in rivals:
            if rival not in chosen:
                self._move(rival, State.DISPLACED, t_ms)
        self._move(record, State.IN, t_ms)

    # Deciding

    def _is_revoked(self, record: Record) -> bool:
        """Rule D1: signed under a delegation that its principal has ended, and not among the ids that stay."""
        if not record.delegated:
            return False
        revoke = self._revoked.get((record.principal, record.author))
        return revoke is not None and record.serial <= revoke.revoked_serial and record.id not in revoke.kept

    def _is_erased(self, record: SealedRecord) -> bool:
        return any(
            retract.mode is RetractMode.ERASE and retract.version == record.key.version and covers(retract, record)
            for retract in self._retracts[record.key.asset]
        )

    def _decide_cuts(self, records: Iterable[RetractRecord | RevokeRecord]) -> dict[bytes, State]:
        """Where each retract and revoke of one principal stands: revokes first, then the retracts that they leave."""
        rights = self._rights
        states: dict[bytes, State] = {}
        revokes: list[RevokeRecord] = []
        retracts: list[RetractRecord] = []
        for record in records:
            if rights is None or rights.problem(record) is not None:
                states[record.id] = State.CUT
            elif isinstance(record, RevokeRecord):
                revokes.append(record)
            else:
                retracts.append(record)
        if rights is None:
            return states
        room = rights.quotas.cuts
        counting: list[RevokeRecord] = []
        counted = first_in_order((record for record in revokes if record.id not in rights.listed), room)
        for revoke in revokes:
            counts = revoke.id in counted or revoke.id in rights.listed
            states[revoke.id] = State.IN if counts else State.OVER
            if counts:
                counting.append(revoke)
        tops = highest_revokes(counting)
        left: list[RetractRecord] = []
        for retract in retracts:
            top = tops.get(retract.author) if retract.delegated else None
            if top and retract.serial <= top.revoked_serial and retract.id not in top.kept:
                states[retract.id] = State.CUT
            elif retract.id in rights.listed:
                states[retract.id] = State.IN
            else:
                left.append(retract)
        counted = first_in_order(left, room - len(counted))
        for retract in left:
            states[retract.id] = State.IN if retract.id in counted else State.OVER
        return states

    def _settle_cuts(self, account: Account, t_ms: int) -> None:
        records = list(account.cuts.values())
        for item_id, state in self._decide_cuts(records).items():
            self._move(account.cuts[item_id], state, t_ms)
        counting = [record for record in records if isinstance(record, RevokeRecord) and record.state is State.IN]
        for revoke in (record for record in records if isinstance(record, RevokeRecord)):
            if revoke.agent is not None:
                self._revoked.pop((account.principal, revoke.agent), None)
        for agent, top in highest_revokes(counting).items():
            self._revoked[account.principal, agent] = top

    def _settle_charged(self, account: Account, t_ms: int) -> None:
        """Decide again everything that one principal is charged for."""
        self._settled += 1
        rights = self._rights
        charged: list[tuple[int, bytes, Record]] = []
        for record in [record for records in account.by_agent.values() for record in records]:
            if isinstance(record, SealedRecord) and self._is_erased(record):
                self._move(record, State.ERASED, t_ms)
            elif rights is None or rights.problem(record) is not None or self._is_revoked(record):
                self._move(record, State.CUT, t_ms)
            elif record.id in rights.listed:
                self._move(record, State.IN, t_ms)
            else:
                charged.append((record.issued_at_ms, record.id, record))
        charged.sort()
        account.charged = charged
        self._recount(account, t_ms)

    def _recount(self, account: Account, t_ms: int) -> None:
        """Fill the quota of one principal anew, in order (rule Q1)."""
        account.live_bytes = account.live_items = account.durable_items = account.over = 0
        if self._rights is None:
            assert not account.charged
            return
        over = passed_over(account.charged, self._rights.quotas, t_ms)
        for _, item_id, record in account.charged:
            if item_id in over:
                account.over += 1
                self._move(record, State.OVER, t_ms)
            elif record.ends_at_ms > t_ms or record.state is State.IN:
                account.count(record, 1)
                self._move(record, State.IN, t_ms)
            else:
                account.over += 1
        excess = account.over - OVER_KEPT_MAX
        if excess > 0:
            latest = [entry[2] for entry in reversed(account.charged) if entry[2].state is State.OVER][:excess]
            for record in latest:
                self._move(record, State.FORGOTTEN, t_ms)
            account.remove_gone()
            account.over = OVER_KEPT_MAX

    def _apply_erasures(self, t_ms: int) -> None:
        """Rule V3, for retracts that came to count in this call."""
        emptied: dict[Address, Account] = {}
        for key, number in self._erased:
            asset = self._assets.get(key)
            for version in asset.numbered(number) if asset else ():
                for record in list(version.sealed.values()):
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
        for record in records:
            self._uncharge(account, record, listed_later=len(records) > 32)
            self._move(record, State.EXPIRED, t_ms)
        if len(records) > 32:
            account.remove_gone()
        if account.over:
            self._recount(account, t_ms)

    def _uncharge(self, account: Account, record: Record, *, listed_later: bool = False) -> None:
        """Take a record that is about to go out of its account's list and totals."""
        assert self._rights is not None or record.state is State.CUT
        if record.state is State.CUT or (self._rights is not None and record.id in self._rights.listed):
            return
        if record.state is State.IN:
            account.count(record, -1)
        else:
            account.over -= 1
        if not listed_later:
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

    def _forget_asides(self, t_ms: int) -> None:
        """Rule H3: what was cut goes after 24 hours, but not while the graph is forked or has no head."""
        if self._forked or self._rights is None:
            return
        while self._asides and self._asides[0][0] <= t_ms:
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
                    over = passed_over(account.charged, self._rights.quotas, at_ms)
                    out |= over
                    back.update(item_id for _, item_id, _ in account.charged if item_id not in over)
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


def covers(retract: RetractRecord, record: SealedRecord) -> bool:
    """Whether a retract of this version number takes back this share or publish of it (rule V2)."""
    return not retract.as_principal or record.principal == retract.author


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


_EVIDENCE = frozenset((Kind.ENDORSE, Kind.VERDICT))


def _same_judges(before: Roster | None, after: Roster | None) -> bool:
    """Whether two heads give evidence the same weight."""
    if before is None or after is None:
        return before is after
    return before.quorum == after.quorum and before.body.certificates == after.body.certificates
