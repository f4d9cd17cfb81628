"""One JSON request for httpx, whose body leaves nothing behind when the connection breaks under it.

httpx reads a body through an asynchronous generator. If the write fails, that generator is abandoned half-way, and trio
rightly complains when the garbage collector finds it. This body is read through a plain iterator.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx


class _Body(httpx.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    def __aiter__(self) -> AsyncIterator[bytes]:
        return _OneChunk(self._content)


class _OneChunk:
    def __init__(self, content: bytes) -> None:
        self._rest: bytes | None = content

    def __aiter__(self) -> _OneChunk:
        return self

    async def __anext__(self) -> bytes:
        chunk, self._rest = self._rest, None
        if chunk is None:
            raise StopAsyncIteration
        return chunk


def json_request(url: str, content: bytes, seconds_max: float) -> httpx.Request:
    """A POST of JSON that asks for an uncompressed answer. The limit is on each read or write, not on the whole."""
    headers = {
        "host": httpx.URL(url).netloc.decode("ascii"),
        "content-type": "application/json",
        "content-length": str(len(content)),
        "accept": "application/json",
        "accept-encoding": "identity",
    }
    extensions = {"timeout": httpx.Timeout(seconds_max).as_dict()}
    return httpx.Request("POST", url, headers=headers, stream=_Body(content), extensions=extensions)
