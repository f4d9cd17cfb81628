"""What a person does on this machine, without a node that runs: make one, run it, look at its settings."""

from __future__ import annotations

import argparse
import os
import shlex
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from p2pmem_protocol.errors import MisuseError

from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.cli.command import Command, Context
from p2pmem.cli.logs import LEVELS, log_to_stderr
from p2pmem.cli.output import block, table
from p2pmem.cli.words import clean
from p2pmem.face import NotFoundError

if TYPE_CHECKING:
    import trio

    from p2pmem.config import Config
    from p2pmem.home import Home

PORT_MAX: Final = 65_535
AGENT_KEY_BYTES_MAX: Final = 1_024


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--network", default="p2pmem", help="name of the network (default: %(default)s)")
    parser.add_argument("--label", default="", help="how others see you in member lists")
    parser.add_argument(
        "--listen",
        metavar="MULTIADDR",
        default="/ip4/127.0.0.1/tcp/0",
        help="where other peers reach this node (default: %(default)s; port 0: the system chooses)",
    )
    parser.add_argument(
        "--http-port", type=int, default=0, help="port of the HTTP interface (default: one that is free)"
    )
    parser.add_argument("--agent-key", metavar="FILE", type=Path, help="a key to use: 64 hexadecimal digits in a file")


def init(context: Context) -> Exit:
    """Make keys, token and configuration, or what of them is missing; all or nothing."""
    from p2pmem_protocol.names import network_id

    from p2pmem.config import template
    from p2pmem.keyring import Keyring, need_password
    from p2pmem.net.multiaddr import parse_tcp

    args, home = context.args, context.home
    if home.is_whole:
        raise MisuseError(f"there is a node in {home.data_dir} already; nothing was changed")
    need_password(home)
    if args.agent_key and home.agent_keys:
        raise BadRequestError(f"--agent-key is for a node that has no agent yet: there are keys in {home.agents_dir}")
    if not 0 <= args.http_port <= PORT_MAX:
        raise BadRequestError(f"--http-port is {args.http_port}: 0 to {PORT_MAX} are possible")
    if clean(args.label) != args.label or "\\" in args.label:
        raise BadRequestError("--label holds a control character or a backslash")
    network_id(args.network)
    parse_tcp(args.listen)
    settings = template(network=args.network, label=args.label, listen=args.listen, http_port=args.http_port)
    _check(settings, args.listen)
    secret = _agent_secret(args.agent_key) if args.agent_key else None
    was_begun = home.is_begun
    written = _write_missing(home, settings, secret)
    agent = str(Keyring.load(home).default.address)
    text = block(
        f"{'mended' if was_begun else 'made'} a node in {home.data_dir}",
        [
            ("made", ", ".join(path.name for path in written) if was_begun else ""),
            ("agent", agent),
            ("settings", str(home.config_file)),
            ("token", str(home.token_file)),
            ("next", f"p2pmem run --home {shlex.quote(args.home)}" if args.home else "p2pmem run"),
        ],
    )
    made = {"home": str(home.data_dir), "agent": agent, "config": str(home.config_file), "token": str(home.token_file)}
    context.out.answer({**made, "made": [str(path) for path in written]}, text)
    return Exit.OK


def _check(settings: str, listen: str) -> None:
    """The settings must be readable again; what is wrong is said before anything is written."""
    import tomllib

    from p2pmem.config import Config

    try:
        document = tomllib.loads(settings)
    except tomllib.TOMLDecodeError:
        raise BadRequestError(f"--listen {listen!r} is no address of a host") from None
    Config(network=document["node"]["network"], listen=listen, http_port=document["http"]["port"])


def _agent_secret(path: Path) -> bytes:
    from p2pmem_protocol.keys import Key

    from p2pmem.home import SEED_BYTES

    try:
        text = path.read_bytes()[:AGENT_KEY_BYTES_MAX].decode("ascii").strip()
        secret = bytes.fromhex(text.removeprefix("0x"))
    except FileNotFoundError:
        raise NotFoundError(f"there is no file {path}") from None
    except OSError as error:
        raise MisuseError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        secret = b""
    if len(secret) != SEED_BYTES:
        raise MisuseError(f"{path} holds no key: 64 hexadecimal digits are needed, with or without 0x")
    Key(secret)
    return secret


