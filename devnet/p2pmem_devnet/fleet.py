"""A fleet: nodes as processes of their own, each with a home directory, killed and started at will.

    async with open_fleet(["ada", "bo"], directory, FleetSettings("trial")) as fleet:
        await fleet.start()
        await fleet["ada"].face.status()
        await fleet["bo"].kill()        # SIGKILL
        await fleet["bo"].start()       # the same home
        fleet.part("ada", "bo")

A node is ready when its process has said so, its run file names that process, and /readyz answers. Nothing waits for a
fixed time. All processes end with the block, and with this process whatever becomes of it.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import httpx
import trio
from p2pmem_protocol.errors import BugError, MisuseError, OutsideError
from p2pmem_protocol.names import Address

from p2pmem.api.client import HttpFace
from p2pmem.config import template
from p2pmem.home import Home, new_token, read_secret, write_secret
from p2pmem.keyring import Keyring, create_agent
from p2pmem.net.multiaddr import parse_tcp
from p2pmem_devnet.lifeline import open_with_lifeline, send_signal
from p2pmem_devnet.relay import Door, group_of_port, open_door

log = logging.getLogger(__name__)

READY_S_MAX: Final = 60.0
STOP_S_MAX: Final = 15.0
LOG_TAIL_BYTES: Final = 8 * 1024


class NodeFailedError(OutsideError):
    """A node did not start, or ended by itself. The text has its last words."""


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """What all nodes of a fleet share. `manual` names those whose verifier is a person."""

    network: str
    manual: frozenset[str] = frozenset()
    chain: Mapping[str, str] = field(default_factory=dict)
    """Settings of the chain, as environment variables of a node."""


class NodeProcess:
    """One node: its home, its door, and the process that runs it, if one does."""

    def __init__(self, name: str, home: Home, door: Door, environment: Mapping[str, str]) -> None:
        self.name = name
        self.home = home
        self._door = door
        self._environment = dict(environment)
        self._process: trio.Process | None = None
        self._drained = trio.Event()
        self._spoke = trio.Event()
        self._face: HttpFace | None = None
        self._nursery: trio.Nursery | None = None
        self.agent = Keyring.load(home).default.address
        self.url = ""
        self.peer = ""
        self.starts = 0

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def face(self) -> HttpFace:
        """What the node offers. Raises `MisuseError` while it is down."""
        if self._face is None:
            raise MisuseError(f"{self.name} is down: start it first")
        return self._face

    @property
    def group(self) -> int | None:
        """The process group of the running node."""
        return self._process.pid if self._process is not None and self.is_running else None

    @property
    def log_file(self) -> Path:
        return self.home.data_dir / "log.txt"

    @property
    def peer_address(self) -> str:
        """Where others dial this node, through its door."""
        return f"{self._door.address}/p2p/{self.peer}"

    @property
    def door(self) -> Door:
        return self._door

    def rss_bytes(self) -> int:
        """Resident memory of the node's own process and its workers, as the kernel counts it (Linux)."""
        if self.group is None:
            return 0
        return sum(_rss_bytes(int(process.name)) for process in _processes_of(self.group))

    def main_rss_bytes(self) -> int:
        """Resident memory of the process that is the node, without its workers."""
        return _rss_bytes(self._run_file()["pid"]) if self.is_running else 0

    # Starting and ending

    async def start(self, nursery: trio.Nursery, **environment: str) -> None:
        """Start the process and return when it is ready. Cancelled or failed, no process is left.

        `environment` goes to this run of the process alone. Raises `NodeFailedError`.
        """
        if self.is_running:
            raise MisuseError(f"{self.name} is running already")
        self.home.run_file.unlink(missing_ok=True)
        self._drained, self._spoke = trio.Event(), trio.Event()
        command = [sys.executable, "-m", "p2pmem", "run", "--log-level", "info"]
        with self.log_file.open("ab") as log_file:
            env = {**os.environ, **self._environment, **environment}
            self._process = await open_with_lifeline(command, stderr=log_file, env=env)
        nursery.start_soon(self._drain, self._process)
        try:
            with trio.fail_after(READY_S_MAX):
                await self._spoke.wait()
                await self._wait_ready()
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await self._end("KILL")
            if isinstance(error, trio.TooSlowError):
                raise NodeFailedError(
                    f"{self.name} was not ready within {READY_S_MAX:g} s: {self.last_words()}"
                ) from error
            raise
        self.starts += 1
        log.info("node.started", extra={"node": self.name, "url": self.url})

    async def _wait_ready(self) -> None:
        if not self.is_running or not self.home.run_file.exists():
            raise NodeFailedError(f"{self.name} ended before it was ready: {self.last_words()}")
        run = self._run_file()
        self.url, self.peer = run["http"], run["peer"]
        inner = next(address for address in run["addresses"] if not address.startswith(self._door.address + "/"))
        self._door.lead_to(parse_tcp(inner.partition("/p2p/")[0]))
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.get(f"{self.url}/readyz")
        if answer.status_code != 200:
            raise NodeFailedError(f"{self.name} answers {answer.status_code} when asked whether it is ready")
        token = read_secret(self.home.token_file).decode().strip()
        self._face = await HttpFace(self.url, token).__aenter__()

    def _run_file(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.home.run_file.read_text())
        return found

    async def kill(self) -> None:
        """SIGKILL: nothing is told to anybody. Harmless when it is not running."""
        await self._end("KILL")

    async def stop(self) -> None:
        """Ask it to end; what is under way is finished. Harmless when it is not running."""
        await self._end("TERM")

    async def ended(self) -> int:
        """Wait until the process ends by itself (a crash point, say), tidy up, and return its exit code."""
        if self._process is None:
            raise MisuseError(f"{self.name} is down already")
        code = await self._process.wait()
        await self._end("KILL")
        return code

    async def _end(self, how: Literal["TERM", "KILL"]) -> None:
        process, face = self._process, self._face
        self._face = None
        self._door.lead_to(None)
        if face is not None:
            await face.__aexit__(None, None, None)
        if process is None:
            return
        await send_signal(process, how)
        with trio.move_on_after(STOP_S_MAX):
            await process.wait()
        if process.returncode is None:
            log.error("node.stop.late", extra={"node": self.name})
        _end_group(process.pid)  # its workers, too
        await process.wait()
        if process.stdin is not None:
            await process.stdin.aclose()
        await self._drained.wait()
        self._process = None

    async def _drain(self, process: trio.Process) -> None:
        """Keep what the node prints in its log; its first line, or its end, is the moment to look."""
        if process.stdout is None:
            raise BugError("a process was started without a pipe for its output")
        try:
            async with process.stdout as stdout:
                async for chunk in stdout:
                    with self.log_file.open("ab") as log_file:
                        log_file.write(chunk)
                    if self.home.run_file.exists():
                        self._spoke.set()
        finally:
            self._spoke.set()
            self._drained.set()

    def last_words(self) -> str:
        """The end of its log, in one line."""
        try:
            lines = self.log_file.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        said = " / ".join(line.strip() for line in lines[-3:])[-600:] or "it said nothing"
        return f"{said} (all of it: {self.log_file})"


