"""The head of a context graph: rules H1, H2 and H5, in every order of arrival."""

from __future__ import annotations

import contextlib
import itertools
import random
from dataclasses import replace

import pytest
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.hashing import ZERO_HASH
from p2pmem_protocol.heads import FORKED_RIGHTS, ROOT_ACTS_MAX, HeadChain, HeadState
from p2pmem_protocol.names import network_id
from p2pmem_protocol.roster import Header, Parts, Role, Roster, SignedHeader

from tests.protocol.world import GRAPH, NETWORK, E, V, W, address, roster, signer

MEMBERS = {"alice": W, "bob": W, "v1": V}


def chain_of(*rosters: Roster) -> HeadChain:
    chain = HeadChain(GRAPH, NETWORK)
    for each in rosters:
        chain.add(each.signed)
    return chain


def head_of(*rosters: Roster) -> HeadState:
    return chain_of(*rosters).head()


def child(parent: Roster, label: str = "", owner: str = "owner") -> Roster:
    """A roster after `parent`, different for each label."""
    return roster({**MEMBERS, **({label: W} if label else {})}, 1, parent=parent, owner=owner)


def act(parent: Roster, label: str = "", term: int | None = None) -> Roster:
    return roster({**MEMBERS, **({label: W} if label else {})}, 1, parent=parent, term=term or parent.header.term + 1)


FIRST = roster(MEMBERS, 1)


def test_h1_the_head_is_the_same_whatever_the_order_of_headers() -> None:
    second = child(FIRST)
    left, right = child(second, "left"), child(second, "right")
    below = child(left, "below")
    root = act(second)
    after = child(root)
    headers = [each.signed for each in (FIRST, second, left, right, below, root, after)]
    found = set()
    for order in itertools.islice(itertools.permutations(headers), 0, None, 13):
        chain = HeadChain(GRAPH, NETWORK)
        assert {each.id for each in chain.add_all(order, checked=True)} == {each.id for each in headers}
        found.add((chain.head(), tuple(each.id for each in chain.headers())))
    assert len(found) == 1
    ((state, _),) = found
    assert state.header == after.signed
    assert not state.forked


def test_h1_of_several_children_the_two_lowest_ids_suffice() -> None:
    children = [child(FIRST, f"member-{number}") for number in range(5)]
    lowest = sorted(each.id for each in children)[:2]
    for seed in range(20):
        chain = chain_of(FIRST)
        shuffled = random.Random(seed).sample(children, 5)
        chain.add_all([each.signed for each in shuffled])
        state = chain.head()
        assert state.header == FIRST.signed
        assert state.branches == tuple(lowest)
        assert len(chain) == 3
    highest = max(children, key=lambda each: each.id)
    with pytest.raises(RefusedError) as refused:
        chain.add(highest.signed)
    assert refused.value.reason is Reason.SUPERSEDED


def test_h1_what_descends_from_a_dropped_child_goes_with_it() -> None:
    children = sorted((child(FIRST, f"member-{number}") for number in range(3)), key=lambda each: each.id)
    below = child(children[2])
    chain = chain_of(FIRST, children[2], below)
    assert chain.head().header == below.signed
    chain.add(children[0].signed)
    chain.add(children[1].signed)
    assert below.id not in chain
    with pytest.raises(RefusedError) as refused:
        chain.add(below.signed)
    assert refused.value.reason is Reason.PARENT_NOT_HELD


def test_h1_a_fork_below_a_dropped_child_goes_with_it() -> None:
    children = sorted((child(FIRST, f"member-{number}") for number in range(3)), key=lambda each: each.id)
    forks = [child(children[2], "left"), child(children[2], "right")]
    below = [child(each, "below") for each in forks]
    chain = chain_of(FIRST, children[2], *forks, *below)
    assert len(chain) == 6
    chain.add_all([each.signed for each in children[:2]])
    assert {each.id for each in chain.headers()} == {FIRST.id, children[0].id, children[1].id}


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_h1_children_that_come_one_by_one_leave_the_parent_as_head(order: tuple[int, ...]) -> None:
    children = sorted((child(FIRST, f"member-{number}") for number in range(3)), key=lambda each: each.id)
    chain = chain_of(FIRST)
    for number in order:
        with contextlib.suppress(RefusedError):
            chain.add(children[number].signed)
    assert chain.head().header == FIRST.signed
    assert chain.head().branches == (children[0].id, children[1].id)


