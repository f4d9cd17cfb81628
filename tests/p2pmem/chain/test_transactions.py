"""Transactions at rest: what is stored says all."""

from __future__ import annotations

import pytest
from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_utils.crypto import keccak
from hexbytes import HexBytes
from hypothesis import given, strategies as st
from p2pmem_protocol.errors import MisuseError

from p2pmem.chain import SignedTransaction
from p2pmem.chain.transactions import Fees, decode, sign, with_higher_bid

PAYER = Account.from_key(keccak(text="payer"))
LIMIT_WEI = 10**12


def made(nonce: int = 4, to: bytes | None = b"\x11" * 20, data: bytes = b"\x01\x02") -> SignedTransaction:
    return sign(PAYER, chain_id=31337, nonce=nonce, to=to, data=data, gas=100_000, fees=Fees(2_000_000_007, 7))


@given(st.integers(0, 2**40), st.one_of(st.none(), st.binary(min_size=20, max_size=20)), st.binary(max_size=200))
def test_the_raw_bytes_alone_give_back_hash_nonce_and_sender(nonce: int, to: bytes | None, data: bytes) -> None:
    transaction = made(nonce, to, data)
    assert decode(transaction.raw) == transaction
    assert transaction.hash == keccak(transaction.raw)
    assert transaction.sender == bytes.fromhex(PAYER.address[2:])


def test_signing_twice_gives_the_same_bytes_so_a_repeated_step_is_the_same_effect() -> None:
    assert made() == made()


@given(st.integers(0, 200), st.binary(min_size=1, max_size=8))
def test_damaged_bytes_are_refused_or_are_another_transaction_and_never_crash(at: int, put: bytes) -> None:
    transaction = made()
    damaged = transaction.raw[: at % len(transaction.raw)] + put
    try:
        found = decode(damaged)
    except MisuseError:
        return
    assert found.hash != transaction.hash or damaged == transaction.raw


@pytest.mark.parametrize("raw", [b"", b"\x02", b"\x02\xc0", b"\x01\xc0", b"\xf8\x00", b"\x02" + b"\xff" * 40])
def test_bytes_that_are_no_transaction_are_refused_with_words(raw: bytes) -> None:
    with pytest.raises(MisuseError, match="transaction"):
        decode(raw)


def test_an_oversized_transaction_is_refused_before_it_is_read() -> None:
    with pytest.raises(MisuseError, match="at most"):
        decode(b"\x02" * 200_000)


@pytest.mark.parametrize("to", [None, b"\x22" * 20])
def test_a_raised_fee_is_the_same_effect_and_a_tenth_higher_in_both_parts(to: bytes | None) -> None:
    first = made(to=to)
    second = with_higher_bid(first, PAYER, LIMIT_WEI)
    old = TypedTransaction.from_bytes(HexBytes(first.raw)).as_dict()
    new = TypedTransaction.from_bytes(HexBytes(second.raw)).as_dict()
    for same in ("nonce", "to", "data", "gas", "chainId", "value"):
        assert old[same] == new[same]
    for fee in ("maxFeePerGas", "maxPriorityFeePerGas"):
        assert new[fee] * 10 >= old[fee] * 11
    assert second.hash != first.hash


def test_a_fee_above_the_limit_is_refused_before_anything_is_signed() -> None:
    with pytest.raises(MisuseError, match="limit"):
        Fees.for_base(LIMIT_WEI, 1, LIMIT_WEI)
    with pytest.raises(MisuseError, match="limit"):
        with_higher_bid(made(), PAYER, 2_000_000_008)


def test_only_the_key_that_signed_can_raise_a_fee() -> None:
    with pytest.raises(MisuseError, match="only that key"):
        with_higher_bid(made(), Account.from_key(keccak(text="other")), LIMIT_WEI)
