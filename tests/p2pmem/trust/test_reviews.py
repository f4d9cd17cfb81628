"""How a verifier comes to a verdict: by its policy, on bytes that it holds, shown to a person with what came before."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from p2pmem_devnet.cluster import Cluster, days
from p2pmem_jobs import DiskError, FullError, Job, Queue
from p2pmem_protocol.errors import MisuseError, OutsideError
from p2pmem_protocol.keys import Key
from p2pmem_protocol.seal import Seal
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.cli.views import REVIEW_DIGITS, show_reviews
from p2pmem.cli.views_trust import show_history
from p2pmem.config import load, template
from p2pmem.face import HistoryView, NewGraph, NewMember, NotFoundError
from p2pmem.keyring import Keyring
from p2pmem.net.memory import MemoryFabric
from p2pmem.node import Node, NodeSettings, Places, Surroundings, open_node
from p2pmem.review import command
from p2pmem.review.command import OUTPUT_BYTES_MAX, run_bounded
from p2pmem.review.judging import AGREED, AutoJudge, Judgement, ReviewSettings
from p2pmem.review.shapes import validate
from p2pmem.services import duties, trust_desk
from p2pmem.work import reviewing
from tests.p2pmem.api.memory_values import make_version
from tests.p2pmem.trust.scene import scene

SHAPES = b"""
@prefix sh: <http://www.w3.org/ns/shacl#> .
@prefix ex: <http://example.org/> .
ex:TrialShape a sh:NodeShape ; sh:targetClass ex:Trial ;
    sh:property [ sh:path ex:source ; sh:minCount 1 ; sh:message "a trial names its source" ] .
