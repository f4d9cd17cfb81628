"""All that a node grants its peers, in one place: `PeerLimits`, and in it what connections, gossip and asks may cost.

Limits that are part of a format, such as the size of a frame, are constants of `p2pmem_protocol`: peers must agree on
them. These here are a node's own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from p2pmem_protocol.errors import MisuseError

from p2pmem.net.seam import NetworkLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class GossipLimits:
    """What one RPC of GossipSub may hold: more ends its stream and is held against its sender. And how many are taken
    in."""

    rpc_max_bytes: int = 1 << 20
    subscriptions_per_rpc_max: int = 1_000
    messages_per_rpc_max: int = 1_000
    controls_per_rpc_max: int = 100
    """Entries of each kind: IHAVE, IWANT, GRAFT, PRUNE."""
    ids_per_control_max: int = 5_000
    streams_per_peer_max: int = 3
    """On which one peer speaks at once; it needs one. On each it may hold half an RPC for as long as it likes."""
    rpcs_per_address_per_minute: int = 30_000
    """RPCs of one member, or of all others who come from one IP address (one /48 in IPv6), that are taken in within a
    minute, at once or spread; each takes 15 to 50 µs of CPU, an empty one too. One counts as four more for each message
    in it that is new, as twelve for each topic that it joins, and as one more for each 32 other entries and ids, or for
    each 4 KiB beside the content of messages where that is more. What is too much is read later: so many each second.
    """
    rpcs_per_graph_per_minute: int = 120_000
    """The same of all members of one context graph, whose owner lists as many keys as he likes, and of all who are no
    members together: a tenth of a core each. Of who is in several graphs each counts in one that has some left."""
    addresses_max: int = 4_096
    """For how many members and addresses that is accounted; of more, the one that was silent longest is forgotten."""
    receive_timeout_s: float = 5.0
    """What is received is dropped when its receiver has not decided within this time."""

    def __post_init__(self) -> None:
        _all_positive(self, "gossip")


@dataclass(frozen=True, slots=True, kw_only=True)
class AskLimits:
    """Asks to be let in. Who waits to be let in asks again every other second."""

    per_peer_at_once: int = 4
    """Join streams of one peer, in any state, and answers that one peer has not taken in yet."""
    per_peer_per_minute: int = 60
    per_address_per_minute: int = 240
    """The same from one IP address (one /48 in IPv6, which is what anybody gets for nothing)."""
    passed_on_per_minute: int = 960
    """What a member passes on to owners in all, and what an owner hears from one member."""
    relayed_per_minute: int = 1_920
    """What an owner hears from all members."""
    relayed_at_once: int = 64
    """Asks that members pass on, heard at once by an owner: in all,"""
    relayed_per_member_at_once: int = 32
    """and of one member."""
    accounts_max: int = 1_024
    """For how many peers, and for how many addresses, it is remembered what they asked; of more, the one that asked
    nothing for longest is forgotten."""

    def __post_init__(self) -> None:
        _all_positive(self, "ask")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLimits:
    """Each limit is tested at the limit and one past it."""

    first_ban_s: float = 10.0
    """How long a peer that forged or malformed is kept out; each further time twice as long."""
    longest_ban_s: float = 3_600.0
    forgiven_after_s: float = 24 * 3_600.0
    """A peer that behaved for so long begins anew."""
    banned_peers_max: int = 10_000
    """Of more, strangers punished longest ago are forgotten, then members; bans by a person never are."""
    faults_per_address_max: int = 30
    """After so many faults of peers at one address no stranger is let in from there,"""
    fault_forgiven_s: float = 20.0
    """until so long later; one is forgiven in each such time."""
    addresses_at_fault_max: int = 10_000

    first_dial_pause_s: float = 0.2
    longest_dial_pause_s: float = 300.0
    """Pauses between dials double from the first to the longest, each drawn between half and whole: who comes back is
    met again after about as long as it was away, and after so long at most. What keeps one away may keep others: when
    it comes back, all are dialled soon."""
    lasting_s: float = 10.0
    """Where a session ends sooner, again and again, the pause before the next dial doubles too: two nodes that run with
    one peer key would replace each other's session for ever."""
    unwelcome_dial_pause_s: float = 900.0
    """The longest pause before a peer is dialled again that answered and shares no context graph with us: a hello costs
    both sides signatures, and when that changes whoever changed it dials."""
    wanted_peers_max: int = 1_024
    heard_peers_max: int = 128
    """Of these, how many whose addresses only other members told us."""
    heard_failures_max: int = 6
    """So many failures in a row, and a peer that was only heard of and never reached is dialled no more."""
    addresses_per_peer_max: int = 8

    members_all_max: int = 25
    """In a graph of so many members everybody is connected with everybody."""
    members_few: int = 8
    """In a larger one, who is connected with fewer looks for more,"""
    members_dialled: int = 12
    """and dials, of those it hears of, so many drawn by lot."""
    members_connected_max: int = 24
    """With so many members a node stays connected that nobody can dial. Of more it leaves one that has most others."""
    members_connected_reachable_max: int = 128
    """The same for a node with addresses that others can dial: they depend on it."""
    peers_of_member_max: int = 4
    """So many peers of one member a node without room stays connected with where they share a small graph; in a large
    one with one. As many are known as a member's (`known.py`), and kept beyond a restart (`services/met.py`)."""
    known_members_max: int = 10_000
    """Members whose peers are known: the members of ten full rosters."""
    met_peers_of_graph_max: int = 128
    """Peers of a graph that are kept beyond a restart, those met last."""
    member_hold_off_s: float = 60.0
    """Who was left is not connected again for so long, and who has just come is not left."""

    hellos_per_address_per_minute: int = 240
    """Hellos looked at of peers that are not known as members', from one IP address (one /48 in IPv6). Each may have 64
    credentials to check, which take some 4 ms of CPU."""
    hellos_per_minute: int = 2_400
    """The same from all addresses."""
    hellos_per_member_per_minute: int = 240
    """Hellos looked at of one member's known peers, from wherever they come."""
    graph_hellos_per_minute: int = 960
    """The same of all members of one context graph: its owner lists as many keys as he likes. Of who is in several
    graphs each counts in one that has some left."""
    hello_addresses_max: int = 1_024
    """For how many addresses accounts are kept; of more, the one that was silent longest is forgotten."""

    reader_requests_max: int = 600
    """What somebody who is no member may ask about open graphs at once; it grows back in `reader_refill_s`."""
    reader_bytes_max: int = 64 * 1024 * 1024
    """The same in bytes of answers."""
    reader_requests_per_address_max: int = 2_400
    """The same requests of all who come from one IP address (one /48 in IPv6), whatever ids they have,"""
    reader_bytes_per_address_max: int = 256 * 1024 * 1024
    """and bytes."""
    readers_work_per_minute: int = 120_000
    """The requests of all of them. One for a piece of an attachment counts as one more for each 512 KiB before that
    piece, because it takes up to 4 ms of CPU to find: together a quarter of a core at the most. Whoever has many
    addresses can use it up; then readers are answered by chance, and members do not notice."""
    reader_refill_s: float = 60.0
    readers_max: int = 1_024
    """For how many of them, and of their addresses, accounts are kept; of more, the oldest is forgotten."""
    sync_streams_per_peer_max: int = 8
    """Sync streams of one peer that are served at once; an honest one uses six. On each it may hold half a request and
    a full window, 512 KiB, for as long as it likes."""
    answers_waiting_max_bytes: int = 128 * 1024 * 1024
    """Messages of answers, of all peers together, that are being sent and not taken in yet. Of more, one is given up
    and its stream with it (`exchange/waiting.py`)."""
    member_requests_per_minute: int = 30_000
    """What one member, by all its peers, may ask in a minute, at once or spread. Each takes some 80 µs of CPU and more,
    whatever is asked; pieces of attachments count as above. What is too many is answered later: so many each
    second."""
    member_frames_per_minute: int = 60_000
    """Frames of one member's sessions that are taken in, in the same way."""
    graph_requests_per_minute: int = 120_000
    """Requests of all members of one context graph, in the same way: its owner lists as many keys as he likes. Of who
    is in several graphs each counts in one that has some left (`pace.py`)."""
    graph_frames_per_minute: int = 120_000
    """The same for frames."""

    waiting_requests_max: int = 100
    """Requests to join, of a graph, that wait for a person."""
    join_streams_max: int = 16
    """Join streams served at once. One more takes the place of the oldest of the address that holds most."""
    join_ask_max_bytes: int = 512 * 1024
    """What somebody may say who asks to be let in: credentials, and a roster that lists him."""
    join_ask_timeout_s: float = 5.0
    """How long he may take to say it."""

    asks: AskLimits = field(default_factory=AskLimits)
    network: NetworkLimits = field(default_factory=NetworkLimits)
    gossip: GossipLimits = field(default_factory=GossipLimits)

    def __post_init__(self) -> None:
        _all_positive(self, "peer")


def _all_positive(limits: GossipLimits | AskLimits | PeerLimits, what: str) -> None:
    for name in limits.__dataclass_fields__:
        value = getattr(limits, name)
        if isinstance(value, int | float) and value <= 0:
            raise MisuseError(f"{what} limit {name} must be positive, not {value}")
