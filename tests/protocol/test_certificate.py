"""Certificates: made, read, checked offline; and nothing false accepted, whatever is flipped or swapped."""

from __future__ import annotations

import contextlib
import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import cbor
from p2pmem_protocol.bodies import Sealed
from p2pmem_protocol.certificate import (
    CERTIFICATE_BYTES_MAX,
    HEADERS_MAX,
    Certificate,
    Standing,
    headers_for,
    make,
    standing,
)
from p2pmem_protocol.certificate_json import from_json, to_json
from p2pmem_protocol.errors import MisuseError, P2pmemError, Reason, RefusedError
from p2pmem_protocol.evidence import Evidence, Method
from p2pmem_protocol.heads import HeadChain
from p2pmem_protocol.limits import ITEM_BYTES_MAX, VERIFIERS_MAX
from p2pmem_protocol.names import GraphName, network_id
from p2pmem_protocol.roster import Quorum, SignedHeader
from p2pmem_protocol.seal import SignedSeal

from tests.protocol.world import (
    GRAPH,
    NETWORK,
    T0,
    Peer,
    V,
    W,
    address,
    certificate,
    endorse,
    key,
    reject,
    roster,
    share,
    signer,
    subject,
    verdict,
)

MEMBERS = {"alice": W, "v1": V, "v2": V, "v3": V}
FIRST = roster({"alice": W}, 0)
SECOND = roster({"alice": W, "bob": W}, 0, parent=FIRST)
THIRD = roster({**MEMBERS, "bob": W}, 2, parent=SECOND)
Q = THIRD.quorum
ABOUT = subject("alice")


def chain() -> HeadChain:
    held = HeadChain(GRAPH, NETWORK)
    held.add_all([each.signed for each in (FIRST, SECOND, THIRD)])
    return held


def seal_of(author: str = "alice", version: int = 1, root: str = "a") -> SignedSeal:
    body = share(author, version, root).body
    assert isinstance(body, Sealed)
    return body.seal


def approvals(*names: str) -> list[Evidence]:
    return [verdict(name, ABOUT, Q) for name in names]


def made() -> Certificate:
    return make(seal_of(), Q, approvals("v1", "v2", "v3"), headers_for(chain(), Q))


def test_it_is_read_back_from_cbor_and_from_json_and_says_the_same() -> None:
    it = made()
    assert Certificate.decode(it.encode()) == it
    assert from_json(to_json(it)) == it
    statement = it.check()
    assert (statement.network, statement.graph, statement.subject) == (NETWORK, it.graph, ABOUT)
    assert statement.quorum == Q
    assert statement.n == 3
    assert statement.as_of == THIRD.signed
    assert "2 of 3 under quorum 2, as of roster 3 of term 1" in statement.shown


def test_it_holds_the_m_lowest_addresses_and_each_ones_strongest_method() -> None:
    strong = [verdict(name, ABOUT, Q, method=Method.MANUAL) for name in ("v1", "v2", "v3")]
    it = make(seal_of(), Q, [*approvals("v1", "v2", "v3"), *strong], headers_for(chain(), Q))
    lowest = sorted(map(address, ("v1", "v2", "v3")))[:2]
    assert it.check().approvals == tuple((signer, Method.MANUAL) for signer in lowest)


def test_certificates_with_other_verdicts_of_the_quorum_or_a_later_header_say_the_same() -> None:
    one, other = (make(seal_of(), Q, approvals(*who), headers_for(chain(), Q)) for who in (("v1", "v2"), ("v2", "v3")))
    later = replace(one, headers=(*one.headers, roster({**MEMBERS, "bob": W}, 2, parent=THIRD).signed))
    assert one.check().approvals != other.check().approvals
    assert one.check().as_of != later.check().as_of
    assert one.check() == other.check() == later.check()


def test_its_headers_go_from_the_root_keys_signature_to_the_first_that_names_the_quorum() -> None:
    fourth = roster({**MEMBERS, "bob": W, "carol": W}, 2, parent=THIRD)
    held = chain()
    held.add(fourth.signed)
    assert headers_for(held, Q) == (FIRST.signed, SECOND.signed, THIRD.signed)
    assert headers_for(held, Quorum(GRAPH, 9, 1, (address("v1"),))) == ()
    act = roster(MEMBERS, 2, parent=fourth, term=2)
    alone = HeadChain(GRAPH, NETWORK)
    alone.add(act.signed)
    assert headers_for(alone, act.quorum) == (act.signed,)