class Fleet:
    """Nodes by name. See `open_fleet`."""

    def __init__(self, nodes: Mapping[str, NodeProcess], nursery: trio.Nursery) -> None:
        self._nodes = dict(nodes)
        self._nursery = nursery
        self._parted: set[frozenset[str]] = set()

    def __getitem__(self, name: str) -> NodeProcess:
        try:
            return self._nodes[name]
        except KeyError:
            raise MisuseError(f"there is no {name!r} here; there are {', '.join(self._nodes)}") from None

    def __iter__(self) -> Iterator[NodeProcess]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def running(self) -> list[NodeProcess]:
        return [node for node in self if node.is_running]

    async def start(self, *names: str, **environment: str) -> None:
        """Start these nodes, or all, at once; returns when the last is ready. The first failure ends the others'."""
        chosen = [self[name] for name in names] or [node for node in self if not node.is_running]
        async with one_error(), trio.open_nursery() as nursery:
            for node in chosen:
                nursery.start_soon(partial(node.start, self._nursery, **environment))
        self._set_doors()

    def part(self, one: str, other: str) -> None:
        """From now on no byte passes between the two; `heal` ends it. Survives restarts of either."""
        if self[one] is self[other]:
            raise MisuseError(f"{one} cannot be parted from itself")
        self._parted.add(frozenset((one, other)))
        self._set_doors()

    def parted(self) -> list[list[str]]:
        """The pairs between which no byte passes."""
        return sorted(sorted(pair) for pair in self._parted)

    def heal(self) -> None:
        """End all partitions; the nodes dial each other anew."""
        self._parted.clear()
        self._set_doors()

    def _set_doors(self) -> None:
        for node in self:
            others = {name for pair in self._parted if node.name in pair for name in pair - {node.name}}
            node.door.shut_out({group for name in others if (group := self[name].group) is not None})


@asynccontextmanager
async def open_fleet(names: list[str], directory: Path, settings: FleetSettings) -> AsyncIterator[Fleet]:
    """Homes for all `names` under `directory`, made where they are missing; no process yet. All ends with the block."""
    async with one_error(), trio.open_nursery() as nursery:
        nodes: dict[str, NodeProcess] = {}
        for name in names:
            door = await open_door(nursery, group_of_port)
            home = Home.find(str(directory / name))
            if not home.is_whole:
                make_home(home, name, settings.network)
            environment = {
                **settings.chain,
                "P2PMEM_HOME": str(directory / name),
                "P2PMEM_PEER_ANNOUNCE": door.address,
                "P2PMEM_REVIEW_POLICY": "manual" if name in settings.manual else "auto",
            }
            nodes[name] = NodeProcess(name, home, door, environment)
        fleet = Fleet(nodes, nursery)
        try:
            yield fleet
        finally:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as ending:
                    for node in fleet:
                        ending.start_soon(node.stop)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def one_error() -> AsyncIterator[None]:
    """Nurseries inside the block wrap what goes wrong in groups; let the first real error out of them."""
    try:
        yield
    except BaseExceptionGroup as group:
        error = real_error(group)
        raise error from error.__cause__


def real_error(error: BaseException) -> BaseException:
    """What went wrong inside of groups: the first that is no cancellation, where there is one."""
    while isinstance(error, BaseExceptionGroup):
        error = next((it for it in error.exceptions if not _is_cancelled(it)), error.exceptions[0])
    return error


def _is_cancelled(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_cancelled, error.exceptions))
    return isinstance(error, trio.Cancelled)


def make_home(home: Home, label: str, network: str) -> Address:
    """What `p2pmem init` makes: directories, keys, token, configuration. Returns the agent's address."""
    home.create()
    write_secret(home.peer_key_file, secrets.token_bytes(32))
    write_secret(home.token_file, new_token().encode())
    agent = create_agent(home).address
    text = template(network=network, label=label, listen="/ip4/127.0.0.1/tcp/0", http_port=0)
    home.config_file.write_text(text, "utf-8")
    return agent


def _end_group(group: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _processes_of(group: int) -> list[Path]:
    found: list[Path] = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if os.getpgid(int(process.name)) == group:
                found.append(process)
        except ProcessLookupError:
            continue
    return found


def _rss_bytes(pid: int) -> int:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
