"""What is worth telling others, and what may be dialled on hearsay."""

from __future__ import annotations

import socket

import pytest

from p2pmem.net import reach
from p2pmem.net.reach import Reach, is_same_host, may_dial_on_hearsay, may_pass_on, reach_of, worth_telling

LOOP, LAN, WORLD = (f"/ip4/{ip}/tcp/4001/p2p/x" for ip in ("127.0.0.1", "192.168.1.9", "8.8.8.8"))


@pytest.fixture
def sends_from(monkeypatch: pytest.MonkeyPatch) -> dict[socket.AddressFamily, str]:
    """The addresses from which this machine sends to others: none, until a test says so."""
    found: dict[socket.AddressFamily, str] = {}
    monkeypatch.setattr(reach, "_outward", lambda family: found.get(family, ""))
    return found


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (LOOP, Reach.MACHINE),
        ("/ip6/::1/tcp/1", Reach.MACHINE),
        ("/dns4/localhost/tcp/1", Reach.MACHINE),
        (LAN, Reach.NETWORK),
        ("/ip6/fe80::1/tcp/1", Reach.NETWORK),
        (WORLD, Reach.WORLD),
        ("/dns4/node.example.org/tcp/1", Reach.WORLD),
        ("/ip4/0.0.0.0/tcp/4001", Reach.NOWHERE),
        ("/ip6/::/tcp/4001", Reach.NOWHERE),
        ("/ip4/8.8.8.8/tcp/0", Reach.NOWHERE),
        ("/ip4/224.0.0.1/tcp/1", Reach.NOWHERE),
        ("/ip4/999.1.1.1/tcp/1", Reach.NOWHERE),
        ("/ip4", Reach.NOWHERE),
        ("nonsense", Reach.NOWHERE),
        ("/dns/127.0.0.1/tcp/1", Reach.MACHINE),
        ("/dns4/127.1/tcp/1", Reach.MACHINE),
        ("/dns/2130706433/tcp/1", Reach.MACHINE),
        ("/dns/0/tcp/1", Reach.MACHINE),
        ("/dns/LOCALHOST/tcp/1", Reach.MACHINE),
        ("/dns/localhost./tcp/1", Reach.MACHINE),
        ("/dns/a.localhost/tcp/1", Reach.MACHINE),
        ("/dns6/::1/tcp/1", Reach.MACHINE),
        ("/ip6/::ffff:127.0.0.1/tcp/1", Reach.MACHINE),
        ("/ip6/::ffff:0.0.0.0/tcp/1", Reach.NOWHERE),
        ("/ip6/::ffff:10.0.0.1/tcp/1", Reach.NETWORK),
        ("/ip6/64:ff9b::7f00:1/tcp/1", Reach.MACHINE),
        ("/ip6/64:ff9b::8.8.8.8/tcp/1", Reach.WORLD),
        ("/ip6/::127.0.0.1/tcp/1", Reach.MACHINE),
        ("/ip6/::1%lo/tcp/1", Reach.MACHINE),
        ("/dns/zero\0byte/tcp/1", Reach.WORLD),
        ("/dns/\ud800/tcp/1", Reach.WORLD),
        ("/ip4/\0/tcp/1", Reach.NOWHERE),
        ("", Reach.NOWHERE),
    ],
)
def test_how_far_an_address_reaches(address: str, expected: Reach) -> None:
    assert reach_of(address) is expected


def test_loopback_is_told_only_by_who_listens_nowhere_else() -> None:
    assert worth_telling([LOOP]) == (LOOP,)
    assert worth_telling([LOOP, LAN]) == (LAN,)
    assert worth_telling([]) == ()
    assert worth_telling(["/ip4/8.8.8.8/tcp/0"]) == ()


def test_an_address_that_is_everywhere_is_never_told_as_it_stands() -> None:
    told = worth_telling(["/ip4/0.0.0.0/tcp/4001/p2p/x"])
    assert "/ip4/0.0.0.0/tcp/4001/p2p/x" not in told
    assert all(it.endswith("/tcp/4001/p2p/x") for it in told)


def test_nobody_is_made_to_knock_at_its_own_machine_by_hearsay() -> None:
    assert not may_dial_on_hearsay(LOOP, [WORLD])
    assert not may_dial_on_hearsay(LOOP, [])
    assert may_dial_on_hearsay(LOOP, [LOOP])
    assert not may_dial_on_hearsay("/ip4/0.0.0.0/tcp/4001", [LOOP])


@pytest.mark.usefixtures("sends_from")
def test_nobody_is_made_to_knock_at_the_host_that_it_tells_whatever_the_port() -> None:
    for own in ("/ip4/8.8.8.8/tcp/4001/p2p/me", "/ip4/8.8.8.8/tcp/9", "/ip6/::ffff:8.8.8.8/tcp/9"):
        assert not may_dial_on_hearsay("/ip4/8.8.8.8/tcp/6379/p2p/x", [LAN, own])
        assert not may_dial_on_hearsay("/ip6/::ffff:8.8.8.8/tcp/6379/p2p/x", [LAN, own])
        assert may_dial_on_hearsay("/ip4/8.8.8.9/tcp/6379/p2p/x", [LAN, own])
    assert not may_dial_on_hearsay(LAN, [LAN])


