"""A user's own files, each taken the whole way: drafted, shared, published, endorsed, verified."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust

from p2pmem_devnet.facts import AssetFacts, look
from p2pmem_devnet.fleet import Fleet, NodeProcess, one_error
from p2pmem_devnet.group import Group, finished, found, on_all, result_of, until
from p2pmem_devnet.telling import Teller, all_of, and_list, count

SLUG: Final = "files"
FILES_MAX: Final = 100
AT_ONCE_MAX: Final = 4
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


def read_files(paths: Sequence[Path]) -> dict[str, bytes]:
    """What is in the files, by the asset's name. Raises `MisuseError` for what is no file that could be read."""
    if len(paths) > FILES_MAX:
        raise MisuseError(f"{len(paths)} files: at most {FILES_MAX} at a time")
    found: dict[str, bytes] = {}
    for path in paths:
        if path.is_dir():
            raise MisuseError(f"{path} is a directory: name the RDF files in it")
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise MisuseError(f"there is no file {path}") from None
        except OSError as error:
            raise MisuseError(f"{path} cannot be read: {error.strerror}") from None
        if not data.strip():
            raise MisuseError(f"{path} is empty: there is nothing to share in it")
        found[_name_for(path, found)] = data
    return found


def _name_for(path: Path, taken: dict[str, bytes]) -> str:
    """The file's name, in the letters that the name of an asset may have; its extension tells the format."""
    stem = _NOT_IN_NAMES.sub("-", path.stem).strip("-.") or "file"
    extension = _NOT_IN_NAMES.sub("", path.suffix)
    name, number = stem + extension, 2
    while name in taken:
        name, number = f"{stem}-{number}{extension}", number + 1
    return name


class FilesStory:
    """Takes files the whole way. One `tell` a story."""

    def __init__(self, fleet: Fleet, teller: Teller, files: dict[str, bytes], m: int, *, chain: bool) -> None:
        self._fleet = fleet
        self._teller = teller
        self._files = files
        self._m = m
        self._chain = chain
        self.assets: list[AssetFacts] = []

    async def tell(self) -> list[AssetFacts]:
        """Raises what the first node that is asked raises for a file that is not RDF, and `StoryError`."""
        group = await found(self._fleet, SLUG, self._m, chain=self._chain)
        self._teller.say(
            f"{group.founder.name} founds a gated context graph with {and_list(group.names(group.others))}; "
            f"{self._m} of the {len(group.others)} have to approve."
        )
        self.assets = [AssetFacts(name, content_bytes=0) for name in self._files]
        await self._draft_all(group)
        limit = trio.CapacityLimiter(AT_ONCE_MAX)
        async with one_error(), trio.open_nursery() as nursery:
            for asset in self.assets:
                nursery.start_soon(self._go, group, asset, limit)
        return self.assets

    async def _draft_all(self, group: Group) -> None:
        """First of all, so that a file that is not RDF ends the story before anything is shared."""
        author = group.founder
        for asset in self.assets:
            draft = await author.face.draft(
                group.graph, asset.name, self._files[asset.name], format=None, base=None, subgraph="", replace=False
            )
            asset.reference, asset.statements = draft.reference, draft.statements
            self._mark(asset, "drafted")
        statements = sum(asset.statements for asset in self.assets)
        self._teller.say(
            f"{author.name} drafts {count(len(self.assets), 'file')} with {count(statements, 'statement')}."
        )

    async def _go(self, group: Group, asset: AssetFacts, limit: trio.CapacityLimiter) -> None:
        author, endorser = group.founder.face, group.others[0].face
        async with limit:
            await finished(author, await author.share(group.graph, asset.name, ttl_ms=None))
            await on_all(group.members, lambda node: self._held(group, node, asset))
            asset.root = (await author.version(group.graph, asset.reference)).root
            asset.content_bytes = len(await author.content(group.graph, asset.reference))
            self._mark(asset, "shared")
            published = result_of(await finished(author, await author.publish(group.graph, asset.reference)))
            asset.transaction, asset.block = str(published["transaction"] or ""), int(str(published["block"]))
            self._mark(asset, "published")
            job = await endorser.endorse(group.graph, asset.reference, reason="it parses and is held", withdraw=False)
            await finished(endorser, job)
            self._mark(asset, "endorsed")
            await finished(author, await author.verify(group.graph, asset.reference, deadline_ms=None))
            await on_all(group.members, lambda node: self._settled(group, node, asset))
            self._mark(asset, "verified")
            await on_all(group.members, lambda node: self._look(group, node, asset))
        held = f"{asset.content_bytes:,} bytes in {count(asset.statements, 'statement')}"
        self._teller.say(f"{asset.name}, {held}, is verified on {all_of(len(group.members))} peers.")

    def _mark(self, asset: AssetFacts, stage: str) -> None:
        asset.stages[stage] = round(self._teller.now_s(), 3)

    async def _held(self, group: Group, node: NodeProcess, asset: AssetFacts) -> None:
        async def there() -> bool:
            versions = await node.face.versions(group.graph, layer=None, min_trust=None)
            return any(it.name == asset.name and it.held for it in versions)

        await until(node.face, there, f"{node.name} does not hold {asset.name}")

    async def _settled(self, group: Group, node: NodeProcess, asset: AssetFacts) -> None:
        """All verifiers review by themselves, so all of them approve in the end, not M alone."""

        async def there() -> bool:
            trust = (await node.face.version(group.graph, asset.reference)).trust
            return trust.level == Trust.CONSENSUS_VERIFIED.word and trust.approvals == trust.n

        await until(node.face, there, f"{node.name} does not see {asset.name} verified")

    async def _look(self, group: Group, node: NodeProcess, asset: AssetFacts) -> None:
        asset.on[node.name] = await look(node.face, group.graph, asset.reference)
