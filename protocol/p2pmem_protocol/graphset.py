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
insertion into its author's line; a head change settles the members that it judges otherwise.

What a head or a revocation cuts is kept aside for 24 hours, and as long as the graph is forked or has no head (rule
H3). What an older one of the same author pushes out of the quota is kept aside until it ends: it comes back where room
appears. What does not fit when it is offered is refused and not kept. Of what one principal can put aside by its own
doing, by backdating or by revoking, a bounded number is kept; peers agree all the same, since what is in the set of one
is offered to the others.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush

from p2pmem_protocol.accounts import ASIDE_KEPT_MAX, Account, in_order, passed_over, place_in_line
from p2pmem_protocol.deciding import Deciding
from p2pmem_protocol.envelope import Item
from p2pmem_protocol.errors import BugError, Reason, RefusedError
from p2pmem_protocol.holdings import Changes
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


class GraphSet(Deciding):
    """The set of one context graph. Starts without a head, so empty: `restore` what was known, then `set_head`."""

    def __init__(self, graph: GraphId, network: NetworkId) -> None:
        super().__init__()
        self.graph = graph
        self.network = network

    # Reading

    def revoked_agent_serial(self, principal: Address, agent: Address) -> int:
        """Up to which serial the principal has ended its delegations to the agent; 0 for none (rule D1)."""
        revoke = self._revoked.get((principal, agent))
        return revoke.revoked_serial if revoke is not None else 0

    def reconciled(self, t_ms: int, kinds: Collection[Kind] | None = None) -> list[tuple[int, bytes]]:
        """R(t): the set as it will be a minute after `t_ms`, as (place, id) in order (rule R1).

        `t_ms` is the later of both clocks, `kinds` those that both peers know. The place is the end, `FOREVER` for what
        stays; evidence stands at the place of its subject.
        """
        at_ms = t_ms + RECONCILE_LEAD_MS
        stays = self._in_set_at(at_ms)
        found: list[tuple[int, bytes]] = []
        for asset in self._assets.values():
            for version in asset.versions:
                if not version.evidence:
                    continue
                place = max((record.ends_at_ms for record in version.sealed if stays(record)), default=0)
                if place:
                    found += [
                        (place, record.id) for record in self._chosen(version) if kinds is None or record.kind in kinds
                    ]
        for record in self._records.values():
            if record.kind not in _EVIDENCE and stays(record) and (kinds is None or record.kind in kinds):
                found.append((record.ends_at_ms, record.id))
        found.sort()
        return found

    @property
    def is_crowded(self) -> bool:
        """Whether somebody has more than his quota: then what counts later is not only what has not ended by then."""
        return any(account.over for account in self._accounts.values())

    def place_of(self, item_id: bytes) -> int | None:
        """Where a thing in the set stands in `reconciled`; None when that of others has changed with it."""
        record = self._records[item_id]
        if isinstance(record, EvidenceRecord):
            sealed = self._version_of(record.subject).sealed
            return max((other.ends_at_ms for other in sealed if other.state is State.IN), default=None)
        if isinstance(record, SealedRecord) and self._version_of(record.key).evidence:
            return None
        return record.ends_at_ms

    # Changing

    def restore(self, item: Item, encoded_size_bytes: int, state: State, since_ms: int = 0) -> None:
        """Put back a known thing from the ledger, untested, as it stood. Call `set_head` when all are back."""
        self.restore_record(record_of(item, encoded_size_bytes), state, since_ms)

    def restore_record(self, record: Record, state: State, since_ms: int = 0) -> None:
        """The same for a record that the ledger has kept; it is this set's from now on."""
        if self._rights is not None:
            raise BugError("things are restored before the first head is set")
        self._place(record)
        record.state = state
        record.since_ms = since_ms
        if state is State.IN:
            self._enter(record)
        elif state is State.CUT:
            heappush(self._asides, (since_ms + CUT_KEPT_ASIDE_MS, record.id))
        self._begin()

    def set_head(
        self,
        roster: Roster | None,
        t_ms: int,
        *,
        forked: bool = False,
        named: Collection[bytes] = (),
        lets_go: bool = True,
    ) -> Changes:
        """Judge everything under another head. `forked`: the head is a parent of branches that contradict each other.

        `named`: ids of the quorums that the head and the headers before it name (`HeadChain.quorums_of`). A certificate
        that the head keeps under another does not count. Call this again when an earlier header comes.

        `lets_go` is False after a start, and while the clock is in doubt: what has ended, or was aside too long, is
        left to a sweep.

        Without a head nothing is in the set, and nothing that is known goes.
        """
        if roster is not None and roster.graph != self.graph:
            raise BugError("the head of another context graph")
        before = self._rights
        self._rights = Rights(roster, named) if roster else None
        self._forked = forked
        ended_ms = t_ms if lets_go else 0
        accounts, evidence_too = self._judged_otherwise(before)
        for account in accounts:
            self._settle_cuts(account, t_ms)
        for account in accounts:
            self._settle_charged(account, t_ms, ended_ms)
        # Only now do all lines fit the new head, so that what others' retracts erase can be taken out of them.
        self._apply_erasures(ended_ms)
        if evidence_too:
            self._touch_evidence(changed=not _same_judges(before, self._rights))
        self._settle_touched(t_ms)
        self._forget_asides(ended_ms)
        return self._collect()

    def test(self, item: Item, encoded_size_bytes: int, t_ms: int) -> None:
        """Raises `RefusedError` unless `item` may be admitted at `t_ms`. Reads no signature and changes nothing."""
        self._test(item, encoded_size_bytes, t_ms)

    def admit(
        self,
        item: Item,
        encoded_size_bytes: int,
        t_ms: int,
        *,
        checked: bool = False,
        check_rest: Callable[[], object] | None = None,
    ) -> Changes:
        """Take `item` into the set, or raise `RefusedError` and change nothing.

        In a reconciliation `t_ms` is the later of both clocks. `checked` says that the signatures were found right.
        `check_rest` stands in for the check of the signatures: what costs more than all tests, so it is called after
        them, and raises `RefusedError` to keep the item out.
        """
        record = self._test(item, encoded_size_bytes, t_ms)
        if check_rest is not None:
            check_rest()
        elif not checked:
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

    def sweep(self, t_ms: int, at_most: int | None = None) -> Changes:
        """Let go what has ended at `t_ms` and what was aside too long; let in again what now finds room.

        With `at_most` only so many of either, those first that are due longest; while `next_end_ms` has come, call it
        again for the others.
        """
        ended: dict[Address, dict[bytes, Record]] = {}
        left = len(self._expiries) if at_most is None else at_most
        while left and self._expiries and self._expiries[0][0] <= t_ms:
            left -= 1
            _, item_id = heappop(self._expiries)
            # What went before its end and came again is here twice.
            record = self._records.get(item_id)
            if record is not None:
                ended.setdefault(record.principal, {})[item_id] = record
        for principal, records in ended.items():
            self._expire(self._accounts[principal], list(records.values()), t_ms)
        self._settle_touched(t_ms)
        self._forget_asides(t_ms, at_most)
        return self._collect()

    # A head

    def _judged_otherwise(self, before: Rights | None) -> tuple[list[Account], bool]:
        """The accounts that the new head may judge otherwise than the one before, and whether evidence may be too."""
        now = self._rights
        everything = (list(self._accounts.values()), True)
        if before is None or now is None:
            return everything
        members = now.whose_rights_differ(before)
        if members is None:
            return everything
        relisted = [self._records.get(item_id) for item_id in before.listed ^ now.listed]
        principals = members.union(record.principal for record in relisted if record is not None)
        evidence_too = (
            before.certificates != now.certificates
            or any(isinstance(record, EvidenceRecord) for record in relisted)
            or any(before.is_endorser(member) or now.is_endorser(member) for member in members)
        )
        return [account for account in self._accounts.values() if account.principal in principals], evidence_too

    def _touch_evidence(self, *, changed: bool) -> None:
        for asset in self._assets.values():
            for version in asset.versions:
                if version.evidence:
                    self._touched[version.key] = version
                    if changed:
                        self._changed.add(asset.key)

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
        """Whether the quota of its principal lets `record` count. In few steps, but where things wait for a sweep."""
        account = self._accounts.get(record.principal)
        if account is None:
            account = Account(record.principal)
        if isinstance(record, RevokeRecord):
            return _is_among_first(record, account.revokes, rights.quotas.cuts)
        if isinstance(record, RetractRecord):
            return _is_among_first(record, account.retracts, rights.quotas.cuts - len(account.revokes))
        if account.usage.has_room(record, rights.quotas) and not account.over:
            return True
        if not account.has_ended(t_ms):
            return account.has_room(record, rights.quotas)
        return record.id not in passed_over(in_order([*account.charged(), record]), rights.quotas, t_ms)

    def _admit_charged(self, record: Record, t_ms: int) -> None:
        rights = self._rights
        assert rights is not None
        if record.id in rights.listed:
            self._move(record, State.IN, t_ms)
            return
        account = self._accounts[record.principal]
        fits_beside_all = account.usage.has_room(record, rights.quotas)
        account.insert(record)
        if account.over + (not fits_beside_all) and account.has_ended(t_ms):
            self._recount(account, t_ms)
        elif fits_beside_all:
            account.count(record, 1)
            self._move(record, State.IN, t_ms)
        else:
            for changed, state in account.settle_from(record, rights.quotas):
                account.count(changed, 1 if state is State.IN else -1)
                account.over += -1 if changed.state is State.OVER else state is State.OVER
                self._move(changed, state, t_ms)
            self._forget_excess(account, t_ms)

    def _admit_cut(self, record: RetractRecord | RevokeRecord, t_ms: int) -> None:
        rights = self._rights
        assert rights is not None
        account = self._accounts[record.principal]
        if isinstance(record, RetractRecord):
            self._move(record, State.IN, t_ms)
            if record.id not in rights.listed:
                insort(account.retracts, record, key=place_in_line)
                if len(account.retracts) > rights.quotas.cuts - len(account.revokes):
                    self._wait(account, account.retracts.pop(), t_ms)
        else:
            self._settle_cuts(account, t_ms)
            self._settle_charged(account, t_ms, t_ms)
        self._apply_erasures(t_ms)

    def _wait(self, account: Account, retract: RetractRecord, t_ms: int) -> None:
        """Put a retract aside that was pushed out of the count."""
        self._move(retract, State.OVER, t_ms)
        insort(account.waiting, retract, key=place_in_line)
        if len(account.waiting) > ASIDE_KEPT_MAX:
            self._move(account.waiting.pop(), State.FORGOTTEN, t_ms)

    def _admit_evidence(self, record: EvidenceRecord, t_ms: int) -> None:
        """What it displaces, of the same signer and meaning, is gone for good (rules E3, E4)."""
        slot = (self._version_of(record.subject).evidence or {})[record.slot]
        rivals = [other for other in slot if other.state is State.IN]
        chosen = self._choose([record, *rivals])
        for rival in rivals:
            if rival not in chosen:
                self._move(rival, State.DISPLACED, t_ms)
        self._move(record, State.IN, t_ms)


def _is_among_first(record: Record, counting: Sequence[Record], room: int) -> bool:
    """Whether a cut counts beside those that count now, in order, when `room` may."""
    return len(counting) < room or (room > 0 and record.order < counting[-1].order)


_EVIDENCE = frozenset((Kind.ENDORSE, Kind.VERDICT))


def _same_judges(before: Rights | None, now: Rights | None) -> bool:
    """Whether two heads give evidence in the set the same weight."""
    if before is None or now is None:
        return before is now
    return before.quorum_id == now.quorum_id and before.certificates == now.certificates
