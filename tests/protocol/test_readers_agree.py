"""Two readers that share nothing but the specification say the same of bytes that nobody wrote.

The vectors are changed in one place or a few, as CBOR and as bytes, and read by the package and by the reader in
JavaScript. Both must accept, or both refuse; and of what is refused both must hold the sender to account, or neither.
"""

from __future__ import annotations

import copy
import json
import random
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import cbor2
import pytest
from p2pmem_protocol import cbor
from p2pmem_protocol.certificate_json import from_json
from p2pmem_protocol.errors import RefusedError

from scripts.vectors.targets import VECTORS, targets
from tests.node_tools import NodeTools

pytestmark = [pytest.mark.node, pytest.mark.slow]

READER: Final = sorted(Path(__file__).with_name("reader").glob("*.mjs"))
# The others are words that people type, and certificates, where the order of checks is not that of their form: of these
# the form that people read is changed in one place at a time.
NAMES: Final = (
    "cbor", "content", "item", "header", "members", "limits", "kept", "certificates", "greeting", "proof", "ask",
    "answer", "message", "round",
)  # fmt: skip
CASES_OF_EACH: Final = 250

# What stands at the edges of what fields may be.
NUMBERS: Final = (
    0,
    1,
    2,
    3,
    11,
    16,
    31,
    32,
    65,
    1_001,
    61_440,
    61_441,
    200_001,
    2**24 + 1,
    2_592_000_001,
    2**32 - 1,
    2**32,
)
LATE: Final = (253_402_300_799_999, 253_402_300_800_000, 2**53, 2**64 - 1, -1, True, False, None)
TEXTS: Final = ("", "a", "A", "a/b", "assertion", "x" * 64, "x" * 65, "x" * 129, "x" * 257, "x" * 1_001, "é", "a\n")
STRINGS: Final = tuple(bytes(length) for length in (0, 1, 8, 12, 16, 17, 19, 20, 21, 31, 32, 33, 64, 65, 66))
SHAPES: Final = ([], {}, [1], {0: 1}, {"a": 1}, [[[]]])
PIECES: Final = (
    "<urn:a>", "<a>", "<http://a/[>", "<urn:%4>", "<urn:\ue000>", "<urn:é?\ue000>", "_:c14n0", "_:x", '"x"@en', '"x"@a',
    '"x"@i-lux', '"x"@de-latn-x-y', '"\\u0001"', '"\\u0000"', '"\\\\u0000"', '"\\u00e9"', '"\ufffe"', '"x"^^<urn:t>',
    "<<( ", "<http://dkg.io/ontology/owner>", "<http://dkg.io/ontology/own>", " ", ".", "\n", "\r", "\t",
)  # fmt: skip

WRITTEN: Final = (
    "null", "true", "0", "1", "-0", "-1", "1.0", "1e0", "00", "+1", "NaN", "-Infinity", "4294967295", "4294967296",
    "9007199254740993", "[]", "{}", "[null]", '""', '"x"', '"X!"', '"-0"', '"0x"', '"0x00"', '"\\ud800"',
    f'"{"x" * 200}"', f'"{"x" * 1_001}"',
)  # fmt: skip
"""In place of a value of JSON."""


def test_changed_bytes_are_read_alike_or_refused_alike(node_tools: NodeTools, tmp_path: Path) -> None:
    if not (node_tools.modules / "ethers").is_dir():
        pytest.skip("no ethers among the npm packages: run scripts/setup")
    cases = list(changed(random.Random(20_260_101)))
    ours = [code_of(targets()[name].read, data) for name, data in cases]
    theirs = judged(node_tools, tmp_path, cases)
    differing = [
        (name, code, their, data.hex()[:400])
        for (name, data), code, their in zip(cases, ours, theirs, strict=True)
        if blame(code) != blame(their)
    ]
    assert not differing, differing[:5]
    # A comparison of nothing but refusals would say little.
    assert sum(code == 0 for code in ours) > len(cases) // 20


def test_a_certificate_in_json_with_one_other_value_has_one_reason(node_tools: NodeTools, tmp_path: Path) -> None:
    if not (node_tools.modules / "ethers").is_dir():
        pytest.skip("no ethers among the npm packages: run scripts/setup")
    cases = [("certificate-json", text.encode()) for text in changed_certificates()]
    ours = [code_of(lambda data: from_json(data.decode()).check(), data) for _, data in cases]
    theirs = judged(node_tools, tmp_path, cases)
    differing = [it for it in zip(ours, theirs, cases, strict=True) if it[0] != it[1]]
    assert not differing, differing[:5]
    assert len(set(ours)) >= 6


