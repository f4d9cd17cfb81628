"""Key files in the format of Ethereum: Web3 Secret Storage, version 3.

A key is derived from a password (scrypt, or PBKDF2 in files of others), half of it encrypts the secret with AES-128 in
counter mode, the other half makes a check value with keccak-256. Other programs read what is written here, and the
reverse. Source: https://ethereum.org/en/developers/docs/data-structures-and-encoding/web3-secret-storage

The package eth-keyfile does the same; it also computes elliptic-curve tables of Ethereum's validators when it is
imported, which would be half the time that a node needs to start.
"""

from __future__ import annotations

import hashlib
import hmac
import uuid
from collections.abc import Callable, Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import Key

CIPHER: Final = "aes-128-ctr"
DERIVED_BYTES: Final = 32
SALT_BYTES: Final = 16
SCRYPT_R: Final = 8
MEMORY_MAX_BYTES: Final = 512 * 1024 * 1024
"""What a file may make us spend on its scrypt: 128 * n * r bytes, and some more."""
ITERATIONS_MAX: Final = 10_000_000


def encrypt(key: Key, password: bytes, *, scrypt_n: int, random_bytes: Callable[[int], bytes]) -> dict[str, object]:
    """The document of a key file, to be written as JSON."""
    salt, counter = random_bytes(SALT_BYTES), random_bytes(16)
    derived = _scrypt(password, salt, scrypt_n, SCRYPT_R, 1)
    ciphertext = _aes_ctr(derived[:16], counter, key.secret)
    return {
        "version": 3,
        "id": str(uuid.UUID(bytes=random_bytes(16), version=4)),
        "address": key.address.hex(),
        "crypto": {
            "cipher": CIPHER,
            "cipherparams": {"iv": counter.hex()},
            "ciphertext": ciphertext.hex(),
            "kdf": "scrypt",
            "kdfparams": {"dklen": DERIVED_BYTES, "n": scrypt_n, "r": SCRYPT_R, "p": 1, "salt": salt.hex()},
            "mac": keccak256(derived[16:] + ciphertext).hex(),
        },
    }


def decrypt(document: object, password: bytes) -> Key:
    """The key in a document that was read as JSON.

    Raises `MisuseError` for a wrong password and for what is no key file of version 3.
    """
    try:
        if not isinstance(document, dict) or document["version"] != 3:
            raise MisuseError("it is not a key file of version 3")
        crypto = document["crypto"]
        if crypto["cipher"] != CIPHER:
            raise MisuseError(f"its cipher is not {CIPHER}")
        derived = _derive(crypto["kdf"], crypto["kdfparams"], password)
        ciphertext = bytes.fromhex(crypto["ciphertext"])
        if not hmac.compare_digest(keccak256(derived[16:32] + ciphertext), bytes.fromhex(crypto["mac"])):
            raise MisuseError("the password is wrong, or the file is damaged")
        return Key(_aes_ctr(derived[:16], bytes.fromhex(crypto["cipherparams"]["iv"]), ciphertext))
    except (KeyError, TypeError, ValueError) as error:
        raise MisuseError(f"it is not a whole key file: {error}") from None


def _derive(kdf: str, params: Mapping[str, Any], password: bytes) -> bytes:
    salt = bytes.fromhex(params["salt"])
    if params["dklen"] != DERIVED_BYTES:
        raise MisuseError(f"its derived key has {params['dklen']} bytes and not {DERIVED_BYTES}")
    if kdf == "scrypt":
        return _scrypt(password, salt, int(params["n"]), int(params["r"]), int(params["p"]))
    if kdf == "pbkdf2" and params["prf"] == "hmac-sha256" and 0 < int(params["c"]) <= ITERATIONS_MAX:
        return hashlib.pbkdf2_hmac("sha256", password, salt, int(params["c"]), DERIVED_BYTES)
    raise MisuseError(f"its key derivation {kdf!r} is not scrypt or PBKDF2 with HMAC-SHA-256")


def _scrypt(password: bytes, salt: bytes, n: int, r: int, p: int) -> bytes:
    return hashlib.scrypt(password, salt=salt, n=n, r=r, p=p, maxmem=MEMORY_MAX_BYTES, dklen=DERIVED_BYTES)


def _aes_ctr(key: bytes, counter: bytes, data: bytes) -> bytes:
    cipher = Cipher(AES(key), CTR(counter)).encryptor()
    return cipher.update(data) + cipher.finalize()