def test_headers_are_told_with_every_parent_before_its_children() -> None:
    second = child(FIRST)
    root = act(second)
    chain = chain_of(root, FIRST, second)
    assert chain.headers() == (FIRST.signed, second.signed, root.signed)
    assert chain.get(second.id) == second.signed
    assert chain.get(ZERO_HASH) is None


def test_what_cannot_be_a_header_of_this_graph_ends_the_taking_in_after_those_before_it() -> None:
    second = child(FIRST)
    other = act(second).signed
    foreign = replace(other, header=replace(other.header, network=network_id("other")))
    chain = HeadChain(GRAPH, NETWORK)
    with pytest.raises(RefusedError) as refused:
        chain.add_all([foreign, second.signed, FIRST.signed])
    assert refused.value.reason is Reason.WRONG_NETWORK
    assert chain.head().header == second.signed


def test_h2_the_head_is_where_the_walk_along_only_children_ends() -> None:
    second = child(FIRST)
    third = child(second)
    assert head_of(FIRST).header == FIRST.signed
    assert head_of(FIRST, second, third).header == third.signed


def test_h2_two_children_of_one_parent_leave_the_parent_as_head_and_say_so() -> None:
    second = child(FIRST)
    left, right = child(second, "left"), child(second, "right")
    state = head_of(FIRST, second, left, right)
    assert state.header == second.signed
    assert state.forked
    assert state.branches == tuple(sorted((left.id, right.id)))
    assert FORKED_RIGHTS in state.why


def test_h2_a_longer_branch_does_not_win() -> None:
    second = child(FIRST)
    left, right = child(second, "left"), child(second, "right")
    longer = child(child(left, "a"), "b")
    state = head_of(FIRST, second, right, left, child(left, "a"), longer)
    assert state.header == second.signed


def test_h2_a_root_act_beats_whatever_does_not_descend_from_it() -> None:
    second = child(FIRST)
    third = child(second)
    root = act(FIRST, "mended")
    assert head_of(FIRST, second, third, root).header == root.signed


def test_h2_a_root_act_stands_alone() -> None:
    root = act(child(FIRST))
    state = head_of(root)
    assert state.header == root.signed
    assert not state.forked


def test_h2_the_next_term_ends_a_fork() -> None:
    left, right = child(FIRST, "left"), child(FIRST, "right")
    chain = chain_of(FIRST, left, right)
    assert chain.next_term == 2
    mended = act(FIRST, "mended", chain.next_term)
    chain.add(mended.signed)
    assert chain.head() == head_of(mended)


def test_h2_several_root_acts_of_one_term_leave_their_nearest_common_ancestor() -> None:
    second = child(FIRST)
    third = child(second)
    one, two = act(second, "one"), act(third, "two")
    state = head_of(FIRST, second, third, one, two)
    assert state.header == second.signed
    assert state.forked
    assert state.branches == tuple(sorted((one.id, two.id)))
    assert FORKED_RIGHTS in state.why
    for number in range(6):
        three = act(FIRST, f"three-{number}")
        assert head_of(FIRST, second, third, one, two, three).header == FIRST.signed


def test_h2_there_is_no_head_when_the_common_ancestor_is_not_held_or_does_not_exist() -> None:
    second = child(FIRST)
    state = head_of(act(second, "one"), act(second, "two"))
    assert state.header is None
    assert state.forked
    assert "a common ancestor that is not held" in state.why
    other = roster({"alice": W}, 0)
    state = head_of(FIRST, other)
    assert state.header is None
    assert state.forked
    assert "no common ancestor" in state.why


def test_h2_there_is_no_head_of_nothing() -> None:
    chain = HeadChain(GRAPH, NETWORK)
    state = chain.head()
    assert state.header is None
    assert not state.forked
    assert state.branches == head_of(FIRST).branches == ()
    assert chain.next_term == 1


def test_h2_a_header_waits_for_its_parent() -> None:
    second = child(FIRST)
    chain = HeadChain(GRAPH, NETWORK)
    with pytest.raises(RefusedError) as refused:
        chain.add(second.signed)
    assert refused.value.reason is Reason.PARENT_NOT_HELD
    assert chain.add(FIRST.signed)
    assert chain.add(second.signed)
    assert not chain.add(second.signed)


def resigned(header: Header, by: str) -> SignedHeader:
    return replace(header, signer=address(by)).sign(signer(by))


