"""Scenarios: stories of a cluster that a person can read, as TOML, run over seeds, each ending with an audit.

A file says what it is about, what the cluster is made of, and what happens, step by step::

    about = "Two halves of a team work apart and meet again."
    cluster = { nodes = 5, quorum = 2 }
    step = [
        { share = { by = "bo", as = "plan", text = "ex:plan ex:begins ex:monday .", ttl = "2 days" } },
        { part = { left = ["ada", "bo"], right = ["cy", "dan", "eve"] } },
        { wait = "1 hour" },
        { heal = {} },
        { settle = {} },
        { expect = { asset = "plan", at = "everybody" } },
    ]

Each step is one word of `ScenarioRun` with its arguments. What is left open (who does what in `busy`) the seed decides.
"""

from __future__ import annotations

import gc
import logging
import tomllib
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from importlib import resources
from multiprocessing import get_context
from random import Random
from typing import Any, Final

import trio
from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.evidence import Decision, Method
from p2pmem_protocol.trust import Trust

from p2pmem.face import MemberChange, NewMember
from p2pmem.work.outgoing import Ready
from p2pmem_devnet.cluster import Cluster
from p2pmem_devnet.cluster_node import Asset, ClusterNode
from p2pmem_devnet.scenario_life import Life
from p2pmem_devnet.shared_work import shared_work
from p2pmem_devnet.virtual_time import virtual_clock

_UNITS: Final = {
    "second": timedelta(seconds=1),
    "minute": timedelta(minutes=1),
    "hour": timedelta(hours=1),
    "day": timedelta(days=1),
}
STEPS_MAX: Final = 1_000
COUNT_MAX: Final = 100_000
COLLECTED_AT: Final = (20_000, 20, 50)
PROCESSES_MAX: Final = 256


class ScenarioError(AssertionError):
    """A scenario did not end as it says it does. Names the seed, and the command that runs it again."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story: its name, what it is about, what the cluster is made of, and steps of one word with arguments."""

    name: str
    about: str
    cluster: dict[str, Any]
    steps: tuple[tuple[str, dict[str, Any]], ...]
    long: bool = False
    """It takes a minute or so, and `all` leaves it out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one run ended. `trace` is the hash of all that happened; `trouble` is empty when all was well."""

    name: str
    seed: int
    trace: str
    events: int
    virtual_s: float
    trouble: str

    @property
    def line(self) -> str:
        """It in words, with what to do after a failure."""
        ended = self.trouble or f"well: {self.events} events in {self.virtual_s:.0f} s of its time"
        return f"{self.name} seed {self.seed}: {ended}" + (f"\n  again: {self.again}" if self.trouble else "")

    @property
    def again(self) -> str:
        """The command that runs it again."""
        return f"p2pmem-devnet run {self.name} --seed {self.seed}"


def names() -> tuple[str, ...]:
    """The scenarios that come with the package."""
    return tuple(sorted(it.name.removesuffix(".toml") for it in _folder().iterdir() if it.name.endswith(".toml")))


