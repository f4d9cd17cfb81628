"""Each attack against py-libp2p as it comes and against our host, and what became of it, in one table.

The victim is a process of its own, with limits on memory, CPU and time. What is looked at: whether the process lives;
whether somebody honest is served, by streams and by gossip, while the attack stands and after it; what memory, tasks
and descriptors it holds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import trio
from p2pmem_protocol.errors import OutsideError, RefusedError

from p2pmem.net.gossipsub import open_gossip
from p2pmem.net.libp2p_host import Libp2pNetwork
from p2pmem.net.seam import PeerId
from p2pmem.net.topics import Verdict

from .attacks import ATTACKS, PEERS, Target

ROOT: Final = Path(__file__).resolve().parents[2]
KINDS: Final = ("stock", "ours")
HEADS: Final = {"stock": "py-libp2p 0.8.1 as it comes", "ours": "here"}
START_S: Final = 60.0
ATTACK_S: Final = 90.0
SERVED_S: Final = 5.0
SERVED_AFTER_S: Final = 15.0
SETTLED_S: Final = 5.0
MEMORY_GROWTH_MAX_BYTES: Final = 40_000_000
TASKS_GROWTH_MAX: Final = 20
HELD_TASKS_MAX: Final = 200
DESCRIPTORS_GROWTH_MAX: Final = 20


class DiedError(Exception):
    """The victim's process has ended; the text is what it died of."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a victim: `survives`, or what it suffered, with what was seen.

    `dies`: the process ended. `deaf`: somebody honest is not served, while the attack stands or afterwards. `fooled`:
    it believed a lie. `harmed`: it did harm to somebody honest. `grows`: memory or tasks, while the attack stands.
    `leaks`: tasks or descriptors that stay when the attacker has gone.
    """

    word: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.word}: {self.detail}" if self.detail else self.word


@dataclass(frozen=True, slots=True)
class Held:
    memory_bytes: int
    tasks: int
    descriptors: int


class Victim:
    """A process that hosts one or the other, and what is asked of it."""

    def __init__(self, process: trio.Process) -> None:
        self._process = process
        self._buffer = b""
        self.address = ""

    async def started(self) -> None:
        with trio.fail_after(START_S):
            self.address = str((await self._line())["address"])

    async def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        while b"\n" not in self._buffer:
            got = await self._process.stdout.receive_some()
            if not got:
                raise DiedError("without a word")
            self._buffer += got
        line, _, self._buffer = self._buffer.partition(b"\n")
        told: dict[str, Any] = json.loads(line)
        if "died" in told:
            raise DiedError(told["died"])
        return told

    async def facts(self) -> dict[str, Any]:
        """What it says of itself. Raises `DiedError`."""
        assert self._process.stdin is not None
        with suppress(trio.BrokenResourceError):  # its last words can still be read
            await self._process.stdin.send_all(b"?\n")
        return await self._line()

    async def connected(self) -> list[str]:
        return list((await self.facts())["connected"])

    async def held(self) -> Held:
        facts = await self.facts()
        proc = Path(f"/proc/{self._process.pid}")
        pages = int((proc / "statm").read_text().split()[1])
        return Held(pages * os.sysconf("SC_PAGE_SIZE"), int(facts["tasks"]), len(os.listdir(proc / "fd")))


@asynccontextmanager
async def victim_process(kind: str, *options: str) -> AsyncIterator[Victim]:
    command = [sys.executable, "-m", "tests.attacks.victim", kind, *options]
    paths = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "jobs", "devnet"))]
    process = await trio.lowlevel.open_process(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    try:
        victim = Victim(process)
        await victim.started()
        yield victim
    finally:
        with trio.CancelScope(shield=True):
            process.kill()
            await process.wait()


async def is_served(victim: Victim, within_s: float) -> bool:
    """Whether somebody honest who comes along gets an answer on a stream."""
    with trio.move_on_after(within_s), suppress(OutsideError):
        async with Libp2pNetwork(identity_seed=os.urandom(32)) as honest:
            peer = await honest.connect(victim.address, expected=None)
            stream = await honest.open_stream(peer, "/echo/1")
            await stream.send_all(b"are you there")
            return await stream.receive_some() == b"are you there"
    return False


async def is_heard(victim: Victim, within_s: float) -> bool:
    """Whether the victim hears what somebody honest who comes along publishes."""
    seed, words = os.urandom(32), os.urandom(8).hex()

    async def ignore(peer: PeerId, data: bytes) -> Verdict:
        return Verdict.ACCEPT

    with trio.move_on_after(within_s), suppress(OutsideError, RefusedError):
        async with (
            Libp2pNetwork(identity_seed=seed) as honest,
            open_gossip(honest, identity_seed=seed) as topics,
        ):
            await topics.subscribe("open", ignore)
            peer = await honest.connect(victim.address, expected=None)
            while peer not in topics.peers("open"):
                await trio.sleep(0.05)
            await topics.publish("open", words.encode())
            while words not in (await victim.facts())["heard"]:
                await trio.sleep(0.05)
            return True
    return False


async def try_attack(name: str, kind: str) -> Outcome:
    """One attack on one fresh victim. Raises `RuntimeError` when the victim serves nobody even before."""
    async with victim_process(kind) as victim:
        if not (await is_served(victim, START_S) and await is_heard(victim, START_S)):
            raise RuntimeError(f"{kind} serves nobody before it is attacked")
        before = await settled(victim)
        try:
            with trio.move_on_after(ATTACK_S):
                return await _suffer(name, victim, before)
        except DiedError as error:
            return Outcome("dies", str(error))
        return Outcome("deaf", f"not done after {ATTACK_S:.0f} s")


async def _suffer(name: str, victim: Victim, before: Held) -> Outcome:
    got, served, standing = "", False, before
    with suppress(OutsideError):
        async with ATTACKS[name](Target(victim.address, victim.connected)) as got:
            await trio.sleep(0.5)  # what it dies of has to reach it
            served = await is_served(victim, SERVED_S)
            standing = await victim.held()
    if got:
        return Outcome("fooled" if "taken for" in got else "harmed", got)
    if not await is_served(victim, SERVED_AFTER_S):
        return Outcome("deaf", "serves nobody afterwards")
    if not await is_heard(victim, SERVED_AFTER_S):
        return Outcome("deaf", "its gossip hears nobody afterwards")
    if not served:
        return Outcome("deaf", f"serves nobody else for {SERVED_S:.0f} s and more")
    memory = standing.memory_bytes - before.memory_bytes
    if memory > MEMORY_GROWTH_MAX_BYTES:
        return Outcome("grows", f"{memory // 1_000_000} MB held for one peer")
    if standing.tasks - before.tasks > HELD_TASKS_MAX * PEERS[name]:
        return Outcome("grows", f"{standing.tasks - before.tasks} tasks held for one peer")
    after = await settled(victim, before)
    if after.tasks - before.tasks > TASKS_GROWTH_MAX:
        return Outcome("leaks", f"{after.tasks - before.tasks} tasks stay")
    if after.descriptors - before.descriptors > DESCRIPTORS_GROWTH_MAX:
        return Outcome("leaks", f"{after.descriptors - before.descriptors} descriptors stay")
    return Outcome("survives")


async def settled(victim: Victim, like: Held | None = None) -> Held:
    """What it holds once those who came have gone, or after some seconds."""
    held = await victim.held()
    with trio.move_on_after(SETTLED_S):
        while await victim.connected() or (like is not None and held.tasks > like.tasks):
            await trio.sleep(0.1)
            held = await victim.held()
    return held


def lines(rows: Sequence[tuple[str, dict[str, Outcome]]], kinds: Sequence[str]) -> list[str]:
    """The table in Markdown."""
    head = ["attack", *(HEADS[kind] for kind in kinds)]
    body = [[name, *(str(outcomes[kind]) for kind in kinds)] for name, outcomes in rows]
    widths = [max(len(row[at]) for row in (head, *body)) for at in range(len(head))]
    cells = [head, ["-" * width for width in widths], *body]
    return [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in cells
    ]


async def table(names: Sequence[str], kinds: Sequence[str]) -> list[tuple[str, dict[str, Outcome]]]:
    """Try each; say on the error output how far it is."""
    rows: list[tuple[str, dict[str, Outcome]]] = []
    for name in names:
        outcomes = {}
        for kind in kinds:
            outcomes[kind] = await try_attack(name, kind)
            print(f"{kind:5} {name}: {outcomes[kind]}", file=sys.stderr, flush=True)
        rows.append((name, outcomes))
    return rows
