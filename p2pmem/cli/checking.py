"""Checking a certificate or a proof, without a node and without believing whoever gave it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from p2pmem.api.codec import decode, loads
from p2pmem.api.problems import BadRequestError, Exit
from p2pmem.cli.command import Command, Context
from p2pmem.cli.files import read_as, read_input, shown_name
from p2pmem.cli.words import clean

if TYPE_CHECKING:
    from p2pmem_protocol.certificate import Certificate, Standing

ROSTER_BYTES_MAX: Final = 64 * 1024 * 1024
PROOF_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProofFile:
    """What a proof needs. `graph`, `reference` and `seal` are words of whoever gave it: the proof is of the root."""

    statement: str
    root: str
    leaves: int
    leaf: str
    proof: tuple[str, ...]
    graph: str = ""
    reference: str = ""
    seal: str = ""


def _certificate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="a certificate in CBOR or JSON, - for standard input")
    parser.add_argument("--content", metavar="FILE", help="also check that these statements are what was verified")
    parser.add_argument(
        "--head", metavar="FILE", help="judge it by newer members: a roster that `p2pmem graph roster` wrote"
    )


def check_certificate(context: Context) -> Exit:
    """Every signature and every step from the root key to the quorum; and with content, its root."""
    from p2pmem_protocol.certificate import CERTIFICATE_BYTES_MAX, Certificate, Standing
    from p2pmem_protocol.certificate_json import from_json
    from p2pmem_protocol.errors import RefusedError
    from p2pmem_protocol.names import hex_id

    from p2pmem.services.certifying import statement_json

    args = context.args
    data = read_input(args.file, 4 * CERTIFICATE_BYTES_MAX)
    with read_as(args.file, "a certificate, which `p2pmem trust export` writes"):
        is_json = data.lstrip()[:1] == b"{"
        certificate = from_json(data.decode("utf-8", "replace")) if is_json else Certificate.decode(data)
    try:
        statement = certificate.check()
    except RefusedError as error:
        why = str(error).partition(": ")[2]
        raise RefusedError(error.reason, f"{shown_name(args.file)} does not hold: {why}") from None
    seal = statement.seal
    lines = [f"holds: {statement.shown}"]
    where = f"in the sub-graph {clean(seal.subgraph)}" if seal.subgraph else "in no sub-graph"
    lines.append(f"  sealed {where}: {hex_id(seal.digest)}")
    lines += [f"  {address} approved ({method.name.lower()})" for address, method in statement.approvals]
    if args.content is not None:
        _check_content(args.content, statement.subject.root)
        lines.append(f"  {args.content} is what they verified")
    answer = {"holds": True, "statement": statement_json(statement), "content": args.content is not None}
    stands = True
    if args.head is not None:
        standing = _standing(certificate, args.head)
        stands = standing is not Standing.OUTDATED
        answer |= {"standing": standing.name.lower(), "stands": stands}
        lines.append(f"  under {args.head}: {standing.value}")
    context.out.answer(answer, "\n".join(lines))
    return Exit.OK if stands else Exit.REFUSED


def _standing(certificate: Certificate, name: str) -> Standing:
    """How it stands under a roster of the same graph, whose whole chain from the root key is checked."""
    from p2pmem_protocol import cbor
    from p2pmem_protocol.certificate import standing
    from p2pmem_protocol.errors import Reason, RefusedError
    from p2pmem_protocol.heads import HeadChain
    from p2pmem_protocol.join import Chain
    from p2pmem_protocol.roster import Roster

    data = read_input(name, ROSTER_BYTES_MAX)
    with read_as(name, "a roster that `p2pmem graph roster` wrote"):
        chain = Chain.from_value(cbor.decode(data, limit_bytes=ROSTER_BYTES_MAX))
    held = HeadChain(certificate.graph.id, certificate.network)
    held.add_all(chain.headers)
    head = held.head().header
    if head is None or head.id != chain.headers[-1].id:
        raise RefusedError(Reason.BAD_FIELD, f"{name} does not lead from the root key of the graph to a head")
    return standing(certificate, Roster.join(head, chain.parts), held.quorums_of(head.id))


def _check_content(name: str, root: bytes) -> None:
    from p2pmem_protocol.content import check_canonical
    from p2pmem_protocol.errors import Reason, RefusedError
    from p2pmem_protocol.limits import CONTENT_BYTES_MAX

    data = read_input(name, CONTENT_BYTES_MAX)
    with read_as(name, "what `p2pmem content` wrote, which is canonical N-Quads"):
        content = check_canonical(data)
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
    data = read_input(args.file, PROOF_BYTES_MAX)
    with read_as(args.file, "a proof"):
        given: ProofFile = decode(ProofFile, loads(data, "it"))
        root, leaf = parse_hex_id(given.root), parse_hex_id(given.leaf)
        hashes = tuple(parse_hex_id(it) for it in given.proof)
    if args.root is not None and parse_hex_id(args.root) != root:
        raise BadRequestError(f"{args.file} is a proof for the root {given.root}, not for the one given with --root")
    verify(root, given.leaves, given.statement.encode(), Proof(leaf, hashes))
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
        "It says who had verified a version when it was made. What came later it cannot know; with a newer roster "
        "--head says whether it still stands, and the exit code is 0 only if it does.",
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
