"""What a judge is, and which one a node has.

    auto     says that the bytes match root and seal, and no more
    shacl    validates against a shapes graph; the report is the reason
    exec     asks a command of the operator's; its output is the reason
    manual   waits for a person: there is no judge

The method is signed with the verdict, so a reader can tell "three times auto" from one person who read it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision, Method
from p2pmem_protocol.limits import REASON_CHARS_MAX

if TYPE_CHECKING:
    from p2pmem_protocol.seal import Seal

    from p2pmem.ledger.graph import LedgerGraph
    from p2pmem.ledger.ledger import Ledger

POLICIES: Final = ("auto", "manual", "shacl", "exec")
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """A node's policy. `shapes` is for shacl, `command` for exec; both are bounded by `timeout_s`."""

    policy: str = "auto"
    shapes: str = ""
    command: str = ""
    timeout_s: float = TIMEOUT_S

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise MisuseError(f"review.policy is {self.policy!r}: {', '.join(POLICIES)} are possible")
        if self.policy == "shacl" and not self.shapes:
            raise MisuseError("the policy shacl needs review.shapes: <address>/<name>@<version> of a shapes graph")
        if self.policy == "exec" and not self.command:
            raise MisuseError("the policy exec needs review.command: a command that reads N-Quads and says what it is")
        if not 0 < self.timeout_s <= 3_600:
            raise MisuseError(f"review.timeout_s is {self.timeout_s}: above 0, and at most an hour")


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a verdict will say."""

    decision: Decision
    method: Method
    reason: str


class Judge(Protocol):
    """Decides about content that is what was sealed."""

    async def judge(self, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        """Raises `OutsideError` when it cannot be decided now; it is tried again as long as a verdict is asked for.
        Cancelled, nothing was decided."""


AGREED: Final = Judgement(Decision.APPROVE, Method.AUTO, "content, root and seal agree")


class AutoJudge:
    """Approves: the bytes agree with root and seal, and nobody looked at what they say."""

    async def judge(self, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        return AGREED


@asynccontextmanager
async def open_judge(settings: ReviewSettings, ledger: Ledger) -> AsyncIterator[Judge | None]:
    """The judge of a policy; None for `manual`."""
    match settings.policy:
        case "auto":
            yield AutoJudge()
        case "exec":
            from p2pmem.review.command import CommandJudge

            yield CommandJudge(settings.command, settings.timeout_s)
        case "shacl":
            from p2pmem.review.shapes import ShapesJudge

            yield ShapesJudge(ledger, settings.shapes, settings.timeout_s)
        case _:
            yield None


def bounded_reason(text: str) -> str:
    """A reason as it may be signed: one line after the other, no control characters, cut where it must end."""
    clean = "".join(it if it.isprintable() or it == "\n" else " " for it in text).strip()
    return clean if len(clean) <= REASON_CHARS_MAX else clean[: REASON_CHARS_MAX - 1] + "…"
