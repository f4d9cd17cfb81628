"""What can go wrong with a chain, and the border at which other libraries' exceptions become ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from p2pmem_protocol.errors import MisuseError, OutsideError

# A server's words are shown to a person, so they are cut and cleaned.
SERVER_TEXT_CHARACTERS_MAX = 200


class ChainUnreachableError(OutsideError):
    """No answer: refused, lost or too slow. What was asked may have been done all the same."""


class ChainAnswerError(OutsideError):
    """The server answered something that no honest chain answers: too large, malformed, or about another question."""


class ChainRefusedError(OutsideError):
    """The server understood and said no, with an error of JSON-RPC. `code` is its number."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class ContractRefusedError(MisuseError):
    """The contract would revert, so nothing was signed or sent. `rule` is the name of its error, or "" if unknown."""

    def __init__(self, text: str, rule: str) -> None:
        super().__init__(text)
        self.rule = rule


class WrongChainError(MisuseError):
    """The server is on another chain than configured, or our contract is not at the configured address."""


def server_text(text: object) -> str:
    """Words of a server, cut and without control characters, fit for a message or a log."""
    cleaned = "".join(character if character.isprintable() else " " for character in str(text)[:4096])
    return cleaned if len(cleaned) <= SERVER_TEXT_CHARACTERS_MAX else cleaned[: SERVER_TEXT_CHARACTERS_MAX - 3] + "..."


def shown_url(url: str) -> str:
    """Scheme, host and port: paths and user names of such URLs are often keys, and never shown."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return server_text(f"{parts.scheme}://{host}")


@contextmanager
def map_exceptions(to: type[OutsideError], what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Raise `to` in place of any of these kinds. Hold as little as possible inside: it would hide our own mistakes."""
    try:
        yield
    except kinds as error:
        words = server_text(error)
        raise to(f"{what}: {type(error).__name__}{f': {words}' if words else ''}") from error
