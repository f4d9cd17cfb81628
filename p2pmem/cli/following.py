"""Jobs: what they are doing, and a person's word on them."""

from __future__ import annotations

import argparse
import shlex
from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.api.routes import JOBS_LIMIT
from p2pmem.cli.command import Command, Context
from p2pmem.cli.views import show_job, show_jobs, show_story
from p2pmem.cli.waiting import exit_of, finish, follow, wait_arguments
from p2pmem.cli.words import duration_ms
from p2pmem.face import ENDED_STATES

STATES: Final = ("queued", "running", "waiting", "succeeded", "failed", "cancelled", "outcome_unknown")
OUTCOMES: Final = ("succeeded", "failed", "retry")


def _job_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", metavar="JOB", help="the id of a job")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=STATES, help="only those in this state")
    parser.add_argument("--kind", metavar="KIND", help="only those of this kind: share, publish, verify, ...")
    parser.add_argument("--limit", type=int, default=JOBS_LIMIT, help="how many at most (default: %(default)s)")
    parser.add_argument("--before", metavar="JOB", help="those older than this one: the last one of the page before")


async def list_(context: Context) -> Exit:
    args = context.args
    found = await context.face.jobs(state=args.state, limit=args.limit, before=args.before, kind=args.kind)
    following = found[-1].id if found and len(found) >= args.limit else None
    context.out.answer({"jobs": found, "next": following}, show_jobs(found))
    if following is not None and not context.out.json:
        asked = [("--state", args.state), ("--kind", args.kind), ("--limit", args.limit), ("--before", following)]
        same = [f"{option} {shlex.quote(str(value))}" for option, value in asked if value not in (None, JOBS_LIMIT)]
        context.out.note(f"there may be more: p2pmem job list {' '.join(same)}")
    return Exit.OK


async def show(context: Context) -> Exit:
    story = await context.face.job_story(context.args.job)
    context.out.answer(story, show_story(story))
    return Exit.OK


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    parser.add_argument(
        "--wait", metavar="DURATION", type=duration_ms, help=f"at most so long (exit code {Exit.TIMEOUT.value})"
    )


async def watch(context: Context) -> Exit:
    args = context.args
    job = await follow(context, await context.face.job(args.job), args.wait)
    context.out.answer(job, show_job(job))
    return exit_of(job)


async def cancel(context: Context) -> Exit:
    job = await context.face.cancel_job(context.args.job)
    context.out.answer(job, show_job(job))
    if job.state not in ENDED_STATES:
        context.out.note(f"it was told to stop, and has not yet: `p2pmem job watch {job.id}`")
    return Exit.OK


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    wait_arguments(parser)


async def retry(context: Context) -> Exit:
    return await finish(context, await context.face.retry_job(context.args.job))


def _resolve_arguments(parser: argparse.ArgumentParser) -> None:
    _job_argument(parser)
    parser.add_argument(
        "--as", dest="outcome", choices=OUTCOMES, required=True, help="what happened, or retry to look and try again"
    )


async def resolve(context: Context) -> Exit:
    job = await context.face.resolve_job(context.args.job, outcome=context.args.outcome)
    context.out.answer(job, show_job(job))
    return Exit.OK


COMMANDS: Final = (
    Command("job list", "list jobs, newest first", list_, _list_arguments),
    Command("job show", "tell the story of a job: states, steps, effects", show, _job_argument),
    Command("job watch", "follow a job to its end", watch, _watch_arguments),
    Command("job cancel", "cancel a job; nothing is deleted", cancel, _job_argument),
    Command("job retry", "try a job that failed or was cancelled again, as a new one", retry, _retry_arguments),
    Command("job resolve", "say how a job ended whose outcome is unknown", resolve, _resolve_arguments),
)
