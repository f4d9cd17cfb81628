"""From a reference that a person or an agent wrote to the version that is meant."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Endorse
from p2pmem_protocol.kinds import Kind
from p2pmem_protocol.names import ZERO_ADDRESS, Address, AssetKey, VersionKey, hex_id
from p2pmem_protocol.records import AckRecord, EvidenceRecord, RetractRecord, SealedRecord
from p2pmem_protocol.view import AssetView, VersionView, asset_view

from p2pmem.face import NotFoundError
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.references import full_reference, parse_reference, parse_version_of
from p2pmem.services.placing import newest_best_first

Found: TypeAlias = tuple[AssetView, VersionView]
# Of how many authors' assets of one name, all gone, a refusal tells.
GONE_SHOWN: Final = 3


def find_version(graph: LedgerGraph, reference: str, own: Address, now_ms: int) -> Found:
    """The version named, or the newest that is visible; without an author, of an asset of one's own.

    Raises `NotFoundError`, which tells whose the name is where it is somebody else's; a `MisuseError` for a beginning
    that two seals have.
    """
    named = parse_reference(reference, own)
    key, number = named.key, named.number
    asset = asset_view(graph.set, key, now_ms)
    chosen = _choose(asset, number, named.seal)
    if chosen is not None:
        return asset, chosen
    if named.seal and (sealed := [it for it in asset.versions if it.key.version == number]):
        raise NotFoundError(f"no seal of {key}@{number} begins with {named.seal}; known here: {_listed(sealed)}")
    if number is not None and asset.versions:
        known = ", ".join(f"@{it}" for it in sorted({version.key.version for version in asset.versions}))
        raise NotFoundError(f"{key} has no version {number} in {graph.name}; known of it here: {known}")
    by_name = [] if "/" in reference else _of_anybody(graph, key.name, now_ms)
    others = [it for it in by_name if it[0].key != key]
    if others:
        raise NotFoundError(_of_others(graph, key.name, number, others))
    gone = [key] if asset.versions else [] if "/" in reference else assets_named(graph, key.name)
    if gone:
        told = " or ".join(f"`p2pmem history {it}`" for it in gone[:GONE_SHOWN])
        raise NotFoundError(
            f"{reference} is no longer in {graph.name}: it has expired or was retracted; {told} tells more"
        )
    raise NotFoundError(f"{reference} is not in {graph.name}: it has expired, was retracted, or never came")


def find_readable(graph: LedgerGraph, reference: str, own: Address, now_ms: int) -> Found:
    """As `find_version`; a name without an author is also that of the only author who has it.

    For reading alone: what is signed is about the words of an author who was named.
    """
    if "/" not in reference:
        named = parse_reference(reference, own)
        if _choose(asset_view(graph.set, named.key, now_ms), named.number, named.seal) is None:
            others = _of_anybody(graph, named.key.name, now_ms)
            if len(others) == 1:
                return find_version(graph, f"{others[0][0].key.author}/{reference.strip()}", own, now_ms)
    return find_version(graph, reference, own, now_ms)


def find_other(asset: AssetView, other: str, but: VersionKey | None = None) -> VersionView:
    """The version of an asset that somebody names beside another one, `but`, to compare them."""
    named = parse_version_of(asset.key, other)
    found = _choose(asset, named.number, named.seal, but)
    if found is None:
        raise NotFoundError(f"no version {other} of {asset.key} is held here to compare with")
    return found


def _of_others(graph: LedgerGraph, name: str, number: int | None, others: list[Found]) -> str:
    """What to say of a name that is no asset of one's own, and one of others."""
    start = f"you have no {name} in {graph.name}"
    named = [(it, "" if number is None else f"@{number}") for asset, _ in others if (it := _choose(asset, number))]
    if not named:
        start += f", and nobody has a version {number} of one"
        named = [(it, f"@{it.key.version}") for _, it in others]
    shown = ", ".join(f"{it.key.asset}{at} ({graph.label_of(it.key.author) or 'no label'})" for it, at in named)
    return f"{start}; name it with its author: {shown}"


