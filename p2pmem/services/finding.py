"""From a reference that a person or an agent wrote to the version that is meant."""

from __future__ import annotations

from typing import TypeAlias

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import Address, hex_id
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import NotFoundError
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.services.showing import parse_reference

Found: TypeAlias = tuple[AssetView, VersionView]


def find_version(graph: LedgerGraph, reference: str, own: Address, now_ms: int) -> Found:
    """The version named, or the newest that is visible; without an author, of an asset of one's own.

    Raises `NotFoundError`, which tells whose the name is where it is somebody else's.
    """
    key, number = parse_reference(reference, own)
    asset = asset_view(graph.set, key, now_ms)
    chosen = _choose(asset, number)
    if chosen is not None:
        return asset, chosen
    if number is not None and asset.versions:
        known = ", ".join(f"@{it}" for it in sorted({version.key.version for version in asset.versions}))
        raise NotFoundError(f"{key} has no version {number} in {graph.name}; known of it here: {known}")
    by_name = [] if "/" in reference else _of_anybody(graph, key.name, now_ms)
    others = [it for it in by_name if it[0].key != key]
    if others:
        raise NotFoundError(_of_others(graph, key.name, number, others))
    raise NotFoundError(f"{reference} is not in {graph.name}: it has expired, was retracted, or never came")


def find_readable(graph: LedgerGraph, reference: str, own: Address, now_ms: int) -> Found:
    """As `find_version`; a name without an author is also that of the only author who has it.

    For reading alone: what is signed is about the words of an author who was named.
    """
    if "/" not in reference:
        key, number = parse_reference(reference, own)
        if _choose(asset_view(graph.set, key, now_ms), number) is None:
            others = _of_anybody(graph, key.name, now_ms)
            if len(others) == 1:
                asset, newest = others[0]
                return find_version(graph, f"{newest.key.asset}@{number}" if number else str(asset.key), own, now_ms)
    return find_version(graph, reference, own, now_ms)


def _of_others(graph: LedgerGraph, name: str, number: int | None, others: list[Found]) -> str:
    """What to say of a name that is no asset of one's own, and one of others."""
    start = f"you have no {name} in {graph.name}"
    named = [(it, "" if number is None else f"@{number}") for asset, _ in others if (it := _choose(asset, number))]
    if not named:
        start += f", and nobody has a version {number} of one"
        named = [(it, f"@{it.key.version}") for _, it in others]
    shown = ", ".join(f"{it.key.asset}{at} ({graph.label_of(it.key.author) or 'no label'})" for it, at in named)
    return f"{start}; name it with its author: {shown}"


def check_one_content(asset: AssetView, view: VersionView) -> None:
    """Nobody signs for what he was not shown. Raises `MisuseError` where a version's author let go several contents."""
    roots = [hex_id(it.key.root) for it in asset.visible() if it.key.version == view.key.version]
    if len(roots) > 1:
        raise MisuseError(
            f"{view.key.asset}@{view.key.version} has {len(roots)} contents in conflict, {' and '.join(roots)}, so it "
            "cannot be told which of them you were shown: nothing is signed for one of them by this name"
        )


def endorsed_by(graph: LedgerGraph, asset: AssetView, view: VersionView, agent: Address) -> VersionView:
    """Of contents in conflict the one that `agent` endorsed, for taking that back; `view` where it endorsed none."""
    for it in asset.versions:
        version = graph.set.version(it.key) if it.key.version == view.key.version else None
        said = version.evidence_in_set() if version is not None else ()
        if any(each.kind is Kind.ENDORSE and each.author == agent for each in said):
            return it
    return view


def newest_best_first(it: VersionView) -> tuple[int, bool, int, int, bytes]:
    """To put versions in order: of contents in conflict the best attested comes first."""
    return -it.key.version, not it.is_visible, -it.trust.level, -it.trust.m, it.key.root


def _choose(asset: AssetView, number: int | None) -> VersionView | None:
    """Of contents in conflict the best attested: what its author says besides never stands under its name."""
    if number is None:
        number = next((it.key.version for it in asset.visible()), None)
    found = [it for it in asset.versions if it.key.version == number]
    return min(found, key=newest_best_first, default=None)


def _of_anybody(graph: LedgerGraph, name: str, now_ms: int) -> list[Found]:
    """The newest of every asset of that name that is visible."""
    assets = (asset_view(graph.set, key, now_ms) for key in sorted(graph.set.assets()) if key.name == name)
    return [(asset, newest) for asset in assets if (newest := _choose(asset, None)) is not None]