def load(name: str) -> Scenario:
    """Read a scenario of the package. Raises `MisuseError` for a name that is none."""
    if name not in names():
        raise MisuseError(f"{name!r} is no scenario; there are: {', '.join(names())}")
    return parse(name, (_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def parse(name: str, text: str) -> Scenario:
    """Read a scenario from TOML. Raises `MisuseError` that names the step."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise MisuseError(f"{name}: {error}") from None
    if set(document) - {"long"} != {"about", "cluster", "step"}:
        raise MisuseError(f"{name}: a scenario has `about`, `cluster`, `step`, perhaps `long`, and nothing else")
    raw = document["step"]
    if not isinstance(raw, list) or not 0 < len(raw) <= STEPS_MAX:
        raise MisuseError(f"{name}: `step` is a list of 1 to {STEPS_MAX} steps")
    steps = tuple(_step(name, number, step) for number, step in enumerate(raw, 1))
    return Scenario(name, str(document["about"]), dict(document["cluster"]), steps, bool(document.get("long")))


def _step(name: str, number: int, step: Any) -> tuple[str, dict[str, Any]]:
    if not isinstance(step, dict) or len(step) != 1:
        raise MisuseError(f"{name}, step {number}: a step is one word with its arguments")
    word, given = next(iter(step.items()))
    if word not in WORDS:
        raise MisuseError(f"{name}, step {number}: {word!r} is no word; the words are {', '.join(sorted(WORDS))}")
    return word, given if isinstance(given, dict) else {"": given}


def run(
    name: str,
    *,
    seed: int = 1,
    count: int = 1,
    processes: int = 1,
    say: Callable[[str], object] | None = None,
) -> tuple[Outcome, ...]:
    """Run a scenario for `count` seeds from `seed` on, each to its audit; `all` runs every scenario that is not long.

    Blocks; virtual time. A failed run does not stop the others: look at `Outcome.trouble`. With more than one of
    `processes` runs are spread over as many; what comes of each, and the order in which they are told, is the same.
    """
    if not 1 <= count <= COUNT_MAX:
        raise MisuseError(f"count is 1 to {COUNT_MAX}, not {count}")
    if not 1 <= processes <= PROCESSES_MAX:
        raise MisuseError(f"processes are 1 to {PROCESSES_MAX}, not {processes}")
    chosen = [it for it in map(load, names()) if not it.long] if name == "all" else [load(name)]
    runs = [(scenario, each) for each in range(seed, seed + count) for scenario in chosen]
    outcomes: list[Outcome] = []
    for outcome in _outcomes(runs, min(processes, len(runs))):
        outcomes.append(outcome)
        if say is not None:
            say(outcome.line)
    return tuple(outcomes)


def _outcomes(runs: list[tuple[Scenario, int]], processes: int) -> Iterator[Outcome]:
    if processes == 1:
        yield from (run_once(*it) for it in runs)
        return
    # Not forked: what a fork copies of this process, trio's and SQLite's state, is no good in another.
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=be_quiet) as pool:
        yield from pool.map(run_once, *zip(*runs, strict=True))


def run_once(scenario: Scenario, seed: int) -> Outcome:
    """Run one story with one seed."""
    with _seldom_collected():
        return trio.run(_run_once, scenario, seed, clock=virtual_clock())


def be_quiet() -> None:
    """What nodes log about each other's misdeeds is part of the story; it is for who sets logging up."""
    logging.getLogger().addHandler(logging.NullHandler())


@contextmanager
def _seldom_collected() -> Iterator[None]:
    """Thousands of records live as long as the run and hold no cycles: the collector need not look at all of them
    whenever some hundred objects were made, and never at what was there before."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECTED_AT)
    gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()
        gc.unfreeze()


async def _run_once(scenario: Scenario, seed: int) -> Outcome:
    settings = {key: _setting(key, value) for key, value in scenario.cluster.items() if key != "nodes"}
    settings.setdefault("projection_gathers", timedelta(minutes=1))  # no word of a scenario asks them anything
    cluster = Cluster(int(scenario.cluster.get("nodes", 5)), seed, **settings)
    trouble = ""
    at = "before its first step"
    try:
        async with cluster:
            story = ScenarioRun(cluster, Random(f"{scenario.name}/{seed}"))  # noqa: S311 - the seed is the point
            with story.partitions:
                with shared_work():
                    for number, (word, given) in enumerate(scenario.steps, 1):
                        at = f"at step {number}, {word}"
                        await WORDS[word](story, **{key or "value": value for key, value in given.items()})
                at = "in the audit"
                cluster.audit()
    except Exception as error:
        trouble = f"{at}: {_first(error)}"
    return Outcome(scenario.name, seed, cluster.trace.digest, cluster.trace.count, trio.current_time(), trouble)


def _first(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"


class ScenarioRun:
    """One story under way. Its methods are the words of scenarios."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.assets: dict[str, Asset] = {}
        self.jobs: dict[str, tuple[ClusterNode, str]] = {}
        self.partitions = ExitStack()

    # Who

    def node(self, name: str) -> ClusterNode:
        for node in self.cluster.nodes:
            if node.name == name:
                return node
        raise MisuseError(f"there is no node {name!r}; there are {', '.join(it.name for it in self.cluster.nodes)}")

    def nodes(self, names: str | Iterable[str]) -> list[ClusterNode]:
        """`everybody` stands for all that run."""
        if names == "everybody":
            return [node for node in self.cluster.nodes if node.is_up]
        return [self.node(name) for name in ([names] if isinstance(names, str) else names)]

    # Saying

    async def share(self, by: str, text: str, ttl: str | None = None, **named: str) -> None:
        asset = await self.node(by).share(text, name=named.get("name"), ttl=_time(ttl) if ttl else None)
        self.assets[named.get("as", asset.name)] = asset

    async def renew(self, asset: str, ttl: str) -> None:
        found = self.assets[asset]
        author = next(node for node in self.cluster.nodes if node.address == found.author)
        await author.share(name=found.name, ttl=_time(ttl))

    async def publish(self, by: str, text: str, **named: str) -> None:
        asset = await self.node(by).publish(named.get("name"), text=text)
        self.assets[named.get("as", asset.name)] = asset

    async def endorse(self, by: str | list[str], asset: str) -> None:
        for node in self.nodes(by):
            await node.endorse(self.assets[asset])

    async def verify(self, by: str, asset: str, within: str = "7 days") -> None:
        job = await self.node(by).start_verify(self.assets[asset], within=_time(within))
        self.jobs[asset] = (self.node(by), job.id)

    async def decide(self, by: str | list[str], approve: bool, reason: str = "") -> None:
        for node in self.nodes(by):
            await node.decide(approve=approve, reason=reason)

    async def retract(self, by: str, asset: str, erase: bool = False) -> None:
        await self.node(by).retract(self.assets[asset], erase=erase)

    async def lie(self, by: str, asset: str) -> None:
        """A verifier says everything at once: it approves and rejects, by every method, and changes its reasons."""
        node, found = self.node(by), self.assets[asset]
        graph = node.graph_named(found.graph)
        view = node.view(found)
        assert view is not None
        assert graph.head is not None
        services = node.inside.services
        for decision in Decision:
            for method in Method:
                for reason in ("sure", "not sure", ""):
                    said = services.signing.verdict(
                        graph, node.address, view.key, graph.head.quorum.id, decision, method, reason
                    )
                    await services.outgoing.admit(Ready(said))

    async def busy(self, shares: int, over: str, ttl: str = "1 hour") -> None:
        """Everybody shares, now and then one endorses another's, over a time."""
        pause_s = _time(over).total_seconds() / shares
        for number in range(shares):
            up = [node for node in self.cluster.nodes if node.is_up and node.address in self.cluster.ever_listed]
            node = self.chance.choice(up)
            asset = await node.share(
                f"ex:{node.name}{number} ex:says ex:thing{self.chance.randrange(99)} .", ttl=_time(ttl)
            )
            reader = self.chance.choice(up)
            await trio.sleep(self.chance.uniform(0, 2 * pause_s))
            if reader is not node and reader.is_up and reader.sees(asset) and self.chance.random() < 0.5:
                await reader.endorse(asset)

    async def live(self, shares: int, over: str, ttl: str = "1 hour", verifications: int = 0, faults: int = 0) -> None:
        """Everybody shares and asks for verifications over a time, while nodes crash and parts are cut off."""
        life = Life(self.cluster, self.chance, _time(ttl))
        await life.live(shares=shares, verifications=verifications, faults=faults, over=_time(over))

    # Faults

    async def part(self, left: list[str], right: list[str], one_way: bool = False) -> None:
        self.partitions.enter_context(self.cluster.partition(self.nodes(left), self.nodes(right), one_way=one_way))

    async def heal(self) -> None:
        self.partitions.close()

    async def crash(self, nodes: str | list[str], silent: bool = False) -> None:
        await self.cluster.crash(*self.nodes(nodes), silent=silent)

    async def stop(self, nodes: str | list[str]) -> None:
        await self.cluster.stop(*self.nodes(nodes))

    async def restart(self, nodes: str | list[str]) -> None:
        await self.cluster.restart(*self.nodes(nodes))

    async def wipe(self, nodes: str | list[str]) -> None:
        await self.cluster.wipe_projection(*self.nodes(nodes))

    async def skew(self, node: str, by: str) -> None:
        self.cluster.skew(self.node(node), _time(by))

    async def slow(self, nodes: str | list[str], delay: str, jitter: str = "0 seconds") -> None:
        self.cluster.slow(*self.nodes(nodes), delay=_time(delay), jitter=_time(jitter))

    async def lose(self, nodes: str | list[str], every: str) -> None:
        self.cluster.lose(*self.nodes(nodes), every=_time(every))

    async def calm(self) -> None:
        self.cluster.calm()

    async def attack(self, nodes: str | list[str] = "everybody") -> None:
        """A stranger with everything that can have leaked tries all his tricks."""
        stranger = await self.cluster.stranger()
        for node in self.nodes(nodes):
            ids = sorted(record.id for record in node.graph.set.records())
            address = node.inside.network.addresses()[0]
            await stranger.everything(address, node.graph.id, ids, self.cluster.nodes[0].address)

    # Members

    async def join(self, name: str, roles: list[str]) -> None:
        await self.cluster.join(name, roles=tuple(roles))

    async def remove(self, nodes: str | list[str]) -> None:
        await self.cluster.remove(*self.nodes(nodes))

    async def leave(self, nodes: str | list[str]) -> None:
        for node in self.nodes(nodes):
            await node.leave()

    async def twin(self, of: str, name: str) -> None:
        """A second node of the same agent."""
        await self.cluster.twin(self.node(of), name)

    async def roster(self, by: str, remove: list[str] | None = None, set: dict[str, list[str]] | None = None) -> None:
        """The owner's node signs a change of members."""
        members = tuple(NewMember(str(self.node(name).address), tuple(roles)) for name, roles in (set or {}).items())
        gone = tuple(str(self.node(name).address) for name in remove or ())
        await self.node(by).change_members(MemberChange(set=members, remove=gone))

    # Time, and what is to be

    async def wait(self, value: str) -> None:
        await trio.sleep(_time(value).total_seconds())

    async def settle(self, within: str = "10 minutes") -> None:
        await self.cluster.settled(_time(within))

    async def expect(
        self,
        asset: str,
        at: str | list[str] = "everybody",
        trust: str | None = None,
        gone: bool = False,
        conflict: bool = False,
    ) -> None:
        found = self.assets[asset]
        for node in self.nodes(at):
            if node.sees(found) == gone:
                raise ScenarioError(f"{node.name} {'still shows' if gone else 'does not show'} {asset}")
            level = node.trust(found)
            if trust is not None and level is not Trust.parse(trust):
                raise ScenarioError(f"{asset} is {level.word if level else 'gone'} at {node.name}, not {trust}")
            view = node.view(found)
            if conflict and not (view is not None and view.conflict):
                raise ScenarioError(f"{node.name} does not mark the conflict about {asset}")

    async def expect_job(self, asset: str, state: str = "succeeded") -> None:
        node, job = self.jobs[asset]
        found = await node.job(job)
        if found.state != state:
            raise ScenarioError(f"the verification of {asset} is {found.state}: {found.waiting_for or found.error}")

    async def expect_trouble(self, at: str | list[str], says: str) -> None:
        """Status or graph of these nodes say what is wrong, in these words."""
        for node in self.nodes(at):
            warnings = (await node.face.status()).warnings
            if not any(says in warning for warning in warnings):
                raise ScenarioError(f"{node.name} does not say {says!r}; it says {warnings}")


_NOT_WORDS: Final = ("node", "nodes")
WORDS: Final[dict[str, Callable[..., Awaitable[None]]]] = {
    name: fn for name, fn in vars(ScenarioRun).items() if not name.startswith("_") and name not in _NOT_WORDS
}


def _folder() -> Any:
    return resources.files("p2pmem_devnet") / "data" / "scenarios"


def _setting(key: str, value: Any) -> Any:
    if key in ("ttl", "ttl_max", "projection_gathers"):
        return _time(value)
    return tuple(value) if isinstance(value, list) else value


def _time(text: str) -> timedelta:
    """`2 days`, `90 seconds`, `-10 minutes`."""
    number, _, unit = text.partition(" ")
    try:
        return float(number) * _UNITS[unit.removesuffix("s")]
    except (ValueError, KeyError):
        raise MisuseError(f"{text!r} is no time; write a number and seconds, minutes, hours or days") from None
