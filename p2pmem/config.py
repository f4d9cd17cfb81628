"""The configuration of a node: a commented TOML file, and for each setting an environment variable that wins over it.

`P2PMEM_<SECTION>_<NAME>` overrides, so that a container or a test needs no file of its own.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_type_hints

from p2pmem_protocol.errors import MisuseError
from p2pmem_protocol.names import network_id

from p2pmem.home import MAKE_ANEW
from p2pmem.net.multiaddr import parse_tcp
from p2pmem.review.judging import ReviewSettings

TEMPLATE: Final = """\
# p2pmem: configuration of one node. Every setting can be overridden by P2PMEM_<SECTION>_<NAME> in the environment.

[node]
# Signatures made for one network are void in another.
network = "{network}"
# How others see you in member lists you join.
label = "{label}"

[peer]
# Where other peers reach this node. Port 0: the system chooses one at the first start, and it is kept while it is free.
listen = "{listen}"
# Public addresses to put into invites, when they differ from where we listen (behind NAT, say). Comma between them.
announce = ""
# Members to dial from the start and for ever, besides those met before. /ip4/.../tcp/.../p2p/12D3Koo..., comma between.
bootstrap = ""
# Find members on the same local network by multicast DNS. Others there then see that a peer is here, and whoever
# announces himself there too is told which agents this node speaks for, and for whom they act (docs/host.md).
mdns = false

[http]
# The HTTP interface: for this machine only, unless you know what you do.
host = "127.0.0.1"
port = {http_port}

[chain]
# JSON-RPC address of an Ethereum node, and the contract. Empty: no chain, and nothing costs anything.
rpc = ""
contract = ""
chain_id = 0
confirmations = 1
# Seconds between two looks at the chain.
poll_s = 1.0

[review]
# What this node's verifier does with a proposal, once bytes, root and seal agree: auto approves; manual asks you; shacl
# validates against a shapes graph; exec asks a command.
policy = "auto"
# For shacl: the shapes, <address>/<name>@<version> in the context graph of the proposal. Needs p2pmem[shacl].
shapes = ""
# For exec: gets N-Quads on standard input; code 0 approves, 1 rejects, what it prints is the reason. It runs with your
# rights on what strangers wrote: never hand that to a shell, an interpreter, or a model that can act.
command = ""
timeout_s = 60.0

[share]
# Share again what this node's agents shared, before it ends. What one does not renew is forgotten by all.
renew = false

[disk]
# With less than so many megabytes free, nothing of others is taken in any more; members see the node as partial.
free_min_mb = 200
"""

FREE_DISK_MIN_MB: Final = 200
_HEAD: Final = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY: Final = re.compile(r"\s*([\w-]+)\s*=")


@dataclass(frozen=True, slots=True)
class Config:
    """One node's settings. `home` is not among them: it says where this file is."""

    network: str = "p2pmem"
    label: str = ""
    listen: str = "/ip4/127.0.0.1/tcp/0"
    announce: tuple[str, ...] = ()
    bootstrap: tuple[str, ...] = ()
    mdns: bool = False
    http_host: str = "127.0.0.1"
    http_port: int = 0
    chain_rpc: str = ""
    chain_contract: str = ""
    chain_id: int = 0
    chain_confirmations: int = 1
    chain_poll_s: float = 1.0
    review_policy: str = "auto"
    review_shapes: str = ""
    review_command: str = ""
    review_timeout_s: float = 60.0
    share_renew: bool = False
    free_disk_min_mb: int = FREE_DISK_MIN_MB

    def __post_init__(self) -> None:
        network_id(self.network)
        ReviewSettings(self.review_policy, self.review_shapes, self.review_command, self.review_timeout_s)
        if self.free_disk_min_mb < 0:
            raise MisuseError(f"disk.free_min_mb is {self.free_disk_min_mb}: 0 and more are possible")
        try:
            parse_tcp(self.listen)
        except MisuseError as error:
            raise MisuseError(f"peer.listen {error}") from None
        for address in self.bootstrap:
            if not (address.startswith("/") and "/p2p/" in address):
                raise MisuseError(
                    f"peer.bootstrap has {address!r}: a whole one is needed: /ip4/.../tcp/.../p2p/12D3Koo..."
                )
        if not 0 <= self.http_port <= 65_535:
            raise MisuseError(f"http.port is {self.http_port}: 0 to 65535 are possible")
        if bool(self.chain_rpc) != bool(self.chain_contract):
            raise MisuseError("chain.rpc and chain.contract are set together or not at all")

    @property
    def review(self) -> ReviewSettings:
        """How this node's verifier comes to a verdict."""
        return ReviewSettings(self.review_policy, self.review_shapes, self.review_command, self.review_timeout_s)