def test_nobody_is_made_to_knock_where_it_sends_from_though_it_does_not_tell_it(
    sends_from: dict[socket.AddressFamily, str],
) -> None:
    sends_from.update({socket.AF_INET: "192.168.1.9", socket.AF_INET6: "2001:4860:4860::8888"})
    assert not may_dial_on_hearsay(LAN, [LOOP])
    assert not may_dial_on_hearsay("/ip6/2001:4860:4860::8888/tcp/4001/p2p/x", [LOOP])
    assert may_dial_on_hearsay("/ip4/192.168.1.10/tcp/4001/p2p/x", [LOOP])
    assert may_dial_on_hearsay("/ip6/2001:4860:4860::8844/tcp/4001/p2p/x", [LOOP])


@pytest.mark.usefixtures("sends_from")
@pytest.mark.parametrize(
    ("first", "last", "before", "after"),
    [
        ("10.0.0.0", "10.255.255.255", "9.255.255.255", "11.0.0.0"),
        ("172.16.0.0", "172.31.255.255", "172.15.255.255", "172.32.0.0"),
        ("192.168.0.0", "192.168.255.255", "192.167.255.255", "192.169.0.0"),
        ("100.64.0.0", "100.127.255.255", "100.63.255.255", "100.128.0.0"),
        ("fc00::", "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "fbff::", "fe00::"),
    ],
)
def test_private_addresses_are_dialled_on_hearsay_by_who_has_one_of_the_range(
    first: str, last: str, before: str, after: str
) -> None:
    first, last, before, after = (
        f"/ip{6 if ':' in ip else 4}/{ip}/tcp/4001/p2p/x" for ip in (first, last, before, after)
    )
    assert may_dial_on_hearsay(first, [last])
    assert may_dial_on_hearsay(last, [first])
    for own in ([], [WORLD], [LOOP], [before], [after], ["/dns/home.example.org/tcp/4001"], ["/memory/me"]):
        assert not may_dial_on_hearsay(first, own)
        assert not may_dial_on_hearsay(last, own)
        assert may_pass_on(first, own), "to members that are there"


@pytest.mark.usefixtures("sends_from")
@pytest.mark.parametrize("where", ["192.0.2.1", "198.18.0.1", "240.0.0.1", "255.255.255.255"])
def test_what_is_neither_of_the_world_nor_private_is_not_dialled_on_hearsay(where: str) -> None:
    assert not may_dial_on_hearsay(f"/ip4/{where}/tcp/4001/p2p/x", [WORLD, LAN, "/ip4/192.0.2.2/tcp/4001"])


@pytest.mark.usefixtures("sends_from")
@pytest.mark.parametrize(
    ("port", "may"),
    [
        ("1", False),
        ("22", False),
        ("442", False),
        ("443", True),
        ("444", False),
        ("1023", False),
        ("1024", True),
        ("65535", True),
        ("", False),
        ("ssh", False),
        ("-1", False),
        ("0022", False),
        ("²", False),
        ("100000", False),
    ],
)
def test_ports_of_a_systems_services_are_neither_dialled_nor_passed_on(port: str, may: bool) -> None:
    own = [LOOP, "/ip4/192.168.1.1/tcp/4001"]
    for where in ("ip4/8.8.8.8", "ip4/192.168.1.9", "ip4/127.0.0.1", "dns/node.example.org", "ip6/2001:4860::1"):
        assert may_dial_on_hearsay(f"/{where}/tcp/{port}/p2p/x", own) is may
        assert may_pass_on(f"/{where}/tcp/{port}/p2p/x", own) is may


def test_addresses_without_a_port_are_left_to_the_network_that_knows_them() -> None:
    assert may_dial_on_hearsay("/memory/bo/p2p/x", ["/memory/ada/p2p/y"])


def test_where_machines_of_a_cloud_answer_nobody_is_made_to_ask() -> None:
    for where in (
        "ip4/169.254.169.254",
        "dns/169.254.169.254",
        "ip6/fe80::1",
        "ip6/64:ff9b::169.254.169.254",
        "ip6/fd00:ec2::254",
        "ip6/fd00:ec2::254%eth0",
        "ip4/168.63.129.16",
        "ip6/::ffff:100.100.100.200",
    ):
        assert not may_dial_on_hearsay(f"/{where}/tcp/4001", [WORLD, "/ip4/100.64.0.1/tcp/1", "/ip6/fd00::1/tcp/1"])
        assert not may_pass_on(f"/{where}/tcp/4001", [WORLD])


@pytest.mark.parametrize(
    ("address", "other", "same"),
    [
        ("/ip4/192.0.2.1/tcp/4001/p2p/x", "/ip4/192.0.2.1/tcp/50123", True),
        ("/ip4/192.0.2.1/tcp/4001", "/ip4/192.0.2.2/tcp/4001", False),
        ("/ip6/2001:db8::1/tcp/1", "/ip6/2001:db8:0::1/tcp/2", True),
        ("/ip6/::ffff:192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/1", True),
        ("/dns/node.example.org/tcp/1", "/dns/node.example.org/tcp/1", False),
        ("/dns/192.0.2.1/tcp/1", "/ip4/192.0.2.1/tcp/1", False),
        ("/memory/ada/p2p/x", "/memory/ada", True),
        ("/memory/ada/p2p/x", "/memory/bo", False),
        ("", "", False),
        ("/ip4", "/ip4", False),
    ],
)
def test_whether_two_addresses_lead_to_one_host(address: str, other: str, same: bool) -> None:
    assert is_same_host(address, other) is same
    assert is_same_host(other, address) is same
