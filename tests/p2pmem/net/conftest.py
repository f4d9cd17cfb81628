"""One suite, two networks: what the seam promises is tested on both."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

import pytest

import p2pmem.net.quiet_imports  # noqa: F401 - several tests here import py-libp2p
from p2pmem.net.memory import MemoryFabric
from p2pmem.net.seam import NetworkLimits, OpenNetwork, PeerId


class Networks(Protocol):
    """Makes networks of one kind that can reach each other."""

    kind: str

    def network(self, name: str, *, limits: NetworkLimits | None = None, listen: bool = True) -> OpenNetwork: ...

    def peer_id_of(self, name: str) -> PeerId: ...

    def dead_address(self, name: str) -> str:
        """An address where nobody listens, of the peer of that name."""
        ...


class MemoryNetworks:
    kind = "memory"

    def __init__(self) -> None:
        self.fabric = MemoryFabric(seed=1)

    def network(self, name: str, *, limits: NetworkLimits | None = None, listen: bool = True) -> OpenNetwork:
        return self.fabric.network(name, limits=limits, listen=listen)

    def peer_id_of(self, name: str) -> PeerId:
        return self.fabric.peer_id_of(name)

    def dead_address(self, name: str) -> str:
        return f"/memory/{name}/p2p/{self.peer_id_of(name)}"


class Libp2pNetworks:
    kind = "libp2p"

    def network(self, name: str, *, limits: NetworkLimits | None = None, listen: bool = True) -> OpenNetwork:
        from p2pmem.net.libp2p_host import Libp2pNetwork

        return Libp2pNetwork(
            identity_seed=hashlib.sha256(name.encode()).digest(),
            listen=("/ip4/127.0.0.1/tcp/0",) if listen else (),
            limits=limits or NetworkLimits(),
        )

    def peer_id_of(self, name: str) -> PeerId:
        from p2pmem.net.libp2p_host import peer_id_of_seed

        return peer_id_of_seed(hashlib.sha256(name.encode()).digest())

    def dead_address(self, name: str) -> str:
        return f"/ip4/127.0.0.1/tcp/1/p2p/{self.peer_id_of(name)}"


_KINDS: dict[str, Callable[[], Networks]] = {"memory": MemoryNetworks, "libp2p": Libp2pNetworks}


@pytest.fixture(params=list(_KINDS))
def networks(request: pytest.FixtureRequest) -> Networks:
    return _KINDS[request.param]()
