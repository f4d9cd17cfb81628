"""Two nodes on one network find each other by multicast DNS, over the loopback interface."""

from __future__ import annotations

import os
from functools import partial

import pytest
import trio
from hypothesis import given, strategies as st

from p2pmem.net.mdns import ADDRESSES_MAX, addresses_in, open_mdns, txt_of

A, B = "/ip4/127.0.0.1/tcp/4001/p2p/12D3KooWA", "/ip4/127.0.0.1/tcp/4002/p2p/12D3KooWB"


def test_addresses_survive_the_record_and_only_so_many_fit() -> None:
    assert addresses_in(txt_of([A, B])) == (A, B)
    many = [f"/ip4/127.0.0.1/tcp/{port}/p2p/x" for port in range(20)]
    assert addresses_in(txt_of(many)) == tuple(many[:ADDRESSES_MAX])
    assert txt_of(["/dns4/" + "x" * 300 + "/tcp/1/p2p/x"]) == b""


@given(st.binary(max_size=600))
def test_any_record_is_read_to_its_end(data: bytes) -> None:
    assert all(it.startswith("/") and "/p2p/" in it for it in addresses_in(data))


@pytest.mark.slow
async def test_two_nodes_find_each_other_and_not_themselves() -> None:
    heard: dict[str, list[str]] = {"a": [], "b": []}
    first = {name: trio.Event() for name in heard}
    loopback = ("127.0.0.1",)

    def note(name: str, address: str) -> None:
        heard[name].append(address)
        first[name].set()

    try:
        async with (
            open_mdns((A,), partial(note, "a"), os.urandom, loopback),
            open_mdns((B,), partial(note, "b"), os.urandom, loopback),
        ):
            with trio.move_on_after(15):
                for event in first.values():
                    await event.wait()
    except OSError as error:
        pytest.skip(f"no multicast here: {error}")
    assert set(heard["a"]) == {B}
    assert set(heard["b"]) == {A}
