"""One line of the log for each refusal, which programs that block addresses can read."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import re
from pathlib import Path

import pytest
import trio
from p2pmem_jobs import SystemClock
from p2pmem_protocol.errors import Reason, RefusedError

from p2pmem.cli.few_lines import OF_ADDRESS_PER_MINUTE, OF_EVENT_PER_MINUTE, FewLines
from p2pmem.cli.logs import LineFormatter, log_to_stderr
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.penalties import Penalties
from p2pmem.net.seam import PeerId
from tests.attacks.raw import ATTACKER_HOST, WINDOW, frame

from .attacker import dial, secured, until_closed, victim
from .helpers import until
from .test_penalties import Kept

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "host.md"
FORGED = RefusedError(Reason.BAD_SIGNATURE, "a signature that is none")
BEHIND = RefusedError(Reason.NOT_LISTED, "not listed here")


def patterns() -> list[re.Pattern[str]]:
    """The expressions of the document, with fail2ban's word for an address as fail2ban reads it."""
    lines = [line.strip() for line in DOCUMENT.read_text().splitlines()]
    words = [line.removeprefix("failregex = ") for line in lines if line.removeprefix("failregex = ").startswith("^")]
    assert len(words) == 3
    return [re.compile(line.replace("<ADDR>", r"(?P<ADDR>[0-9a-fA-F:.]+)")) for line in words]


def caught(records: list[logging.LogRecord]) -> list[str]:
    """The addresses that the expressions find in the lines of `p2pmem run`."""
    lines = [LineFormatter().format(record) for record in records]
    assert all("\n" not in line for line in lines)
    return [found["ADDR"] for line in lines for pattern in patterns() if (found := pattern.search(line))]


async def test_a_bad_handshake_and_a_broken_connection_name_the_address(caplog: pytest.LogCaptureFixture) -> None:
    async with victim() as network:
        stream = await dial(network)
        await stream.send_all(b'\x13" address="/ip4/1.2.3.4/tcp/1"\n\r\n')
        with contextlib.suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        await stream.aclose()
        channel = await secured(network)
        await channel.write(frame(WINDOW, 0, 1, 0, version=9))
        await until_closed(channel.wire)
        await until(lambda: sum(network.statistics().refused.values()) == 2)
    assert caught(caplog.records) == [ATTACKER_HOST] * 2


@pytest.mark.parametrize(("refused", "addresses"), [(FORGED, [ATTACKER_HOST]), (BEHIND, [])])
async def test_only_what_is_held_against_a_peer_is_caught(
    caplog: pytest.LogCaptureFixture, refused: RefusedError, addresses: list[str]
) -> None:
    async with victim() as network:
        channel = await secured(network)
        await until(lambda: bool(network.connected()))
        (peer,) = network.connected()
        assert network.address_of(peer).startswith(f"/ip4/{ATTACKER_HOST}/tcp/")
        assert network.address_of(PeerId("nobody")) == ""
        Penalties(network, Kept(), SystemClock()).punish(peer, refused)
        channel.wire.close()
    assert caught(caplog.records) == addresses


def test_what_a_peer_says_cannot_put_another_address_into_the_line(caplog: pytest.LogCaptureFixture) -> None:
    said = '" address="/ip4/1.2.3.4/tcp/1"\n2026 warning net.refused reason="x" address="/ip4/1.2.3.4/tcp/1"'
    more = {"reason": "broken-protocol", "address": "/ip4/192.0.2.9/tcp/1", "peer": "p", "text": said}
    logging.getLogger("p2pmem.test").warning("net.connection.refused", extra=more)
    assert caught(caplog.records) == ["192.0.2.9"]


async def test_an_address_of_six_is_caught_too(caplog: pytest.LogCaptureFixture) -> None:
    try:
        network = Libp2pNetwork(identity_seed=hashlib.sha256(b"six").digest(), listen=("/ip6/::1/tcp/0",))
        async with network:
            stream = await dial(network, local_address="::1")
            await stream.send_all(b"nonsense\r\n")
            await until(lambda: network.statistics().refused.get("handshake") == 1)
            await stream.aclose()
    except OSError as error:
        pytest.skip(f"this machine has no ::1: {error}")
    assert caught(caplog.records) == ["::1"]


