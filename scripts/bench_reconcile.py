#!/usr/bin/env python3
"""What reconciliation and gossip cost, as times and as ratios to raw hashing and sorting in the same run.

    python scripts/bench_reconcile.py [--items 100000] [--json]

Times are of the processor. Ratios carry over to other machines; times do not. Each figure is the best of several runs,
the collector switched off as `timeit` does.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "protocol"))

from p2pmem_protocol import frames
from p2pmem_protocol.gossip import Gossip
from p2pmem_protocol.negentropy import Initiator, respond
from p2pmem_protocol.snapshot import ORDER_NEVER, Snapshot

DAY_MS = 86_400_000
NOW_MS = 1_800_000_000_000
GRAPH = b"\x01" * 32


def best_ms(action: Callable[[], object], repeat: int = 5) -> float:
    best = float("inf")
    gc.disable()
    for _ in range(repeat):
        start = time.process_time()
        action()
        best = min(best, time.process_time() - start)
        gc.collect()
    gc.enable()
    return best * 1_000


def some_items(rnd: random.Random, count: int) -> list[tuple[int, bytes]]:
    return [(NOW_MS + rnd.randrange(30 * DAY_MS) if n % 4 else ORDER_NEVER, rnd.randbytes(32)) for n in range(count)]


def whole_round(mine: Snapshot, theirs: Snapshot) -> tuple[int, int]:
    """Bytes and round trips."""
    initiator = Initiator(mine.view())
    message: bytes | None = initiator.start()
    total_bytes = round_trips = 0
    while message is not None:
        answer = respond(theirs.view(), message)
        total_bytes += len(message) + len(answer)
        round_trips += 1
        message = initiator.receive(answer).reply
    return total_bytes, round_trips


def relay(count: int, members: int) -> None:
    """Envelopes from one member, admitted and announced to the others, frames taken and acknowledged."""
    gossip = Gossip("me")
    peers = [f"peer {number}" for number in range(members)]
    for peer in peers:
        gossip.peer_joined(peer, [GRAPH], 0)
    for number in range(count):
        now_ms = number
        item_id = hashlib.sha256(number.to_bytes(8, "big")).digest()
        gossip.admitted(GRAPH, item_id, 1_024, peers[0], now_ms)
        if number % 100 == 99:
            for peer in peers:
                while (outgoing := gossip.take(peer, now_ms)) is not None:
                    gossip.frame_received(peer, frames.Frame(ack=outgoing.seq), is_last=True, now_ms=now_ms)


def publish(count: int, members: int) -> None:
    gossip = Gossip("me")
    peers = [f"peer {number}" for number in range(members)]
    for peer in peers:
        gossip.peer_joined(peer, [GRAPH], 0)
    for number in range(count):
        now_ms = number
        item_id = hashlib.sha256(number.to_bytes(8, "big")).digest()
        gossip.published(GRAPH, item_id, 1_024, now_ms)
        if number % 20 == 19:
            for peer in peers:
                while (outgoing := gossip.take(peer, now_ms)) is not None:
                    gossip.frame_received(peer, frames.Frame(ack=outgoing.seq), is_last=True, now_ms=now_ms)


def measure(count: int) -> dict[str, float | int]:
    rnd = random.Random(1)
    items = some_items(rnd, count)
    # As a ledger reads them: in order, and each id new, beside the one before it in memory.
    ordered = [(order_ms, bytes(bytearray(item_id))) for order_ms, item_id in sorted(items)]
    ids = [item_id for _, item_id in items]
    keys = [order_ms.to_bytes(8, "big") + item_id for order_ms, item_id in items]
    snapshot = Snapshot.build(items)
    other = Snapshot.build(items[: -count // 10_000 or None] + some_items(rnd, max(1, count // 10_000)))
    newest = (NOW_MS + 31 * DAY_MS, rnd.randbytes(32))
    first = Initiator(snapshot.view()).start()
    envelope = rnd.randbytes(1_024)
    frame = frames.Frame(seq=1, envelopes=(envelope,) * 40, announced=tuple(it[:8] for it in ids[:500]))
    wire = frames.encode(frame)
    few = Snapshot.build(some_items(rnd, 10_000))
    ten = few.changed(add=some_items(rnd, 5), remove=list(few)[::2_000])
    total_bytes, round_trips = whole_round(few, ten)
    return {
        "raw: sha256 of each id, ms": best_ms(lambda: [hashlib.sha256(it).digest() for it in ids]),
        "raw: sort of keys, ms": best_ms(lambda: sorted(keys)),
        "build from any order, ms": best_ms(lambda: Snapshot.build(items)),
        "build from order, ms": best_ms(lambda: Snapshot.build(ordered)),
        "build from order and first message, ms": best_ms(lambda: Initiator(Snapshot.build(ordered).view()).start()),
        "build from any order and first message, ms": best_ms(lambda: Initiator(Snapshot.build(items).view()).start()),
        "one new item, ms": best_ms(lambda: snapshot.changed(add=[newest])),
        "first message from a snapshot, ms": best_ms(lambda: Initiator(snapshot.view()).start()),
        "first answer from a snapshot, ms": best_ms(lambda: respond(other.view(), first)),
        "whole round, 1 in 10,000 differs, ms": best_ms(lambda: whole_round(snapshot, other)),
        "answer to the five bytes that ask for all, ms": best_ms(
            lambda: respond(snapshot.view(), bytes.fromhex("6100000200"))
        ),
        "equal sets, bytes": whole_round(snapshot, snapshot)[0],
        "10,000 differ by 10, bytes": total_bytes,
        "10,000 differ by 10, round trips": round_trips,
        "frame of 40 envelopes and 500 ids, encode, ms": best_ms(lambda: frames.encode(frame)),
        "frame of 40 envelopes and 500 ids, decode, ms": best_ms(lambda: frames.decode(wire)),
        "gossip: publish to 4 members, µs an envelope": best_ms(lambda: publish(2_000, 4), 3) / 2,
        "gossip: relay among 24 members, µs an envelope": best_ms(lambda: relay(2_000, 24), 3) / 2,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    figures = measure(arguments.items)
    if arguments.json:
        print(json.dumps({"items": arguments.items, **figures}, ensure_ascii=False))
        return
    hashing, sorting = figures["raw: sha256 of each id, ms"], figures["raw: sort of keys, ms"]
    print(f"{arguments.items} items{'':34}    figure   x hashing   x sorting")
    for name, figure in figures.items():
        ratios = f"{figure / hashing:12.2f}{figure / sorting:12.2f}" if name.endswith(", ms") else ""
        print(f"{name:50}{figure:10.2f}{ratios}")


if __name__ == "__main__":
    main()
