"""Answers that are being sent: what a node holds of them for all who do not read is bounded.

A message of an answer is up to 256 KiB and is held until its stream has taken it. Whoever asks on all his streams and
reads on none makes a node hold as many, and peers cost nothing. Where all together are too much, one is given up: of
the context graph whose members hold most (all strangers are as one), there of the account that holds most, the oldest.
So who reads his answers, or holds few, loses none to those who do not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field

import trio

from p2pmem.net.seam import PeerId, Stream, StreamClosedError


@dataclass(eq=False, slots=True)
class _Answer:
    peer: PeerId
    size_bytes: int
    given_up: trio.CancelScope = field(default_factory=trio.CancelScope)


class WaitingAnswers:
    """All that is being sent now, the oldest first."""

    def __init__(
        self,
        bytes_max: int,
        *,
        account_of: Callable[[PeerId], str],
        graphs_of: Callable[[PeerId], Collection[Hashable]],
        refuse: Callable[[str, str, PeerId], None],
    ) -> None:
        """`account_of` says who holds what is sent to a peer, `graphs_of` in which graphs it is a member's node, none
        for a stranger; `refuse` counts a refusal and says it (`Network.refuse`)."""
        self._bytes_max = bytes_max
        self._account_of, self._graphs_of, self._refuse = account_of, graphs_of, refuse
        self._answers: dict[_Answer, None] = {}
        self._bytes = 0

    async def send(self, stream: Stream, said: bytes) -> None:
        """`Stream.send_all`. Raises `StreamClosedError`, too, when this is given up, or cannot be held at all; the
        stream is reset then."""
        answer = _Answer(stream.peer, len(said))
        self._answers[answer] = None
        self._bytes += answer.size_bytes
        try:
            while self._bytes > self._bytes_max:
                self._give_one_up()
            with answer.given_up:
                await stream.send_all(said)
        finally:
            self._forget(answer)
        if answer.given_up.cancelled_caught:
            raise StreamClosedError(f"{stream.peer} reads too little of what is sent to it")

    def _give_one_up(self) -> None:
        """Never empty when called: somebody has too much."""
        peers = {answer.peer for answer in self._answers}
        accounts = {peer: self._account_of(peer) for peer in peers}
        graphs = {peer: self._graphs_of(peer) or (None,) for peer in peers}
        of_graph, of_account = Counter[Hashable](), Counter[str]()
        for answer in self._answers:
            of_account[accounts[answer.peer]] += answer.size_bytes
            for graph in graphs[answer.peer]:
                of_graph[graph] += answer.size_bytes

        def rank(answer: _Answer) -> tuple[int, int]:
            """Who is in several graphs counts in the one that holds least."""
            peer = answer.peer
            return min(of_graph[graph] for graph in graphs[peer]), of_account[accounts[peer]]

        goes = max(self._answers, key=rank)  # of equal ones the first, which is the oldest
        self._forget(goes)
        goes.given_up.cancel()
        self._refuse("sync.refused", "answers-waiting", goes.peer)

    def _forget(self, answer: _Answer) -> None:
        if answer in self._answers:
            del self._answers[answer]
            self._bytes -= answer.size_bytes