def judged(node_tools: NodeTools, tmp_path: Path, cases: list[tuple[str, bytes]]) -> list[int]:
    """What the reader in JavaScript says of each."""
    folder = tmp_path / "reader"
    folder.mkdir()
    written = tmp_path / "cases.json"
    written.write_text(json.dumps([[name, "0x" + data.hex()] for name, data in cases]))
    program = node_tools.lay_out(folder, *READER) / "judge.mjs"
    command = [node_tools.program, str(program), str(VECTORS), str(written)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    codes: list[int] = json.loads(ran.stdout)
    return codes


def changed_certificates() -> Iterator[str]:
    """The vector with one value at a time left out, or another one in its place."""
    (good,) = targets()["certificate-json"].corpus
    value: Any = json.loads(good)
    for holder, place in list(_holders(value)):
        old = holder[place]
        for text in WRITTEN:
            holder[place] = "another value"
            yield json.dumps(value).replace('"another value"', text)
        holder[place] = old
        if isinstance(holder, dict):
            del holder[place]
            yield json.dumps(value)
            holder[place] = old


def code_of(read: Callable[[bytes], object], data: bytes) -> int:
    try:
        read(data)
    except RefusedError as refused:
        return int(refused.reason)
    return 0


def blame(code: int) -> str:
    return "accepted" if code == 0 else "refused" if code >= 100 else "held to account"


def changed(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for name in NAMES:
        corpus = targets()[name].corpus
        for _ in range(CASES_OF_EACH):
            data = rng.choice(corpus)
            if name == "content":
                yield name, changed_text(rng, data.decode()).encode()
            elif name != "round" and rng.random() < 0.75:
                yield name, changed_value(rng, data)
            else:
                yield name, changed_bytes(rng, data)


def changed_bytes(rng: random.Random, data: bytes) -> bytes:
    raw = bytearray(data)
    for _ in range(rng.choice((1, 1, 2))):
        if raw:
            raw[rng.randrange(min(len(raw), rng.choice((8, 64, len(raw)))))] = rng.randrange(256)
    return bytes(raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.1 else raw)


def changed_text(rng: random.Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    line = rng.randrange(len(lines))
    at = rng.choice([place for place, character in enumerate(lines[line]) if character in ' <>"\n'])
    lines[line] = lines[line][:at] + rng.choice(PIECES) + lines[line][at + rng.randrange(9) :]
    return "".join(sorted(lines) if rng.random() < 0.8 else lines)


def changed_value(rng: random.Random, data: bytes) -> bytes:
    try:
        value: Any = cbor.decode(data, limit_bytes=len(data))
    except RefusedError:
        return changed_bytes(rng, data)
    holders = list(_holders(value))
    for _ in range(rng.choice((1, 1, 1, 2))):
        if holders:
            _change(rng, *rng.choice(holders))
            holders = list(_holders(value))
    return cbor2.dumps(value if holders else leaf(rng), canonical=True)


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and map within, with each of its places."""
    if isinstance(value, list | dict):
        for place in range(len(value)) if isinstance(value, list) else list(value):
            yield value, place
            yield from _holders(value[place])


def _change(rng: random.Random, holder: Any, place: Any) -> None:
    old = holder[place]
    match rng.randrange(8):
        case 0:
            del holder[place]
        case 1 if isinstance(holder, dict):
            holder[rng.choice((5, 6, 11, 12, 13, 17, 99))] = leaf(rng)
        case 1:
            holder.append(copy.deepcopy(old))
        case 2 if isinstance(old, bytes) and old:
            holder[place] = changed_value(rng, old) if old[0] >> 5 in (4, 5) else changed_bytes(rng, old)
        case 3 if type(old) is int:
            holder[place] = max(0, old + rng.choice((-1, 1, 2)))
        case 3 if isinstance(old, str):
            holder[place] = old + rng.choice(("a", "/", "_", " "))
        case 4 if isinstance(holder, list):
            rng.shuffle(holder)
        case _:
            holder[place] = leaf(rng)


def leaf(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(rng.choice((NUMBERS, NUMBERS, LATE, TEXTS, STRINGS, SHAPES))))
