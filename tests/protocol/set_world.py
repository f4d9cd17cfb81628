"""One small graph for the tests of the set: two writers, one of whom endorses, and two verifiers."""

from __future__ import annotations

from p2pmem_protocol.envelope import Item
from p2pmem_protocol.roster import Quotas

from tests.protocol import world
from tests.protocol.world import E, Peer, V, W, act_for, roster

MEMBERS = {"alice": W, "bob": W | E, "v1": V, "v2": V}
HEAD = roster(MEMBERS, 2)
Q = HEAD.quorum
WITHOUT_ALICE = {name: roles for name, roles in MEMBERS.items() if name != "alice"}
HELPER = act_for("alice", "helper")


def ids(peer: Peer) -> set[bytes]:
    return {record.id for record in peer.set.records()}


def removed(*kept: Item) -> world.Roster:
    return roster(WITHOUT_ALICE, 2, parent=HEAD, kept=tuple(item.id for item in kept))


def limited(**quotas: int) -> world.Roster:
    return roster(MEMBERS, 2, quotas=Quotas(**quotas))