@pytest.mark.parametrize("reason", ["gate", "half-open", "inbound-connections", "connections", "closing"])
def test_where_we_have_no_room_nobody_is_kept_out_for_it(caplog: pytest.LogCaptureFixture, reason: str) -> None:
    more = {"reason": reason, "address": "/ip4/192.0.2.9/tcp/1", "peer": "p"}
    logging.getLogger("p2pmem.test").warning("net.refused", extra=more)
    logging.getLogger("p2pmem.test").warning("join.refused", extra=more | {"reason": "join-streams"})
    logging.getLogger("p2pmem.test").warning("sync.refused", extra=more | {"reason": "answers-waiting"})
    assert caught(caplog.records) == []


def refusal(host: int | str, event: str = "net.refused", **more: object) -> logging.LogRecord:
    address = f"/ip4/{host}/tcp/5" if isinstance(host, str) else f"/ip4/192.0.{host // 256}.{host % 256}/tcp/5"
    record = logging.LogRecord("p2pmem.net", logging.WARNING, "", 0, event, None, None)
    vars(record).update({"reason": "handshake", "address": address} | more)
    return record


def test_of_one_address_so_many_lines_are_written_and_not_one_more_until_time_has_gone_by() -> None:
    now_s = [0.0]
    lines = FewLines(lambda: now_s[0])
    assert [lines.filter(refusal(1)) for _ in range(OF_ADDRESS_PER_MINUTE + 8)] == (
        [True] * OF_ADDRESS_PER_MINUTE + [False] * 8
    )
    assert lines.filter(refusal(2)), "of another there is more to say"
    assert lines.filter(refusal(1, "peer.refused"))
    now_s[0] = 60.0 / OF_ADDRESS_PER_MINUTE
    assert lines.filter(refusal(1))
    assert not lines.filter(refusal(1))


def test_of_one_event_so_many_lines_are_written_whoever_causes_them() -> None:
    lines = FewLines(lambda: 0.0)
    assert [lines.filter(refusal(host)) for host in range(OF_EVENT_PER_MINUTE + 1)] == (
        [True] * OF_EVENT_PER_MINUTE + [False]
    )
    only_a_peer = logging.LogRecord("p2pmem.net", logging.INFO, "", 0, "hello.stranger", None, None)
    only_a_peer.peer = "12D3"
    assert [lines.filter(only_a_peer) for _ in range(OF_EVENT_PER_MINUTE + 1)][-2:] == [True, False]
    assert all(lines.filter(logging.LogRecord("p2pmem", 30, "", 0, "disk.full", None, None)) for _ in range(1_000))


def test_of_what_py_libp2p_says_as_few_lines_are_written_as_about_any_peer() -> None:
    few = FewLines(lambda: 0.0)
    written = 0
    for number in range(1_000):
        record = logging.LogRecord("libp2p.pubsub", logging.ERROR, "", 0, "%s is wrong", (number,), None)
        written += few.filter(record)
    assert written == OF_EVENT_PER_MINUTE


def test_the_next_line_says_how_many_were_left_out_and_still_names_the_address() -> None:
    now_s = [0.0]
    lines = FewLines(lambda: now_s[0])
    for _ in range(OF_ADDRESS_PER_MINUTE + 8):
        lines.filter(refusal("192.0.2.9"))
    now_s[0] = 60.0
    later = [refusal("192.0.2.9"), refusal("192.0.2.9")]
    assert all(map(lines.filter, later))
    assert LineFormatter().format(later[0]).endswith(" left_out=8")
    assert "left_out" not in LineFormatter().format(later[1])
    assert caught(later) == ["192.0.2.9"] * 2


@pytest.mark.parametrize(("level", "written"), [("warning", OF_ADDRESS_PER_MINUTE), ("debug", 1_000)])
def test_who_is_refused_a_thousand_times_does_not_write_as_many_lines(
    capsys: pytest.CaptureFixture[str], level: str, written: int
) -> None:
    root = logging.getLogger()
    before, level_before = root.handlers[:], root.level
    root.handlers = []
    try:
        log_to_stderr(level)
        for _ in range(1_000):
            logging.getLogger("p2pmem.test").handle(refusal("192.0.2.9"))
    finally:
        root.handlers = before
        root.setLevel(level_before)
    assert capsys.readouterr().err.count("net.refused") == pytest.approx(written, abs=2)