"""


# A person


async def test_a_person_sees_the_content_its_author_what_came_before_and_the_difference(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        first = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:n 12 .")
        await it.cluster.settled()
        second = await it.ada.share("ex:trial ex:lowers ex:ldl ; ex:n 120 .", name=first.name, ttl=days(10))
        await it.cluster.settled()
        await it.ada.start_verify(second)
        await it.cluster.settled()
        (review,) = await it.bo.face.reviews()
        shown = await it.bo.face.review(review.id)
        assert (shown.review, shown.problem) == (review, "")
        assert (shown.version.reference, shown.version.author) == (second.reference, str(it.ada.address))
        assert '"120"' in shown.content
        assert [each.reference for each in shown.earlier] == [first.reference]
        assert shown.diff is not None
        assert [line for line in shown.diff.added if '"120"' in line] == list(shown.diff.added)
        assert [line for line in shown.diff.removed if '"12"' in line] == list(shown.diff.removed)
        assert await it.bo.face.diff(second.graph, second.reference, other=None) == shown.diff
        assert await it.bo.face.diff(second.graph, first.reference, other="2") == shown.diff
        job = await it.bo.face.decide_review(review.id, approve=False, reason="120 is not what the paper says")
        ended = await it.bo.job(job)
        assert isinstance(ended.result, dict)
        assert (ended.result["decision"], ended.result["method"]) == ("reject", "manual")
        assert await it.bo.face.reviews() == ()


async def test_a_review_is_named_by_how_its_id_begins(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with scene() as it:
        one, _ = await it.proposed("ex:a ex:b ex:c .")
        await it.proposed("ex:d ex:e ex:f .")
        face = it.bo.face
        reviews = {each.reference: each for each in await face.reviews()}
        shown = {row.split()[0] for row in show_reviews(tuple(reviews.values())).splitlines()[1:]}
        assert shown == {each.id[:REVIEW_DIGITS] for each in reviews.values()}
        begins = reviews[one.reference].id[:8]
        assert (await face.review(begins)).review == reviews[one.reference]
        for wrong in ("", begins[:7]):
            with pytest.raises(MisuseError, match="too short"):
                await face.review(wrong)
        with pytest.raises(NotFoundError):
            await face.review("0" * 8)
        await face.decide_review(begins, approve=True, reason="")
        await it.cluster.settled()
        assert one.reference not in {each.reference for each in await face.reviews()}
        monkeypatch.setattr(trust_desk, "review_id", lambda each: f"0123456789{each.verifier}{each.subject.name}")
        await it.proposed("ex:g ex:h ex:i .")
        with pytest.raises(MisuseError, match="give more of it"):
            await face.decide_review("0123456789", approve=True, reason="")


def test_a_history_shows_no_layer_of_what_was_taken_back() -> None:
    version = replace(make_version("g", f"{AUTHOR.address}/trial@1"), retracted=True)
    history = HistoryView(version.graph, version.reference, (), (version,), ())
    (row,) = [line for line in show_history(history).splitlines() if line.startswith("1 ")]
    assert "retracted" in row
    assert "shared" not in row


async def test_a_history_tells_versions_renewals_and_what_was_taken_back(autojump_clock: MockClock) -> None:
    async with scene() as it:
        first = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.advance(minutes=1)
        await it.ada.share(name=first.name, ttl=days(8))
        second = await it.ada.share("ex:trial ex:raises ex:ldl .", name=first.name, ttl=days(10))
        await it.cluster.settled()
        await it.ada.retract(second, reason="a typo", erase=True)
        await it.ada.retract(first, reason="superseded")
        other = await it.bo.share("ex:spam ex:is ex:here .")
        await it.cluster.settled()
        await it.ada.retract(other, reason="off topic")
        await it.wake()
        for node in it.awake:
            told = await node.face.history(first.graph, first.reference)
            assert {(each.version, each.reason, each.erase) for each in told.retracts} == {
                (2, "a typo", True),
                (1, "superseded", False),
            }
            assert all(each.retracted for each in told.versions)
            assert [each.version for each in told.versions] == [1], "what was erased is gone"
            moderated = await node.face.history(other.graph, other.reference)
            assert [(each.by_owner, each.by) for each in moderated.retracts] == [(True, str(it.ada.address))]
        steps = [(each.version, each.what) for each in (await it.ada.face.history(first.graph, first.name)).steps]
        assert steps[:2] == [(1, "create"), (1, "promote")]
        # content that was taken back and comes again is recognised
        with pytest.raises(Exception, match=r"retracted|erased"):
            await it.ada.share(name=first.name, ttl=days(9))


async def test_one_proposer_does_not_bury_the_others(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "REVIEWS_PER_PROPOSER_MAX", 3)
    for policy in ("manual", "auto"):
        async with Cluster(3, seed=3, quorum=1, policy=policy) as cluster:
            ada, bo, cy = cluster.nodes
            assets = [await ada.share(f"ex:a ex:is {number} .") for number in range(8)]
            quiet = await cy.share("ex:quiet ex:is ex:here .")
            await cluster.settled()
            for asset in assets:
                await ada.start_verify(asset)
            await cy.start_verify(quiet)
            await cluster.settled()
            if policy == "manual":
                waiting = [each.proposer for each in await bo.face.reviews()]
                assert waiting.count(str(ada.address)) == 3
                assert waiting.count(str(cy.address)) == 1
            else:
                assert all(bo.trust(asset) is Trust.CONSENSUS_VERIFIED for asset in [*assets, quiet])


@pytest.mark.parametrize("whose", ["one of the two", "somebody else's"])
async def test_who_proposes_too_much_buries_nothing_that_another_proposes_too(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    monkeypatch.setattr(duties, "REVIEWS_PER_PROPOSER_MAX", 3)
    async with Cluster(4, seed=3, quorum=1, policy="manual") as cluster:
        _, *others = cluster.nodes
        low, high, third = sorted(others, key=lambda node: node.address)
        noise = [await low.share(f"ex:a ex:is {number} .") for number in range(3)]
        author = high if whose == "one of the two" else third
        asset = await author.share("ex:quiet ex:is ex:here .", name="quiet")
        await cluster.settled()
        for each in (*noise, asset):
            await low.start_verify(each)
        await high.start_verify(asset)
        await cluster.settled()
        verifier = third if author is high else high
        shown = {each.reference: each.proposer for each in await verifier.face.reviews()}
        assert len(shown) == 4
        assert shown[asset.reference] == str(high.address)


@pytest.mark.parametrize("gone", [[], [1, 2], [1, 4], [2, 4]], ids=str)
async def test_what_waits_for_a_review_is_looked_at_though_what_waits_beside_it_is_gone(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, gone: list[int]
) -> None:
    monkeypatch.setattr(duties, "REVIEWS_PER_PROPOSER_MAX", 1)
    monkeypatch.setattr(reviewing, "AT_ONCE_BYTES_MAX", 0)
    opened = trio.Event()

    async def judged(*_: object) -> Judgement:
        await opened.wait()
        return AGREED

    monkeypatch.setattr(AutoJudge, "judge", judged)
    async with Cluster(3, seed=3, quorum=1, policy="auto") as cluster:
        ada, bo, _ = cluster.nodes
        assets = [await ada.share(f"ex:a ex:is {number} .") for number in range(5)]
        await cluster.settled()
        for asset in assets:
            await ada.start_verify(asset)
        await cluster.advance(minutes=1)
        for asset in (assets[number] for number in gone):
            await ada.retract(asset, erase=True)
        await cluster.advance(minutes=1)
        opened.set()
        await cluster.settled()
        left = [asset for number, asset in enumerate(assets) if number not in gone]
        assert [bo.trust(asset) for asset in left] == [Trust.CONSENSUS_VERIFIED] * len(left)


async def test_one_review_takes_one_place_however_often_its_version_is_looked_at(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "REVIEWS_PER_PROPOSER_MAX", 3)
    monkeypatch.setattr(reviewing, "AT_ONCE_BYTES_MAX", 0)
    opened = trio.Event()
    seen: set[str] = set()

    async def judged(_judge: object, _graph: object, version: Seal, _content: bytes) -> Judgement:
        seen.add(version.name)
        await opened.wait()
        return AGREED

    monkeypatch.setattr(AutoJudge, "judge", judged)
    async with Cluster(3, seed=3, quorum=1, policy="auto") as cluster:
        ada, bo, _ = cluster.nodes
        assets = [await ada.share(f"ex:a ex:is {number} .", name=f"n{number}") for number in range(2)]
        await cluster.settled()
        await ada.start_verify(assets[0])
        for reason in "abc":
            await bo.endorse(assets[0], reason=reason)
            await bo.endorse(assets[0], withdraw=True)
            await cluster.advance(minutes=1)
        await ada.start_verify(assets[1])
        await cluster.advance(minutes=1)
        assert seen == {"n0", "n1"}
        opened.set()
        await cluster.settled()


@pytest.mark.parametrize("error", [FullError("the queue holds 1 live jobs"), DiskError("database or disk is full")])
async def test_a_review_that_could_not_be_asked_for_is_asked_for_again_and_ends_no_node(
    error: Exception, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reviewing, "AT_ONCE_BYTES_MAX", 0)
    submit, refusals = Queue.submit, [error] * 3

    async def submit_later(self: Queue, kind: Any, args: Any, **options: Any) -> Job[Any]:
        if kind.kind == "review" and refusals:
            raise refusals.pop()
        return await submit(self, kind, args, **options)

    monkeypatch.setattr(Queue, "submit", submit_later)
    async with Cluster(3, seed=3, quorum=1, policy="auto") as cluster:
        ada, bo, _ = cluster.nodes
        asset = await ada.share("ex:a ex:is 1 .")
        await cluster.settled()
        await ada.start_verify(asset)
        await cluster.advance(minutes=1)
        assert not refusals
        assert bo.trust(asset) is Trust.CONSENSUS_VERIFIED


@pytest.mark.parametrize("other_graph", [False, True], ids=["of another author", "in another graph"])
async def test_who_decides_on_one_review_says_nothing_of_another_with_the_same_content(
    other_graph: bool, autojump_clock: MockClock
) -> None:
    async with scene() as it:
        text = "ex:trial ex:lowers ex:ldl ."
        copier, author, reader = sorted((it.bo, it.cy, it.dan), key=lambda node: node.address)
        where = it.cluster.graph
        if other_graph:
            members = (NewMember(str(reader.address), ("verifier",), ""),)
            where = (await author.face.found(NewGraph("other", members=members, m=1))).graph
            await reader.face.join(await author.face.invite(where, roles=("reader",), uses=1, life_ms=60_000), label="")
        shown = await author.share(text, graph=where)
        await it.cluster.settled()
        await author.start_verify(shown)
        await it.cluster.settled()
        (review,) = await reader.face.reviews()
        copied = await copier.share(text, name="another")
        await it.cluster.settled()
        await copier.start_verify(copied)
        await it.cluster.settled()
        assert {each.reference for each in await reader.face.reviews()} == {shown.reference, copied.reference}
        job = await reader.face.decide_review(review.id, approve=True, reason="")
        await it.cluster.settled()
        assert (job.reference, job.graph) == (shown.reference, where)
        assert [each.reference for each in await reader.face.reviews()] == [copied.reference]


# Policies that run something


def test_settings_that_cannot_work_are_refused() -> None:
    for wrong in (
        {"policy": "oracle"},
        {"policy": "shacl"},
        {"policy": "exec"},
        {"policy": "exec", "command": "true", "timeout_s": 0},
    ):
        with pytest.raises(MisuseError, match="review"):
            ReviewSettings(**wrong)  # type: ignore[arg-type]  # what a file may hold


def test_a_configuration_names_the_policy(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(template(network="n", label="", listen="/ip4/127.0.0.1/tcp/0", http_port=0))
    assert load(file, {}).review == ReviewSettings()
    environment = {"P2PMEM_REVIEW_POLICY": "exec", "P2PMEM_REVIEW_COMMAND": "check -v", "P2PMEM_REVIEW_TIMEOUT_S": "5"}
    assert load(file, environment).review == ReviewSettings("exec", "", "check -v", 5.0)
    with pytest.raises(MisuseError, match=r"review\.policy"):
        load(file, {"P2PMEM_REVIEW_POLICY": "oracle"})


class Pair:
    """An author and a verifier on real time, with the policies that need processes."""

    def __init__(self, author: Node, verifier: Node, graph: str) -> None:
        self.author, self.verifier, self.graph = author, verifier, graph

    async def share(self, name: str, turtle: bytes, subgraph: str = "") -> str:
        face = self.author.face
        await face.draft(self.graph, name, turtle, format="turtle", base=None, subgraph=subgraph, replace=False)
        job = await face.job((await face.share(self.graph, name, ttl_ms=None)).id, wait_ms=10_000)
        assert isinstance(job.result, dict)
        return f"{job.result['reference']}@{job.result['version']}"

    async def verified(self, reference: str) -> dict[str, Any]:
        face = self.author.face
        with trio.fail_after(60):
            job = await face.job((await face.verify(self.graph, reference, deadline_ms=None)).id, wait_ms=50_000)
        assert isinstance(job.result, dict), job
        shown = await face.explain(self.graph, reference)
        (verdict,) = [each for each in shown.signatures if each.kind == "verdict"]
        return {"level": job.result["level"], "method": verdict.method, "reason": verdict.reason}


AUTHOR, VERIFIER = Key(b"\x01" * 32), Key(b"\x02" * 32)


async def pair(stack: AsyncExitStack, review: ReviewSettings) -> Pair:
    fabric = MemoryFabric(seed=1)
    nodes = []
    for name, key, settings in (("author", AUTHOR, ReviewSettings("manual")), ("verifier", VERIFIER, review)):
        opened = open_node(
            NodeSettings("reviews", name, review=settings),
            Keyring.of(key),
            fabric.network(name),
            Places(),
            Surroundings(inline=True),
        )
        nodes.append(await stack.enter_async_context(opened))
    author, verifier = nodes
    member = NewMember(str(VERIFIER.address), ("verifier",), "verifier")
    graph = (await author.face.found(NewGraph("g", members=(member,), m=1))).graph
    await verifier.face.join(await author.face.invite(graph, roles=(), uses=1, life_ms=60_000), label="")
    return Pair(author, verifier, graph)


def script(tmp_path: Path, text: str) -> str:
    file = tmp_path / "judge.py"
    file.write_text(textwrap.dedent(text))
    return f"{sys.executable} {file}"


@pytest.mark.processes
async def test_a_command_gets_the_content_and_its_words_are_signed(tmp_path: Path) -> None:
    command = script(
        tmp_path,
        """
        import os, sys
        data = sys.stdin.read()
        print(os.environ["P2PMEM_NAME"], "has", data.count("\\n"), "lines", sorted(os.environ)[:1])
        print("in", os.environ["P2PMEM_SUBGRAPH"] or "no sub-graph")
        sys.exit(1 if "spam" in data else 0)
        """,
    )
    async with AsyncExitStack() as stack:
        it = await pair(stack, ReviewSettings("exec", command=command, timeout_s=20))
        good = await it.share("good", b"<urn:a> <urn:b> <urn:c>, <urn:d> .", subgraph="drugs/new")
        bad = await it.share("bad", b"<urn:a> <urn:b> <urn:spam> .")
        said = await it.verified(good)
        assert said["level"] == "ConsensusVerified"
        assert said["method"] == "exec"
        assert said["reason"].startswith("good has 2 lines")
        assert said["reason"].endswith("\nin drugs/new")
        said = await it.verified(bad)
        assert (said["level"], said["method"]) == ("Rejected", "exec")
        assert said["reason"].startswith("bad has 1 lines")
        assert said["reason"].endswith("\nin no sub-graph")


@pytest.mark.processes
async def test_content_is_held_against_shapes_that_are_an_asset_themselves(tmp_path: Path) -> None:
    pytest.importorskip("pyshacl")
    shapes = f"{AUTHOR.address}/shapes@1"
    async with AsyncExitStack() as stack:
        it = await pair(stack, ReviewSettings("shacl", shapes=shapes, timeout_s=50))
        assert await it.share("shapes", SHAPES) == shapes
        (made,) = await it.author.face.versions(it.graph, layer=None, min_trust=None)
        good = await it.share("good", b"@prefix ex: <http://example.org/> . ex:t a ex:Trial ; ex:source ex:paper .")
        bad = await it.share("bad", b"@prefix ex: <http://example.org/> . ex:t a ex:Trial .")
        assert await it.verified(good) == {
            "level": "ConsensusVerified",
            "method": "shacl",
            "reason": f"conforms to {shapes}, root {made.root}",
        }
        said = await it.verified(bad)
        assert (said["level"], said["method"]) == ("Rejected", "shacl")
        assert "a trial names its source" in said["reason"]
        assert said["reason"].startswith(f"does not conform to {shapes}, root {made.root}\n")


@pytest.mark.processes
async def test_a_command_that_takes_too_long_or_says_too_much_is_bounded(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="took more than"):
        await run_bounded([sys.executable, "-c", "import time; time.sleep(600)"], b"", {}, 0.5)
    talks = "import sys; sys.stdout.write('x' * 10_000_000); sys.exit(1)"
    code, output = await run_bounded([sys.executable, "-c", talks], b"y" * 5_000_000, {}, 60)
    assert (code, len(output)) == (1, OUTPUT_BYTES_MAX)
    with pytest.raises(OutsideError, match="cannot run"):
        await run_bounded([str(tmp_path / "nothing-there")], b"", {}, 5)


@pytest.mark.processes
@pytest.mark.parametrize("child", ["sleep 600", "setsid sleep 12", "setsid timeout 12 yes"])
async def test_a_command_that_has_ended_has_answered_whoever_holds_its_output_open(child: str) -> None:
    environment = {"PATH": os.environ["PATH"]}
    code, output = await run_bounded(
        ["sh", "-c", f"echo it is wrong; {child} & exit 1"], b"y" * 5_000_000, environment, 10
    )
    assert (code, output[:12]) == (1, b"it is wrong\n")
    assert len(output) <= OUTPUT_BYTES_MAX


CONTAINED = ["unshare", "--user", "--map-current-user", "--fork", "--pid", "--kill-child"]


@pytest.mark.processes
async def test_the_words_that_are_advised_before_a_command_end_what_begins_a_session_of_its_own(tmp_path: Path) -> None:
    if shutil.which("unshare") is None or (await trio.run_process([*CONTAINED, "true"], check=False)).returncode:
        pytest.skip("no unshare, or this system lets nobody make a namespace of processes")
    assert f"`{' '.join(CONTAINED)}`" in (command.__doc__ or "")
    pipe = tmp_path / "held-open"
    os.mkfifo(pipe)
    reads = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        child = f"exec 3> {pipe}; echo >&3; setsid sleep 60 & sleep 60"
        with pytest.raises(OutsideError, match="took more than"):
            await run_bounded([*CONTAINED, "sh", "-c", child], b"", {"PATH": os.environ["PATH"]}, 2)
        assert os.read(reads, 9) == b"\n"
        with trio.fail_after(10):
            await trio.lowlevel.wait_readable(reads)
        assert os.read(reads, 9) == b"", "nobody holds the other end any more"
    finally:
        os.close(reads)


@pytest.mark.processes
async def test_what_a_command_wrote_just_before_it_ended_is_its_reason() -> None:
    for _ in range(20):
        code, output = await run_bounded(["sh", "-c", "head -c 60000 /dev/zero"], b"", {"PATH": os.environ["PATH"]}, 20)
        assert (code, output) == (0, bytes(60_000))


@pytest.mark.processes
async def test_shapes_can_neither_open_files_nor_run_code_nor_take_for_ever() -> None:
    pytest.importorskip("pyshacl")
    content = b"<http://example.org/t> <http://example.org/p> <http://example.org/o> .\n"
    hostile = (
        b"<http://example.org/s> <http://www.w3.org/2002/07/owl#imports> <file:///etc/passwd> .\n"
        b"<http://example.org/s> <http://www.w3.org/1999/02/22-rdf-syntax-ns#type> "
        b"<http://www.w3.org/2002/07/owl#Ontology> .\n"
    )
    conforms, _ = await validate(hostile, content, 60)
    assert conforms, "nothing is imported, so there is no shape"
    with pytest.raises(OutsideError, match="no answer"):
        await validate(b"this is not RDF", content, 60)
