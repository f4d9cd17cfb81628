"""Half-valid bytes at every layer, from a seed; longer with P2PMEM_FUZZ_ROUNDS."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from random import Random

import pytest
import trio

from p2pmem.net import multistream
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.multistream import encode_token
from p2pmem.net.seam import NetworkLimits
from p2pmem.net.secure import Identity, _shake_hands
from p2pmem.net.wire import Wire, WireError
from tests.attacks.raw import frame

from .attacker import assert_serves, dial, secured, victim

ROUNDS = int(os.environ.get("P2PMEM_FUZZ_ROUNDS", "40"))
_WORDS = (b"/multistream/1.0.0", b"/noise", b"/yamux/1.0.0", b"/echo/1", b"ls", b"na", b"", b"\xff\xfe")


def half_valid_words(random: Random) -> bytes:
    out = bytearray()
    for _ in range(random.randint(1, 6)):
        word = random.choice(_WORDS) + random.choice((b"\n", b"", b"\n\n"))
        out += bytes([random.choice((len(word), len(word) + 1, 0, 127, 255))]) + word
    return bytes(out)


def half_valid_frames(random: Random) -> Iterator[bytes]:
    """Frames whose fields are mostly legal, so that they get far."""
    for _ in range(random.randint(1, 30)):
        kind = random.choice((0, 0, 0, 1, 1, 2, 3, random.randint(0, 255)))
        flags = random.choice((0, 0, 1, 1, 2, 4, 8, 5, 9, random.randint(0, 65_535)))
        stream_id = random.choice((1, 3, 5, 7, 2, 0, random.randint(0, 2**32 - 1)))
        body = random.choice((b"", half_valid_words(random), random.randbytes(random.randint(0, 3000))))
        length = len(body) if random.random() < 0.9 else random.randint(0, 2**32 - 1)
        yield frame(kind, flags, stream_id, length, body if kind == 0 else b"", version=int(random.random() < 0.02))


def mutate(random: Random, data: bytes) -> bytes:
    out = bytearray(data)
    for _ in range(random.randint(0, 4)):
        if out:
            out[random.randrange(len(out))] ^= 1 << random.randrange(8)
    return bytes(out[: random.randint(0, len(out))] if random.random() < 0.3 else out)


async def throw(wire: Wire, data: bytes) -> None:
    """Write, listen for a moment, go away."""
    try:
        await wire.write(data)
        with trio.move_on_after(0.002):
            while await wire.fill():
                pass
    except WireError:
        pass
    finally:
        wire.close()


async def at_the_socket(network: Libp2pNetwork, random: Random) -> None:
    wire = Wire(await dial(network), stalled_write_timeout_s=1)
    await throw(wire, mutate(random, random.choice((half_valid_words(random), random.randbytes(200)))))


async def at_noise(network: Libp2pNetwork, random: Random) -> None:
    wire = Wire(await dial(network), stalled_write_timeout_s=1)
    await multistream.propose(wire, "/noise")
    size = random.choice((0, 32, 48, 96, 200))
    message = (size if random.random() < 0.8 else random.randint(0, 65_535)).to_bytes(2) + random.randbytes(size)
    await throw(wire, message * random.randint(1, 3))


async def at_the_muxer(network: Libp2pNetwork, random: Random) -> None:
    wire = Wire(await dial(network), stalled_write_timeout_s=1)
    await multistream.propose(wire, "/noise")
    channel = await _shake_hands(wire, Identity(os.urandom(32)), expected=network.peer_id, client=True)
    await channel.write(mutate(random, half_valid_words(random)) or b"\x00")
    await throw(wire, b"")


async def at_yamux(network: Libp2pNetwork, random: Random) -> None:
    channel = await secured(network)
    opening = encode_token("/multistream/1.0.0") + encode_token("/echo/1")
    frames = [frame(0, 1, 1, len(opening), opening), *half_valid_frames(random)]
    data = mutate(random, b"".join(frames)) if random.random() < 0.5 else b"".join(frames)
    with contextlib.suppress(WireError):
        await channel.write(data or b"\x00")
    await throw(channel.wire, b"")


@pytest.mark.parametrize("layer", [at_the_socket, at_noise, at_the_muxer, at_yamux])
async def test_half_valid_bytes_at_every_layer(layer: object, caplog: pytest.LogCaptureFixture) -> None:
    seed = 20_240_607
    print("seed", seed)
    random = Random(f"{seed}/{getattr(layer, '__name__', '')}")
    limits = NetworkLimits(handshake_timeout_s=2, open_stream_timeout_s=2, handshakes_per_address_per_minute=1_000_000)
    async with victim(limits) as network:
        for _ in range(ROUNDS):
            await layer(network, random)  # type: ignore[operator]
        await assert_serves(network)
        assert "net.connection.fault" not in caplog.text
        assert "fault" not in network.statistics().refused