@pytest.mark.parametrize(
    "given_approvals",
    [
        [],
        approvals("v1"),
        [*approvals("v1"), verdict("v1", ABOUT, Q, method=Method.MANUAL)],
        [*approvals("v1"), reject("v2", ABOUT, Q)],
        [*approvals("v1"), verdict("bob", ABOUT, Q)],
        [*approvals("v1"), verdict("alice", ABOUT, Q)],
        [*approvals("v1"), verdict("v2", subject("alice", 2), Q)],
        [*approvals("v1"), verdict("v2", subject("alice", root="b"), Q)],
        [*approvals("v1"), verdict("v2", subject("bob"), Q)],
        [*approvals("v1"), verdict("v2", ABOUT, Quorum(GRAPH, 9, 2, Q.verifiers))],
        [*approvals("v1"), endorse("v2", ABOUT)],
    ],
)
def test_what_makes_no_consensus_makes_no_certificate(given_approvals: list[Evidence]) -> None:
    with pytest.raises(MisuseError):
        make(seal_of(), Q, given_approvals, headers_for(chain(), Q))


def test_one_verifier_does_not_count_twice() -> None:
    once, strong = verdict("v1", ABOUT, Q), verdict("v1", ABOUT, Q, method=Method.MANUAL)
    for verdicts in ((once, once), (once, strong), (strong, once)):
        with pytest.raises(RefusedError, match="distinct"):
            replace(made(), verdicts=verdicts).check()
    with pytest.raises(RefusedError, match="ascending"):
        replace(made(), verdicts=made().verdicts[::-1]).check()


def test_the_author_in_the_quorum_does_not_count() -> None:
    head = roster({"alice": W | V, "v1": V, "v2": V}, 2)
    held = HeadChain(GRAPH, NETWORK)
    held.add(head.signed)
    both = [verdict(name, ABOUT, head.quorum) for name in ("alice", "v1")]
    with pytest.raises(MisuseError):
        make(seal_of(), head.quorum, both, headers_for(held, head.quorum))
    good = make(
        seal_of(), head.quorum, [verdict(n, ABOUT, head.quorum) for n in ("v1", "v2")], headers_for(held, head.quorum)
    )
    assert good.check().n == 2


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (THIRD.signed,),
        (SECOND.signed, THIRD.signed),
        (FIRST.signed, THIRD.signed),
        (FIRST.signed, SECOND.signed),
        (FIRST.signed, SECOND.signed, SECOND.signed, THIRD.signed),
        (THIRD.signed, SECOND.signed, FIRST.signed),
    ],
)
def test_a_chain_with_a_missing_or_wrong_link_is_refused(headers: tuple[SignedHeader, ...]) -> None:
    with pytest.raises(RefusedError):
        replace(made(), headers=headers).check()


@pytest.mark.parametrize("place", range(3))
def test_a_header_that_its_signer_did_not_sign_is_refused(place: int) -> None:
    headers = list(made().headers)
    headers[place] = replace(headers[place], signature=key("mallory").sign(headers[place].id))
    with pytest.raises(RefusedError, match="wrong-signer"):
        replace(made(), headers=tuple(headers)).check()


def test_a_header_that_names_the_quorum_with_another_serial_is_refused() -> None:
    header = replace(THIRD.header, term=2, parent_term=1, signer=address("root"))
    good = replace(made(), headers=(header.sign(key("root")),))
    assert good.check().quorum == Q
    with pytest.raises(RefusedError):
        replace(made(), headers=(replace(header, quorum_serial=9).sign(key("root")),)).check()


def test_a_quorum_that_an_owner_did_not_sign_is_refused() -> None:
    easy = Quorum(GRAPH, 2, 1, (address("mallory"),))
    forged = replace(made(), quorum=easy, verdicts=(verdict("mallory", ABOUT, easy),))
    with pytest.raises(RefusedError):
        forged.check()


