"""Certificates out of a cluster, checked without a node, and by newer members."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from p2pmem_devnet.cluster_node import Asset
from p2pmem_protocol import cbor
from p2pmem_protocol.certificate import Certificate
from p2pmem_protocol.certificate_json import to_json
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.join import Chain
from p2pmem_protocol.keys import Key
from p2pmem_protocol.roster import KeptCertificate, Quorum
from p2pmem_protocol.rosters_change import SetLimits, next_roster
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.api.problems import Exit
from p2pmem.cli.main import main
from p2pmem.face import MemberChange
from tests.devnet.check_certificate import check
from tests.p2pmem.trust.scene import Order, Scene, scene, subject


async def verified(it: Scene) -> Asset:
    asset, _ = await it.proposed()
    for node in (it.bo, it.cy):
        await node.decide(approve=True, reason="I read it")
    await it.cluster.settled()
    return asset


def checked(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, dict[str, Any]]:
    code = main(["trust", "check", *map(str, words), "--json"])
    out, err = capsys.readouterr()
    return code, json.loads(out or err)


async def test_it_is_checked_offline_in_both_forms_and_says_the_same_from_every_node(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene() as it:
        asset = await verified(it)
        await it.wake()
        statements = []
        for node in it.awake:
            data = bytes.fromhex((await node.certificate(asset)).cbor)
            for name, form in (("cbor", data), ("json", to_json(Certificate.decode(data)).encode())):
                file = tmp_path / f"{node.name}.{name}"
                file.write_bytes(form)
                code, answer = checked(capsys, file)
                assert code == Exit.OK
                statements.append(answer["statement"])
            content = tmp_path / "content.nq"
            content.write_bytes(await node.content(asset))
            assert checked(capsys, tmp_path / f"{node.name}.cbor", "--content", content)[0] == Exit.OK
        assert all(each == statements[0] for each in statements)
        assert (statements[0]["m"], statements[0]["n"], statements[0]["root"]) == (2, 3, asset.root)


async def test_a_newer_roster_says_whether_it_still_stands(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene() as it:
        asset = await verified(it)
        file, head = tmp_path / "certificate", tmp_path / "roster"
        file.write_bytes(bytes.fromhex((await it.bo.certificate(asset)).cbor))
        standings = []
        for change in (None, MemberChange(m=1), MemberChange(drop=(asset.reference,))):
            if change is not None:
                await it.change(change)
            head.write_bytes(await it.bo.face.roster(it.cluster.graph))
            code, answer = checked(capsys, file, "--head", head)
            assert answer["holds"], "what it says of its own time stays true"
            standings.append((answer["standing"], answer["stands"], code))
        assert standings == [("current", True, 0), ("kept", True, 0), ("outdated", False, Exit.REFUSED)]
        with pytest.raises(MisuseError, match="not ConsensusVerified"):
            await it.bo.certificate(asset)


async def test_a_roster_of_somebody_else_judges_nothing(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene() as it:
        asset = await verified(it)
        file, head = tmp_path / "certificate", tmp_path / "roster"
        file.write_bytes(bytes.fromhex((await it.bo.certificate(asset)).cbor))
        good = await it.bo.face.roster(it.cluster.graph)
    async with scene(Order(seed=2)) as other:
        foreign = await other.bo.face.roster(other.cluster.graph)
    for wrong in (foreign, good[:-1], good[:200] + bytes([good[200] ^ 1]) + good[201:], b"", b"\x80"):
        head.write_bytes(wrong)
        code, _ = checked(capsys, file, "--head", head)
        assert code == Exit.REFUSED


async def test_an_explanation_names_every_signature_and_what_is_missing(autojump_clock: MockClock) -> None:
    async with scene(quorum=3) as it:
        asset = await verified(it)
        await it.dan.endorse(asset, reason="plausible")
        await it.wake()
        told = [await node.face.explain(asset.graph, asset.reference) for node in it.awake]
        for each in told:
            said = {(sign.kind, sign.label, sign.decision, sign.method, sign.reason) for sign in each.signatures}
            assert said == {
                ("share", "ada", "", "", ""),
                ("propose", "ada", "", "", ""),
                ("verdict", "bo", "approve", "manual", "I read it"),
                ("verdict", "cy", "approve", "manual", "I read it"),
                ("endorse", "dan", "endorse", "", "plausible"),
            }
            assert each.missing == (str(it.dan.address),)
            assert each.barred == (str(it.ada.address),)
            assert each.would_raise == "1 more of the 1 verifier that has not approved"
            assert (each.quorum_serial, set(each.verifiers)) == (2, {str(node.address) for node in it.verifiers})
            assert each.asked_until_ms > it.ada.clock.now_ms()
            assert each.shown == "PartiallyVerified, 2 of 3, 3 needed, 2 manual"
        first = {sign.signature for sign in told[0].signatures}
        assert all({sign.signature for sign in each.signatures} == first for each in told)


async def test_an_owner_cannot_keep_a_certificate_under_a_quorum_that_the_graph_never_had(
    autojump_clock: MockClock,
) -> None:
    async with scene() as it:
        asset, _ = await it.proposed()
        for node in (it.bo, it.cy):
            await node.decide(approve=False, reason="it is false")
        await it.cluster.settled()
        graph, nobody = it.ada.graph, Key(bytes([9]) * 32)
        mine = Quorum(graph.id, 1_000, 1, (nobody.address,))
        said = it.verdict(nobody, asset, quorum=mine.id)
        plan = next_roster(graph.set, [SetLimits(ttl_default_ms=3_600_000)], it.ada.clock.now_ms())
        kept = (KeptCertificate(subject(asset), mine, (said.id,)),)
        plan = replace(plan, body=replace(plan.body, certificates=kept))
        await it.ada.inside.services.membership.adopt_signed(graph, plan, it.ada.key)
        await it.cluster.settled()
        await it.offered(said.encode())
        await it.cluster.settled()
        view = await it.agreed(asset)
        assert view is not None
        assert view.trust.level is Trust.REJECTED
        rows = "SELECT ?o {?s <http://example.org/lowers> ?o}"
        for node in it.awake:
            assert not (await node.query(rows, min_trust=Trust.CONSENSUS_VERIFIED)).rows
        explained = await it.dan.face.explain(it.cluster.graph, asset.reference)
        assert explained.kept is False


async def test_a_certificate_of_an_earlier_term_counts_for_who_joins_after_a_root_act(
    autojump_clock: MockClock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene() as it:
        asset = await verified(it)
        file, head = tmp_path / "certificate", tmp_path / "roster"
        file.write_bytes(bytes.fromhex((await it.bo.certificate(asset)).cbor))
        await it.change(MemberChange(m=3))
        await it.change(MemberChange(owner=str(it.bo.address)))
        joined = await it.cluster.add("fay")
        invite = await it.bo.face.invite(it.cluster.graph, roles=("reader",), uses=1, life_ms=60_000)
        await joined.face.join(invite, label="fay")
        await it.cluster.settled()
        assert len(joined.graph.headers.headers()) == len(it.bo.graph.headers.headers())
        assert await it.level(asset) is Trust.CONSENSUS_VERIFIED
        assert joined.trust(asset) is Trust.CONSENSUS_VERIFIED
        await it.cluster.stop(joined)
        await it.cluster.restart(joined)
        assert joined.trust(asset) is Trust.CONSENSUS_VERIFIED
        # and for who has nothing but files: the roster's comes with the headers of the earlier term, too
        head.write_bytes(await joined.face.roster(it.cluster.graph))
        assert checked(capsys, file, "--head", head)[1]["standing"] == "kept"
        of_its_term = joined.graph.headers.chain_to(joined.graph.head_id)
        assert joined.graph.head is not None
        head.write_bytes(cbor.encode(Chain(of_its_term, joined.graph.head.body.parts).to_value()))
        assert checked(capsys, file, "--head", head)[1]["standing"] == "outdated", (
            "nothing says that it had that quorum"
        )


async def test_code_that_is_not_ours_accepts_it_whoever_owned_the_graph_by_then(autojump_clock: MockClock) -> None:
    async with scene() as it:
        asset = await verified(it)
        await it.change(MemberChange(m=3))
        await it.change(MemberChange(owner=str(it.bo.address)))
        await it.bo.change_members(MemberChange(m=1))
        await it.cluster.settled()
        later, _ = await it.proposed("ex:later ex:is ex:known .")
        assert await it.cy.decide(approve=True) == 1
        for each, words in ((asset, "2 of 3"), (later, "1 of 3")):
            assert await it.level(each) is Trust.CONSENSUS_VERIFIED
            said = {check(bytes.fromhex((await node.certificate(each)).cbor)) for node in it.awake}
            assert said == {f"{words} verified {each.author}/{each.name}@1, root {each.root}"}
        # the root key began a term with the second owner, who then changed M
        whole = Certificate.decode(bytes.fromhex((await it.bo.certificate(later)).cbor))
        assert [(it.header.term, it.header.is_root_act) for it in whole.headers] == [(2, True), (2, False)]
        first, second = whole.headers
        for broken in ((second,), (first,), (first, first, second), (second, first)):
            with pytest.raises(AssertionError):
                check(replace(whole, headers=broken).encode())
