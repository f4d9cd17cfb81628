"""The development chain as a process: found or explained, up, down, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import trio
from p2pmem_devnet import anvil as module
from p2pmem_devnet.anvil import Anvil, AnvilError, AnvilMissingError, find_anvil, start_anvil


def alive(pid: int) -> bool:
    """Whether anything of a process group is there."""
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    return True


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_a_missing_anvil_is_explained_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(module.BINARY_VARIABLE, raising=False)
    monkeypatch.setattr(module, "NPM_DIRECTORY", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AnvilMissingError, match=r"install Node\.js.*npm ci --ignore-scripts"):
        find_anvil()
    script(tmp_path / "npm", "exit 0")
    with pytest.raises(AnvilMissingError, match=r": run `npm ci --ignore-scripts`"):
        find_anvil()


def test_the_variable_decides_and_a_wrong_one_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(module.BINARY_VARIABLE, str(script(tmp_path / "mine", "exit 0")))
    assert find_anvil() == tmp_path / "mine"
    monkeypatch.setenv(module.BINARY_VARIABLE, str(tmp_path / "absent"))
    with pytest.raises(AnvilMissingError, match=r"absent, which is no program"):
        find_anvil()


async def test_a_program_that_ends_at_once_is_reported_with_its_last_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = script(tmp_path / "broken", "echo this machine is too old; exit 3")
    monkeypatch.setenv(module.BINARY_VARIABLE, str(broken))
    with pytest.raises(AnvilError, match="this machine is too old"):
        async with start_anvil(tmp_path):
            pytest.fail("it never started")


@pytest.mark.chain
async def test_the_state_survives_a_stop_and_the_address_stays(anvil: Anvil) -> None:
    await anvil.mine(4)
    url = anvil.url
    await anvil.restart()
    assert anvil.url == url
    assert await anvil.rpc("eth_blockNumber") == "0x4"


@pytest.mark.chain
async def test_a_killed_chain_starts_again_from_what_was_written(anvil: Anvil) -> None:
    account = await anvil.new_account(ether=7)
    await anvil.mine(4)
    await anvil.keep()
    await anvil.mine(1)
    await anvil.kill()
    assert anvil.pid is None
    with pytest.raises(AnvilError, match="does not answer"):
        await anvil.rpc("eth_blockNumber")
    await anvil.start()
    assert int(await anvil.rpc("eth_blockNumber"), 16) in (4, 5)
    assert int(await anvil.rpc("eth_getBalance", account.address, "latest"), 16) == 7 * 10**18


@pytest.mark.chain
async def test_what_happened_is_kept_without_being_asked(anvil: Anvil) -> None:
    with trio.fail_after(30):
        await anvil.mine(3)
        while not anvil.state_file.exists():
            await trio.lowlevel.checkpoint()
    await anvil.kill()
    await anvil.start()
    assert await anvil.rpc("eth_blockNumber") == "0x3"


@pytest.mark.chain
async def test_no_process_is_left_whether_the_block_ends_fails_or_is_cancelled(
    anvil_binary: Path, tmp_path: Path
) -> None:
    async with start_anvil(tmp_path) as ended:
        pids = [ended.pid]

    async def fail() -> None:
        async with start_anvil(tmp_path) as failed:
            pids.append(failed.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    with trio.CancelScope() as scope:
        async with start_anvil(tmp_path) as cancelled:
            pids.append(cancelled.pid)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    for pid in pids:
        assert pid is not None
        assert not alive(pid)


@pytest.mark.chain
async def test_a_command_that_anvil_refuses_is_an_error_with_its_words(anvil: Anvil) -> None:
    with pytest.raises(AnvilError, match="anvil refuses no_such_method"):
        await anvil.rpc("no_such_method")


@pytest.mark.chain
@pytest.mark.processes
async def test_the_chain_ends_when_the_process_that_started_it_is_killed(anvil_binary: Path, tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, trio\n"
        "from p2pmem_devnet.anvil import start_anvil\n"
        "async def main():\n"
        "    async with start_anvil(pathlib.Path(sys.argv[1])) as anvil:\n"
        "        print(anvil.pid, flush=True)\n"
        "        await trio.sleep_forever()\n"
        "trio.run(main)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    owner = await trio.lowlevel.open_process(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, env=environment
    )
    assert owner.stdout is not None
    with trio.fail_after(30):
        group = int(await owner.stdout.receive_some())
        assert alive(group)
        owner.kill()
        await owner.wait()
        await owner.stdout.aclose()
        while alive(group):
            await trio.lowlevel.checkpoint()
