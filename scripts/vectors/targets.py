"""Every reader of bytes from peers, with the vectors that it reads: what fuzzing and the tests of hostile bytes share.

A target's `read` takes bytes and returns what it writes of what it read. It raises `RefusedError` and nothing else, and
what it accepts it writes as it was: one content has one encoding.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from p2pmem_protocol import cbor, frames
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.certificate_json import from_json, to_json
from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.envelope import decode_item
from p2pmem_protocol.errors import MisuseError, Reason, RefusedError
from p2pmem_protocol.hello import Greeting, Proof
from p2pmem_protocol.join import Answer, Ask, Invite
from p2pmem_protocol.negentropy import respond
from p2pmem_protocol.roster import Parts, SignedHeader
from p2pmem_protocol.snapshot import Snapshot

from scripts.vectors.common import GRAPH, NETWORK, NOW_MS

VECTORS: Final = Path(__file__).resolve().parents[2] / "protocol" / "vectors"
PEER: Final = "12D3KooWExample"


@dataclass(frozen=True)
class Target:
    """A reader, and bytes to begin with: accepted ones first."""

    read: Callable[[bytes], bytes]
    corpus: tuple[bytes, ...]


@cache
def _file(name: str) -> Any:
    return json.loads((VECTORS / f"{name}.json").read_text(encoding="utf-8"))


def _raw(entries: Iterable[Any]) -> tuple[bytes, ...]:
    """Bytes of vectors, which are hexadecimal digits or have them under "bytes"."""
    return tuple(bytes.fromhex((it if isinstance(it, str) else it["bytes"])[2:]) for it in entries)


def _cbor(data: bytes) -> bytes:
    return cbor.encode(cbor.decode(data))


def _content(data: bytes) -> bytes:
    return check_canonical(data).data


def _item(data: bytes) -> bytes:
    item = decode_item(data)
    with suppress(RefusedError):
        item.check()
    assert len(item.id) == 32
    return item.encode()


def _header(data: bytes) -> bytes:
    signed = SignedHeader.decode(data)
    with suppress(RefusedError):
        signed.check()
    return signed.encode()


def _part(name: str) -> Callable[[bytes], bytes]:
    """Reads one part of a roster beside three good ones."""

    def read(data: bytes) -> bytes:
        body = Parts(**(_good_parts() | {name: data})).decode(GRAPH)
        written: bytes = getattr(body.parts, name)
        return written

    return read


@cache
def _good_parts() -> dict[str, bytes]:
    parts = _file("rosters")["rosters"][1]["parts"]
    return dict(zip(parts, _raw(parts.values()), strict=True))


def _part_corpus(name: str) -> tuple[bytes, ...]:
    rosters = _file("rosters")
    good = (it["parts"][name] for it in reversed(rosters["rosters"]))
    return _raw([*good, *(it for it in rosters["refused_parts"] if it["part"] == name)])


def _certificate(data: bytes) -> bytes:
    certificate = Certificate.decode(data)
    with suppress(RefusedError):
        certificate.check()
    return certificate.encode()


def _certificate_json(data: bytes) -> bytes:
    certificate = from_json(data.decode(errors="replace"))
    with suppress(RefusedError):
        certificate.check()
    assert from_json(to_json(certificate)) == certificate
    # The same values may be spaced and ordered otherwise.
    return data


def _greeting(data: bytes) -> bytes:
    return Greeting.decode(data).encode()


def _proof(data: bytes) -> bytes:
    proof = Proof.decode(data, NETWORK, PEER)
    with suppress(RefusedError):
        proof.check(NOW_MS)
    return proof.encode()


def _ask(data: bytes) -> bytes:
    return Ask.decode(data, NETWORK, PEER).encode()


def _answer(data: bytes) -> bytes:
    return Answer.decode(data).encode()


def _invite(data: bytes) -> bytes:
    """A person types it, so a bad one is a misuse."""
    try:
        invite = Invite.parse(data.decode(errors="replace"))
    except MisuseError as error:
        raise RefusedError(Reason.BAD_SHAPE, str(error)) from None
    assert str(invite) == data.decode().strip().lower()
    return data


def _message(data: bytes) -> bytes:
    message = frames.decode(data)
    return data if isinstance(message, frames.Skipped) else frames.encode(message)


def _round(data: bytes) -> bytes:
    """A stranger's message in a round over 500 items."""
    answer = respond(_VIEW, data)
    assert len(answer) <= 128 * 1024
    return data


_VIEW: Final = Snapshot.build((number, number.to_bytes(32)) for number in range(500)).view()


@cache
def targets() -> dict[str, Target]:
    """All of them, by name."""
    items, talk, rounds = _file("items"), _file("conversation"), _file("reconciliation")
    certificates = _file("certificates")
    contents = _file("contents")["canonical"]
    return {
        "cbor": Target(_cbor, _raw(_file("cbor")["accepted"] + _file("cbor")["refused"])),
        "content": Target(_content, tuple(it["canonical"].encode() for it in contents)),
        "item": Target(_item, _raw(items["accepted"] + items["refused_by_form"])),
        "header": Target(_header, _raw([*_file("heads")["headers"].values(), *_file("rosters")["refused_headers"]])),
        "members": Target(_part("members"), _part_corpus("members")),
        "limits": Target(_part("limits"), _part_corpus("limits")),
        "kept": Target(_part("kept"), _part_corpus("kept")),
        "certificates": Target(_part("certificates"), _part_corpus("certificates")),
        "certificate": Target(_certificate, _raw([certificates["accepted"], *certificates["refused"]])),
        "certificate-json": Target(_certificate_json, (certificates["accepted"]["json"].encode(),)),
        "greeting": Target(_greeting, _raw([talk["greeting"], *talk["refused_greetings"]])),
        "proof": Target(_proof, _raw([talk["proof"], *talk["refused_proofs"]])),
        "ask": Target(_ask, _raw(talk["asks"])),
        "answer": Target(_answer, _raw(talk["answers"])),
        "invite": Target(_invite, (talk["invite"]["text"].encode(),)),
        "message": Target(_message, _raw(_file("frames")["messages"])),
        "round": Target(_round, _raw(message for it in rounds["rounds"] for message in it["messages"][::2])),
    }
