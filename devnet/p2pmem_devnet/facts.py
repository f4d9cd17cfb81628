"""What became of each asset: how it stands on each peer, and whether all peers agree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from p2pmem_protocol.content import check_canonical
from p2pmem_protocol.errors import RefusedError
from p2pmem_protocol.names import hex_id
from p2pmem_protocol.trust import Trust

from p2pmem.face import Face, VersionView


@dataclass(frozen=True, slots=True)
class OnPeer:
    """One asset as one peer has it. `root` is recomputed here from the bytes that the peer gave."""

    layer: str
    trust: str
    shown: str
    root: str
    statement: dict[str, object]
    problem: str = ""


@dataclass(slots=True)
class AssetFacts:
    """One asset. `stages` says when each stage was reached, in seconds since the beginning."""

    name: str
    reference: str = ""
    root: str = ""
    statements: int = 0
    content_bytes: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    transaction: str = ""
    block: int = 0
    on: dict[str, OnPeer] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Why peers do not agree on this asset; empty when they do."""
        found = [f"{peer}: {it.problem}" for peer, it in self.on.items() if it.problem]
        seen = list(self.on.values())
        for what, values in (
            ("layer", [it.layer for it in seen]),
            ("trust", [it.shown for it in seen]),
            ("root", [it.root for it in seen] + [self.root]),
            ("certificate", [repr(sorted(it.statement.items())) for it in seen]),
        ):
            if len(set(values)) > 1:
                found.append(f"not all peers have the same {what}")
        if any(it.trust != Trust.CONSENSUS_VERIFIED.word for it in seen):
            found.append("it is not ConsensusVerified everywhere")
        return found


def trust_in_words(version: VersionView) -> str:
    """`ConsensusVerified 3 of 4`, with the methods behind it."""
    trust = version.trust
    if trust.approvals == 0:
        return trust.level
    return f"{trust.level} {trust.approvals} of {trust.n}"


async def look(face: Face, graph: str, reference: str) -> OnPeer:
    """How one peer has an asset. Errors of the face are raised."""
    version = await face.version(graph, reference)
    data = await face.content(graph, reference)
    problem = ""
    try:
        root = hex_id(check_canonical(data).root)
    except RefusedError as refused:
        root, problem = "", f"its bytes are not canonical: {refused}"
    if root != version.root:
        problem = problem or f"its bytes have the root {root}, it says {version.root}"
    verified = version.trust.level == Trust.CONSENSUS_VERIFIED.word
    statement = (await face.certificate(graph, reference)).statement if verified else {}
    return OnPeer(version.layer.value, version.trust.level, trust_in_words(version), root, statement, problem)


def all_problems(assets: Iterable[AssetFacts]) -> list[str]:
    return [f"{asset.name}: {problem}" for asset in assets for problem in asset.problems()]