def test_a_graph_of_another_creator_is_another_graph() -> None:
    name = GraphName(address("mallory"), "things")
    with pytest.raises(RefusedError):
        replace(made(), graph=name).check()


def refusal(it: Certificate) -> Reason:
    with pytest.raises(RefusedError) as refused:
        it.check()
    return refused.value.reason


def test_a_seal_of_another_network_or_graph_is_refused() -> None:
    seal = made().seal.seal
    for change in ({"network": network_id("other")}, {"graph": GraphName(address("root"), "other").id}):
        other = replace(seal, **change).sign(key("alice"))  # type: ignore[arg-type]
        assert refusal(replace(made(), seal=other)) is Reason.BAD_FIELD


def test_a_graph_without_a_quorum_makes_no_certificate() -> None:
    """Zero verdicts of none would be complete."""
    none = replace(made(), quorum=FIRST.quorum, verdicts=(), headers=(FIRST.signed,))
    assert refusal(none) is Reason.WRONG_QUORUM


def test_a_quorum_of_another_graph_is_refused_also_where_a_header_names_it() -> None:
    foreign = Quorum(GraphName(address("root"), "other").id, 2, 2, Q.verifiers)
    header = replace(THIRD.header, term=2, parent_term=1, quorum=foreign.id, signer=address("root"))
    verdicts = tuple(
        verdict(name, ABOUT, foreign) for name in sorted(("v1", "v2", "v3"), key=lambda name: address(name))[:2]
    )
    it = replace(made(), quorum=foreign, verdicts=verdicts, headers=(header.sign(key("root")),))
    assert refusal(it) is Reason.WRONG_QUORUM


def test_a_header_of_another_network_or_graph_is_refused() -> None:
    header = replace(THIRD.header, term=2, parent_term=1, signer=address("root"))
    for change in ({"network": network_id("other")}, {"name": GraphName(address("root"), "other")}):
        other = replace(header, **change).sign(key("root"))  # type: ignore[arg-type]
        assert refusal(replace(made(), headers=(other,))) is Reason.BAD_FIELD


def test_a_certificate_has_from_one_header_to_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(replace(made(), headers=())) is Reason.BAD_SHAPE
    it = made()
    monkeypatch.setattr("p2pmem_protocol.certificate.HEADERS_MAX", 3)
    it.check()
    monkeypatch.setattr("p2pmem_protocol.certificate.HEADERS_MAX", 2)
    assert refusal(it) is Reason.BAD_SHAPE


def test_a_verdict_under_another_quorum_is_refused() -> None:
    one, two = made().verdicts
    other = Quorum(GRAPH, 9, 2, Q.verifiers)
    name = next(name for name in ("v1", "v2", "v3") if address(name) == two.signer)
    assert refusal(replace(made(), verdicts=(one, verdict(name, ABOUT, other)))) is Reason.WRONG_QUORUM


def test_a_certificate_may_be_longer_than_an_envelope_and_has_a_limit() -> None:
    long = replace(made(), headers=made().headers * 100)
    data = long.encode()
    assert len(data) > ITEM_BYTES_MAX
    assert Certificate.decode(data) == long
    with pytest.raises(RefusedError) as refused:
        Certificate.decode(bytes(CERTIFICATE_BYTES_MAX + 1))
    assert refused.value.reason is Reason.OVERSIZE


def json_refusal(text: str) -> Reason:
    with pytest.raises(RefusedError) as refused:
        from_json(text)
    return refused.value.reason


