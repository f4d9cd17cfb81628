"""Who is there in `MemoryFace`, and values that it makes."""

from __future__ import annotations

from p2pmem.face import (
    AnchorView,
    Layer,
    SignerView,
    TrustView,
    VersionView,
)

# AGENT, NOW_MS, OTHER, PEER, ROOT, SEAL, make_version, proof_of

AGENT = "0x" + "a1" * 20
OTHER = "0x" + "b2" * 20
PEER = "12D3KooWThatIsUs"
NOW_MS = 1_800_000_000_000
ENDED = {"succeeded", "failed", "cancelled", "outcome_unknown"}
ROOT = "0x" + "42" * 32
SEAL = "0x" + "5e" * 32


def proof_of(lines: list[str], line: str, reference: str) -> dict[str, object]:
    """A real proof, as the node makes them."""
    from p2pmem_protocol.merkle import Tree

    raw = sorted({it.encode() for it in lines})
    tree = Tree.of_lines(raw)
    proof = tree.prove(raw.index(line.encode()))
    return {
        "reference": reference,
        "statement": line,
        "seal": SEAL,
        "root": "0x" + tree.root.hex(),
        "leaves": tree.leaf_count,
        "leaf": "0x" + proof.leaf.hex(),
        "proof": ["0x" + it.hex() for it in proof.hashes],
    }


def make_version(graph: str, reference: str) -> VersionView:
    author, _, name = reference.partition("@")[0].partition("/")
    signer = SignerView(OTHER, "Bob", "approve", "manual", "I \x1b[2Jread it", True)
    return VersionView(
        graph=graph,
        reference=reference,
        iri=f"did:dkg:context-graph:{graph}/_shared_memory/{author}/{name}",
        author=author,
        principal=author,
        author_label="me",
        name=name,
        version=1,
        root=ROOT,
        seal=SEAL,
        statements=2,
        subgraph="",
        layer=Layer.SHARED,
        expires_ms=NOW_MS + 3_600_000,
        issued_ms=NOW_MS,
        held=True,
        current=True,
        retracted=False,
        newer_unverified=False,
        copies=2,
        trust=TrustView("PartiallyVerified", 3, 4, 1, 0, 0, ("manual",), (signer,), "2 more approvals", False),
        anchor=AnchorView("claimed", 31_337, "0x" + "cc" * 20, "0x" + "dd" * 32, 7, "0x" + "ee" * 32),
    )
