"""How people and agents name an asset, or a version of it: `<author>/<name>[@<version>[:<seal>]]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address, AssetKey, VersionKey, check_name, hex_id

_SEAL_BEGINS: Final = re.compile(r"0x[0-9a-f]{4,64}")


@dataclass(frozen=True, slots=True)
class Reference:
    """What somebody named: an asset, a version of it or None, and how the digest of its seal begins or nothing."""

    key: AssetKey
    number: int | None
    seal: str

    def names(self, version: VersionKey) -> bool:
        """Whether it may be this version that is meant."""
        return (
            version.asset == self.key
            and self.number in (None, version.version)
            and hex_id(version.seal).startswith(self.seal)
        )


def parse_reference(reference: str, default_author: Address) -> Reference:
    """`<author>/<name>[@<version>[:<seal>]]`, or without the author for an asset of one's own.

    `<seal>` is how the digest of the seal begins, 0x and 4 hexadecimal digits or more: of several seals of one version
    it tells which is meant.
    """
    plain, at, rest = reference.strip().partition("@")
    author, slash, name = plain.rpartition("/")
    key = AssetKey(Address.parse(author) if slash else default_author, check_name(name))
    if not at:
        return Reference(key, None, "")
    number, colon, seal = rest.partition(":")
    if not number.isascii() or not number.isdigit() or len(number) > 10 or not 1 <= int(number) < 2**32:
        raise MisuseError(f"{reference!r}: after @ comes a version number, such as @2")
    if colon and not _SEAL_BEGINS.fullmatch(seal.lower()):
        raise MisuseError(f"{reference!r}: after : comes how a seal begins, such as @2:0x12ab, with 4 digits or more")
    return Reference(key, int(number), seal.lower())


def parse_version_of(key: AssetKey, text: str) -> Reference:
    """A version of an asset that was named before: `[@]<version>[:<seal>]`, or a reference to it with its name."""
    name, _, rest = text.strip().rpartition("@")
    named = parse_reference(f"{name or key}@{rest}", key.author)
    if named.key != key:
        raise MisuseError(f"{text!r} is no version of {key}")
    return named


def full_reference(key: VersionKey) -> str:
    """A version by a name that only it has."""
    return f"{key.asset}@{key.version}:{hex_id(key.seal)}"
