"""What a command is, and the parser made from all of them."""

from __future__ import annotations

import argparse
import difflib
import itertools
import re
import textwrap
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NoReturn

import p2pmem
from p2pmem.api.problems import EXIT_MEANINGS, BadRequestError, Exit
from p2pmem.face_names import graph_of
from p2pmem.home import Home

if TYPE_CHECKING:
    from p2pmem.cli.output import Output
    from p2pmem.face import Face

SHOWN_CHARACTERS: Final = 40
HELP_COLUMNS: Final = 120
GROUPS = {
    "graph": "context graphs: found them, and say who is in them",
    "review": "proposals that wait for your verdict",
    "job": "what the node does for you in the background",
    "trust": "who stands behind a version, and certificates of it",
    "agent": "who speaks through this node",
    "sign": "what a wallet outside signs",
    "proof": "that one statement belongs to a sealed version",
    "peer": "other nodes: who is connected, who is kept out",
    "clock": "whether this machine's clock may be acted on",
    "restore": "whether a node that was restored may sign again",
    "acting": "agents that act for somebody, and for whom",
    "config": "the node's settings",
}
DESCRIPTION = """\
Shared, verifiable memory for AI agents, peer to peer.

`p2pmem init` makes a node in P2PMEM_HOME (or the XDG directories) and `p2pmem run` runs it; the other commands talk to
the node that runs. Durations are written 30s, 2h, 7d. A context graph is <address>/<slug>, or its slug alone where that
is clear; with one graph only, --graph may be left out. A version is <address>/<name>@<version>. Your own address and
the newest version may be left out; where a command only reads, so may the address of the only author with that name."""


def epilogue() -> str:
    lines = [f"  {code.value:<4} {EXIT_MEANINGS[code]}" for code in Exit]
    return "exit codes:\n" + "\n".join(lines)


@dataclass
class Context:
    """What a command works with. `face` is there for commands that talk to a node, `job` is the one waited for."""

    args: argparse.Namespace
    out: Output
    home: Home
    job: str = ""
    _face: Face | None = field(default=None, repr=False)

    @property
    def face(self) -> Face:
        assert self._face is not None, "an offline command talks to no node"
        return self._face

    def connect(self, face: Face) -> None:
        self._face = face

    @property
    def named_graph(self) -> str | None:
        """What `--graph` says, or the argument in its place."""
        by_option: str | None = self.args.graph
        by_place: str | None = getattr(self.args, "graph_by_place", None)
        if by_option is not None and by_place is not None:
            raise BadRequestError(f"name the context graph once: {by_place} or --graph {by_option}")
        return by_option if by_place is None else by_place

    async def graph(self) -> str:
        """The graph that is named by its name, IRI or slug, or the only one there is."""
        return await graph_of(self.face, self.named_graph, " with --graph")


@dataclass(frozen=True, slots=True)
class Command:
    """One command: its words, what it does in a line, its arguments, and what runs it.

    Offline commands need no node. `details` follows the line in `--help`.
    """

    words: str
    help: str
    run: Callable[[Context], Awaitable[Exit]] | Callable[[Context], Exit]
    arguments: Callable[[argparse.ArgumentParser], object] = lambda parser: None
    details: str = ""
    offline: bool = False


class UsageError(BadRequestError):
    """The words of a command line are not ones that its parser takes."""


class Parser(argparse.ArgumentParser):
    """Raises `UsageError` for what is wrong, and takes options between positional arguments wherever they stand."""

    _within: bool = False

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        # so that `--ttl -5m` is heard as a duration that cannot be, and not as an option that nobody knows
        self._negative_number_matcher = re.compile(r"-\.?[0-9]")

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message} (see `{self.prog} --help`)")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As of argparse, which by itself gives an argument that may be missing up at the first option."""
        if self._within:
            return super().parse_known_args(args, namespace)
        self._within = True
        try:
            intermixed = self._may_miss_a_positional()
            parse = self.parse_known_intermixed_args if intermixed else super().parse_known_args
            found, unknown = parse(args, namespace)
        finally:
            self._within = False
        if unknown:
            # here, so that it names the help of the command, and not that of all commands
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """As of argparse, which would list every command to who wrote one wrongly."""
        if isinstance(action, argparse._SubParsersAction) and value not in (known := tuple(action.choices or ())):
            near = difflib.get_close_matches(str(value), known, cutoff=0.7)
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            self.error(f"there is no command {str(value)[:SHOWN_CHARACTERS]!r}{meant}")
        super()._check_value(action, value)

    def _may_miss_a_positional(self) -> bool:
        return any(not action.option_strings and action.nargs in ("?", "*") for action in self._actions)


def asks_for_json(arguments: Sequence[str]) -> bool:
    """Whether `--json` is among the options of a command line, be the rest of it right or wrong."""
    return "--json" in itertools.takewhile(lambda word: word != "--", arguments)


def make_parser(commands: Sequence[Command]) -> Parser:
    """The parser of all commands. `args.command` is the one that was chosen."""
    raw = argparse.RawDescriptionHelpFormatter
    top = Parser(prog="p2pmem", description=DESCRIPTION, epilog=epilogue(), formatter_class=raw, allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"p2pmem {p2pmem.__version__}")
    _common(top, home=None, json=False)
    words = top.add_subparsers(metavar="COMMAND", required=True)
    groups = {}
    for command in commands:
        group, _, name = command.words.rpartition(" ")
        if group and group not in groups:
            text = GROUPS[group]
            parser = words.add_parser(group, help=text, description=text, allow_abbrev=False)
            groups[group] = parser.add_subparsers(metavar="COMMAND", required=True)
        under = groups[group] if group else words
        details = textwrap.fill(command.details, HELP_COLUMNS)
        description = f"{command.help}\n\n{details}".strip()
        parser = under.add_parser(
            name, help=command.help, description=description, formatter_class=raw, allow_abbrev=False
        )
        command.arguments(parser)
        _common(parser, home=argparse.SUPPRESS, json=argparse.SUPPRESS)
        parser.set_defaults(command=command)
    return top


def _common(parser: argparse.ArgumentParser, *, home: str | None, json: bool | str) -> None:
    parser.add_argument("--home", metavar="DIR", default=home, help="the node's directory, instead of P2PMEM_HOME")
    parser.add_argument("--json", action="store_true", default=json, help="answer in JSON, as over HTTP")


# Arguments that several commands have


def graph_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", metavar="GRAPH", help="the context graph; the only one where there is one")


def one_graph_or_all(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", metavar="GRAPH", help="one context graph; without, all")


def about_graph(parser: argparse.ArgumentParser) -> None:
    """For commands that are about a context graph: it may stand as their argument too."""
    parser.add_argument("graph_by_place", metavar="GRAPH", nargs="?", help="the same as --graph GRAPH")
    graph_argument(parser)


def reference_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "reference",
        metavar="VERSION",
        help="<address>/<name>@<version>, or the last parts of it; @<version>:<seal> where a version has two",
    )
    graph_argument(parser)


def trust_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--min-trust",
        metavar="LEVEL",
        help="SelfAttested, Endorsed, PartiallyVerified or ConsensusVerified; without, all but Rejected",
    )
    parser.add_argument("--min-m", type=int, default=0, help="least M of the quorum under which it stands")
