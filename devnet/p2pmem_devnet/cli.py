"""The entry point of `scripts/devnet`: parse, run, and one line for every error."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Sequence

import trio

from p2pmem.api.problems import Exit, problem, row_of
from p2pmem.cli.command import UsageError, asks_for_json
from p2pmem_devnet.control import give
from p2pmem_devnet.errors import InterruptedRunError, StoryError
from p2pmem_devnet.options import Options, Order, Rehearsal, parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, or give an order, and return the exit code. Raises only the `SystemExit` of `--help`."""
    words = sys.argv[1:] if arguments is None else arguments
    try:
        asked = parse(words)
        if isinstance(asked, Order):
            print(trio.run(give, asked))
            return Exit.OK.value
        if isinstance(asked, Rehearsal):
            return _rehearse(asked).value
        return _run(asked).value
    except (InterruptedRunError, KeyboardInterrupt):
        text = "interrupted; everything that was started has ended"
        print(json.dumps(problem("interrupted", text)) if asks_for_json(words) else f"devnet: {text}", file=sys.stderr)
        return Exit.INTERRUPTED.value
    except Exception as error:
        return _failed(error, as_json=asks_for_json(words)).value


def _rehearse(asked: Rehearsal) -> Exit:
    from p2pmem_devnet.scenarios import be_quiet, run  # heavy too

    be_quiet()
    outcomes = run(asked.name, seed=asked.seed, count=asked.count, processes=asked.processes, say=print)
    return Exit.JOB_ENDED_BADLY if any(outcome.trouble for outcome in outcomes) else Exit.OK


def _run(options: Options) -> Exit:
    from p2pmem_devnet.running import run  # heavy, and an order needs none of it

    return trio.run(run, options)


def _failed(error: Exception, *, as_json: bool) -> Exit:
    """One line that says what and what to do, in JSON as of `p2pmem`; for a mistake of ours also where it was made."""
    code = Exit.JOB_ENDED_BADLY if isinstance(error, StoryError) else row_of(error).exit
    if code is Exit.BUG:
        traceback.print_exception(error)
    text = "; ".join([" ".join(str(error).split()) or type(error).__name__, *getattr(error, "__notes__", [])])
    if as_json:
        print(json.dumps(problem(row_of(error).code, text)), file=sys.stderr)
    elif isinstance(error, UsageError):
        print(text, file=sys.stderr)
    else:
        print(f"devnet: {text}", file=sys.stderr)
    return code