_PLACES: Final = {
    "network": ("node", "network"),
    "label": ("node", "label"),
    "listen": ("peer", "listen"),
    "announce": ("peer", "announce"),
    "bootstrap": ("peer", "bootstrap"),
    "mdns": ("peer", "mdns"),
    "http_host": ("http", "host"),
    "http_port": ("http", "port"),
    "chain_rpc": ("chain", "rpc"),
    "chain_contract": ("chain", "contract"),
    "chain_id": ("chain", "chain_id"),
    "chain_confirmations": ("chain", "confirmations"),
    "chain_poll_s": ("chain", "poll_s"),
    "review_policy": ("review", "policy"),
    "review_shapes": ("review", "shapes"),
    "review_command": ("review", "command"),
    "review_timeout_s": ("review", "timeout_s"),
    "share_renew": ("share", "renew"),
    "free_disk_min_mb": ("disk", "free_min_mb"),
}


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Read `path`, then the environment. What is unknown is refused by name, and each mistake says where it stands."""
    try:
        text = path.read_text("utf-8")
        document = tomllib.loads(text)
    except FileNotFoundError:
        raise MisuseError(f"{path} is missing: {MAKE_ANEW}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise MisuseError(f"{path} is not TOML: {error}") from None
    values: dict[str, object] = {}
    where: dict[str, str] = {}
    for section, table in document.items():
        _need_section(path, text, section, table)
        for key, value in table.items():
            if (section, key) not in _FIELDS:
                named = ", ".join(name for of, name in _FIELDS if of == section)
                raise MisuseError(
                    f"{_place(path, text, section, key)}: there is no setting {section}.{key}: remove the line; "
                    f"[{section}] has {named}"
                )
            values[_FIELDS[section, key]] = value
            where[_FIELDS[section, key]] = _place(path, text, section, key)
    for name in _overriding(environment):
        values[_BY_VARIABLE[name]], where[_BY_VARIABLE[name]] = environment[name], name
    return _typed(values, where, path)


_FIELDS: Final = {place: name for name, place in _PLACES.items()}
_SECTIONS: Final = tuple(dict.fromkeys(section for section, _ in _FIELDS))
_BY_VARIABLE: Final = {f"P2PMEM_{section}_{key}".upper(): name for name, (section, key) in _PLACES.items()}
_OF_SECTIONS: Final = tuple(f"P2PMEM_{section}_".upper() for section in _SECTIONS)
_NO_SETTINGS: Final = frozenset({"P2PMEM_NODE_MODULES"})
"""Variables of our own scripts that look like settings."""


def _need_section(path: Path, text: str, section: str, table: object) -> None:
    known = f"there are {', '.join(f'[{it}]' for it in _SECTIONS)}"
    if not isinstance(table, dict):
        raise MisuseError(f"{_place(path, text, '', section)}: {section} stands outside any section; {known}")
    if section not in _SECTIONS:
        raise MisuseError(f"{_place(path, text, section, '')}: there is no section [{section}]: remove it; {known}")


def _overriding(environment: Mapping[str, str]) -> list[str]:
    """The variables that win over the file. Raises `MisuseError` for one that looks like a setting and is none."""
    found = [name for name in environment if name in _BY_VARIABLE]
    for name in environment:
        if name.startswith(_OF_SECTIONS) and name not in _BY_VARIABLE and name not in _NO_SETTINGS:
            raise MisuseError(
                f"{name} in the environment names no setting: unset it; there are {', '.join(_BY_VARIABLE)}"
            )
    return found


def _place(path: Path, text: str, section: str, key: str) -> str:
    """The file and the line of a setting, or without a key of its section; the file alone where that is unclear."""
    at = ""
    for number, line in enumerate(text.splitlines(), 1):
        head = _HEAD.match(line)
        if head:
            at = head[1]
        found = head is not None if not key else (named := _KEY.match(line)) is not None and named[1] == key
        if at == section and found:
            return f"{path}, line {number}"
    return str(path)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a setting comes from: `file`, `default`, or the variable of the environment that wins."""

    field: str
    name: str
    origin: str


def origins(path: Path, environment: Mapping[str, str] = os.environ) -> tuple[Origin, ...]:
    """The origin of every setting that `load` finds, in the order of the file."""
    document = tomllib.loads(path.read_text("utf-8"))
    found: list[Origin] = []
    for field, (section, key) in _PLACES.items():
        variable = f"P2PMEM_{section}_{key}".upper()
        in_file = "file" if key in document.get(section, {}) else "default"
        found.append(Origin(field, f"{section}.{key}", variable if variable in environment else in_file))
    return tuple(found)


def _typed(values: Mapping[str, object], where: Mapping[str, str], path: Path) -> Config:
    """The settings from what was read; `where` says for messages where each was."""
    types = get_type_hints(Config)
    typed: dict[str, object] = {}
    for name, value in values.items():
        try:
            typed[name] = _value(value, types[name])
        except ValueError as error:
            section, key = _PLACES[name]
            raise MisuseError(f"{where[name]}: {section}.{key} is {value!r}: {error}") from None
    try:
        return Config(**typed)  # type: ignore[arg-type]  # each value was made from the hint of its own field
    except MisuseError as error:
        blamed = [name for name, (section, key) in _PLACES.items() if str(error).startswith(f"{section}.{key} ")]
        raise MisuseError(f"{where.get(blamed[0], path) if blamed else path}: {error}") from None


def _value(value: object, wanted: object) -> object:
    """Raises `ValueError` that says what is possible."""
    if wanted is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError("true and false are possible")
        return str(value).lower() == "true"
    if wanted in (int, float):
        try:
            return int(str(value)) if wanted is int else float(str(value))
        except ValueError:
            raise ValueError(f"a {'whole ' if wanted is int else ''}number is needed") from None
    if wanted is str:
        return str(value)
    parts = value if isinstance(value, list) else str(value).split(",")
    return tuple(str(part).strip() for part in parts if str(part).strip())


def ignored(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Variables with our prefix that are no settings, nor one that says where the settings are."""
    return tuple(
        sorted(it for it in environment if it.startswith("P2PMEM_") and it not in (*_BY_VARIABLE, "P2PMEM_HOME"))
    )


def template(*, network: str, label: str, listen: str, http_port: int) -> str:
    """The text of a first configuration file."""
    return TEMPLATE.format(network=network, label=label.replace('"', "'"), listen=listen, http_port=http_port)
