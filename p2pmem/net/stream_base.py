"""What both kinds of stream have in common: one task a direction, who waits for a change, and its handler's time."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from types import TracebackType

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.net.seam import PeerId, StreamClosedError


class OneTask:
    """Lets one task at a time in, as the streams of trio do; a second one gets `trio.BusyResourceError`."""

    def __init__(self, doing: str) -> None:
        self._doing = doing
        self._busy = False

    def __enter__(self) -> None:
        if self._busy:
            raise trio.BusyResourceError(f"another task is {self._doing} on this stream")
        self._busy = True

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._busy = False


class StreamBase(ABC):
    """The part of `seam.Stream` that does not depend on how bytes travel."""

    def __init__(self, protocol: str) -> None:
        self._protocol = protocol
        self._closed = False
        self._write_ended = False
        self._changed = trio.Event()
        self._sending = OneTask("sending")
        self._receiving = OneTask("receiving")
        self._handler: trio.CancelScope | None = None
        self._handler_may_s = math.inf
        self._gone_s = math.inf

    @property
    @abstractmethod
    def peer(self) -> PeerId: ...

    @property
    def protocol(self) -> str:
        return self._protocol

    @abstractmethod
    def close_now(self) -> None: ...

    @abstractmethod
    def reset_now(self) -> None: ...

    async def reset(self) -> None:
        self.reset_now()
        await trio.lowlevel.checkpoint()

    async def aclose(self) -> None:
        self.close_now()
        await trio.lowlevel.checkpoint()

    def notify(self) -> None:
        """Something changed: whoever waits looks again."""
        self._changed.set()
        self._changed = trio.Event()

    def throw_away(self) -> None:
        """Reset it, and end its handler at once: what that still holds of the peer's counts no more from here on."""
        self.reset_now()
        self._handler_may_s = -math.inf
        if self._handler is not None:
            self._handler.cancel()

    def served_in(self, scope: trio.CancelScope, timeout_s: float) -> None:
        """`scope` holds the handler of the stream: to be cancelled so long after the stream has gone."""
        self._handler, self._handler_may_s = scope, min(timeout_s, self._handler_may_s)
        scope.deadline = self._gone_s + self._handler_may_s

    def _gone_at(self, time_s: float) -> None:
        """From then on nobody hears anybody on this stream, whoever ended it."""
        if time_s < self._gone_s:
            self._gone_s = time_s
            if self._handler is not None:
                self._handler.deadline = time_s + self._handler_may_s

    def _closed_error(self) -> StreamClosedError:
        return StreamClosedError(f"stream {self._protocol} to {self.peer} is closed here: open a new one")

    def _reset_error(self) -> StreamClosedError:
        return StreamClosedError(f"{self.peer} has reset stream {self._protocol}")

    def _lost_error(self) -> StreamClosedError:
        return StreamClosedError(f"the connection to {self.peer} has ended, and stream {self._protocol} with it")


def check_read_size(max_bytes: int) -> None:
    if max_bytes <= 0:
        raise MisuseError(f"max_bytes is {max_bytes}; ask for at least one")
