"""Names: one grammar and one parser for each kind; a bad one is refused with the rule that it broke."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import (
    ADDRESS_BYTES,
    Address,
    AssetKey,
    BadNameError,
    GraphName,
    VersionKey,
    check_name,
    check_slug,
    check_subgraph,
    graph_id,
    hex_id,
    network_id,
    parse_hex_id,
)

ALICE = Address(bytes.fromhex("5aaeb6053f3e94c9b9a09f33669435e7ef1beaed"))
addresses = st.binary(min_size=20, max_size=20).map(Address)

# The examples of EIP-55.
CHECKSUMMED = (
    "0x52908400098527886E0F7030069857D2E4169EE7",
    "0x8617E340B3D01FA5F11F306F4090FD50E238070D",
    "0xde709f2102306220921060314715629080e2fb77",
    "0x27b1fdb04752bbc536007a920d24acb045561c26",
    "0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed",
    "0xfB6916095ca1df60bB79Ce92cE3Ea74c37c5d359",
    "0xdbF03B407c01E7cD3CBea99509d93f8DDDC8C6FB",
    "0xD1220A0cf47c7B9Be7A2E6BA89F429762e7b9aDb",
)


@pytest.mark.parametrize("text", CHECKSUMMED)
def test_the_examples_of_eip_55(text: str) -> None:
    assert Address.parse(text).checksummed == text
    assert str(Address.parse(text)) == text.lower()


@given(addresses)
def test_every_usual_form_of_an_address_is_read(address: Address) -> None:
    for text in (str(address), address.checksummed, address.iri, f"did:dkg:agent:{address.checksummed}"):
        assert Address.parse(text) == address
    assert Address.parse("0X" + address.hex().upper()) == address


@given(addresses, st.data())
def test_a_mistyped_case_is_noticed(address: Address, data: st.DataObject) -> None:
    text = address.checksummed
    letters = [at for at, character in enumerate(text) if at > 1 and character.isalpha()]
    if len(letters) < 3:
        return
    at = data.draw(st.sampled_from(letters))
    wrong = text[:at] + text[at].swapcase() + text[at + 1 :]
    if wrong[2:] not in (wrong[2:].lower(), wrong[2:].upper()):
        with pytest.raises(BadNameError, match="checksum"):
            Address.parse(wrong)


@pytest.mark.parametrize(
    "text",
    ["", "0x", "alice", str(ALICE)[2:], str(ALICE) + "0", str(ALICE)[:-1] + "g", str(ALICE) + "\n", "0x" + "٣" * 40],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(BadNameError):
        Address.parse(text)


@pytest.mark.parametrize("length", [0, 19, 21, 32])
def test_an_address_has_twenty_bytes(length: int) -> None:
    with pytest.raises(BadNameError, match="20 bytes"):
        Address(bytes(length))
    assert len(ALICE) == ADDRESS_BYTES


GRAMMARS = {
    check_slug: ("[a-z0-9][a-z0-9._-]{0,63}", ["a", "0", "a" * 64, "a.b-c_d"], ["", "A", "-a", "_a", "a" * 65, "a/b"]),
    check_name: (
        "[A-Za-z0-9][A-Za-z0-9._~-]{0,127}",
        ["A", "9", "a" * 128, "Report-1.v2~x_y"],
        ["", ".a", "~a", "a" * 129, "a/b", "a:b"],
    ),
    check_subgraph: (
        "[a-z0-9][a-z0-9.-]{0,20}(/[a-z0-9][a-z0-9.-]{0,20}){0,4}",
        ["", "a", "a/b/c", "2026/q3", "a" * 128],
        ["/", "a/", "/a", "a//b", "_a", "a/_b", "A", "a_b", "assertion", "a/assertion", "a" * 129],
    ),
}


@pytest.mark.parametrize("check", GRAMMARS, ids=lambda it: it.__name__)
def test_names_at_the_ends_of_the_grammar(check: Callable[[str], str]) -> None:
    _, good, bad = GRAMMARS[check]
    for name in good:
        assert check(name) == name
    for name in [*bad, "a b", "a\n", "ä", "a\x00", "a\u202e"]:
        with pytest.raises(BadNameError):
            check(name)


@given(st.data())
@pytest.mark.parametrize("check", GRAMMARS, ids=lambda it: it.__name__)
def test_names_of_the_grammar_are_read(check: Callable[[str], str], data: st.DataObject) -> None:
    name = data.draw(st.from_regex(GRAMMARS[check][0], fullmatch=True))
    if check is check_subgraph and {"assertion"} & set(name.split("/")):
        return
    assert check(name) == name


@pytest.mark.parametrize("part", [str(ALICE), "0x" + "a" * 40])
def test_a_part_of_a_subgraph_does_not_look_like_an_address(part: str) -> None:
    for name in (part, f"a/{part}", f"{part}/a"):
        with pytest.raises(BadNameError, match="address"):
            check_subgraph(name)
    assert check_subgraph("0x" + "a" * 39) == "0x" + "a" * 39


def test_a_refusal_shows_the_rule_and_not_a_page() -> None:
    with pytest.raises(BadNameError) as caught:
        check_slug("A" * 10_000)
    assert "a-z 0-9" in str(caught.value)
    assert len(str(caught.value)) < 300


@given(addresses, st.from_regex("[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True))
def test_a_graph_has_one_name_and_one_id(creator: Address, slug: str) -> None:
    name = GraphName(creator, slug)
    assert GraphName.parse(str(name)) == GraphName.parse(name.iri) == name
    assert name.id == graph_id(creator, slug)
    assert len(name.id) == 32


@pytest.mark.parametrize("text", ["", "notes", f"{ALICE}", f"{ALICE}/", f"{ALICE}/A", f"{ALICE}/a/b", "0x12/a"])
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(BadNameError):
        GraphName.parse(text)
    with pytest.raises(BadNameError):
        GraphName(ALICE, "")


def test_the_iris_of_a_graph_keep_to_their_places() -> None:
    name = GraphName(ALICE, "notes")
    assert name.iri == f"did:dkg:context-graph:{ALICE}/notes"
    assert name.meta_iri == f"{name.iri}/_meta"
    assert name.draft_iri(ALICE, "a") == f"{name.iri}/assertion/{ALICE}/a"
    assert name.draft_iri(ALICE, "a", "s/t") == f"{name.iri}/s/t/assertion/{ALICE}/a"
    assert name.shared_iri(ALICE, "a") == f"{name.iri}/_shared_memory/{ALICE}/a"
    assert name.shared_iri(ALICE, "a", "s") == f"{name.iri}/s/_shared_memory/{ALICE}/a"
    assert name.published_iri(ALICE, "a") == f"{name.iri}/_verifiable_memory/{ALICE}/a"
    assert name.published_iri(ALICE, "a", "s") == f"{name.iri}/s/_verifiable_memory/{ALICE}/a"
    assert name.lifecycle_iri(ALICE, "a") == f"urn:dkg:assertion:{ALICE}/notes:{ALICE}:a"


def test_other_creators_and_other_slugs_are_other_graphs() -> None:
    other = Address(bytes(20))
    assert len({graph_id(ALICE, "a"), graph_id(ALICE, "b"), graph_id(other, "a")}) == 3
    assert network_id("a") != network_id("b")
    with pytest.raises(BadNameError):
        network_id("A")
    assert len(network_id("a" * 64)) == 32
    with pytest.raises(BadNameError):
        network_id("a" * 65)


@given(st.binary(min_size=32, max_size=32))
def test_an_id_is_shown_and_read(raw: bytes) -> None:
    assert parse_hex_id(hex_id(raw)) == parse_hex_id(raw.hex()) == raw


@pytest.mark.parametrize("text", ["", "0x", "0x" + "0" * 63, "0x" + "0" * 65, "0x" + "g" * 64, "0x" + "00 " * 32])
def test_what_is_no_id_is_refused(text: str) -> None:
    with pytest.raises(MisuseError):
        parse_hex_id(text)


def test_a_version_has_five_names() -> None:
    version = VersionKey(ALICE, "a", 2, b"\x01" * 32, b"\x02" * 32)
    assert version.fields == (bytes(ALICE), "a", 2, b"\x01" * 32, b"\x02" * 32)
    assert version.asset == AssetKey(ALICE, "a")
    assert str(version) == f"{ALICE}/a v2 root 0x01010101 seal 0x02020202"
    assert str(version.asset) == f"{ALICE}/a"
