"""The same signatures by ethers, from the same typed data."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from eth_account import Account
from p2pmem_devnet.anvil import NPM_DIRECTORY
from p2pmem_protocol.names import Address
from p2pmem_protocol.trust import Trust
from trio.testing import MockClock

from p2pmem.face import MemberChange, NewGraph, NewMember, SignedView, SignRequest
from tests.p2pmem.trust.scene import scene

pytestmark = pytest.mark.node
SECRET = hashlib.sha256(b"a wallet of ethers").digest()
SCRIPT = Path(__file__).with_name("ethers_wallet.mjs")


def ethers_signs(*typed_data: dict[str, Any]) -> list[str]:
    node = shutil.which("node")
    if node is None or not (NPM_DIRECTORY / "node_modules" / "ethers").is_dir():
        pytest.skip(f"no ethers: install Node.js and run `npm ci --ignore-scripts` in {NPM_DIRECTORY}")
    asked = "".join(json.dumps(each) + "\n" for each in typed_data)
    command = [node, str(SCRIPT), str(NPM_DIRECTORY), "0x" + SECRET.hex()]
    return subprocess.run(command, input=asked, capture_output=True, text=True, check=True).stdout.split()


async def test_ethers_signs_what_eth_account_signs_and_a_node_takes_it(autojump_clock: MockClock) -> None:
    async with scene() as it:
        wallet = Account.from_key(SECRET).address
        roles = ("writer", "endorser", "verifier")
        await it.change(MemberChange(set=(NewMember(wallet, roles, "wanda"),)))
        await it.bo.face.add_agent(wallet, label="wanda")
        asset = await it.ada.share("ex:trial ex:lowers ex:ldl .")
        await it.cluster.settled()
        about = {"graph": asset.graph, "reference": asset.reference}
        requests = [
            SignRequest("seal", wallet, graph=asset.graph, name="x", data="<urn:a> <urn:b> <urn:c> .", format="nt"),
            SignRequest("endorse", wallet, reason='a \u00fcber-good "reason"\n\U0001f642', **about),
            SignRequest("verdict", wallet, decision="approve", reason="read", **about),
            SignRequest("propose", wallet, **about),
            SignRequest("carry", wallet),
            SignRequest("act_for", wallet, label="helper"),
        ]
        prepared = [await it.bo.face.sign_prepare(request) for request in requests]
        signatures = ethers_signs(*[each.typed_data for each in prepared])
        for view, signature in zip(prepared, signatures, strict=True):
            by_account = Account.sign_typed_data(SECRET, full_message=view.typed_data).signature
            assert signature == "0x" + bytes(by_account).hex(), view.action
            await it.bo.face.sign_submit(view.id, signature=signature)
        assert await it.level(asset) is Trust.PARTIALLY_VERIFIED
        shown = await it.eve.face.explain(asset.graph, asset.reference)
        by_wallet = {each.kind for each in shown.signatures if Address.parse(each.signer) == Address.parse(wallet)}
        assert by_wallet == {"endorse", "verdict", "propose"}


async def test_ethers_signs_whatever_else_there_is_to_sign(autojump_clock: MockClock) -> None:
    async with scene() as it:
        wallet = Account.from_key(SECRET).address
        roles = ("writer", "endorser", "verifier", "approver")
        await it.change(MemberChange(set=(NewMember(wallet, roles, "wanda"),)))
        await it.bo.face.add_agent(wallet, label="wanda")
        graph, more = it.cluster.graph, MemberChange(m=1)
        data = "<urn:a> <urn:b> <urn:c> ."

        async def signed(*requests: SignRequest) -> list[SignedView]:
            prepared = [await it.bo.face.sign_prepare(request) for request in requests]
            signatures = ethers_signs(*[each.typed_data for each in prepared])
            pairs = zip(prepared, signatures, strict=True)
            return [await it.bo.face.sign_submit(view.id, signature=text) for view, text in pairs]

        await signed(
            SignRequest("seal", wallet, graph=graph, name="x", data=data, format="nt"),
            SignRequest("found", wallet, new=NewGraph("elsewhere")),
            SignRequest("act_for", wallet, subject=str(it.eve.address), rights=("share",), label="eve"),
        )
        *_, prepared = await signed(
            SignRequest("share", wallet, graph=graph, name="x"),
            SignRequest("prepare", wallet, graph=graph, change=more),
        )
        assert (await it.ada.face.prepared_members(prepared.reference)).change == more
        await signed(SignRequest("publish", wallet, graph=graph, name="x"))
        await signed(
            SignRequest("ack", wallet, graph=graph, reference="x@1"),
            SignRequest("revoke", wallet, graph=graph, subject=str(it.eve.address)),
            SignRequest("roster", wallet, graph=f"{wallet}/elsewhere", change=MemberChange(remove=(), owner=wallet)),
        )
        await signed(SignRequest("retract", wallet, graph=graph, reference="x@1", reason="a mistake"))
        await it.cluster.settled()
        history = await it.ada.face.history(graph, f"{wallet}/x@1")
        assert [each.reason for each in history.retracts] == ["a mistake"]
