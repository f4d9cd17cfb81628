"""hello and the join stream: who may speak, who stands behind a peer, and what an invite and an answer are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.credential import ActFor, Carry, Right, SignedActFor, SignedCarry
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hello import (
    HELLO_BYTES_MAX,
    PROTOCOL_VERSION,
    Greeting,
    Proof,
    Speaker,
    Speakers,
    clocks_agree,
    may_speak,
)
from p2pmem_protocol.join import (
    ANSWER_BYTES_MAX,
    INVITE_CHARS_MAX,
    INVITE_PREFIX,
    Answer,
    Ask,
    Chain,
    Invite,
    Reply,
    invite_key,
)
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.limits import CONTENT_BYTES_MAX, FUTURE_MS_MAX, ITEM_BYTES_MAX, ROSTER_PART_BYTES_MAX
from p2pmem_protocol.names import GraphId, network_id
from p2pmem_protocol.roster import HEADER_BYTES_MAX

from tests.protocol.world import DAY, GRAPH, HOUR, NAME, NETWORK, T0, W, act_for, address, key, roster

PEER = "12D3KooWpeer"
OURS = Greeting.ours(NETWORK, T0)


def refused(what: Callable[[], object]) -> Reason:
    with pytest.raises(RefusedError) as error:
        what()
    return error.value.reason


def changed(data: bytes, change: dict[int, Any]) -> bytes:
    value: Any = cbor.decode(data, limit_bytes=ANSWER_BYTES_MAX)
    return cbor.encode({**value, **change})


def carry(agent: str, serial: int = 1, until_ms: int = T0 + DAY) -> SignedCarry:
    return Carry(NETWORK, address(agent), PEER, serial, until_ms).sign(key(agent))


def test_our_greeting_says_what_is_known_here() -> None:
    assert Greeting(NETWORK, PROTOCOL_VERSION, frozenset(map(int, Kind)), ITEM_BYTES_MAX, CONTENT_BYTES_MAX, T0) == OURS
    assert Greeting.decode(OURS.encode()) == OURS
    many = replace(OURS, kinds=frozenset((3, 200, 70_000, 64, 8, 1)))
    assert Greeting.decode(many.encode()) == many


def test_peers_of_one_network_and_version_may_speak_whatever_else_they_know() -> None:
    may_speak(OURS, replace(OURS, kinds=frozenset((1,)), item_bytes_max=1, content_bytes_max=1, clock_ms=0))
    assert refused(lambda: may_speak(OURS, replace(OURS, network=network_id("other")))) is Reason.WRONG_NETWORK
    for version in (PROTOCOL_VERSION + 1, PROTOCOL_VERSION - 1):
        assert refused(lambda version=version: may_speak(OURS, replace(OURS, version=version))) is Reason.BAD_VERSION  # type: ignore[misc]


def test_clocks_agree_up_to_five_minutes_either_way() -> None:
    for apart_ms, agree in ((0, True), (FUTURE_MS_MAX, True), (FUTURE_MS_MAX + 1, False)):
        assert clocks_agree(T0, T0 + apart_ms) is agree
        assert clocks_agree(T0 + apart_ms, T0) is agree


def test_a_proof_says_for_whom_a_peer_speaks_and_until_when() -> None:
    acting = (act_for("alice", "one", 4), act_for("bob", "two", 5), act_for("carol", "one", 6))
    proof = Proof((carry("one", 2, T0 + HOUR), carry("two", 3)), acting)
    assert Proof.decode(proof.encode(), NETWORK, PEER) == proof
    speakers = proof.check(T0)
    one = Speaker(address("one"), 2, T0 + HOUR, ((address("alice"), 4), (address("carol"), 6)))
    two = Speaker(address("two"), 3, T0 + DAY, ((address("bob"), 5),))
    assert speakers == Speakers((one, two))
    names = {name: address(name) for name in ("one", "two", "alice", "bob", "carol")}
    assert speakers.names_at(T0 + HOUR - 1) == set(names.values())
    assert speakers.names_at(T0 + HOUR) == {names["two"], names["bob"]}
    assert speakers.names_at(T0 + DAY) == frozenset()


def test_a_proof_that_does_not_hold_is_refused() -> None:
    good = Proof((carry("one"),), (act_for("alice", "one"),))
    forged = replace(good.delegations[0], signature=act_for("bob", "one").signature)
    assert refused(lambda: replace(good, delegations=(forged,)).check(T0)) is Reason.WRONG_SIGNER
    assert refused(lambda: replace(good, delegations=(act_for("alice", "two"),)).check(T0)) is Reason.BAD_FIELD
    assert refused(lambda: good.check(T0 + DAY)) is Reason.CREDENTIAL_ENDED
    assert refused(lambda: Proof.decode(good.encode(), NETWORK, "another").check(T0)) is Reason.WRONG_SIGNER


def test_a_hello_of_another_form_is_refused() -> None:
    proof = Proof((carry("one"),), (act_for("alice", "one"),)).encode()
    assert refused(lambda: Greeting.decode(changed(OURS.encode(), {6: 0}))) is Reason.BAD_SHAPE
    assert refused(lambda: Proof.decode(changed(proof, {2: 0}), NETWORK, PEER)) is Reason.BAD_SHAPE
    act: Any = act_for("alice", "one").to_value()
    for acting, reason in (
        (1, Reason.BAD_FIELD),
        ([[b"short", act]], Reason.BAD_FIELD),
        ([[bytes(20)]], Reason.BAD_SHAPE),
        ([[bytes(20), act, act]], Reason.BAD_SHAPE),
        ([[bytes(20), {}]], Reason.BAD_SHAPE),
    ):
        data = changed(proof, {1: acting})
        assert refused(lambda data=data: Proof.decode(data, NETWORK, PEER)) is reason  # type: ignore[misc]
    for read in (Greeting.decode, lambda data: Proof.decode(data, NETWORK, PEER)):
        assert refused(lambda read=read: read(bytes(HELLO_BYTES_MAX + 1))) is Reason.OVERSIZE  # type: ignore[misc]


# Invites


INVITE = Invite(NETWORK, NAME, ("/ip4/127.0.0.1/tcp/4001/p2p/" + PEER, "/dns/example.org"), b"h" * 32, b"t" * 16)


@pytest.mark.parametrize("spare", range(8))
def test_an_invite_is_one_word_in_either_case_whatever_its_length(spare: int) -> None:
    invite = replace(INVITE, addresses=("/dns/" + "a" * spare,))
    assert Invite.parse(str(invite)) == invite
    assert Invite.parse(f"  {str(invite).upper().replace(INVITE_PREFIX.upper(), INVITE_PREFIX)}\n") == invite
    assert "=" not in str(invite)


def test_an_invite_may_end_with_any_letter() -> None:
    last = set()
    for number in range(256):
        invite = replace(INVITE, token=bytes([number]) * 16)
        assert Invite.parse(str(invite)) == invite
        last.add(str(invite)[-1])
    assert "x" in last


def test_what_is_no_invite_is_refused() -> None:
    word = str(INVITE)
    longer = word.removeprefix(INVITE_PREFIX)
    for text in ("", "hello", longer, word[:-1], word[:-8], word + "a", word + "é", INVITE_PREFIX, word + "a" * 5_000):
        with pytest.raises(MisuseError):
            Invite.parse(text)


@pytest.mark.parametrize("character", ["a", "é", "\U0001f41d"])
def test_an_invite_with_all_the_addresses_that_there_may_be_is_read_again(character: str) -> None:
    invite = replace(INVITE, addresses=(character * 256,) * 16)
    assert Invite.parse(str(invite)) == invite


@pytest.mark.parametrize("addresses", [(), ("/dns/a",) * 17, ("",), ("a" * 257,)])
def test_an_invite_that_nobody_could_read_is_not_made(addresses: tuple[str, ...]) -> None:
    with pytest.raises(MisuseError, match="1 to 16 addresses of 1 to 256 characters"):
        replace(INVITE, addresses=addresses)


def test_an_invite_has_a_limit_of_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(str(INVITE)) < INVITE_CHARS_MAX
    monkeypatch.setattr("p2pmem_protocol.join.INVITE_CHARS_MAX", len(str(INVITE)))
    assert Invite.parse(str(INVITE)) == INVITE
    monkeypatch.setattr("p2pmem_protocol.join.INVITE_CHARS_MAX", len(str(INVITE)) - 1)
    with pytest.raises(MisuseError, match="begins with"):
        Invite.parse(str(INVITE))


def test_a_delegation_that_is_no_ascii_is_refused_as_damaged() -> None:
    word = str(act_for("alice", "helper"))
    for text in (word + "é", word[:-1] + "ß", word[:-1], word.upper()):
        with pytest.raises(MisuseError):
            SignedActFor.parse(text)
    assert SignedActFor.parse(f" {word}\n") == act_for("alice", "helper")


# The join stream


FIRST = roster({"alice": W})
CHAIN = Chain((FIRST.signed, roster({"alice": W, "bob": W}, parent=FIRST).signed), FIRST.body.parts)


def test_a_question_and_an_answer_are_read_as_they_were_written() -> None:
    proof = Proof((carry("alice"),))
    for chain in (None, CHAIN):
        for token in (b"", b"t" * 16):
            ask = Ask(OURS, proof, GRAPH, "Alice", chain=chain).enter(token, PEER)
            assert Ask.decode(ask.encode(), NETWORK, PEER) == ask
    for answer in (Answer(Reply.NO), Answer(Reply.WAITING), Answer(Reply.LISTED, CHAIN), Answer(Reply.OPEN, CHAIN)):
        assert Answer.decode(answer.encode()) == answer


TOKEN = bytes(range(16))


def test_an_entry_is_good_for_the_ask_that_it_was_made_for_and_for_no_other() -> None:
    ask = Ask(OURS, Proof((carry("alice"),)), GRAPH, "Alice").enter(TOKEN, PEER)
    assert ask.entry_key(PEER) == invite_key(TOKEN).address != invite_key(bytes(16)).address
    others = (
        replace(ask, greeting=replace(OURS, clock_ms=T0 + 1)),
        replace(ask, greeting=replace(OURS, network=network_id("other"))),
        replace(ask, proof=Proof((carry("bob"),))),
        replace(ask, proof=Proof((carry("alice"), carry("bob")))),
        replace(ask, graph=GraphId(bytes(32))),
        replace(ask, label="Alicia"),
    )
    for other in others:
        assert other.entry_key(PEER) != invite_key(TOKEN).address
    assert ask.entry_key("12D3KooWother") != invite_key(TOKEN).address
    assert replace(ask, chain=CHAIN).entry_key(PEER) == invite_key(TOKEN).address


def test_an_ask_does_not_tell_the_token() -> None:
    ask = Ask(OURS, Proof((carry("alice"),)), GRAPH, "Alice").enter(TOKEN, PEER)
    assert TOKEN not in ask.encode()
    assert invite_key(TOKEN).secret not in ask.encode()


def test_without_a_token_there_is_no_entry_and_one_that_no_key_can_have_made_is_not_good() -> None:
    ask = Ask(OURS, Proof((carry("alice"),)), GRAPH, "Alice")
    assert ask.enter(b"", PEER) is ask
    assert ask.entry_key(PEER) is None
    no_point = (5).to_bytes(32) + (1).to_bytes(32) + b"\x1b"
    read = Ask.decode(replace(ask, entry=no_point).encode(), NETWORK, PEER)
    assert read.entry_key(PEER) is None


def test_a_roster_comes_with_listed_and_open_and_with_nothing_else() -> None:
    wrong = (Answer(Reply.NO, CHAIN), Answer(Reply.WAITING, CHAIN), Answer(Reply.LISTED), Answer(Reply.OPEN))
    for answer in wrong:
        assert refused(lambda answer=answer: Answer.decode(answer.encode())) is Reason.BAD_SHAPE  # type: ignore[misc]
    assert refused(lambda: Answer.decode(cbor.encode({0: 4}))) is Reason.BAD_FIELD
    assert refused(lambda: Answer.decode(cbor.encode({0: 0, 2: 0}))) is Reason.BAD_SHAPE


def test_a_chain_has_from_one_header_to_so_many_each_of_a_bounded_length(monkeypatch: pytest.MonkeyPatch) -> None:
    header, parts = FIRST.signed.encode(), list(CHAIN.parts.all)
    monkeypatch.setattr("p2pmem_protocol.join.HEADERS_MAX", 2)
    assert len(Chain.from_value([[header], parts]).headers) == 1
    assert len(Chain.from_value([[header] * 2, parts]).headers) == 2
    for headers, reason in (
        ([], Reason.BAD_FIELD),
        ([header] * 3, Reason.BAD_FIELD),
        ([header, 1], Reason.BAD_FIELD),
        ([header, "text"], Reason.BAD_FIELD),
        ([bytes(HEADER_BYTES_MAX + 1)], Reason.OVERSIZE),
        (header, Reason.BAD_FIELD),
    ):
        value: Any = [headers, parts]
        assert refused(lambda value=value: Chain.from_value(value)) is reason  # type: ignore[misc]
    for value in (1, [], [[header]], [[header], parts[:3]], [[header], [*parts, b""]]):
        assert refused(lambda value=value: Chain.from_value(value)) is Reason.BAD_SHAPE  # type: ignore[misc]
    largest: list[Value] = [bytes(ROSTER_PART_BYTES_MAX)] * 4
    assert Chain.from_value([[header], largest]).parts.all == tuple(largest)


def test_a_question_is_as_strict_as_what_it_holds() -> None:
    data = Ask(OURS, Proof((carry("alice"),)), GRAPH, "").encode()
    assert refused(lambda: Ask.decode(changed(data, {6: 0}), NETWORK, PEER)) is Reason.BAD_SHAPE
    for entry in (b"", bytes(16), bytes(64), bytes(66)):
        assert refused(lambda entry=entry: Ask.decode(changed(data, {3: entry}), NETWORK, PEER)) is Reason.BAD_FIELD  # type: ignore[misc]
    assert refused(lambda: Ask.decode(changed(data, {3: bytes(65)}), NETWORK, PEER)) is Reason.BAD_SIGNATURE
    assert refused(lambda: Ask.decode(changed(data, {4: "a" * 65}), NETWORK, PEER)) is Reason.BAD_FIELD
    assert refused(lambda: Ask.decode(changed(data, {5: []}), NETWORK, PEER)) is Reason.BAD_SHAPE
    for read in (Answer.decode, lambda data: Ask.decode(data, NETWORK, PEER)):
        assert refused(lambda read=read: read(bytes(ANSWER_BYTES_MAX + 1))) is Reason.OVERSIZE  # type: ignore[misc]


def test_a_long_chain_is_read() -> None:
    answer = Answer(Reply.LISTED, Chain(CHAIN.headers * 100, CHAIN.parts))
    assert len(answer.encode()) > ITEM_BYTES_MAX
    assert Answer.decode(answer.encode()) == answer
    ask = Ask(OURS, Proof((carry("alice"),)), GRAPH, "", chain=answer.chain)
    assert Ask.decode(ask.encode(), NETWORK, PEER) == ask


def test_a_delegation_says_which_rights_it_gives() -> None:
    some = ActFor(NETWORK, address("alice"), address("helper"), 1, "", Right.SHARE | Right.RETRACT).sign(key("alice"))
    proof = Proof((carry("helper"),), (some,))
    assert Proof.decode(proof.encode(), NETWORK, PEER).delegations == (some,)
