"""Nonces: never twice, never a gap."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError

from p2pmem.chain.nonces import RESERVED_MAX, Nonces


def test_two_prepared_transactions_take_two_nonces_in_a_row() -> None:
    nonces = Nonces()
    assert [nonces.take(7), nonces.take(7), nonces.take(7)] == [7, 8, 9]


def test_a_released_nonce_is_the_next_taken_so_that_no_gap_stays() -> None:
    nonces = Nonces()
    first, second = nonces.take(0), nonces.take(0)
    nonces.release(first)
    assert nonces.take(0) == first
    assert nonces.take(0) == second + 1


def test_a_chain_that_lost_blocks_gets_the_lost_nonces_again() -> None:
    nonces = Nonces()
    nonces.take(0)
    nonces.take(5)
    assert nonces.take(1) == 1


def test_an_adopted_nonce_is_not_given_to_another() -> None:
    nonces = Nonces()
    nonces.adopt(3)
    assert nonces.take(3) == 4


def test_the_number_of_reservations_is_bounded() -> None:
    nonces = Nonces()
    for _ in range(RESERVED_MAX):
        nonces.take(0)
    with pytest.raises(MisuseError, match="send or release"):
        nonces.take(0)
    assert nonces.take(1) == RESERVED_MAX


@given(st.lists(st.sampled_from(["take", "send", "release"]), max_size=60))
def test_what_is_out_is_distinct_and_without_gap_whatever_happens(steps: list[str]) -> None:
    nonces, count, prepared = Nonces(), 0, list[int]()
    for step in steps:
        if step == "take":
            nonce = nonces.take(count)
            assert nonce not in prepared
            assert nonce == min(set(range(count, count + len(prepared) + 1)) - set(prepared))
            prepared.append(nonce)
        elif step == "send" and count in prepared:
            prepared.remove(count)
            count += 1
        elif step == "release" and prepared:
            nonces.release(prepared.pop())
        assert all(nonce >= count for nonce in prepared)
