"""Which nonce the next transaction of a sender takes.

The chain knows what it has seen; this object knows what was promised since. A nonce is reserved when a transaction is
prepared, and free again when the chain has counted past it or when the transaction is given up. The lowest free one is
taken: a gap would hold up everything behind it.

A reservation lives in memory only. After a restart the owner of a stored transaction sends it again, which reserves
its nonce (`adopt`); should another have taken it meanwhile, one of the two is mined and the other is found REPLACED.
"""

from __future__ import annotations

from p2pmem_protocol.errors import MisuseError

RESERVED_MAX = 64


class Nonces:
    """Not safe against a count that is older than one already given; ask for the count and take in one go."""

    def __init__(self) -> None:
        self._reserved: set[int] = set()

    def __len__(self) -> int:
        return len(self._reserved)

    def take(self, count_pending: int) -> int:
        """Reserve and return the lowest nonce that neither the chain nor anybody here has."""
        self._reserved = {nonce for nonce in self._reserved if nonce >= count_pending}
        if len(self._reserved) >= RESERVED_MAX:
            raise MisuseError(
                f"{RESERVED_MAX} transactions are prepared and not yet seen by the chain: send or release some first"
            )
        nonce = count_pending
        while nonce in self._reserved:
            nonce += 1
        self._reserved.add(nonce)
        assert count_pending <= nonce < count_pending + RESERVED_MAX
        return nonce

    def adopt(self, nonce: int) -> None:
        """Count a nonce as taken: its transaction was prepared earlier, maybe by an earlier process."""
        if len(self._reserved) < RESERVED_MAX:
            self._reserved.add(nonce)

    def release(self, nonce: int) -> None:
        """Make a nonce free again. Harmless if it is not reserved."""
        self._reserved.discard(nonce)
