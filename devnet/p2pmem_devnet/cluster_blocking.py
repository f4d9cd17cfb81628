"""A cluster for programs that are not written for trio: asyncio, unittest, a notebook.

    with BlockingCluster(3) as cluster:
        ada, bo, cy = cluster.nodes
        asset = ada.share("ex:trial ex:lowers ex:ldl .")
        cluster.settled()
        assert bo.sees(asset)

trio runs in a thread of its own; every call that is async there is an ordinary call here, which waits for its end.
Time is virtual as ever, and stands still between two calls: nothing happens behind the caller's back. With
`net="libp2p"` time is real, and the nodes go on between two calls as nodes do.
"""

from __future__ import annotations

import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any, Final

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import ClusterNode
from p2pmem_devnet.stranger import Stranger
from p2pmem_devnet.virtual_time import virtual_clock

_LOOK_S: Final = 1.0
"""How often a call that is under way looks whether the cluster still lives."""
_WRAPPED: Final = (ClusterNode, Stranger)


class _Call:
    """One call that the cluster's thread is to make."""

    def __init__(self, fn: Callable[[], Any]) -> None:
        self.fn = fn
        self.done = threading.Event()
        self.result: Any = None
        self.error: BaseException | None = None


class BlockingCluster:
    """A `Cluster` whose calls block. A context manager, entered once; used from one thread at a time."""

    def __init__(self, n: int = 5, seed: int = 0, **settings: Any) -> None:
        """`settings` are those of `ClusterSettings`."""
        self._cluster = Cluster(n, seed, **settings)
        self._is_real = self._cluster.settings.net == "libp2p"
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._opened = _Call(lambda: None)
        self._failure: BaseException | None = None

    def __enter__(self) -> BlockingCluster:
        if self._thread is not None:
            raise MisuseError("a cluster is entered once: make a new one")
        self._thread = threading.Thread(target=self._run, name="p2pmem cluster", daemon=True)
        self._thread.start()
        self._opened.done.wait()
        if self._failure is not None:
            self._thread.join()
            raise self._failure
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._thread is not None
        self._calls.put(None)
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failure

    @property
    def nodes(self) -> list[Any]:
        """The nodes, as `ClusterNode`, with calls that block."""
        return [_Blocking(self, node) for node in self._cluster.nodes]

    def __getattr__(self, name: str) -> Any:
        return self._member(self._cluster, name)

    def _member(self, of: object, name: str) -> Any:
        value = getattr(of, name)
        if not callable(value):
            return self._shown(value)

        @wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            return self._call(partial(value, *map(_plain, args), **{key: _plain(it) for key, it in kwargs.items()}))

        return call

    def _call(self, fn: Callable[[], Any]) -> Any:
        """Let the cluster's thread make a call; its result, or its error, is ours."""
        if self._thread is None or not self._thread.is_alive():
            raise MisuseError("the cluster is not running: use it inside `with`")
        call = _Call(fn)
        self._calls.put(call)
        while not call.done.wait(_LOOK_S):
            if not self._thread.is_alive():
                raise MisuseError("the cluster ended while the call was under way") from self._failure
        if call.error is not None:
            raise call.error
        return self._shown(call.result)

    def _shown(self, value: Any) -> Any:
        if isinstance(value, _WRAPPED):
            return _Blocking(self, value)
        return _Within(self, value) if isinstance(value, AbstractContextManager) else value

    # In the cluster's thread

    def _run(self) -> None:
        try:
            trio.run(self._serve, clock=None if self._is_real else virtual_clock())
        except BaseException as error:
            self._failure = error
        finally:
            self._opened.done.set()
            self._calls.put(None)  # for a thread that still waits for the next call

    async def _serve(self) -> None:
        async with self._cluster:
            self._opened.done.set()
            while (call := await self._next_call()) is not None:
                try:
                    result = call.fn()
                    call.result = await result if inspect.isawaitable(result) else result
                except BaseException as error:
                    call.error = error
                    if isinstance(error, trio.Cancelled):
                        call.error = MisuseError("the cluster ended while the call was under way")
                        raise
                finally:
                    call.done.set()

    async def _next_call(self) -> _Call | None:
        if self._is_real:
            return await trio.to_thread.run_sync(self._calls.get, abandon_on_cancel=True)
        # The loop itself waits for the next call, so no time goes by meanwhile, not even virtual time.
        return self._calls.get()


class _Blocking:
    """A node or a stranger of a blocking cluster."""

    def __init__(self, cluster: BlockingCluster, wrapped: object) -> None:
        self._cluster = cluster
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return self._cluster._member(self._wrapped, name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Blocking) and self._wrapped is other._wrapped

    def __hash__(self) -> int:
        return hash(self._wrapped)

    def __repr__(self) -> str:
        return repr(self._wrapped)


class _Within:
    """A context manager of the cluster, such as a partition, entered and left in its thread."""

    def __init__(self, cluster: BlockingCluster, manager: AbstractContextManager[Any]) -> None:
        self._cluster = cluster
        self._manager = manager

    def __enter__(self) -> Any:
        return self._cluster._call(self._manager.__enter__)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cluster._call(partial(self._manager.__exit__, None, None, None))


def _plain(value: Any) -> Any:
    """What the cluster itself takes: nodes without their wrapping, alone and in lists."""
    if isinstance(value, _Blocking):
        return value._wrapped
    return [_plain(it) for it in value] if isinstance(value, list | tuple) else value
