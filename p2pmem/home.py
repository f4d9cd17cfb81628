"""Where a node keeps its things: directories, and files that only their owner may read.

`P2PMEM_HOME` names one directory for everything. Without it, the XDG Base Directory rules hold: configuration in
`$XDG_CONFIG_HOME/p2pmem`, everything else in `$XDG_STATE_HOME/p2pmem`.

    config.toml     commented configuration                    token           bearer token of the HTTP interface
    peer.key        32 bytes: the seed of the peer's identity  agents/         one encrypted key file an agent
    ledger.sqlite   the truth                                  store/          triple store, can be rebuilt
    text.sqlite     full-text index, can be rebuilt            run.json        who runs here now, and where it listens
    peer.port       the port that other peers know
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from p2pmem_protocol.errors import MisuseError, OutsideError

SECRET_MODE: Final = 0o600
DIRECTORY_MODE: Final = 0o700
TOKEN_BYTES: Final = 32
SEED_BYTES: Final = 32
TOKEN_CHARACTERS_MIN: Final = 16
_TOKEN: Final = re.compile(f"[!-~]{{{TOKEN_CHARACTERS_MIN},}}")
MAKE_ANEW: Final = (
    "restore what is missing from your backup, or run `p2pmem init`, which makes it anew and changes nothing else"
)


@dataclass(frozen=True, slots=True)
class Home:
    """The directories of one node. Nothing is created before `create`."""

    config_dir: Path
    data_dir: Path

    @classmethod
    def find(cls, explicit: str | None = None) -> Home:
        """`explicit`, else `P2PMEM_HOME`, else XDG."""
        named = explicit or os.environ.get("P2PMEM_HOME")
        if named:
            root = Path(named).expanduser().absolute()
            return cls(root, root)
        user = Path.home()
        config = os.environ.get("XDG_CONFIG_HOME") or str(user / ".config")
        state = os.environ.get("XDG_STATE_HOME") or str(user / ".local" / "state")
        return cls(Path(config) / "p2pmem", Path(state) / "p2pmem")

    @property
    def config_file(self) -> Path:
        return self.config_dir / "config.toml"

    @property
    def token_file(self) -> Path:
        return self.data_dir / "token"

    @property
    def peer_key_file(self) -> Path:
        return self.data_dir / "peer.key"

    @property
    def port_file(self) -> Path:
        return self.data_dir / "peer.port"

    @property
    def agents_dir(self) -> Path:
        return self.data_dir / "agents"

    @property
    def password_file(self) -> Path:
        return self.data_dir / "agents.password"

    @property
    def ledger_file(self) -> Path:
        return self.data_dir / "ledger.sqlite"

    @property
    def store_dir(self) -> Path:
        return self.data_dir / "store"

    @property
    def text_file(self) -> Path:
        return self.data_dir / "text.sqlite"

    @property
    def lock_file(self) -> Path:
        return self.data_dir / "ledger.sqlite.lock"

    @property
    def snapshots_dir(self) -> Path:
        return self.data_dir / "snapshots"

    @property
    def run_file(self) -> Path:
        return self.data_dir / "run.json"

    @property
    def agent_keys(self) -> tuple[Path, ...]:
        """The key files of agents, the default first."""
        return tuple(sorted(self.agents_dir.glob("*.json")))

    def missing(self) -> tuple[Path, ...]:
        """Which files are not here that a node cannot do without, agent keys aside."""
        return tuple(path for path in (self.config_file, self.peer_key_file, self.token_file) if not path.is_file())

    @property
    def is_begun(self) -> bool:
        """Whether there is anything of a node here."""
        kept = (self.config_file, self.peer_key_file, self.token_file, self.ledger_file, *self.agent_keys)
        return any(path.is_file() for path in kept)

    @property
    def is_whole(self) -> bool:
        return not self.missing() and bool(self.agent_keys) and self.password_file.is_file()

    def create(self) -> None:
        """Make the directories, readable by their owner alone."""
        for directory in (self.config_dir, self.data_dir, self.agents_dir):
            try:
                directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
            except OSError as error:
                raise OutsideError(f"cannot make the directory {directory}: {error.strerror}") from error

    def need(self) -> None:
        """Raises `MisuseError` unless `p2pmem init` was here, and all that it made is here still."""
        missing = self.missing()
        if missing and not self.is_begun:
            raise MisuseError(f"there is no node in {self.data_dir}: run `p2pmem init` first, or set P2PMEM_HOME")
        if missing:
            names = " and ".join(path.name for path in missing)
            raise MisuseError(f"the node in {self.data_dir} is without {names}: {MAKE_ANEW}")

    def need_ledger(self) -> None:
        """Raises `MisuseError` where a node has run and its ledger is gone: it would begin empty, and nobody would
        notice before he missed what it held.

        What tells is what is made after the ledger. The lock beside it may come before, and is left where a backup is
        put back.
        """
        log = self.ledger_file.with_name(f"{self.ledger_file.name}-wal")
        left = [path for path in (log, self.store_dir, self.text_file) if path.exists()]
        if self.ledger_file.exists() or not left:
            return
        raise MisuseError(
            f"there is no {self.ledger_file.name} in {self.data_dir}, and a node has run there: without it the node "
            "would have no graph, no draft and no job. Restore it from your backup; or, to start anew with the same "
            f"keys, delete what is left of it: `rm -r {shlex.join(map(str, left))}`, and enter your graphs by an invite"
        )


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read, whole or not at all. An existing one is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, SECRET_MODE)
    except FileExistsError:
        raise MisuseError(f"{path} exists already and is not overwritten") from None
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def read_secret(path: Path) -> bytes:
    """Read a secret; refused when others could read it too."""
    try:
        mode = path.stat().st_mode
        data = path.read_bytes()
    except FileNotFoundError:
        raise MisuseError(f"{path} is missing: {MAKE_ANEW}") from None
    except OSError as error:
        raise OutsideError(f"cannot read {path}: {error.strerror}") from error
    if stat.S_IMODE(mode) & 0o077:
        raise MisuseError(f"{path} can be read by others (mode {stat.S_IMODE(mode):o}): run `chmod 600 {path}`")
    return data


def read_token(home: Home) -> str:
    """The bearer token of the HTTP interface. An empty or a short one would let anybody in, so both are refused."""
    token = read_secret(home.token_file).decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise MisuseError(
            f"{home.token_file} does not hold a token, which is {TOKEN_CHARACTERS_MIN} or more ASCII characters "
            "without spaces: restore it from your backup, or delete it, run `p2pmem init` and start the node again"
        )
    return token


def read_seed(home: Home) -> bytes:
    """The seed of the peer's identity."""
    seed = read_secret(home.peer_key_file)
    if len(seed) != SEED_BYTES:
        raise MisuseError(
            f"{home.peer_key_file} holds no key: it has {len(seed)} bytes in place of {SEED_BYTES}. Restore it from "
            "your backup; or delete it and run `p2pmem init`: then this node is another peer, with the same agents"
        )
    return seed


def made_anew(*places: Path) -> str:
    """What to do about something that is damaged and can be made again from the ledger."""
    there = shlex.join(str(place) for place in places)
    return f"nothing is lost: stop the node, `rm -rf {there}`, and start it again; it makes that anew from the ledger"


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)
