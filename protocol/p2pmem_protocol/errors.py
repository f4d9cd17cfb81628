"""The four ways in which something can be wrong, and the codes of refusal.

* `MisuseError`: our own caller asked for something that cannot be. Nothing happened.
* `RefusedError`: remote bytes were not accepted. It carries a `Reason`; the reason says whether the sender is to blame.
* `OutsideError`: the world outside (disk, chain, network) did not do its part. Trying again may help.
* `BugError`: something that this code promised does not hold. Never caught to go on.

Every message says what, where, and what to do about it.
"""

from __future__ import annotations

from enum import Enum, IntEnum, unique
from typing import Final

_UNITS: Final = ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1_000, "s"))


def counted(number: int, word: str) -> str:
    """For messages: `1 verifier`, `2 verifiers`."""
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def lasting(duration_ms: int) -> str:
    """For messages: `7 days`, `1.5 hours`, `30 s`, in the largest unit that is not over it."""
    for unit_ms, unit in _UNITS:
        if duration_ms >= unit_ms:
            number = f"{duration_ms / unit_ms:.3g}"
            return f"{number} {unit}" if unit == "s" or number != "1" else f"1 {unit.removesuffix('s')}"
    return f"{duration_ms} ms"


class P2pmemError(Exception):
    """Base of every error that this project raises on purpose."""


class MisuseError(P2pmemError):
    """A local caller asked for something that cannot be done as asked. Nothing was changed."""


class OutsideError(P2pmemError):
    """Disk, chain or network failed us. What was asked may be asked again."""


class BugError(P2pmemError):
    """A promise of this code is broken. Please report it."""


@unique
class Penalty(Enum):
    """What a refusal means for who sent the bytes.

    Only bytes that are wrong whatever the time, the roster and the quota are held against the sender: an honest relay
    that is one roster behind must not suffer for it.
    """

    NONE = "none"
    CLOSE = "close"


@unique
class Reason(IntEnum):
    """Why remote bytes were refused. The numbers are part of the protocol and never reused.

    1 to 99 are wrong for everybody and for ever, so the sender is to blame; from 100 on, the answer depends on the
    roster, the time, a quota or on what is held, and nobody is blamed.
    """

    # Bytes
    OVERSIZE = 1
    NOT_CBOR = 2
    NOT_DETERMINISTIC = 3
    DUPLICATE_KEY = 4
    TRAILING_BYTES = 5
    TAG = 6
    FLOAT = 7
    INDEFINITE_LENGTH = 8
    TOO_DEEP = 9
    BIG_INTEGER = 10
    BAD_TEXT = 11
    # Shape
    BAD_SHAPE = 20
    BAD_FIELD = 21
    BAD_NAME = 22
    BAD_VERSION = 23
    BAD_LIFE = 24
    # Signatures
    BAD_SIGNATURE = 30
    WRONG_SIGNER = 31
    # Content
    CONTENT_NOT_CANONICAL = 40
    CONTENT_TOO_DEEP = 41
    CONTENT_OVER_BUDGET = 42
    CONTENT_RESERVED_PREDICATE = 43
    CONTENT_ROOT_MISMATCH = 44
    CONTENT_HASH_MISMATCH = 45
    CONTENT_EMPTY = 46
    CONTENT_NOT_ATTACHED_RIGHT = 47
    # Conversation
    BAD_FRAME = 60
    NOT_SPOKEN = 61
    WRONG_NETWORK = 62
    BAD_RECONCILIATION = 63
    # Depends on where and when; nobody is blamed
    UNKNOWN_KIND = 100
    UNKNOWN_GRAPH = 101
    NO_HEAD = 102
    NOT_LISTED = 103
    EXPIRED = 104
    FROM_THE_FUTURE = 105
    LIFE_TOO_LONG = 106
    OVER_QUOTA = 107
    DUPLICATE = 108
    SUBJECT_NOT_HELD = 109
    WRONG_QUORUM = 110
    REVOKED = 111
    ERASED = 112
    NOT_KEPT = 113
    SUPERSEDED = 114
    PARENT_NOT_HELD = 115
    CLOCK_APART = 116
    PARTIAL = 117
    NOT_DECIDABLE = 118
    TOO_MANY = 119
    CREDENTIAL_ENDED = 120

    @property
    def penalty(self) -> Penalty:
        """Whether the sender is held to account for it."""
        return Penalty.CLOSE if self < 100 else Penalty.NONE


class RefusedError(P2pmemError):
    """Remote bytes were refused.

    `reason` is stable and goes on the wire and into counters; the text is for people and may change. The text never
    holds content of the refused bytes beyond a name or a number.
    """

    def __init__(self, reason: Reason, text: str) -> None:
        super().__init__(f"{reason.name.lower().replace('_', '-')}: {text}")
        self.reason = reason

    @property
    def penalty(self) -> Penalty:
        return self.reason.penalty
