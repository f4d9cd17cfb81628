"""Jobs, followed to their end."""

from __future__ import annotations

import argparse
from contextlib import aclosing
from typing import Any, Final, cast

from p2pmem.api.problems import Exit, TimedOutError, UnreachableError
from p2pmem.cli.command import Context
from p2pmem.cli.views import show_job
from p2pmem.cli.words import clean, duration_ms, show_duration
from p2pmem.face import ENDED_STATES, JobView

_VERIFIED: Final = "ConsensusVerified"


def wait_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the end: answer with the job")
    parser.add_argument(
        "--wait", metavar="DURATION", type=duration_ms, help=f"wait at most so long (exit code {Exit.TIMEOUT.value})"
    )


async def finish(context: Context, job: JobView) -> Exit:
    """Wait for the job unless told otherwise, show it, and say by the exit code how it ended."""
    if not context.args.no_wait:
        job = await follow(context, job, context.args.wait)
    context.out.answer(job, show_job(job))
    return exit_of(job)


async def follow(context: Context, job: JobView, wait_ms: int | None) -> JobView:
    """The job at its end. Raises `TimedOutError` after `wait_ms`; the job goes on."""
    import trio

    context.job = job.id
    limit_s = float("inf") if wait_ms is None else wait_ms / 1_000
    with trio.move_on_after(limit_s) as scope:
        job = await _until_end(context, job)
    context.job = ""
    if scope.cancelled_caught:
        assert wait_ms is not None
        raise TimedOutError(
            f"job {job.id} has not ended within {show_duration(wait_ms)}; it goes on: `p2pmem job watch {job.id}`"
        )
    return job


async def _until_end(context: Context, job: JobView) -> JobView:
    if job.state in ENDED_STATES:
        return job
    async with aclosing(cast("Any", context.face.watch_job(job.id))) as states:
        async for state in states:
            job = state
            context.out.progress(_progress_line(job))
    if job.state not in ENDED_STATES:
        raise UnreachableError(
            f"the node stopped; job {job.id} goes on when it runs again: `p2pmem job watch {job.id}`"
        )
    return job


def _progress_line(job: JobView) -> str:
    more = clean(job.waiting_for or job.progress)
    return f"{job.kind}: {job.state}{f' - {more}' if more else ''}"


def exit_of(job: JobView) -> Exit:
    """OK for a job that goes on, or that ended with what was asked for."""
    if job.state in ("failed", "cancelled", "outcome_unknown"):
        return Exit.JOB_ENDED_BADLY
    if job.kind == "verify" and job.state == "succeeded":
        level = job.result.get("level", _VERIFIED) if isinstance(job.result, dict) else _VERIFIED
        return Exit.OK if level == _VERIFIED else Exit.JOB_ENDED_BADLY
    return Exit.OK
