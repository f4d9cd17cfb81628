"""The table at the end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from p2pmem_devnet.facts import AssetFacts
from p2pmem_devnet.telling import short

STAGES: Final = ("drafted", "shared", "published", "endorsed", "verified")


def table(assets: Sequence[AssetFacts], peers: Sequence[str]) -> str:
    """What became of each asset, and below it how each peer has it."""
    chain = any(asset.transaction for asset in assets)
    head = ["asset", "statements", "bytes", "root", *(["transaction", "block"] if chain else []), *STAGES]
    rows = [
        [
            asset.name,
            f"{asset.statements:,}",
            f"{asset.content_bytes:,}",
            short(asset.root),
            *([short(asset.transaction) or "-", str(asset.block or "-")] if chain else []),
            *(f"{asset.stages[stage]:.1f} s" if stage in asset.stages else "-" for stage in STAGES),
        ]
        for asset in assets
    ]
    numbers = {"statements", "bytes", "block", *STAGES}
    first = columns(head, rows, [name in numbers for name in head])
    seen = [
        [asset.name, *(f"{it.layer}, {it.shown}" if (it := asset.on.get(peer)) else "-" for peer in peers)]
        for asset in assets
    ]
    if all(len(set(row[1:])) == 1 for row in seen):
        together = [[row[0], row[1]] for row in seen]
        return first + "\n\n" + columns(["asset", f"on all {len(peers)} peers"], together, [False, False])
    return first + "\n\n" + columns(["asset", *peers], seen, [False] * (len(peers) + 1))


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> str:
    """Words in columns under a line; numbers to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    rule = "  ".join("─" * width for width in widths)
    return "\n".join(["  " + text for text in (line(head), rule, *map(line, rows))])
