"""A user's own files, each taken the whole way: drafted, shared, published, endorsed, verified."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.trust import Trust

from p2pmem.api.routes import FILE_BYTES_MAX
from p2pmem.cli.files import read_input
from p2pmem.face import Face
from p2pmem.importing.errors import ImportingError
from p2pmem.importing.importer import Importer
from p2pmem_devnet.facts import AssetFacts, look
from p2pmem_devnet.fleet import Fleet, NodeProcess, one_error
from p2pmem_devnet.group import Group, finished, found, on_all, result_of, until
from p2pmem_devnet.telling import Teller, all_of, and_list, count

SLUG: Final = "files"
FILES_MAX: Final = 100
AT_ONCE_MAX: Final = 4
QUESTION_WORDS_MAX: Final = 5
_WORD: Final = re.compile(r"[^\W\d_]{3,}")
_TEXTS: Final = """
    SELECT (STR(?said) AS ?text) {
        ?thing ?says ?said FILTER(isLiteral(?said) && !isNumeric(?said) && STRLEN(STR(?said)) < 200)
    } ORDER BY ?text LIMIT 100"""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class GivenFile:
    """A file as it was named, and what is in it."""

    path: str
    data: bytes


def read_files(paths: Sequence[Path]) -> dict[str, GivenFile]:
    """What is in the files, by the asset's name. Raises `MisuseError` for what is no file that could be read."""
    if len(paths) > FILES_MAX:
        raise MisuseError(f"{len(paths)} files: at most {FILES_MAX} at a time")
    found: dict[str, GivenFile] = {}
    for path in paths:
        found[_name_for(path, found)] = GivenFile(str(path), read_input(str(path), FILE_BYTES_MAX))
    return found


async def check_files(files: Mapping[str, GivenFile], *, merge_graphs: bool, base: str | None = None) -> None:
    """Parse all as the nodes will, before there is any. Raises an `ImportingError` that names every bad file."""
    bad: list[ImportingError] = []
    async with Importer() as importer:
        for file in files.values():
            try:
                await importer.load(file.data, base=base, merge_graphs=merge_graphs, name=file.path)
            except ImportingError as error:
                bad.append(error)
    if len(bad) == 1:
        raise bad[0]
    if bad:
        raise ImportingError(f"{len(bad)} of {len(files)} files are refused: {'; '.join(map(str, bad))}")


def _name_for(path: Path, taken: Mapping[str, object]) -> str:
    """The file's name, in the letters that the name of an asset may have; its extension tells the format."""
    stem = _NOT_IN_NAMES.sub("-", path.stem).strip("-.") or "file"
    extension = _NOT_IN_NAMES.sub("", path.suffix)
    name, number = stem + extension, 2
    while name in taken:
        name, number = f"{stem}-{number}{extension}", number + 1
    return name


async def question_about(face: Face, slug: str) -> str:
    """Words out of what is in a graph, so that a recall of them finds something; empty where it holds no text."""
    graph = next(it.graph for it in await face.graphs() if it.graph.endswith(f"/{slug}"))
    found = await face.query(_TEXTS, graph=graph, layer=None, min_trust=None, at_least=0)
    words = [_WORD.findall(text) for (text,) in found.rows if text is not None]
    return " ".join(max(words, key=lambda it: min(len(it), QUESTION_WORDS_MAX), default=[])[:QUESTION_WORDS_MAX])


class FilesStory:
    """Takes files the whole way. One `tell` a story."""

    def __init__(
        self,
        fleet: Fleet,
        teller: Teller,
        files: Mapping[str, GivenFile],
        m: int,
        *,
        chain: bool,
        base: str | None = None,
        merge_graphs: bool = False,
    ) -> None:
        self._fleet = fleet
        self._teller = teller
        self._files = files
        self._m = m
        self._chain = chain
        self._base = base
        self._merge_graphs = merge_graphs
        self.assets: list[AssetFacts] = []

    async def tell(self) -> list[AssetFacts]:
        """Raises `StoryError`."""
        group = await found(self._fleet, SLUG, self._m, chain=self._chain)
        self._teller.say(
            f"{group.founder.name} founds a gated context graph with {and_list(group.names(group.others))}; "
            f"{self._m} of the {len(group.others)} {'has' if self._m == 1 else 'have'} to approve."
        )
        self.assets = [AssetFacts(name, content_bytes=0) for name in self._files]
        await self._draft_all(group)
        limit = trio.CapacityLimiter(AT_ONCE_MAX)
        async with one_error(), trio.open_nursery() as nursery:
            for asset in self.assets:
                nursery.start_soon(self._go, group, asset, limit)
        return self.assets

    async def _draft_all(self, group: Group) -> None:
        author, warnings = group.founder, list[str]()
        for asset in self.assets:
            file = self._files[asset.name]
            draft = await author.face.draft(
                group.graph,
                asset.name,
                file.data,
                format=None,
                base=self._base,
                subgraph="",
                replace=False,
                merge_graphs=self._merge_graphs,
                file=file.path,
            )
            asset.reference, asset.statements = draft.reference, draft.statements
            warnings += draft.warnings
            self._mark(asset, "drafted")
        statements = sum(asset.statements for asset in self.assets)
        self._teller.say(
            f"{author.name} drafts {count(len(self.assets), 'file')} with {count(statements, 'statement')}."
        )
        for warning in warnings:
            self._teller.say(f"Warning: {warning}.")

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
