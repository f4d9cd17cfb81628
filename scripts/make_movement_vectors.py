#!/usr/bin/env python3
"""Write protocol/vectors/reconciliation.json and frames.json: enough to check another implementation against.

    python scripts/make_movement_vectors.py [--check]

Everything in them follows from the numbers below; nothing is random. With --check nothing is written, and the exit
status says whether the files are what this script would write.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocol"))

from p2pmem_protocol import cbor, frames
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.gossip import member_hash
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.negentropy import Initiator, Limits, respond
from p2pmem_protocol.snapshot import Item, Snapshot, fingerprint_of, order_of, varint

VECTORS = Path(__file__).resolve().parents[1] / "protocol" / "vectors"
OPEN_TOPIC = "/p2pmem/open/2/"
NOW_MS = 1_800_000_000_000
EMPTY = Snapshot.build([]).view(None)
GRAPH = hashlib.sha256(b"a graph").digest()


def id_of(number: int) -> bytes:
    return hashlib.sha256(f"item {number}".encode()).digest()


def shares(numbers: range) -> list[Item]:
    """Every third is published for ever, the others end a minute apart, two by two."""
    return [Item(order_of(0 if n % 3 == 0 else NOW_MS + n // 2 * 60_000), id_of(n)) for n in numbers]


def text(raw: bytes) -> str:
    return "0x" + raw.hex()


def transcript(
    name: str, mine: list[Item], theirs: list[Item], *, agreed_ms: int | None = None, message_bytes: int = 128 * 1024
) -> dict[str, object]:
    limits = Limits(message_bytes=message_bytes)
    view = Snapshot.build(theirs).view(agreed_ms)
    initiator = Initiator(Snapshot.build(mine).view(agreed_ms), limits)
    messages = [initiator.start()]
    have: list[bytes] = []
    need: list[bytes] = []
    while True:
        messages.append(respond(view, messages[-1], limits))
        step = initiator.receive(messages[-1])
        have += step.have
        need += step.need
        if step.reply is None:
            break
        messages.append(step.reply)
    return {
        "name": name,
        "agreed_ms": agreed_ms,
        "message_bytes": message_bytes,
        "initiator": [[order_ms, text(item_id)] for order_ms, item_id in mine],
        "responder": [[order_ms, text(item_id)] for order_ms, item_id in theirs],
        "messages": [text(message) for message in messages],
        "have": sorted(map(text, have)),
        "need": sorted(map(text, need)),
    }


def reconciliation() -> dict[str, object]:
    few = shares(range(100))
    ones = [b"\xff" * 31 + bytes([last]) for last in (255, 254, 0)]
    sums = [[], [id_of(0)], [id_of(0), id_of(1)], ones, [id_of(n) for n in range(200)]]
    return {
        "varints": [[number, text(varint(number))] for number in (0, 1, 127, 128, 16_383, 16_384, 2**32, 2**53 - 1)],
        "fingerprints": [
            {
                "ids": [text(it) for it in some],
                "fingerprint": text(fingerprint_of(sum(int.from_bytes(it, "little") for it in some), len(some))),
            }
            for some in sums
        ],
        "rounds": [
            transcript("both are empty", [], []),
            transcript("equal, too few for fingerprints", shares(range(5)), shares(range(5))),
            transcript("equal", few, few),
            transcript("the initiator has nothing", [], shares(range(40))),
            transcript("the responder has nothing", shares(range(40)), []),
            transcript("one differs on either side", few + shares(range(200, 201)), few + shares(range(300, 301))),
            transcript(
                "all of one order", [Item(7, id_of(n)) for n in range(80)], [Item(7, id_of(n)) for n in range(1, 81)]
            ),
            transcript("what ends within a minute is left out", shares(range(60)), few, agreed_ms=NOW_MS + 20 * 60_000),
            transcript("an answer is cut off", shares(range(30)), shares(range(180)), message_bytes=4_096),
        ],
        # To another version of Negentropy the answer is the one byte of ours.
        "versions": [{"message": text(it), "answer": text(respond(EMPTY, it))} for it in (b"\x60", b"\x62\0")],
        # Over an empty set: how bounds are read, and how the same are written.
        "bounds": [
            {"name": name, "message": text(it), "answer": text(respond(EMPTY, it))} for name, it in BOUNDS.items()
        ],
        "refused": {
            "nothing": "0x",
            "another version": text(b"\x10"),
            "a bound without a mode": "0x610000",
            "an unknown mode": "0x61000003",
            "a fingerprint cut short": "0x61000001ffff",
            "more ids announced than follow": "0x610000020100",
            "a number with a leading zero": "0x6180000000",
            "a prefix of 33 bytes": "0x610121" + "00" * 33 + "00",
            "something behind infinity": "0x61000000000000",
            "a bound below the one before": "0x610101ff000101fe00",
        },
    }


BOUNDS = {
    "two that are equal": bytes.fromhex("61" + "06010a0200" + "01010a0200" + "00000200"),
    "two that are equal, with and without the zeros at the end": bytes.fromhex("61" + "06020a000200" + "01010a0200"),
    "one of zeros and one without a prefix": bytes.fromhex("61" + "060300000002000100" + "0200"),
    "infinity with a prefix, which says nothing": bytes.fromhex("61" + "0003aabbcc0200"),
}


def sample_messages() -> list[frames.Message]:
    short = tuple(id_of(n)[:8] for n in range(3))
    state = frames.GraphState(GRAPH, id_of(1), 5_000, id_of(2)[:16])
    listed = member_hash(GRAPH, "12D3KooWExample")
    return [
        frames.Frame(ack=7),
        frames.Frame(seq=1, envelopes=(b"an envelope", b"another")),
        frames.Frame(2, 1, (), short, short[:1], (frames.ListChange(GRAPH, True, (listed,)),), (GRAPH,)),
        frames.Frame(seq=3, lists=(frames.ListChange(GRAPH, removed=(listed,)),)),
        frames.Heads(NOW_MS, (state, frames.GraphState(id_of(3), is_partial=True))),
        frames.RoundOpen(GRAPH, id_of(1), NOW_MS, (2, 3, 4), bytes.fromhex("6100000200")),
        frames.RoundMessage(b"\x61"),
        frames.Fetch(GRAPH, (id_of(1), id_of(2))),
        frames.Envelopes((b"an envelope",), more=True),
        frames.Envelopes(),
        frames.FetchPart(GRAPH, id_of(4), 131_072),
        frames.FetchPart(GRAPH, id_of(4), is_roster=True),
        frames.Part(200_000, 131_072, b"the rest"),
        frames.AskHeaders(GRAPH, (id_of(5),)),
        frames.Headers(GRAPH, (b"a header",)),
        frames.NotGiven(101),
        frames.Peers(GRAPH, ("/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWExample",)),
    ]


def shown(value: object) -> object:
    """A message as JSON: bytes as hex, records by their field names."""
    if isinstance(value, bytes):
        return text(value)
    if isinstance(value, tuple):
        return [shown(it) for it in value]
    if is_dataclass(value):
        return {field.name: shown(getattr(value, field.name)) for field in fields(value)}
    return value


def frame_vectors() -> dict[str, object]:
    return {
        "member_hash": [
            {"graph": text(GRAPH), "peer": peer, "hash": text(member_hash(GRAPH, peer))}
            for peer in ("12D3KooWExample", "")
        ],
        "topic": {"graph": text(GRAPH), "topic": OPEN_TOPIC + keccak256(b"p2pmem open graph" + GRAPH).hex()},
        "refused": [refused(name, value) for name, value in REFUSED_MESSAGES],
        "skipped": [text(cbor.encode(it)) for it in SKIPPED_MESSAGES],
        "messages": [
            {"message": type(it).__name__, "fields": shown(it), "bytes": text(frames.encode(it))}
            for it in sample_messages()
        ],
    }


def refused(name: str, value: dict[int, cbor.Value]) -> dict[str, object]:
    data = cbor.encode(value)
    try:
        frames.decode(data)
    except RefusedError as error:
        word = error.reason.name.lower().replace("_", "-")
        return {"name": name, "bytes": text(data), "reason": word, "code": int(error.reason)}
    raise AssertionError(f"{name} is not refused")


REFUSED_MESSAGES: tuple[tuple[str, dict[int, cbor.Value]], ...] = (
    ("no number", {1: 1}),
    ("an empty field that is written", {0: 1, 2: 7, 3: []}),
    ("a zero that is written", {0: 1, 1: 0, 2: 7}),
    ("false that is written", {0: 14, 2: False}),
    ("an unknown field", {0: 1, 2: 7, 8: 1}),
    ("short ids of nine bytes", {0: 1, 1: 1, 4: bytes(9)}),
    ("too many items", {0: 1, 1: 1, 3: [b"x"] * 257}),
    ("an item of no bytes", {0: 1, 1: 1, 3: [b""]}),
    ("a message of a round of no bytes", {0: 12, 1: b""}),
)
SKIPPED_MESSAGES: tuple[dict[int, cbor.Value], ...] = ({0: 21}, {0: 2, 1: "whatever", 99: [1]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    same = True
    for name, content in (("reconciliation.json", reconciliation()), ("frames.json", frame_vectors())):
        path = VECTORS / name
        written = json.dumps(content, indent=1) + "\n"
        if check:
            same &= path.is_file() and path.read_text() == written
        else:
            path.write_text(written)
    if not same:
        raise SystemExit("protocol/vectors differs: run scripts/make_movement_vectors.py and look at what changed")


if __name__ == "__main__":
    main()