def check_one_seal(asset: AssetView, view: VersionView, reference: str) -> None:
    """Nobody signs for what he was not shown. Raises `MisuseError` where the author let go several seals as a version,
    and `reference`, by which it was named, does not say which."""
    others = [it for it in asset.visible() if it.key.version == view.key.version]
    if len(others) > 1 and not names_seal(reference):
        raise MisuseError(
            f"{view.key.asset}@{view.key.version} stands for {len(others)} seals in conflict, so it cannot be told "
            f"which of them you were shown. Name the one that you mean: {_listed(others)}"
        )


def reference_in(graph: LedgerGraph, key: VersionKey) -> str:
    """A version by name, with its seal where another one is known of that number."""
    asset = graph.set.asset(key.asset)
    others = [it for it in asset.numbered(key.version) if it.key != key] if asset is not None else []
    return full_reference(key) if others else f"{key.asset}@{key.version}"


def said_in(graph: LedgerGraph, item_id: bytes) -> str:
    """What a listed id is of: of which kind, about which version, and by whom."""
    record = graph.set.record(item_id)
    if record is None:
        return f"{hex_id(item_id)}, which is not held here"
    label = graph.label_of(record.author)
    by = f"by {record.author}{f' ({label})' if label else ''}"
    match record:
        case SealedRecord():
            return f"{record.kind.word} of {full_reference(record.key)} {by}"
        case EvidenceRecord():
            return f"{record.decision.name.lower()} of {full_reference(record.subject)} {by}"
        case RetractRecord():
            return f"retract of {record.asset}@{record.version} {by}"
        case AckRecord():
            return f"promise to keep the root {hex_id(record.root)} {by}"
    return f"{record.kind.word} {hex_id(item_id)} {by}"


def names_seal(reference: str) -> bool:
    return parse_reference(reference, ZERO_ADDRESS).seal != ""


def _listed(versions: Iterable[VersionView]) -> str:
    """Versions by names that only they have, with what else may tell them apart."""
    return " or ".join(
        f"{full_reference(it.key)} (root {hex_id(it.key.root)[:10]}, "
        f"{f'sub-graph {it.subgraph}' if it.subgraph else 'no sub-graph'}, {it.trust.level.word})"
        for it in versions
    )


def endorsed_by(graph: LedgerGraph, asset: AssetView, view: VersionView, agent: Address, reference: str) -> VersionView:
    """Of seals in conflict the one that `agent` endorses, for taking that back; `view` where it endorses none, or where
    `reference` says which. Raises `MisuseError` where it endorses several and `reference` does not say which."""
    if names_seal(reference):
        return view
    found = [it for it in asset.versions if it.key.version == view.key.version and _endorses(graph, it.key, agent)]
    if len(found) > 1:
        raise MisuseError(
            f"{agent} endorses {len(found)} seals of that version. Name the one that you mean: {_listed(found)}"
        )
    return found[0] if found else view


def _endorses(graph: LedgerGraph, key: VersionKey, agent: Address) -> bool:
    version = graph.set.version(key)
    said = version.evidence_in_set() if version is not None else ()
    decisions = {it.decision for it in said if it.kind is Kind.ENDORSE and it.author == agent}
    return decisions == {Endorse.ENDORSE}


def _choose(asset: AssetView, number: int | None, seal: str = "", but: VersionKey | None = None) -> VersionView | None:
    """Of seals in conflict the one that is named, or the best attested: what its author says besides never stands under
    its name. `but` is not looked at."""
    if number is None:
        number = next((it.key.version for it in asset.visible()), None)
    numbered = (it for it in asset.versions if it.key.version == number and it.key != but)
    found = [it for it in numbered if hex_id(it.key.seal).startswith(seal)]
    if seal and len(found) > 1:
        raise MisuseError(f"{len(found)} seals of {asset.key}@{number} begin with {seal}: {_listed(found)}")
    return min(found, key=newest_best_first, default=None)


def assets_named(graph: LedgerGraph, name: str) -> list[AssetKey]:
    """Every asset of that name, of whichever author, also one that has expired or was retracted."""
    return sorted(key for key in graph.set.assets() if key.name == name)


def _of_anybody(graph: LedgerGraph, name: str, now_ms: int) -> list[Found]:
    """The newest of every asset of that name that is visible."""
    assets = (asset_view(graph.set, key, now_ms) for key in assets_named(graph, name))
    return [(asset, newest) for asset in assets if (newest := _choose(asset, None)) is not None]
