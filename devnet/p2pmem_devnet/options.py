"""What `scripts/devnet` can be asked for."""

from __future__ import annotations

import argparse
import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from p2pmem_protocol.errors import MisuseError

from p2pmem.api.problems import EXIT_MEANINGS, Exit
from p2pmem.cli.command import Parser

NAMES: Final = ("ada", "bo", "cy", "dee", "eli", "fay", "gus", "hal", "ida", "jon", "kim", "lea")
OUTSIDER: Final = "mallory"
NODES_MIN: Final = 2
NODES_DEFAULT: Final = 5
ORDERS: Final = {
    "kill": "NAME",
    "start": "NAME",
    "partition": "A,B",
    "heal": "",
    "status": "",
    "stop": "",
}
"""Orders to a devnet that is kept, with what each takes."""

_EXITS: Final = {
    Exit.OK: "all peers agree: same trust, same root recomputed from the bytes, same certificate",
    Exit.JOB_ENDED_BADLY: "the peers do not agree, something that had to happen did not, or the outsider got something",
    Exit.OUTSIDE: "a process, the disk or the chain failed",
    Exit.NOT_FOUND: "there is no such file",
}


@dataclass(frozen=True, slots=True)
class Options:
    """How to run. `m` verifiers of the `nodes` - 1 others have to approve."""

    files: tuple[Path, ...] = ()
    nodes: int = NODES_DEFAULT
    m: int = 3
    keep: bool = False
    json: bool = False
    chain: bool = True
    merge_graphs: bool = False
    base: str | None = None
    """What relative IRIs in the files are relative to."""

    @property
    def names(self) -> list[str]:
        return list(NAMES[: self.nodes])


@dataclass(frozen=True, slots=True)
class Order:
    """Something to tell a devnet that is kept."""

    word: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Rehearsal:
    """Scenarios to run: each for `count` seeds, from `seed` on, in so many processes."""

    name: str
    seed: int = 1
    count: int = 1
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)


def parse(arguments: Sequence[str]) -> Options | Order | Rehearsal:
    """Raises `MisuseError` for what cannot be, wrong usage too, and `SystemExit` for `--help`."""
    if arguments and arguments[0] in ORDERS:
        return _order(arguments)
    if arguments and arguments[0] == "run":
        return _rehearsal(arguments[1:])
    if arguments and not Path(arguments[0]).exists():
        near = difflib.get_close_matches(arguments[0], (*ORDERS, "run"), cutoff=0.7)
        if near:
            raise MisuseError(f"{arguments[0]!r} is neither a file nor an order; did you mean {' or '.join(near)}?")
    found = _parser().parse_args(arguments)
    nodes = found.nodes
    if not NODES_MIN <= nodes <= len(NAMES):
        raise MisuseError(f"--nodes is {nodes}: {NODES_MIN} to {len(NAMES)} are possible")
    m = found.quorum if found.quorum is not None else (nodes - 1) // 2 + 1
    if not 1 <= m <= nodes - 1:
        raise MisuseError(f"--quorum is {m}: with {nodes} peers, 1 to {nodes - 1} others can approve")
    files = tuple(found.files)
    return Options(files, nodes, m, found.keep, found.json, not found.no_chain, found.merge_graphs, found.base)


def _order(arguments: Sequence[str]) -> Order:
    word, *rest = arguments
    takes = ORDERS[word]
    if len(rest) != (1 if takes else 0):
        raise MisuseError(f"it is written: scripts/devnet {word} {takes}".rstrip())
    return Order(word, rest[0] if rest else "")


def _rehearsal(arguments: Sequence[str]) -> Rehearsal:
    parser = Parser(
        prog="scripts/devnet run",
        description="Run scenarios in one process, in virtual time, each with an audit at its end.",
    )
    parser.add_argument("name", metavar="NAME|all", help="a scenario of the package; a wrong name lists them")
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="the first seed (default: 1)")
    parser.add_argument("--count", type=int, default=1, metavar="N", help="how many seeds (default: 1)")
    cores = os.cpu_count() or 1
    parser.add_argument(
        "--processes", type=int, default=cores, metavar="P", help=f"spread over so many (default: all cores, {cores})"
    )
    found = parser.parse_args(arguments)
    return Rehearsal(found.name, found.seed, found.count, found.processes)


def _parser() -> argparse.ArgumentParser:
    orders = "\n".join(f"  scripts/devnet {f'{word} {takes}'.strip()}" for word, takes in ORDERS.items())
    exits = {**EXIT_MEANINGS, **_EXITS}
    codes = "\n".join(
        f"  {code.value:>3}  {exits[code]}"
        for code in (*(it for it in Exit if it < Exit.TIMEOUT), Exit.NOT_FOUND, Exit.INTERRUPTED)
    )
    parser = Parser(
        prog="scripts/devnet",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Peers on this machine, each a process of its own, an outsider, and a chain. Without FILE they\n"
        "act out a story on a small data set; with FILE every file goes the whole way, and the table is the result.",
        epilog=f"orders to a devnet that runs with --keep:\n{orders}\n\nscenarios in one process, over many seeds:\n"
        f"  scripts/devnet run NAME|all [--seed S] [--count N] [--processes P]\n\nexit codes:\n{codes}",
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="Turtle, N-Triples, N-Quads, TriG, JSON-LD or RDF/XML"
    )
    parser.add_argument("--nodes", type=int, default=NODES_DEFAULT, metavar="N", help="how many peers (default: 5)")
    parser.add_argument("--quorum", type=int, metavar="M", help="how many others approve (default: most of them)")
    parser.add_argument("--base", metavar="IRI", help="what relative IRIs in the files are relative to")
    parser.add_argument("--merge-graphs", action="store_true", help="assert also what is in named graphs, as one graph")
    parser.add_argument("--keep", action="store_true", help="stay up afterwards, and say how to talk to each peer")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of the story")
    parser.add_argument("--no-chain", action="store_true", help="without anvil; nothing is anchored")
    return parser
