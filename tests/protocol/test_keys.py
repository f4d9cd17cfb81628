"""A signature has one form, and some address comes out of almost any bytes: only the named signer's counts."""

from __future__ import annotations

import coincurve
import pytest
from hypothesis import given, strategies as st
from p2pmem_protocol import keys
from p2pmem_protocol.errors import MisuseError, Penalty, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import Key, check_form, check_signed_by, check_still_signed_by, signer_of
from p2pmem_protocol.names import ZERO_ADDRESS, Address

ORDER = 0xFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFFEBAAEDCE6AF48A03BBFD25E8CD0364141
KEY = Key(b"\x01" * 32)
DIGEST = keccak256(b"a digest")
GOOD = KEY.sign(DIGEST)
R, S, V = GOOD[:32], GOOD[32:64], GOOD[64]
secrets = st.integers(1, ORDER - 1).map(lambda number: number.to_bytes(32))
digests = st.binary(min_size=32, max_size=32)


def word(number: int) -> bytes:
    return number.to_bytes(32)


def reason_of(signature: bytes, digest: bytes = DIGEST) -> Reason | None:
    try:
        check_signed_by(KEY.address, digest, signature)
    except RefusedError as refused:
        return refused.reason if refused.penalty is Penalty.CLOSE else None
    return None


@given(secrets, digests)
def test_what_a_key_signs_is_by_its_address_and_in_the_one_form(secret: bytes, digest: bytes) -> None:
    key = Key(secret)
    signature = key.sign(digest)
    check_form(signature)
    assert signer_of(digest, signature) == key.address
    assert signature == key.sign(digest)
    assert int.from_bytes(signature[32:64]) <= ORDER // 2
    assert signature[64] in (27, 28)


def test_the_address_is_that_of_ethereum() -> None:
    # The first account of every Ethereum development chain.
    key = Key(bytes.fromhex("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80"))
    assert key.address.checksummed == "0xf39Fd6e51aad88F6F4ce6aB8827279cffFb92266"
    assert key.secret.hex().startswith("ac0974be")


REFUSED = {
    "no bytes": b"",
    "64 bytes": R + S,
    "66 bytes": GOOD + b"\x00",
    "EIP-2098, compact": R + word(int.from_bytes(S) | ((V - 27) << 255)),
    "v of 0 or 1": R + S + bytes((V - 27,)),
    "v of 26": R + S + b"\x1a",
    "v of 29": R + S + b"\x1d",
    "v of EIP-155": R + S + b"\x25",
    "the twin with a high s": R + word(ORDER - int.from_bytes(S)) + bytes((55 - V,)),
    "s of half the order and one": R + word(ORDER // 2 + 1) + bytes((V,)),
    "s of the order": R + word(ORDER) + bytes((V,)),
    "s of zero": R + word(0) + bytes((V,)),
    "r of zero": word(0) + S + bytes((V,)),
    "r of the order": word(ORDER) + S + bytes((V,)),
    "r past the order": word(2**256 - 1) + S + bytes((V,)),
    "r on no point of the curve": word(5) + S + bytes((V,)),
    "all zero": bytes(65),
    "all ones": b"\xff" * 65,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_signature_in_another_form_is_refused(name: str) -> None:
    assert reason_of(REFUSED[name]) is Reason.BAD_SIGNATURE
    with pytest.raises(RefusedError):
        signer_of(DIGEST, REFUSED[name])


def test_the_twin_with_a_high_s_is_by_the_same_key_and_refused_all_the_same() -> None:
    twin = REFUSED["the twin with a high s"]
    recoverable = twin[:64] + bytes((twin[64] - 27,))
    public = coincurve.PublicKey.from_signature_and_message(recoverable, DIGEST, hasher=None)
    assert keccak256(public.format(compressed=False)[1:])[-20:] == KEY.address


@pytest.mark.parametrize("name", [name for name in REFUSED if name != "r on no point of the curve"])
def test_the_form_alone_tells_but_for_the_curve(name: str) -> None:
    with pytest.raises(RefusedError) as caught:
        check_form(REFUSED[name])
    assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("s", [1, ORDER // 2])
@pytest.mark.parametrize("v", [27, 28])
def test_the_ends_of_the_form_are_in_it(s: int, v: int) -> None:
    check_form(R + word(s) + bytes((v,)))
    check_form(word(1) + word(s) + bytes((v,)))
    check_form(word(ORDER - 1) + word(s) + bytes((v,)))


def test_another_signer_is_refused() -> None:
    assert reason_of(GOOD) is None
    assert reason_of(Key(b"\x02" * 32).sign(DIGEST)) is Reason.WRONG_SIGNER
    assert reason_of(GOOD, keccak256(b"another digest")) is Reason.WRONG_SIGNER
    assert reason_of(R + S + bytes((55 - V,))) is Reason.WRONG_SIGNER


def test_nothing_is_signed_by_the_zero_address() -> None:
    for signature in (GOOD, *REFUSED.values()):
        with pytest.raises(RefusedError):
            check_signed_by(ZERO_ADDRESS, DIGEST, signature)


@given(st.binary(max_size=70), digests)
def test_random_bytes_are_refused_and_nothing_else(signature: bytes, digest: bytes) -> None:
    assert reason_of(signature, digest) in (Reason.BAD_SIGNATURE, Reason.WRONG_SIGNER)


@given(st.integers(0, 65 * 8 - 1))
def test_a_flipped_bit_is_refused(bit: int) -> None:
    changed = bytearray(GOOD)
    changed[bit // 8] ^= 1 << bit % 8
    assert reason_of(bytes(changed)) is not None


def test_what_comes_again_is_recovered_once_and_a_refusal_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    recovered: list[bytes] = []
    real = coincurve.PublicKey.from_signature_and_message

    def counted(signature: bytes, message: bytes, **options: object) -> coincurve.PublicKey:
        recovered.append(message)
        return real(signature, message, hasher=None)

    keys._remembered_signer_of.cache_clear()
    monkeypatch.setattr(keys.coincurve.PublicKey, "from_signature_and_message", counted)
    digest = keccak256(b"a seal that is renewed")
    signature = KEY.sign(digest)
    for _ in range(3):
        check_still_signed_by(KEY.address, digest, signature)
    assert len(recovered) == 1
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            check_still_signed_by(Address(b"\x01" * 20), digest, signature)
        assert caught.value.reason is Reason.WRONG_SIGNER
    for _ in range(2):
        with pytest.raises(RefusedError) as caught:
            check_still_signed_by(KEY.address, digest, signature[:64] + bytes((signature[64] - 27,)))
        assert caught.value.reason is Reason.BAD_SIGNATURE


@pytest.mark.parametrize("secret", [b"", bytes(32), word(ORDER), b"\xff" * 32, b"\x01" * 31, b"\x01" * 33])
def test_what_is_no_key_is_refused(secret: bytes) -> None:
    with pytest.raises(MisuseError, match="32 bytes"):
        Key(secret)


def test_the_secret_is_in_no_representation() -> None:
    assert KEY.secret.hex() not in repr(KEY) + str(KEY)
    assert str(KEY.address) in repr(KEY)


def test_a_digest_has_32_bytes() -> None:
    with pytest.raises(MisuseError, match="digest"):
        signer_of(DIGEST[:-1], GOOD)