@pytest.mark.parametrize(
    ("change", "by"),
    [
        ({"version": 3}, "owner"),
        ({"version": 1}, "owner"),
        ({"owner": address("mallory")}, "owner"),
        ({}, "mallory"),
        ({}, "root"),
        ({"quorum_serial": 2}, "owner"),
        ({"quorum": b"q" * 32}, "owner"),
        ({"quorum_serial": 3, "quorum": b"q" * 32}, "owner"),
        ({"quorum_serial": 0, "quorum": b"q" * 32}, "owner"),
        ({"parent_term": 0}, "owner"),
        ({"term": 2}, "owner"),
        ({"term": 2, "parent_term": 2}, "owner"),
    ],
)
def test_h2_what_breaks_a_rule_of_descent_is_refused(change: dict[str, object], by: str) -> None:
    good = child(FIRST).header
    chain = chain_of(FIRST)
    with pytest.raises(RefusedError) as refused:
        chain.add(resigned(replace(good, **change), by))
    assert refused.value.reason in (Reason.BAD_FIELD, Reason.WRONG_SIGNER)
    assert chain.head().header == FIRST.signed
    assert chain.add(resigned(good, "owner"))


def test_h2_a_changed_quorum_with_the_next_serial_descends() -> None:
    changed = roster({**MEMBERS, "v2": V}, 2, parent=FIRST)
    assert changed.header.quorum_serial == FIRST.header.quorum_serial + 1
    assert head_of(FIRST, changed).header == changed.signed


def test_h2_a_signature_of_somebody_else_is_refused() -> None:
    good = child(FIRST).signed
    forged = replace(good, signature=child(FIRST, "other").signed.signature)
    with pytest.raises(RefusedError) as refused:
        chain_of(FIRST).add(forged)
    assert refused.value.reason is Reason.WRONG_SIGNER


def test_h2_only_the_creator_founds_or_acts_as_root() -> None:
    mallory = resigned(FIRST.header, "mallory")
    with pytest.raises(RefusedError) as refused:
        HeadChain(GRAPH, NETWORK).add(mallory)
    assert refused.value.reason is Reason.WRONG_SIGNER


def test_a_header_of_another_network_or_graph_is_refused() -> None:
    with pytest.raises(RefusedError) as refused:
        HeadChain(GRAPH, network_id("other")).add(FIRST.signed)
    assert refused.value.reason is Reason.WRONG_NETWORK
    with pytest.raises(RefusedError) as refused:
        HeadChain(type(GRAPH)(b"g" * 32), NETWORK).add(FIRST.signed)
    assert refused.value.reason is Reason.UNKNOWN_GRAPH


def test_root_acts_of_one_term_are_bounded() -> None:
    acts = [act(FIRST, f"member-{number}") for number in range(ROOT_ACTS_MAX + 3)]
    kept = sorted(each.id for each in acts)[:ROOT_ACTS_MAX]
    for seed in range(5):
        chain = chain_of(FIRST)
        chain.add_all([each.signed for each in random.Random(seed).sample(acts, len(acts))])
        assert chain.head().branches == tuple(kept)
        assert len(chain) == 1 + ROOT_ACTS_MAX
    highest = max(acts, key=lambda each: each.id)
    with pytest.raises(RefusedError) as refused:
        chain.add(highest.signed)
    assert refused.value.reason is Reason.SUPERSEDED


def test_of_the_root_acts_of_one_term_any_that_is_lower_than_the_highest_kept_is_taken() -> None:
    acts = sorted((act(FIRST, f"member-{number}") for number in range(ROOT_ACTS_MAX + 1)), key=lambda each: each.id)
    late = acts.pop(-3)
    chain = chain_of(FIRST, *acts)
    assert chain.add(late.signed)
    assert chain.head().branches == (*(each.id for each in acts[:-2]), late.id, acts[-2].id)


def test_the_chain_to_a_header_begins_with_the_root_act_of_its_term() -> None:
    second = child(FIRST)
    root = act(second)
    after = child(root)
    chain = chain_of(FIRST, second, root, after)
    assert chain.chain_to(second.id) == (FIRST.signed, second.signed)
    assert chain.chain_to(after.id) == (root.signed, after.signed)
    assert chain.chain_to(ZERO_HASH) == ()


def test_h5_a_roster_is_adopted_only_with_the_parts_that_its_header_names() -> None:
    parts = FIRST.body.parts
    assert Roster.join(FIRST.signed, parts) == FIRST
    other = roster({"alice": W, "bob": E, "v1": V}, 1).body.parts
    for name in ("members", "limits", "kept", "certificates"):
        swapped = Parts(**{field: getattr(parts, field) for field in ("members", "limits", "kept", "certificates")})
        changed = getattr(other, name) if name != "kept" and getattr(other, name) != getattr(parts, name) else b"\x81"
        with pytest.raises(RefusedError):
            Roster.join(FIRST.signed, replace(swapped, **{name: changed}))