def test_json_has_a_limit_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("p2pmem_protocol.certificate_json.CERTIFICATE_BYTES_MAX", 100)
    assert json_refusal(" " * 400) is Reason.BAD_SHAPE
    assert json_refusal(" " * 401) is Reason.OVERSIZE


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (("format",), "p2pmem certificate 2", Reason.BAD_VERSION),
        (("format",), 1, Reason.BAD_FIELD),
        (("graph",), "\ud800", Reason.BAD_TEXT),
        (("seal",), [], Reason.BAD_SHAPE),
        (("seal", "version"), 0, Reason.BAD_FIELD),
        (("seal", "version"), 2**32, Reason.BAD_FIELD),
        (("seal", "version"), True, Reason.BAD_FIELD),
        (("seal", "root"), "0x00", Reason.BAD_FIELD),
        (("quorum", "m"), 4, Reason.BAD_FIELD),
        (("quorum", "verifiers"), {}, Reason.BAD_FIELD),
        (("verdicts", 0, "decision"), 3, Reason.BAD_FIELD),
        (("verdicts", 0, "decision"), 0, Reason.BAD_FIELD),
        (("verdicts", 0, "method"), 0, Reason.BAD_FIELD),
        (("verdicts", 0, "method"), 99, Reason.BAD_FIELD),
        (("rosters", 0, "version"), 0, Reason.BAD_FIELD),
        (("rosters", 0, "term"), 0, Reason.BAD_FIELD),
    ],
)
def test_json_of_another_form_is_refused(place: tuple[Any, ...], value: Any, reason: Reason) -> None:
    shown = json.loads(to_json(made()))
    _set(shown, place, value)
    assert json_refusal(json.dumps(shown)) is reason


def test_json_names_each_field_once_and_all_of_them() -> None:
    text = to_json(made())
    assert json_refusal(text.replace('"network"', '"networks"', 1)) is Reason.BAD_SHAPE
    repeated = text.replace('"serial": 2', '"serial": 2, "serial": 2', 1)
    assert repeated != text
    assert json_refusal(repeated) is Reason.DUPLICATE_KEY
    assert json_refusal("{") is Reason.BAD_SHAPE


def test_json_is_made_to_be_read_by_people() -> None:
    approving = verdict("v1", ABOUT, Q, reason="größe")
    text = to_json(replace(made(), verdicts=(approving,)))
    assert text.startswith('{\n  "format": "p2pmem certificate 1",\n  "network": "0x')
    assert '"reason": "größe"' in text


def test_a_field_that_a_certificate_does_not_have_is_refused() -> None:
    value: Any = cbor.decode(made().encode())
    with pytest.raises(RefusedError) as refused:
        Certificate.decode(cbor.encode({**value, 9: 0}))
    assert refused.value.reason is Reason.BAD_SHAPE
    for place in (7, 8):
        with pytest.raises(RefusedError) as refused:
            Certificate.decode(cbor.encode({**value, place: [1]}))
        assert refused.value.reason is Reason.BAD_FIELD
    places = ((), ("seal",), ("quorum",), ("verdicts", 0), ("rosters", 0))
    for place in places:
        shown = json.loads(to_json(made()))
        _get(shown, place)["more"] = 0
        with pytest.raises(RefusedError) as refused:
            from_json(json.dumps(shown))
        assert refused.value.reason is Reason.BAD_SHAPE, place


def accepted(read: Any) -> Certificate | None:
    """What is read and checks, or None. Nothing but the package's own errors may leave."""
    try:
        it: Certificate = read()
        it.check()
    except P2pmemError:
        return None
    return it


def test_no_certificate_with_a_flipped_byte_of_the_cbor_is_accepted() -> None:
    data = made().encode()
    for position in range(len(data)):
        for bit in (0x01, 0x80, 0xFF) if position % 5 == 0 else (0x01,):
            flipped = data[:position] + bytes((data[position] ^ bit,)) + data[position + 1 :]
            assert accepted(lambda flipped=flipped: Certificate.decode(flipped)) is None, position


def test_no_flipped_byte_of_the_json_makes_it_say_something_else() -> None:
    data = to_json(made()).encode()
    truth = made().check()
    for position in range(len(data)):
        flipped = data[:position] + bytes((data[position] ^ 0x01,)) + data[position + 1 :]
        it = accepted(lambda flipped=flipped: from_json(flipped.decode(errors="replace")))
        assert it is None or it.check() == truth, position


