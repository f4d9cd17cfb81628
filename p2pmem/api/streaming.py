"""One GET request whose answer comes bit by bit, on trio and h11.

httpx passes such an answer through five async generators, and one that is left in the middle is closed only when it is
collected. Here there is none, so who stops listening has stopped.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import urlsplit

import h11
import trio

from p2pmem.api.problems import UnreachableError

CONNECT_S: Final = 5.0
# An idle stream says every 15 s that it is alive.
SILENCE_S: Final = 60.0
PIECE_BYTES_MAX: Final = 64 * 1024
WHOLE_BYTES_MAX: Final = 1024 * 1024


class StreamedAnswer:
    """Status and the bytes of the body as they come."""

    def __init__(self, url: str, stream: trio.SocketStream, connection: h11.Connection) -> None:
        self._url = url
        self._stream = stream
        self._connection = connection
        self.status = 0

    async def begin(self, target: str, headers: Mapping[str, str]) -> None:
        """Ask, and wait for the head of the answer. Raises `UnreachableError`."""
        head = [("host", urlsplit(self._url).netloc), ("connection", "close"), *headers.items()]
        data = self._connection.send(h11.Request(method="GET", target=target, headers=head))
        ended = self._connection.send(h11.EndOfMessage())
        try:
            await self._stream.send_all((data or b"") + (ended or b""))
        except trio.BrokenResourceError as error:
            raise self._lost(error) from None
        event = await self._next()
        while isinstance(event, h11.InformationalResponse):
            event = await self._next()
        assert isinstance(event, h11.Response)
        self.status = event.status_code

    async def receive(self) -> bytes:
        """The next bytes; none at the end. Raises `UnreachableError` when the connection is lost or silent."""
        event = await self._next()
        return bytes(event.data) if isinstance(event, h11.Data) else b""

    async def whole(self) -> bytes:
        """All that is left, which is short: a problem."""
        body = b""
        while (piece := await self.receive()) and len(body) < WHOLE_BYTES_MAX:
            body += piece
        return body

    async def _next(self) -> h11.Event:
        while True:
            try:
                event = self._connection.next_event()
                if event is h11.NEED_DATA:
                    with trio.fail_after(SILENCE_S):
                        self._connection.receive_data(await self._stream.receive_some(PIECE_BYTES_MAX))
                    continue
            except trio.TooSlowError:
                raise UnreachableError(f"the node at {self._url} has been silent for {SILENCE_S:.0f} s") from None
            except (trio.BrokenResourceError, h11.RemoteProtocolError) as error:
                raise self._lost(error) from None
            assert isinstance(event, h11.Event), "one request is asked, so nothing pauses"
            return event

    def _lost(self, error: Exception) -> UnreachableError:
        return UnreachableError(f"the connection to the node at {self._url} was lost: {error}")


@asynccontextmanager
async def open_streamed(url: str, target: str, headers: Mapping[str, str]) -> AsyncIterator[StreamedAnswer]:
    """Ask for `target` at `url` (`http://host:port`). Closes the connection when the block ends, however it ends."""
    place = urlsplit(url)
    assert place.scheme == "http"
    assert place.hostname is not None
    try:
        with trio.fail_after(CONNECT_S):
            stream = await trio.open_tcp_stream(place.hostname, place.port or 80)
    except (OSError, trio.TooSlowError):
        raise UnreachableError(f"no node answers at {url}: is `p2pmem run` running?") from None
    async with stream:
        answer = StreamedAnswer(url, stream, h11.Connection(h11.CLIENT))
        await answer.begin(target, headers)
        yield answer
