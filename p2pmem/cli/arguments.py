"""Arguments that name members and roles."""

from __future__ import annotations

import argparse
from typing import Final

from p2pmem.face import NewMember

ROLES: Final = "reader, writer, endorser, verifier, approver"
MEMBER_ROLES: Final = ("reader", "writer", "endorser", "verifier")


def member(text: str) -> NewMember:
    """`ADDRESS[=ROLE,ROLE[=LABEL]]`."""
    address, _, rest = text.partition("=")
    roles, _, label = rest.partition("=")
    if not address:
        raise argparse.ArgumentTypeError(f"{text!r} names no address: ADDRESS[=ROLE,ROLE[=LABEL]]")
    return NewMember(address, words(roles) if roles else MEMBER_ROLES, label)


def words(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def member_argument(parser: argparse.ArgumentParser, flag: str, text: str) -> None:
    parser.add_argument(
        flag,
        metavar="ADDRESS[=ROLES[=LABEL]]",
        type=member,
        action="append",
        default=[],
        help=f"{text}; roles with commas between, of {ROLES} (default: {','.join(MEMBER_ROLES)})",
    )