def _write_missing(home: Home, settings: str, secret: bytes | None) -> list[Path]:
    """Write every file that is not there, the configuration last; take back what was written when one cannot be.

    What is there stays as it is, above all keys.
    """
    from p2pmem.home import SEED_BYTES, new_token, write_secret
    from p2pmem.keyring import create_agent

    home.create()
    missing, before = home.missing(), set(home.agent_keys)
    had_password = home.password_file.exists()
    written: list[Path] = []
    try:
        for path, data in ((home.peer_key_file, os.urandom(SEED_BYTES)), (home.token_file, new_token().encode())):
            if path in missing:
                write_secret(path, data)
                written.append(path)
        if not before:
            create_agent(home, secret)
            written += home.agent_keys
        if home.config_file in missing:
            write_secret(home.config_file, settings.encode())
            written.append(home.config_file)
    except BaseException:
        for path in {*written, *home.agent_keys} - before | (set() if had_password else {home.password_file}):
            path.unlink(missing_ok=True)
        raise
    return written


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-level", choices=LEVELS, default="warning", help="log to standard error from here (default: %(default)s)"
    )


def run(context: Context) -> Exit:
    """Run the node until SIGINT or SIGTERM. A second signal ends it at once; nothing that was acknowledged is lost."""
    context.home.need()
    import trio

    from p2pmem.config import load
    from p2pmem.keyring import need_agents

    need_agents(context.home)
    config = load(context.home.config_file)
    log_to_stderr(context.args.log_level)
    trio.run(_run_node, context, config)
    return Exit.OK


async def _run_node(context: Context, config: Config) -> None:
    import trio

    from p2pmem.cli.session import find_running, ready_line
    from p2pmem.home_node import run_node

    stop = trio.Event()
    async with trio.open_nursery() as listening:
        await listening.start(_until_signal, context, stop, listening.cancel_scope)
        async with trio.open_nursery() as nursery:
            await nursery.start(partial(run_node, context.home, config, stop=stop))
            running = find_running(context.home)
            context.out.event(running, ready_line(running))
        listening.cancel_scope.cancel()


async def _until_signal(
    context: Context, stop: trio.Event, scope: trio.CancelScope, *, task_status: trio.TaskStatus[None]
) -> None:
    """The first signal stops the node in order, a second one at once."""
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if stop.is_set():
                scope.cancel()
                return
            context.out.note(f"{signal.Signals(number).name}: stopping")
            stop.set()


def config_show(context: Context) -> Exit:
    """Every setting with its value and where it comes from."""
    from p2pmem.config import ignored, load, origins

    context.home.need()
    path = context.home.config_file
    config = load(path)
    settings = [{"name": it.name, "value": getattr(config, it.field), "origin": it.origin} for it in origins(path)]
    rows = [[str(it["name"]), _show_setting(it["value"]), str(it["origin"])] for it in settings]
    others = ignored()
    text = f"{path}\n{table(('SETTING', 'VALUE', 'FROM'), rows, '')}"
    if others:
        text += f"\nin the environment, and no settings: {', '.join(others)}"
    context.out.answer({"file": str(path), "settings": settings, "ignored": others}, text)
    return Exit.OK


def _show_setting(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


COMMANDS: Final = (
    Command(
        "init",
        "make a node: keys, token and settings",
        init,
        _init_arguments,
        "Where some of them are there it makes those that are missing, and leaves the others as they are.",
        offline=True,
    ),
    Command(
        "run",
        "run the node in the foreground",
        run,
        _run_arguments,
        "Prints one line when it is ready: where it answers HTTP, and where other peers reach it. SIGTERM and SIGINT\n"
        "stop it once running jobs have come to a good place; a second signal stops it at once. Nothing is lost.",
        offline=True,
    ),
    Command("config show", "show every setting and where it comes from", config_show, offline=True),
)
