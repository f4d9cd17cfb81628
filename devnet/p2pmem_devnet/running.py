"""One run of the devnet: a chain, a fleet, the story or the files, the table; and staying up where that is asked."""

from __future__ import annotations

import json
import logging
import shlex
import signal
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import trio
from p2pmem_protocol.errors import MisuseError

from p2pmem.api.problems import Exit, row_of
from p2pmem_devnet.anvil import CHAIN_ID, AnvilMissingError, find_anvil
from p2pmem_devnet.control import need_none_kept, take_orders
from p2pmem_devnet.errors import InterruptedRunError
from p2pmem_devnet.facts import AssetFacts, all_problems
from p2pmem_devnet.files import SLUG as FILES_SLUG, FilesStory, GivenFile, check_files, question_about, read_files
from p2pmem_devnet.fleet import Fleet, FleetSettings, one_error, open_fleet, real_error
from p2pmem_devnet.money import DevChain, open_dev_chain
from p2pmem_devnet.options import OUTSIDER, Options, Order
from p2pmem_devnet.own_directory import own_directory
from p2pmem_devnet.story import QUESTION, SLUG, Outcome, Story, manual_names
from p2pmem_devnet.table import table
from p2pmem_devnet.telling import Teller, all_of, and_list, silent, word

log = logging.getLogger(__name__)

NETWORK: Final = "devnet"


async def run(options: Options) -> Exit:
    """Run, print, and end all processes. `InterruptedRunError` for Ctrl-C before the end; other errors as they come.

    Cancelled, everything that was started is ended too.
    """
    files = read_files(options.files)
    await check_files(files, base=options.base, merge_graphs=options.merge_graphs)
    if options.keep:
        await need_none_kept()
    interrupted = False
    result: Exit | None = None

    async def until_signal(scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]) -> None:
        nonlocal interrupted
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                interrupted = True
                scope.cancel()

    async with one_error(), trio.open_nursery() as nursery:
        everything = trio.CancelScope()
        await nursery.start(until_signal, everything)
        with everything:
            run_ = _Run(options, files)
            try:
                await run_.run()
            finally:
                result = run_.result
        nursery.cancel_scope.cancel()
    if result is None:
        if interrupted:
            raise InterruptedRunError
        raise MisuseError("the run was stopped before its end")
    return result


class _Run:
    """What belongs to one run."""

    def __init__(self, options: Options, files: Mapping[str, GivenFile]) -> None:
        self._options = options
        self._files = dict(files)
        self._teller = Teller(out=silent) if options.json else Teller()
        self._stop = trio.Event()
        self.result: Exit | None = None

    async def run(self) -> None:
        options = self._options
        with run_directory() as directory:
            async with self._chain(directory / "chain") as chain:
                settings = FleetSettings(
                    NETWORK,
                    manual=frozenset() if self._files else manual_names(options.names, options.m),
                    chain=chain.settings if chain else {},
                )
                async with open_fleet(options.names, directory, settings) as fleet:
                    await self._begin(fleet, chain)
                    if self._files:
                        story = FilesStory(
                            fleet,
                            self._teller,
                            self._files,
                            options.m,
                            chain=chain is not None,
                            base=options.base,
                            merge_graphs=options.merge_graphs,
                        )
                        outcome = Outcome(assets=await story.tell())
                    else:
                        outcome = await Story(fleet, self._teller, NETWORK, options.m, chain=chain is not None).tell()
                    self._conclude(fleet, outcome)
                    if options.keep:
                        await self._stay(fleet)

    @asynccontextmanager
    async def _chain(self, directory: Path) -> AsyncIterator[DevChain | None]:
        """The chain, or None when it is not wanted or cannot be here; the teller says which."""
        begin = f"{word(self._options.nodes).capitalize()} peers start, each in a process of its own"
        why = "as asked" if not self._options.chain else _anvil_missing()
        if why:
            self._teller.say(f"{begin}; no chain: {why}.")
            yield None
            return
        async with open_dev_chain(directory, NETWORK) as chain:
            self._teller.say(f"{begin}; and a chain for them (anvil, chain id {CHAIN_ID}) with the contract on it.")
            yield chain

    async def _begin(self, fleet: Fleet, chain: DevChain | None) -> None:
        if chain is not None:
            await chain.pay(node.agent for node in fleet)
        await fleet.start()
        names = and_list([node.name for node in fleet])
        self._teller.say(f"{names} are up." if self._files else f"{names} are up. So is {OUTSIDER}, an outsider.")

    # The end

    def _conclude(self, fleet: Fleet, outcome: Outcome) -> None:
        problems = all_problems(outcome.assets)
        self.result = Exit.JOB_ENDED_BADLY if problems else Exit.OK
        names = [node.name for node in fleet]
        if self._options.json:
            print(json.dumps(self._document(fleet, outcome, problems), indent=2), flush=True)
            return
        self._teller.show("\n" + table(outcome.assets, names) + "\n")
        if problems:
            self._teller.show("\n".join(["The peers do not agree:", *(f"  {problem}" for problem in problems)]))
        else:
            self._teller.show(
                f"{all_of(len(names)).capitalize()} peers agree: the same trust, the same root, recomputed from the "
                "bytes that each gave,\nand the same certificate."
            )

    def _document(self, fleet: Fleet, outcome: Outcome, problems: list[str]) -> dict[str, Any]:
        """The same as the story and the table, for programs."""
        return {
            "ok": not problems,
            "problems": problems,
            "peers": [
                {"name": it.name, "agent": str(it.agent), "peer": it.peer, "rss_bytes": it.main_rss_bytes()}
                for it in fleet
            ],
            "seconds": round(self._teller.now_s(), 3),
            "assets": [_asset(asset) for asset in outcome.assets],
            "visible_seconds": {name: round(took, 4) for name, took in outcome.visible_s.items()},
            "outsider": {
                "visits": [asdict(haul) for haul in outcome.hauls],
                "open_graph": asdict(outcome.open_read) if outcome.open_read else None,
            },
            "expired_on": sorted(outcome.expired_on),
            "folded": outcome.folded,
            "recalled": [_hit(hit) for hit in outcome.recalled.hits] if outcome.recalled else [],
            "story": [asdict(told) for told in self._teller.told],
        }

    # Staying up

    async def _stay(self, fleet: Fleet) -> None:
        if not self._options.json:
            first = next(iter(fleet))
            question = await question_about(first.face, FILES_SLUG) if self._files else QUESTION
            self._teller.show(_guide(fleet, FILES_SLUG if self._files else SLUG, question))

        async def carry(order: Order) -> str:
            return await carry_out(fleet, order, self._stop)

        async with take_orders(carry):
            await self._stop.wait()


