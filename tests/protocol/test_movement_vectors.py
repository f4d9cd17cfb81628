"""The vectors of reconciliation and frames hold, also for an implementation that shares nothing with the package."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from p2pmem_protocol import frames
from p2pmem_protocol.errors import Reason, RefusedError
from p2pmem_protocol.names import GraphId
from p2pmem_protocol.negentropy import Initiator, Limits, respond
from p2pmem_protocol.snapshot import RECONCILE_LEAD_MS, Snapshot

from p2pmem.exchange.open_gossip import topic_of
from tests.protocol import naive_negentropy as naive

ROOT = Path(__file__).parents[2]
RECONCILIATION = json.loads((ROOT / "protocol" / "vectors" / "reconciliation.json").read_text())
FRAMES = json.loads((ROOT / "protocol" / "vectors" / "frames.json").read_text())


def raw(text: str) -> bytes:
    assert text.startswith("0x")
    return bytes.fromhex(text[2:])


def pairs_of(items: list[list[Any]]) -> list[tuple[int, bytes]]:
    return [(order, raw(item_id)) for order, item_id in items]


def test_the_files_are_what_the_script_writes() -> None:
    script = ROOT / "scripts" / "make_movement_vectors.py"
    subprocess.run([sys.executable, str(script), "--check"], check=True, timeout=60)


def test_numbers_and_fingerprints() -> None:
    for number, encoded in RECONCILIATION["varints"]:
        assert naive.number(number) == raw(encoded)
    for case in RECONCILIATION["fingerprints"]:
        assert naive.fingerprint([(0, raw(it)) for it in case["ids"]]) == raw(case["fingerprint"])


@pytest.mark.parametrize("case", RECONCILIATION["rounds"], ids=lambda case: case["name"])
def test_rounds(case: dict[str, Any]) -> None:
    limits = Limits(message_bytes=case["message_bytes"])
    mine, theirs = pairs_of(case["initiator"]), pairs_of(case["responder"])
    initiator = Initiator(Snapshot.build(mine).view(case["agreed_ms"]), limits)
    view = Snapshot.build(theirs).view(case["agreed_ms"])
    have: list[bytes] = []
    need: list[bytes] = []
    message: bytes | None = initiator.start()
    for spoken in map(raw, case["messages"]):
        if message is not None:
            assert spoken == message
            answer, message = respond(view, message, limits), None
        else:
            assert spoken == answer
            step = initiator.receive(answer)
            message = step.reply
            have += step.have
            need += step.need
    assert message is None
    assert sorted(have) == sorted(map(raw, case["have"]))
    assert sorted(need) == sorted(map(raw, case["need"]))


# The naive implementation has no limits.
@pytest.mark.parametrize("case", RECONCILIATION["rounds"][:-1], ids=lambda case: case["name"])
def test_rounds_said_by_the_naive_implementation(case: dict[str, Any]) -> None:
    cut = -1 if case["agreed_ms"] is None else case["agreed_ms"] + RECONCILE_LEAD_MS
    mine = [it for it in pairs_of(case["initiator"]) if it[0] > cut]
    theirs = [it for it in pairs_of(case["responder"]) if it[0] > cut]
    message: bytes | None = naive.start(mine)
    said = []
    have: set[bytes] = set()
    need: set[bytes] = set()
    while message is not None:
        answer, _, _ = naive.answer(theirs, message, initiator=False)
        assert answer is not None
        said += [message, answer]
        message, more_have, more_need = naive.answer(mine, answer, initiator=True)
        have |= more_have
        need |= more_need
    assert said == list(map(raw, case["messages"]))
    assert have == set(map(raw, case["have"]))
    assert need == set(map(raw, case["need"]))


@pytest.mark.parametrize("message", RECONCILIATION["refused"].items(), ids=lambda case: case[0])
def test_refused(message: tuple[str, str]) -> None:
    with pytest.raises(RefusedError) as refused:
        respond(Snapshot.build().view(), raw(message[1]))
    assert refused.value.reason is Reason.BAD_RECONCILIATION


def test_another_version_is_answered_with_ours() -> None:
    for case in RECONCILIATION["versions"]:
        assert respond(Snapshot.build().view(), raw(case["message"])) == raw(case["answer"])


@pytest.mark.parametrize("case", RECONCILIATION["bounds"], ids=lambda case: str(case["name"]))
def test_bounds_are_read_as_points_and_written_in_one_way(case: dict[str, Any]) -> None:
    assert respond(Snapshot.build().view(), raw(case["message"])) == raw(case["answer"])


@pytest.mark.parametrize("case", FRAMES["refused"], ids=lambda case: str(case["name"]))
def test_refused_messages(case: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        frames.decode(raw(case["bytes"]))
    assert refused.value.reason is Reason(case["code"])


def test_messages_of_a_later_release_are_skipped() -> None:
    for data in FRAMES["skipped"]:
        assert isinstance(frames.decode(raw(data)), frames.Skipped)


def test_the_topic_is_the_one_that_a_node_takes() -> None:
    assert topic_of(GraphId(raw(FRAMES["topic"]["graph"]))) == FRAMES["topic"]["topic"]


def test_member_hashes() -> None:
    for case in FRAMES["member_hash"]:
        hashed = hashlib.sha256(b"p2pmem list" + raw(case["graph"]) + case["peer"].encode()).digest()
        assert raw(case["hash"]) == hashed[:8]


@pytest.mark.parametrize("case", FRAMES["messages"], ids=lambda case: case["message"])
def test_messages(case: dict[str, Any]) -> None:
    message = frames.decode(raw(case["bytes"]))
    assert type(message).__name__ == case["message"]
    assert frames.encode(message) == raw(case["bytes"])
    for name, value in case["fields"].items():
        read = getattr(message, name)
        if isinstance(value, str):
            assert read == raw(value)
        elif name == "addresses":
            assert read == tuple(value)
        elif isinstance(value, (int, bool)):
            assert read == value
        else:
            assert len(read) == len(value)
