"""What counts as attested already."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from p2pmem_protocol.keys import Key
from p2pmem_protocol.names import VersionKey

from p2pmem.chain.seam import AttestationFact
from p2pmem.work import registering
from p2pmem.work.registering import AttestArgs, RegisteringJobs
from p2pmem.work.transacting import OnChain
from p2pmem.work.verifying import SubjectArgs

VERSION = VersionKey(Key(bytes([1]) * 32).address, "x", 1, bytes(32), bytes(32))


@pytest.mark.parametrize(("serial", "counts"), [(None, False), (1, False), (2, True), (3, True)])
async def test_only_an_attestation_under_this_quorum_or_a_later_one_counts_as_done(
    monkeypatch: pytest.MonkeyPatch, serial: int | None, counts: bool
) -> None:
    held = None if serial is None else AttestationFact(serial, 1, 1, 1, block_number=7, confirmations=3)
    found: list[OnChain | None] = []

    async def attestation_of(_: object) -> AttestationFact | None:
        return held

    async def transact(_: object, __: object, ___: object, ask: Callable[[], Awaitable[OnChain | None]]) -> OnChain:
        found.append(await ask())
        return OnChain(7, 3)

    monkeypatch.setattr(registering, "transact", transact)
    holds_nothing = SimpleNamespace(asset=lambda _: None)
    ledger = SimpleNamespace(graph=lambda graph: SimpleNamespace(id=graph, set=holds_nothing))
    queue = SimpleNamespace(handler=lambda *_, **__: lambda fn: fn)
    nothing = cast("Any", None)
    chain = SimpleNamespace(attestation_of=attestation_of)
    jobs = RegisteringJobs(cast("Any", ledger), nothing, nothing, nothing, cast("Any", queue), cast("Any", chain))
    certificate = SimpleNamespace(quorum=SimpleNamespace(serial=2), verdicts=())
    monkeypatch.setattr(jobs, "_certificate", lambda graph, key: certificate)
    subject = SubjectArgs(bytes(32), *VERSION.fields)
    await jobs._attest(nothing, AttestArgs(subject))
    assert found == [OnChain(7, 3) if counts else None]
