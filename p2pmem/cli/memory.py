"""The way of a memory: draft, seal, share, publish, endorse, verify; and back: discard, retract."""

from __future__ import annotations

import argparse
from pathlib import PurePath
from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.api.routes import FILE_BYTES_MAX
from p2pmem.cli.command import Command, Context, graph_argument, one_graph_or_all, reference_argument
from p2pmem.cli.files import STANDARD_INPUT, read_input, shown_name
from p2pmem.cli.views import show_draft, show_drafts, show_reviews, show_version
from p2pmem.cli.waiting import finish, wait_arguments
from p2pmem.cli.words import duration_ms


def _name_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the draft's name: A-Z a-z 0-9 . _ ~ -")
    graph_argument(parser)


def _draft_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument(
        "file", metavar="FILE", nargs="?", default=STANDARD_INPUT, help="RDF; - or none: standard input"
    )
    parser.add_argument(
        "--format", help="turtle, n-triples, n-quads, trig, json-ld, rdf/xml; without, it is recognised"
    )
    parser.add_argument("--base", metavar="IRI", help="what relative IRIs are relative to")
    parser.add_argument("--merge-graphs", action="store_true", help="assert also what is in named graphs, as one graph")
    parser.add_argument("--subgraph", default="", help="a part of the context graph to put it into")
    parser.add_argument("--replace", action="store_true", help="in place of what the draft holds, not in addition")


async def draft(context: Context) -> Exit:
    args = context.args
    data = read_input(args.file, FILE_BYTES_MAX)
    view = await context.face.draft(
        await context.graph(),
        args.name,
        data,
        format=args.format or _format_of(args.file),
        base=args.base,
        subgraph=args.subgraph,
        replace=args.replace,
        merge_graphs=args.merge_graphs,
        file=shown_name(args.file),
    )
    context.out.answer(view, show_draft(view))
    context.out.warn(view.warnings)
    return Exit.OK


def _format_of(name: str) -> str | None:
    """The media type that the extension of a file says; None lets the node look at its first words."""
    from p2pmem.importing.errors import NoSuchFormatError
    from p2pmem.importing.formats import Format

    extension = PurePath(name).suffix
    if not extension:
        return None
    try:
        return Format.parse(extension).value
    except NoSuchFormatError:
        return None


async def drafts(context: Context) -> Exit:
    named = await context.graph() if context.args.graph is not None else None
    found = await context.face.drafts(named)
    context.out.answer({"drafts": found}, show_drafts(found))
    return Exit.OK


async def discard(context: Context) -> Exit:
    await context.face.discard(await context.graph(), context.args.name)
    context.out.answer({}, f"discarded the draft {context.args.name}")
    return Exit.OK


async def seal(context: Context) -> Exit:
    view = await context.face.seal(await context.graph(), context.args.name)
    context.out.answer(view, show_draft(view))
    return Exit.OK


def _share_arguments(parser: argparse.ArgumentParser) -> None:
    _name_argument(parser)
    parser.add_argument("--ttl", metavar="DURATION", type=duration_ms, help="how long it lives; or the graph's default")
    wait_arguments(parser)


async def share(context: Context) -> Exit:
    job = await context.face.share(await context.graph(), context.args.name, ttl_ms=context.args.ttl)
    return await finish(context, job)


def _publish_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    wait_arguments(parser)


async def publish(context: Context) -> Exit:
    job = await context.face.publish(await context.graph(), context.args.reference)
    return await finish(context, job)


def _endorse_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    parser.add_argument("--reason", default="", help="why, in a sentence")
    parser.add_argument("--withdraw", action="store_true", help="take your endorsement back, for good")
    wait_arguments(parser)


async def endorse(context: Context) -> Exit:
    args = context.args
    job = await context.face.endorse(await context.graph(), args.reference, reason=args.reason, withdraw=args.withdraw)
    return await finish(context, job)


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    parser.add_argument(
        "--deadline", metavar="DURATION", type=duration_ms, help="how long the verifiers have from now on"
    )
    wait_arguments(parser)


async def verify(context: Context) -> Exit:
    args = context.args
    deadline_ms = None
    if args.deadline is not None:
        deadline_ms = (await context.face.status()).now_ms + args.deadline
    job = await context.face.verify(await context.graph(), args.reference, deadline_ms=deadline_ms)
    return await finish(context, job)


def _retract_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    parser.add_argument("--reason", default="", help="why, in a sentence")
    parser.add_argument("--successor", type=int, metavar="NUMBER", help="the version that stands in its place")
    parser.add_argument("--erase", action="store_true", help="members also drop its bytes")


async def retract(context: Context) -> Exit:
    args = context.args
    view = await context.face.retract(
        await context.graph(), args.reference, reason=args.reason, successor=args.successor, erase=args.erase
    )
    context.out.answer(view, show_version(view))
    return Exit.OK


async def review_list(context: Context) -> Exit:
    graph = await context.graph() if context.args.graph is not None else None
    found = await context.face.reviews(graph=graph)
    context.out.answer({"reviews": found}, show_reviews(found))
    return Exit.OK


def _review_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("review", metavar="REVIEW", help="as `p2pmem review list` shows it, or how its id begins")
    parser.add_argument("--reason", default="", help="why, in a sentence; it is signed with the verdict")
    wait_arguments(parser)


async def review_approve(context: Context) -> Exit:
    args = context.args
    return await finish(context, await context.face.decide_review(args.review, approve=True, reason=args.reason))


async def review_reject(context: Context) -> Exit:
    args = context.args
    return await finish(context, await context.face.decide_review(args.review, approve=False, reason=args.reason))


COMMANDS: Final = (
    Command(
        "draft",
        "write statements to a private draft",
        draft,
        _draft_arguments,
        "Nobody else sees a draft. Writing again adds to it, unless --replace.",
    ),
    Command("drafts", "list your drafts", drafts, graph_argument),
    Command("discard", "delete a draft", discard, _name_argument),
    Command("seal", "sign a draft as the next version of its asset", seal, _name_argument),
    Command(
        "share",
        "share a draft with the members until it expires",
        share,
        _share_arguments,
        "Seals it first if it is not. Sharing the same again renews it.",
    ),
    Command("publish", "publish a version for good", publish, _publish_arguments),
    Command("endorse", "say that you find a version good", endorse, _endorse_arguments),
    Command(
        "verify",
        "ask the verifiers for their verdicts",
        verify,
        _verify_arguments,
        "Ends when M of them approved, when too many rejected, or at the deadline; exit code 0 only for the first. "
        "That may be days away, and the job goes on without you: --no-wait, or --wait with a time.",
    ),
    Command("retract", "take a version back", retract, _retract_arguments),
    Command("review list", "list the proposals that wait for your verdict", review_list, one_graph_or_all),
    Command("review approve", "approve a proposal after looking at it", review_approve, _review_arguments),
    Command("review reject", "reject a proposal", review_reject, _review_arguments),
)
