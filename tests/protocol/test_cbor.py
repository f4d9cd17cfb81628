"""Deterministic CBOR: one value has one encoding, and everything else is refused with a reason of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import cbor2
import pytest
from hypothesis import example, given, strategies as st
from p2pmem_protocol import cbor
from p2pmem_protocol.cbor import ITEMS_MAX, decode, encode
from p2pmem_protocol.errors import MisuseError, Penalty, Reason, RefusedError

from tests.suites import Suites

LEAVES = (
    st.integers(-(2**64), 2**64 - 1)
    | st.sampled_from([0, 23, 24, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**64 - 1, -1, -24, -25, -(2**64)])
    | st.binary(max_size=40)
    | st.text(max_size=40)
    | st.booleans()
    | st.none()
)
VALUES: st.SearchStrategy[Any] = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.integers(0, 2**64 - 1), inner, max_size=5)
        | st.dictionaries(st.text(max_size=30), inner, max_size=5)
    ),
    max_leaves=20,
)


def refusal(data: bytes, **limits: int) -> Reason | None:
    try:
        decode(data, **limits)
    except RefusedError as refused:
        return refused.reason
    return None


def scan_refusal(data: bytes) -> Reason | None:
    try:
        cbor._scan(data, 16)
    except RefusedError as refused:
        return refused.reason
    return None


REFUSED = {
    "nothing": ("", Reason.NOT_CBOR),
    "half an integer": ("19 01", Reason.NOT_CBOR),
    "a string past the end": ("43 0102", Reason.NOT_CBOR),
    "a list past the end": ("82 01", Reason.NOT_CBOR),
    "a map without its last value": ("a1 01", Reason.NOT_CBOR),
    "a list of 2^62 items": ("9b 4000000000000000", Reason.NOT_CBOR),
    "a map of 2^63 pairs": ("bb 8000000000000000", Reason.NOT_CBOR),
    "text of 2^62 bytes": ("7b 4000000000000000", Reason.NOT_CBOR),
    "a reserved length": ("1c", Reason.NOT_CBOR),
    "a reserved length of a string": ("5d 00", Reason.NOT_CBOR),
    "the integer 0 in two bytes": ("18 00", Reason.NOT_DETERMINISTIC),
    "the integer 23 in two bytes": ("18 17", Reason.NOT_DETERMINISTIC),
    "the integer 255 in three bytes": ("19 00ff", Reason.NOT_DETERMINISTIC),
    "the integer 65535 in five bytes": ("1a 0000ffff", Reason.NOT_DETERMINISTIC),
    "the integer 2^32-1 in nine bytes": ("1b 00000000ffffffff", Reason.NOT_DETERMINISTIC),
    "the integer -1 in two bytes": ("38 00", Reason.NOT_DETERMINISTIC),
    "a length in two bytes": ("58 01 00", Reason.NOT_DETERMINISTIC),
    "a count in two bytes": ("98 01 00", Reason.NOT_DETERMINISTIC),
    "keys that fall": ("a2 02 00 01 00", Reason.NOT_DETERMINISTIC),
    "text keys in alphabetical order, not by length": ("a2 626161 00 6162 00", Reason.NOT_DETERMINISTIC),
    "keys that fall, deep inside": ("81 81 a2 1818 00 01 00", Reason.NOT_DETERMINISTIC),
    "a key twice": ("a2 01 00 01 00", Reason.DUPLICATE_KEY),
    "a text key twice": ("a2 6161 00 6161 00", Reason.DUPLICATE_KEY),
    "two values": ("00 00", Reason.TRAILING_BYTES),
    "a byte after a list": ("80 f6", Reason.TRAILING_BYTES),
    "a date": ("c1 00", Reason.TAG),
    "a big integer": ("c2 49 010000000000000000", Reason.BIG_INTEGER),
    "a big negative integer of 1 MB": ("c3 5a00100000" + "ff" * 2**20, Reason.OVERSIZE),
    "a big integer that ends early": ("c3 5a00100000 ff", Reason.BIG_INTEGER),
    "a big integer whose tag is too long": ("d802 40", Reason.TAG),
    "a regular expression": ("d8 23 6161", Reason.TAG),
    "a message in MIME": ("d8 24 6161", Reason.TAG),
    "a list that holds itself": ("d8 1c 81 d8 1d 00", Reason.TAG),
    "a set": ("d9 0102 80", Reason.TAG),
    "self-described CBOR": ("d9 d9f7 00", Reason.TAG),
    "a tag that nobody knows": ("da 12345678 00", Reason.TAG),
    "half precision": ("f9 3c00", Reason.FLOAT),
    "single precision": ("fa 3f800000", Reason.FLOAT),
    "double precision": ("fb 3ff0000000000000", Reason.FLOAT),
    "not a number": ("f9 7e00", Reason.FLOAT),
    "bytes of no length": ("5f 41 00 ff", Reason.INDEFINITE_LENGTH),
    "text of no length": ("7f 6161 ff", Reason.INDEFINITE_LENGTH),
    "a list of no length": ("9f ff", Reason.INDEFINITE_LENGTH),
    "a map of no length": ("bf ff", Reason.INDEFINITE_LENGTH),
    "a break": ("ff", Reason.INDEFINITE_LENGTH),
    "17 levels": ("81" * 17 + "00", Reason.TOO_DEEP),
    "17 levels, the last one empty": ("81" * 16 + "80", Reason.TOO_DEEP),
    "17 levels of maps": ("a100" * 17 + "00", Reason.TOO_DEEP),
    "a byte that begins no character": ("61 ff", Reason.BAD_TEXT),
    "an overlong zero": ("62 c080", Reason.BAD_TEXT),
    "a surrogate": ("63 eda080", Reason.BAD_TEXT),
    "a character past U+10FFFF": ("64 f4908080", Reason.BAD_TEXT),
    "a text key that is not UTF-8": ("a1 61ff 00", Reason.BAD_TEXT),
    "undefined": ("f7", Reason.BAD_SHAPE),
    "an unassigned simple value": ("f0", Reason.BAD_SHAPE),
    "a simple value in two bytes": ("f8 20", Reason.BAD_SHAPE),
    "false in two bytes": ("f8 14", Reason.BAD_SHAPE),
    "a negative key": ("a1 20 00", Reason.BAD_SHAPE),
    "a key of bytes": ("a1 40 00", Reason.BAD_SHAPE),
    "a list as key": ("a1 80 00", Reason.BAD_SHAPE),
    "a map as key": ("a1 a0 00", Reason.BAD_SHAPE),
    "true as key": ("a1 f5 00", Reason.BAD_SHAPE),
    "null as key": ("a1 f6 00", Reason.BAD_SHAPE),
    "integer and text keys in one map": ("a2 01 00 6161 00", Reason.BAD_SHAPE),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_deterministic_is_refused_with_a_reason_of_its_own(name: str) -> None:
    data, reason = REFUSED[name]
    assert refusal(bytes.fromhex(data)) is reason
    assert reason.penalty is Penalty.CLOSE


ACCEPTED: dict[str, Any] = {
    "00": 0,
    "17": 23,
    "1818": 24,
    "190100": 2**8,
    "1a00010000": 2**16,
    "1b0000000100000000": 2**32,
    "1bffffffffffffffff": 2**64 - 1,
    "20": -1,
    "3bffffffffffffffff": -(2**64),
    "40": b"",
    "60": "",
    "f4": False,
    "f5": True,
    "f6": None,
    "80": [],
    "a0": {},
    "a10000": {0: 0},
    "a10100": {1: 0},
    "a2000001f6": {0: 0, 1: None},
    "a217001818f5": {23: 0, 24: True},
    "a16000": {"": 0},
    "a261620062616101": {"b": 0, "aa": 1},
    "8280a0": [[], {}],
}


@pytest.mark.parametrize("data", ACCEPTED)
def test_what_is_deterministic_is_read_and_written(data: str) -> None:
    raw = bytes.fromhex(data)
    assert decode(raw) == ACCEPTED[data]
    assert encode(ACCEPTED[data]) == raw
    assert scan_refusal(raw) is None


@pytest.mark.parametrize("level", ["81", "a100"])
def test_sixteen_levels_are_read_and_written_and_seventeen_are_not(level: str) -> None:
    for end in ("00", "40"):
        data = bytes.fromhex(level * 16 + end)
        value = decode(data)
        assert encode(value) == data
        assert refusal(bytes.fromhex(level * 17 + end)) is Reason.TOO_DEEP
        assert scan_refusal(bytes.fromhex(level * 17 + end)) is Reason.TOO_DEEP
        with pytest.raises(MisuseError, match="nested"):
            encode([value] if level == "81" else {0: value})
    for end in ("80", "a0"):
        assert refusal(bytes.fromhex(level * 16 + end)) is Reason.TOO_DEEP
        assert refusal(bytes.fromhex(level * 15 + end)) is None
    empty: Any = [] if level == "81" else {}
    for _ in range(16):
        empty = [empty]
    with pytest.raises(MisuseError, match="nested"):
        encode(empty)
    encode(empty[0])


@pytest.mark.parametrize("tag", [*range(300), 1_004, 43_000, 55_799, 2**32, 2**64 - 1])
def test_every_tag_is_refused_by_both_ways(tag: int) -> None:
    head = cbor2.dumps(cbor2.CBORTag(tag, 0))[:-1]
    for content in ("00", "40", "6161", "80", "820001", "a0", "f6"):
        reason = Reason.BIG_INTEGER if tag in (2, 3) else Reason.TAG
        assert refusal(head + bytes.fromhex(content)) is reason
        assert refusal(b"\x81" + head + bytes.fromhex(content)) is reason


def test_a_tag_is_refused_before_its_content_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a decoder of the library ran")

    monkeypatch.setattr("re.compile", never)
    monkeypatch.setattr("email.message_from_string", never)
    for data in ("d823 6161", "d824 6161", "c0 6161"):
        assert refusal(bytes.fromhex(data)) is Reason.TAG


def test_rfc_8949_appendix_a_is_accepted_exactly_where_it_is_in_our_part_of_cbor(
    shared_data: Path, suites: Suites
) -> None:
    vectors = json.loads((shared_data / "cbor" / "appendix_a.json").read_text())
    reasons: Counter[Reason | None] = Counter()
    for vector in suites("RFC 8949, appendix A").each(vectors):
        data = bytes.fromhex(vector["hex"])
        reason = refusal(data)
        assert reason == scan_refusal(data)
        reasons[reason] += 1
        if reason is None:
            assert vector["roundtrip"] is True
            assert encode(decode(data)) == data
            assert "decoded" not in vector or decode(data) == vector["decoded"]
    # Big integers are tags, "simple" values and undefined have no place, nothing has no length.
    assert reasons == {
        None: 37,
        Reason.TAG: 6,
        Reason.BIG_INTEGER: 2,
        Reason.FLOAT: 22,
        Reason.BAD_SHAPE: 4,
        Reason.INDEFINITE_LENGTH: 11,
    }


@given(VALUES)
def test_a_value_comes_back_and_its_bytes_are_the_only_ones(value: Any) -> None:
    data = encode(value)
    assert decode(data) == value
    assert encode(decode(data)) == data
    assert scan_refusal(data) is None


@given(st.binary(max_size=64))
@example(b"")
@example(b"\x81" * 17 + b"\x00")
@example(b"\xa1\x80\x00")
def test_both_ways_accept_the_same_of_random_bytes(data: bytes) -> None:
    assert refusal(data) == scan_refusal(data)


# What a decoder may trip over, in the order of the initial byte; random bytes rarely nest.
PIECES = st.lists(
    st.sampled_from(
        [bytes((initial,)) for initial in range(256)]
        + [bytes.fromhex(it) for it in ("1800", "1818", "1900ff", "190100", "5801aa", "41aa", "6161", "62c3a9", "61ff")]
        + [bytes.fromhex(it) for it in ("a10000", "a2010002 00", "a201000100", "8100", "820000", "d81c", "f93c00")]
        + [bytes.fromhex(it) for it in ("3b7fffffffffffffff", "3bffffffffffffffff", "1bffffffffffffffff")]
    ),
    max_size=24,
)


@given(PIECES, st.integers(0, 16))
def test_both_ways_accept_the_same_of_what_looks_like_cbor(pieces: list[bytes], nested: int) -> None:
    data = b"\x81" * nested + b"".join(pieces)
    assert refusal(data) == scan_refusal(data)
    if refusal(data) is None:
        assert encode(decode(data)) == data


@given(VALUES, st.data())
def test_a_changed_byte_gives_another_value_or_a_refusal(value: Any, data: st.DataObject) -> None:
    good = encode(value)
    at = data.draw(st.integers(0, len(good) - 1))
    other = good[:at] + bytes((data.draw(st.integers(0, 255)),)) + good[at + 1 :]
    assert refusal(other) == scan_refusal(other)
    if other != good and refusal(other) is None:
        assert encode(decode(other)) == other != good


def test_depth_of_sixteen_is_read_and_written() -> None:
    data = b"\x81" * 16 + b"\x00"
    assert encode(decode(data)) == data
    assert refusal(data, depth=15) is Reason.TOO_DEEP
    value = decode(data)
    with pytest.raises(MisuseError, match="nested"):
        encode([value])


def test_size_is_looked_at_first() -> None:
    assert refusal(b"\xff" * 101, limit_bytes=100) is Reason.OVERSIZE
    assert refusal(encode(bytes(98)), limit_bytes=100) is None


@pytest.mark.parametrize(
    "value",
    [
        1.5,
        2**64,
        -(2**64) - 1,
        {1: 0, "a": 0},
        {-1: 0},
        {2**64: 0},
        {b"": 0},
        (1,),
        "\ud800",
        {"\ud800": 0},
        object(),
    ],
)
def test_what_has_no_encoding_is_not_encoded(value: Any) -> None:
    with pytest.raises(MisuseError):
        encode(value)
    with pytest.raises(MisuseError):
        encode([{0: value}])


def test_a_list_of_more_items_than_the_limit_is_refused_and_one_of_as_many_is_read() -> None:
    limit = 2 * ITEMS_MAX
    head = b"\x9a" + (ITEMS_MAX - 1).to_bytes(4)
    many = decode(head + bytes(ITEMS_MAX - 1), limit_bytes=limit)
    assert isinstance(many, list)
    assert len(many) == ITEMS_MAX - 1
    head = b"\x9a" + ITEMS_MAX.to_bytes(4)
    assert refusal(head + bytes(ITEMS_MAX), limit_bytes=limit) is Reason.OVERSIZE


BOMBS = """
import resource, sys
from p2pmem_protocol.cbor import decode
from p2pmem_protocol.errors import RefusedError

def bombs():
    yield b"\\x81" * 200_000
    yield b"\\xc2\\x5a\\x00\\x10\\x00\\x00" + b"\\xff" * (1 << 20)
    yield b"\\x9b" + (1 << 62).to_bytes(8)
    yield b"\\x5b" + (1 << 62).to_bytes(8)
    yield b"\\xbb" + (1 << 62).to_bytes(8) + b"\\x00" * 1000
    yield b"\\xd8\\x1c\\x82" * 50_000
    yield b"\\x9a\\x02\\x00\\x00\\x00" + b"\\x80" * (1 << 25)
    yield b"\\x9a\\x00\\x10\\x00\\x00" + b"\\x9a\\x7f\\xff\\xff\\xff" * (1 << 18)

decode(b"\\x80")
made = list(bombs())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for bomb in made:
    try:
        decode(bomb, limit_bytes=1 << 26)
    except RefusedError:
        continue
    sys.exit("a bomb was read")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.processes
def test_memory_stays_flat_on_bombs() -> None:
    found = [str(Path(cbor.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [sys.executable, "-c", BOMBS],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(found)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) < 8 * 1024, "more than 8 MiB to refuse some bombs"
