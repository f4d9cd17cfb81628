"""Working memory: private drafts of this node's agents, from first write to seal."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace
from typing import Final

from p2pmem_jobs import Blocking
from p2pmem_protocol.content import Content, check_canonical, content_of_lines, union
from p2pmem_protocol.errors import MisuseError, RefusedError
from p2pmem_protocol.names import Address, AssetKey, GraphId, check_name, check_subgraph
from p2pmem_protocol.seal import Seal, SignedSeal
from p2pmem_protocol.view import VersionView, asset_view

from p2pmem.exchange.holdings import SELF
from p2pmem.face import NotFoundError
from p2pmem.importing.formats import Format
from p2pmem.importing.importer import Imports
from p2pmem.ledger import drafts
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.drafts import Draft, OwnVersion
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import Transition
from p2pmem.services.certifying import sealed_by_author
from p2pmem.services.signing import Previous, Signing


class DraftEditedError(MisuseError):
    """The draft was edited after it was sealed: seal it again before it is shared."""


class DraftExistsError(MisuseError):
    """A draft of that name waits to be shared or discarded; new content does not pass it by."""


class NoSuchDraftError(NotFoundError):
    """This agent has no draft of that name, and never let one go."""


CHECKED_HERE_BYTES: Final = 64 * 1024
"""Content up to this size is read in the event loop: that takes a millisecond, and a thread costs some of that too."""
_PLAIN_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Reading:
    """How an agent's data are to be read. `file` is what messages call them: without, the asset's name."""

    format: str | None = None
    base: str | None = None
    subgraph: str = ""
    merge_graphs: bool = False
    file: str | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """What data say, and what their author should know of it before he signs."""

    content: Content
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Written:
    """A draft as it is on disk, and what its author should know of what was just written to it."""

    draft: Draft
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Ready:
    """A sealed version that may go out. `draft` is what moves when it does; None when there is none."""

    own: OwnVersion
    content: Content
    draft: Draft | None


@dataclass(frozen=True, slots=True)
class Unsealed:
    """A draft, the seal that it needs, and the hash of the content that it would be made over."""

    draft: Draft
    seal: Seal
    content_hash: bytes


class Drafting:
    """Drafts: write, seal, discard. All writes are durable when a call returns."""

    def __init__(self, ledger: Ledger, signing: Signing, imports: Imports, blocking: Blocking) -> None:
        self._ledger = ledger
        self._signing = signing
        self._imports = imports
        self._blocking = blocking

    async def write(
        self,
        graph: LedgerGraph,
        agent: Address,
        name: str,
        data: bytes,
        how: Reading,
        *,
        replace_all: bool = False,
    ) -> Written:
        """Add statements to a draft, or replace them. Raises an `ImportingError` for what is wrong with the data."""
        read = await self.read(graph, agent, name, data, how)
        content = read.content
        key = AssetKey(agent, name)
        before = self.get(graph.id, key)
        if before is not None and not replace_all:
            content = await self._blocking.run(_together, before.content, content)
        now_ms = self._ledger.clock.now_ms()
        draft = Draft(
            graph.id,
            agent,
            name,
            how.subgraph or (before.subgraph if before else ""),
            content.data,
            before.seal if before else None,
            before.sealed_hash if before else None,
            now_ms,
        )
        batch = Batch(now_ms, SELF)
        if before is None:
            version = self.previous(graph, key).version + 1
            batch.step(graph.id, key, version, Transition.CREATE if version == 1 else Transition.UPDATE)
        batch.event(graph.id, "drafted", [key])
        await self._ledger.commit(batch, lambda connection: drafts.write_draft(connection, draft), owed=False)
        return Written(draft, read.warnings)

    async def read(self, graph: LedgerGraph, agent: Address, name: str, data: bytes, how: Reading) -> Read:
        """Content from an agent's data. Raises an `ImportingError` for what is wrong with it."""
        check_name(name)
        check_subgraph(how.subgraph)
        plain = read_plain(data, how.format)
        if plain is not None:
            return Read(plain)
        imported = await self._imports.load(
            data,
            format=how.format,
            base=how.base,
            merge_graphs=how.merge_graphs,
            name=how.file or name,
            fallback_base=default_base(graph, agent, name),
        )
        return Read(imported.content, imported.warnings)

    def get(self, graph: GraphId, key: AssetKey) -> Draft | None:
        return self._ledger.database.read(
            lambda connection: drafts.read_draft(connection, self._ledger.network, graph, key)
        )

    def all(self, graph: GraphId | None) -> list[Draft]:
        return self._ledger.database.read(
            lambda connection: drafts.read_drafts(connection, self._ledger.network, graph)
        )

    def latest_own(self, graph: GraphId, key: AssetKey) -> OwnVersion | None:
        return self._ledger.database.read(
            lambda connection: drafts.latest_own(connection, self._ledger.network, graph, key)
        )

    def previous(self, graph: LedgerGraph, key: AssetKey) -> Previous:
        """The newest version that this node knows of: its own, or one that another node of the agent let go."""
        own = self.latest_own(graph.id, key)
        return _newest(self._newer(graph, key, own), own)

    def _newer(self, graph: LedgerGraph, key: AssetKey, own: OwnVersion | None) -> list[VersionView]:
        """Versions in the set that are newer than what this node knows to have let go, highest first."""
        number = own.version if own else 0
        versions = asset_view(graph.set, key, self._ledger.clock.now_ms()).versions
        return [it for it in versions if it.key.version > number]

    async def seal(self, graph: LedgerGraph, key: AssetKey) -> Draft:
        """Seal a draft as it stands. Sealed, unchanged and still the next version: the same seal again."""
        draft = self._draft(graph, key)
        if draft.seal is not None and not draft.edited and self._is_next(graph, key, draft.seal.seal):
            return draft
        unsealed = await self.unsealed(graph, key)
        return await self.keep_seal(graph, unsealed, self._signing.sign_seal(unsealed.seal))

    def _is_next(self, graph: LedgerGraph, key: AssetKey, seal: Seal) -> bool:
        """Whether a seal follows the newest version that is known: another node of the agent may have let one go."""
        return self.previous(graph, key) == Previous(seal.version - 1, seal.previous)

    def _draft(self, graph: LedgerGraph, key: AssetKey) -> Draft:
        draft = self.get(graph.id, key)
        if draft is None:
            raise NoSuchDraftError(f"{key.author} has no draft {key.name!r} in {graph.name}")
        return draft

    async def unsealed(self, graph: LedgerGraph, key: AssetKey) -> Unsealed:
        """The seal that a draft needs as it stands, without its signature."""
        draft = self._draft(graph, key)
        content = await self._blocking.run(check_canonical, draft.content)
        seal = self._signing.seal(graph, key.author, key.name, draft.subgraph, content, self.previous(graph, key))
        return Unsealed(draft, seal, content.hash)

    async def keep_seal(self, graph: LedgerGraph, unsealed: Unsealed, signed: SignedSeal) -> Draft:
        """Keep a signed seal with its draft. Raises `MisuseError` when draft or latest version are others by now."""
        key = unsealed.draft.key
        draft = self._draft(graph, key)
        is_same = (draft.content, draft.subgraph) == (unsealed.draft.content, unsealed.draft.subgraph)
        if not is_same or not self._is_next(graph, key, unsealed.seal):
            raise DraftEditedError(f"the draft {key.name!r} has changed since its seal was made; seal it again")
        sealed = replace(draft, seal=signed, sealed_hash=unsealed.content_hash, updated_ms=self._ledger.clock.now_ms())
        batch = Batch(sealed.updated_ms, SELF)
        batch.event(graph.id, "sealed", [key])
        await self._ledger.commit(batch, lambda connection: drafts.write_draft(connection, sealed), owed=False)
        return sealed

    async def ready(self, graph: LedgerGraph, key: AssetKey) -> Ready:
        """The sealed version to let go: the draft, sealed if it was not, or the newest that went before.

        What is sealed here is in memory, for the transaction in which it goes out; between the return and that, the
        caller does not wait for anything. It may be a version that is here already: see `_follows`. Raises
        `DraftEditedError` for a draft that changed after it was sealed, `NoSuchDraftError` when there is none.
        """
        draft = self.get(graph.id, key)
        if draft is None:
            return await self.ready_again(graph, key)
        if draft.edited:
            raise DraftEditedError(
                f"the draft {key.name!r} was edited after it was sealed; seal it again with `p2pmem seal`"
            )
        content = await self._checked(draft.content)
        follows = self._follows(graph, key, content, draft.subgraph, self.latest_own(graph.id, key))
        seal = draft.seal or self._sealed(graph, key, follows, content, draft.subgraph)
        return Ready(self._own_of(graph, key, seal, content.hash), content, draft)

    def _follows(
        self, graph: LedgerGraph, key: AssetKey, content: Content, subgraph: str, own: OwnVersion | None
    ) -> Previous:
        """What content follows when it is sealed to go out: mostly the newest version that is known.

        A version that says the same, and that this node does not know to have let go, is what became of it: it went out
        before the node was put back from a copy, or from another node of the agent. It is not let go twice, as two
        versions: the content follows what that one follows, and a seal of it is the same seal again. Was it retracted
        since, so it stays: who wants it back seals a draft by hand, and that is the next version.
        """
        newer = self._newer(graph, key, own)
        for version in newer:
            if (version.key.root, version.subgraph) == (content.root, subgraph) and not version.conflict:
                return Previous(version.key.version - 1, version.previous)
        return _newest(newer, own)

    async def ready_sealed(self, graph: LedgerGraph, key: AssetKey) -> Ready:
        """The same for an agent whose key is elsewhere: a draft must be sealed already."""
        draft = self.get(graph.id, key)
        if draft is not None and draft.seal is None:
            raise MisuseError(f"the draft {key.name!r} of {key.author} is not sealed yet: sign its seal first")
        return await self.ready(graph, key)

    async def ready_again(self, graph: LedgerGraph, key: AssetKey) -> Ready:
        """The newest sealed version that went before, whatever is drafted since: from here, from another node of the
        agent, or from here before the node was put back from a copy. Raises `NoSuchDraftError`."""
        own = self.latest_own(graph.id, key)
        own = self._let_go_elsewhere(graph, key, own) or own
        data = self._ledger.sealed_here(own.content_hash) if own else None
        if own is None or data is None:
            raise NoSuchDraftError(
                f"{key.author} has neither a draft nor a sealed version {key.name!r} here: "
                f"`p2pmem draft {key.name} FILE` begins a draft"
            )
        return Ready(own, await self._checked(data), None)

    def _let_go_elsewhere(self, graph: LedgerGraph, key: AssetKey, own: OwnVersion | None) -> OwnVersion | None:
        """The newest version in the set, where it is newer than what this node knows to have let go, and held."""
        newest = next((it for it in self._newer(graph, key, own) if not it.conflict), None)
        if newest is None or newest.content_hash not in graph.held:
            return None
        seal = sealed_by_author(self._ledger, graph, newest.key)
        return self._own_of(graph, key, seal, newest.content_hash)

    def ready_new(self, graph: LedgerGraph, key: AssetKey, content: Content, subgraph: str) -> Ready:
        """New content sealed as the next version of an asset, in memory as by `ready`.

        Raises `DraftExistsError` when there is a draft of that name.
        """
        network = self._ledger.network
        draft, own = self._ledger.database.read(
            lambda connection: (
                drafts.read_draft(connection, network, graph.id, key),
                drafts.latest_own(connection, network, graph.id, key),
            )
        )
        if draft is not None:
            raise DraftExistsError(f"there is a draft {key.name!r} already: share that, or discard it first")
        seal = self._sealed(graph, key, self._follows(graph, key, content, subgraph, own), content, subgraph)
        return Ready(self._own_of(graph, key, seal, content.hash), content, None)

    def _sealed(
        self, graph: LedgerGraph, key: AssetKey, previous: Previous, content: Content, subgraph: str
    ) -> SignedSeal:
        return self._signing.sign_seal(self._signing.seal(graph, key.author, key.name, subgraph, content, previous))

    def _own_of(self, graph: LedgerGraph, key: AssetKey, seal: SignedSeal, content_hash: bytes) -> OwnVersion:
        it = seal.seal
        now_ms = self._ledger.clock.now_ms()
        return OwnVersion(graph.id, key.author, key.name, it.version, it.root, seal, content_hash, now_ms)

    async def _checked(self, data: bytes) -> Content:
        if len(data) <= CHECKED_HERE_BYTES:
            return check_canonical(data)
        return await self._blocking.run(_whole, data)

    def moved_rows(self, connection: sqlite3.Connection, ready: Ready) -> None:
        """Rows of a version that is let go. A draft moves, it is not copied; one edited meanwhile stays."""
        drafts.write_own(connection, ready.own)
        if ready.draft is not None:
            drafts.delete_draft_of(connection, ready.draft)

    async def discard(self, graph: LedgerGraph, key: AssetKey) -> None:
        """Delete a draft. Raises `NoSuchDraftError` where there is none."""
        self._draft(graph, key)
        batch = Batch(self._ledger.clock.now_ms(), SELF)
        version = self.previous(graph, key).version + 1
        batch.step(graph.id, key, version, Transition.DISCARD)
        batch.event(graph.id, "discarded", [key])
        await self._ledger.commit(batch, lambda connection: drafts.delete_draft(connection, graph.id, key), owed=False)


