"""The main job as a story: a memory that five agents share, on the data that the project ships.

Who does what follows from how many there are. The first member founds and writes. Of the verifiers the first M-1
review by themselves; the M-th is a person who is killed half way; the last, if there is one more, contradicts and
rejects. So the outcome is certain, whatever the timing.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from importlib import resources
from typing import Final

import trio
from p2pmem_jobs import SystemClock
from p2pmem_protocol.credential import Carry
from p2pmem_protocol.hashing import keccak256
from p2pmem_protocol.keys import Key
from p2pmem_protocol.limits import DAY_MS
from p2pmem_protocol.names import GraphId, network_id, parse_hex_id
from p2pmem_protocol.trust import Trust

from p2pmem.face import JobView, Layer, NewGraph, RecallAnswer, RecallHit, TrustView, VersionView
from p2pmem.keyring import Keyring
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem_devnet.errors import StoryError
from p2pmem_devnet.facts import AssetFacts, look
from p2pmem_devnet.fleet import Fleet, NodeProcess
from p2pmem_devnet.group import Group, finished, found, on_all, poll, result_of, until
from p2pmem_devnet.outsider import Haul, Known, OpenRead, Outsider
from p2pmem_devnet.telling import Teller, all_of, and_list, count, seconds, short, word

SLUG: Final = "perovskite"
FINDING: Final = "annealing-120"
CONTRADICTION: Final = "a-quick-look"
FINDING_SUBJECT: Final = "https://example.org/perovskite/finding-17"
CONTRADICTION_SUBJECT: Final = "https://example.org/perovskite/note-4"
QUESTION: Final = "how much efficiency does the film annealed at 120 °C keep?"
TTL_S: Final = 12.0
"""So long the contradiction lives: it has to be recalled once before it goes."""


@dataclass(frozen=True, slots=True)
class Cast:
    """Who plays what."""

    author: NodeProcess
    endorser: NodeProcess
    by_themselves: tuple[NodeProcess, ...]
    killed: NodeProcess
    doubter: NodeProcess
    rejects: bool

    @classmethod
    def of(cls, group: Group) -> Cast:
        others = group.others
        return cls(
            author=group.founder,
            endorser=others[0],
            by_themselves=others[: group.m - 1],
            killed=others[group.m - 1],
            doubter=others[-1],
            rejects=len(others) > group.m,
        )


def manual_names(names: list[str], m: int) -> frozenset[str]:
    """Whose verifier is a person in the story."""
    return frozenset(names[m:])


@dataclass(slots=True)
class Outcome:
    """What a run came to."""

    assets: list[AssetFacts] = field(default_factory=list)
    hauls: list[Haul] = field(default_factory=list)
    open_read: OpenRead | None = None
    visible_s: dict[str, float] = field(default_factory=dict)
    expired_on: list[str] = field(default_factory=list)
    recalled: RecallAnswer | None = None
    folded: str = ""


class Story:
    """Tells it. One `tell` a story."""

    def __init__(self, fleet: Fleet, teller: Teller, network: str, m: int, *, chain: bool) -> None:
        self._fleet = fleet
        self._teller = teller
        self._network = network
        self._m = m
        self._chain = chain
        self.outcome = Outcome()

    async def tell(self) -> Outcome:
        """From the founding to the last recall. Raises `StoryError` at the first thing that does not happen."""
        group = await self._found()
        cast = Cast.of(group)
        finding = AssetFacts(FINDING)
        self.outcome.assets.append(finding)
        await self._draft(group, finding)
        shared = await self._share(group, finding)
        await self._outsider(group, finding, shared)
        note = await self._contradict(group, cast)
        await self._publish(group, finding)
        await self._endorse(group, cast, finding)
        await self._recall_both(group, cast)
        await self._verify(group, cast, finding)
        await self._expire(group, cast, note)
        await self._recall(group, cast)
        await on_all(group.members, lambda node: self._look(group, finding, node))
        return self.outcome

    def _mark(self, facts: AssetFacts, stage: str) -> None:
        facts.stages[stage] = round(self._teller.now_s(), 3)

    async def _look(self, group: Group, facts: AssetFacts, node: NodeProcess) -> None:
        facts.on[node.name] = await look(node.face, group.graph, facts.reference)

    # The graph and the draft

    async def _found(self) -> Group:
        group = await found(self._fleet, SLUG, self._m, chain=self._chain)
        self._teller.say(
            f"{group.founder.name} founds the gated context graph “{SLUG}” with {word(len(group.members))} members: "
            f"{_quorum(self._m, len(group.others))} before anything is ConsensusVerified. "
            f"{and_list(group.names(group.others))} {'join' if len(group.others) > 1 else 'joins'}."
        )
        return group

    async def _draft(self, group: Group, facts: AssetFacts) -> None:
        author = group.founder
        # A first question starts the process that answers it; what is measured later is the memory, not that.
        await on_all(group.members, lambda node: self._can_query(group, node, FINDING_SUBJECT))
        draft = await author.face.draft(
            group.graph,
            FINDING,
            _shipped("finding.ttl"),
            format="turtle",
            base=None,
            subgraph="",
            replace=False,
        )
        facts.reference, facts.statements = draft.reference, draft.statements
        self._mark(facts, "drafted")
        await on_all(group.others, lambda node: self._knows_nothing(group, node))
        self._teller.say(
            f"{author.name} drafts a finding, {count(draft.statements, 'statement')}: “Annealing at 120 °C keeps "
            f"perovskite cells stable”. A draft is private: {and_list(group.names(group.others))}, asked for it, "
            f"{'have' if len(group.others) > 1 else 'has'} nothing."
        )

    async def _knows_nothing(self, group: Group, node: NodeProcess) -> None:
        drafts = await node.face.drafts(group.graph)
        versions = await node.face.versions(group.graph, layer=None, min_trust=None)
        recalled = await node.face.recall(QUESTION, graph=group.graph, min_trust=None, min_m=0, limit=5)
        if drafts or versions or recalled.hits or await self._can_query(group, node, FINDING_SUBJECT):
            raise StoryError(f"{node.name} knows of a draft that is private to {group.founder.name}")

    async def _can_query(self, group: Group, node: NodeProcess, subject: str) -> bool:
        sparql = f"ASK {{ <{subject}> ?p ?o }}"
        answer = await node.face.query(sparql, graph=group.graph, layer=None, min_trust=None, at_least=0)
        return bool(answer.boolean)

    # Sharing, and who does not get it

    async def _share(self, group: Group, facts: AssetFacts) -> JobView:
        begun_s = trio.current_time()
        visible_s = self.outcome.visible_s

        async def watch(node: NodeProcess, ready: trio.Event) -> None:
            position = (await node.face.status()).position
            ready.set()
            async for _ in node.face.changes(position):
                if await self._can_query(group, node, FINDING_SUBJECT):
                    visible_s[node.name] = trio.current_time() - begun_s
                    return

        job: JobView | None = None
        with trio.move_on_after(60):
            async with trio.open_nursery() as nursery:
                watching = [(node, trio.Event()) for node in group.others]
                for node, ready in watching:
                    nursery.start_soon(watch, node, ready)
                for _, ready in watching:
                    await ready.wait()
                begun_s = trio.current_time()
                job = await finished(
                    group.founder.face, await group.founder.face.share(group.graph, FINDING, ttl_ms=None)
                )
        missing = [node.name for node in group.others if node.name not in visible_s]
        if job is None or missing:
            raise StoryError(f"{and_list(missing)} could not query what was shared, after a minute")
        self._mark(facts, "shared")
        version = await group.founder.face.version(group.graph, FINDING)
        facts.root = version.root
        facts.content_bytes = len(await group.founder.face.content(group.graph, facts.reference))
        times = and_list([f"{name} after {seconds(took)}" for name, took in sorted(visible_s.items(), key=_second)])
        self._teller.say(
            f"{group.founder.name} seals and shares it, for {round((version.expires_ms - _now_ms()) / DAY_MS)} days, "
            f"under the root {short(version.root)}. {times} could query it."
        )
        return job

    async def _outsider(self, group: Group, facts: AssetFacts, shared: JobView) -> None:
        author = group.founder
        network, key = network_id(self._network), Key(secrets.token_bytes(32))
        agent = Keyring.load(author.home).default
        known = Known(
            graph=GraphId(parse_hex_id(group.graph_id)),
            envelopes=(parse_hex_id(str(result_of(shared)["envelope"])),),
            content_hash=keccak256(await author.face.content(group.graph, facts.reference)),
            credential=Carry(network, agent.address, author.peer, 1, _now_ms() + DAY_MS).sign(agent),
        )
        hauls = {node.name: Haul(node.name) for node in group.members}
        self.outcome.hauls = list(hauls.values())
        async with Libp2pNetwork(identity_seed=secrets.token_bytes(32)) as net:
            mallory = Outsider(net, network, key)
            await on_all(group.members, lambda node: mallory.visit(hauls[node.name], node.peer_address, known))
            canary = f"canary-{secrets.token_hex(8)}"
            board = await self._found_open(author, canary)
            read = await mallory.read_open(author.peer_address, board, canary.encode(), known)
            await on_all(group.members, lambda node: mallory.lie(hauls[node.name], node.peer_address, known))
        self.outcome.open_read = read
        self._tell_outsider(self.outcome.hauls, read)

    async def _found_open(self, author: NodeProcess, canary: str) -> GraphId:
        """An open graph with one statement in it."""
        board = await author.face.found(NewGraph("noticeboard", access="open"))
        notice = f'<urn:notice:1> <http://www.w3.org/2000/01/rdf-schema#label> "{canary}" .'.encode()
        await author.face.draft(board.graph, "notice", notice, format="turtle", base=None, subgraph="", replace=False)
        await finished(author.face, await author.face.share(board.graph, "notice", ttl_ms=None))
        return GraphId(parse_hex_id(board.id))

    def _tell_outsider(self, hauls: list[Haul], read: OpenRead) -> None:
        leaks = sum(haul.graph_bytes for haul in hauls)
        told = sum(haul.greeting_bytes + haul.no_bytes for haul in hauls)
        streams, questions = (sum(values) for values in zip(*((it.streams, it.questions) for it in hauls), strict=True))
        dialled = and_list([haul.node for haul in hauls])
        self._teller.say(
            f"mallory, member of nothing, knows the graph's id, an envelope's id and the hash of the content, and "
            f"shows a credential copied from {hauls[0].node}. It dials {dialled}, tries {hauls[0].refused_protocols} "
            f"stock protocols on each, and asks {questions} times on {streams} streams. It gets {leaks} bytes of the "
            f"graph: in {told:,} bytes on its connections there is only the public greeting and one answer, no, the "
            "same bytes as for a graph that does not exist."
        )
        bad = [haul for haul in hauls if not haul.got_nothing]
        if bad:
            raise StoryError(f"the outsider got something from {and_list([haul.node for haul in bad])}: {bad[0]}")
        if not read.shows_what_it_should:
            raise StoryError(f"what the outsider could read of an open graph is not what it should be: {read}")
        self._teller.say(
            f"The same mallory reads an open graph with the same questions: {read.graph_bytes:,} bytes, the canary "
            "among them. So the zero means something."
        )

    # A contradiction, with an end

    async def _contradict(self, group: Group, cast: Cast) -> VersionView:
        doubter = cast.doubter
        ttl_s = TTL_S
        await doubter.face.draft(
            group.graph,
            CONTRADICTION,
            _shipped("contradiction.ttl"),
            format="turtle",
            base=None,
            subgraph="",
            replace=False,
        )
        job = await doubter.face.share(group.graph, CONTRADICTION, ttl_ms=round(ttl_s * 1000))
        await finished(doubter.face, job)
        version = await doubter.face.version(group.graph, CONTRADICTION)
        others = [node for node in group.members if node is not doubter]
        await on_all(others, lambda node: self._has(group, node, version.reference))
        self._teller.say(
            f"{doubter.name} shares the opposite, for {ttl_s:.0f} seconds: “Annealing at 120 °C does not keep "
            f"perovskite cells stable”. {all_of(len(group.members)).capitalize()} have it."
        )
        return version

    async def _has(self, group: Group, node: NodeProcess, reference: str) -> None:
        async def there() -> bool:
            versions = await node.face.versions(group.graph, layer=None, min_trust=None)
            return any(it.reference == reference and it.held for it in versions)

        await until(node.face, there, f"{node.name} does not have {reference}")

    # Publishing and endorsing

    async def _publish(self, group: Group, facts: AssetFacts) -> None:
        author = group.founder
        begun_s = trio.current_time()
        job = await finished(author.face, await author.face.publish(group.graph, FINDING))
        done = result_of(job)
        self._mark(facts, "published")
        facts.transaction, facts.block = str(done["transaction"] or ""), int(str(done["block"]))
        await on_all(group.members, lambda node: self._published(group, node, facts.reference))
        anchored = ""
        if facts.transaction:
            anchored = f" Its root is in transaction {short(facts.transaction)}, block {facts.block}."
        self._teller.say(
            f"{author.name} publishes it: {count(int(str(done['acks'])), 'member')} promised to keep the bytes, "
            f"{seconds(trio.current_time() - begun_s)} in all.{anchored}"
        )

    async def _published(self, group: Group, node: NodeProcess, reference: str) -> None:
        async def there() -> bool:
            version = await node.face.version(group.graph, reference)
            anchored = not self._chain or (version.anchor is not None and version.anchor.state == "confirmed")
            return version.layer is Layer.PUBLISHED and anchored

        await until(node.face, there, f"{node.name} does not see {reference} published")

    async def _endorse(self, group: Group, cast: Cast, facts: AssetFacts) -> None:
        reason = "our own cells gave the same"
        job = await cast.endorser.face.endorse(group.graph, facts.reference, reason=reason, withdraw=False)
        await finished(cast.endorser.face, job)
        self._mark(facts, "endorsed")
        await on_all(group.members, lambda node: self._reaches(group, node, facts.reference, Trust.ENDORSED))
        self._teller.say(f"{cast.endorser.name} endorses it: “{reason}”. It is Endorsed on {self._everywhere}.")

    @property
    def _everywhere(self) -> str:
        return f"{all_of(len(self._fleet))} peers"

    async def _reaches(self, group: Group, node: NodeProcess, reference: str, level: Trust) -> None:
        async def reached() -> bool:
            version = await node.face.version(group.graph, reference)
            return Trust.parse(version.trust.level) >= level

        await until(node.face, reached, f"{node.name} does not see {reference} {level.word}")

    async def _recall_both(self, group: Group, cast: Cast) -> None:
        """Before it expires, the contradiction is beneath what is better attested."""
        asked = cast.killed
        answer = await asked.face.recall(QUESTION, graph=group.graph, min_trust=None, min_m=0, limit=5)
        folded = next((hit for hit in answer.hits if _is(hit, CONTRADICTION) and hit.note), None)
        if folded is None:
            raise StoryError(f"{asked.name} does not fold the contradiction beneath the better attested finding")
        self.outcome.folded = folded.note
        self._teller.say(
            f"{asked.name}'s agent asks: {QUESTION} First comes {group.founder.name}'s finding "
            f"({answer.hits[0].version.trust.level if answer.hits[0].version else '?'}); beneath it, marked, "
            f"{cast.doubter.name}'s note: it {folded.note}."
        )

    # Verifying, with a kill half way

    async def _verify(self, group: Group, cast: Cast, facts: AssetFacts) -> None:
        author, killed = cast.author, cast.killed
        begun_s = trio.current_time()
        job = await author.face.verify(group.graph, facts.reference, deadline_ms=None)
        await self._approvals(group, author, facts.reference, self._m - 1)
        await self._reviews_of(killed)
        alone = f"{and_list(group.names(cast.by_themselves))} approved by the policy auto" if cast.by_themselves else ""
        self._teller.say(
            f"{author.name} asks the verifiers. {alone + ': bytes, root and seal agree. ' if alone else ''}"
            f"{f'That is {self._m - 1} of the {self._m} it needs.' if alone else 'It needs one approval.'}"
        )
        await killed.kill()
        self._teller.say(f"{killed.name} is killed with -9 before it has reviewed.")
        if cast.rejects:
            await self._decide(cast.doubter, approve=False, reason="my own old cell kept only 61 %")
            await self._rejections(group, author, facts.reference)
            self._teller.say(f"{cast.doubter.name} looks by hand and rejects: “my own old cell kept only 61 %”.")
        await self._come_back(group, killed)
        await self._decide(killed, approve=True, reason="both runs and the calculation are sound")
        job = await finished(author.face, job)
        self._mark(facts, "verified")
        await on_all(group.members, lambda node: self._reaches(group, node, facts.reference, Trust.CONSENSUS_VERIFIED))
        if cast.rejects:
            await on_all(group.members, lambda node: self._rejections(group, node, facts.reference))
        trust = (await author.face.version(group.graph, facts.reference)).trust
        self._teller.say(
            f"{killed.name} approves by hand: “both runs and the calculation are sound”. The finding is "
            f"{trust.level} on {self._everywhere}, {seconds(trio.current_time() - begun_s)} after it was proposed: "
            f"{_who(group, trust)}."
        )

    async def _approvals(self, group: Group, node: NodeProcess, reference: str, number: int) -> None:
        async def there() -> bool:
            return (await node.face.version(group.graph, reference)).trust.approvals >= number

        await until(node.face, there, f"{node.name} does not see {number} approvals of {reference}")

    async def _rejections(self, group: Group, node: NodeProcess, reference: str) -> None:
        async def there() -> bool:
            return (await node.face.version(group.graph, reference)).trust.rejections >= 1

        await until(node.face, there, f"{node.name} does not see the rejection of {reference}")

    async def _reviews_of(self, node: NodeProcess) -> None:
        async def there() -> bool:
            return bool(await node.face.reviews())

        await until(node.face, there, f"{node.name} has nothing to review")

    async def _decide(self, node: NodeProcess, *, approve: bool, reason: str) -> None:
        await self._reviews_of(node)
        review = (await node.face.reviews())[0]
        job = await node.face.decide_review(review.id, approve=approve, reason=reason)
        await finished(node.face, job)

    async def _come_back(self, group: Group, node: NodeProcess) -> None:
        begun_s = trio.current_time()
        await self._fleet.start(node.name)
        took_s = trio.current_time() - begun_s
        await self._reviews_of(node)
        self._teller.say(
            f"{node.name} is back with the same home, ready after {seconds(took_s)}: nothing is lost, and the review "
            "still waits for it."
        )

    # The end of the contradiction, and what is remembered

    async def _expire(self, group: Group, cast: Cast, note: VersionView) -> None:
        async def gone(node: NodeProcess) -> None:
            async def is_gone() -> bool:
                versions = await node.face.versions(group.graph, layer=None, min_trust=None)
                listed = any(it.reference == note.reference for it in versions)
                return not listed and not await self._can_query(group, node, CONTRADICTION_SUBJECT)

            await poll(is_gone, f"{cast.doubter.name}'s note does not expire on {node.name}", every_s=0.2)
            self.outcome.expired_on.append(node.name)

        await on_all(group.members, gone)
        late_s = max(0.0, (_now_ms() - note.expires_ms) / 1000)
        self._teller.say(
            f"{cast.doubter.name}'s note expires. {seconds(late_s)} later none of the {word(len(group.members))} can "
            "query it any more."
        )

    async def _recall(self, group: Group, cast: Cast) -> None:
        asked = cast.doubter
        answer = await asked.face.recall(QUESTION, graph=group.graph, min_trust=None, min_m=0, limit=5)
        self.outcome.recalled = answer
        hit = answer.hits[0] if answer.hits else None
        if hit is None or not _is(hit, FINDING) or hit.version is None:
            raise StoryError(f"{asked.name} does not recall the finding")
        if any(_is(other, CONTRADICTION) for other in answer.hits):
            raise StoryError(f"{asked.name} recalls a contradiction that has expired")
        text = " ".join(hit.text.split())
        self._teller.say(
            f"{asked.name}'s agent asks the same. It recalls: “{text}” Behind it: written by "
            f"{group.name_of(hit.version.author)}, {hit.version.layer.value}, {hit.version.trust.level}; "
            f"{_who(group, hit.version.trust)}."
        )


def _quorum(m: int, others: int) -> str:
    if others == 1:
        return "the other has to approve"
    return f"{m} of the {others} others {'has' if m == 1 else 'have'} to approve"


def _who(group: Group, trust: TrustView) -> str:
    """Who approved by which method, who endorsed, who rejected and why."""

    def names(decision: str) -> list[str]:
        return [
            f"{group.name_of(it.address)}" + (f" ({it.method})" if it.method else "")
            for it in trust.signers
            if it.decision == decision and it.counts
        ]

    parts = [f"{trust.approvals} of {trust.n} approved, {and_list(names('approve'))}"]
    if endorsed := names("endorse"):
        parts.append(f"endorsed by {and_list(endorsed)}")
    for it in trust.signers:
        if it.decision == "reject":
            parts.append(f"{group.name_of(it.address)} rejected ({it.method}): “{it.reason}”")
    return "; ".join(parts)


def _is(hit: RecallHit, name: str) -> bool:
    return hit.version is not None and hit.version.name == name


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def _now_ms() -> int:
    return SystemClock().now_ms()


def _shipped(name: str) -> bytes:
    return resources.files("p2pmem_devnet").joinpath("data", name).read_bytes()
