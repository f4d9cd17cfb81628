"""The entry point: parse, run, and one line for every error."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Sequence

from p2pmem.api.codec import dumps
from p2pmem.api.problems import BUG, Exit, problem, problem_of, row_of
from p2pmem.cli import (
    changing,
    checking,
    following,
    for_models,
    graphs,
    here,
    memory,
    peers,
    reading,
    trusting,
    upkeep,
    wallets,
)
from p2pmem.cli.command import Command, Context, UsageError, asks_for_json, make_parser
from p2pmem.cli.output import Output
from p2pmem.face import NewMember
from p2pmem.home import Home

COMMANDS: tuple[Command, ...] = (
    *here.COMMANDS,
    *graphs.COMMANDS,
    *changing.COMMANDS,
    *memory.COMMANDS,
    *reading.COMMANDS,
    *trusting.COMMANDS,
    *wallets.COMMANDS,
    *following.COMMANDS,
    *peers.COMMANDS,
    *upkeep.COMMANDS,
    *checking.COMMANDS,
    *for_models.COMMANDS,
)

NAMES_OF_FILES = frozenset({"home", "file", "content", "head"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Never raises but `SystemExit` of `--help` and `--version`."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        parser = make_parser(COMMANDS)
        args = parser.parse_args(words)
        for name, value in vars(args).items():
            if name not in NAMES_OF_FILES and not _is_text(value):
                parser.error(f"{name.replace('_', '-')} holds bytes that are no UTF-8: {value!r}")
    except UsageError as error:
        return _failed(Output(json=asks_for_json(words)), error)
    context = Context(args, Output(json=args.json), Home.find(args.home))
    try:
        code = _run(args.command, context)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return _interrupted(context)
    except BrokenPipeError:
        # who read our answer has read enough; keep Python from failing again when it flushes at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.OK.value
    except Exception as error:
        return _failed(context.out, error)
    return code.value


def _is_text(value: object) -> bool:
    """Whether what was given as words can be sent as such. Names of files are bytes to the system, and not sent."""
    if isinstance(value, NewMember):
        return _is_text(value.label)
    if isinstance(value, list | tuple):
        return all(map(_is_text, value))
    return not isinstance(value, str) or value.isascii() or not any("\ud800" <= it <= "\udfff" for it in value)


def _run(command: Command, context: Context) -> Exit:
    if command.offline:
        result = command.run(context)
        assert isinstance(result, Exit)
        return result
    import trio

    return trio.run(_with_node, command, context)


async def _with_node(command: Command, context: Context) -> Exit:
    from p2pmem.cli.session import open_face

    async with open_face(context.home) as face:
        context.connect(face)
        result = command.run(context)
        assert inspect.isawaitable(result)
        return await result


def _interrupted(context: Context) -> int:
    goes_on = f"; job {context.job} goes on: `p2pmem job watch {context.job}`" if context.job else ""
    _say(context.out, "interrupted", f"interrupted{goes_on}")
    return Exit.INTERRUPTED.value


def _say(out: Output, code: str, text: str) -> None:
    out.note(dumps(problem(code, text)) if out.json else text)


def _failed(out: Output, raised: Exception) -> int:
    """One line that says what, where and what to do; for a mistake of ours also where it was made."""
    errors = _leaves(raised)
    error = next((it for it in errors if row_of(it) is not BUG), errors[0])
    row = row_of(error)
    if row is BUG:
        traceback.print_exception(raised)
    if out.json:
        _, body = problem_of(error)
        out.note(dumps(body))
    elif row is BUG:
        out.note(f"p2pmem: {type(error).__name__}: this is a mistake in p2pmem; please report it")
    else:
        whose = "" if isinstance(error, UsageError) else "p2pmem: "
        out.note(f"{whose}{' '.join(str(error).split())}")
    return row.exit.value


def _leaves(error: Exception) -> list[Exception]:
    """The errors inside of groups: nurseries wrap what is raised in them."""
    if not isinstance(error, ExceptionGroup):
        return [error]
    return [leaf for inside in error.exceptions for leaf in _leaves(inside)]