def swaps(value: Any, other: Any) -> Iterator[tuple[Any, Any]]:
    """What becomes of `value` when two of its parts change places, or one comes from `other`; and where."""
    places = list(_places(value))
    for here, there in itertools.combinations(places, 2):
        changed = copy.deepcopy(value)
        mine, theirs = _get(value, here), _get(value, there)
        if type(mine) is type(theirs) and mine != theirs:
            _set(changed, here, theirs)
            _set(changed, there, mine)
            yield changed, (here, there)
    for here in places:
        for there in _places(other):
            if type(_get(value, here)) is type(_get(other, there)) and _get(value, here) != _get(other, there):
                changed = copy.deepcopy(value)
                _set(changed, here, _get(other, there))
                yield changed, (here, "other", there)


def test_no_swap_of_two_fields_of_the_cbor_makes_it_say_something_else() -> None:
    truth = made().check()
    value, other = (cbor.decode(each.encode(), limit_bytes=1 << 20) for each in (made(), _another()))
    tried = 0
    for changed, where in swaps(value, other):
        it = accepted(lambda changed=changed: Certificate.decode(cbor.encode(changed)))
        assert it is None or it.check() == truth, where
        tried += 1
    assert tried > 200


def test_no_swap_of_two_fields_of_the_json_makes_it_say_something_else() -> None:
    truth = made().check()
    everything = list(swaps(json.loads(to_json(made())), json.loads(to_json(_another()))))
    for changed, where in random.Random(7).sample(everything, 1_500):
        it = accepted(lambda changed=changed: from_json(json.dumps(changed)))
        assert it is None or it.check() == truth, where


def _another() -> Certificate:
    about = subject("bob", 1, "b")
    body = share("bob", 1, "b").body
    assert isinstance(body, Sealed)
    return make(body.seal, Q, [verdict(name, about, Q) for name in ("v2", "v3")], headers_for(chain(), Q))


def _sealed_again() -> Certificate:
    """Of what `made` is about, sealed again in a sub-graph by its author."""
    body = share("alice").body
    assert isinstance(body, Sealed)
    seal = replace(body.seal.seal, subgraph="approved").sign(signer("alice"))
    verdicts = [verdict(name, seal.seal.key, Q) for name in ("v2", "v3")]
    return make(seal, Q, verdicts, headers_for(chain(), Q))


def _places(value: Any, place: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict | list):
        for step in value if isinstance(value, dict) else range(len(value)):
            yield from _places(value[step], (*place, step))
    if place:
        yield place


def _get(value: Any, place: tuple[Any, ...]) -> Any:
    for step in place:
        value = value[step]
    return value


def _set(value: Any, place: tuple[Any, ...], new: Any) -> None:
    *way, last = place
    with contextlib.suppress(KeyError, IndexError, TypeError):
        _get(value, tuple(way))[last] = new


@pytest.mark.parametrize("another", [_another, _sealed_again])
def test_no_swap_of_whole_parts_makes_it_say_something_else(another: Callable[[], Certificate]) -> None:
    one, other = made(), another()
    names = [each.name for each in fields(Certificate)]
    truths = {one.check(), other.check()}
    for count in range(1, len(names)):
        for chosen in itertools.combinations(names, count):
            mixed = replace(one, **{name: getattr(other, name) for name in chosen})
            it = accepted(lambda mixed=mixed: mixed)
            assert it is None or it.check() in truths
    assert accepted(lambda: replace(one, network=network_id("other"))) is None


@given(st.binary(max_size=300))
def test_from_any_bytes_only_refusals_leave(data: bytes) -> None:
    with pytest.raises(RefusedError):
        Certificate.decode(data)
    with pytest.raises(RefusedError):
        from_json(data.decode(errors="replace"))


def test_from_damaged_json_only_refusals_leave() -> None:
    rng = random.Random(5)
    shown = json.loads(to_json(made()))
    junk: list[Any] = [None, True, -1, 1.5, 2**70, "", "0x", "0X" + "00" * 32, [], {}, [[]], "\ud800", {"a": 1}]
    for _ in range(600):
        broken = json.loads(json.dumps(shown))
        place = rng.choice(list(_places(broken)))
        _set(broken, place, rng.choice(junk))
        it = accepted(lambda broken=broken: from_json(json.dumps(broken)))
        assert it is None or broken == shown
    assert accepted(lambda: from_json("[" * 100_000)) is None
    assert accepted(lambda: from_json('{"format": 1, "format": 1}')) is None


