"""Key files: other programs read ours, and we read theirs."""

from __future__ import annotations

import json
import secrets

import pytest
from eth_account import Account
from eth_keyfile.keyfile import create_keyfile_json
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key

from p2pmem.keyfile import decrypt, encrypt

KEY = Key(bytes(range(1, 33)))
PASSWORD = b"correct horse battery staple"


def written() -> dict[str, object]:
    document = encrypt(KEY, PASSWORD, scrypt_n=2**10, random_bytes=secrets.token_bytes)
    read: dict[str, object] = json.loads(json.dumps(document))
    return read


def test_other_programs_read_our_key_files() -> None:
    assert bytes(Account.decrypt(written(), PASSWORD.decode())) == KEY.secret


@pytest.mark.parametrize("kdf", ["scrypt", "pbkdf2"])
def test_we_read_the_key_files_of_other_programs(kdf: str) -> None:
    document = create_keyfile_json(KEY.secret, PASSWORD, kdf=kdf, iterations=2**10)
    assert decrypt(document, PASSWORD).address == KEY.address


def test_a_wrong_password_and_a_damaged_file_are_refused() -> None:
    with pytest.raises(MisuseError, match="password is wrong"):
        decrypt(written(), b"other")
    damaged = written()
    damaged["crypto"]["ciphertext"] = "00" * 32  # type: ignore[index]
    with pytest.raises(MisuseError, match="damaged"):
        decrypt(damaged, PASSWORD)


@pytest.mark.parametrize("document", [None, [], {}, {"version": 1}, {"version": 3}, {"version": 3, "crypto": {}}])
def test_what_is_no_key_file_is_refused_in_words(document: object) -> None:
    with pytest.raises(MisuseError, match="key file"):
        decrypt(document, PASSWORD)


def test_a_file_that_would_take_all_memory_is_refused() -> None:
    greedy = written()
    greedy["crypto"]["kdfparams"]["n"] = 2**24  # type: ignore[index]
    with pytest.raises(MisuseError, match="whole key file"):
        decrypt(greedy, PASSWORD)
