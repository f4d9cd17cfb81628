"""Who is to be asked for what was announced: the first announcer, after a second the next, at most six times.

One request is in flight per id. An announcement costs its sender nothing and us a row and a question, so both are
bounded: by rows in all, and by rows that one member was the first to open.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from math import inf
from typing import Final, NamedTuple

ASK_AGAIN_MS: Final = 1_000
ASKS_MAX: Final = 6
ARRIVING_MS: Final = 10_000
"""How long an envelope that came may take to be admitted before it is asked for again."""


class Question(NamedTuple):
    """Ask `peer` for the envelope whose id begins with `short_id`."""

    peer: str
    short_id: bytes


class GivenUp(NamedTuple):
    """Six questions brought nothing; `peer` announced it first among those still here."""

    peer: str
    short_id: bytes


@dataclass(slots=True)
class _Wanted:
    opened_by: str
    announcers: list[str]
    next_index: int = 0
    asked: int = 0
    asked_peer: str | None = None
    arriving_from: str | None = None
    again_ms: int = 0


class Asking:
    """The table of what was announced and is not held. All methods that return questions count them as asked."""

    def __init__(self, *, rows: int = 20_000, rows_of_one: int = 4_096) -> None:
        self._rows_max = rows
        self._rows_of_one_max = rows_of_one
        self._wanted: dict[bytes, _Wanted] = {}
        self._rows_opened: dict[str, int] = {}
        # (when to ask again, id); a row whose time has moved leaves a stale entry behind, which is passed over.
        self._timers: list[tuple[int, bytes]] = []

    def __len__(self) -> int:
        return len(self._wanted)

    def __contains__(self, short_id: bytes) -> bool:
        return short_id in self._wanted

    def has_room(self, short_id: bytes, peer: str) -> bool:
        """Whether an announcement by `peer` can be noted."""
        return short_id in self._wanted or (
            len(self._wanted) < self._rows_max and self._rows_opened.get(peer, 0) < self._rows_of_one_max
        )

    def announced(self, short_id: bytes, peer: str, now_ms: int) -> Question | None:
        """`peer` has it. The question to put at once, if this is the first word of it. Ask `has_room` before."""
        wanted = self._wanted.get(short_id)
        if wanted is not None:
            if peer not in wanted.announcers:
                wanted.announcers.append(peer)
            return None
        assert self.has_room(short_id, peer)
        self._wanted[short_id] = _Wanted(peer, [peer])
        self._rows_opened[peer] = self._rows_opened.get(peer, 0) + 1
        return self._ask_next(short_id, now_ms)

    def arriving(self, short_id: bytes, peer: str, now_ms: int) -> None:
        """It came from `peer` and is being looked at: do not ask meanwhile."""
        wanted = self._wanted.get(short_id)
        if wanted is not None:
            if peer not in wanted.announcers:
                wanted.announcers.append(peer)
            if wanted.arriving_from is None:
                wanted.arriving_from = peer
                self._set_timer(short_id, wanted, now_ms + ARRIVING_MS)

    def settled(self, short_id: bytes) -> tuple[str, ...]:
        """It is held, or not wanted any more. Who had announced it."""
        wanted = self._wanted.pop(short_id, None)
        if wanted is None:
            return ()
        self._close(wanted)
        return tuple(wanted.announcers)

    def failed(self, short_id: bytes, peer: str, now_ms: int) -> Question | None:
        """What `peer` gave was no good: he is not asked again; the question to the next, if there is one."""
        wanted = self._wanted.get(short_id)
        return None if wanted is None else self._without(short_id, wanted, peer, now_ms)

    def left(self, peer: str, now_ms: int) -> list[Question]:
        """`peer` is gone: what was asked of him is asked of the next one at once."""
        questions = []
        for short_id, wanted in list(self._wanted.items()):
            if peer in wanted.announcers:
                question = self._without(short_id, wanted, peer, now_ms)
                if question is not None:
                    questions.append(question)
        self._rows_opened.pop(peer, None)
        return questions

    def due(self, now_ms: int) -> list[Question | GivenUp]:
        """What is to be asked again by now, and what has been asked for often enough."""
        out: list[Question | GivenUp] = []
        while self._timers and self._timers[0][0] <= now_ms:
            again_ms, short_id = heapq.heappop(self._timers)
            wanted = self._wanted.get(short_id)
            if wanted is None or wanted.again_ms != again_ms:
                continue
            if wanted.asked >= ASKS_MAX:
                del self._wanted[short_id]
                self._close(wanted)
                out.append(GivenUp(wanted.announcers[0], short_id))
            else:
                out.append(self._ask_next(short_id, now_ms))
        return out

    def next_ms(self) -> float:
        """When `due` has something next; never too late, at times too early."""
        return self._timers[0][0] if self._timers else inf

    def _ask_next(self, short_id: bytes, now_ms: int) -> Question:
        wanted = self._wanted[short_id]
        index = wanted.next_index if wanted.next_index < len(wanted.announcers) else 0
        peer = wanted.announcers[index]
        wanted.next_index = index + 1
        wanted.asked += 1
        wanted.arriving_from = None
        wanted.asked_peer = peer
        self._set_timer(short_id, wanted, now_ms + ASK_AGAIN_MS)
        return Question(peer, short_id)

    def _without(self, short_id: bytes, wanted: _Wanted, peer: str, now_ms: int) -> Question | None:
        if peer in wanted.announcers:
            index = wanted.announcers.index(peer)
            del wanted.announcers[index]
            if index < wanted.next_index:
                wanted.next_index -= 1
        if not wanted.announcers:
            del self._wanted[short_id]
            self._close(wanted)
            return None
        if peer not in (wanted.asked_peer, wanted.arriving_from):
            return None
        if wanted.asked < ASKS_MAX:
            return self._ask_next(short_id, now_ms)
        self._set_timer(short_id, wanted, now_ms)
        return None

    def _set_timer(self, short_id: bytes, wanted: _Wanted, again_ms: int) -> None:
        wanted.again_ms = again_ms
        heapq.heappush(self._timers, (again_ms, short_id))

    def _close(self, wanted: _Wanted) -> None:
        opened = self._rows_opened.get(wanted.opened_by, 0) - 1
        if opened > 0:
            self._rows_opened[wanted.opened_by] = opened
        else:
            self._rows_opened.pop(wanted.opened_by, None)
