"""Whether the chain of the settings answers, so that a person learns of it from the node and not from what waits."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import trio
from p2pmem_protocol.errors import OutsideError

from p2pmem.chain.errors import WrongChainError, shown_url
from p2pmem.ledger.ledger import Ledger
from p2pmem.services.chain_facts import ChainFacts

if TYPE_CHECKING:
    from p2pmem.chain.seam import Chain

log = logging.getLogger(__name__)

LOOK_S: Final = 10.0
"""Seconds between two looks; one asks for the newest block, and at first whether it is the right chain."""


class ChainHealth:
    """Keeps `ChainFacts.trouble` true. `run` it in the node's nursery."""

    def __init__(self, ledger: Ledger, facts: ChainFacts, chain: Chain, url: str) -> None:
        self._ledger = ledger
        self._facts = facts
        self._chain = chain
        self._shown = shown_url(url)

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await self.look()
            await trio.sleep(LOOK_S)

    async def look(self) -> None:
        """One look. What it finds is in `ChainFacts.trouble` afterwards, and in the log where it is news."""
        try:
            await self._chain.check()
            await self._chain.head()
        except WrongChainError as error:
            self._note(f"the chain at {self._shown} is not the one to ask: {error}", "chain.wrong", str(error))
        except OutsideError as error:
            if not self._facts.trouble:
                since = datetime.fromtimestamp(self._ledger.clock.now_ms() / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
                text = f"the chain at {self._shown} does not answer since {since}, and what needs it waits ({error})"
                self._note(text, "chain.silent", str(error))
        else:
            self._note("", "chain.answers", "")

    def _note(self, trouble: str, event: str, why: str) -> None:
        if trouble == self._facts.trouble:
            return
        self._facts.trouble = trouble
        log.warning(event, extra={"chain": self._shown, **({"why": why} if why else {})})
        self._ledger.wake()
