"""What is worth telling others, and what may be dialled on hearsay."""

from __future__ import annotations

import pytest

from p2pmem.net.reach import Reach, is_same_host, may_dial_on_hearsay, reach_of, worth_telling

LOOP, LAN, WORLD = "/ip4/127.0.0.1/tcp/1/p2p/x", "/ip4/192.168.1.9/tcp/1/p2p/x", "/ip4/8.8.8.8/tcp/1/p2p/x"


@pytest.mark.parametrize(
    ("address", "reach"),
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
def test_how_far_an_address_reaches(address: str, reach: Reach) -> None:
    assert reach_of(address) is reach


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
    assert may_dial_on_hearsay(LAN, [])
    assert may_dial_on_hearsay(WORLD, [WORLD])
    assert not may_dial_on_hearsay("/ip4/0.0.0.0/tcp/1", [LOOP])


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
        assert not may_dial_on_hearsay(f"/{where}/tcp/80", [WORLD])


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
