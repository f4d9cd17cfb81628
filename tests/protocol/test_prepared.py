"""A change that an approver prepared: what is signed, the word that hands it on, and what is no such word."""

from __future__ import annotations

import pytest
from eth_account.messages import encode_typed_data
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.prepared import CHANGE_CHARS_MAX, PREPARED_PREFIX, Prepared, SignedPrepared

from . import world as w

PARENT = keccak256(b"the roster before")
GRAPH = w.GRAPH
BOB = w.address("bob")


def prepared(change: str = '{"m":2}') -> Prepared:
    return Prepared(w.NETWORK, GRAPH, PARENT, change, BOB)


def test_a_wallet_signs_the_same_digest_as_we_do() -> None:
    it = prepared()
    shown = encode_typed_data(full_message=it.typed_data())
    assert keccak256(b"\x19" + shown.version + shown.header + shown.body) == it.digest


@given(st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300))
def test_the_word_is_read_as_it_is_written(change: str) -> None:
    signed = prepared(change).sign(w.key("bob"))
    assert SignedPrepared.parse(str(signed)) == signed
    assert SignedPrepared.parse(f"  {signed}\n") == signed


def test_only_its_approver_signs_it() -> None:
    with pytest.raises(MisuseError, match="only"):
        prepared().sign(w.key("alice"))
    other = prepared('{"m":3}').sign(w.key("bob"))
    with pytest.raises(MisuseError, match="damaged"):
        SignedPrepared.parse(str(SignedPrepared(prepared(), other.signature)))


def test_a_change_has_a_length() -> None:
    for text in ("", "x" * (CHANGE_CHARS_MAX + 1)):
        with pytest.raises(MisuseError, match="characters"):
            prepared(text)


@pytest.mark.parametrize("character", ["a", "é", "€", "\U0001f41d"])
def test_a_change_of_as_many_characters_as_the_limit_is_read_again(character: str) -> None:
    signed = prepared(character * CHANGE_CHARS_MAX).sign(w.key("bob"))
    assert SignedPrepared.parse(str(signed)) == signed


def test_every_word_that_differs_in_one_place_is_refused() -> None:
    word = str(prepared().sign(w.key("bob")))
    for place in range(len(word)):
        changed = "a" if word[place] != "a" else "b"
        with pytest.raises(MisuseError):
            SignedPrepared.parse(word[:place] + changed + word[place + 1 :])
    for text in ("", PREPARED_PREFIX, word[:-1], word + "a", word + "é", word.upper(), PREPARED_PREFIX + "a" * 600_000):
        with pytest.raises(MisuseError):
            SignedPrepared.parse(text)
