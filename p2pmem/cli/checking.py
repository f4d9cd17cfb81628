"""Checking a certificate or a proof, without a node and without believing whoever gave it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Final

from p2pmem_protocol.errors import MisuseError

from p2pmem.api.codec import BadValueError, decode, loads
from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.cli.command import Command, Context
from p2pmem.cli.files import read_input
from p2pmem.cli.words import clean

PROOF_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProofFile:
    """What a proof needs. `graph` and `reference` are words of whoever gave it; the proof is of the root alone."""

    statement: str
    root: str
    leaves: int
    leaf: str
    proof: tuple[str, ...]
    graph: str = ""
    reference: str = ""


def _certificate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a certificate in CBOR or JSON, - for standard input")
    parser.add_argument("--content", metavar="FILE", help="also check that these statements are what was verified")


def check_certificate(context: Context) -> Exit:
    """Every signature and every step from the root key to the quorum; and with content, its root."""
    from p2pmem_protocol.certificate import CERTIFICATE_BYTES_MAX, Certificate
    from p2pmem_protocol.certificate_json import from_json

    from p2pmem.services.certifying import statement_json

    args = context.args
    data = read_input(args.file, 4 * CERTIFICATE_BYTES_MAX)
    certificate = from_json(data.decode("utf-8", "replace")) if data.lstrip()[:1] == b"{" else Certificate.decode(data)
    statement = certificate.check()
    lines = [f"holds: {statement.shown}"]
    lines += [f"  {address} approved ({method.name.lower()})" for address, method in statement.approvals]
    if args.content is not None:
        _check_content(args.content, statement.subject.root)
        lines.append(f"  {args.content} is what they verified")
    context.out.answer(
        {"holds": True, "statement": statement_json(statement), "content": args.content is not None}, "\n".join(lines)
    )
    return Exit.OK


def _check_content(name: str, root: bytes) -> None:
    from p2pmem_protocol.content import check_canonical
    from p2pmem_protocol.errors import Reason, RefusedError
    from p2pmem_protocol.limits import CONTENT_BYTES_MAX

    content = check_canonical(read_input(name, CONTENT_BYTES_MAX))
    if content.root != root:
        raise RefusedError(Reason.CONTENT_ROOT_MISMATCH, f"{name} is other content than the certificate is about")


def _proof_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a proof, - for standard input")
    parser.add_argument("--root", metavar="HASH", help="the root that you know from elsewhere, a certificate say")


def check_proof(context: Context) -> Exit:
    """From the statement up to the root. What the root is worth, its signatures say."""
    from p2pmem_protocol.merkle import Proof, verify
    from p2pmem_protocol.names import parse_hex_id

    args = context.args
    try:
        given: ProofFile = decode(ProofFile, loads(read_input(args.file, PROOF_BYTES_MAX)))
    except BadValueError as error:
        raise MisuseError(f"{args.file} is no proof of p2pmem: {error}") from None
    if args.root is not None and parse_hex_id(args.root) != parse_hex_id(given.root):
        raise BadRequestError(f"{args.file} is a proof for the root {given.root}, not for the one given with --root")
    hashes = tuple(parse_hex_id(it) for it in given.proof)
    verify(parse_hex_id(given.root), given.leaves, given.statement.encode(), Proof(parse_hex_id(given.leaf), hashes))
    answer = {"holds": True, "statement": given.statement, "root": given.root, "leaves": given.leaves}
    unknown = "" if args.root is not None else "; whose root that is, a seal or a certificate says"
    text = f"holds: {clean(given.statement.strip())}\n  is one of {given.leaves} under {given.root}{unknown}"
    context.out.answer(answer, text)
    return Exit.OK


COMMANDS: Final = (
    Command(
        "trust check",
        "check a certificate, without a node",
        check_certificate,
        _certificate_arguments,
        "It says who had verified a version when it was made. What came later it cannot know.",
        offline=True,
    ),
    Command(
        "proof check",
        "check the proof of one statement, without a node",
        check_proof,
        _proof_arguments,
        "It says that the statement is under the root. What the root is worth, a certificate of it says.",
        offline=True,
    ),
)
