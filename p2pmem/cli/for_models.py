"""What a model's client starts: the tools of the node as a server of the Model Context Protocol."""

from __future__ import annotations

import argparse
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import Address

from p2pmem.api.problems import Exit
from p2pmem.cli.command import Command, Context

if TYPE_CHECKING:
    from p2pmem.face import Face


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--agent", metavar="ADDRESS", help="speak as this agent of the node, and see only what is its own"
    )


def mcp(context: Context) -> Exit:
    """Serve until the input ends."""
    import trio

    context.home.need()
    agent = str(Address.parse(context.args.agent)) if context.args.agent else None
    try:
        from p2pmem.mcp.server import serve_stdio
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        raise MisuseError("the package mcp is not installed: pip install 'p2pmem[mcp]'") from None

    @asynccontextmanager
    async def open_node() -> AsyncIterator[Face]:
        from p2pmem.cli.session import open_face

        async with open_face(context.home, agent) as face:
            yield face

    # Nothing is kept here that an end at once could lose, and the thread that reads the input cannot be cancelled.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    trio.run(lambda: serve_stdio(open_node, of_agent=agent is not None))
    return Exit.OK


COMMANDS: Final = (
    Command(
        "mcp",
        "serve the node's tools to a language model, over standard input and output",
        mcp,
        _arguments,
        "For the settings of a client of the Model Context Protocol: it starts this command, and its model then has\n"
        "recall, query, show, graphs, draft, share, publish, endorse, verify, retract, job and status. The node may\n"
        "be started and stopped meanwhile. With --agent query, retract and status, the operator's, are left out.\n"
        "Needs the extra: pip install 'p2pmem[mcp]'.",
        offline=True,
    ),
)
