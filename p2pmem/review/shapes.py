"""The policy `shacl`: content must conform to a shapes graph, which is itself a knowledge asset.

`review.shapes` names one version, `<address>/<name>@<version>[:<seal>]`, in the context graph of the proposal: its
bytes are under a seal, so that everybody who is told which version was used can validate again. Validation runs in a
process of its own within limits of memory, processor time and time. Source: SHACL, W3C Recommendation of 20 July 2017.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError, OutsideError
from p2pmem_protocol.evidence import Decision, Method
from p2pmem_protocol.names import ZERO_ADDRESS, hex_id
from p2pmem_protocol.seal import Seal
from p2pmem_protocol.view import asset_view

from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.references import Reference, full_reference, parse_reference
from p2pmem.review.command import run_bounded
from p2pmem.review.judging import Judgement, bounded_reason

MEMORY_BYTES_MAX: Final = 1024 * 1024 * 1024
AT_A_TIME: Final = 1


class ShapesJudge:
    """Validates each proposal; the report is the reason, and names the shapes with their root."""

    def __init__(self, ledger: Ledger, shapes: str, timeout_s: float) -> None:
        """Raises `MisuseError` when `shapes` names no version, or the validator is not installed."""
        if importlib.util.find_spec("pyshacl") is None:
            raise MisuseError("review.policy is shacl, and pyshacl is not installed: install p2pmem[shacl]")
        self._ledger = ledger
        self._shapes = shapes
        self._named = _parse(shapes)
        self._timeout_s = timeout_s
        self._slots = trio.CapacityLimiter(AT_A_TIME)

    async def judge(self, graph: LedgerGraph, seal: Seal, content: bytes) -> Judgement:
        shapes, root = self._held_shapes(graph)
        async with self._slots:
            conforms, report = await validate(shapes, content, self._timeout_s)
        named = f"{self._shapes}, root {hex_id(root)}"
        if conforms:
            return Judgement(Decision.APPROVE, Method.SHACL, f"conforms to {named}")
        return Judgement(Decision.REJECT, Method.SHACL, bounded_reason(f"does not conform to {named}\n{report}"))

    def _held_shapes(self, graph: LedgerGraph) -> tuple[bytes, bytes]:
        """Their bytes and root."""
        view = asset_view(graph.set, self._named.key, self._ledger.clock.now_ms())
        found = [each for each in view.visible() if self._named.names(each.key)]
        if len(found) > 1:
            one_of = " or ".join(full_reference(each.key) for each in found)
            raise OutsideError(f"the shapes {self._shapes} stand for {len(found)} seals in conflict: name {one_of}")
        content = self._ledger.content(graph, found[0].content_hash) if found else None
        if content is None:
            raise OutsideError(f"the shapes {self._shapes} are not in {graph.name} here: share them, or wait for them")
        return content, found[0].key.root


async def validate(shapes: bytes, content: bytes, timeout_s: float) -> tuple[bool, str]:
    """Whether `content` conforms, and the report. Raises `OutsideError` when the validator gives no answer."""
    command = [
        sys.executable,
        "-I",
        "-S",
        str(Path(__file__).with_name("shacl_worker.py")),
        str(MEMORY_BYTES_MAX),
        str(max(1, round(timeout_s))),
        *[path for path in sys.path if path.endswith("-packages")],
    ]
    code, output = await run_bounded(command, len(shapes).to_bytes(8) + shapes + content, {}, timeout_s)
    try:
        answer = json.loads(output)
        return bool(answer["conforms"]), str(answer["report"])
    except (ValueError, KeyError, TypeError):
        raise OutsideError(
            f"the validator ended with code {code} and no answer: the shapes are none, or too hard for its limits"
        ) from None


def _parse(shapes: str) -> Reference:
    if "/" not in shapes or "@" not in shapes:
        raise MisuseError(f"review.shapes is {shapes!r}: <address>/<name>@<version> is needed, with its version")
    return parse_reference(shapes, ZERO_ADDRESS)
