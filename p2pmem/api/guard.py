"""Who may ask at all: tested before a byte of a body is read.

* The **host** must be this machine by name or address, or the configured one. A web page that lets its own name resolve
  to this machine (DNS rebinding) comes with that name, and is turned away.
* The **origin** that a browser adds must be ours, so that no other page speaks for its reader.
* The **token** is compared in constant time. `/healthz` and `/readyz` go without. The node's own token opens
  everything. An agent's token is made of it, so that none is stored, and opens what `p2pmem.api.routes.AGENT_CALLS`
  names.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

from p2pmem.api.problems import BadRequestError, ForbiddenError, NotAuthorisedError

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz"})
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "[::1]"})


def agent_token(token: str, agent: str) -> str:
    """The token of one agent of the node whose own token is `token`. It ends when that is changed."""
    mark = hmac.new(token.encode(), f"p2pmem agent {agent}".encode(), hashlib.sha256).hexdigest()
    return f"{agent}.{mark}"


class Guard:
    """Tests the head of a request. Holds the token, so its `repr` is the default one."""

    __slots__ = ("_hosts", "_token")

    def __init__(self, *, token: str, host: str) -> None:
        """`host` is what the node listens at; that name is accepted beside those of this machine."""
        self._token = token.encode()
        self._hosts = _LOOPBACK | {f"[{host}]".lower() if ":" in host else host.lower()}

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The agent whose token was given; None for the node's own, and where none is needed.

        Raises `ForbiddenError`, `NotAuthorisedError`, or `BadRequestError` for a header that comes twice.
        """
        found: dict[bytes, str] = {}
        for raw_name, value in headers:
            name = raw_name.lower()
            if name in (b"host", b"origin", b"authorization"):
                if name in found:
                    raise BadRequestError(f"the header {name.decode()} comes twice")
                found[name] = value.decode("latin-1").strip()
        self._check_host(found.get(b"host", ""))
        if b"origin" in found and not self._is_ours(found[b"origin"], found[b"host"]):
            raise ForbiddenError("this comes from a web page of another origin")
        return None if path in OPEN_PATHS else self._check_token(found.get(b"authorization", ""))

    def _check_host(self, authority: str) -> None:
        host = authority.lower()
        name, colon, port = host.rpartition(":")
        if colon and port.isascii() and port.isdigit():
            host = name
        if host not in self._hosts:
            raise ForbiddenError(
                "the Host header names another machine: use the address that `p2pmem status` shows, or set http.host"
            )

    def _is_ours(self, origin: str, authority: str) -> bool:
        return origin.lower() == f"http://{authority.lower()}"

    def _check_token(self, authorization: str) -> str | None:
        scheme, _, given = authorization.partition(" ")
        word = given.strip()
        agent = word.partition(".")[0]
        if scheme.lower() == "bearer":
            if hmac.compare_digest(word.encode("latin-1"), self._token):
                return None
            if agent and hmac.compare_digest(word.encode("latin-1"), agent_token(self._token.decode(), agent).encode()):
                return agent
        raise NotAuthorisedError(
            "the token is missing or wrong: send `Authorization: Bearer TOKEN` with what the file `token` in the "
            "node's directory holds"
        )
