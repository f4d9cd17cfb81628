"""What a person does for a node that runs, beside what it says and remembers."""

from __future__ import annotations

from typing import Final

from p2pmem.api.problems import Exit
from p2pmem.cli.command import Command, Context
from p2pmem.cli.views import show_jump
from p2pmem.cli.words import show_time


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


COMMANDS: Final = (
    Command(
        "clock confirm",
        "say that the clock of this machine is right, though it jumped",
        confirm_clock,
        details="A clock that jumps by more than five minutes is in doubt, as `p2pmem status` says: nothing that has\n"
        "ended by it is let go. That is over when it jumps back, when most connected members agree with it by what\n"
        "they told before, or with this. Look at `date -u` first: what has ended by it is then gone for good.",
    ),
)
