"""Digests of the fixed structs equal those of a general EIP-712 library, for every type and any values."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from eth_account.messages import _hash_eip191_message, encode_typed_data
from hypothesis import given, strategies as st
from p2pmem_protocol.eip712 import FieldValue, Struct, digest, domain_separator, typed_data
from p2pmem_protocol.errors import BugError, MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import NetworkId, network_id

from tests.suites import Suites

NETWORK = network_id("test")
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bytes32": st.binary(min_size=32, max_size=32),
    "address": st.binary(min_size=20, max_size=20),
    "bytes": st.binary(max_size=200),
    "string": st.text(max_size=200),
    "uint8": st.integers(0, 2**8 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}


def oracle(shown: dict[str, object]) -> bytes:
    return bytes(_hash_eip191_message(encode_typed_data(full_message=shown)))


def values_of(struct: Struct) -> st.SearchStrategy[dict[str, FieldValue]]:
    return st.fixed_dictionaries({name: VALUES[kind] for kind, name in struct.value.fields})


def some(struct: Struct) -> dict[str, FieldValue]:
    plain: dict[str, FieldValue] = {
        "bytes32": b"\x01" * 32,
        "address": b"\x02" * 20,
        "bytes": b"\x03",
        "string": "4",
        "uint8": 5,
        "uint32": 6,
        "uint64": 7,
    }
    return {name: plain[kind] for kind, name in struct.value.fields}


def changed(value: FieldValue) -> FieldValue:
    if isinstance(value, bytes):
        return bytes(it ^ 1 for it in value)
    return value + "." if isinstance(value, str) else value + 1


@pytest.mark.parametrize("struct", Struct, ids=lambda it: it.value.name)
@given(st.data(), VALUES["bytes32"])
def test_every_struct_has_the_digest_of_eth_account(struct: Struct, data: st.DataObject, network: bytes) -> None:
    values = data.draw(values_of(struct))
    assert digest(struct, values, NetworkId(network)) == oracle(typed_data(struct, values, NetworkId(network)))


@pytest.mark.parametrize("struct", Struct, ids=lambda it: it.value.name)
def test_a_wallet_that_signs_the_typed_data_signs_the_digest(struct: Struct) -> None:
    key = Key(b"\x07" * 32)
    values = some(struct)
    signed = Account.sign_typed_data(key.secret, full_message=typed_data(struct, values, NETWORK))
    assert bytes(signed.signature) == key.sign(digest(struct, values, NETWORK))


@pytest.mark.parametrize("struct", Struct, ids=lambda it: it.value.name)
def test_each_field_and_the_network_and_the_type_are_in_the_digest(struct: Struct) -> None:
    values = some(struct)
    digests = {digest(struct, values, NETWORK), digest(struct, values, network_id("other"))}
    for _, name in struct.value.fields:
        value = values[name]
        digests.add(digest(struct, values | {name: changed(value)}, NETWORK))
    # The same fields under another name.
    shown = json.loads(json.dumps(typed_data(struct, values, NETWORK)))
    shown["types"]["Other"] = shown["types"].pop(struct.value.name)
    shown["primaryType"] = "Other"
    digests.add(oracle(shown))
    assert len(digests) == len(struct.value.fields) + 3


def test_two_structs_of_one_set_of_fields_have_two_type_hashes() -> None:
    assert len({struct.value.type_hash for struct in Struct}) == len(Struct)


def test_the_domain_has_a_name_a_version_and_the_network_as_salt() -> None:
    domain = typed_data(Struct.CARRY, some(Struct.CARRY), NETWORK)["domain"]
    assert domain == {"name": "p2pmem", "version": "1", "salt": "0x" + NETWORK.hex()}
    assert domain_separator(NETWORK) != domain_separator(network_id("other"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("graph", b"\x01" * 31),
        ("graph", "0x" + "01" * 32),
        ("author", b"\x01" * 21),
        ("author", 1),
        ("asset", b"name"),
        ("version", 2**32),
        ("version", -1),
        ("version", "1"),
        ("leaves", 1.0),
    ],
)
def test_a_value_of_another_type_is_a_bug(name: str, value: Any) -> None:
    with pytest.raises(BugError):
        digest(Struct.SEAL, some(Struct.SEAL) | {name: value}, NETWORK)


@pytest.mark.parametrize(("kind", "limit"), [("kind", 2**8), ("roster", 2**32), ("issuedAt", 2**64)])
def test_an_integer_fits_its_width_to_the_last(kind: str, limit: int) -> None:
    values = some(Struct.ENVELOPE)
    digest(Struct.ENVELOPE, values | {kind: limit - 1}, NETWORK)
    with pytest.raises(BugError, match="uint"):
        digest(Struct.ENVELOPE, values | {kind: limit}, NETWORK)


def test_a_body_that_is_no_bytes_is_a_bug() -> None:
    with pytest.raises(BugError):
        digest(Struct.ENVELOPE, some(Struct.ENVELOPE) | {"body": "text"}, NETWORK)


def test_a_missing_or_additional_field_is_a_bug() -> None:
    values = some(Struct.SEAL)
    with pytest.raises(BugError):
        digest(Struct.SEAL, {name: value for name, value in values.items() if name != "root"}, NETWORK)
    with pytest.raises(BugError):
        digest(Struct.SEAL, values | {"other": 1}, NETWORK)
    renamed = {name if name != "root" else "Root": value for name, value in values.items()}
    with pytest.raises(BugError):
        digest(Struct.SEAL, renamed, NETWORK)


@pytest.mark.parametrize("text", ["\ud800", "x" * 200 + "\udfff"])
def test_half_a_character_is_not_signed(text: str) -> None:
    with pytest.raises(MisuseError):
        digest(Struct.ACT_FOR, some(Struct.ACT_FOR) | {"label": text}, NETWORK)


def test_the_oracle_reads_the_messages_that_others_collected(shared_data: Path, suites: Suites) -> None:
    """They have nested structs and domains of their own, which our table cannot say; so they test what tests us."""
    messages = json.loads((shared_data / "eip712" / "valid_for_all.json").read_text())
    hashes = {name: oracle(message) for name, message in messages.items()}
    assert len(messages) == 9
    assert all(len(it) == 32 for it in hashes.values())
    for message in suites("EIP-712 messages of eth-account").each(list(messages.values())):
        assert message["primaryType"] not in {struct.value.name for struct in Struct}
