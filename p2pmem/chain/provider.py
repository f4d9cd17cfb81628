"""JSON-RPC over httpx on trio, as a provider for web3, whose own needs asyncio.

The server is configured, not trusted. It may be slow, lie, or answer without end; so here is a limit on time and on
bytes, no redirect, no proxy of the environment, no compression (it hides size), and an answer must be to the question
that was asked. What the answer *says* is checked by who asked.
"""

from __future__ import annotations

import ipaddress
import json
import logging
from typing import Any, cast
from urllib.parse import urlsplit

import httpx
import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.json_nesting import check_nesting
from web3.providers.async_base import AsyncJSONBaseProvider
from web3.types import RPCEndpoint, RPCResponse

from p2pmem.chain.errors import ChainAnswerError, ChainUnreachableError, map_exceptions, shown_url
from p2pmem.chain.posting import json_request

log = logging.getLogger(__name__)

CONNECTIONS_MAX = 8


def checked_url(url: str) -> str:
    """The URL, if it may be asked: https anywhere, plain http only to this machine. `MisuseError` if not."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme not in ("http", "https") or not host:
        raise MisuseError(
            f"{shown_url(url)} is no address of a chain: it must be like http://127.0.0.1:8545 or https://..."
        )
    if parts.scheme == "http" and host != "localhost":
        try:
            loopback = ipaddress.ip_address(host).is_loopback
        except ValueError:
            loopback = False
        if not loopback:
            raise MisuseError(
                f"{shown_url(url)} would be asked without encryption: use https, or a chain on this machine"
            )
    return url


class HttpxProvider(AsyncJSONBaseProvider):
    """One server. Use as an async context manager; requests run concurrently, at most eight at once."""

    # Else a server can answer a call with URLs that web3 would fetch.
    global_ccip_read_enabled = False

    def __init__(self, url: str, *, request_seconds_max: float, response_bytes_max: int) -> None:
        super().__init__()
        self._url = checked_url(url)
        self._shown = shown_url(url)
        self._request_seconds_max = request_seconds_max
        self._response_bytes_max = response_bytes_max
        self._client = httpx.AsyncClient(
            follow_redirects=False,
            trust_env=False,
            limits=httpx.Limits(max_connections=CONNECTIONS_MAX),
        )
        self.requests = 0
        self.failures = 0

    async def __aenter__(self) -> HttpxProvider:
        return self

    async def __aexit__(self, *_: object) -> None:
        with trio.CancelScope(shield=True):
            await self._client.aclose()

    async def make_request(self, method: RPCEndpoint, params: Any) -> RPCResponse:
        """Ask one question. `ChainUnreachableError` without an answer, `ChainAnswerError` for one that cannot be."""
        request = self.form_request(method, params)
        what = f"{method} at {self._shown}"
        self.requests += 1
        try:
            body = await self._post(self.encode_rpc_dict(request), what)
            return self._read(body, request["id"], what)
        except (ChainUnreachableError, ChainAnswerError) as error:
            self.failures += 1
            log.info("chain.request.failed", extra={"method": str(method), "error": type(error).__name__})
            raise

    async def _post(self, content: bytes, what: str) -> bytes:
        # One limit for the whole: a limit per read would let a server drip for ever.
        with (
            map_exceptions(ChainUnreachableError, what, trio.TooSlowError, httpx.TransportError),
            trio.fail_after(self._request_seconds_max),
        ):
            request = json_request(self._url, content, self._request_seconds_max)
            response = await self._client.send(request, stream=True)
            try:
                return await self._body_of(response, what)
            finally:
                await response.aclose()

    async def _body_of(self, response: httpx.Response, what: str) -> bytes:
        if response.status_code in (429, 500, 502, 503, 504):
            raise ChainUnreachableError(f"{what}: the server is not able to answer now ({response.status_code})")
        if response.status_code != 200:
            raise ChainAnswerError(f"{what}: HTTP status {response.status_code}, expected 200; is this a chain?")
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ChainAnswerError(f"{what}: a compressed answer, which was not asked for")
        body = bytearray()
        # Leaving the loop early would leave generators inside httpx to the garbage collector; cancelling the next read
        # unwinds them.
        with trio.CancelScope() as reading:
            async for chunk in response.aiter_raw():
                body += chunk[: self._response_bytes_max + 1 - len(body)]
                if len(body) > self._response_bytes_max:
                    reading.cancel()
        if len(body) > self._response_bytes_max:
            raise ChainAnswerError(f"{what}: an answer of more than {self._response_bytes_max} bytes")
        return bytes(body)

    def _read(self, body: bytes, request_id: object, what: str) -> RPCResponse:
        with map_exceptions(ChainAnswerError, what, ValueError):
            text = body.decode()
            check_nesting(text)
            answer = json.loads(text)
        if not isinstance(answer, dict) or answer.get("jsonrpc") != "2.0":
            raise ChainAnswerError(f"{what}: the answer is no JSON-RPC 2.0")
        error = answer.get("error")
        if error is not None:
            if (
                not isinstance(error, dict)
                or type(error.get("code")) is not int
                or type(error.get("message")) is not str
            ):
                raise ChainAnswerError(f"{what}: an error without number or words")
            # web3 refuses `"result": null` beside an error, which some servers send.
            return cast(RPCResponse, {"jsonrpc": "2.0", "id": request_id, "error": error})
        if answer.get("id") != request_id or type(answer.get("id")) is not type(request_id) or "result" not in answer:
            raise ChainAnswerError(f"{what}: an answer to another question")
        return cast(RPCResponse, {"jsonrpc": "2.0", "id": request_id, "result": answer["result"]})
