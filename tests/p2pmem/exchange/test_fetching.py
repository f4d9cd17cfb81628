"""Whom a node asks for content, and whom it leaves alone for a while."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import trio
import trio.testing
from p2pmem_protocol.errors import Reason
from p2pmem_protocol.names import GraphId

from p2pmem.exchange.fetching import AT_ONCE_MAX, TOO_MANY_PAUSE_S, Fetching
from p2pmem.exchange.sync_client import NotGivenError
from p2pmem.net.seam import PeerId

GRAPH = GraphId(bytes(32))
FULL, OTHER = PeerId("full"), PeerId("other")


async def test_who_hears_no_more_questions_is_asked_again_after_a_while_and_others_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    wanted = {(number.to_bytes(32), 10) for number in range(100)}
    asked: list[tuple[PeerId, float]] = []
    members = [FULL]

    async def fetch_attachment(peer: PeerId, graph: GraphId, content_hash: bytes, length: int) -> bool:
        asked.append((peer, trio.current_time()))
        await trio.lowlevel.checkpoint()
        if peer == FULL:
            raise NotGivenError(int(Reason.TOO_MANY))
        wanted.discard((content_hash, length))
        return True

    holdings: Any = SimpleNamespace(wanted_attachments=lambda graph: tuple(wanted))
    client: Any = SimpleNamespace(fetch_attachment=fetch_attachment)
    fetching = Fetching(holdings, client, lambda graph: list(members), lambda *_: None, random.Random(1))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(fetching.run)
        fetching.look(GRAPH, FULL)
        await trio.sleep(1)
        assert len(asked) <= AT_ONCE_MAX, "not once for each content"
        fetching.look(GRAPH, FULL)
        await trio.sleep(1)
        assert len(asked) <= AT_ONCE_MAX
        members.append(OTHER)
        fetching.look(GRAPH, FULL)
        await trio.sleep(1)
        assert not wanted
        before = sum(peer == FULL for peer, _ in asked)
        assert before <= AT_ONCE_MAX
        wanted.add((bytes(32), 10))
        await trio.sleep(TOO_MANY_PAUSE_S)
        fetching.look(GRAPH, FULL)
        await trio.sleep(1)
        assert sum(peer == FULL for peer, _ in asked) > before
        nursery.cancel_scope.cancel()
