"""What a cluster is made of: the settings that `Cluster` takes besides the number of nodes and the seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.limits import PeerLimits
from p2pmem.net.memory_wire import Link

MEMBER_ROLES: Final = ("writer", "endorser", "verifier")
NODES_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """What a cluster is made of.

    `quorum`: M, the approvals that verify; None for a majority of the verifiers. `policy`: `auto` lets each node review
    by itself, `manual` waits for `ClusterNode.decide`. `ttl` and `ttl_max`: how long what is shared lives. `roles`:
    what the members besides the owner may do. `keep_projections`: triple store and text index on disk, so that they
    outlive a crash. `found`: False for nodes that share no graph yet. `net`: `memory`, or `libp2p` for the real network
    on loopback; there time is real too, and nothing goes wrong with links. `limits`: what each node grants its peers.
    """

    nodes: int
    seed: int = 0
    quorum: int | None = None
    policy: str = "auto"
    ttl: timedelta | None = None
    ttl_max: timedelta | None = None
    access: str = "gated"
    acks: int = 0
    roles: tuple[str, ...] = MEMBER_ROLES
    verifiers: int | None = None
    """How many of the members are verifiers, the first ones; None for all."""
    link: Link | None = None
    keep_projections: bool = False
    projection_gathers: timedelta = timedelta()
    """So long triple stores and text indexes wait for more of what others say, unless somebody waits for them. For
    stories in which nobody asks in words or in SPARQL."""
    found: bool = True
    net: str = "memory"
    limits: PeerLimits = field(default_factory=PeerLimits)
    chain: str | None = None
    """`anvil`: every node has the chain of a development process to anchor in, and money there; real time only."""

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= NODES_MAX:
            raise MisuseError(f"a cluster has 1 to {NODES_MAX} nodes, not {self.nodes}")
        if self.policy not in ("auto", "manual"):
            raise MisuseError(f"the policy is auto or manual, not {self.policy!r}")
        if self.net not in ("memory", "libp2p"):
            raise MisuseError(f"the network is memory or libp2p, not {self.net!r}")
        if self.chain not in (None, "anvil"):
            raise MisuseError(f"the chain is None or 'anvil', not {self.chain!r}")
        if self.chain is not None and self.net != "libp2p":
            raise MisuseError("a chain is a process and lives in real time, as a cluster with net='libp2p' does")
        if self.net == "libp2p" and self.link is not None:
            raise MisuseError("`link` shapes the links of the network in memory; libp2p has the machine's own")

    def roles_of(self, number: int) -> tuple[str, ...]:
        """What member `number` besides the owner may do."""
        verifies = self.verifiers is None or number < self.verifiers
        return self.roles if verifies else tuple(role for role in self.roles if role != "verifier")