def test_it_has_so_many_verdicts_and_headers_and_no_more() -> None:
    verdicts, header = [each.encode() for each in made().verdicts], FIRST.signed.encode()
    for key_, item, most in ((7, verdicts[0], VERIFIERS_MAX), (8, header, HEADERS_MAX)):
        for count, is_read in ((0, False), (1, True), (most, True), (most + 1, False)):
            value: Any = cbor.decode(made().encode(), limit_bytes=CERTIFICATE_BYTES_MAX)
            value[key_] = [item] * count
            data = cbor.encode(value)
            assert reason_of(lambda data=data: Certificate.decode(data)) is (None if is_read else Reason.BAD_FIELD)


@pytest.mark.parametrize("version", [1, 2])
def test_neither_form_takes_a_seal_that_names_no_root_before_unless_it_is_the_first(version: int) -> None:
    seal = replace(seal_of().seal, version=version).sign(signer("alice"))
    verdicts = [verdict(name, seal.seal.key, Q) for name in ("v1", "v2")]
    it = make(seal, Q, verdicts, headers_for(chain(), Q))
    reason = None if version == 1 else Reason.BAD_FIELD
    assert reason_of(lambda: Certificate.decode(it.encode())) is reason
    assert reason_of(lambda: from_json(to_json(it))) is reason


def test_json_takes_no_number_for_text_and_no_more_than_cbor_takes() -> None:
    shown = to_json(made())
    for old, new, reason in (
        ('"reason": ""', '"reason": -0', Reason.BAD_FIELD),
        ('"reason": ""', '"reason": -1', Reason.BAD_FIELD),
        ('"reason": ""', '"reason": NaN', Reason.BAD_SHAPE),
        ('"reason": ""', f'"reason": "{"x" * 1_001}"', Reason.BAD_FIELD),
        ('"asset": "asset"', '"asset": "an asset"', Reason.BAD_NAME),
        ('"subgraph": ""', '"subgraph": "X"', Reason.BAD_NAME),
        ('"version": 1', '"version": -1', Reason.BAD_FIELD),
    ):
        assert old in shown
        assert reason_of(lambda old=old, new=new: from_json(shown.replace(old, new, 1))) is reason, new


def reason_of(read: Callable[[], object]) -> Reason | None:
    try:
        read()
    except RefusedError as refused:
        return refused.reason
    return None


def test_it_is_judged_against_a_newer_roster() -> None:
    it = made()
    named = {THIRD.quorum.id}
    assert standing(it, THIRD, named) is Standing.CURRENT
    kept = certificate(ABOUT, Q, *approvals("v1", "v2"))
    keeping = roster(MEMBERS, 3, parent=THIRD, certificates=(kept,))
    assert standing(it, keeping, named) is Standing.KEPT
    assert standing(it, keeping, {keeping.quorum.id}) is Standing.OUTDATED, "the graph never had that quorum"
    assert standing(it, roster(MEMBERS, 3, parent=THIRD), named) is Standing.OUTDATED
    another = replace(Q, serial=9)
    for other in (certificate(subject("bob"), Q, *approvals("v1", "v2")), replace(kept, quorum=another)):
        keeps = roster(MEMBERS, 3, parent=THIRD, certificates=(other,))
        assert standing(it, keeps, named | {another.id}) is Standing.OUTDATED
    for change in ({"network": network_id("other")}, {"name": GraphName(address("root"), "other")}):
        header = replace(THIRD.header, **change)  # type: ignore[arg-type]
        with pytest.raises(MisuseError):
            standing(it, replace(THIRD, signed=replace(THIRD.signed, header=header)), named)


def test_a_peers_report_is_enough_to_make_one() -> None:
    from p2pmem_protocol.view import explain

    items = {item.id: item for item in approvals("v1", "v2")}
    peer = Peer(THIRD, T0, share("alice"), *items.values())
    report = explain(peer.set, ABOUT, T0)
    assert report is not None
    assert report.quorum is not None
    it = make(
        seal_of(), report.quorum, [items[line.id] for line in report.approvals], headers_for(chain(), report.quorum)
    )
    assert it.check() == made().check()
