"""The agent keys of a node, as Web3 Secret Storage files (the format of Ethereum key files, version 3).

The scrypt cost is 2^12 at r = 8: a few milliseconds and 4 MiB, so that a node starts at once. What protects the files
is their mode and a random password of 256 bits beside them, which no scrypt cost improves; whoever wants a key that the
node cannot use alone keeps it in a wallet outside.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address

from p2pmem.home import Home, read_secret, write_secret
from p2pmem.keyfile import decrypt, encrypt

SCRYPT_COST: Final = 2**12


@dataclass(frozen=True)
class Keyring:
    """Agents whose keys this node holds. The first is the default."""

    keys: Mapping[Address, Key] = field(default_factory=dict)

    @property
    def default(self) -> Key:
        try:
            return next(iter(self.keys.values()))
        except StopIteration:
            raise MisuseError("this node holds no agent key: run `p2pmem init`") from None

    @property
    def addresses(self) -> tuple[Address, ...]:
        return tuple(self.keys)

    def get(self, agent: Address) -> Key:
        try:
            return self.keys[agent]
        except KeyError:
            raise MisuseError(f"this node does not hold the key of {agent}") from None

    def __contains__(self, agent: Address) -> bool:
        return agent in self.keys

    @classmethod
    def of(cls, *keys: Key) -> Keyring:
        return cls({key.address: key for key in keys})

    @classmethod
    def load(cls, home: Home) -> Keyring:
        """Read every key file. Raises `MisuseError` when one is damaged or readable by others, or there is none."""
        need_agents(home)
        password = read_secret(home.password_file)
        keys: list[Key] = []
        for path in home.agent_keys:
            try:
                keys.append(decrypt(json.loads(read_secret(path)), password))
            except (MisuseError, ValueError) as error:
                raise MisuseError(f"{path} is not a key file that this node can open: {error}") from None
        return cls.of(*keys)


def need_agents(home: Home) -> None:
    """Raises `MisuseError` for a node without agent keys, or with keys that nothing opens any more."""
    need_password(home)
    if not home.agent_keys:
        raise MisuseError(
            f"there is no agent key in {home.agents_dir}: restore it and {home.password_file.name} from your backup; "
            "without one, `p2pmem init` makes a new agent"
        )


def need_password(home: Home) -> None:
    """Raises `MisuseError` for keys without the password that opens them."""
    if home.agent_keys and not home.password_file.is_file():
        raise MisuseError(
            f"{home.password_file} is missing, and nothing else opens the keys in {home.agents_dir}: restore it from "
            "your backup. Without one they are lost: move them away, and `p2pmem init` makes a new agent"
        )


def create_agent(home: Home, secret: bytes | None = None) -> Key:
    """Make a new agent key (or keep `secret`) and write its file."""
    key = Key(secret if secret is not None else _random_scalar())
    if not home.password_file.exists():
        write_secret(home.password_file, secrets.token_hex(32).encode())
    password = read_secret(home.password_file)
    document = encrypt(key, password, scrypt_n=SCRYPT_COST, random_bytes=secrets.token_bytes)
    number = len(home.agent_keys)
    write_secret(home.agents_dir / f"{number:03}-{key.address}.json", json.dumps(document).encode())
    return key


def _random_scalar() -> bytes:
    while True:
        secret = secrets.token_bytes(32)
        try:
            Key(secret)
        except MisuseError:
            continue
        return secret
