#!/usr/bin/env python3
"""What it costs to read, check, seal and reconcile, as ratios to coincurve, hashlib and cbor2 in the same run.

    python scripts/bench_protocol.py [--json]

Times are of the processor, each the best of several rounds. Ratios carry over to other machines, times do not: the aim
about signatures is a ratio, the others are milliseconds. Content by itself is in bench_content, gossip in
bench_reconcile. Exits 1 where a figure is over its aim.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "protocol")]

import cbor2  # noqa: E402
import coincurve  # noqa: E402
from p2pmem_protocol.bodies import ContentRef, Sealed  # noqa: E402
from p2pmem_protocol.content import Content, make_content  # noqa: E402
from p2pmem_protocol.envelope import Envelope, Unsigned, decode_item  # noqa: E402
from p2pmem_protocol.keys import Key, check_signed_by, signer_of  # noqa: E402
from p2pmem_protocol.kinds import Kind  # noqa: E402
from p2pmem_protocol.names import GraphName, network_id  # noqa: E402
from p2pmem_protocol.negentropy import Initiator, respond  # noqa: E402
from p2pmem_protocol.seal import NO_PREVIOUS, Seal, SignedSeal  # noqa: E402
from p2pmem_protocol.snapshot import Snapshot  # noqa: E402

from scripts.bench_content import answered_or_refused, ground, poison, with_blank_nodes  # noqa: E402
from scripts.bench_reconcile import some_items  # noqa: E402

ROUNDS: Final = 5
ENVELOPES: Final = 1_000
FRESH: Final = 200
IDS: Final = 100_000
KEY: Final = Key(b"\x01" * 32)
NETWORK: Final = network_id("bench")
GRAPH: Final = GraphName(KEY.address, "bench").id
NOW_MS: Final = 1_800_000_000_000
LIFE_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Figure:
    """`ratio` is to `raw`. `most_ms` and `most_ratio` are the aims, None where nothing was promised."""

    name: str
    ms: float
    ratio: float
    raw: str
    most_ms: float | None = None
    most_ratio: float | None = None

    @property
    def is_met(self) -> bool:
        return (self.most_ms is None or self.ms <= self.most_ms) and (
            self.most_ratio is None or self.ratio <= self.most_ratio
        )

    @property
    def aim(self) -> str:
        if self.most_ms is None and self.most_ratio is None:
            return ""
        aim = f"{self.most_ms:g} ms" if self.most_ms is not None else f"{self.most_ratio:g} times"
        return f"   aim {aim}{'' if self.is_met else ': MISSED'}"


def best_ms(work: Callable[[], object]) -> float:
    """The least processor time of a few rounds, in milliseconds, the collector switched off."""
    best = float("inf")
    gc.disable()
    for _ in range(ROUNDS):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
        gc.collect()
    gc.enable()
    return best * 1_000


def _sealed(content: Content, number: int) -> Sealed:
    seal = Seal(NETWORK, GRAPH, "", f"asset-{number}", 1, content.root, content.line_count, NO_PREVIOUS, KEY.address)
    return Sealed(seal.sign(KEY), ContentRef.of(content.data))


def _share(body: Sealed, issued_ms: int) -> Envelope:
    return Unsigned(NETWORK, GRAPH, Kind.SHARE, KEY.address, None, 1, issued_ms, issued_ms + LIFE_MS, body).sign(KEY)


def envelopes() -> list[Figure]:
    """Reading and checking of a share of 1 KB. Each is a thousand different ones, so that nothing is remembered."""
    content = make_content(ground()[:8])
    shares = [_share(_sealed(content, number), NOW_MS) for number in range(ENVELOPES)]
    raw = [it.encode() for it in shares]
    renewed = [
        _share(shares[0].body, NOW_MS + n).encode() for n in range(ENVELOPES) if isinstance(shares[0].body, Sealed)
    ]
    signed = [(it.id, it.signature) for it in shares]
    recoverable = [(digest, it[:64] + bytes((it[64] - 27,))) for digest, it in signed]

    def recover() -> None:
        for digest, signature in recoverable:
            coincurve.PublicKey.from_signature_and_message(signature, digest, hasher=None)

    def envelope_signature() -> None:
        for data in raw:
            item = decode_item(data)
            assert isinstance(item, Envelope)
            check_signed_by(item.author, item.id, item.signature)

    # For each round other seals, that were never seen: what is remembered is not measured.
    batches = [
        [_share(_sealed(content, ENVELOPES + FRESH * at + number), NOW_MS).encode() for number in range(FRESH)]
        for at in range(ROUNDS)
    ]
    fresh = iter(batches)

    recover_ms = best_ms(recover) / ENVELOPES
    loads_ms = best_ms(lambda: [cbor2.loads(data) for data in raw]) / ENVELOPES

    def figure(name: str, ms: float, most_ratio: float | None = None) -> Figure:
        return Figure(name, ms, ms / recover_ms, "recover", most_ratio=most_ratio)

    decoding_ms = best_ms(lambda: [decode_item(data) for data in raw]) / ENVELOPES
    return [
        Figure(f"raw: coincurve recovers, {1_000 / recover_ms:,.0f}/s", recover_ms, 1, "recover"),
        Figure(f"raw: cbor2 loads {len(raw[0])} bytes", loads_ms, 1, "cbor2 loads"),
        Figure("share: decode", decoding_ms, decoding_ms / loads_ms, "cbor2 loads"),
        figure("share: signer of a digest", best_ms(lambda: [signer_of(*it) for it in signed]) / ENVELOPES),
        figure("share: decode, verify the envelope", best_ms(envelope_signature) / ENVELOPES, 25 / 12),
        figure("share: decode, verify envelope and seal", best_ms(lambda: _check_all(next(fresh))) / FRESH),
        figure("renewal: decode, verify, its seal known", best_ms(lambda: _check_all(renewed)) / ENVELOPES),
    ]


def _check_all(raw: list[bytes]) -> None:
    for data in raw:
        decode_item(data).check()


def contents() -> list[Figure]:
    triples, blank = ground(), with_blank_nodes()
    content = make_content(triples)
    sha_ms = best_ms(lambda: [hashlib.sha256(line).digest() for line in content.lines()])

    def seal() -> SignedSeal:
        made = make_content(triples)
        return Seal(NETWORK, GRAPH, "", "a", 1, made.root, made.line_count, NO_PREVIOUS, KEY.address).sign(KEY)

    def figure(name: str, work: Callable[[], object], most_ms: float) -> Figure:
        ms = best_ms(work)
        return Figure(name, ms, ms / sha_ms, "sha256 of 10,000 lines", most_ms)

    worst = max(poison().items(), key=lambda case: _once_ms(case[1]))
    return [
        Figure("raw: hashlib sha256 of 10,000 lines", sha_ms, 1, "sha256 of 10,000 lines"),
        figure("seal of 10,000 statements", seal, 150),
        figure("canonical form, 2,000 blank nodes", lambda: make_content(blank), 1_000),
        figure(f"worst poison: {worst[0]}", lambda: answered_or_refused(worst[1]), 500),
    ]


def _once_ms(quads: list[tuple[str, str, str, str]]) -> float:
    begin = time.process_time()
    answered_or_refused(quads)
    return (time.process_time() - begin) * 1_000


def rounds() -> list[Figure]:
    rnd = random.Random(1)
    items = sorted(some_items(rnd, IDS))
    shared = Snapshot.build(items)
    other = Snapshot.build(items[: -IDS // 10_000] + some_items(rnd, IDS // 10_000))
    question = Initiator(other.view()).start()
    sha_ms = best_ms(lambda: [hashlib.sha256(item_id).digest() for _, item_id in items])

    def figure(name: str, work: Callable[[], object], most_ms: float) -> Figure:
        ms = best_ms(work)
        return Figure(name, ms, ms / sha_ms, "sha256 of 100,000 ids", most_ms)

    return [
        Figure("raw: hashlib sha256 of 100,000 ids", sha_ms, 1, "sha256 of 100,000 ids"),
        figure("round over 100,000 ids: build, answer", lambda: respond(Snapshot.build(items).view(), question), 60),
        figure("round over 100,000 ids: shared snapshot", lambda: respond(shared.view(), question), 5),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object for each figure")
    as_json = parser.parse_args().json
    figures = [*envelopes(), *contents(), *rounds()]
    for figure in figures:
        if as_json:
            print(json.dumps(asdict(figure)))
        else:
            rate = f"{1_000 / figure.ms:12,.0f}/s" if figure.ms < 1 else " " * 14
            print(f"{figure.name:44}{figure.ms:10.4f} ms{rate}{figure.ratio:8.2f} {figure.raw}{figure.aim}")
    return 0 if all(figure.is_met for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
