"""Changing who is in a context graph and how it works: one signed step each, and what it would do beforehand."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.cli.arguments import member_argument
from p2pmem.cli.command import Command, Context, about_graph, graph_argument
from p2pmem.cli.files import write_new
from p2pmem.cli.views import show_graph
from p2pmem.cli.views_trust import show_prepared_change, show_preview
from p2pmem.cli.words import duration_ms
from p2pmem.face import LimitsChange, MemberChange


def _change_arguments(parser: argparse.ArgumentParser) -> None:
    member_argument(parser, "--set", "add a member, or change its roles")
    parser.add_argument("--remove", metavar="ADDRESS", action="append", default=[], help="take a member out")
    parser.add_argument(
        "--leaked", action="store_true", help="the keys of those removed leaked: nothing of them counts"
    )
    parser.add_argument(
        "--m", type=int, help="how many verifiers make a version ConsensusVerified from now on; 0: none can"
    )
    parser.add_argument(
        "--drop",
        metavar="VERSION",
        action="append",
        default=[],
        help="no longer keep a version as verified under an earlier quorum",
    )
    parser.add_argument("--access", choices=("gated", "open"), help="open: anybody may read")
    parser.add_argument("--ttl", metavar="DURATION", type=duration_ms, help="how long a share lives by default")
    parser.add_argument("--ttl-max", metavar="DURATION", type=duration_ms, help="how long it may live at most")
    parser.add_argument("--acks", type=int, help="members that must hold a published version's bytes")
    parser.add_argument(
        "--chain", action=argparse.BooleanOptionalAction, default=None, help="anchor in the node's contract, or not"
    )
    parser.add_argument("--live-bytes", type=int, metavar="BYTES", help="quota of each member: what is shared, in all")
    parser.add_argument("--live-items", type=int, metavar="N", help="quota of each member: number of what is shared")
    parser.add_argument("--durable-items", type=int, metavar="N", help="quota of each member: number of what stays")
    parser.add_argument("--content-bytes", type=int, metavar="BYTES", help="the largest content of one version")
    parser.add_argument("--dry-run", action="store_true", help="say what it would do, and sign nothing")


def _members_arguments(parser: argparse.ArgumentParser) -> None:
    about_graph(parser)
    _change_arguments(parser)
    parser.add_argument("--prepare", action="store_true", help="as an approver: make one word of it for the owner")


def _owner_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("owner", metavar="ADDRESS", help="who signs the rosters from now on")
    graph_argument(parser)
    _change_arguments(parser)


def _mend_arguments(parser: argparse.ArgumentParser) -> None:
    about_graph(parser)
    _change_arguments(parser)


async def members(context: Context) -> Exit:
    change = _change(context.args)
    if change == MemberChange():
        if context.args.dry_run or context.args.prepare:
            raise BadRequestError("--dry-run and --prepare need something that would change")
        found = await context.face.graph(await context.graph())
        context.out.answer(found, show_graph(found))
        return Exit.OK
    return await _make(context, change)


async def owner(context: Context) -> Exit:
    return await _make(context, _change(context.args, owner=context.args.owner))


async def mend(context: Context) -> Exit:
    return await _make(context, _change(context.args, mend=True))


async def _make(context: Context, change: MemberChange) -> Exit:
    name = await context.graph()
    if getattr(context.args, "prepare", False):
        prepared = await context.face.prepare_members(name, change)
        context.out.answer(prepared, show_prepared_change(prepared))
    elif context.args.dry_run:
        preview = await context.face.preview_members(name, change)
        context.out.answer(preview, show_preview(preview))
    else:
        found = await context.face.change_members(name, change)
        context.out.answer(found, show_graph(found))
    return Exit.OK


def _sign_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", metavar="WORD", help="as `p2pmem graph members --prepare` made it")
    parser.add_argument("--dry-run", action="store_true", help="say who prepared it and what it would do; sign nothing")


async def sign(context: Context) -> Exit:
    if context.args.dry_run:
        prepared = await context.face.prepared_members(context.args.word)
        context.out.answer(prepared, show_prepared_change(prepared, with_word=False))
    else:
        # The word is good for one roster alone, so what is shown of it is what is signed.
        prepared = await context.face.prepared_members(context.args.word)
        found = await context.face.sign_members(context.args.word)
        context.out.answer(found, f"{show_prepared_change(prepared, with_word=False)}\n{show_graph(found)}")
    return Exit.OK


def _change(args: argparse.Namespace, *, owner: str | None = None, mend: bool = False) -> MemberChange:
    limits = LimitsChange(
        access=args.access,
        ttl_default_ms=args.ttl,
        ttl_max_ms=args.ttl_max,
        acks_min=args.acks,
        chain=args.chain,
        live_bytes=args.live_bytes,
        live_items=args.live_items,
        durable_items=args.durable_items,
        content_bytes=args.content_bytes,
    )
    return MemberChange(
        set=tuple(args.set),
        remove=tuple(args.remove),
        leaked=args.leaked,
        m=args.m,
        limits=limits if limits != LimitsChange() else None,
        drop=tuple(args.drop),
        owner=owner,
        mend=mend,
    )


def _roster_arguments(parser: argparse.ArgumentParser) -> None:
    about_graph(parser)
    parser.add_argument("--output", metavar="FILE", type=Path, help="the new file (default: SLUG.roster)")


async def roster(context: Context) -> Exit:
    name = await context.graph()
    data = await context.face.roster(name)
    path = context.args.output or Path(f"{name.rpartition('/')[2]}.roster")
    write_new(path, data)
    context.out.answer(
        {"file": str(path), "bytes": len(data)},
        f"wrote {path}; it judges certificates without a node: p2pmem trust check FILE --head {path}",
    )
    return Exit.OK


_ROOT = "The root key is that of the graph's creator; run it on the node that has it, or sign with `p2pmem sign`."
COMMANDS: Final = (
    Command(
        "graph members",
        "show or change who is in a context graph, and how it works",
        members,
        _members_arguments,
        "Without a change it shows them. The owner's node signs a change; everything in one call is one step. What a "
        "removed member said goes on to count, unless its key leaked.",
    ),
    Command(
        "graph sign",
        "sign a change that an approver prepared",
        sign,
        _sign_arguments,
        "Everything in it is one step. It is good for the roster that it was prepared on: when that has changed, it is "
        "prepared again.",
    ),
    Command(
        "graph owner",
        "name another owner, with the root key",
        owner,
        _owner_arguments,
        f"{_ROOT} Take a stolen owner key out in the same step: --remove ADDRESS --leaked.",
    ),
    Command(
        "graph mend",
        "go on from a fork, with the root key",
        mend,
        _mend_arguments,
        f"{_ROOT} The head of a fork is the roster before it: name again, in the same step, what either side "
        "had changed and is to stay.",
    ),
    Command("graph roster", "write the head roster to a file, to judge certificates by", roster, _roster_arguments),
)
