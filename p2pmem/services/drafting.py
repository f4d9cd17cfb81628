"""Working memory: private drafts of this node's agents, from first write to seal."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, replace

from p2pmem_jobs import Blocking
from p2pmem_protocol.content import Content, check_canonical, union
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.names import Address, AssetKey, GraphId, check_name, check_subgraph
from p2pmem_protocol.seal import Seal, SignedSeal
from p2pmem_protocol.view import asset_view

from p2pmem.exchange.holdings import SELF
from p2pmem.face import NotFoundError
from p2pmem.importing.importer import Imports
from p2pmem.ledger import drafts
from p2pmem.ledger.batch import Batch
from p2pmem.ledger.drafts import Draft, OwnVersion
from p2pmem.ledger.graph import LedgerGraph
from p2pmem.ledger.ledger import Ledger
from p2pmem.ledger.lifecycle import Transition
from p2pmem.services.signing import Previous, Signing


class DraftEditedError(MisuseError):
    """The draft was edited after it was sealed: seal it again before it is shared."""


class NoSuchDraftError(NotFoundError):
    """This agent has no draft of that name, and never let one go."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A sealed version that may go out, and whether it is a draft that moves when it does."""

    own: OwnVersion
    content: bytes
    is_draft: bool


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
        *,
        format: str | None = None,
        base: str | None = None,
        subgraph: str = "",
        replace_all: bool = False,
    ) -> Draft:
        """Add statements to a draft, or replace them. Raises an `ImportingError` for what is wrong with the data."""
        check_name(name)
        check_subgraph(subgraph)
        imported = await self._imports.load(
            data, format=format, base=base or default_base(graph, agent, name), name=name
        )
        content = imported.content
        key = AssetKey(agent, name)
        before = self.get(graph.id, key)
        if before is not None and not replace_all:
            content = await self._blocking.run(_together, before.content, content)
        now_ms = self._ledger.clock.now_ms()
        draft = Draft(
            graph.id,
            agent,
            name,
            subgraph or (before.subgraph if before else ""),
            content.data,
            before.seal if before else None,
            before.sealed_hash if before else None,
            now_ms,
        )
        batch = Batch(now_ms, SELF)
        if before is None:
            version = self.previous(graph, key).version + 1
            batch.step(graph.id, key, version, Transition.CREATE if version == 1 else Transition.UPDATE, agent, None)
        batch.event(graph.id, "drafted", [key])
        await self._ledger.commit(batch, lambda connection: drafts.write_draft(connection, draft))
        return draft

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
        found = Previous(own.version, own.root) if own else Previous()
        for version in asset_view(graph.set, key, self._ledger.clock.now_ms()).versions:
            if version.key.version > found.version:
                found = Previous(version.key.version, version.key.root)
        return found

    async def seal(self, graph: LedgerGraph, key: AssetKey) -> Draft:
        """Seal a draft as it stands. Sealed and unchanged: the same seal again."""
        draft = self._draft(graph, key)
        if draft.seal is not None and draft.sealed_hash == keccak256(draft.content):
            return draft
        unsealed = await self.unsealed(graph, key)
        return await self.keep_seal(graph, unsealed, self._signing.sign_seal(unsealed.seal))

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
        if draft.content != unsealed.draft.content or self.previous(graph, key).root != unsealed.seal.previous:
            raise DraftEditedError(f"the draft {key.name!r} has changed since its seal was made; seal it again")
        sealed = replace(draft, seal=signed, sealed_hash=unsealed.content_hash, updated_ms=self._ledger.clock.now_ms())
        batch = Batch(sealed.updated_ms, SELF)
        batch.event(graph.id, "sealed", [key])
        await self._ledger.commit(batch, lambda connection: drafts.write_draft(connection, sealed))
        return sealed

    async def ready(self, graph: LedgerGraph, key: AssetKey) -> Ready:
        """The sealed version to let go: the draft, sealed if it was not, or the newest that went before.

        Raises `DraftEditedError` for a draft that changed after it was sealed, `NoSuchDraftError` when there is none.
        """
        draft = self.get(graph.id, key)
        if draft is None:
            own = self.latest_own(graph.id, key)
            content = self._ledger.content(own.content_hash) if own else None
            if own is None or content is None:
                raise NoSuchDraftError(f"{key.author} has neither a draft nor a sealed version {key.name!r} here")
            return Ready(own, content, is_draft=False)
        if draft.seal is not None and draft.sealed_hash != keccak256(draft.content):
            raise DraftEditedError(
                f"the draft {key.name!r} was edited after it was sealed; seal it again with `p2pmem seal`"
            )
        return _ready(await self.seal(graph, key))

    async def ready_sealed(self, graph: LedgerGraph, key: AssetKey) -> Ready:
        """The same for an agent whose key is elsewhere: a draft must be sealed already."""
        draft = self.get(graph.id, key)
        if draft is not None and draft.seal is None:
            raise MisuseError(f"the draft {key.name!r} of {key.author} is not sealed yet: sign its seal first")
        return await self.ready(graph, key)

    def moved_rows(self, connection: sqlite3.Connection, own: OwnVersion) -> None:
        """Rows of a draft that is let go: it moves, it is not copied."""
        drafts.write_own(connection, own)
        drafts.delete_draft(connection, own.graph, AssetKey(own.agent, own.name))

    async def discard(self, graph: LedgerGraph, key: AssetKey) -> None:
        """Delete a draft. Discarding twice is discarding once."""
        if self.get(graph.id, key) is None:
            return
        batch = Batch(self._ledger.clock.now_ms(), SELF)
        version = self.previous(graph, key).version + 1
        batch.step(graph.id, key, version, Transition.DISCARD, key.author, None)
        batch.event(graph.id, "discarded", [key])
        await self._ledger.commit(batch, lambda connection: drafts.delete_draft(connection, graph.id, key))


def _ready(sealed: Draft) -> Ready:
    """A sealed draft as a version that may go out."""
    assert sealed.seal is not None
    assert sealed.sealed_hash is not None
    seal = sealed.seal.seal
    own = OwnVersion(
        sealed.graph,
        sealed.agent,
        sealed.name,
        seal.version,
        seal.root,
        sealed.seal,
        sealed.sealed_hash,
        sealed.updated_ms,
    )
    return Ready(own, sealed.content, is_draft=True)


def default_base(graph: LedgerGraph, agent: Address, name: str) -> str:
    """What relative IRIs in a draft are resolved against: the same for every edit of the same draft.

    The host is reserved to never exist (RFC 6761); `did:` and `urn:` names cannot be the base of relative paths.
    """
    return f"https://p2pmem.invalid/{graph.name}/{agent}/{name}"


def _together(before: bytes, content: Content) -> Content:
    return union([check_canonical(before), content])
