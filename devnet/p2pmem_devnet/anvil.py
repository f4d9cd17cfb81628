"""A development chain as a managed process: anvil, on loopback, on a port that the kernel chose.

    async with start_anvil(directory) as anvil:
        account = await anvil.new_account()
        contract = await anvil.deploy_anchor(network, account)

The chain's money is worthless, so whoever asks gets an account with plenty. What happened is kept in a file, written
anew within a second of a new block and at a clean stop: after `kill` (SIGKILL) and `start` the last second may be
missing, which is just what a reorganisation looks like to a node. Anvil's own `--state-interval` is not used: it writes
in place, and a kill in that moment leaves a file that anvil cannot read. States of older blocks are not kept over a
restart (they are 35 kB a block), nor are transactions that wait for a block.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import httpx
import trio
from p2pmem_protocol.errors import MisuseError, OutsideError

from p2pmem.chain.posting import json_request
from p2pmem_devnet.lifeline import open_with_lifeline, send_signal

if TYPE_CHECKING:
    from eth_account.signers.local import LocalAccount

log = logging.getLogger(__name__)

BINARY_VARIABLE = "P2PMEM_ANVIL"
NPM_DIRECTORY = Path(__file__).parent / "npm"
CHAIN_ID = 31_337
START_SECONDS_MAX = 20.0
STOP_SECONDS_MAX = 10.0
KEEP_SECONDS = 1.0
OUTPUT_BYTES_KEPT = 16 * 1024
ONE_ETHER_WEI = 10**18

_LISTENING = re.compile(rb"Listening on 127\.0\.0\.1:(\d+)\s")


class AnvilMissingError(MisuseError):
    """There is no anvil on this machine. The text says how to get one."""


class AnvilError(OutsideError):
    """Anvil did not start, ended by itself, or refused a command. The text has its last words."""


def find_anvil() -> Path:
    """The program: what P2PMEM_ANVIL names, else the npm package of the checkout, else one on the PATH."""
    named = os.environ.get(BINARY_VARIABLE)
    if named is not None:
        if not os.access(named, os.X_OK):
            raise AnvilMissingError(f"{BINARY_VARIABLE} names {named}, which is no program: correct or unset it")
        return Path(named)
    machine = {"x86_64": "amd64", "aarch64": "arm64", "arm64": "arm64"}.get(platform.machine(), platform.machine())
    package = f"anvil-{platform.system().lower()}-{machine}"
    installed = NPM_DIRECTORY / "node_modules" / "@foundry-rs" / package / "bin" / "anvil"
    if os.access(installed, os.X_OK):
        return installed
    found = shutil.which("anvil")
    if found is not None:
        return Path(found)
    if shutil.which("npm") is None:
        advice = "install Node.js 20 or newer with npm (https://nodejs.org), then run"
    else:
        advice = "run"
    raise AnvilMissingError(
        f"the development chain needs anvil, which is not here: {advice} `npm ci --ignore-scripts` in {NPM_DIRECTORY}; "
        f"or set {BINARY_VARIABLE} to the program; or go without a chain"
    )


class Anvil:
    """One chain, which may be stopped, killed and started again; its URL and its state stay. See `start_anvil`."""

    def __init__(self, directory: Path, nursery: trio.Nursery, *, block_seconds: float | None = None) -> None:
        self._directory = directory
        self._nursery = nursery
        self._block_seconds = block_seconds
        self._binary = find_anvil()
        self._process: trio.Process | None = None
        self._spoken, self._drained = trio.Event(), trio.Event()
        self._output = b""
        self._keeping = trio.CancelScope()
        self._keep_lock = trio.Lock()
        self._kept: tuple[str, int] | None = None
        self._fundings = 0  # the only change that we make without a block
        self._port = 0
        self._client = httpx.AsyncClient(trust_env=False)

    @property
    def url(self) -> str:
        """Where the chain is asked. The same after a restart."""
        assert self._port, "anvil was never started"
        return f"http://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int | None:
        """The leader of its process group, or None if it is not running."""
        return self._process.pid if self._process is not None and self._process.returncode is None else None

    @property
    def state_file(self) -> Path:
        return self._directory / "anvil-state.json"

    # The process

    async def start(self) -> None:
        """Start, and return when it answers. Cancelled, no process is left."""
        assert self.pid is None, "anvil is running"
        command = [str(self._binary), "--host", "127.0.0.1", "--port", str(self._port), "--chain-id", str(CHAIN_ID)]
        command += ["--accounts", "0", "--no-cors"]
        if self.state_file.exists():
            command += ["--load-state", str(self.state_file)]
        if self._block_seconds is not None:
            command += ["--block-time", f"{self._block_seconds:g}"]
        self._output = b""
        self._spoken, self._drained = trio.Event(), trio.Event()
        self._process = await open_with_lifeline(command, stderr=subprocess.STDOUT)
        self._nursery.start_soon(self._drain, self._process)
        try:
            with trio.fail_after(START_SECONDS_MAX):
                await self._spoken.wait()
                listening = _LISTENING.search(self._output)
                if listening is None:
                    raise AnvilError(f"anvil ended before it listened: {self._last_words()}")
                self._port = int(listening[1])
                if await self.rpc("eth_chainId") != hex(CHAIN_ID):
                    raise AnvilError(f"{self.url} is another chain than the one started")
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await self._end("KILL")
            if isinstance(error, trio.TooSlowError):
                raise AnvilError(
                    f"anvil did not answer within {START_SECONDS_MAX:g} s: {self._last_words()}"
                ) from error
            raise
        self._keeping = trio.CancelScope()
        self._nursery.start_soon(self._keep_on, self._keeping)
        log.info("anvil.started", extra={"url": self.url, "pid": self.pid})

    async def stop(self) -> None:
        """End it in peace; the state is written. Harmless if it is not running."""
        if self.pid is not None:
            try:
                with trio.fail_after(STOP_SECONDS_MAX):
                    await self.keep()
            except (AnvilError, trio.TooSlowError) as error:
                log.warning("anvil.state.not_kept", extra={"error": type(error).__name__})
        await self._end("TERM")

    async def kill(self) -> None:
        """SIGKILL: what was not written yet is lost. Harmless if it is not running."""
        await self._end("KILL")

    async def restart(self) -> None:
        """Stop and start again, with the state."""
        await self.stop()
        await self.start()

    async def _end(self, how: Literal["TERM", "KILL"]) -> None:
        process = self._process
        if process is None:
            return
        self._keeping.cancel()
        assert process.stdin is not None
        if process.returncode is None:
            await send_signal(process, how)
        with trio.move_on_after(STOP_SECONDS_MAX):
            await process.wait()
        if process.returncode is None:
            log.error("anvil.stop.late", extra={"pid": process.pid})
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        await process.stdin.aclose()
        await self._drained.wait()
        self._process = None
        log.info("anvil.ended", extra={"returncode": process.returncode})

    async def keep(self) -> None:
        """Write the state to its file now, if anything happened since. The file is old or new, never torn."""
        async with self._keep_lock:
            head = await self.rpc("eth_getBlockByNumber", "latest", False)
            seen = (head["hash"], self._fundings)
            if seen == self._kept:
                return
            dumped = str(await self.rpc("anvil_dumpState"))
            state = gzip.decompress(bytes.fromhex(dumped.removeprefix("0x")))
            await trio.to_thread.run_sync(self._write_state, state)
            self._kept = seen

    def _write_state(self, state: bytes) -> None:
        fresh = self.state_file.with_suffix(".new")
        fresh.write_bytes(state)
        fresh.replace(self.state_file)

    async def _keep_on(self, scope: trio.CancelScope) -> None:
        with scope:
            while True:
                await trio.sleep(KEEP_SECONDS)
                try:
                    await self.keep()
                except AnvilError as error:
                    log.warning("anvil.state.not_kept", extra={"error": str(error)})

    async def _drain(self, process: trio.Process) -> None:
        """Read what anvil prints, so that its pipe never fills, and set `_spoken` when it listens or has ended."""
        assert process.stdout is not None
        try:
            async with process.stdout as stdout:
                async for chunk in stdout:
                    self._output = (self._output + chunk)[-OUTPUT_BYTES_KEPT:]
                    if not self._spoken.is_set() and _LISTENING.search(self._output):
                        self._spoken.set()
        finally:
            self._spoken.set()
            self._drained.set()

    def _last_words(self) -> str:
        lines = self._output.decode(errors="replace").strip().splitlines()
        return " / ".join(line.strip() for line in lines[-5:])[-500:] or "it said nothing"

    async def aclose(self) -> None:
        """End it and close the connection to it. Not cancellable, at most a few seconds."""
        with trio.CancelScope(shield=True):
            await self.stop()
            await self._client.aclose()

    # The chain

    async def rpc(self, method: str, *params: Any) -> Any:
        """Ask anvil itself, also for what only a development chain can do. `AnvilError` if it refuses or is away."""
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": list(params)}
        try:
            answer = (await self._client.send(json_request(self.url, json.dumps(request).encode(), 30.0))).json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise AnvilError(f"anvil at {self.url} does not answer {method}: {type(error).__name__}") from error
        if "error" in answer:
            raise AnvilError(f"anvil refuses {method}: {answer['error'].get('message')}")
        return answer["result"]

    async def mine(self, blocks: int = 1) -> None:
        """Make this many blocks now."""
        await self.rpc("anvil_mine", hex(blocks))

    async def set_automine(self, on: bool) -> None:
        """Whether each transaction gets a block at once. Off: transactions wait for `mine`."""
        await self.rpc("evm_setAutomine", on)

    async def reorganise(self, depth: int) -> None:
        """Replace the last `depth` blocks by as many empty ones. Their transactions are gone, not pending again."""
        await self.rpc("anvil_reorg", depth, [])

    async def new_account(self, ether: int = 100) -> LocalAccount:
        """A new key with money."""
        from eth_account import Account

        account: LocalAccount = Account.create()
        await self.fund(account.address, ether)
        return account

    async def fund(self, address: str, ether: int = 100) -> None:
        """Set the balance of an address (0x and hex)."""
        await self.rpc("anvil_setBalance", address, hex(ether * ONE_ETHER_WEI))
        self._fundings += 1

    async def deploy_anchor(self, network: bytes, account: LocalAccount | None = None) -> bytes:
        """Put our contract on the chain and return its address. Without automine, mine a block meanwhile."""
        from p2pmem.chain.client import deploy

        payer = account if account is not None else await self.new_account()
        return await deploy(self.url, chain_id=CHAIN_ID, network=network, signer=payer)


@asynccontextmanager
async def start_anvil(directory: Path, *, block_seconds: float | None = None) -> AsyncIterator[Anvil]:
    """Run a chain while the block runs; its state lies in `directory`. A block every `block_seconds`, or with None one
    for each transaction. `AnvilMissingError` says how to install what is missing. Cancelled, the process is ended."""
    try:
        async with trio.open_nursery() as nursery:
            anvil = Anvil(directory, nursery, block_seconds=block_seconds)
            try:
                await anvil.start()
                yield anvil
            finally:
                await anvil.aclose()
    except BaseExceptionGroup as group:
        # The nursery only reads output; what comes out of it is the one exception of the caller's block.
        if len(group.exceptions) == 1:
            raise group.exceptions[0] from group.exceptions[0].__cause__
        raise
