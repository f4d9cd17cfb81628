"""Negentropy v1 the slow way, from the protocol text alone: lists, no limits, nothing shared with the package.

It exists to disagree with `p2pmem_protocol.negentropy` when one of the two is wrong.
"""

from __future__ import annotations

import hashlib

Pair = tuple[int, bytes]
INFINITY = (2**64, b"")


def number(n: int) -> bytes:
    text = bytes([n % 128])
    while n >= 128:
        n //= 128
        text = bytes([128 + n % 128]) + text
    return text


def fingerprint(pairs: list[Pair]) -> bytes:
    total = sum(int.from_bytes(i, "little") for _, i in pairs) % 2**256
    return hashlib.sha256(total.to_bytes(32, "little") + number(len(pairs))).digest()[:16]


def shortest_bound(below: Pair, above: Pair) -> Pair:
    if below[0] != above[0]:
        return (above[0], b"")
    common = 0
    while below[1][common] == above[1][common]:
        common += 1
    return (above[0], above[1][: common + 1])


def write(ranges: list[tuple[Pair, int, bytes]]) -> bytes:
    """Ranges (upper bound, mode, payload); skips in a row become one, skips at the end none."""
    out, order, skipped = b"\x61", 0, None
    for upper, mode, payload in ranges:
        if mode == 0:
            skipped = upper
            continue
        for bound, tail in [(skipped, b"\x00")] * (skipped is not None) + [(upper, bytes([mode]) + payload)]:
            if bound == INFINITY:
                out += b"\x00\x00" + tail
            else:
                out += number(bound[0] - order + 1) + number(len(bound[1])) + bound[1] + tail
                order = bound[0]
        skipped = None
    return out


def read(message: bytes) -> list[tuple[Pair, int, bytes | list[bytes]]]:
    assert message[0] == 0x61
    at, order, ranges = 1, 0, []

    def take_number() -> int:
        nonlocal at
        value = 0
        while True:
            digit = message[at]
            at += 1
            value = value * 128 + digit % 128
            if digit < 128:
                return value

    while at < len(message):
        offset = take_number()
        length = take_number()
        prefix = message[at : at + length]
        at += length
        order += offset - 1 if offset else 0
        bound = (order, prefix) if offset else INFINITY
        mode = take_number()
        payload: bytes | list[bytes] = b""
        if mode == 1:
            payload = message[at : at + 16]
            at += 16
        elif mode == 2:
            count = take_number()
            payload = [message[at + 32 * i : at + 32 * i + 32] for i in range(count)]
            at += 32 * count
        ranges.append((bound, mode, payload))
    return ranges


def split(pairs: list[Pair], upper: Pair) -> list[tuple[Pair, int, bytes]]:
    if len(pairs) < 32:
        return [(upper, 2, number(len(pairs)) + b"".join(i for _, i in pairs))]
    ranges, start = [], 0
    for bucket in range(16):
        end = start + len(pairs) // 16 + (1 if bucket < len(pairs) % 16 else 0)
        bound = upper if end == len(pairs) else shortest_bound(pairs[end - 1], pairs[end])
        ranges.append((bound, 1, fingerprint(pairs[start:end])))
        start = end
    return ranges


def start(pairs: list[Pair]) -> bytes:
    return write(split(sorted(pairs), INFINITY))


def answer(pairs: list[Pair], message: bytes, *, initiator: bool) -> tuple[bytes | None, set[bytes], set[bytes]]:
    """(message, have, need); the message of an initiator that is done is None."""
    have: set[bytes] = set()
    need: set[bytes] = set()
    out = []
    lower = (0, b"")
    for upper, mode, payload in read(message):
        mine = [p for p in sorted(pairs) if lower <= p < upper]
        lower = upper
        if mode == 1 and payload != fingerprint(mine):
            out += split(mine, upper)
        elif mode == 2 and initiator:
            ids = {i for _, i in mine}
            have |= ids - set(payload)
            need |= set(payload) - ids
            out.append((upper, 0, b""))
        elif mode == 2:
            out.append((upper, 2, number(len(mine)) + b"".join(i for _, i in mine)))
        else:
            out.append((upper, 0, b""))
    text = write(out)
    return (None if initiator and text == b"\x61" else text), have, need
