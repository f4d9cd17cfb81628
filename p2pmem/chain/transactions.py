"""Signing, decoding and re-bidding EIP-1559 transactions. No IO.

A private key stays with its holder: all that is asked of a signer is what an account of eth-account offers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from eth_account import Account
from eth_account.typed_transactions.typed_transaction import TypedTransaction
from eth_keys.exceptions import BadSignature
from eth_utils.address import to_checksum_address
from eth_utils.crypto import keccak
from eth_utils.exceptions import ValidationError
from hexbytes import HexBytes
from p2pmem_protocol.errors import MisuseError
from rlp.exceptions import RLPException  # type: ignore[import-untyped]

from p2pmem.chain.seam import SignedTransaction

# Nodes take a replacement when both fees are a tenth higher; an eighth also satisfies those that round.
RAISE_NUMERATOR, RAISE_DENOMINATOR = 9, 8
TRANSACTION_BYTES_MAX = 128 * 1024  # what nodes take into their pool


class SignedLike(Protocol):
    """What eth-account returns."""

    @property
    def raw_transaction(self) -> bytes: ...
    @property
    def hash(self) -> bytes: ...


class TransactionSigner(Protocol):
    """Who pays. `eth_account.Account.from_key(...)` is one."""

    @property
    def address(self) -> str: ...
    def sign_transaction(self, transaction_dict: dict[str, Any]) -> SignedLike: ...


@dataclass(frozen=True, slots=True)
class Fees:
    """A bid, per unit of gas: what is paid at most, and what of it goes to the block's producer at most."""

    per_gas_max_wei: int
    priority_per_gas_max_wei: int

    @classmethod
    def for_base(cls, base_wei: int, priority_wei: int, limit_wei: int) -> Fees:
        """Bid twice the base fee, which holds for some six full blocks. `MisuseError` if that is above the limit."""
        fees = cls(2 * base_wei + priority_wei, priority_wei)
        fees.expect_within(limit_wei)
        return fees

    def raised(self, limit_wei: int) -> Fees:
        """The least bid that replaces this one. `MisuseError` if that is above the limit."""
        fees = Fees(
            self.per_gas_max_wei * RAISE_NUMERATOR // RAISE_DENOMINATOR + 1,
            self.priority_per_gas_max_wei * RAISE_NUMERATOR // RAISE_DENOMINATOR + 1,
        )
        fees.expect_within(limit_wei)
        return fees

    def expect_within(self, limit_wei: int) -> None:
        if self.per_gas_max_wei > limit_wei:
            raise MisuseError(
                f"the chain asks for {self.per_gas_max_wei} wei per gas and the limit is {limit_wei}: "
                "wait until it is cheaper, or raise the limit in the settings"
            )


def sign(
    signer: TransactionSigner, *, chain_id: int, nonce: int, to: bytes | None, data: bytes, gas: int, fees: Fees
) -> SignedTransaction:
    """Sign a call without value, or with `to` None the creation of a contract."""
    fields: dict[str, Any] = {
        "type": 2,
        "chainId": chain_id,
        "nonce": nonce,
        "value": 0,
        "data": data,
        "gas": gas,
        "maxFeePerGas": fees.per_gas_max_wei,
        "maxPriorityFeePerGas": fees.priority_per_gas_max_wei,
    }
    if to is not None:
        fields["to"] = to_checksum_address(to)
    signed = signer.sign_transaction(fields)
    transaction = SignedTransaction(
        raw=bytes(signed.raw_transaction),
        hash=bytes(signed.hash),
        nonce=nonce,
        sender=bytes.fromhex(signer.address.removeprefix("0x")),
    )
    assert decode(transaction.raw) == transaction, "what was signed does not say who signed it"
    return transaction


def decode(raw: bytes) -> SignedTransaction:
    """Find hash, nonce and sender of a stored transaction. `MisuseError` if these are not bytes that `sign` made."""
    fields = _fields(raw)
    with _undecodable():
        sender = Account.recover_transaction(HexBytes(raw))
    return SignedTransaction(
        raw=bytes(raw),
        hash=bytes(keccak(raw)),
        nonce=int(fields["nonce"]),
        sender=bytes.fromhex(sender.removeprefix("0x")),
    )


def with_higher_bid(transaction: SignedTransaction, signer: TransactionSigner, limit_wei: int) -> SignedTransaction:
    """The same effect with the least bid that replaces it."""
    fields = _fields(transaction.raw)
    sender = bytes.fromhex(signer.address.removeprefix("0x"))
    if sender != transaction.sender:
        raise MisuseError(f"0x{transaction.sender.hex()} signed the transaction, and only that key can raise its fee")
    to = bytes(fields["to"])
    return sign(
        signer,
        chain_id=int(fields["chainId"]),
        nonce=transaction.nonce,
        to=to or None,
        data=bytes(fields["data"]),
        gas=int(fields["gas"]),
        fees=Fees(int(fields["maxFeePerGas"]), int(fields["maxPriorityFeePerGas"])).raised(limit_wei),
    )


def _fields(raw: bytes) -> dict[str, Any]:
    if len(raw) > TRANSACTION_BYTES_MAX:
        raise MisuseError(f"a transaction of {len(raw)} bytes; nodes take at most {TRANSACTION_BYTES_MAX}")
    if raw[:1] != b"\x02":
        raise MisuseError("this is no EIP-1559 transaction (type 2); only those are made here")
    with _undecodable():
        return dict(TypedTransaction.from_bytes(HexBytes(raw)).as_dict())


@contextmanager
def _undecodable() -> Iterator[None]:
    try:
        yield
    except (RLPException, BadSignature, ValidationError, ValueError, TypeError) as error:
        raise MisuseError(
            f"the stored transaction cannot be decoded ({type(error).__name__}): it is damaged"
        ) from error