def _newest(newer: list[VersionView], own: OwnVersion | None) -> Previous:
    if newer:
        return Previous(newer[0].key.version, newer[0].key.root)
    return Previous(own.version, own.root) if own is not None else Previous()


def default_base(graph: LedgerGraph, agent: Address, name: str) -> str:
    """What relative IRIs in a draft are resolved against: the same for every edit of the same draft.

    The host is reserved to never exist (RFC 6761); `did:` and `urn:` names cannot be the base of relative paths.
    """
    return f"https://p2pmem.invalid/{graph.name}/{agent}/{name}"


def read_plain(data: bytes, format: str | None) -> Content | None:
    """Small N-Triples or N-Quads with neither blank nodes nor anything out of the ordinary; None for all else.

    What an agent says of itself mostly comes so. Every line must match the flat grammar of content before a parser sees
    it, so that no process of its own is needed to keep the parser from harm; what does not goes to one that has that.
    """
    if format is None or len(data) > _PLAIN_BYTES_MAX or b"_:" in data:
        return None
    if Format.parse(format) not in (Format.N_TRIPLES, Format.N_QUADS):
        return None
    try:
        return content_of_lines(line for line in data.decode().split("\n") if line)
    except (RefusedError, UnicodeDecodeError):
        return None


def _whole(data: bytes) -> Content:
    content = check_canonical(data)
    assert content.root
    return content


def _together(before: bytes, content: Content) -> Content:
    return union([check_canonical(before), content])