def test_h5_the_id_of_a_roster_is_the_digest_of_its_header() -> None:
    decoded = SignedHeader.decode(FIRST.signed.encode())
    assert decoded.id == FIRST.id
    assert replace(FIRST.header, members=b"m" * 32).id != FIRST.id
    assert Role.VERIFIER in FIRST.body.roles_of(address("v1"))


def naive_head(headers: dict[bytes, SignedHeader]) -> tuple[bytes | None, bool]:
    """Rule H2 once more, from all headers that exist: what is kept, and the head that follows."""
    kept: set[bytes] = set()
    by_term: dict[int, list[bytes]] = {}
    for signed in headers.values():
        if signed.header.is_root_act:
            by_term.setdefault(signed.header.term, []).append(signed.id)
    roots = {term: sorted(ids)[:ROOT_ACTS_MAX] for term, ids in by_term.items()}

    def children(parent: bytes) -> list[bytes]:
        own = [it.id for it in headers.values() if it.header.parent == parent and not it.header.is_root_act]
        return sorted(own)[:2]

    waiting = [each for ids in roots.values() for each in ids]
    while waiting:
        each = waiting.pop()
        kept.add(each)
        waiting += children(each)
    if not roots:
        return None, False
    acts = roots[max(roots)]
    if len(acts) > 1:
        lines = [_ancestors(act, headers, kept) for act in acts]
        common = [each for each in lines[0] if all(each in line for line in lines)]
        return (common[0] if common and common[0] in kept else None), True
    head = acts[0]
    while len(children(head)) == 1:
        (head,) = children(head)
    return head, len(children(head)) > 1


def _ancestors(header_id: bytes, headers: dict[bytes, SignedHeader], kept: set[bytes]) -> list[bytes]:
    line: list[bytes] = []
    while header_id in kept and headers[header_id].header.parent != ZERO_HASH:
        header_id = headers[header_id].header.parent
        line.append(header_id)
    return line


@pytest.mark.parametrize("seed", range(40))
def test_h2_random_chains_in_random_orders_fold_to_what_the_rule_says(seed: int) -> None:
    rng = random.Random(seed)
    made = [FIRST]
    for number in range(rng.randrange(1, 14)):
        parent = rng.choice(made[-4:])
        label = f"member-{number}"
        made.append(act(parent, label, rng.randint(2, 4)) if _may_act(rng, parent) else child(parent, label))
    headers = {each.id: each.signed for each in made}
    expected = naive_head(headers)
    for _ in range(5):
        chain = HeadChain(GRAPH, NETWORK)
        taken = -1
        while taken != (taken := len(chain)) or taken == 0:
            for _ in range(3):
                chain.add_all(rng.sample(list(headers.values()), rng.randint(1, len(headers))), checked=True)
            chain.add_all(rng.sample(list(headers.values()), len(headers)), checked=True)
        head = chain.head()
        assert (head.header.id if head.header else None, head.forked) == expected
        if head.header:
            assert chain.chain_to(head.header.id)[-1] == head.header


def _may_act(rng: random.Random, parent: Roster) -> bool:
    return parent.header.term < 2 and rng.random() < 0.3


def test_h2_of_many_headers_each_signature_is_read_unless_it_is_said_to_be_good() -> None:
    good = child(FIRST).signed
    forged = replace(good, signature=child(FIRST, "other").signed.signature)
    chain = chain_of(FIRST)
    with pytest.raises(RefusedError) as refused:
        chain.add_all([forged])
    assert refused.value.reason is Reason.WRONG_SIGNER
    assert chain.add_all([forged], checked=True) == (forged,)
    assert ROOT_ACTS_MAX == 8


def test_k3_the_quorums_of_a_header_are_those_of_its_own_line_as_far_as_it_is_held() -> None:
    first = roster({"v1": V}, 1)
    second = roster({"v1": V, "v2": V}, 2, parent=first)
    beside = roster({"v1": V, "v3": V}, 2, parent=first)
    third = roster({"v1": V, "v2": V}, 1, parent=second, term=2)
    chain = chain_of(third)
    assert chain.lacks_ancestors(third.id)
    assert chain.quorums_of(third.id) == {third.quorum.id}
    chain.add_all([first.signed, second.signed, beside.signed])
    assert not chain.lacks_ancestors(third.id)
    assert chain.quorums_of(third.id) == {each.quorum.id for each in (first, second, third)}
    assert chain.line_to(third.id) == (first.signed, second.signed, third.signed)
