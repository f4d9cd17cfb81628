"""Making a node, running it, and looking at its settings."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from p2pmem_protocol.errors import OutsideError
from p2pmem_protocol.keys import Key

from p2pmem.api.guard import agent_token
from p2pmem.api.problems import Exit
from p2pmem.config import Config, load
from p2pmem.home import Home, read_secret
from p2pmem.keyring import Keyring
from tests.p2pmem.api.memory_values import AGENT, OTHER

from .conftest import Node, run_here
from .processes import ENVIRONMENT, P2PMEM


@pytest.fixture(autouse=True)
def own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("P2PMEM_", "XDG_")):
            monkeypatch.delenv(name)


def test_a_new_node_has_keys_token_and_settings_that_only_its_owner_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "a" / "b"
    words = ("--network", "test", "--label", "Алиса", "--listen", "/ip4/127.0.0.1/tcp/4001", "--http-port", "8080")
    said = run_here(capsys, "init", "--home", str(place), *words, "--json")
    assert said.code == 0
    home = Home(place, place)
    assert load(home.config_file) == Config(
        network="test", label="Алиса", listen="/ip4/127.0.0.1/tcp/4001", http_port=8080
    )
    assert said.json["agent"] == str(Keyring.load(home).default.address)
    assert len(read_secret(home.peer_key_file)) == 32
    assert len(read_secret(home.token_file)) >= 43
    for path in place.rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert read_secret(home.token_file).decode() not in said.out


def test_two_nodes_have_nothing_in_common(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        assert run_here(capsys, "init", "--home", str(tmp_path / name)).code == 0
    for name in ("token", "peer.key", "agents.password"):
        assert (tmp_path / "a" / name).read_bytes() != (tmp_path / "b" / name).read_bytes()


def test_xdg_directories_are_used_without_a_home(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run_here(capsys, "init").code == 0
    assert (tmp_path / "config" / "p2pmem" / "config.toml").is_file()
    assert (tmp_path / "state" / "p2pmem" / "peer.key").is_file()


def test_a_node_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_here(capsys, "init", "--home", str(tmp_path))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    said = run_here(capsys, "init", "--home", str(tmp_path))
    assert said.code == Exit.MISUSE
    assert "nothing was changed" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("prefix", ["", "0x"])
def test_an_agent_key_can_be_brought_along(tmp_path: Path, capsys: pytest.CaptureFixture[str], prefix: str) -> None:
    file = tmp_path / "key"
    file.write_text(f"{prefix}{'11' * 32}\n")
    said = run_here(capsys, "init", "--home", str(tmp_path / "home"), "--agent-key", str(file), "--json")
    assert said.json["agent"] == str(Key(b"\x11" * 32).address)
    assert "1111" not in said.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--network", "No Such"], "network name"),
        (["--network", 'x"\ny = "z'], "network name"),
        (["--listen", "127.0.0.1:4001"], "/ip4|ip6|dns/"),
        (["--listen", '/dns/a"b/tcp/1'], "no address"),
        (["--http-port", "65536"], "0 to 65535"),
        (["--label", "a\nb"], "control character"),
        (["--agent-key", "no-such-file"], "there is no file no-such-file"),
        (["--agent-key", __file__], "holds no key"),
    ],
)
def test_what_cannot_be_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    said = run_here(capsys, "init", "--home", str(tmp_path / "home"), *words)
    assert said.code in (Exit.MISUSE, Exit.NOT_FOUND)
    assert says in said.err
    assert said.err.count("\n") == 1
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize("lost", [["config.toml"], ["token"], ["peer.key"], ["config.toml", "token", "peer.key"]])
def test_what_is_missing_of_a_node_is_said_and_made_anew_and_the_rest_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lost: list[str]
) -> None:
    agent = run_here(capsys, "init", "--home", str(tmp_path), "--json").json["agent"]
    for name in lost:
        (tmp_path / name).unlink()
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for words in (["run"], ["status"], ["config", "show"]):
        said = run_here(capsys, *words, "--home", str(tmp_path))
        assert said.code == Exit.MISUSE
        assert all(name in said.err for name in lost)
        assert "from your backup, or run `p2pmem init`" in said.err
    mended = run_here(capsys, "init", "--home", str(tmp_path))
    assert (mended.code, mended.out.splitlines()[0]) == (0, f"mended a node in {tmp_path}")
    assert agent in mended.out
    made = mended.out.splitlines()[1].split("made")[1]
    assert sorted(made.strip().split(", ")) == sorted(lost)
    assert {path: path.read_bytes() for path in kept} == kept
    assert run_here(capsys, "config", "show", "--home", str(tmp_path)).code == 0
    assert "nothing was changed" in run_here(capsys, "init", "--home", str(tmp_path)).err


def test_keys_without_their_password_are_never_replaced_unseen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_here(capsys, "init", "--home", str(tmp_path))
    (tmp_path / "agents.password").unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command in ("run", "init"):
        said = run_here(capsys, command, "--home", str(tmp_path))
        assert said.code == Exit.MISUSE
        assert "nothing else opens the keys" in said.err
        assert "move them away" in said.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    (tmp_path / "agents").rename(tmp_path / "lost")
    assert "`p2pmem init` makes a new agent" in run_here(capsys, "run", "--home", str(tmp_path)).err
    assert run_here(capsys, "init", "--home", str(tmp_path)).code == 0
    assert Keyring.load(Home(tmp_path, tmp_path)).default


def test_the_next_step_names_the_home_that_was_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "my node"
    said = run_here(capsys, "init", "--home", str(place))
    assert f"p2pmem run --home '{place}'" in said.out


def test_what_fails_half_way_is_taken_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import p2pmem.home

    write = p2pmem.home.write_secret

    def fail_at_last(path: Path, data: bytes) -> None:
        if path.name == "config.toml":
            raise OutsideError(f"cannot write {path}: No space left on device")
        write(path, data)

    monkeypatch.setattr(p2pmem.home, "write_secret", fail_at_last)
    said = run_here(capsys, "init", "--home", str(tmp_path))
    assert said.code == Exit.OUTSIDE
    assert "No space left" in said.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_settings_are_shown_with_their_origin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(capsys, "init", "--home", str(tmp_path), "--label", "Alice")
    monkeypatch.setenv("P2PMEM_HTTP_PORT", "99")
    settings = {
        it["name"]: it for it in run_here(capsys, "config", "show", "--home", str(tmp_path), "--json").json["settings"]
    }
    assert settings["node.label"] == {"name": "node.label", "value": "Alice", "origin": "file"}
    assert settings["http.port"] == {"name": "http.port", "value": 99, "origin": "P2PMEM_HTTP_PORT"}
    assert "P2PMEM_HTTP_PORT" in run_here(capsys, "config", "show", "--home", str(tmp_path)).out
    monkeypatch.setenv("P2PMEM_PEER_BOOTSTRAP", "/ip4/192.0.2.7/tcp/4001")
    said = run_here(capsys, "config", "show", "--home", str(tmp_path))
    assert said.code == Exit.MISUSE
    assert "peer.bootstrap" in said.err
    monkeypatch.setenv("P2PMEM_PEER_BOOTSTRAP", "/dns/a.example/tcp/1/p2p/12D3Koo, /ip4/192.0.2.7/tcp/1/p2p/12D3Koo")
    assert load(tmp_path / "config.toml").bootstrap == (
        "/dns/a.example/tcp/1/p2p/12D3Koo",
        "/ip4/192.0.2.7/tcp/1/p2p/12D3Koo",
    )
    (tmp_path / "config.toml").write_text("[node]\ncolour = 1\n")
    said = run_here(capsys, "config", "show", "--home", str(tmp_path))
    assert said.code == Exit.MISUSE
    assert "node.colour" in said.err


@pytest.mark.parametrize(
    ("content", "line", "says"),
    [
        ("# mine\n[http]\nport = 1\nold_setting = 2\n", 4, "there is no setting http.old_setting: remove the line; "),
        ("[node]\n\n[old]\nport = 1\n", 3, "there is no section [old]: remove it; there are [node], [peer]"),
        ('label = "x"\n', 1, "label stands outside any section"),
        ('[http]\nhost = "::1"\nport = "abc"\n', 3, "http.port is 'abc': a whole number is needed"),
        ('[peer]\nlisten = "4001"\n', 2, "peer.listen '4001' is not of the form /ip4|ip6|dns/<host>/tcp/<port>"),
        ("[http]\nport = 70000\n", 2, "http.port is 70000: 0 to 65535 are possible"),
        ('[peer]\nmdns = "perhaps"\n', 2, "peer.mdns is 'perhaps': true and false are possible"),
        ('[chain]\n\nrpc = "http://127.0.0.1:1"\n', 3, "chain.rpc and chain.contract are set together"),
    ],
)
def test_a_mistake_in_the_settings_names_the_file_and_the_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, line: int, says: str
) -> None:
    run_here(capsys, "init", "--home", str(tmp_path))
    (tmp_path / "config.toml").write_text(content)
    for command in (["run"], ["config", "show"]):
        said = run_here(capsys, *command, "--home", str(tmp_path))
        assert said.code == Exit.MISUSE
        assert said.err.startswith(f"p2pmem: {tmp_path / 'config.toml'}, line {line}: {says}")


def test_a_mistake_in_the_environment_names_the_variable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_here(capsys, "init", "--home", str(tmp_path))
    monkeypatch.setenv("P2PMEM_FOO_BAR", "1")
    shown = run_here(capsys, "config", "show", "--home", str(tmp_path))
    assert (shown.code, shown.out.splitlines()[-1]) == (0, "in the environment, and no settings: P2PMEM_FOO_BAR")
    for name, value, says in (
        ("P2PMEM_HTTP_PORT", "abc", "P2PMEM_HTTP_PORT: http.port is 'abc'"),
        ("P2PMEM_HTTP_PORT", "-1", "P2PMEM_HTTP_PORT: http.port is -1"),
        ("P2PMEM_HTTP_PROT", "1", "P2PMEM_HTTP_PROT in the environment names no setting"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            said = run_here(capsys, "config", "show", "--home", str(tmp_path))
        assert (said.code, says in said.err) == (Exit.MISUSE, True)


def test_nothing_runs_before_a_node_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = run_here(capsys, "run", "--home", str(tmp_path))
    assert said.code == Exit.MISUSE
    assert "`p2pmem init`" in said.err


# Processes


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, subprocess.Popen[str]]]:
    home = tmp_path_factory.mktemp("node")
    subprocess.run([*P2PMEM, "init", "--home", home], env=ENVIRONMENT, check=True, capture_output=True)
    process = subprocess.Popen([*P2PMEM, "run", "--home", home], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True)
    yield home, process
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


@pytest.mark.slow
@pytest.mark.processes
def test_a_node_runs_says_where_and_ends_when_it_is_told(running: tuple[Path, subprocess.Popen[str]]) -> None:
    home, process = running
    assert process.stdout is not None
    line = process.stdout.readline()
    run_file = json.loads((home / "run.json").read_text())
    assert line == f"ready: HTTP at {run_file['http']}, peers at {' '.join(run_file['addresses'])}\n"
    assert run_file["pid"] == process.pid

    def p2pmem(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*P2PMEM, *words], env={**ENVIRONMENT, **more}, capture_output=True, text=True, check=False
        )

    status = p2pmem("status", "--home", str(home), "--json")
    assert json.loads(status.stdout)["peer"] == run_file["peer"]
    second = p2pmem("run", "--home", str(home))
    assert second.returncode == Exit.OUTSIDE
    assert f"process {process.pid}" in second.stderr
    assert second.stderr.count("\n") == 1
    other = home / "other"
    assert p2pmem("init", "--home", str(other)).returncode == 0
    port = run_file["http"].rpartition(":")[2]
    in_use = p2pmem("run", "--home", str(other), P2PMEM_HTTP_PORT=port)
    assert in_use.returncode == Exit.OUTSIDE
    assert in_use.stderr.count("\n") == 1
    assert port in in_use.stderr
    config = other / "config.toml"
    taken = run_file["addresses"][0].rpartition("/p2p/")[0]
    config.write_text(config.read_text().replace("/ip4/127.0.0.1/tcp/0", taken))
    assert taken in config.read_text()
    peer_port = p2pmem("run", "--home", str(other))
    assert peer_port.returncode == Exit.OUTSIDE
    assert peer_port.stderr.count("\n") == 1
    assert "peer.listen" in peer_port.stderr

    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0
    assert not (home / "run.json").exists()


@pytest.mark.processes
async def test_an_interrupted_wait_says_that_the_job_goes_on(node: Node) -> None:
    await node.shared()
    node.face.hold = True
    command = [*P2PMEM, "publish", "x", "--home", str(node.home.data_dir)]
    process = await trio.lowlevel.open_process(
        command,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        # Where the tests run in the background of a shell, they and all that they start ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    try:
        with trio.fail_after(60):
            said = b""
            while not said.endswith(b"\n"):
                said += await process.stderr.receive_some()
            assert said == b"publish: running\n"
            process.send_signal(signal.SIGINT)
            said = b"".join([piece async for piece in process.stderr])
            assert await process.wait() == Exit.INTERRUPTED
    finally:
        process.kill()
        await process.wait()
        await process.stderr.aclose()
    assert said == b"interrupted; job job-2 goes on: `p2pmem job watch job-2`\n"


@pytest.mark.processes
async def test_who_has_read_enough_may_stop_reading(node: Node) -> None:
    await node.founded()
    reading, writing = os.pipe()
    os.close(reading)
    try:
        command = [*P2PMEM, "graph", "list", "--home", str(node.home.data_dir)]
        done = await trio.run_process(command, env=ENVIRONMENT, stdout=writing, capture_stderr=True, check=False)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")


async def test_the_token_of_an_agent_is_made_of_the_nodes_own(node: Node) -> None:
    said = await node("agent", "token", AGENT.upper().replace("0X", "0x"), "--json")
    own = read_secret(node.home.token_file).decode()
    assert said.json == {"agent": AGENT, "token": agent_token(own, AGENT)}
    assert own not in said.json["token"]
    assert (await node("agent", "token", "ada")).code == Exit.MISUSE


async def test_there_is_no_token_for_somebody_who_is_no_agent_of_the_node(node: Node) -> None:
    said = await node("agent", "token", OTHER)
    assert (said.code, said.out) == (Exit.NOT_FOUND, "")
    assert f"{OTHER} is no agent of this node" in said.err
    await node("agent", "add", OTHER)
    assert (await node("agent", "token", OTHER)).code == 0
