"""Values of the face about signatures, trust and history. Import them from `p2pmem.face`."""

from __future__ import annotations

from dataclasses import dataclass

from p2pmem.face_graphs import Difference


@dataclass(frozen=True, slots=True)
class SignerView:
    """One signature behind a version. `method` is empty for endorsements."""

    address: str
    label: str
    decision: str
    method: str
    reason: str
    counts: bool


@dataclass(frozen=True, slots=True)
class TrustView:
    """Who stands behind one version. `level` is always shown with M of N; `missing` says what would raise it."""

    level: str
    m: int
    n: int
    approvals: int
    rejections: int
    endorsements: int
    methods: tuple[str, ...]
    signers: tuple[SignerView, ...]
    missing: str
    conflict: bool


@dataclass(frozen=True, slots=True)
class DiffView:
    """What one version says and another does not, as lines of canonical N-Quads. The newer one may be a draft.

    Blank nodes are named anew in each version, so a line with one may be in both lists and mean the same. `sealed` is
    what else is other in what their author signed: the sub-graph, and in two seals of one version also the rest.
    """

    older: str
    newer: str
    added: tuple[str, ...]
    removed: tuple[str, ...]
    sealed: tuple[Difference, ...] = ()


@dataclass(frozen=True, slots=True)
class RetractView:
    """A version that was taken back. `by_owner`: moderation, by the owner of the graph. `erase`: its bytes go too."""

    version: int
    by: str
    by_owner: bool
    erase: bool
    successor: int | None
    reason: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class HistoryStep:
    """One transition of an asset as this node saw it."""

    version: int
    what: str
    agent: str
    root: str
    seal: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class SignatureView:
    """One kept signature about a version. `kind` is share, publish, endorse, verdict or propose.

    `principal` is for whom it was signed. `ignored` says why it does not count, and is empty when it does.
    """

    id: str
    kind: str
    signer: str
    label: str
    principal: str
    decision: str
    method: str
    reason: str
    quorum: str
    ignored: str
    signature: str