async def carry_out(fleet: Fleet, order: Order, stop: trio.Event) -> str:
    """An order to a fleet that is kept. `MisuseError` for one that cannot be."""
    match order.word:
        case "kill":
            if not fleet[order.argument].is_running:
                raise MisuseError(f"{order.argument} is down already")
            await fleet[order.argument].kill()
            return f"{order.argument} is killed (-9)"
        case "start":
            await fleet.start(order.argument)
            return f"{order.argument} is up: {fleet[order.argument].url}"
        case "partition":
            one, comma, other = order.argument.partition(",")
            if not comma:
                raise MisuseError("two names with a comma between them: scripts/devnet partition ada,bo")
            fleet.part(one.strip(), other.strip())
            return f"no byte passes between {one.strip()} and {other.strip()}; `scripts/devnet heal` ends it"
        case "heal":
            fleet.heal()
            return "all partitions have ended"
        case "status":
            lines = [f"{node.name:6} {node.url if node.is_running else 'down'}" for node in fleet]
            return "\n".join([*lines, *(f"no byte passes between {and_list(pair)}" for pair in fleet.parted())])
        case "stop":
            stop.set()
            return "it ends"
    raise MisuseError(f"there is no order {order.word!r}")


def _anvil_missing() -> str:
    """Why there can be no chain, and how to get one; empty when there can."""
    try:
        find_anvil()
    except AnvilMissingError as missing:
        return str(missing)
    return ""


def _guide(fleet: Fleet, graph: str, question: str) -> str:
    """How to talk to a devnet that stays up. `question` is one that something in it answers; empty for none."""
    nodes = list(fleet)
    width = max(len(node.name) for node in nodes)
    addresses = [f"  {node.name.ljust(width)}  {node.url}  token {node.home.token_file}" for node in nodes]
    first, last = nodes[0], nodes[-1]
    return "\n".join(
        [
            "",
            "All stay up until Ctrl-C.",
            *addresses,
            "",
            "Try, in another terminal:",
            f"  export P2PMEM_HOME={first.home.data_dir}",
            "  scripts/p2pmem status",
            f"  scripts/p2pmem versions --graph {graph}",
            *([f"  scripts/p2pmem recall {shlex.quote(question)}"] if question else []),
            f"  scripts/p2pmem query --graph {graph} 'SELECT * {{ ?s ?p ?o }} LIMIT 5'",
            f"  scripts/devnet kill {last.name}",
            f"  scripts/devnet start {last.name}",
            f"  scripts/devnet partition {first.name},{last.name}",
            "  scripts/devnet heal",
            "  scripts/devnet stop",
        ]
    )


def _asset(asset: AssetFacts) -> dict[str, Any]:
    return {**asdict(asset), "problems": asset.problems()}


def _hit(hit: Any) -> dict[str, Any]:
    version = hit.version
    return {
        "text": hit.text,
        "note": hit.note,
        "reference": version.reference if version else "",
        "trust": version.trust.level if version else "",
        "approvals": version.trust.approvals if version else 0,
        "signers": [asdict(signer) for signer in version.trust.signers] if version else [],
    }


def run_directory() -> AbstractContextManager[Path]:
    """A directory for a run, with the keys and logs of its nodes. It goes, unless they explain what failed."""
    return own_directory(Path(tempfile.gettempdir()), "p2pmem-devnet-", _explains)


def _explains(error: BaseException, path: Path) -> bool:
    """Whether logs are of use to who looks into an error; it then says where they are."""
    why = real_error(error)
    if not isinstance(why, Exception) or row_of(why).exit in (Exit.MISUSE, Exit.REFUSED, Exit.NOT_FOUND):
        return False
    why.add_note(f"the nodes, with their logs and keys, are kept in {path}")
    return True
