"""Who stands behind a version, what became of an asset, and what a verifier looks at."""

from __future__ import annotations

import argparse
from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.cli.command import Command, Context, graph_argument, reference_argument
from p2pmem.cli.views_trust import show_diff, show_explanation, show_history, show_review
from p2pmem.cli.waiting import finish, wait_arguments


async def explain(context: Context) -> Exit:
    found = await context.face.explain(await context.graph(), context.args.reference)
    context.out.answer(found, show_explanation(found))
    return Exit.OK


def _history_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("reference", metavar="ASSET", help="<address>/<name>, or its name alone where it is your own")
    graph_argument(parser)


async def history(context: Context) -> Exit:
    found = await context.face.history(await context.graph(), context.args.reference)
    context.out.answer(found, show_history(found))
    return Exit.OK


def _diff_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    parser.add_argument(
        "--other", metavar="VERSION", help="what to compare it with: a number, or as VERSION (default: the one before)"
    )


async def diff(context: Context) -> Exit:
    found = await context.face.diff(await context.graph(), context.args.reference, other=context.args.other)
    context.out.answer(found, show_diff(found))
    return Exit.OK


def _review_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("review", metavar="REVIEW", help="as `p2pmem review list` shows it, or how its id begins")


async def review(context: Context) -> Exit:
    found = await context.face.review(context.args.review)
    context.out.answer(found, show_review(found))
    return Exit.OK


def _attest_arguments(parser: argparse.ArgumentParser) -> None:
    reference_argument(parser)
    wait_arguments(parser)


async def attest(context: Context) -> Exit:
    job = await context.face.attest(await context.graph(), context.args.reference)
    return await finish(context, job)


COMMANDS: Final = (
    Command(
        "trust explain",
        "show every signature behind a version, and what is missing",
        explain,
        reference_argument,
        "By whom, for whom, under which quorum, by which method; what does not count and why; what would raise it.",
    ),
    Command(
        "trust attest",
        "put a certificate into the contract of the graph",
        attest,
        _attest_arguments,
        "Other contracts can ask for it there. The account of this node pays for the transaction.",
    ),
    Command("history", "show what became of an asset", history, _history_arguments),
    Command(
        "diff",
        "compare two versions of an asset, or your draft with what was said before",
        diff,
        _diff_arguments,
        "A name without a version is your draft, where you have one; else the newest version.",
    ),
    Command("review show", "look at a proposal before you decide", review, _review_arguments),
)
