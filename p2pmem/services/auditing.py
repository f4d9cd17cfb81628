"""What is audited beside the ledger's own changes: who was given what."""

from __future__ import annotations

from p2pmem.face import RecallAnswer
from p2pmem.ledger import audit
from p2pmem.ledger.ledger import Ledger


class Auditing:
    """Writes audit lines that belong to no other change. An answer waits until its line is on disk."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def recalled(self, question: str, answer: RecallAnswer) -> None:
        """A question was answered; the line joins the next group commit."""
        given = [hit.version.reference if hit.version is not None else "draft" for hit in answer.hits]
        payload = f"{question}\n" + "\n".join(given)
        now_ms = self._ledger.clock.now_ms()
        await self._ledger.database.write(
            lambda connection: audit.append(connection, now_ms, "recall", payload, self._ledger.random_bytes)
        )
