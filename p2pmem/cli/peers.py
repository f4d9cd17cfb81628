"""Peers, and who acts for whom."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.cli.arguments import words
from p2pmem.cli.command import Command, Context
from p2pmem.cli.output import block, table
from p2pmem.cli.words import clean, duration_ms, plural, show_time
from p2pmem.face_peers import DelegationView, PeerDetail

RIGHTS: Final = "share, publish, retract, propose"


def show_peers(peers: Sequence[PeerDetail]) -> str:
    rows = [
        [
            it.peer,
            it.state,
            ", ".join((*it.agents, *it.principals)),
            plural(len(it.graphs), "graph"),
            f"{it.clock_apart_ms:+} ms" if it.state == "member" else "",
            _until(it),
        ]
        for it in peers
    ]
    heads = ("PEER", "STATE", "SPEAKS FOR", "SHARES", "CLOCK APART", "BANNED")
    return table(heads, rows, "no peer is connected or banned")


def _until(peer: PeerDetail) -> str:
    if not peer.banned_until_ms:
        return ""
    return "for good" if peer.banned_until_ms < 0 else f"until {show_time(peer.banned_until_ms)}"


def show_peer(peer: PeerDetail) -> str:
    return block(
        peer.peer,
        [
            ("state", peer.state),
            ("banned", f"{_until(peer)}: {peer.reason}" if peer.banned_until_ms else ""),
            ("agents", ", ".join(peer.agents)),
            ("for", ", ".join(peer.principals)),
            ("graphs", ", ".join(peer.graphs)),
            ("addresses", clean(", ".join(peer.addresses))),
            ("its clock", f"{peer.clock_apart_ms:+} ms" if peer.state == "member" else ""),
            ("refused", str(peer.refusals) if peer.refusals else ""),
            ("sent", f"{peer.sent_bytes} bytes"),
            ("received", f"{peer.received_bytes} bytes"),
        ],
    )


def show_delegations(delegations: Sequence[DelegationView]) -> str:
    rows = [
        [
            it.agent,
            it.principal,
            clean(it.label),
            ",".join(it.rights),
            str(it.serial),
            _state(it),
        ]
        for it in delegations
    ]
    return table(("AGENT", "ACTS FOR", "LABEL", "RIGHTS", "SERIAL", "STATE"), rows, "nobody acts for anybody here")


def _state(delegation: DelegationView) -> str:
    return "ended" if delegation.revoked else "good"


def _peer_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("peer", metavar="PEER", help="its id, as `p2pmem peer list` shows it")


def _ban_arguments(parser: argparse.ArgumentParser) -> None:
    _peer_argument(parser)
    parser.add_argument("--for", dest="for_ms", metavar="DURATION", type=duration_ms, help="without, for good")


async def list_(context: Context) -> Exit:
    peers = await context.face.peers()
    context.out.answer({"peers": peers}, show_peers(peers))
    return Exit.OK


async def show(context: Context) -> Exit:
    found = await context.face.peer(context.args.peer)
    context.out.answer(found, show_peer(found))
    return Exit.OK


async def ban(context: Context) -> Exit:
    found = await context.face.ban_peer(context.args.peer, for_ms=context.args.for_ms)
    context.out.answer(found, f"{found.peer} is banned {_until(found)}")
    return Exit.OK


async def unban(context: Context) -> Exit:
    await context.face.unban_peer(context.args.peer)
    context.out.answer({}, f"{context.args.peer} may connect again")
    return Exit.OK


def _give_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("agent", metavar="ADDRESS", help="who is to act for this node's agent")
    parser.add_argument("--label", default="", help="what the others see of it, such as its name")
    parser.add_argument("--rights", type=words, default=("share",), help=f"of {RIGHTS} (default: share)")


async def give(context: Context) -> Exit:
    args = context.args
    made = await context.face.delegate(args.agent, label=clean(args.label), rights=tuple(args.rights))
    context.out.answer(made, made.word)
    return Exit.OK


async def accept(context: Context) -> Exit:
    held = await context.face.accept_delegation(context.args.word)
    rights = ", ".join(held.rights)
    context.out.answer(held, f"{held.agent} acts for {held.principal} from now on: {rights}")
    return Exit.OK


async def delegations(context: Context) -> Exit:
    found = await context.face.delegations()
    context.out.answer({"delegations": found}, show_delegations(found))
    return Exit.OK


def _revoke_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="ADDRESS|PEER", help="an agent's address or a node's peer id")
    parser.add_argument("--forget", action="store_true", help="what it said so far counts no more either")


async def revoke(context: Context) -> Exit:
    done = await context.face.revoke(context.args.subject, keep=not context.args.forget)
    told = f"told the members of {', '.join(done.graphs)}" if done.graphs else ""
    removed = f"taken out of {', '.join(done.removed_from)}" if done.removed_from else ""
    kept = f"{plural(done.kept, 'item')} said before still count" if done.kept else ""
    context.out.answer(done, f"{done.subject}: " + "; ".join(filter(None, (told, removed, kept))))
    return Exit.OK


COMMANDS: Final = (
    Command("peer list", "list who is connected and who is banned", list_),
    Command("peer show", "show one peer", show, _peer_argument),
    Command("peer ban", "keep a peer out, for a time or for good", ban, _ban_arguments),
    Command("peer unban", "let a peer in again", unban, _peer_argument),
    Command("acting allow", "let an agent act for yours; prints a word for its node", give, _give_arguments),
    Command(
        "acting accept",
        "keep a delegation that was given to your agent",
        accept,
        lambda parser: parser.add_argument("word", metavar="WORD", help="what `p2pmem acting allow` printed"),
    ),
    Command("acting list", "list who acts for whom, given and held here", delegations),
    Command("revoke", "shut out an agent or a stolen machine", revoke, _revoke_arguments),
)
