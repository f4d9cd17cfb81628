"""The provider, asked to believe a server that lies, drips, floods and redirects. Real sockets on loopback."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
from eth_abi.abi import encode
from eth_account import Account
from eth_utils.crypto import keccak
from p2pmem_protocol.errors import MisuseError

from p2pmem.chain import ChainAnswerError, ChainRefusedError, ChainSettings, ChainUnreachableError, WrongChainError
from p2pmem.chain.client import EvmChain, open_chain
from p2pmem.chain.provider import checked_url

BYTES_MAX = 10_000
Answer = Callable[[trio.SocketStream, int], Awaitable[None]]


class Liar:
    """An HTTP server that reads one request per connection and then does as it likes."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.connections = 0
        self.sent_bytes = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some()
        length = int(re.search(rb"content-length: (\d+)", received.lower())[1])  # type: ignore[index]
        while len(received.partition(b"\r\n\r\n")[2]) < length:
            received += await stream.receive_some()
        request = json.loads(received.partition(b"\r\n\r\n")[2])
        try:
            await self._answer(stream, request["id"])
            await stream.aclose()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


def http(body: bytes, *, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\ncontent-length: {len(body)}\r\nconnection: close\r\n{headers}\r\n".encode() + body


def says(body: bytes, **options: str) -> Answer:
    async def answer(stream: trio.SocketStream, _: int) -> None:
        await stream.send_all(http(body, **options))

    return answer


def results(result: object) -> Answer:
    async def answer(stream: trio.SocketStream, request_id: int) -> None:
        await stream.send_all(http(json.dumps({"jsonrpc": "2.0", "id": request_id, "result": result}).encode()))

    return answer


@asynccontextmanager
async def asked(answer: Answer, seconds_max: float = 20.0) -> AsyncIterator[tuple[EvmChain, Liar]]:
    liar = Liar(answer)
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        nursery.start_soon(trio.serve_listeners, liar.serve, listeners)
        settings = ChainSettings(
            url=f"http://127.0.0.1:{port}",
            chain_id=31337,
            contract=b"\x33" * 20,
            network=bytes(32),
            request_seconds_max=seconds_max,
            response_bytes_max=BYTES_MAX,
        )
        async with open_chain(settings, Account.from_key(keccak(text="payer"))) as chain:
            yield chain, liar
        nursery.cancel_scope.cancel()


LIES = {
    "no JSON": says(b"<html>hello</html>"),
    "nothing": says(b""),
    "no UTF-8": says(b'{"jsonrpc":"2.0","id":0,"result":"\xff\xfe"}'),
    "a list": says(b"[]"),
    "a bare number": says(b"1"),
    "no result": says(b'{"jsonrpc":"2.0","id":0}'),
    "another version": says(b'{"jsonrpc":"1.0","id":0,"result":"0x1"}'),
    "an answer to another question": says(b'{"jsonrpc":"2.0","id":7,"result":"0x1"}'),
    "true as id": says(b'{"jsonrpc":"2.0","id":false,"result":"0x1"}'),
    "an error without words": says(b'{"jsonrpc":"2.0","id":0,"error":{"code":1}}'),
    "an error that is text": says(b'{"jsonrpc":"2.0","id":0,"error":"no"}'),
    "deep nesting": says(b"[" * 9_000),
    "a number of 9,000 digits": says(b'{"jsonrpc":"2.0","id":0,"result":' + b"9" * 9_000 + b"}"),
    "not found": says(b"", status="404 Not Found"),
    "a redirect": says(b"", status="302 Found", headers="location: http://127.0.0.1:1/\r\n"),
    "compressed": says(gzip.compress(bytes(5_000_000)), headers="content-encoding: gzip\r\n"),
    "a null": results(None),
    "an object for a number": results({"a": 1}),
    "a negative number": results("-0x1"),
    "a float": results(1.5),
    "true": results(True),
    "a list for a number": results(["0x1"]),
    "words for a number": results("thirty"),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
async def test_an_answer_that_cannot_be_is_one_typed_error(lie: Answer) -> None:
    async with asked(lie) as (chain, _):
        with pytest.raises(ChainAnswerError, match="eth_chainId"):
            await chain.expect_chain_id()
        assert chain.statistics().requests == 1


BLOCKS: dict[str, object] = {
    "null": None,
    "a list": [],
    "empty": {},
    "no hash": {"number": "0x1", "hash": None},
    "a short hash": {"number": "0x1", "hash": "0x1234"},
    "a hash that is no hex": {"number": "0x1", "hash": "0x" + "zz" * 32},
    "a pending block": {"number": None, "hash": "0x" + "11" * 32},
    "a number that is a list": {"number": [1], "hash": "0x" + "11" * 32},
}


@pytest.mark.parametrize("block", BLOCKS.values(), ids=BLOCKS.keys())
async def test_a_block_that_cannot_be_is_one_typed_error(block: object) -> None:
    async with asked(results(block)) as (chain, _):
        with pytest.raises(ChainAnswerError, match="eth_getBlockByNumber"):
            await chain.head()


async def test_an_endless_answer_is_cut_at_the_limit() -> None:
    sent = 0

    async def flood(stream: trio.SocketStream, _: int) -> None:
        nonlocal sent
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        while True:
            await stream.send_all(b" " * 1000)
            sent += 1000

    async with asked(flood) as (chain, _):
        with pytest.raises(ChainAnswerError, match="more than 10000 bytes"):
            await chain.expect_chain_id()
    # What was on the way in socket buffers is sent too, but it is bounded; the server never ended by itself.
    assert sent < 20_000_000


async def test_a_server_that_drips_is_left_after_the_time_for_the_whole_answer() -> None:
    async def drip(stream: trio.SocketStream, _: int) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        while True:
            await stream.send_all(b" ")
            await trio.sleep(0.02)

    async with asked(drip, seconds_max=0.2) as (chain, _):
        with pytest.raises(ChainUnreachableError, match="TooSlowError"):
            await chain.expect_chain_id()


async def test_a_server_that_says_nothing_is_left_after_the_time() -> None:
    async def silence(stream: trio.SocketStream, _: int) -> None:
        await trio.sleep_forever()

    async with asked(silence, seconds_max=0.1) as (chain, _):
        with pytest.raises(ChainUnreachableError):
            await chain.expect_chain_id()


async def test_a_caller_can_cancel_a_question_and_ask_another() -> None:
    asked_once = trio.Event()

    async def first_silent(stream: trio.SocketStream, request_id: int) -> None:
        if not asked_once.is_set():
            asked_once.set()
            await trio.sleep_forever()
        await results("0x7a69")(stream, request_id)

    async with asked(first_silent) as (chain, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(chain.expect_chain_id)
            await asked_once.wait()
            nursery.cancel_scope.cancel()
        await chain.expect_chain_id()


async def test_a_closed_connection_and_a_busy_server_are_unreachable_which_may_pass() -> None:
    async def hang_up(stream: trio.SocketStream, _: int) -> None:
        await stream.aclose()

    for answer in (hang_up, says(b"", status="503 Busy"), says(b"", status="429 Too Many Requests")):
        async with asked(answer) as (chain, _):
            with pytest.raises(ChainUnreachableError):
                await chain.expect_chain_id()
            assert chain.statistics().failures == 1


async def test_a_servers_words_are_cut_and_cleaned_before_a_person_sees_them() -> None:
    words = "\x1b[31mpay here\n" + "x" * 5_000
    body = json.dumps({"jsonrpc": "2.0", "id": 0, "error": {"code": -32000, "message": words}}).encode()
    async with asked(says(body)) as (chain, _):
        with pytest.raises(ChainRefusedError) as caught:
            await chain.expect_chain_id()
        assert caught.value.code == -32000
        assert "\x1b" not in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400


async def test_another_chain_id_is_named_with_the_configured_one() -> None:
    async with asked(results("0x1")) as (chain, _):
        with pytest.raises(WrongChainError, match=r"is chain 1 and the settings say 31337"):
            await chain.expect_chain_id()


async def test_a_lookup_outside_the_chain_that_an_answer_asks_for_is_never_made() -> None:
    visited = 0

    async def visit(stream: trio.SocketStream) -> None:
        nonlocal visited
        visited += 1
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        trap = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/{{sender}}/{{data}}.json"
        nursery.start_soon(trio.serve_listeners, visit, listeners)

        # EIP-3668: OffchainLookup(address,string[],bytes,bytes4,bytes) makes a careless client fetch what it names.
        kinds = ["address", "string[]", "bytes", "bytes4", "bytes"]
        data = "0x556f1830" + encode(kinds, ["0x" + "33" * 20, [trap], b"", b"\0" * 4, b""]).hex()
        error = {"code": 3, "message": "execution reverted", "data": data}

        async def answer(stream: trio.SocketStream, request_id: int) -> None:
            if request_id == 0:
                await results("0x7a69")(stream, request_id)
            elif request_id == 1:
                await results("0x6001")(stream, request_id)
            else:
                await stream.send_all(http(json.dumps({"jsonrpc": "2.0", "id": request_id, "error": error}).encode()))

        async with asked(answer) as (chain, liar):
            with pytest.raises((WrongChainError, ChainAnswerError)):
                await chain.check()
            assert liar.connections == 3
        assert visited == 0
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8545", "http://[::1]:8545", "http://localhost:1", "https://rpc.example"]
)
def test_loopback_and_encrypted_addresses_may_be_asked(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    "url", ["", "127.0.0.1:8545", "ftp://127.0.0.1", "file:///etc/passwd", "http://10.0.0.1:8545", "http://rpc.example"]
)
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(MisuseError):
        checked_url(url)


def test_a_key_in_an_address_is_not_shown() -> None:
    with pytest.raises(MisuseError) as caught:
        checked_url("http://user:hunter2@rpc.example/v2/secret-key")
    assert "hunter2" not in str(caught.value)
    assert "secret-key" not in str(caught.value)
