"""What a person does for a node that runs, beside what it says and remembers."""

from __future__ import annotations

import argparse
import os
from typing import Final

from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.cli.command import Command, Context, graph_argument
from p2pmem.cli.views import show_jump
from p2pmem.cli.words import show_time
from p2pmem.face import CompactView


def show_compacted(compacted: CompactView) -> str:
    before, after = (f"{size / 1e6:,.1f} MB" for size in (compacted.before_bytes, compacted.after_bytes))
    return f"wrote all files anew: they took {before} and take {after}; what is recalled and queried fills again"


async def confirm_clock(context: Context) -> Exit:
    before = await context.face.status()
    after = await context.face.confirm_clock()
    if not before.clock.doubted:
        text = f"the clock is not in doubt; it says {show_time(before.now_ms)}"
    elif after.doubted:
        text = f"the clock was confirmed at {show_time(before.now_ms)}, and has jumped again: {show_jump(after)}"
    else:
        text = f"the clock is right: {show_time(before.now_ms)}, {show_jump(before.clock)} of where it was"
    context.out.answer(after, text)
    return Exit.OK


def _absolute(file: str) -> str:
    """The node has another working directory."""
    return os.path.abspath(file)


async def backup(context: Context) -> Exit:
    made = await context.face.back_up(_absolute(context.args.file))
    context.out.answer(made, f"copied the ledger to {made.file}, {made.bytes / 1e6:,.1f} MB; keys are not in it")
    return Exit.OK


async def confirm_restore(context: Context) -> Exit:
    before = (await context.face.status()).restored.waiting
    if context.args.all and context.named_graph is not None:
        raise BadRequestError("say --all or --graph, not both")
    after = await context.face.confirm_restore(None if context.args.all else await context.graph())
    ended = [it for it in before if it not in after.waiting]
    text = f"signs again in {', '.join(ended)}" if ended else "there was nothing to confirm"
    context.out.answer(after, text)
    return Exit.OK


async def compact(context: Context) -> Exit:
    compacted = await context.face.compact()
    context.out.answer(compacted, show_compacted(compacted))
    return Exit.OK


def _backup_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a new file; one that exists is not overwritten")


def _restore_arguments(parser: argparse.ArgumentParser) -> None:
    graph_argument(parser)
    parser.add_argument("--all", action="store_true", help="in all context graphs")


COMMANDS: Final = (
    Command(
        "clock confirm",
        "say that the clock of this machine is right, though it jumped",
        confirm_clock,
        details="A clock that jumps by more than five minutes is in doubt, as `p2pmem status` says: nothing that has\n"
        "ended by it is let go. That is over when it jumps back, when most connected members agree with it by what\n"
        "they told before, or with this. Look at `date -u` first: what has ended by it is then gone for good.",
    ),
    Command(
        "backup",
        "copy the ledger of the node that runs to a new file",
        backup,
        _backup_arguments,
        details="The node goes on meanwhile. The copy holds graphs, drafts, jobs and audit as they are at one moment,\n"
        "and only its owner may read it. Keys, token and config.toml are not in it: copy those once. To restore, stop\n"
        "the node, put the copy in the place of `ledger.sqlite`, and remove `ledger.sqlite-wal` and `-shm`.",
    ),
    Command(
        "restore confirm",
        "say that nothing was said since the copy that this node was restored from",
        confirm_restore,
        _restore_arguments,
        details="A restored node signs nothing in a context graph until it has compared it with its members, since it\n"
        "might use a version number twice. Where one of them comes no more, or nothing was lost, this ends the wait.\n"
        "Let it compare with all who still come first. After this its owner can remove who comes no more.",
    ),
    Command(
        "compact",
        "write all files anew, so that nothing erased or ended is left in any",
        compact,
        details="The node goes on serving. It needs as much free disk as `ledger.sqlite` takes; recall and queries\n"
        "find little until triple store and text index are filled again. Prints what the files took and take now.",
    ),
)
