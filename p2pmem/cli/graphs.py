"""Context graphs, and who is in them."""

from __future__ import annotations

import argparse
from typing import Final

from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.api.routes import INVITE_LIFE_MS
from p2pmem.cli.arguments import ROLES, member_argument, words
from p2pmem.cli.command import Command, Context, about_graph
from p2pmem.cli.views import show_graph, show_graphs, show_requests
from p2pmem.cli.words import clean, duration_ms, show_duration
from p2pmem.face import NewGraph

INVITE_ROLES: Final = ("reader", "writer")


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="its name after your address: a-z 0-9 . _ -")
    member_argument(parser, "--member", "a member; may be given often")
    parser.add_argument("--m", type=int, help="how many verifiers make a version ConsensusVerified")
    parser.add_argument("--open", action="store_true", help="anybody may read; without, only members")
    parser.add_argument("--ttl", metavar="DURATION", type=duration_ms, help="how long a share lives by default")
    parser.add_argument("--ttl-max", metavar="DURATION", type=duration_ms, help="how long it may live at most")
    parser.add_argument("--acks", type=int, default=0, help="members that must hold a published version's bytes")
    parser.add_argument("--chain", action="store_true", help="register the quorum in the node's contract, and anchor")


async def create(context: Context) -> Exit:
    args = context.args
    new = NewGraph(
        slug=args.slug,
        members=tuple(args.member),
        m=args.m,
        access="open" if args.open else "gated",
        ttl_default_ms=args.ttl,
        ttl_max_ms=args.ttl_max,
        acks_min=args.acks,
        chain=args.chain,
    )
    made = await context.face.found(new)
    context.out.answer(made, show_graph(made))
    return Exit.OK


async def list_(context: Context) -> Exit:
    graphs = await context.face.graphs()
    context.out.answer({"graphs": graphs}, show_graphs(graphs))
    return Exit.OK


async def show(context: Context) -> Exit:
    found = await context.face.graph(await context.graph())
    context.out.answer(found, show_graph(found))
    return Exit.OK


def _invite_arguments(parser: argparse.ArgumentParser) -> None:
    about_graph(parser)
    parser.add_argument(
        "--roles", type=words, default=INVITE_ROLES, help=f"of {ROLES} (default: {','.join(INVITE_ROLES)})"
    )
    parser.add_argument("--uses", type=int, default=1, help="how many may join with it (default: %(default)s)")
    parser.add_argument(
        "--life",
        metavar="DURATION",
        type=duration_ms,
        default=INVITE_LIFE_MS,
        help=f"how long it may be used (default: {show_duration(INVITE_LIFE_MS)})",
    )
    parser.add_argument("--ask", action="store_true", help="who uses it waits until you approve")


async def invite(context: Context) -> Exit:
    args = context.args
    word = await context.face.invite(
        await context.graph(), roles=tuple(args.roles), uses=args.uses, life_ms=args.life, ask=args.ask
    )
    context.out.answer({"invite": word}, word)
    return Exit.OK


async def requests(context: Context) -> Exit:
    found = await context.face.join_requests(await context.graph())
    context.out.answer({"requests": found}, show_requests(found))
    return Exit.OK


def _request_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("request", metavar="REQUEST", help="as `p2pmem graph requests` shows it")


async def approve(context: Context) -> Exit:
    await context.face.decide_join(context.args.request, approve=True)
    context.out.answer({}, "approved")
    return Exit.OK


async def refuse(context: Context) -> Exit:
    await context.face.decide_join(context.args.request, approve=False)
    context.out.answer({}, "refused")
    return Exit.OK


async def leave(context: Context) -> Exit:
    if context.named_graph is None:
        raise BadRequestError("say which context graph to leave: `p2pmem graph leave GRAPH`")
    name = await context.graph()
    await context.face.leave(name)
    context.out.answer({}, f"left {name}; what you said stays with the others")
    return Exit.OK


def _join_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("invite", metavar="INVITE", help="the one word that `p2pmem graph invite` gave")
    parser.add_argument("--label", default="", help="how the others see you")


async def join(context: Context) -> Exit:
    from p2pmem_protocol.join import Invite

    Invite.parse(context.args.invite)
    context.out.progress("asking where the invite says; for an owner who decides by hand, up to a minute")
    found = await context.face.join(context.args.invite, label=clean(context.args.label))
    context.out.answer(found, show_graph(found))
    return Exit.OK


def _follow_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("graph", metavar="GRAPH", help="<address>/<slug> of an open context graph")
    parser.add_argument(
        "--at",
        metavar="ADDRESS",
        action="append",
        required=True,
        help="where a node that has it can be dialled, as /ip4/.../tcp/.../p2p/...; may be given often",
    )


async def follow(context: Context) -> Exit:
    found = await context.face.follow(context.args.graph, addresses=tuple(context.args.at))
    context.out.answer(found, show_graph(found))
    return Exit.OK


COMMANDS: Final = (
    Command("graph create", "found a context graph that you own", create, _create_arguments),
    Command("graph list", "list the context graphs of this node", list_),
    Command("graph show", "show a context graph and its members", show, about_graph),
    Command("graph invite", "make an invite: one word that lets its bearer join", invite, _invite_arguments),
    Command("graph requests", "list who asks to join", requests, about_graph),
    Command("graph approve", "let somebody in who asks", approve, _request_argument),
    Command("graph refuse", "do not let somebody in who asks", refuse, _request_argument),
    Command("graph leave", "forget a context graph here", leave, about_graph, "Which one has to be said."),
    Command("graph follow", "read an open context graph without being a member", follow, _follow_arguments),
    Command("join", "join a context graph with an invite", join, _join_arguments),
)
