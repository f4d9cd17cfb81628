"""What a person does for a node that runs, beside what it says and remembers."""

from __future__ import annotations

from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.cli.command import Command, Context
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


async def compact(context: Context) -> Exit:
    compacted = await context.face.compact()
    context.out.answer(compacted, show_compacted(compacted))
    return Exit.OK


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
        "compact",
        "write all files anew, so that nothing erased or ended is left in any",
        compact,
        details="The node goes on serving. It needs as much free disk as `ledger.sqlite` takes; recall and queries\n"
        "find little until triple store and text index are filled again. Prints what the files took and take now.",
    ),
)
