"""A server over a face, and ways to ask it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import httpx
import pytest
import trio

from p2pmem.api.client import HttpFace
from p2pmem.api.server import serve_http

from .memory_face import MemoryFace

TOKEN = "t0ken-that-nobody-guesses"


@dataclass(frozen=True)
class Served:
    """A running server: its face, its address, and a raw HTTP client that has the token."""

    face: MemoryFace
    url: str
    raw: httpx.AsyncClient
    client: HttpFace
    stop: trio.Event
    ended: trio.Event


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    face, stop, ended = MemoryFace(), trio.Event(), trio.Event()

    async def serve(*, task_status: trio.TaskStatus[str]) -> None:
        await serve_http(face, TOKEN, stop=stop, task_status=task_status)
        ended.set()

    async with trio.open_nursery() as nursery:
        url: str = await nursery.start(serve)
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with (
            httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=20) as raw,
            HttpFace(url, TOKEN) as client,
        ):
            yield Served(face, url, raw, client, stop, ended)
        nursery.cancel_scope.cancel()
