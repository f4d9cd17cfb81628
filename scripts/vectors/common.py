"""What the vectors share: keys that follow from a name, one graph, and how values look in JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final, TypeAlias

from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import Value
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import Address, GraphName, network_id

Json: TypeAlias = dict[str, Any]

NETWORK_NAME: Final = "vectors"
NETWORK: Final = network_id(NETWORK_NAME)
NOW_MS: Final = 1_800_000_000_000
DAY_MS: Final = 86_400_000
AGENTS: Final = ("root", "owner", "alice", "bob", "carol", "dave", "erin", "team", "assistant", "stranger")


@cache
def key(name: str) -> Key:
    """The key of an agent: keccak256 of a text that names it. Everybody knows these keys; use them for nothing."""
    return Key(keccak256(f"p2pmem vectors: {name}".encode()))


def address(name: str) -> Address:
    return key(name).address


NAME: Final = GraphName(address("root"), "field-notes")
GRAPH: Final = NAME.id


def text(raw: bytes) -> str:
    return "0x" + raw.hex()


def shown(value: object) -> Any:
    """A value as JSON: bytes as hexadecimal digits, maps with their integer keys as text."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): shown(item) for name, item in value.items()}
    return value


def named(value: Value, names: Mapping[int, str]) -> Json:
    """A map with integer keys, under the names that the specification gives them."""
    assert isinstance(value, dict)
    return {names[number]: shown(item) for number, item in value.items() if isinstance(number, int)}


def refused(name: str, reason: Reason, data: bytes, read: Callable[[bytes], object]) -> Json:
    """An entry of what is refused. Whoever makes the vectors learns at once when the reason is another."""
    try:
        read(data)
    except RefusedError as error:
        if error.reason is reason:
            return {"name": name, "bytes": text(data), "reason": word(reason), "code": int(reason)}
        raise AssertionError(f"{name} is refused for another reason: {error}") from error
    raise AssertionError(f"{name} is not refused")


def misuse(value: str, read: Callable[[str], object]) -> str:
    """`value`, which must break a rule of its grammar."""
    try:
        read(value)
    except MisuseError:
        return value
    raise AssertionError(f"{value!r} is not refused")


def word(reason: Reason) -> str:
    return reason.name.lower().replace("_", "-")


def changed(data: bytes, changes: Mapping[int, Value], without: tuple[int, ...] = ()) -> bytes:
    """A CBOR map with some fields set anew or left out."""
    value = cbor.decode(data, limit_bytes=len(data))
    assert isinstance(value, dict)
    fields: dict[int, Value] = {k: v for k, v in value.items() if isinstance(k, int) and k not in without}
    return cbor.encode(fields | dict(changes))
